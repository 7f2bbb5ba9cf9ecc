//! Open files of a [`LocalFs`](crate::local::LocalFs).
//!
//! 1. The layout of a read is determined before its data is read. So a reported hole was one at
//!    that time; data punched meanwhile reads as zeros, which is correct by then.
//! 2. Extents are remembered as `inode` says. A hole at the end of the file counts only if the file has not changed
//!    since its size was read: there is no hole where another program has cut it off.
//! 3. [`Reading`] or [`Writing`] owns an operation's memory until its last transfer is done.
//!
//! Sound because of 3: vectors made of a buffer's slices are used by transfers only, and each
//! transfer keeps the operation, and so the buffer, alive.

use super::engine::{MAX_VECTORS, Transfer, Vectors};
use super::extents::extent_at;
use super::inode::Inode;
use super::io::Io;
use super::locks::Locks;
use super::reserve;
use crate::local::changes::directories::nanos_now;
use crate::local::changes::foreign::YOUNG;
use crate::local::sys::{self, LockCommand, proc_path};
use crate::rules::{MAX_FILE_BYTES, range_end};
use async_trait::async_trait;
use parking_lot::Mutex;
use rustix::fs::{FallocateFlags, Mode, OFlags, Statx, StatxFlags};
use std::any::Any;
use std::io;
use std::ops::Deref;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering::AcqRel};
use std::sync::{Arc, OnceLock};
use weir_base::PAGE_SIZE;
use weir_vfs::{
    Access, Attr, Error, Extent, Layout, Lock, LockOwner, LockRange, OpenFile, ReadOp, Result,
    SegmentKind, WriteOp,
};

const PAGE: u64 = PAGE_SIZE as u64;
/// Shorter reads go through the kernel's cache: a direct one would first write back the dirty pages
/// there, and small files are often read soon after they were written.
const MIN_DIRECT_READ: u64 = 16 * 1024;
/// Shorter writes go through the kernel's cache, which combines them.
const MIN_DIRECT_WRITE: u64 = 64 * 1024;
/// Reads go through holes up to this size rather than around them.
const READ_THROUGH: u64 = 64 * 1024;
const DIRECT_ALIGN: usize = 512;

/// An open file.
pub(in crate::local) struct LocalFile {
    opened: Arc<Opened>,
    locks: Locks,
}

/// What reads and writes use of an open file. They may outlive the [`LocalFile`].
pub(in crate::local) struct Opened {
    pub(in crate::local) io: Arc<Io>,
    pub(in crate::local) inode: Arc<Inode>,
    pub(in crate::local) file: Arc<OwnedFd>,
    pub(in crate::local) access: Access,
    direct: OnceLock<Option<Arc<OwnedFd>>>,
}

impl Deref for LocalFile {
    type Target = Opened;

    fn deref(&self) -> &Opened {
        &self.opened
    }
}

impl LocalFile {
    pub(in crate::local) fn new(
        io: Arc<Io>,
        inode: Arc<Inode>,
        file: OwnedFd,
        access: Access,
    ) -> Self {
        inode.opened(&io, file.as_fd());
        let (file, direct) = (Arc::new(file), OnceLock::new());
        let opened = Arc::new(Opened { io, inode, file, access, direct });
        Self { opened, locks: Locks::default() }
    }

    /// Begins a transfer on this thread. If that many begin on their callers' threads already, one of the engine's
    /// threads begins it: the caller must not wait.
    fn begin(&self, begin: impl FnOnce(&Opened) + Send + 'static) {
        if let Some(_place) = self.io.transfers.place() {
            return self.io.transfers.run(|| begin(&self.opened));
        }
        let opened = self.opened.clone();
        self.io.engine.run(move || begin(&opened));
    }
}

impl Opened {
    fn readable(&self) -> Result<()> {
        if self.access.contains(Access::READ) { Ok(()) } else { Err(Error::BadFile) }
    }

    fn writable(&self) -> Result<()> {
        if self.access.contains(Access::WRITE) { Ok(()) } else { Err(Error::BadFile) }
    }

