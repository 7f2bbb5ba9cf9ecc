//! Removing and renaming names.
//!
//! 1. A file that is about to lose a name is held by a descriptor (O_PATH), and its links are
//!    counted on that descriptor once the name is gone. An earlier count would miss a link or a
//!    rename by another thread or program, and a file that exists would count as gone.
//! 2. The descriptor is kept until the tables are updated: meanwhile its inode number cannot be
//!    reused.
//! 3. If another file takes the name between the look and the call, the held file has names left,
//!    and a later look-up of the removed file finds it gone.

use super::LocalFs;
use crate::local::attr::kind_of;
use crate::local::rename::rename_no_replace;
use crate::local::tree::nodes;
use crate::local::tree::{PATH_FLAGS, c_name, stat};
use crate::rules::check_name;
use rustix::fs::{AtFlags, RenameFlags as KernelRename, Statx};
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use weir_vfs::{Caller, EntryName, Error, FileKind, RenameFlags, Result, Unnamed};

/// A file that is held during a change of its names, and its attributes from before.
struct Held {
    file: OwnedFd,
    before: Statx,
}

impl LocalFs {
    /// Removes a name.
    pub(super) fn remove(
        &self,
        caller: &Caller,
        entry: EntryName<'_>,
        flags: AtFlags,
    ) -> Result<Option<Unnamed>> {
        check_name(entry.name)?;
        let dir_fd = self.tree.dir(entry.dir)?;
        let c_name = c_name(entry.name)?;
        let held = self.hold(dir_fd.as_fd(), &c_name);
        let removed = {
            let _as_caller = self.identity.assume(caller)?;
            rustix::fs::unlinkat(&*dir_fd, &*c_name, flags).map_err(io::Error::from)
        };
        self.directories.changed(entry.dir);
        removed?;
        Ok(held.and_then(|held| self.lost_name(entry, &held)))
    }

    /// Renames an entry; returns the file that it replaced, if any.
    pub(super) fn move_name(
        &self,
        caller: &Caller,
        from: EntryName<'_>,
        to: EntryName<'_>,
        flags: RenameFlags,
    ) -> Result<Option<Unnamed>> {
        check_name(from.name)?;
        check_name(to.name)?;
        let (from_fd, to_fd) = (self.tree.dir(from.dir)?, self.tree.dir(to.dir)?);
        let (from_name, to_name) = (c_name(from.name)?, c_name(to.name)?);
        let moving = self.hold(from_fd.as_fd(), &from_name);
        let target = self.hold(to_fd.as_fd(), &to_name);
        let renamed = {
            let _as_caller = self.identity.assume(caller)?;
            let (old, new) = ((from_fd.as_fd(), &*from_name), (to_fd.as_fd(), &*to_name));
            let renamed = match flags {
                RenameFlags::Replace => rustix::fs::renameat(old.0, old.1, new.0, new.1),
                RenameFlags::NoReplace if self.for_command => rename_no_replace(old, new),
                RenameFlags::NoReplace => {
                    let no_replace = KernelRename::NOREPLACE;
                    rustix::fs::renameat_with(old.0, old.1, new.0, new.1, no_replace)
                }
                RenameFlags::Exchange => {
                    let exchange = KernelRename::EXCHANGE;
                    rustix::fs::renameat_with(old.0, old.1, new.0, new.1, exchange)
                }
            };
            renamed.map_err(io::Error::from)
        };
        self.directories.changed(from.dir);
        self.directories.changed(to.dir);
        renamed?;
        let exchanged = flags == RenameFlags::Exchange;
        if self.symlink_renames.matter()
            && (self.may_be_symlink(moving.as_ref(), to_fd.as_fd(), &to_name)
                || (exchanged && self.may_be_symlink(target.as_ref(), from_fd.as_fd(), &from_name)))
        {
            self.symlink_renames.note();
        }
        if let (Some(moving), Some(target)) = (&moving, &target)
            && moving.before.stx_ino == target.before.stx_ino
        {
            // Two names of one file: rename(2) has no effect.
            return Ok(None);
        }
        let mut replaced = None;
        if let Some(target) = &target {
            match flags {
                RenameFlags::Exchange => self.moved(&target.before, to, from),
                _ => replaced = self.lost_name(to, target),
            }
        }
        if let Some(moving) = &moving {
            self.moved(&moving.before, from, to);
        }
        Ok(replaced)
    }

    /// Holds the file that has a name, if there is one.
    fn hold(&self, dir: BorrowedFd<'_>, name: &CStr) -> Option<Held> {
        let file = self.tree.open_one(dir, name, PATH_FLAGS).ok()?;
        let before = stat(file.as_fd()).ok()?;
        Some(Held { file, before })
    }

    /// A held file has lost a name, possibly its last one.
    fn lost_name(&self, entry: EntryName<'_>, held: &Held) -> Option<Unnamed> {
        let nlink = match stat(held.file.as_fd()) {
            Ok(after) => after.stx_nlink,
            Err(Error::Stale | Error::NotFound) => 0,
            Err(_) => return None,
        };
        let ino = held.before.stx_ino;
        let id = self.tree.nodes.by_ino(ino);
        self.tree.nodes.forget(ino, entry.dir.ino, entry.name, nlink == 0);
        if let Some(id) = id.filter(|_| nlink == 0) {
            self.tree.gone(id);
        }
        id.map(|id| Unnamed { id, nlink })
    }

    /// A file has been renamed.
    fn moved(&self, file: &Statx, from: EntryName<'_>, to: EntryName<'_>) {
        let Some(id) = self.tree.nodes.by_ino(file.stx_ino) else { return };
        let place = |at: EntryName<'_>| nodes::Link { dir: at.dir.ino, name: at.name.into() };
        self.tree.nodes.moved(id, file.stx_nlink > 1, &place(from), place(to));
    }

    /// Whether the file that was renamed to `name` may be a symbolic link: the one that was held before, or
    /// another one, which another program gave the old name after the look.
    fn may_be_symlink(&self, held: Option<&Held>, dir: BorrowedFd<'_>, name: &CStr) -> bool {
        let Some(Held { before, .. }) = held else { return true };
        // The file is held, so its inode number is its own.
        kind_of(before) == FileKind::Symlink
            || self.tree.stat_name(dir, name).map_or(true, |now| now.stx_ino != before.stx_ino)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::local::LocalOptions;

    #[test]
    fn a_link_that_took_the_name_before_the_rename_is_seen_after_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        std::fs::write(path("old"), b"").unwrap();
        std::os::unix::fs::symlink("target", path("link")).unwrap();
        let fs = LocalFs::open(dir.path(), LocalOptions::default()).unwrap();
        let root = fs.tree.root();
        let held = fs.hold(root, c"old");
        std::fs::rename(path("old"), path("new")).unwrap();
        assert!(!fs.may_be_symlink(held.as_ref(), root, c"new"), "the file that was held");
        // Another program: the link has the old name when it is renamed.
        std::fs::rename(path("link"), path("old")).unwrap();
        std::fs::rename(path("old"), path("new")).unwrap();
        assert!(fs.may_be_symlink(held.as_ref(), root, c"new"));
        assert!(fs.may_be_symlink(None, root, c"new"), "it is not known what was renamed");
    }
}
