//! Renaming without replacing.

use rustix::fs::{
    AtFlags, RenameFlags, StatxFlags, linkat, renameat, renameat_with, statat, statx, unlinkat,
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
/// `EEXIST`: the new name exists. If the old name cannot be removed, the new one is removed again, unless it is the
/// file's last.
pub fn rename_no_replace<P: Arg + Copy>(from: Place<'_, P>, to: Place<'_, P>) -> Result<()> {
    match renameat_with(from.0, from.1, to.0, to.1, RenameFlags::NOREPLACE) {
        Err(Errno::INVAL) => {}
        done => return done,
    }
    let found = |at: Place<'_, P>| statat(at.0, at.1, AtFlags::SYMLINK_NOFOLLOW);
    match linkat(from.0, from.1, to.0, to.1, AtFlags::empty()) {
        Ok(()) => unlinkat(from.0, from.1, AtFlags::empty()).inspect_err(|&error| {
            let id = |at| found(at).map(|stat| (stat.st_dev, stat.st_ino)).ok();
            let has_other = match error {
                // Another program has taken it, to another name or for good.
                Errno::NOENT | Errno::STALE => {
                    let now = AtFlags::SYMLINK_NOFOLLOW | AtFlags::STATX_FORCE_SYNC;
                    let found = statx(to.0, to.1, now, StatxFlags::NLINK);
                    found.is_ok_and(|stat| stat.stx_nlink > 1)
                }
                _ => id(from).is_some() && id(from) == id(to),
            };
            if has_other {
                let _ = unlinkat(to.0, to.1, AtFlags::empty());
            }
        }),
        Err(Errno::PERM | Errno::OPNOTSUPP) => match found(to) {
            Ok(_) => Err(Errno::EXIST),
            Err(Errno::NOENT) => renameat(from.0, from.1, to.0, to.1),
            Err(error) => Err(error),
        },
        Err(error) => Err(error),
    }
}