    /// The descriptor for direct I/O, if the file supports it.
    fn direct(&self) -> Option<&Arc<OwnedFd>> {
        let open = || {
            let mode = if self.access == Access::READ {
                OFlags::RDONLY
            } else if self.access == Access::WRITE {
                OFlags::WRONLY
            } else {
                OFlags::RDWR
            };
            let path = proc_path(self.file.as_fd());
            let flags = mode | OFlags::DIRECT | OFlags::CLOEXEC;
            rustix::fs::open(path, flags, Mode::empty()).ok().map(Arc::new)
        };
        if !self.io.direct {
            return None;
        }
        self.direct.get_or_init(open).as_ref()
    }

    fn stat(&self) -> Result<Statx> {
        Ok(sys::stat_fd(self.file.as_fd(), StatxFlags::BASIC_STATS | StatxFlags::BTIME)
            .map_err(io::Error::from)?)
    }

    /// Extents from `offset` on that reach at least to `end`; none begins at or past it.
    fn extents(&self, offset: u64, end: u64, stat: &Statx) -> Result<Vec<Extent>> {
        let stamp = crate::local::attr::change_of(stat);
        let change = (stamp, self.inode.foreign(&self.io));
        let mut extents: Vec<Extent> = Vec::new();
        // Held over the seeks, so that no write begins before their results are recorded.
        let mut state = self.inode.state.lock();
        if state.known_at != change {
            state.known.forget();
            state.known_at = change;
        }
        let calm = state.mark.is_some() || nanos_now().saturating_sub(stamp) > YOUNG;
        let mut at = offset;
        while at < end {
            let extent = match state.known.at(at) {
                Some(extent) => extent,
                None => {
                    let (extent, is_of_stat) = extent_at(self.file.as_fd(), at, stat)?;
                    if is_of_stat && calm && state.writes_in_flight == 0 {
                        state.known.learn(extent);
                    }
                    extent
                }
            };
            at = extent.end;
            match extents.last_mut() {
                Some(last) if last.kind == extent.kind => last.end = extent.end,
                _ => extents.push(extent),
            }
        }
        Ok(extents)
    }

    /// The layout that a read of `offset..offset + len` returns.
    fn layout(&self, offset: u64, len: u64) -> Result<(Layout, u64)> {
        self.readable()?;
        let mask = StatxFlags::SIZE | StatxFlags::CTIME;
        let stat = sys::stat_fd(self.file.as_fd(), mask).map_err(io::Error::from)?;
        let size = stat.stx_size;
        let end = offset.saturating_add(len).min(size);
        let mut layout = Layout { extents: Vec::new(), eof: end == size || offset >= size };
        if offset < end {
            for extent in self.extents(offset, end, &stat)? {
                // Data beyond the request was not asked for; a hole beyond it is useful.
                let to =
                    if extent.kind == SegmentKind::Data { extent.end.min(end) } else { extent.end };
                layout.push(extent.kind, extent.start, to);
            }
            layout.eof = layout.end(offset) >= size;
        }
        Ok((layout, size))
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        self.inode.closed(&self.io, self.file.as_fd());
    }
}

/// Bytes of the file that one transfer reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    start: u64,
    end: u64,
}

/// The data extents, merged across small holes.
fn runs(layout: &Layout) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for extent in layout.extents.iter().filter(|e| e.kind == SegmentKind::Data) {
        match runs.last_mut() {
            Some(run) if extent.start - run.end <= READ_THROUGH => run.end = extent.end,
            _ => runs.push(Run { start: extent.start, end: extent.end }),
        }
    }
    runs
}

/// Merges pieces that are adjacent in memory, and splits into as many vectors as a call takes.
fn batches(pieces: impl Iterator<Item = (*mut u8, usize)>) -> Vec<Vec<libc::iovec>> {
    let mut batches: Vec<Vec<libc::iovec>> = Vec::new();
    for (base, len) in pieces.filter(|&(_, len)| len > 0) {
        let full = batches.last().is_none_or(|batch| batch.len() == MAX_VECTORS);
        let last = batches.last_mut().and_then(|batch| batch.last_mut());
        match last {
            Some(last) if last.iov_base.cast::<u8>().wrapping_add(last.iov_len) == base => {
                last.iov_len += len;
                continue;
            }
            _ if full => batches.push(Vec::new()),
            _ => {}
        }
        if let Some(batch) = batches.last_mut() {
            batch.push(libc::iovec { iov_base: base.cast(), iov_len: len });
        }
    }
    batches
}

