//! From identities to files: everything is found beneath the root, one component at a time.
//!
//! 1. No symbolic link is followed, `..` is never asked for, and no other file system is entered.
//! 2. A descriptor is handed out only after inode and generation were compared with the identity.
//! 3. Directory descriptors in the cache never exceed its bound. A cached one stays right through
//!    renames by anybody, since it holds the directory itself.

use super::attr::{ATTR_MASK, attr_of, birth_of, kind_of};
use super::file::proc_path;
use super::nodes::{Nodes, Place, Seen};
use super::sys;
use lru::LruCache;
use parking_lot::Mutex;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, RawDir, ResolveFlags, Statx, StatxAttributes};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::ffi::{CStr, CString};
use std::io;
use std::mem::MaybeUninit;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};
use weir_base::stable_hash;
use weir_vfs::{Attr, Error, FileId, FileKind, Result};

const PATH_FLAGS: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
const DIR_FLAGS: OFlags = PATH_FLAGS.union(OFlags::DIRECTORY);
/// Deepest nesting of directories that is resolved.
const MAX_DEPTH: usize = 4096;
/// How long a file that a search did not find is taken to be gone.
const NOT_FOUND_HOLDS: Duration = Duration::from_secs(30);
const MAX_NOT_FOUND: usize = 4096;
pub(super) const DIR_BUFFER_BYTES: usize = 32 * 1024;

/// The exported tree.
pub(super) struct Tree {
    root: Arc<OwnedFd>,
    pub(super) root_id: FileId,
    device: (u32, u32),
    pub(super) fsid: u64,
    pub(super) nodes: Nodes,
    dirs: Mutex<LruCache<FileId, Arc<OwnedFd>>>,
    not_found: Mutex<LruCache<FileId, Instant>>,
    /// One search at a time: they are long, and made by clients' leave.
    search: Mutex<()>,
    search_entries: usize,
    has_openat2: AtomicBool,
}

