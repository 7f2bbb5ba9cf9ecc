//! Rules shared by all stores: legal names, and permissions.

use weir_vfs::{Acl, AclWho, Caller, Cred, Error, Permissions, Result, SetAttr};

/// Longest name that a store accepts, in bytes.
pub(crate) const MAX_NAME_BYTES: usize = 255;
/// Largest file size, in bytes: the maximum of a signed file offset.
pub(crate) const MAX_FILE_BYTES: u64 = i64::MAX as u64;
/// Permission bits of a new file whose creator gave none.
pub(crate) const DEFAULT_FILE_MODE: u32 = 0o644;
/// Permission bits of a new directory whose creator gave none.
pub(crate) const DEFAULT_DIR_MODE: u32 = 0o755;

/// Rejects names that are not a single component.
pub(crate) fn check_name(name: &[u8]) -> Result<()> {
    if name.len() > MAX_NAME_BYTES {
        return Err(Error::NameTooLong);
    }
    let legal = !name.is_empty()
        && name != b"."
        && name != b".."
        && !name.iter().any(|&b| b == 0 || b == b'/');
    if legal { Ok(()) } else { Err(Error::Invalid) }
}

/// Rejects the owner or group 2^32 - 1, which chown(2) reads as "leave unchanged".
///
/// # Errors
/// [`Error::Invalid`].
pub(crate) fn check_owners(set: &SetAttr) -> Result<()> {
    weir_vfs::check_owners(set.uid, set.gid)
}

/// The end of `len` bytes at `offset`.
///
/// # Errors
/// [`Error::TooBig`] beyond the largest file size.
pub(crate) fn range_end(offset: u64, len: u64) -> Result<u64> {
    match offset.checked_add(len) {
        Some(end) if end <= MAX_FILE_BYTES => Ok(end),
        _ => Err(Error::TooBig),
    }
}

/// A file's owner, mode and access control list: the input of permission checks.
#[derive(Clone, Debug)]
pub(crate) struct Ownership {
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) is_dir: bool,
    /// The access control list, if it says more than the mode.
    pub(crate) acl: Option<Acl>,
}

/// Permissions that a caller needs to change a directory's names.
pub(crate) const CHANGE_NAMES: Permissions = Permissions::WRITE.union(Permissions::EXECUTE);

/// The permissions in `mask` that mode and access control list grant the caller (access(2)).
pub(crate) fn granted(caller: &Caller, file: &Ownership, mask: Permissions) -> Permissions {
    granted_to(restricted(caller), file, mask)
}

/// The same for an identity, or (`None`) for one that may do everything.
pub(crate) fn granted_to(
    restricted: Option<&Cred>,
    file: &Ownership,
    mask: Permissions,
) -> Permissions {
    let Some(cred) = restricted else {
        // The superuser executes only files with an execute bit set, but searches every directory.
        let executes = file.is_dir || file.mode & 0o111 != 0;
        return if executes { mask } else { mask - Permissions::EXECUTE };
    };
    if permits(cred, file, mask) {
        return mask;
    }
    mask.iter().filter(|one| permits(cred, file, *one)).collect()
}

/// Whether the first class of users that an identity belongs to has all of these permissions.
fn permits(cred: &Cred, file: &Ownership, wanted: Permissions) -> bool {
    if let Some(acl) = &file.acl {
        return permits_by_list(cred, file, acl, wanted);
    }
    let class = if cred.uid == file.uid {
        6
    } else if is_member(cred, file.gid) {
        3
    } else {
        0
    };
    Permissions::from_bits_truncate(file.mode >> class).contains(wanted)
}

/// The same by an access control list. A single group has to have all of the permissions.
fn permits_by_list(cred: &Cred, file: &Ownership, acl: &Acl, wanted: Permissions) -> bool {
    let listed = |rights| Permissions::from_bits_truncate(u32::from(rights));
    let of = |who| acl.get(who).map(listed);
    let mask = of(AclWho::Mask).unwrap_or(Permissions::all());
    if cred.uid == file.uid {
        return of(AclWho::Owner).unwrap_or_default().contains(wanted);
    }
    if let Some(user) = of(AclWho::User(cred.uid)) {
        return (user & mask).contains(wanted);
    }
    let mut groups = acl.entries().iter().filter(|(who, _)| match *who {
        AclWho::Group => is_member(cred, file.gid),
        AclWho::NamedGroup(gid) => is_member(cred, gid),
        _ => false,
    });
    let Some(first) = groups.next() else {
        return of(AclWho::Other).unwrap_or_default().contains(wanted);
    };
    std::iter::once(first).chain(groups).any(|&(_, r)| (listed(r) & mask).contains(wanted))
}