fn is_aligned(batches: &[Vec<libc::iovec>]) -> bool {
    batches
        .iter()
        .flatten()
        .all(|v| v.iov_base.addr() % DIRECT_ALIGN == 0 && v.iov_len % DIRECT_ALIGN == 0)
}

/// A read in flight.
struct Reading {
    op: Mutex<Option<ReadOp>>,
    layout: Mutex<Layout>,
    /// File size when the layout was determined.
    size: u64,
    left: AtomicUsize,
    failed: Mutex<Option<Error>>,
}

impl Reading {
    /// One transfer is done, which was to read the bytes from `start` to `end`.
    fn done(&self, start: u64, end: u64, result: io::Result<usize>) {
        match result {
            Ok(moved) if start + (moved as u64) < end => self.cut(start + moved as u64),
            Ok(_) => {}
            Err(error) => *self.failed.lock() = Some(error.into()),
        }
        if self.left.fetch_sub(1, AcqRel) == 1 {
            self.complete();
        }
    }

    /// The file has turned out to end at `end`.
    fn cut(&self, end: u64) {
        let mut layout = self.layout.lock();
        layout.extents.retain(|extent| extent.start < end);
        if let Some(last) = layout.extents.last_mut() {
            last.end = last.end.min(end);
        }
        layout.eof = true;
    }

    fn complete(&self) {
        let Some(mut op) = self.op.lock().take() else { return };
        if let Some(error) = self.failed.lock().take() {
            return op.complete(Err(error));
        }
        let layout = std::mem::take(&mut *self.layout.lock());
        let data_end = layout.extents.iter().rev().find(|e| e.kind == SegmentKind::Data);
        if let Some(end) = data_end.map(|e| e.end).filter(|end| end % PAGE != 0) {
            let from = (end - op.offset()) as usize;
            let to = (end.next_multiple_of(PAGE) - op.offset()).min(op.len() as u64) as usize;
            let at_eof = end == layout.end(op.offset()) && (layout.eof || end == self.size);
            if at_eof && from < to {
                op.buffer().zero(from, to);
            }
        }
        op.complete(Ok(layout));
    }
}

/// A write in flight.
struct Writing {
    op: Mutex<Option<WriteOp>>,
    inode: Arc<Inode>,
    left: AtomicUsize,
    failed: Mutex<Option<Error>>,
}

impl Writing {
    fn done(&self, result: io::Result<usize>) {
        if let Err(error) = result {
            *self.failed.lock() = Some(error.into());
        }
        if self.left.fetch_sub(1, AcqRel) == 1 {
            self.inode.end_change();
            let failed = self.failed.lock().take();
            if let Some(op) = self.op.lock().take() {
                op.complete(failed.map_or(Ok(()), Err));
            }
        }
    }
}

/// A planned transfer, with its position in the file.
struct Planned {
    start: u64,
    end: u64,
    direct: bool,
    vectors: Vec<libc::iovec>,
}

impl Opened {
    fn start_read(&self, mut op: ReadOp) {
        let offset = op.offset();
        let (layout, size) = match self.layout(offset, op.len() as u64) {
            Ok(found) => found,
            Err(error) => return op.complete(Err(error)),
        };
        let room = offset.saturating_add(op.len() as u64).min(MAX_FILE_BYTES);
        let mut planned = Vec::new();
        for run in runs(&layout) {
            // Direct I/O needs whole pages; past the end of the file nothing is read.
            let whole = run.end.next_multiple_of(PAGE);
            // The kernel rejects a read whose end is no file offset, even past the end of the file.
            let wants_direct = run.start % PAGE == 0
                && whole <= room.min(MAX_FILE_BYTES)
                && run.end - run.start >= MIN_DIRECT_READ;
            let to = if wants_direct { whole } else { run.end };
            let mut slices = Vec::new();
            op.buffer().slices((run.start - offset) as usize, (to - offset) as usize, &mut slices);
            let pieces = slices.iter_mut().map(|s| (s.as_mut_ptr(), s.len()));
            let batches = batches(pieces);
            let direct = wants_direct && is_aligned(&batches) && self.direct().is_some();
            plan(&mut planned, run.start, batches, direct);
        }
        let left = AtomicUsize::new(planned.len());
        let reading = Arc::new(Reading {
            op: Mutex::new(Some(op)),
            layout: Mutex::new(layout),
            size,
            left,
            failed: Mutex::new(None),
        });
        if planned.is_empty() {
            return reading.complete();
        }
        for part in planned {
            let reading = reading.clone();
            let (start, end) = (part.start, part.end.min(size).max(part.start));
            self.submit(part, false, true, (end - start) as usize, move |result| {
                reading.done(start, end, result);
            });
        }
    }

