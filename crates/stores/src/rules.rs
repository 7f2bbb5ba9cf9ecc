//! Rules that every store keeps alike: which names are legal, who may do what.

use weir_vfs::{Caller, Cred, Error, Result};

/// Longest name, in bytes, that a store takes.
pub(crate) const MAX_NAME_BYTES: usize = 255;
/// Largest file size, in bytes: what a signed file offset can name.
pub(crate) const MAX_FILE_BYTES: u64 = i64::MAX as u64;
/// Permission bits of a new file whose creator named none.
pub(crate) const DEFAULT_FILE_MODE: u32 = 0o644;
/// Permission bits of a new directory whose creator named none.
pub(crate) const DEFAULT_DIR_MODE: u32 = 0o755;

pub(crate) const READ: u32 = 4;
pub(crate) const WRITE: u32 = 2;
pub(crate) const EXEC: u32 = 1;

/// Refuses what is no single component.
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

/// The end of `len` bytes at `offset`.
///
/// # Errors
/// [`Error::TooBig`] where no file can reach that far.
pub(crate) fn range_end(offset: u64, len: u64) -> Result<u64> {
    match offset.checked_add(len) {
        Some(end) if end <= MAX_FILE_BYTES => Ok(end),
        _ => Err(Error::TooBig),
    }
}

/// Who owns a file, and what its mode is: all that permission checks look at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ownership {
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) is_dir: bool,
}

/// Which of the rights in `mask` the caller has by the mode bits (access(2)).
pub(crate) fn granted(caller: &Caller, file: Ownership, mask: u32) -> u32 {
    let Some(cred) = restricted(caller) else {
        // The superuser executes only what somebody may execute, but searches every directory.
        let exec = file.is_dir || file.mode & 0o111 != 0;
        return mask & if exec { READ | WRITE | EXEC } else { READ | WRITE };
    };
    let bits = if cred.uid == file.uid {
        file.mode >> 6
    } else if is_member(cred, file.gid) {
        file.mode >> 3
    } else {
        file.mode
    };
    mask & bits & 7
}

/// Fails unless the caller has every right in `mask`.
pub(crate) fn require(caller: &Caller, file: Ownership, mask: u32) -> Result<()> {
    if granted(caller, file, mask) == mask { Ok(()) } else { Err(Error::AccessDenied) }
}

/// Whether the caller is the file's owner or the superuser.
pub(crate) fn is_owner(caller: &Caller, file: Ownership) -> bool {
    restricted(caller).is_none_or(|cred| cred.uid == file.uid)
}

/// Whether the caller belongs to a group.
pub(crate) fn is_member(cred: &Cred, gid: u32) -> bool {
    cred.gid == gid || cred.groups.contains(&gid)
}

/// The identity to check, or `None` for one that may do everything.
pub(crate) fn restricted(caller: &Caller) -> Option<&Cred> {
    match caller {
        Caller::As(cred) if cred.uid != 0 => Some(cred),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let file = Ownership { mode: 0o074, uid: 1, gid: 2, is_dir: false };
        let who = |uid, gid, groups: &[u32]| Caller::As(Cred { uid, gid, groups: groups.to_vec() });
        assert_eq!(granted(&who(1, 2, &[]), file, 7), 0, "the owner is not also the group");
        assert_eq!(granted(&who(3, 2, &[]), file, 7), 7);
        assert_eq!(granted(&who(3, 9, &[2]), file, 7), 7);
        assert_eq!(granted(&who(3, 9, &[]), file, 7), READ);
        assert_eq!(granted(&who(0, 0, &[]), file, 7), 7);
        assert_eq!(granted(&Caller::Own, Ownership { mode: 0o600, ..file }, 7), READ | WRITE);
    }
}
