//! The directory as a [`FileSystem`]: every call finds its file in the tree, assumes the caller's
//! identity, and makes one system call.

#[cfg(test)]
mod abilities;
#[cfg(test)]
mod creations;
mod file_system;
mod names;
mod symlink_renames;
mod xattr;

use crate::local::attr::{kind_of, set_mode, set_times};
use crate::local::calls::Calls;
use crate::local::changes::directories::Directories;
use crate::local::changes::watch::Watch;
use crate::local::credentials::Identity;
use crate::local::data::engine::Engine;
use crate::local::data::inode::Inodes;
use crate::local::data::io::Io;
use crate::local::options::LocalOptions;
use crate::local::probe::{
    default_dir_fds, is_local, keeps_owners, max_file_size, probe, process_umask, stamps,
};
use crate::local::sys;
use crate::local::sys::proc_path;
use crate::local::tree::nodes::Nodes;
use crate::local::tree::{Tree, c_name, stat};
use crate::rules::{DEFAULT_FILE_MODE, check_name, check_owners};
use parking_lot::{Mutex, MutexGuard};
use rustix::fs::{AtFlags, Gid, Mode, OFlags, Statx, Uid};
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use symlink_renames::SymlinkRenames;
use weir_vfs::{
    Attr, Caller, Capabilities, CreateMode, Created, EntryName, Error, FileId, FileKind, NewFile,
    Permissions, Result, SetAttr, SetTime,
};

/// Locks of files' modes.
const MODE_LOCKS: usize = 64;

/// The mode of a new file.
#[derive(Clone, Copy)]
struct NewMode {
    mode: u32,
    /// Those of its bits that the process's umask removes.
    masked: u32,
}

/// A directory as a store.
pub struct LocalFs {
    tree: Arc<Tree>,
    inodes: Arc<Inodes>,
    io: Arc<Io>,
    identity: Identity,
    directories: Directories,
    symlink_renames: Arc<SymlinkRenames>,
    /// Held over a change of a file's mode or owner, as some read the mode first; by inode number.
    modes: [Mutex<()>; MODE_LOCKS],
    /// Bits that the process's umask removes from modes, and that have to be set again.
    umask: u32,
    capabilities: Capabilities,
    /// Whether the file system is of this machine, so that locks of its files wait for no other one.
    is_local: bool,
    /// Whether a new file belongs to the user that creates it.
    keeps_owners: bool,
    /// See [`LocalOptions::continues_listings`].
    continues_listings: bool,
}

impl LocalFs {
    /// Opens a directory.
    ///
    /// The directory cannot be opened; the state directory cannot be written, or another process
    /// uses it; io_uring was requested and is not available.
    pub fn open(dir: impl AsRef<Path>, options: LocalOptions) -> io::Result<Arc<Self>> {
        let dir = dir.as_ref();
        let dir_fds = options.dir_fds.unwrap_or_else(default_dir_fds);
        let nodes = |root| match &options.state_dir {
            Some(state) => Nodes::open(state, root, options.max_nodes),
            None => Ok(Nodes::in_memory(options.max_nodes)),
        };
        let tree = Tree::open(dir, nodes, dir_fds, options.search_entries)?;
        let engine = Engine::start(options.io)?;
        let identity = Identity::of_process();
        let stamps = stamps(tree.root());
        let watch = Watch::new();
        let max_file_size = max_file_size(tree.root());
        let capabilities = probe(tree.root());
        let is_local = is_local(tree.root());
        let keeps_owners = keeps_owners(tree.root());
        let symlink_renames = Arc::new(SymlinkRenames::of(tree.root()));
        tracing::info!(
            dir = %dir.display(),
            io = engine.name(),
            direct = options.direct,
            identities = identity.can_switch(),
            nodes = tree.nodes.len(),
            ?capabilities,
            ?stamps,
            is_local,
            watch = watch.is_some(),
            "local store is open"
        );
        let fsid = tree.fsid;
        Ok(Arc::new(Self {
            tree,
            inodes: Arc::default(),
            io: Arc::new(Io {
                engine,
                calls: Calls::new(options.in_place),
                transfers: Calls::new(options.in_place),
                direct: options.direct,
                stamps,
                watch,
                max_file_size,
                fsid,
            }),
            identity,
            directories: Directories::new(stamps.fine),
            symlink_renames,
            modes: std::array::from_fn(|_| Mutex::default()),
            umask: process_umask(),
            capabilities,
            is_local,
            keeps_owners,
            continues_listings: options.continues_listings,
        }))
    }

    /// Makes system calls on this thread.
    async fn call<T>(&self, call: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        self.io.calls.make(call).await
    }

    /// Attributes of a name in a directory; adds the file to the table.
    fn find(&self, caller: &Caller, entry: EntryName<'_>) -> Result<Attr> {
        let dir_fd = self.tree.dir(entry.dir)?;
        let found = {
            let _as_caller = self.identity.assume(caller)?;
            self.tree.stat_name(dir_fd.as_fd(), &c_name(entry.name)?)?
        };
        self.introduce(entry, dir_fd.as_fd(), &found)
    }

    /// The attributes of a file just found, which it adds to the table.
    fn introduce(
        &self,
        entry: EntryName<'_>,
        dir_fd: BorrowedFd<'_>,
        found: &Statx,
    ) -> Result<Attr> {
        let (id, seen) = self.tree.identify(entry.dir, dir_fd, entry.name, found)?;
        if seen.is_some() {
            self.tree.remember(seen);
        }
        Ok(self.attr(id, found))
    }

