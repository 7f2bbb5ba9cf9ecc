//! POSIX access control lists as NFSv4 ones, and back (draft-ietf-nfsv4-acl-mapping, as Linux's
//! server does it).
//!
//! 1. What a POSIX list is written as allows each user exactly what the POSIX list does, bit for
//!    bit of read, write and execute.
//! 2. What an NFSv4 list is read as never allows more of these than the NFSv4 list does. It may
//!    allow less: a right of half a bit (write, but not append) is none, and what is denied to one
//!    group is denied to all who may belong to it.
//! 3. What POSIX has no word for is refused: kinds of entries and inheritance that are not its own,
//!    and entries that deny nothing but what POSIX cannot deny.

use super::idmap::{self, Kind};
use std::collections::BTreeMap;
use weir_nfs::v4::Error;
use weir_nfs::v4::acl::{Ace, AceFlags, AceMask, AceType, MAX_ACES};
use weir_vfs::{Acl, AclRights, AclWho};

/// `aclsupport`: entries that allow and that deny.
pub(super) const SUPPORT: u32 = 1 | 2;

const READ: AclRights = 4;
const WRITE: AclRights = 2;
const EXECUTE: AclRights = 1;

const WRITE_FILE: AceMask = AceMask::WRITE_DATA.union(AceMask::APPEND_DATA);
/// What everybody may: POSIX does not deny it.
const ANYBODYS: AceMask =
    AceMask::READ_ATTRIBUTES.union(AceMask::READ_ACL).union(AceMask::SYNCHRONIZE);
/// What the owner may besides.
const OWNERS: AceMask = AceMask::WRITE_ATTRIBUTES.union(AceMask::WRITE_ACL);
/// A default list's entries.
const INHERITED: AceFlags = AceFlags::FILE_INHERIT.union(AceFlags::DIRECTORY_INHERIT);
const FLAGS: AceFlags =
    INHERITED.union(AceFlags::INHERIT_ONLY).union(AceFlags::IDENTIFIER_GROUP);

/// A file's lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Acls {
    pub(super) access: Acl,
    /// A directory's.
    pub(super) default: Option<Acl>,
}

/// Whom an NFSv4 entry is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Who {
    Owner,
    Group,
    Everyone,
    User(u32),
    NamedGroup(u32),
}

/// An NFSv4 entry with its name looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    denies: bool,
    flags: AceFlags,
    mask: AceMask,
    who: Who,
}

/// The lists on the wire.
///
/// # Errors
/// [`Error::Resource`]: longer than the protocol's replies are here.
pub(super) fn to_wire(acls: &Acls, is_dir: bool) -> Result<Vec<Ace>, Error> {
    let mut entries = Vec::new();
    write(&acls.access, AceFlags::empty(), is_dir, &mut entries);
    if let Some(default) = &acls.default {
        write(default, INHERITED | AceFlags::INHERIT_ONLY, is_dir, &mut entries);
    }
    if entries.len() > MAX_ACES {
        return Err(Error::Resource);
    }
    let ace = |entry: Entry| Ace {
        kind: if entry.denies { AceType::Deny } else { AceType::Allow },
        flags: entry.flags,
        mask: entry.mask,
        who: match entry.who {
            Who::Owner => "OWNER@".into(),
            Who::Group => "GROUP@".into(),
            Who::Everyone => "EVERYONE@".into(),
            Who::User(id) | Who::NamedGroup(id) => id.to_string().as_bytes().into(),
        },
    };
    Ok(entries.into_iter().map(ace).collect())
}

/// The lists that a client sets.
///
/// # Errors
/// [`Error::AttrNotSupp`]: POSIX cannot express it; [`Error::Inval`]: it makes no sense;
/// [`Error::BadOwner`]: nobody has that name.
pub(super) fn from_wire(aces: &[Ace], is_dir: bool) -> Result<Acls, Error> {
    let entries: Vec<Entry> = aces.iter().map(entry).collect::<Result<_, _>>()?;
    read(&entries, is_dir)
}

