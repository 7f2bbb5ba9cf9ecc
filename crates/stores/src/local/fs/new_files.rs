//! Creation of files.

use super::LocalFs;
use crate::local::attr::{kind_of, set_mode};
use crate::local::sys::proc_path;
use crate::local::tree::{c_name, stat};
use crate::rules::{DEFAULT_FILE_MODE, check_name, check_owners};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, Statx};
use rustix::io::Errno;
use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use weir_vfs::{
    Attr, Caller, CreateMode, Created, EntryName, Error, FileKind, NewFile, Result, SetAttr,
};

/// The mode of a new file.
#[derive(Clone, Copy)]
struct NewMode {
    mode: u32,
    /// Those of its bits that the process's umask removes.
    masked: u32,
}

impl LocalFs {
    /// Completes a new file that is held: sets attributes that its creation could not set, and what
    /// it left out of `mode`.
    fn complete(
        &self,
        caller: &Caller,
        set: &SetAttr,
        made: &OwnedFd,
        mode: NewMode,
    ) -> Result<Statx> {
        let mut found = stat(made.as_fd())?;
        let (uid, gid) = (found.stx_uid, found.stx_gid);
        let rest = SetAttr {
            size: None,
            mode: None,
            mode_mask: None,
            umask: None,
            uid: set.uid.filter(|&u| u != uid),
            gid: set.gid.filter(|&g| g != gid),
            ..set.clone()
        };
        if set.size.is_some() || !rest.is_empty() {
            let _as_caller = self.identity.assume(caller)?;
            if let Some(size) = set.size {
                // Through the open file, as by open(2) with O_TRUNC: the mode may forbid writing.
                self.truncate(made.as_fd(), size)?;
            }
            self.apply(caller, made.as_fd(), &rest)?;
            found = stat(made.as_fd())?;
        }
        if self.complete_mode(caller, made.as_fd(), &found, mode)? {
            found = stat(made.as_fd())?;
        }
        Ok(found)
    }

    /// Adds the bits of a new file's mode that its creation has left out: those of the process's
    /// umask, and set-group-ID of a directory (mkdir(2)). Returns whether there were any.
    fn complete_mode(
        &self,
        caller: &Caller,
        made: BorrowedFd<'_>,
        found: &Statx,
        NewMode { mode, masked }: NewMode,
    ) -> Result<bool> {
        if kind_of(found) == FileKind::Symlink {
            return Ok(false);
        }
        let is_dir = kind_of(found) == FileKind::Directory;
        let chmod =
            |mode| set_mode(made, &SetAttr { mode: Some(mode), ..SetAttr::default() }, caller);
        let now = u32::from(found.stx_mode) & 0o7777;
        let unmasked = now | masked;
        if unmasked != now {
            // From a mode that is set by a caller who is not in the file's group, the kernel removes
            // set-group-ID, also if the parent has passed it on. So the process adds the other bits
            // in its own name, to a directory of the caller's: there the bit gives no rights.
            let is_callers = matches!(caller, Caller::As(cred) if cred.uid == found.stx_uid);
            let as_caller = || self.identity.assume(caller).map(Some);
            let _as_caller = if is_dir && is_callers { None } else { as_caller()? };
            chmod(unmasked)?;
        }
        let asked = if is_dir { mode & 0o2000 } else { 0 };
        if asked & !unmasked != 0 {
            let _as_caller = self.identity.assume(caller)?;
            chmod(unmasked | asked)?;
        }
        Ok(now != unmasked | asked)
    }

