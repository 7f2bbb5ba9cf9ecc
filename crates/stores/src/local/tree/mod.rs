//! Finds files by identity: everything is looked up below the root, one component at a time.
//!
//! 1. No symbolic link is followed, `..` is never used, and no other file system is entered.
//! 2. A descriptor is returned only after inode and generation were compared with the identity.
//! 3. The cache of directory descriptors never exceeds its bound. A cached one stays valid through
//!    renames by any program, since it holds the directory itself; before each use, the tree checks
//!    that it is still below the root.
//! 4. A file that exists is never reported stale: if it is in no known place, the tree opens it by
//!    the kernel's handle to learn its place, or searches for it ([`crate::local::tree::search`]).

mod identity;
mod listings;
pub(super) mod nodelog;
pub(super) mod nodes;
pub(super) mod search;

use super::attr::{ATTR_MASK, attr_of, birth_of, kind_of};
use super::probe;
use super::sys::{self, Generation, Shape};
use crate::local::sys::proc_path;
use crate::local::tree::identity::kernel_generation;
use crate::local::tree::listings::{Listing, Listings};
use crate::local::tree::nodes::{Link, Nodes, Seen};
use crate::local::tree::search::Search;
use hashlink::LruCache;
use parking_lot::Mutex;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, Statx, StatxAttributes};
use rustix::io::Errno;
use std::ffi::{CStr, CString, OsStr};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use weir_vfs::{Attr, Error, FileId, FileKind, Result};

pub(super) const PATH_FLAGS: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
pub(super) const DIR_FLAGS: OFlags = PATH_FLAGS.union(OFlags::DIRECTORY);
/// Deepest nesting of directories that is supported.
const MAX_DEPTH: usize = 4096;
/// How long a file that a search did not find counts as gone.
const NOT_FOUND_HOLDS: Duration = Duration::from_secs(30);
const MAX_NOT_FOUND: usize = 4096;
pub(super) const DIR_BUFFER_BYTES: usize = 32 * 1024;

/// The exported tree.
pub(super) struct Tree {
    pub(super) me: Weak<Tree>,
    pub(super) root: Arc<OwnedFd>,
    pub(super) root_id: FileId,
    device: (u32, u32),
    pub(super) fsid: u64,
    pub(super) nodes: Nodes,
    dirs: Mutex<LruCache<FileId, Arc<OwnedFd>>>,
    not_found: Mutex<LruCache<FileId, Instant>>,
    listings: Listings,
    /// One search at a time: searches are long, and clients cause them.
    pub(super) search: Mutex<Search>,
    pub(super) search_entries: usize,
    has_openat2: AtomicBool,
    /// How names are looked at.
    look: AtFlags,
    /// The means of opening files by the kernel's handles, where possible.
    handles: Option<(OwnedFd, Shape)>,
    /// Numbers that this run assigns to files without a generation: their upper half, and the next
    /// lower half.
    run: u32,
    next_number: AtomicU32,
}

/// The kernel's answer about a file's identity.
enum ByHandle {
    /// It is here now.
    At(Link, Box<Statx>),
    /// It is gone, or no longer below the root.
    Gone,
    /// It may be anywhere.
    Unknown,
}

/// A file held by a descriptor (O_PATH), and its attributes.
pub(super) struct Pinned {
    pub(super) file: Arc<OwnedFd>,
    pub(super) stat: Statx,
}