    fn start_write(&self, op: WriteOp) {
        let (offset, len) = (op.offset(), op.len() as u64);
        let end = match self.writable().and_then(|()| range_end(offset, len)) {
            Ok(end) => end,
            Err(error) => return op.complete(Err(error)),
        };
        if len == 0 {
            return op.complete(Ok(()));
        }
        // Whole pages in the middle may be written directly; edges go through the kernel's cache.
        let body = Run { start: offset.next_multiple_of(PAGE), end: end / PAGE * PAGE };
        let split = body.end > body.start && body.end - body.start >= MIN_DIRECT_WRITE;
        let parts = match split && self.direct().is_some() {
            true => {
                vec![Run { start: offset, end: body.start }, body, Run { start: body.end, end }]
            }
            false => vec![Run { start: offset, end }],
        };
        let mut planned = Vec::new();
        for (i, run) in parts.iter().enumerate().filter(|(_, run)| run.start < run.end) {
            let mut slices = Vec::new();
            let (from, to) = ((run.start - offset) as usize, (run.end - offset) as usize);
            op.source().slices(from, to, &mut slices);
            let pieces = slices.iter().map(|s| (s.as_ptr().cast_mut(), s.len()));
            let batches = batches(pieces);
            let direct = parts.len() == 3 && i == 1 && is_aligned(&batches);
            plan(&mut planned, run.start, batches, direct);
        }
        let uncached = op.is_uncached();
        self.inode.begin_change(&self.io, self.file.as_fd());
        let writing = Arc::new(Writing {
            op: Mutex::new(Some(op)),
            inode: self.inode.clone(),
            left: AtomicUsize::new(planned.len()),
            failed: Mutex::new(None),
        });
        for part in planned {
            let writing = writing.clone();
            let want = (part.end - part.start) as usize;
            self.submit(part, true, uncached, want, move |result| writing.done(result));
        }
    }

    fn submit(
        &self,
        part: Planned,
        write: bool,
        drop_cache: bool,
        want: usize,
        done: impl FnOnce(io::Result<usize>) + Send + 'static,
    ) {
        let direct = self.direct.get().and_then(Option::as_ref).filter(|_| part.direct);
        self.io.engine.submit(Transfer {
            file: direct.unwrap_or(&self.file).clone(),
            write,
            offset: part.start,
            vectors: Vectors::new(part.vectors),
            want,
            fallback: direct.map(|_| self.file.clone()),
            drop_cache: drop_cache && direct.is_none(),
            done: Box::new(done),
        });
    }
}

/// Places batches one after the other from `start` on.
fn plan(planned: &mut Vec<Planned>, start: u64, batches: Vec<Vec<libc::iovec>>, direct: bool) {
    let mut at = start;
    for vectors in batches.into_iter().filter(|b| !b.is_empty()) {
        let len: usize = vectors.iter().map(|v| v.iov_len).sum();
        planned.push(Planned { start: at, end: at + len as u64, direct, vectors });
        at += len as u64;
    }
}

#[async_trait]
impl OpenFile for LocalFile {
    fn access(&self) -> Access {
        self.access
    }

    fn is_marked_uncached(&self) -> bool {
        let mut value = [0; 1];
        let get = || rustix::fs::fgetxattr(&*self.file, weir_vfs::UNCACHED_XATTR, &mut value[..]);
        let read = self.io.calls.run(get);
        read == Ok(value.len()) && value == *weir_vfs::UNCACHED_MARK
    }