    /// Creates a file of a kind that creation does not open.
    pub(super) fn make(
        &self,
        caller: &Caller,
        new: NewFile<'_>,
        (kind, default_mode): (FileKind, u32),
        make: impl FnOnce(BorrowedFd<'_>, &CStr, Mode) -> rustix::io::Result<()>,
    ) -> Result<Attr> {
        let make = |dir: BorrowedFd<'_>, name: &_, mode| make(dir, name, mode).map(|()| None);
        let (attr, made) = self.make_held(caller, new, (kind, default_mode), make)?;
        if attr.kind == FileKind::Directory {
            self.tree.keep_dir(attr.id, made);
        }
        Ok(attr)
    }

    /// Creates a regular file, or finds it; a new one is held open for reading and writing.
    pub(super) fn create_held(
        &self,
        caller: &Caller,
        new: NewFile<'_>,
        mode: CreateMode,
    ) -> Result<(Created, Option<OwnedFd>)> {
        let flags =
            OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let make = |dir: BorrowedFd<'_>, name: &CStr, mode| {
            let open = || rustix::fs::openat(dir, name, flags, mode);
            self.tree.with_fds(open).map(Some)
        };
        // An existing name may be gone by the time it is looked up.
        for _ in 0..16 {
            let made = match self.create_whole(caller, new)? {
                Some(made) => Ok(made),
                None => self.make_held(caller, new, (FileKind::Regular, DEFAULT_FILE_MODE), make),
            };
            match made {
                Ok((attr, made)) => return Ok((Created { attr, created: true }, Some(made))),
                Err(Error::Exists) if mode == CreateMode::MayExist => {}
                Err(error) => return Err(error),
            }
            match self.find(caller, new.at) {
                Ok(attr) => return Ok((Created { attr, created: false }, None)),
                Err(Error::NotFound) => {}
                Err(error) => return Err(error),
            }
        }
        Err(Error::Busy)
    }

    /// Creates a regular file with the times that `new` has, before it gets its name: a call that finds the name later
    /// finds these times, also after a kill of this process or a loss of power. An exclusive creation is recognized by
    /// them. `None`: `new` has no times, or this fails. Then the other way does it, or finds which error comes first.
    ///
    /// # Errors
    /// [`Error::Exists`].
    fn create_whole(&self, caller: &Caller, new: NewFile<'_>) -> Result<Option<(Attr, OwnedFd)>> {
        let NewFile { at: EntryName { dir, name }, set } = new;
        if set.atime.is_none() && set.mtime.is_none() {
            return Ok(None);
        }
        let (dir_fd, c_name) = self.place_of(new)?;
        let mode = self.new_mode(set, DEFAULT_FILE_MODE, dir_fd.as_fd());
        let since = self.tree.next_number();
        let open = || {
            let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
            rustix::fs::openat(&dir_fd, c".", flags, Mode::from_raw_mode(mode.mode))
        };
        let opened = {
            let _as_caller = self.identity.assume(caller)?;
            self.tree.with_fds(open)
        };
        let Ok(made) = opened else { return Ok(None) };
        if self.complete(caller, set, &made, mode).is_err() {
            return Ok(None);
        }
        let linked = {
            let _as_caller = self.identity.assume(caller)?;
            let path = proc_path(made.as_fd());
            rustix::fs::linkat(CWD, &*path, &dir_fd, &*c_name, AtFlags::SYMLINK_FOLLOW)
        };
        match linked {
            Ok(()) => {}
            Err(Errno::EXIST) => return Err(Error::Exists),
            Err(_) => return Ok(None),
        }
        self.directories.changed(dir);
        let found = stat(made.as_fd())?;
        let id = self.tree.enter_new(dir, made.as_fd(), name, &found, since);
        Ok(Some((self.attr(id, &found), made)))
    }

    /// The directory of a new file, and its name, which is checked.
    fn place_of(&self, new: NewFile<'_>) -> Result<(Arc<OwnedFd>, CString)> {
        let NewFile { at: EntryName { dir, name }, set } = new;
        check_name(name)?;
        check_owners(set)?;
        Ok((self.tree.dir(dir)?, c_name(name)?))
    }

