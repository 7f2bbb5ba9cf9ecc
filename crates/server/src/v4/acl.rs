//! Maps POSIX access control lists to NFSv4 ones and back (draft-ietf-nfsv4-acl-mapping, as Linux's
//! server does).
//!
//! 1. The NFSv4 form of a POSIX list allows each user exactly the same: read, write and execute,
//!    bit for bit.
//! 2. The POSIX form of an NFSv4 list never allows more of these than the NFSv4 list. It may allow
//!    less: a partial right (write without append) is dropped, and bits denied to a group are
//!    denied to all users who may belong to it.
//! 3. A list that POSIX cannot express is refused: unknown types of entries or of inheritance, and
//!    deny entries with none of the bits that POSIX can deny.

use super::idmap::{IdKind, IdMap};
use std::collections::BTreeMap;
use weir_nfs::v4::Error;
use weir_nfs::v4::acl::{Ace, AceFlags, AceMask, AceType, MAX_ACES};
use weir_vfs::{Acl, AclRights, AclWho};

/// `aclsupport`: ALLOW and DENY entries.
pub(super) const SUPPORT: u32 = 1 | 2;

const READ: AclRights = 4;
const WRITE: AclRights = 2;
const EXECUTE: AclRights = 1;

const WRITE_FILE: AceMask = AceMask::WRITE_DATA.union(AceMask::APPEND_DATA);
/// What every user may do; POSIX cannot deny it.
const ANYBODYS: AceMask =
    AceMask::READ_ATTRIBUTES.union(AceMask::READ_ACL).union(AceMask::SYNCHRONIZE);
/// What the owner may do besides.
const OWNERS: AceMask = AceMask::WRITE_ATTRIBUTES.union(AceMask::WRITE_ACL);
/// Flags of the entries of a default list.
const INHERITED: AceFlags = AceFlags::FILE_INHERIT.union(AceFlags::DIRECTORY_INHERIT);
const FLAGS: AceFlags = INHERITED.union(AceFlags::INHERIT_ONLY).union(AceFlags::IDENTIFIER_GROUP);

/// A file's lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Acls {
    pub(super) access: Acl,
    /// Directories only.
    pub(super) default: Option<Acl>,
}

/// The principal of an NFSv4 entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Who {
    Owner,
    Group,
    Everyone,
    User(u32),
    NamedGroup(u32),
}

/// An NFSv4 entry whose name has been resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    denies: bool,
    flags: AceFlags,
    mask: AceMask,
    who: Who,
}

/// The NFSv4 form of the lists.
///
/// # Errors
/// [`Error::Resource`]: more than [`MAX_ACES`] entries.
pub(super) async fn to_wire(ids: &IdMap, acls: &Acls, is_dir: bool) -> Result<Vec<Ace>, Error> {
    let mut entries = Vec::new();
    write(&acls.access, AceFlags::empty(), is_dir, &mut entries);
    if let Some(default) = &acls.default {
        write(default, INHERITED | AceFlags::INHERIT_ONLY, is_dir, &mut entries);
    }
    if entries.len() > MAX_ACES {
        return Err(Error::Resource);
    }
    let mut aces = Vec::with_capacity(entries.len());
    for entry in entries {
        let kind = if entry.denies { AceType::Deny } else { AceType::Allow };
        let who = match entry.who {
            Who::Owner => "OWNER@".into(),
            Who::Group => "GROUP@".into(),
            Who::Everyone => "EVERYONE@".into(),
            Who::User(id) => ids.name(IdKind::User, id).await,
            Who::NamedGroup(id) => ids.name(IdKind::Group, id).await,
        };
        aces.push(Ace { kind, flags: entry.flags, mask: entry.mask, who });
    }
    Ok(aces)
}

/// Resolves the names in the entries that a client sends.
///
/// # Errors
/// [`Error::AttrNotSupp`]: POSIX cannot express an entry; [`Error::BadOwner`]: there is no such
/// user or group.
pub(super) async fn entries(ids: &IdMap, aces: &[Ace]) -> Result<Vec<Entry>, Error> {
    let mut entries = Vec::with_capacity(aces.len());
    for ace in aces {
        entries.push(entry(ids, ace).await?);
    }
    Ok(entries)
}