    async fn getattr(&self) -> Result<Attr> {
        let get = || {
            let stat = self.stat()?;
            let mut attr = crate::local::attr::attr_of(self.inode.id, self.io.fsid, &stat);
            self.inode.looked(&self.io, attr.change);
            if !self.io.stamps.fine {
                attr.change = self.inode.refine(attr.change);
            }
            Ok(attr)
        };
        self.io.calls.make(get).await
    }

    fn changes_by_others(&self) -> Option<u64> {
        Some(self.inode.foreign(&self.io))
    }

    fn submit_read(&self, op: ReadOp) {
        self.begin(|file| file.start_read(op));
    }

    fn submit_write(&self, op: WriteOp) {
        self.begin(|file| file.start_write(op));
    }

    async fn sync(&self, data_only: bool) -> Result<()> {
        let file = self.file.clone();
        self.io
            .engine
            .blocking(move || {
                let synced = match data_only {
                    true => rustix::fs::fdatasync(&*file),
                    false => rustix::fs::fsync(&*file),
                };
                Ok(synced.map_err(io::Error::from)?)
            })
            .await
    }

    async fn set_size(&self, size: u64) -> Result<()> {
        self.writable()?;
        if size > self.io.max_file_size {
            return Err(Error::TooBig);
        }
        let set = || {
            let truncate = || rustix::fs::ftruncate(&*self.file, size);
            let set = self.inode.changing(&self.io, self.file.as_fd(), truncate);
            Ok(set.map_err(io::Error::from)?)
        };
        self.io.calls.make(set).await
    }

    async fn punch_hole(&self, offset: u64, len: u64) -> Result<()> {
        let end = range_end(offset, len)?;
        self.fallocate(FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, end - offset)
            .await
    }

    async fn allocate(&self, offset: u64, len: u64) -> Result<()> {
        if len == 0 {
            return Err(Error::Invalid);
        }
        self.writable()?;
        let end = range_end(offset, len)?;
        let (inode, file) = (self.inode.clone(), self.file.clone());
        let io = self.io.clone();
        let reserve = move || {
            let reserve = || reserve::reserve(file.as_fd(), offset..end);
            Ok(inode.changing(&io, file.as_fd(), reserve)?)
        };
        self.io.engine.blocking(reserve).await
    }

    async fn extent_at(&self, offset: u64) -> Result<Extent> {
        let find = || {
            let stat = self.stat()?;
            if offset >= stat.stx_size {
                return Err(Error::NoSuchRange);
            }
            let found = self.extents(offset, offset + 1, &stat)?;
            found.first().copied().ok_or(Error::NoSuchRange)
        };
        self.io.calls.make(find).await
    }

    async fn clone_range(
        &self,
        from: &dyn OpenFile,
        offset: u64,
        len: u64,
        to_offset: u64,
    ) -> Result<()> {
        let from = from.as_any().downcast_ref::<Self>().ok_or(Error::CrossDevice)?;
        self.writable()?;
        from.readable()?;
        let (inode, to, from) = (self.inode.clone(), self.file.clone(), from.file.clone());
        let io = self.io.clone();
        self.io
            .engine
            .blocking(move || {
                let cloned = inode.changing(&io, to.as_fd(), || {
                    sys::clone_range(to.as_fd(), to_offset, from.as_fd(), offset, len)
                });
                Ok(cloned?)
            })
            .await
    }

    async fn lock(&self, owner: LockOwner, lock: Lock, wait: bool) -> Result<()> {
        if lock.exclusive { self.writable() } else { self.readable() }?;
        let file = self.file.as_fd();
        self.locks.lock(&self.io.calls, file, self.access, owner, lock, wait).await
    }

    fn program_lock(&self, lock: Lock) -> Result<()> {
        // The kernel grants exclusive locks only on files open for writing.
        let exclusive = lock.exclusive && self.access.contains(Access::WRITE);
        let lock = Lock { exclusive, ..lock };
        Ok(sys::lock(self.file.as_fd(), LockCommand::Take, lock).map(drop)?)
    }

    fn program_test_lock(&self, lock: Lock) -> Result<Option<Lock>> {
        Ok(sys::lock(self.file.as_fd(), LockCommand::Test, lock)?)
    }

