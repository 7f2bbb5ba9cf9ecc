//! Renaming without replacing.

use rustix::fs::{
    AtFlags, RenameFlags, Statx, StatxFlags, linkat, renameat, renameat_with, statx, unlinkat,
};
use rustix::io::{Errno, Result};
use rustix::path::Arg;
use std::os::fd::BorrowedFd;

/// A directory, and a name in it.
type Place<'a, P> = (BorrowedFd<'a>, P);

/// Renames a file unless the new name exists, as renameat2(2) does with RENAME_NOREPLACE.
///
/// Mounts of servers have no such request (EINVAL). There, a file is linked, which is atomic, before its old name is
/// removed; of what cannot be linked, such as a directory, the new name is looked up first.
///
/// # Errors
/// `EEXIST`: the new name exists. `ENOENT`: another program has taken the old name meanwhile. If the old name is not
/// removed, the new one is removed again, unless it is the file's last.
pub fn rename_no_replace<P: Arg + Copy>(from: Place<'_, P>, to: Place<'_, P>) -> Result<()> {
    match renameat_with(from.0, from.1, to.0, to.1, RenameFlags::NOREPLACE) {
        Err(Errno::INVAL) => {}
        done => return done,
    }
    match linkat(from.0, from.1, to.0, to.1, AtFlags::empty()) {
        Ok(()) => remove_linked(from, to),
        Err(Errno::PERM | Errno::OPNOTSUPP) => match look(to) {
            Ok(_) => Err(Errno::EXIST),
            Err(Errno::NOENT) => renameat(from.0, from.1, to.0, to.1),
            Err(error) => Err(error),
        },
        Err(error) => Err(error),
    }
}

/// Removes the old name of a file that has just got the new one.
fn remove_linked<P: Arg + Copy>(from: Place<'_, P>, to: Place<'_, P>) -> Result<()> {
    let id = |found: &Statx| (found.stx_dev_major, found.stx_dev_minor, found.stx_ino);
    let new = id(&look(to)?);
    let removed = match look(from) {
        Ok(old) if id(&old) == new => unlinkat(from.0, from.1, AtFlags::empty()),
        // Another file has the name now.
        Ok(_) => Err(Errno::NOENT),
        Err(error) => Err(error),
    };
    removed.inspect_err(|_| {
        // A name besides the new one: the old one, or one that another program gave it.
        if look(to).is_ok_and(|now| id(&now) == new && now.stx_nlink > 1) {
            let _ = unlinkat(to.0, to.1, AtFlags::empty());
        }
    })
}

/// A file's attributes as the server has them.
fn look<P: Arg>(at: Place<'_, P>) -> Result<Statx> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::STATX_FORCE_SYNC;
    statx(at.0, at.1, flags, StatxFlags::INO | StatxFlags::NLINK)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::CWD;
    use std::fs;
    use std::path::PathBuf;

    #[test]
    fn a_linked_file_keeps_one_name_when_another_program_takes_the_old_one() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let remove = |from: &PathBuf, to: &PathBuf| remove_linked((CWD, from), (CWD, to));
        let linked = || {
            for name in ["from", "to", "other"] {
                let _ = fs::remove_file(at(name));
            }
            fs::write(at("from"), "data").unwrap();
            fs::hard_link(at("from"), at("to")).unwrap();
            (at("from"), at("to"))
        };
        let (from, to) = linked();
        assert_eq!(remove(&from, &to), Ok(()));
        assert!(!from.exists() && to.exists());

        let (from, to) = linked();
        fs::rename(&from, at("other")).unwrap();
        assert_eq!(remove(&from, &to), Err(Errno::NOENT));
        assert!(at("other").exists() && !to.exists(), "another program has moved it");

        let (from, to) = linked();
        fs::remove_file(&from).unwrap();
        assert_eq!(remove(&from, &to), Err(Errno::NOENT));
        assert!(to.exists(), "the last name stays");

        let (from, to) = linked();
        fs::remove_file(&from).unwrap();
        fs::write(&from, "next").unwrap();
        assert_eq!(remove(&from, &to), Err(Errno::NOENT));
        assert_eq!(fs::read(&from).unwrap(), b"next", "another file has the old name");
        assert!(to.exists());
    }
}
