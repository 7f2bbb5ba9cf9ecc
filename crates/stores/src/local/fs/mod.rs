//! The directory as a [`FileSystem`]: every call finds its file in the tree, assumes the caller's
//! identity, and makes one system call.

#[cfg(test)]
mod abilities;
#[cfg(test)]
mod creations;
mod file_system;
mod names;
mod new_files;
mod symlink_renames;
mod xattr;

use crate::local::attr::{set_mode, set_times};
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
use crate::local::tree::{Tree, c_name};
use parking_lot::{Mutex, MutexGuard};
use rustix::fs::{AtFlags, Gid, Mode, OFlags, Statx, Uid};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;
use symlink_renames::SymlinkRenames;
use weir_vfs::{
    Attr, Caller, Capabilities, EntryName, Error, FileId, FileKind, Permissions, Result, SetAttr,
    SetTime,
};

/// Locks of files' modes.
const MODE_LOCKS: usize = 64;

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
    /// See [`LocalOptions::for_command`].
    for_command: bool,
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
            for_command: options.for_command,
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