async fn entry(ids: &IdMap, ace: &Ace) -> Result<Entry, Error> {
    let denies = match ace.kind {
        AceType::Allow => false,
        AceType::Deny => true,
        AceType::Audit | AceType::Alarm => return Err(Error::AttrNotSupp),
    };
    let is_group = ace.flags.contains(AceFlags::IDENTIFIER_GROUP);
    let id = async |kind| ids.number(kind, &ace.who).await.ok_or(Error::BadOwner);
    let who = match &ace.who[..] {
        b"OWNER@" => Who::Owner,
        b"GROUP@" => Who::Group,
        b"EVERYONE@" => Who::Everyone,
        // INTERACTIVE@, NETWORK@ and so on: the server cannot tell these callers apart.
        [.., b'@'] => return Err(Error::AttrNotSupp),
        _ if is_group => Who::NamedGroup(id(IdKind::Group).await?),
        _ => Who::User(id(IdKind::User).await?),
    };
    Ok(Entry { denies, flags: ace.flags, mask: ace.mask, who })
}

/// Appends the NFSv4 entries of one list.
fn write(acl: &Acl, flags: AceFlags, is_dir: bool, out: &mut Vec<Entry>) {
    let get = |who| acl.get(who).unwrap_or(0);
    let cap = acl.get(AclWho::Mask).unwrap_or(7);
    let named = |of: fn(AclWho) -> Option<Who>| {
        acl.entries().iter().filter_map(move |&(who, r)| Some((of(who)?, r & cap)))
    };
    let users = named(|who| if let AclWho::User(id) = who { Some(Who::User(id)) } else { None });
    let groups = named(|who| match who {
        AclWho::NamedGroup(id) => Some(Who::NamedGroup(id)),
        _ => None,
    });
    let (owner, group, other) = (get(AclWho::Owner), get(AclWho::Group) & cap, get(AclWho::Other));
    let any =
        |rights: &mut dyn Iterator<Item = (Who, AclRights)>| rights.fold(0, |a, (_, r)| a | r);
    let (any_user, any_group) = (any(&mut users.clone()), any(&mut groups.clone()));

    let mut put = |denies, who, mask: AceMask| {
        let flags = match who {
            Who::NamedGroup(_) => flags | AceFlags::IDENTIFIER_GROUP,
            _ => flags,
        };
        if !mask.is_empty() {
            out.push(Entry { denies, flags, mask, who });
        }
    };
    // A class is denied the rights that it lacks and that a later entry would allow.
    put(true, Who::Owner, bits(!owner & (any_user | group | any_group | other), is_dir));
    put(false, Who::Owner, bits(owner, is_dir) | ANYBODYS | OWNERS);
    for (who, rights) in users {
        put(true, who, bits(!rights & (group | any_group | other), is_dir));
        put(false, who, bits(rights, is_dir) | ANYBODYS);
    }
    // A user has the rights of all groups it is in, so all allow entries precede the deny entries.
    put(false, Who::Group, bits(group, is_dir) | ANYBODYS);
    for (who, rights) in groups.clone() {
        put(false, who, bits(rights, is_dir) | ANYBODYS);
    }
    put(true, Who::Group, bits(!group & other, is_dir));
    for (who, rights) in groups {
        put(true, who, bits(!rights & other, is_dir));
    }
    put(false, Who::Everyone, bits(other, is_dir) | ANYBODYS);
}

/// The NFSv4 mask of rights.
fn bits(rights: AclRights, is_dir: bool) -> AceMask {
    let mut mask = AceMask::empty();
    mask.set(AceMask::READ_DATA, rights & READ != 0);
    mask.set(write_bits(is_dir), rights & WRITE != 0);
    mask.set(AceMask::EXECUTE, rights & EXECUTE != 0);
    mask
}

fn write_bits(is_dir: bool) -> AceMask {
    if is_dir { WRITE_FILE | AceMask::DELETE_CHILD } else { WRITE_FILE }
}