    /// The mode that a new file in a directory is created with.
    fn new_mode(&self, set: &SetAttr, default: u32, dir: BorrowedFd<'_>) -> NewMode {
        let wanted = set.mode.unwrap_or(default) & 0o7777;
        let umask = set.umask.unwrap_or(0);
        // In a directory with a default ACL no umask applies; the kernel ensures that.
        let inherits = wanted & (umask | self.umask) != 0 && self.has_default_acl(dir);
        let mode = if inherits { wanted } else { wanted & !umask };
        NewMode { mode, masked: if inherits { 0 } else { mode & self.umask & 0o777 } }
    }

    /// Creates a file with `make` and completes it; removes it again if that fails.
    ///
    /// # Errors
    /// [`Error::Busy`]: creation did not open the file, and its name already belongs to another one.
    fn make_held(
        &self,
        caller: &Caller,
        new: NewFile<'_>,
        (kind, default_mode): (FileKind, u32),
        make: impl FnOnce(BorrowedFd<'_>, &CStr, Mode) -> rustix::io::Result<Option<OwnedFd>>,
    ) -> Result<(Attr, OwnedFd)> {
        let NewFile { at: EntryName { dir, name }, set } = new;
        let (dir_fd, c_name) = self.place_of(new)?;
        let mode = self.new_mode(set, default_mode, dir_fd.as_fd());
        let since = self.tree.next_number();
        let made = {
            let _as_caller = self.identity.assume(caller)?;
            make(dir_fd.as_fd(), &c_name, Mode::from_raw_mode(mode.mode))
                .map_err(io::Error::from)?
        };
        self.directories.changed(dir);
        let made = match made {
            Some(made) => made,
            None => {
                let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let named = self.tree.open_one(dir_fd.as_fd(), &c_name, flags);
                let named = named.map_err(io::Error::from)?;
                self.check_made(caller, kind, &named)?;
                named
            }
        };
        let complete = || {
            let found = self.complete(caller, set, &made, mode)?;
            let id = self.tree.enter_new(dir, made.as_fd(), name, &found, since);
            Ok(self.attr(id, &found))
        };
        match complete() {
            Ok(attr) => Ok((attr, made)),
            Err(error) => {
                // The caller gets the first error.
                let _ = self.remove_made(caller, (dir_fd.as_fd(), &c_name), &made);
                self.directories.changed(dir);
                Err(error)
            }
        }
    }

    /// Refuses a file of another kind or owner than the one that `caller` has just created: a program has renamed
    /// another file to its name since. Attributes for the new file must not be set on a file of another user; one
    /// of the caller's own may take its place.
    ///
    /// On some file systems (FAT, network file systems that squash users), a new file belongs to a user other than the
    /// one that creates it. There only the kind is checked.
    fn check_made(&self, caller: &Caller, kind: FileKind, named: &OwnedFd) -> Result<()> {
        let found = stat(named.as_fd())?;
        let is_callers = !self.keeps_owners || found.stx_uid == self.identity.user_of(caller);
        if is_callers && kind_of(&found) == kind { Ok(()) } else { Err(Error::Busy) }
    }

    /// Removes a new file, unless another program has given its name to another one since. If that happens just before
    /// the removal, that file is removed, so the caller must have the right to: it has the right to remove its own
    /// file.
    pub(super) fn remove_made(
        &self,
        caller: &Caller,
        (dir, name): (BorrowedFd<'_>, &CStr),
        made: &OwnedFd,
    ) -> Result<()> {
        let made = stat(made.as_fd())?;
        if self.tree.stat_name(dir, name)?.stx_ino != made.stx_ino {
            return Ok(());
        }
        let is_dir = kind_of(&made) == FileKind::Directory;
        let flags = if is_dir { AtFlags::REMOVEDIR } else { AtFlags::empty() };
        let _as_caller = self.identity.assume(caller)?;
        Ok(rustix::fs::unlinkat(dir, name, flags).map_err(io::Error::from)?)
    }
}