    fn attr(&self, id: FileId, found: &Statx) -> Attr {
        self.refine(self.tree.attr(id, found))
    }

    /// Makes our changes visible where the time stamp is too coarse for them.
    fn refine(&self, mut attr: Attr) -> Attr {
        if attr.kind == FileKind::Directory {
            attr.change = self.directories.show(attr.id, attr.change);
        } else if !self.io.stamps.fine
            && let Some(inode) = self.inodes.get(attr.id)
        {
            attr.change = inode.refine(attr.change);
        }
        attr
    }

    /// Completes a new file that is held: sets attributes that its creation could not set, and what
    /// it left out of `mode`. Its creation began at the number `since` ([`Tree::enter_new`]).
    fn finish(
        &self,
        caller: &Caller,
        new: NewFile<'_>,
        made: &OwnedFd,
        mode: NewMode,
        since: u64,
    ) -> Result<Attr> {
        let NewFile { at, set } = new;
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
        let id = self.tree.enter_new(at.dir, made.as_fd(), at.name, &found, since);
        Ok(self.attr(id, &found))
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
    fn make(
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
    fn create_held(
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
            match self.make_held(caller, new, (FileKind::Regular, DEFAULT_FILE_MODE), make) {
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
        check_name(name)?;
        check_owners(set)?;
        let dir_fd = self.tree.dir(dir)?;
        let c_name = c_name(name)?;
        let wanted = set.mode.unwrap_or(default_mode) & 0o7777;
        let umask = set.umask.unwrap_or(0);
        // In a directory with a default ACL no umask applies; the kernel ensures that.
        let inherits = wanted & (umask | self.umask) != 0 && self.has_default_acl(dir_fd.as_fd());
        let mode = if inherits { wanted } else { wanted & !umask };
        let masked = if inherits { 0 } else { mode & self.umask & 0o777 };
        let since = self.tree.next_number();
        let made = {
            let _as_caller = self.identity.assume(caller)?;
            make(dir_fd.as_fd(), &c_name, Mode::from_raw_mode(mode)).map_err(io::Error::from)?
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
        match self.finish(caller, new, &made, NewMode { mode, masked }, since) {
            Ok(attr) => Ok((attr, made)),
            Err(error) => {
                // The caller gets the first error.
                let _ = self.remove_made(dir_fd.as_fd(), &c_name, &made);
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

    /// Removes a new file, unless another program has given its name to another one since.
    fn remove_made(&self, dir: BorrowedFd<'_>, name: &CStr, made: &OwnedFd) -> Result<()> {
        let made = stat(made.as_fd())?;
        if self.tree.stat_name(dir, name)?.stx_ino != made.stx_ino {
            return Ok(());
        }
        let is_dir = kind_of(&made) == FileKind::Directory;
        let flags = if is_dir { AtFlags::REMOVEDIR } else { AtFlags::empty() };
        Ok(rustix::fs::unlinkat(dir, name, flags).map_err(io::Error::from)?)
    }

    fn lock_mode(&self, id: FileId) -> MutexGuard<'_, ()> {
        self.modes[id.ino as usize % MODE_LOCKS].lock()
    }

    fn truncate(&self, writable: BorrowedFd<'_>, size: u64) -> Result<()> {
        if size > self.io.max_file_size {
            return Err(Error::TooBig);
        }
        Ok(rustix::fs::ftruncate(writable, size).map_err(io::Error::from)?)
    }

    /// Sets attributes of a held file, with the thread's current rights.
    fn apply(&self, caller: &Caller, file: BorrowedFd<'_>, set: &SetAttr) -> Result<()> {
        let path = proc_path(file);
        if let Some(size) = set.size {
            let flags = OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
            let open = || rustix::fs::open(&*path, flags, Mode::empty());
            let writable = self.tree.with_fds(open).map_err(io::Error::from)?;
            self.truncate(writable.as_fd(), size)?;
        }
        if set.uid.is_some() || set.gid.is_some() {
            let (uid, gid) = (set.uid.map(Uid::from_raw), set.gid.map(Gid::from_raw));
            rustix::fs::chownat(file, c"", uid, gid, AtFlags::EMPTY_PATH)
                .map_err(io::Error::from)?;
        }
        set_mode(file, set, caller)?;
        set_times(file, set.atime, set.mtime)
    }

    /// Sets attributes of a held file, with the caller's rights.
    fn apply_as(&self, caller: &Caller, file: BorrowedFd<'_>, set: &SetAttr) -> Result<()> {
        let (atime, mtime) = match (set.atime, set.mtime) {
            // utimensat(2) lets a caller with write permission set both to now, but only the owner
            // set one. Clients set one when a user other than the owner truncates.
            one @ ((None, Some(SetTime::Now)) | (Some(SetTime::Now), None)) => one,
            _ => {
                let _as_caller = self.identity.assume(caller)?;
                return self.apply(caller, file, set);
            }
        };
        {
            let _as_caller = self.identity.assume(caller)?;
            self.apply(caller, file, &SetAttr { atime: None, mtime: None, ..set.clone() })?;
            match set_times(file, atime, mtime) {
                Err(Error::NotPermitted) if sys::may_access(file, Permissions::WRITE)? => {}
                done => return done,
            }
        }
        set_times(file, atime, mtime)
    }
}