/// The rights of which `mask` contains all bits.
fn rights(mask: AceMask, is_dir: bool) -> AclRights {
    [READ, WRITE, EXECUTE].into_iter().filter(|&right| mask.contains(bits(right, is_dir))).sum()
}

/// The POSIX lists for the entries that a client sets.
///
/// # Errors
/// [`Error::AttrNotSupp`]: POSIX cannot express them; [`Error::Inval`]: they are inconsistent.
pub(super) fn read(entries: &[Entry], is_dir: bool) -> Result<Acls, Error> {
    let (mut access, mut default) = (Collector::default(), None::<Collector>);
    for entry in entries {
        if !entry.flags.difference(FLAGS).is_empty() {
            return Err(Error::AttrNotSupp);
        }
        // In POSIX, a file's own list does not control retention or the removal of the file itself,
        // and cannot hide the attributes.
        let deniable = bits(7, true);
        if entry.denies && !entry.mask.is_empty() && entry.mask.intersection(deniable).is_empty() {
            return Err(Error::AttrNotSupp);
        }
        if entry.flags.intersection(INHERITED).is_empty() {
            if entry.flags.contains(AceFlags::INHERIT_ONLY) {
                return Err(Error::Inval);
            }
            access.take(entry);
            continue;
        }
        if !is_dir {
            return Err(Error::Inval);
        }
        // In POSIX, files and directories inherit the same entries.
        if !entry.flags.contains(INHERITED) {
            return Err(Error::AttrNotSupp);
        }
        default.get_or_insert_default().take(entry);
        if !entry.flags.contains(AceFlags::INHERIT_ONLY) {
            access.take(entry);
        }
    }
    if let Some(default) = &mut default {
        default.complete(&access);
    }
    Ok(Acls {
        access: access.finish(is_dir)?,
        default: default.map(|default| default.finish(is_dir)).transpose()?,
    })
}

/// The bits decided so far for one user, group or class.
#[derive(Clone, Copy, Debug)]
struct Decided {
    allowed: AceMask,
    denied: AceMask,
}

impl Default for Decided {
    fn default() -> Self {
        Self { allowed: AceMask::empty(), denied: AceMask::empty() }
    }
}

impl Decided {
    /// The first entry that contains a bit decides it.
    fn take(&mut self, denies: bool, mask: AceMask) {
        if denies {
            self.denied |= mask - self.allowed;
        } else {
            self.allowed |= mask - self.denied;
        }
    }
}

/// Collects the entries of one list.
#[derive(Debug, Default)]
struct Collector {
    owner: Option<Decided>,
    group: Option<Decided>,
    other: Option<Decided>,
    users: BTreeMap<u32, Decided>,
    groups: BTreeMap<u32, Decided>,
    /// The bits decided for EVERYONE@: where a user or group starts that has not been named yet.
    everyone: Decided,
}

impl Collector {
    fn take(&mut self, entry: &Entry) {
        let Entry { denies, mask, who, .. } = *entry;
        let everyone = self.everyone;
        match who {
            Who::Owner => self.owner.get_or_insert(everyone).take(denies, mask),
            Who::User(id) => {
                let user = self.users.entry(id).or_insert(everyone);
                user.take(denies, mask);
                if denies {
                    // The owner may be this user.
                    let denied = user.denied;
                    self.owner.get_or_insert(everyone).take(true, denied);
                }
            }
            Who::Group => {
                let group = self.group.get_or_insert(everyone);
                group.take(denies, mask);
                let denied = group.denied;
                if denies {
                    self.deny_members(denied);
                }
            }
            Who::NamedGroup(id) => {
                let group = self.groups.entry(id).or_insert(everyone);
                group.take(denies, mask);
                let denied = group.denied;
                if denies {
                    self.deny_members(denied);
                    self.group.get_or_insert(everyone).take(true, denied);
                }
            }
            Who::Everyone => {
                self.owner.get_or_insert(everyone);
                self.group.get_or_insert(everyone);
                self.other.get_or_insert_default();
                self.everyone.take(denies, mask);
                let all = [&mut self.owner, &mut self.group, &mut self.other];
                let named = self.users.values_mut().chain(self.groups.values_mut());
                all.into_iter().flatten().chain(named).for_each(|one| one.take(denies, mask));
            }
        }
    }