/// Fails unless the caller has every permission in `mask`.
pub(crate) fn require(caller: &Caller, file: &Ownership, mask: Permissions) -> Result<()> {
    let has = match restricted(caller) {
        Some(cred) => permits(cred, file, mask),
        None => granted(caller, file, mask) == mask,
    };
    if has { Ok(()) } else { Err(Error::AccessDenied) }
}

/// Whether the caller is the file's owner or the superuser.
pub(crate) fn is_owner(caller: &Caller, file: &Ownership) -> bool {
    restricted(caller).is_none_or(|cred| cred.uid == file.uid)
}

/// Whether the caller belongs to a group.
pub(crate) fn is_member(cred: &Cred, gid: u32) -> bool {
    cred.gid == gid || cred.groups.contains(&gid)
}

/// The identity to check; `None` if it may do everything.
pub(crate) fn restricted(caller: &Caller) -> Option<&Cred> {
    match caller {
        Caller::As(cred) if cred.uid != 0 => Some(cred),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Permissions = Permissions::all();
    const NONE: Permissions = Permissions::empty();
    const READ: Permissions = Permissions::READ;
    const WRITE: Permissions = Permissions::WRITE;

    #[test]
    fn names_are_single_components() {
        for bad in [&b""[..], b".", b"..", b"a/b", b"a\0"] {
            assert_eq!(check_name(bad), Err(Error::Invalid), "{bad:?}");
        }
        assert_eq!(check_name(&[b'x'; 256]), Err(Error::NameTooLong));
        for good in [&b"..."[..], b"\xff\xfe", b" ", &[b'x'; 255]] {
            assert_eq!(check_name(good), Ok(()), "{good:?}");
        }
    }

    #[test]
    fn the_first_class_that_matches_decides() {
        let file = Ownership { mode: 0o074, uid: 1, gid: 2, is_dir: false, acl: None };
        let who = |uid, gid, groups: &[u32]| Caller::As(Cred { uid, gid, groups: groups.to_vec() });
        assert_eq!(granted(&who(1, 2, &[]), &file, ALL), NONE, "the owner is not also the group");
        assert_eq!(granted(&who(3, 2, &[]), &file, ALL), ALL);
        assert_eq!(granted(&who(3, 9, &[2]), &file, ALL), ALL);
        assert_eq!(granted(&who(3, 9, &[]), &file, ALL), READ);
        assert_eq!(granted(&who(0, 0, &[]), &file, ALL), ALL);
        let private = Ownership { mode: 0o600, ..file };
        assert_eq!(granted(&Caller::Own, &private, ALL), READ | WRITE);
    }

    #[test]
    fn acl_entries_of_named_users_and_groups_apply() {
        let acl = Acl::new([
            (AclWho::Owner, 7),
            (AclWho::User(5), 7),
            (AclWho::User(6), 0),
            (AclWho::Group, 4),
            (AclWho::NamedGroup(8), 2),
            (AclWho::Mask, 6),
            (AclWho::Other, 1),
        ]);
        let file =
            Ownership { mode: 0o761, uid: 1, gid: 2, is_dir: false, acl: Some(acl.unwrap()) };
        let who = |uid, groups: &[u32]| Caller::As(Cred { uid, gid: 99, groups: groups.to_vec() });
        assert_eq!(granted(&who(1, &[]), &file, ALL), ALL, "the mask is not the owner's");
        assert_eq!(granted(&who(5, &[]), &file, ALL), READ | WRITE, "but a named user's");
        assert_eq!(granted(&who(6, &[2, 8]), &file, ALL), NONE);
        assert_eq!(granted(&who(9, &[]), &file, ALL), Permissions::EXECUTE);
        let both = who(9, &[2, 8]);
        assert_eq!(granted(&both, &file, READ), READ);
        assert_eq!(granted(&both, &file, WRITE), WRITE);
        assert_eq!(require(&both, &file, READ | WRITE), Err(Error::AccessDenied), "not of one");
    }
}