    fn program_unlock(&self, range: LockRange) -> Result<()> {
        let lock = Lock { range, exclusive: false };
        Ok(sys::lock(self.file.as_fd(), LockCommand::Free, lock).map(drop)?)
    }

    async fn test_lock(&self, owner: LockOwner, lock: Lock) -> Result<Option<Lock>> {
        self.io.calls.make(|| self.locks.test(self.file.as_fd(), self.access, owner, lock)).await
    }

    async fn unlock(&self, owner: LockOwner, range: LockRange) -> Result<()> {
        // It does not wait for a place: its caller may give up.
        self.io.calls.run(|| self.locks.unlock(owner, range))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Opened {
    async fn fallocate(&self, mode: FallocateFlags, offset: u64, len: u64) -> Result<()> {
        self.writable()?;
        if len == 0 {
            return Ok(());
        }
        let (inode, file, io) = (self.inode.clone(), self.file.clone(), self.io.clone());
        self.io
            .engine
            .blocking(move || {
                let change = || rustix::fs::fallocate(&*file, mode, offset, len);
                let done = inode.changing(&io, file.as_fd(), change);
                Ok(done.map_err(io::Error::from)?)
            })
            .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::local::{LocalFs, LocalOptions};
    use std::cell::Cell;
    use std::sync::mpsc::channel;
    use std::time::Duration;
    use weir_vfs::{Caller, FileSystem};

    #[tokio::test]
    async fn what_another_program_has_cut_off_since_is_no_hole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, [7; 8192]).unwrap();
        let fs = LocalFs::open(dir.path(), LocalOptions::default()).unwrap();
        let attr = fs.lookup(&Caller::Own, fs.root().entry(b"file")).await.unwrap();
        let file = fs.open(&Caller::Own, attr.id, Access::READ).await.unwrap();
        let local = file.as_any().downcast_ref::<LocalFile>().unwrap();
        let before = local.stat().unwrap();
        let other = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        other.set_len(0).unwrap();
        let found = local.extents(0, 8192, &before).unwrap();
        assert_eq!(found, [Extent { kind: SegmentKind::Data, start: 0, end: 8192 }]);
        // What is a hole by now is one.
        other.set_len(8192).unwrap();
        let found = local.extents(0, 8192, &local.stat().unwrap()).unwrap();
        assert!(found.iter().all(|extent| extent.kind == SegmentKind::Hole), "{found:?}");
    }

    #[tokio::test]
    async fn a_transfer_beyond_the_most_holds_up_no_caller() {
        thread_local!(static MADE: Cell<usize> = const { Cell::new(0) });
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("file"), [7]).unwrap();
        let in_place = |call: &mut dyn FnMut()| {
            MADE.set(MADE.get() + 1);
            call();
        };
        let fs =
            LocalFs::open(dir.path(), LocalOptions { in_place, ..Default::default() }).unwrap();
        let attr = fs.lookup(&Caller::Own, fs.root().entry(b"file")).await.unwrap();
        let both = Access::READ | Access::WRITE;
        let file = fs.open(&Caller::Own, attr.id, both).await.unwrap();
        let (tx, done) = channel();
        let transfer = |byte| {
            let (wrote, read) = (tx.clone(), tx.clone());
            file.submit_write(WriteOp::new(0, Box::new(vec![byte]), move |_, result| {
                wrote.send((byte, result)).unwrap();
            }));
            assert_eq!(done.recv_timeout(Duration::from_secs(60)), Ok((byte, Ok(()))));
            file.submit_read(ReadOp::to_vec(0, 1, move |bytes, result| {
                read.send((bytes[0], result.map(drop))).unwrap();
            }));
            assert_eq!(done.recv_timeout(Duration::from_secs(60)), Ok((byte, Ok(()))));
        };
        MADE.set(0);
        transfer(1);
        assert_eq!(MADE.get(), 2);
        let local = file.as_any().downcast_ref::<LocalFile>().unwrap();
        let held: Vec<_> = std::iter::from_fn(|| local.io.transfers.place()).collect();
        transfer(2);
        assert_eq!(MADE.get(), 2, "on the engine's threads");
        drop(held);
        transfer(3);
        assert_eq!(MADE.get(), 4);
    }
}