/// A file that is held by a descriptor (O_PATH), and its attributes.
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
    ) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(dir, flags, Mode::empty())?;
        let stat = sys::stat_fd(root.as_fd(), ATTR_MASK)?;
        let root_id = FileId { ino: stat.stx_ino, generation: new_generation(&root, c"", &stat) };
        Ok(Self {
            fsid: rustix::fs::fstatvfs(&root)?.f_fsid,
            root: Arc::new(root),
            root_id,
            device: (stat.stx_dev_major, stat.stx_dev_minor),
            nodes: nodes(root_id)?,
            dirs: Mutex::new(LruCache::new(at_least_one(dir_fds))),
            not_found: Mutex::new(LruCache::new(at_least_one(MAX_NOT_FOUND))),
            search: Mutex::new(()),
            search_entries,
            has_openat2: AtomicBool::new(true),
        })
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
                // Somebody moved it behind our back: look for it, and try once more.
                Err(lost) => self.find(lost).map(drop)?,
            }
        }
        Err(Error::Stale)
    }

    /// Attributes of a file.
    pub(super) fn getattr(&self, id: FileId) -> Result<Attr> {
        if id == self.root_id {
            return Ok(self.attr(id, &stat(self.root(), c"")?));
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

    /// Holds a file, whatever it is.
    pub(super) fn pin(&self, id: FileId) -> Result<Pinned> {
        if id == self.root_id {
            return Ok(Pinned { file: self.root.clone(), stat: stat(self.root(), c"")? });
        }
        if let Some(held) = self.held_dir(id)? {
            return Ok(held);
        }
        let mut place = self.nodes.place(id);
        for _ in 0..3 {
            if let Some(place) = &place
                && let Ok(dir) = self.dir_by_ino(place.dir)
                && let Ok(file) = self.open_one(dir.as_fd(), &c_name(&place.name)?, PATH_FLAGS)
            {
                let stat = stat(file.as_fd(), c"")?;
                if self.is_pinned(id, &file, &stat) {
                    return Ok(Pinned { file: Arc::new(file), stat });
                }
            }
            place = Some(self.find(id)?.0);
        }
        Err(Error::Stale)
    }

    /// A directory whose descriptor is at hand.
    fn held_dir(&self, id: FileId) -> Result<Option<Pinned>> {
        let Some(file) = self.dirs.lock().get(&id).cloned() else { return Ok(None) };
        let stat = stat(file.as_fd(), c"")?;
        if stat.stx_nlink == 0 {
            self.gone(id);
            return Err(Error::Stale);
        }
        Ok(Some(Pinned { file, stat }))
    }

    /// Identifies what was found as `name` in directory `dir`.
    pub(super) fn identify(
        &self,
        dir_id: FileId,
        dir: BorrowedFd<'_>,
        name: &[u8],
        stat: &Statx,
    ) -> Result<(FileId, Option<Seen>)> {
        self.check_device(stat)?;
        let born = birth_of(stat);
        let ino = stat.stx_ino;
        let known = self.nodes.recognise(ino, born, dir_id.ino, name);
        if let Some((generation, true)) = known {
            return Ok((FileId { ino, generation }, None));
        }
        let generation = match known {
            Some((generation, _)) => generation,
            None => new_generation(dir, &c_name(name)?, stat),
        };
        let id = FileId { ino, generation };
        Ok((id, Some(seen(id, dir_id.ino, name, stat))))
    }

    /// The same for a file that is held, and was made just now: it is never an old one.
    pub(super) fn identify_new(
        &self,
        dir_id: FileId,
        file: BorrowedFd<'_>,
        name: &[u8],
        stat: &Statx,
    ) -> (FileId, Seen) {
        let id = FileId { ino: stat.stx_ino, generation: new_generation(file, c"", stat) };
        (id, seen(id, dir_id.ino, name, stat))
    }

    pub(super) fn attr(&self, id: FileId, stat: &Statx) -> Attr {
        attr_of(id, self.fsid, stat)
    }

    /// Keeps a directory's descriptor at hand.
    pub(super) fn keep_dir(&self, id: FileId, dir: OwnedFd) {
        self.dirs.lock().put(id, Arc::new(dir));
    }

    /// A file lost its last name through us.
    pub(super) fn gone(&self, id: FileId) {
        self.dirs.lock().pop(&id);
        self.not_found.lock().put(id, Instant::now());
    }

    /// Fails for what lies on another file system.
    pub(super) fn check_device(&self, stat: &Statx) -> Result<()> {
        let here = (stat.stx_dev_major, stat.stx_dev_minor) == self.device
            && !stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT);
        if here { Ok(()) } else { Err(Error::AccessDenied) }
    }

    /// Opens a single component, which is not followed if it is a symbolic link.
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
                    // O_PATH of the link itself is what is wanted.
                    Err(Errno::LOOP) => {}
                    Err(Errno::NOSYS | Errno::PERM) => self.has_openat2.store(false, Relaxed),
                    result => return result,
                }
            }
            rustix::fs::openat(dir, name, flags | OFlags::NOFOLLOW, Mode::empty())
        })
    }

    /// The call that makes all that was done to a file or directory durable. A file whose permissions
    /// keep the process out of it is synced with its whole file system.
    pub(super) fn open_to_sync(
        &self,
        file: BorrowedFd<'_>,
    ) -> Result<impl FnOnce() -> Result<()> + Send + 'static> {
        let open = |file: BorrowedFd<'_>, mode: OFlags| {
            let path = proc_path(file);
            self.with_fds(|| rustix::fs::open(&*path, mode | OFlags::CLOEXEC, Mode::empty()))
        };
        let (file, whole) = match open(file, OFlags::RDONLY) {
            Err(Errno::ACCESS) => match open(file, OFlags::WRONLY) {
                Ok(file) => (Ok(file), false),
                Err(_) => (open(self.root(), OFlags::RDONLY), true),
            },
            opened => (opened, false),
        };
        let file = file.map_err(io::Error::from)?;
        Ok(move || {
            let synced = if whole { rustix::fs::syncfs(file) } else { rustix::fs::fsync(file) };
            Ok(synced.map_err(io::Error::from)?)
        })
    }

    /// Runs a call that opens something; out of descriptors, it gives up cached ones and tries
    /// again.
    pub(super) fn with_fds<T>(
        &self,
        open: impl Fn() -> rustix::io::Result<T>,
    ) -> rustix::io::Result<T> {
        match open() {
            Err(Errno::MFILE | Errno::NFILE) => {
                let mut dirs = self.dirs.lock();
                for _ in 0..dirs.len().div_ceil(2) {
                    dirs.pop_lru();
                }
                drop(dirs);
                open()
            }
            result => result,
        }
    }

    /// A directory's descriptor, or the directory on the way to it that is not where it was.
    #[allow(clippy::type_complexity)]
    fn try_dir(&self, id: FileId) -> Result<std::result::Result<Arc<OwnedFd>, FileId>> {
        // Upwards to what is at hand, then down again: a loop, as clients choose the depth.
        let mut way: Vec<(FileId, Box<[u8]>)> = Vec::new();
        let mut at = id;
        let mut dir = loop {
            if at == self.root_id {
                break self.root.clone();
            }
            if let Some(dir) = self.dirs.lock().get(&at) {
                break dir.clone();
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
                    let there = stat(dir.as_fd(), &name)?;
                    let same = there.stx_ino == id.ino
                        && self.generation_of(&there) == Some(id.generation);
                    return if same { Err(Error::NotDirectory) } else { Ok(Err(id)) };
                }
                Err(Errno::NOENT | Errno::STALE) => return Ok(Err(id)),
                Err(error) => return Err(io::Error::from(error).into()),
            };
            let stat = stat(opened.as_fd(), c"")?;
            if !self.is_pinned(id, &opened, &stat) {
                return Ok(Err(id));
            }
            dir = Arc::new(opened);
            self.dirs.lock().put(id, dir.clone());
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
        // Makes the place right, if it is not.
        let place = match self.nodes.place(id) {
            Some(place) if self.stat_place(&place).is_ok_and(|s| self.is(id, &s, &place)) => place,
            _ => self.find(id)?.0,
        };
        self.id_by_ino(place.dir).ok_or(Error::Stale)
    }

    fn stat_place(&self, place: &Place) -> Result<Statx> {
        let dir = self.dir_by_ino(place.dir)?;
        stat(dir.as_fd(), &c_name(&place.name)?)
    }

    /// Whether what was found at a place is the file identified.
    fn is(&self, id: FileId, stat: &Statx, place: &Place) -> bool {
        if stat.stx_ino != id.ino || self.check_device(stat).is_err() {
            return false;
        }
        match self.generation_of(stat) {
            Some(generation) => generation == id.generation,
            None => match (self.dir_by_ino(place.dir), c_name(&place.name)) {
                (Ok(dir), Ok(name)) => new_generation(&*dir, &name, stat) == id.generation,
                _ => false,
            },
        }
    }

    /// The same for a file that is held.
    fn is_pinned(&self, id: FileId, file: &OwnedFd, stat: &Statx) -> bool {
        if stat.stx_ino != id.ino || stat.stx_nlink == 0 || self.check_device(stat).is_err() {
            return false;
        }
        let generation =
            self.generation_of(stat).unwrap_or_else(|| new_generation(file, c"", stat));
        generation == id.generation
    }

    /// The generation of a file that is remembered.
    fn generation_of(&self, stat: &Statx) -> Option<u64> {
        Some(self.nodes.recognise(stat.stx_ino, birth_of(stat), 0, b"")?.0)
    }

    /// Looks for a file that is not where it was: at its other names, then all over the tree, up
    /// to a bound.
    fn find(&self, id: FileId) -> Result<(Place, Statx)> {
        for place in self.nodes.other_places(id) {
            if let Ok(stat) = self.stat_place(&place)
                && self.is(id, &stat, &place)
            {
                self.remember([seen(id, place.dir, &place.name, &stat)])?;
                return Ok((place, stat));
            }
        }
        let known = self.nodes.place(id).is_some();
        if !known && self.nodes.is_complete() {
            return Err(Error::Stale);
        }
        let _one_at_a_time = self.search.lock();
        let held = |at: &Instant| at.elapsed() < NOT_FOUND_HOLDS;
        if self.not_found.lock().get(&id).is_some_and(held) {
            return Err(Error::Stale);
        }
        match self.walk(id) {
            Some(found) => Ok(found),
            None => {
                self.not_found.lock().put(id, Instant::now());
                Err(Error::Stale)
            }
        }
    }

    /// Goes through the tree, breadth first. The directories above what is found are remembered.
    fn walk(&self, id: FileId) -> Option<(Place, Statx)> {
        struct Visit {
            above: Option<usize>,
            id: FileId,
            dir: Arc<OwnedFd>,
        }
        let mut visits = vec![Visit { above: None, id: self.root_id, dir: self.root.clone() }];
        let mut queue = VecDeque::from([0]);
        let mut left = self.search_entries;
        let mut pending: Vec<Seen> = Vec::new();
        while let Some(at) = queue.pop_front() {
            let (dir_id, dir) = (visits[at].id, visits[at].dir.clone());
            let mut names: Vec<(CString, bool)> = Vec::new();
            let _ = self.each_name(&dir, 0, |entry| {
                let kind = entry.kind;
                let hit = entry.ino == id.ino;
                if hit || kind == FileType::Directory || kind == FileType::Unknown {
                    names.push((entry.name.to_owned(), hit));
                }
                left = left.saturating_sub(1);
                left > 0
            });
            for (name, hit) in names {
                let Ok(stat) = stat(dir.as_fd(), &name) else { continue };
                let Ok((found, seen)) = self.identify(dir_id, dir.as_fd(), name.to_bytes(), &stat)
                else {
                    continue;
                };
                pending.extend(seen);
                if hit && found == id {
                    self.remember(pending).ok()?;
                    return Some((Place { dir: dir_id.ino, name: name.to_bytes().into() }, stat));
                }
                // Few enough descriptors to be open at once.
                if kind_of(&stat) == FileKind::Directory
                    && visits.len() < 512
                    && let Ok(below) = self.open_one(dir.as_fd(), &name, DIR_FLAGS)
                {
                    queue.push_back(visits.len());
                    visits.push(Visit { above: Some(at), id: found, dir: Arc::new(below) });
                }
            }
            if left == 0 {
                return None;
            }
        }
        let _ = visits.first().and_then(|v| v.above);
        None
    }

    pub(super) fn remember(&self, seen: impl IntoIterator<Item = Seen>) -> Result<()> {
        self.nodes.remember(seen).map_err(|error| {
            tracing::error!(%error, "cannot write the node log");
            Error::Io
        })
    }

    /// Calls `each` for the names of a directory after a position, `.` and `..` left out, until it
    /// says no; whether the end was reached.
    pub(super) fn each_name(
        &self,
        dir: &OwnedFd,
        position: u64,
        mut each: impl FnMut(Name<'_>) -> bool,
    ) -> Result<bool> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        // Not as its own `.`: who may read a directory need not be one who may search it.
        let path = proc_path(dir.as_fd());
        let open = || rustix::fs::open(&*path, flags, Mode::empty());
        let listing = self.with_fds(open).map_err(io::Error::from)?;
        if position != 0 {
            rustix::fs::seek(&listing, rustix::fs::SeekFrom::Start(position))
                .map_err(io::Error::from)?;
        }
        let mut buffer = [const { MaybeUninit::uninit() }; DIR_BUFFER_BYTES];
        let mut entries = RawDir::new(listing, &mut buffer);
        while let Some(entry) = entries.next() {
            let entry = entry.map_err(io::Error::from)?;
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            let (ino, next) = (entry.ino(), entry.next_entry_cookie());
            if !each(Name { name, ino, next, kind: entry.file_type() }) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// A name found in a directory.
pub(super) struct Name<'a> {
    pub(super) name: &'a CStr,
    pub(super) ino: u64,
    /// The position after it.
    pub(super) next: u64,
    pub(super) kind: FileType,
}

/// Attributes of a name, or of the descriptor itself with an empty name.
pub(super) fn stat(dir: BorrowedFd<'_>, name: &CStr) -> Result<Statx> {
    let flags = if name.is_empty() {
        AtFlags::EMPTY_PATH
    } else {
        AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT
    };
    Ok(rustix::fs::statx(dir, name, flags, ATTR_MASK).map_err(io::Error::from)?)
}

pub(super) fn c_name(name: &[u8]) -> Result<CString> {
    CString::new(name).map_err(|_| Error::Invalid)
}

fn seen(id: FileId, dir: u64, name: &[u8], stat: &Statx) -> Seen {
    let is_dir = kind_of(stat) == FileKind::Directory;
    Seen {
        id,
        born: birth_of(stat),
        place: Place { dir, name: name.into() },
        is_dir,
        has_other_names: !is_dir && stat.stx_nlink > 1,
    }
}

/// A generation made of what distinguishes a file from others that had its inode: the time of
/// creation, and the kernel's own generation, for those made within one tick of the clock.
fn new_generation(dir: impl AsFd, name: &CStr, stat: &Statx) -> u64 {
    let raw = sys::inode_generation(dir.as_fd(), name, stat.stx_ino).unwrap_or(0);
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&birth_of(stat).to_le_bytes());
    bytes[8..].copy_from_slice(&raw.to_le_bytes());
    stable_hash(&bytes) | 1
}

fn at_least_one(count: usize) -> NonZeroUsize {
    NonZeroUsize::new(count).unwrap_or(NonZeroUsize::MIN)
}
