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
use crate::local::tree::nodes;
use crate::local::tree::{PATH_FLAGS, c_name, stat};
use crate::rules::check_name;
use rustix::fs::{AtFlags, RenameFlags as KernelRename, Statx};
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use weir_vfs::{Caller, EntryName, Error, FileId, FileKind, RenameFlags, Result, Unnamed};

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
        dir: FileId,
        name: &[u8],
        flags: AtFlags,
    ) -> Result<Option<Unnamed>> {
        check_name(name)?;
        let dir_fd = self.tree.dir(dir)?;
        let c_name = c_name(name)?;
        let held = self.hold(dir_fd.as_fd(), &c_name);
        let removed = {
            let _as_caller = self.identity.assume(caller)?;
            rustix::fs::unlinkat(&*dir_fd, &*c_name, flags).map_err(io::Error::from)
        };
        self.directories.changed(dir);
        removed?;
        Ok(held.and_then(|held| self.lost_name(dir.entry(name), &held)))
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
            let kernel = match flags {
                RenameFlags::Replace => KernelRename::empty(),
                RenameFlags::NoReplace => KernelRename::NOREPLACE,
                RenameFlags::Exchange => KernelRename::EXCHANGE,
            };
            rustix::fs::renameat_with(&*from_fd, &*from_name, &*to_fd, &*to_name, kernel)
                .map_err(io::Error::from)
        };
        self.directories.changed(from.dir);
        self.directories.changed(to.dir);
        renamed?;
        // Also when it is not known what was renamed.
        let is_symlink = |held: &Option<Held>| {
            held.as_ref().is_none_or(|held| kind_of(&held.before) == FileKind::Symlink)
        };
        if is_symlink(&moving) || (flags == RenameFlags::Exchange && is_symlink(&target)) {
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

    fn hold(&self, dir: BorrowedFd<'_>, name: &CStr) -> Option<Held> {
        let file = self.tree.open_one(dir, name, PATH_FLAGS).ok()?;
        let before = stat(file.as_fd(), c"").ok()?;
        Some(Held { file, before })
    }

    /// A held file has lost a name, possibly its last one.
    fn lost_name(&self, entry: EntryName<'_>, held: &Held) -> Option<Unnamed> {
        let nlink = match stat(held.file.as_fd(), c"") {
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
        let place = nodes::Link { dir: to.dir.ino, name: to.name.into() };
        self.tree.nodes.forget(file.stx_ino, from.dir.ino, from.name, false);
        self.tree.nodes.moved(id, place);
    }
}