impl Tree {
    /// Opens the root.
    pub(super) fn open(
        dir: &Path,
        nodes: impl FnOnce(FileId) -> io::Result<Nodes>,
        dir_fds: usize,
        search_entries: usize,
    ) -> io::Result<Arc<Self>> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(dir, flags, Mode::empty())?;
        let stat = sys::stat_fd(root.as_fd(), ATTR_MASK)?;
        let generation = kernel_generation(&root, c"", &stat)?.unwrap_or(1);
        let root_id = FileId { ino: stat.stx_ino, generation };
        let handles = open_handles(&root, &stat);
        if handles.is_none() {
            tracing::debug!("files cannot be opened by the kernel's handles");
        }
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let device = (stat.stx_dev_major, stat.stx_dev_minor);
        let fsid = probe::fsid(root.as_fd(), root_id, device)?;
        let nodes = nodes(root_id)?;
        let mut look = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
        if probe::knows_its_attributes(root.as_fd()) {
            // A name may be a mount point, of a file system whose server does not answer.
            look |= AtFlags::STATX_DONT_SYNC;
        }
        Ok(Arc::new_cyclic(|me| Self {
            me: me.clone(),
            fsid,
            root: Arc::new(root),
            root_id,
            device,
            nodes,
            dirs: Mutex::new(LruCache::new(dir_fds.max(1))),
            not_found: Mutex::new(LruCache::new(MAX_NOT_FOUND)),
            listings: Listings::new(),
            search: Mutex::default(),
            search_entries,
            has_openat2: AtomicBool::new(true),
            look,
            handles,
            run: since.as_secs() as u32,
            next_number: AtomicU32::new(1),
        }))
    }

    /// Whether the kernel opens files by handles that the tree builds.
    #[cfg(test)]
    pub(super) fn opens_by_handle(&self) -> bool {
        self.handles.is_some()
    }

    /// The root's descriptor (O_PATH).
    pub(super) fn root(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }

    /// A directory's descriptor (O_PATH).
    pub(super) fn dir(&self, id: FileId) -> Result<Arc<OwnedFd>> {
        for _ in 0..3 {
            match self.try_dir(id)? {
                Ok(dir) => return Ok(dir),
                // Another program moved it: find it, and try once more.
                Err(lost) => self.find(lost).map(drop)?,
            }
        }
        Err(Error::WouldBlock)
    }

    /// Attributes of a file.
    pub(super) fn getattr(&self, id: FileId) -> Result<Attr> {
        if id == self.root_id {
            return Ok(self.attr(id, &stat(self.root())?));
        }
        if let Some(held) = self.held_dir(id)? {
            return Ok(self.attr(id, &held.stat));
        }
        if let Some(place) = self.nodes.place(id)
            && let Ok(stat) = self.stat_place(&place)
            && self.is(id, &stat, &place)
        {
            return Ok(self.attr(id, &stat));
        }
        let (_, stat) = self.find(id)?;
        Ok(self.attr(id, &stat))
    }

    /// Holds a file of any kind.
    pub(super) fn pin(&self, id: FileId) -> Result<Pinned> {
        if id == self.root_id {
            return Ok(Pinned { file: self.root.clone(), stat: stat(self.root())? });
        }
        if let Some(held) = self.held_dir(id)? {
            return Ok(held);
        }
        let (mut place, mut refused) = (self.nodes.place(id), None);
        for _ in 0..3 {
            match place.as_ref().map(|place| self.open_place(place)) {
                Some(Ok(file)) => {
                    let stat = stat(file.as_fd())?;
                    if self.is_pinned(id, &file, &stat) {
                        return Ok(Pinned { file: Arc::new(file), stat });
                    }
                }
                None | Some(Err(Error::NotFound | Error::NotDirectory | Error::Stale)) => {}
                // It may have another name, where it can be opened.
                Some(Err(error)) => refused = Some(error),
            }
            place = Some(self.find(id)?.0);
        }
        Err(refused.unwrap_or(Error::WouldBlock))
    }

    /// Opens what is in a place (O_PATH).
    fn open_place(&self, place: &Link) -> Result<OwnedFd> {
        let (dir, name) = (self.dir_by_ino(place.dir)?, c_name(&place.name)?);
        Ok(self.open_one(dir.as_fd(), &name, PATH_FLAGS).map_err(io::Error::from)?)
    }

    /// A directory whose descriptor is cached.
    fn held_dir(&self, id: FileId) -> Result<Option<Pinned>> {
        let Some(file) = self.dirs.lock().get(&id).cloned() else { return Ok(None) };
        let stat = stat(file.as_fd())?;
        if stat.stx_nlink == 0 {
            self.gone(id);
            return Err(Error::Stale);
        }
        if !self.is_beneath(&file) {
            self.dirs.lock().remove(&id);
            return Ok(None);
        }
        Ok(Some(Pinned { file, stat }))
    }

    /// The path of a file now.
    pub(super) fn path(&self, id: FileId) -> Result<PathBuf> {
        let pinned = self.pin(id)?;
        Ok(path_of(&pinned.file).map_err(std::io::Error::from)?)
    }

    /// Whether a directory is below the root now, regardless of its place when it was opened.
    fn is_beneath(&self, dir: &OwnedFd) -> bool {
        match (path_of(&self.root), path_of(dir)) {
            (Ok(root), Ok(path)) => path.starts_with(root),
            // The path is too long to read.
            _ => self.climbs_to_root(dir),
        }
    }

    /// The same by walking up, one directory after the other.
    fn climbs_to_root(&self, dir: &OwnedFd) -> bool {
        let mut at: Option<OwnedFd> = None;
        let mut last = None;
        for _ in 0..MAX_DEPTH {
            let Ok(stat) = stat(at.as_ref().unwrap_or(dir).as_fd()) else { return false };
            if (stat.stx_dev_major, stat.stx_dev_minor) != self.device || last == Some(stat.stx_ino)
            {
                return false;
            }
            if stat.stx_ino == self.root_id.ino {
                return true;
            }
            last = Some(stat.stx_ino);
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let above = at.as_ref().unwrap_or(dir);
            let Ok(above) = rustix::fs::openat(above, c"..", flags, Mode::empty()) else {
                return false;
            };
            at = Some(above);
        }
        false
    }

    pub(super) fn attr(&self, id: FileId, stat: &Statx) -> Attr {
        attr_of(id, self.fsid, stat)
    }

    /// Caches a directory's descriptor.
    pub(super) fn keep_dir(&self, id: FileId, dir: OwnedFd) {
        self.dirs.lock().insert(id, Arc::new(dir));
    }

    /// A file has lost its last name through us.
    pub(super) fn gone(&self, id: FileId) {
        self.dirs.lock().remove(&id);
        self.note_gone(id);
    }

    /// Notes that a search did not find a file.
    pub(super) fn note_gone(&self, id: FileId) {
        self.not_found.lock().insert(id, Instant::now());
    }

    /// Whether a recent search did not find a file.
    pub(super) fn is_known_gone(&self, id: FileId) -> bool {
        let held = |at: &Instant| at.elapsed() < NOT_FOUND_HOLDS;
        self.not_found.lock().get(&id).is_some_and(held)
    }

    /// Of the mounted file system that the tree is in.
    pub(super) fn device_number(&self) -> u64 {
        let (major, minor) = self.device;
        u64::from(major) << 32 | u64::from(minor)
    }

    /// Fails for files on another file system.
    pub(super) fn check_device(&self, stat: &Statx) -> Result<()> {
        let here = (stat.stx_dev_major, stat.stx_dev_minor) == self.device
            && !stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT);
        if here { Ok(()) } else { Err(Error::AccessDenied) }
    }

    /// Opens a single component, without following a symbolic link.
    pub(super) fn open_one(
        &self,
        dir: BorrowedFd<'_>,
        name: &CStr,
        flags: OFlags,
    ) -> rustix::io::Result<OwnedFd> {
        self.with_fds(|| {
            if self.has_openat2.load(Relaxed) {
                let resolve =
                    ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
                match rustix::fs::openat2(dir, name, flags, Mode::empty(), resolve) {
                    // An O_PATH descriptor of the link itself is wanted.
                    Err(Errno::LOOP) => {}
                    Err(Errno::NOSYS | Errno::PERM) => self.has_openat2.store(false, Relaxed),
                    result => return result,
                }
            }
            rustix::fs::openat(dir, name, flags | OFlags::NOFOLLOW, Mode::empty())
        })
    }

    /// The call that makes all changes of a file or directory durable. With `whole`, or if a file's permissions
    /// deny the process access, it syncs the whole file system.
    pub(super) fn open_to_sync(
        &self,
        file: BorrowedFd<'_>,
        whole: bool,
    ) -> Result<impl FnOnce() -> Result<()> + Send + use<>> {
        let open = |file: BorrowedFd<'_>, mode: OFlags| {
            let path = proc_path(file);
            self.with_fds(|| rustix::fs::open(&*path, mode | OFlags::CLOEXEC, Mode::empty()))
        };
        let (file, whole) = match open(file, OFlags::RDONLY) {
            Err(Errno::ACCESS) => match open(file, OFlags::WRONLY) {
                Ok(file) => (Ok(file), whole),
                Err(_) => (open(self.root(), OFlags::RDONLY), true),
            },
            opened => (opened, whole),
        };
        let file = file.map_err(io::Error::from)?;
        Ok(move || {
            let synced = if whole { rustix::fs::syncfs(file) } else { rustix::fs::fsync(file) };
            Ok(synced.map_err(io::Error::from)?)
        })
    }

    /// Runs a call that opens something; if descriptors run out, closes cached ones and retries.
    pub(super) fn with_fds<T>(
        &self,
        open: impl Fn() -> rustix::io::Result<T>,
    ) -> rustix::io::Result<T> {
        match open() {
            Err(Errno::MFILE | Errno::NFILE) => {
                let mut dirs = self.dirs.lock();
                for _ in 0..dirs.len().div_ceil(2) {
                    dirs.remove_lru();
                }
                drop(dirs);
                self.listings.close();
                open()
            }
            result => result,
        }
    }

    /// A directory's descriptor, or the ancestor that is not where it was.
    #[allow(clippy::type_complexity, reason = "the tuple is taken apart at once")]
    fn try_dir(&self, id: FileId) -> Result<std::result::Result<Arc<OwnedFd>, FileId>> {
        // Up to a cached directory, then down again: a loop, as clients choose the depth.
        let mut way: Vec<(FileId, Box<[u8]>)> = Vec::new();
        let mut at = id;
        let mut dir = loop {
            if at == self.root_id {
                break self.root.clone();
            }
            let held = self.dirs.lock().get(&at).cloned();
            if let Some(dir) = held.filter(|dir| self.is_beneath(dir)) {
                break dir;
            }
            if way.len() == MAX_DEPTH {
                return Err(Error::Stale);
            }
            let Some(place) = self.nodes.place(at) else { return Ok(Err(at)) };
            way.push((at, place.name));
            at = match self.id_by_ino(place.dir) {
                Some(parent) => parent,
                None => return Ok(Err(at)),
            };
        };
        while let Some((id, name)) = way.pop() {
            let name = c_name(&name)?;
            let opened = match self.open_one(dir.as_fd(), &name, DIR_FLAGS) {
                Ok(opened) => opened,
                Err(Errno::NOTDIR) => {
                    let there = self.stat_name(dir.as_fd(), &name)?;
                    let same = self.is_at(id, dir.as_fd(), &name, &there);
                    return if same { Err(Error::NotDirectory) } else { Ok(Err(id)) };
                }
                Err(Errno::NOENT | Errno::STALE) => return Ok(Err(id)),
                Err(error) => return Err(io::Error::from(error).into()),
            };
            let stat = stat(opened.as_fd())?;
            if !self.is_pinned(id, &opened, &stat) {
                return Ok(Err(id));
            }
            dir = Arc::new(opened);
            self.dirs.lock().insert(id, dir.clone());
        }
        Ok(Ok(dir))
    }

    fn dir_by_ino(&self, ino: u64) -> Result<Arc<OwnedFd>> {
        self.dir(self.id_by_ino(ino).ok_or(Error::Stale)?)
    }

    fn id_by_ino(&self, ino: u64) -> Option<FileId> {
        if ino == self.root_id.ino { Some(self.root_id) } else { self.nodes.by_ino(ino) }
    }

    /// The directory in which a file was last seen.
    pub(super) fn parent_of(&self, id: FileId) -> Result<FileId> {
        if id == self.root_id {
            return Ok(id);
        }
        // Corrects the file's place if necessary.
        let place = match self.nodes.place(id) {
            Some(place) if self.stat_place(&place).is_ok_and(|s| self.is(id, &s, &place)) => place,
            _ => self.find(id)?.0,
        };
        self.id_by_ino(place.dir).ok_or(Error::Stale)
    }

    pub(super) fn stat_place(&self, place: &Link) -> Result<Statx> {
        let dir = self.dir_by_ino(place.dir)?;
        self.stat_name(dir.as_fd(), &c_name(&place.name)?)
    }

    /// Attributes of what has a name, which may be on another file system.
    pub(super) fn stat_name(&self, dir: BorrowedFd<'_>, name: &CStr) -> Result<Statx> {
        Ok(rustix::fs::statx(dir, name, self.look, ATTR_MASK).map_err(io::Error::from)?)
    }

    /// Finds a file that is not where it was: by its other names, by the kernel's handle, then in
    /// the whole tree.
    fn find(&self, id: FileId) -> Result<(Link, Statx)> {
        for place in self.nodes.other_places(id) {
            if let Ok(stat) = self.stat_place(&place)
                && self.is(id, &stat, &place)
            {
                self.remember([seen(id, place.dir, &place.name, &stat)]);
                return Ok((place, stat));
            }
        }
        let known = self.nodes.place(id).is_some() || self.is_displaced(id);
        if (!known && self.nodes.is_complete()) || self.is_known_gone(id) {
            return Err(Error::Stale);
        }
        match self.by_handle(id) {
            ByHandle::At(place, stat) => Ok((place, *stat)),
            ByHandle::Gone => Err(Error::Stale),
            ByHandle::Unknown => self.search_for(id),
        }
    }

    /// Whether the table may have lost a file to another one with its inode number that is not where the table has it:
    /// a listing enters what it has found at its end, when a file may be gone and another one have its number.
    fn is_displaced(&self, id: FileId) -> bool {
        let is_there = |other| {
            let place = self.nodes.place(other)?;
            let stat = self.stat_place(&place).ok()?;
            Some(self.is(other, &stat, &place))
        };
        let other = self.nodes.by_ino(id.ino).filter(|&other| other != id);
        other.is_some_and(|other| is_there(other) != Some(true))
    }

    /// Asks the kernel for a file's place. Existence is not enough: the tree has to find the file
    /// again from the root downwards, since files outside the exported tree have handles, too.
    fn by_handle(&self, id: FileId) -> ByHandle {
        let Some((mount, shape)) = &self.handles else { return ByHandle::Unknown };
        let opened = sys::open_by_inode(mount.as_fd(), *shape, id.ino, id.generation as u32);
        let file = match opened {
            Ok(file) => file,
            Err(error) if error.raw_os_error() == Some(libc::ESTALE) => return ByHandle::Gone,
            Err(_) => return ByHandle::Unknown,
        };
        let Ok(stat) = stat(file.as_fd()) else { return ByHandle::Unknown };
        if !self.is_pinned(id, &file, &stat) {
            return ByHandle::Gone;
        }
        // A directory has one path. The kernel knows one of another file only after recent use.
        for _ in 0..3 {
            match self.place_by_path(id, &file) {
                Some(place) => return ByHandle::At(place, Box::new(stat)),
                None if kind_of(&stat) != FileKind::Directory => return ByHandle::Unknown,
                None if !self.is_beneath(&file) => return ByHandle::Gone,
                None => {}
            }
        }
        ByHandle::Unknown
    }

    /// Walks down from the root along an open file's current path, and adds what it passes to the
    /// table.
    fn place_by_path(&self, id: FileId, file: &OwnedFd) -> Option<Link> {
        let (root, path) = (path_of(&self.root).ok()?, path_of(file).ok()?);
        let below = path.strip_prefix(root).ok()?;
        let (mut dir, mut dir_id) = (self.root.clone(), self.root_id);
        let mut met = Vec::new();
        let mut names = below.iter().map(OsStr::as_bytes).peekable();
        while let Some(name) = names.next() {
            let c_name = c_name(name).ok()?;
            let found = self.stat_name(dir.as_fd(), &c_name).ok()?;
            let (found_id, seen) = self.identify(dir_id, dir.as_fd(), name, &found).ok()?;
            met.extend(seen);
            if names.peek().is_none() {
                let place = Link { dir: dir_id.ino, name: name.into() };
                self.remember(met);
                return (found_id == id).then_some(place);
            }
            dir = Arc::new(self.open_one(dir.as_fd(), &c_name, DIR_FLAGS).ok()?);
            dir_id = found_id;
        }
        None
    }

    pub(super) fn remember(&self, seen: impl IntoIterator<Item = Seen>) {
        self.nodes.remember(seen);
    }

    /// Calls `each` for the names of a directory after a position, except `.` and `..`, until it
    /// returns false; returns whether the end was reached.
    pub(super) fn each_name(
        &self,
        dir: &OwnedFd,
        position: u64,
        each: impl FnMut(Name<'_>) -> bool,
    ) -> Result<bool> {
        self.listing(dir, position)?.each(false, each)
    }

    /// The same for the directory `id`, for one lister: continues the listing that has come to that position, and
    /// keeps it open for the next call if the end was not reached.
    pub(super) fn each_next_name(
        &self,
        (id, dir): (FileId, &OwnedFd),
        position: u64,
        each: impl FnMut(Name<'_>) -> bool,
    ) -> Result<bool> {
        let kept = if position == 0 { None } else { self.listings.take(id, position) };
        let (number, mut listing) = match kept {
            Some(kept) => kept,
            None => (self.listings.number(), self.listing(dir, position)?),
        };
        let is_end = listing.each(true, each)?;
        if !is_end {
            self.listings.keep(id, number, listing);
        }
        Ok(is_end)
    }

    fn listing(&self, dir: &OwnedFd, position: u64) -> Result<Listing> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        // Not as its own `.`: read permission for a directory does not imply search permission.
        let path = proc_path(dir.as_fd());
        let open = || rustix::fs::open(&*path, flags, Mode::empty());
        let opened = self.with_fds(open).map_err(io::Error::from)?;
        Ok(Listing::at(opened, position)?)
    }
}