    /// Denies bits to all users who may belong to a group to which the bits are denied.
    fn deny_members(&mut self, denied: AceMask) {
        self.owner.get_or_insert(self.everyone).take(true, denied);
        self.everyone.take(true, denied);
        let named = self.users.values_mut().chain(self.groups.values_mut());
        named.for_each(|one| one.take(true, denied));
    }

    /// Takes the owner, group and other entries that a default list lacks from the directory's own
    /// list.
    fn complete(&mut self, access: &Self) {
        self.owner = self.owner.or(access.owner);
        self.group = self.group.or(access.group);
        self.other = self.other.or(access.other);
    }

    fn finish(self, is_dir: bool) -> Result<Acl, Error> {
        let of = |decided: Decided| rights(decided.allowed, is_dir);
        let class = |class: Option<Decided>| of(class.unwrap_or_default());
        let group = class(self.group);
        let named = self.users.values().chain(self.groups.values());
        let mask = named.fold(group, |mask, one| mask | of(*one));
        let mut entries = vec![
            (AclWho::Owner, class(self.owner)),
            (AclWho::Group, group),
            (AclWho::Other, class(self.other)),
        ];
        if !self.users.is_empty() || !self.groups.is_empty() {
            entries.push((AclWho::Mask, mask));
        }
        entries.extend(self.users.iter().map(|(&id, one)| (AclWho::User(id), of(*one))));
        entries.extend(self.groups.iter().map(|(&id, one)| (AclWho::NamedGroup(id), of(*one))));
        Acl::new(entries).map_err(|_| Error::Inval)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    /// A caller, seen from a file: ids are small, so that they meet.
    #[derive(Clone, Debug)]
    struct Person {
        owner: bool,
        uid: u32,
        of_group: bool,
        groups: BTreeSet<u32>,
    }

    /// What a list of NFSv4 allows: for each bit, the first entry that names it and the person
    /// (RFC 8881 section 6.2.1).
    fn allowed_by_v4(entries: &[Entry], inherited: bool, person: &Person) -> AceMask {
        let mut decided = Decided::default();
        let here = |e: &&Entry| match inherited {
            true => e.flags.contains(INHERITED),
            false => !e.flags.contains(AceFlags::INHERIT_ONLY),
        };
        for entry in entries.iter().filter(here) {
            let meant = match entry.who {
                Who::Owner => person.owner,
                Who::Group => person.of_group,
                Who::Everyone => true,
                Who::User(id) => person.uid == id,
                Who::NamedGroup(id) => person.groups.contains(&id),
            };
            if meant {
                decided.take(entry.denies, entry.mask);
            }
        }
        decided.allowed
    }

    /// What a POSIX list allows (acl(5)).
    fn allowed_by_posix(acl: &Acl, person: &Person, right: AclRights) -> bool {
        let has = |who| acl.get(who).map(|rights| rights & right != 0);
        let mask = has(AclWho::Mask).unwrap_or(true);
        if person.owner {
            return has(AclWho::Owner) == Some(true);
        }
        if let Some(user) = has(AclWho::User(person.uid)) {
            return user && mask;
        }
        let mut groups: Vec<bool> =
            person.groups.iter().filter_map(|&id| has(AclWho::NamedGroup(id))).collect();
        if person.of_group {
            groups.extend(has(AclWho::Group));
        }
        match groups.is_empty() {
            true => has(AclWho::Other) == Some(true),
            false => groups.contains(&true) && mask,
        }
    }

    fn person() -> impl Strategy<Value = Person> {
        let groups = prop::collection::btree_set(0u32..3, 0..3);
        (any::<bool>(), 0u32..3, any::<bool>(), groups)
            .prop_map(|(owner, uid, of_group, groups)| Person { owner, uid, of_group, groups })
    }

    fn posix() -> impl Strategy<Value = Acl> {
        let named = || prop::collection::btree_map(0u32..3, 0u8..8, 0..3);
        (0u8..8, named(), 0u8..8, named(), prop::option::of(0u8..8), 0u8..8).prop_map(
            |(owner, users, group, groups, mask, other)| {
                let needs_mask = !users.is_empty() || !groups.is_empty();
                let mask = mask.or(needs_mask.then_some(6));
                let mut entries =
                    vec![(AclWho::Owner, owner), (AclWho::Group, group), (AclWho::Other, other)];
                entries.extend(mask.map(|mask| (AclWho::Mask, mask)));
                entries.extend(users.into_iter().map(|(id, r)| (AclWho::User(id), r)));
                entries.extend(groups.into_iter().map(|(id, r)| (AclWho::NamedGroup(id), r)));
                Acl::new(entries).unwrap()
            },
        )
    }

    fn v4_entry() -> impl Strategy<Value = Entry> {
        let who = prop_oneof![
            Just(Who::Owner),
            Just(Who::Group),
            Just(Who::Everyone),
            (0u32..3).prop_map(Who::User),
            (0u32..3).prop_map(Who::NamedGroup),
        ];
        let flags = prop_oneof![
            4 => Just(AceFlags::empty()),
            1 => Just(INHERITED),
            1 => Just(INHERITED | AceFlags::INHERIT_ONLY),
        ];
        // All bits, and some halves of them.
        let mask = prop_oneof![
            (0u8..8).prop_map(|rights| bits(rights, true)),
            any::<u32>().prop_map(|bits| AceMask::from_bits_truncate(bits) & self::bits(7, true)),
        ];
        (any::<bool>(), flags, mask, who).prop_map(|(denies, flags, mask, who)| Entry {
            denies,
            flags,
            mask,
            who,
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn a_posix_acl_becomes_an_nfs4_acl_that_allows_the_same(
            acl in posix(), default in prop::option::of(posix()), is_dir: bool, person in person(),
        ) {
            let mut entries = Vec::new();
            write(&acl, AceFlags::empty(), is_dir, &mut entries);
            let default = default.filter(|_| is_dir);
            if let Some(default) = &default {
                write(default, INHERITED | AceFlags::INHERIT_ONLY, is_dir, &mut entries);
            }
            for (list, inherited) in [(Some(&acl), false), (default.as_ref(), true)] {
                let Some(list) = list else { continue };
                let allowed = allowed_by_v4(&entries, inherited, &person);
                for right in [READ, WRITE, EXECUTE] {
                    let bits = bits(right, is_dir);
                    let v4 = allowed & bits;
                    prop_assert!(v4.is_empty() || v4 == bits, "half a right");
                    prop_assert_eq!(v4 == bits, allowed_by_posix(list, &person, right));
                }
            }
            // And it comes back, as far as it has effect.
            let back = read(&entries, is_dir).unwrap();
            prop_assert_eq!(back.default.is_some(), default.is_some());
            for right in [READ, WRITE, EXECUTE] {
                prop_assert_eq!(
                    allowed_by_posix(&back.access, &person, right),
                    allowed_by_posix(&acl, &person, right)
                );
            }
            let mut again = Vec::new();
            write(&back.access, AceFlags::empty(), is_dir, &mut again);
            prop_assert_eq!(read(&again, is_dir).unwrap().access, back.access);
        }

        #[test]
        fn an_nfs4_acl_becomes_a_posix_acl_that_never_allows_more(
            entries in prop::collection::vec(v4_entry(), 0..7), is_dir: bool, person in person(),
        ) {
            let Ok(acls) = read(&entries, is_dir) else { return Ok(()) };
            let whole = |inherited, list: &Acl| {
                let allowed = allowed_by_v4(&entries, inherited, &person);
                [READ, WRITE, EXECUTE].into_iter().all(|right| {
                    !allowed_by_posix(list, &person, right) || allowed.contains(bits(right, is_dir))
                })
            };
            prop_assert!(whole(false, &acls.access), "{:?}", acls.access);
            // What a default list lacks comes from the directory's own.
            let all = [Who::Owner, Who::Group, Who::Everyone];
            let names = |who| {
                entries.iter().any(|e| e.who == who && e.flags.contains(INHERITED))
            };
            if let Some(default) = &acls.default && all.into_iter().all(names) {
                prop_assert!(whole(true, default), "{:?}", default);
            }
        }
    }

    fn ace(kind: AceType, flags: AceFlags, mask: AceMask, who: &str) -> Ace {
        Ace { kind, flags, mask, who: who.as_bytes().into() }
    }

    /// As Linux's server writes it: `getfacl` says user::rw- user:1000:rwx group::r-- mask::rw-
    /// other::r--.
    #[tokio::test]
    async fn acls_written_by_linux_are_read() {
        let acl = Acl::new([
            (AclWho::Owner, 6),
            (AclWho::User(1000), 7),
            (AclWho::Group, 4),
            (AclWho::Mask, 6),
            (AclWho::Other, 4),
        ]);
        let acls = Acls { access: acl.unwrap(), default: None };
        let written: Vec<_> = to_wire(&IdMap::new(None), &acls, false)
            .await
            .unwrap()
            .iter()
            .map(|a| (a.kind, a.mask.bits(), String::from_utf8(a.who.to_vec()).unwrap()))
            .collect();
        let read = 0x12_0081;
        let expected = [
            (read | 0x6 | 0x4_0100, "OWNER@"),
            (read | 0x6, "1000"),
            (read, "GROUP@"),
            (read, "EVERYONE@"),
        ];
        assert_eq!(written, expected.map(|(mask, who)| (AceType::Allow, mask, who.into())));
    }

    #[tokio::test]
    async fn nfs4_acls_that_posix_cannot_express_are_refused() {
        let ids = IdMap::new(None);
        let (none, read_data) = (AceFlags::empty(), AceMask::READ_DATA);
        let refused = async |ace: Ace, is_dir| match entries(&ids, &[ace]).await {
            Ok(entries) => read(&entries, is_dir).unwrap_err(),
            Err(error) => error,
        };
        for kind in [AceType::Audit, AceType::Alarm] {
            assert_eq!(
                refused(ace(kind, none, read_data, "OWNER@"), true).await,
                Error::AttrNotSupp
            );
        }
        for flags in [
            AceFlags::NO_PROPAGATE_INHERIT | INHERITED,
            AceFlags::INHERITED,
            AceFlags::SUCCESSFUL_ACCESS,
            AceFlags::FILE_INHERIT,
            AceFlags::DIRECTORY_INHERIT,
        ] {
            let refusal = refused(ace(AceType::Allow, flags, read_data, "OWNER@"), true).await;
            assert_eq!(refusal, Error::AttrNotSupp, "{flags:?}");
        }
        let inherit = ace(AceType::Allow, INHERITED, read_data, "OWNER@");
        assert_eq!(refused(inherit, false).await, Error::Inval, "a file has no heirs");
        let inherit_only = ace(AceType::Allow, AceFlags::INHERIT_ONLY, read_data, "OWNER@");
        assert_eq!(refused(inherit_only, true).await, Error::Inval, "inherited by no file");
        let deny = ace(AceType::Deny, none, AceMask::READ_ACL, "EVERYONE@");
        assert_eq!(refused(deny, false).await, Error::AttrNotSupp);
        let who = async |who| refused(ace(AceType::Allow, none, read_data, who), false).await;
        assert_eq!(who("NETWORK@").await, Error::AttrNotSupp);
        assert_eq!(who("no user has this name").await, Error::BadOwner);
    }

    #[test]
    fn a_default_acl_of_a_named_user_takes_the_other_classes_from_the_directory() {
        let entry =
            |flags, rights, who| Entry { denies: false, flags, mask: bits(rights, true), who };
        let none = AceFlags::empty();
        let entries = [
            entry(none, 7, Who::Owner),
            entry(none, 5, Who::Group),
            entry(INHERITED | AceFlags::INHERIT_ONLY, 6, Who::User(1)),
        ];
        let default = read(&entries, true).unwrap().default.unwrap();
        let rights = |who| default.get(who);
        assert_eq!(rights(AclWho::Owner), Some(7));
        assert_eq!(rights(AclWho::Group), Some(5));
        assert_eq!(rights(AclWho::User(1)), Some(6));
        assert_eq!(rights(AclWho::Other), Some(0));
    }
}