fn entry(ace: &Ace) -> Result<Entry, Error> {
    let denies = match ace.kind {
        AceType::Allow => false,
        AceType::Deny => true,
        AceType::Audit | AceType::Alarm => return Err(Error::AttrNotSupp),
    };
    let is_group = ace.flags.contains(AceFlags::IDENTIFIER_GROUP);
    let id = |kind| idmap::number(kind, &ace.who).ok_or(Error::BadOwner);
    let who = match &ace.who[..] {
        b"OWNER@" => Who::Owner,
        b"GROUP@" => Who::Group,
        b"EVERYONE@" => Who::Everyone,
        // INTERACTIVE@, NETWORK@ and their like: nothing here tells them apart.
        [.., b'@'] => return Err(Error::AttrNotSupp),
        _ if is_group => Who::NamedGroup(id(Kind::Group)?),
        _ => Who::User(id(Kind::User)?),
    };
    Ok(Entry { denies, flags: ace.flags, mask: ace.mask, who })
}

/// Appends the entries of one list.
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
    let any = |rights: &mut dyn Iterator<Item = (Who, AclRights)>| rights.fold(0, |a, (_, r)| a | r);
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
    // A class is denied what it does not have and a later entry would give.
    put(true, Who::Owner, bits(!owner & (any_user | group | any_group | other), is_dir));
    put(false, Who::Owner, bits(owner, is_dir) | ANYBODYS | OWNERS);
    for (who, rights) in users {
        put(true, who, bits(!rights & (group | any_group | other), is_dir));
        put(false, who, bits(rights, is_dir) | ANYBODYS);
    }
    // Whoever is in several groups has what any of them has, so all allow before one denies.
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

/// The protocol's bits for rights.
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

/// The rights of which all bits are there.
fn rights(mask: AceMask, is_dir: bool) -> AclRights {
    [READ, WRITE, EXECUTE].into_iter().filter(|&right| mask.contains(bits(right, is_dir))).sum()
}

fn read(entries: &[Entry], is_dir: bool) -> Result<Acls, Error> {
    let (mut access, mut default) = (Reader::default(), None::<Reader>);
    for entry in entries {
        if !entry.flags.difference(FLAGS).is_empty() {
            return Err(Error::AttrNotSupp);
        }
        // Retention and the deletion of the file itself are not its own list's in POSIX, and
        // everybody sees a file's attributes.
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
        // POSIX lets files and directories inherit alike.
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

/// What is decided of the bits for one user, group or class, so far.
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
    /// The first entry that names a bit decides it.
    fn take(&mut self, denies: bool, mask: AceMask) {
        if denies {
            self.denied |= mask - self.allowed;
        } else {
            self.allowed |= mask - self.denied;
        }
    }
}

/// Gathers the entries of one list.
#[derive(Debug, Default)]
struct Reader {
    owner: Option<Decided>,
    group: Option<Decided>,
    other: Option<Decided>,
    users: BTreeMap<u32, Decided>,
    groups: BTreeMap<u32, Decided>,
    /// What is decided for everybody, and so for a user or group that is not named yet.
    everyone: Decided,
}

impl Reader {
    fn take(&mut self, entry: &Entry) {
        let Entry { denies, mask, who, .. } = *entry;
        let everyone = self.everyone;
        match who {
            Who::Owner => self.owner.get_or_insert(everyone).take(denies, mask),
            Who::User(id) => {
                let user = self.users.entry(id).or_insert(everyone);
                user.take(denies, mask);
                if denies {
                    // The owner may be that user.
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

    /// Denies bits to all who may belong to a group to which they are denied.
    fn deny_members(&mut self, denied: AceMask) {
        self.owner.get_or_insert(self.everyone).take(true, denied);
        self.everyone.take(true, denied);
        let named = self.users.values_mut().chain(self.groups.values_mut());
        named.for_each(|one| one.take(true, denied));
    }

    /// A default list without owner, group or others has those of the directory.
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