/// An entry of a directory.
pub(super) struct Name<'a> {
    pub(super) name: &'a CStr,
    pub(super) ino: u64,
    /// The position after it.
    pub(super) next: u64,
    pub(super) kind: FileType,
}

/// Attributes of a held file.
pub(super) fn stat(file: BorrowedFd<'_>) -> Result<Statx> {
    Ok(sys::stat_fd(file, ATTR_MASK).map_err(io::Error::from)?)
}

pub(super) fn c_name(name: &[u8]) -> Result<CString> {
    CString::new(name).map_err(|_| Error::Invalid)
}

pub(super) fn seen(id: FileId, dir: u64, name: &[u8], stat: &Statx) -> Seen {
    let is_dir = kind_of(stat) == FileKind::Directory;
    Seen {
        id,
        born: birth_of(stat),
        place: Link { dir, name: name.into() },
        is_dir,
        has_other_names: !is_dir && stat.stx_nlink > 1,
        numbered: false,
    }
}

/// The means of opening files by the kernel's handles, as far as trying shows.
fn open_handles(root: &OwnedFd, stat: &Statx) -> Option<(OwnedFd, Shape)> {
    let found = sys::inode_generation(root.as_fd(), c"", stat.stx_ino);
    let Ok(Some(Generation::Number(shape, number))) = found else { return None };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mount = rustix::fs::openat(root, c".", flags, Mode::empty()).ok()?;
    let opened = sys::open_by_inode(mount.as_fd(), shape, stat.stx_ino, number).ok()?;
    let same = sys::stat_fd(opened.as_fd(), ATTR_MASK).ok()?.stx_ino == stat.stx_ino;
    same.then_some((mount, shape))
}

/// The current path of an open file (readlink(2) of /proc/self/fd).
fn path_of(file: &OwnedFd) -> rustix::io::Result<PathBuf> {
    let path = rustix::fs::readlink(proc_path(file.as_fd()), Vec::with_capacity(256))?;
    Ok(std::ffi::OsString::from_vec(path.into_bytes()).into())
}
