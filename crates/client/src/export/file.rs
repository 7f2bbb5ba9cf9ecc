//! An open file: reads and writes at offsets.
//!
//! 1. A read or write takes its memory with it: if its future is dropped, the connection does not use
//!    memory that is in use again. A mount has a bounded number of them, abandoned ones included.
//! 2. A write is acknowledged when its bytes are durable at the server.

use super::stream::Cursor;
use super::{Asked, Export, Metadata};
use crate::detail::Slot;
use crate::fs::NfsFs;
use bytes::{Bytes, BytesMut};
use futures_util::future::BoxFuture;
use futures_util::stream::{self, StreamExt, TryStreamExt};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use weir_base::sync::Mutex;
use weir_vfs::{
    Error, Extent, Layout, Lock, LockOwner, LockRange, OpenFile, ReadOp, Result, SegmentKind,
    SetAttr, WriteOp,
};

/// Most bytes of one read or write: longer ones are split, so that memory is allocated for what has
/// arrived.
pub(crate) const PIECE_BYTES: usize = 1 << 20;
/// Pieces of one read in flight.
const PIECES: usize = 8;
/// Most writes of a file in flight: more than the bytes that the client writes between two COMMITs, so
/// that the connection does not idle while the server makes data durable.
pub(super) const WRITES: usize = 24;
/// The owner of the locks of a file: each open file has its own.
const OWNER: LockOwner = LockOwner(0);

/// An open file of an [`Export`].
///
/// [`read_at`](Self::read_at) and [`write_at`](Self::write_at) take an offset and `&self`, so that any
/// number of them may be in flight (in an [`Arc`], from several tasks); a write is durable when its
/// future is done. Besides, a file is a stream with a position of its own, by `AsyncRead`, `AsyncWrite`
/// and `AsyncSeek` of tokio: reads in order are read ahead, by up to 4 MiB; writes are collected and
/// sent in parallel, up to 24 MiB, and are durable after `flush`, `shutdown` or
/// [`sync_all`](Self::sync_all), which report failures of earlier ones. Calls that read or change the data
/// at offsets wait for the writes collected before them, and report their failures as well.
///
/// Dropping it sends what was collected, and closes the file in the background; a failure of these
/// writes is lost.
///
/// ```no_run
/// # async fn example(export: weir_client::Export) -> std::io::Result<()> {
/// use tokio::io::{AsyncReadExt, AsyncSeekExt, AsyncWriteExt};
///
/// let mut file = export.create("log").await?;
/// file.write_all(b"one\ntwo\n").await?;
/// file.flush().await?;
///
/// file.rewind().await?;
/// let mut text = String::new();
/// file.read_to_string(&mut text).await?;
/// assert_eq!(file.read_at(4, 3).await?, "two");
/// # Ok(())
/// # }
/// ```
pub struct File {
    pub(super) shared: Arc<Shared>,
    /// Behind a lock, so that references to the file may be shared.
    pub(super) cursor: Mutex<Cursor>,
    /// Held by a call that waits for the writes of the stream.
    pub(super) finishing: tokio::sync::Mutex<()>,
}

/// Receives the bytes of a read, and their layout.
type Reply = oneshot::Receiver<(Vec<u8>, Result<Layout>)>;

/// The open file, for requests in flight.
pub(super) struct Shared {
    file: Arc<dyn OpenFile>,
    export: Export,
    path: PathBuf,
    /// Counts begins and ends of changes through this file: what was read before is out of date.
    changes: AtomicU64,
}

impl File {
    pub(super) fn new(export: Export, path: PathBuf, file: Arc<dyn OpenFile>) -> Self {
        let shared = Shared { file, export, path, changes: AtomicU64::new(0) };
        Self {
            shared: Arc::new(shared),
            cursor: Mutex::default(),
            finishing: tokio::sync::Mutex::default(),
        }
    }

    /// The path by which it was opened.
    pub fn path(&self) -> &Path {
        &self.shared.path
    }

    /// The mount.
    pub(crate) fn fs(&self) -> &Arc<NfsFs> {
        self.shared.export.fs()
    }

    /// Reads `len` bytes at `offset`; fewer only if the file ends there.
    pub async fn read_at(&self, offset: u64, len: usize) -> io::Result<Bytes> {
        self.finish_writes().await?;
        if len <= PIECE_BYTES {
            return self.shared.start_read(offset, len).await;
        }
        let end = offset.saturating_add(len as u64);
        let starts = (offset..end).step_by(PIECE_BYTES);
        let mut pieces = stream::iter(starts)
            .map(|at| {
                let asked = (end - at).min(PIECE_BYTES as u64) as usize;
                let read = self.shared.start_read(at, asked);
                async move { (asked, read.await) }
            })
            .buffered(PIECES);
        let mut all = BytesMut::new();
        while let Some((asked, piece)) = pieces.next().await {
            let piece = piece?;
            all.extend_from_slice(&piece);
            if piece.len() < asked {
                break;
            }
        }
        Ok(all.freeze())
    }

    /// Writes all of `data` at `offset`, and extends the file when that goes past its end. The data is
    /// durable when the future is done; whether it is, if that is dropped earlier, is not known.
    pub async fn write_at(&self, offset: u64, data: impl Into<Bytes>) -> io::Result<()> {
        let data = data.into();
        self.finish_writes().await?;
        if data.len() <= PIECE_BYTES {
            return self.shared.start_write(offset, data).await;
        }
        // Past the largest offset, the client refuses the write.
        let pieces = (0..data.len()).step_by(PIECE_BYTES).map(|from| {
            let piece = data.slice(from..data.len().min(from + PIECE_BYTES));
            self.shared.start_write(offset.saturating_add(from as u64), piece)
        });
        stream::iter(pieces).buffer_unordered(WRITES).try_collect().await
    }

    /// Makes everything durable that was written to the stream, and reports its failures. (Writes by
    /// [`write_at`](Self::write_at) are durable already.)
    pub async fn sync_all(&mut self) -> io::Result<()> {
        tokio::io::AsyncWriteExt::flush(self).await
    }

    /// Attributes. They do not contain what the stream has collected and not yet sent.
    pub async fn metadata(&self) -> io::Result<Metadata> {
        let attr = self.shared.call("look up", self.shared.file.getattr()).await?;
        Ok(Metadata(attr))
    }

    /// Sets the permission bits, with set-id and sticky.
    pub async fn set_permissions(&self, mode: u32) -> io::Result<()> {
        let fs = self.shared.export.fs();
        let set = SetAttr { mode: Some(mode & 0o7777), ..SetAttr::default() };
        let change = async {
            let id = self.shared.file.getattr().await?.id;
            weir_vfs::FileSystem::setattr(&**fs, &weir_vfs::Caller::Own, id, &set).await
        };
        self.shared.call("set attributes of", change).await.map(drop)
    }

    /// Sets the size: truncates the file, or extends it with a hole.
    pub async fn set_len(&self, size: u64) -> io::Result<()> {
        self.finish_writes().await?;
        self.shared.change("set the size of", self.shared.file.set_size(size)).await
    }

    /// Turns a range into a hole; the size does not change. Version 4.2.
    pub async fn punch_hole(&self, offset: u64, len: u64) -> io::Result<()> {
        self.finish_writes().await?;
        let punch = self.shared.file.punch_hole(offset, len);
        self.shared.change("punch a hole into", punch).await
    }

    /// Reserves space for a range, and extends the file to its end. Version 4.2.
    pub async fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        self.finish_writes().await?;
        let allocate = self.shared.file.allocate(offset, len);
        self.shared.change("allocate space for", allocate).await
    }

    /// The data or hole at `offset`, from there to its end; `None` at the end of the file. Before
    /// version 4.2 everything is data.
    pub async fn extent_at(&self, offset: u64) -> io::Result<Option<Extent>> {
        self.finish_writes().await?;
        let extent = async {
            match self.shared.file.extent_at(offset).await {
                Err(Error::NoSuchRange) => Ok(None),
                found => found.map(Some),
            }
        };
        self.shared.call("find holes in", extent).await
    }

    /// The first data at or after `offset`; `None` if only a hole, or nothing, follows.
    pub async fn next_data(&self, offset: u64) -> io::Result<Option<std::ops::Range<u64>>> {
        let mut at = offset;
        while let Some(extent) = self.extent_at(at).await? {
            if extent.kind == SegmentKind::Data {
                return Ok(Some(extent.range()));
            }
            if extent.end <= at {
                break;
            }
            at = extent.end;
        }
        Ok(None)
    }

    /// Acquires an advisory lock of a range, shared or exclusive, and waits for it as long as others
    /// hold one in its way. It replaces this file's locks in the range; they end with the file. What was
    /// read ahead before is read again.
    pub async fn lock(&self, range: LockRange, exclusive: bool) -> io::Result<()> {
        let lock = self.shared.file.lock(OWNER, Lock { range, exclusive }, true);
        // What others wrote before is a change, too.
        self.shared.change("lock", lock).await
    }

    /// The same without waiting: whether it was granted.
    pub async fn try_lock(&self, range: LockRange, exclusive: bool) -> io::Result<bool> {
        let lock = async {
            match self.shared.file.lock(OWNER, Lock { range, exclusive }, false).await {
                Ok(()) => Ok(true),
                Err(Error::WouldBlock) => Ok(false),
                Err(error) => Err(error),
            }
        };
        self.shared.change("lock", lock).await
    }

    /// Releases this file's locks in a range, after everything that was written to the stream is durable;
    /// reports the failures of that as well, and releases the locks in any case.
    pub async fn unlock(&self, range: LockRange) -> io::Result<()> {
        let written = self.finish_writes().await;
        let released = self.shared.call("unlock", self.shared.file.unlock(OWNER, range)).await;
        written.and(released)
    }
}

impl Shared {
    pub(super) fn file(&self) -> &dyn OpenFile {
        &*self.file
    }

    /// The executor of the mount's requests.
    pub(super) fn runtime(&self) -> Result<&tokio::runtime::Handle> {
        self.export.nfs.runtime()
    }

    fn asked(&self, operation: &'static str) -> Asked<'_> {
        Asked::new(operation, &self.path)
    }

    pub(super) async fn call<T>(
        &self,
        operation: &'static str,
        call: impl Future<Output = Result<T>>,
    ) -> io::Result<T> {
        self.export.call(self.asked(operation), call).await
    }

    /// Runs a change of the data: what is read ahead is dropped.
    async fn change<T>(
        &self,
        operation: &'static str,
        change: impl Future<Output = Result<T>>,
    ) -> io::Result<T> {
        self.changes.fetch_add(1, SeqCst);
        let outcome = self.call(operation, change).await;
        self.changes.fetch_add(1, SeqCst);
        outcome
    }

    /// Changes so far, begun or done.
    pub(super) fn changes(&self) -> u64 {
        self.changes.load(SeqCst)
    }

    /// Sends a read of at most [`PIECE_BYTES`], when it is first polled.
    pub(super) fn start_read(
        self: &Arc<Self>,
        offset: u64,
        len: usize,
    ) -> BoxFuture<'static, io::Result<Bytes>> {
        let shared = Arc::clone(self);
        Box::pin(async move {
            let read = async {
                let reader = Arc::clone(&shared);
                let begin = move |turn| reader.send_read(offset, len, turn);
                let (slot, rx) = shared.export.nfs.in_turn(begin).await?;
                let (mut bytes, layout): (Vec<u8>, Result<Layout>) =
                    rx.await.unwrap_or((Vec::new(), Err(Error::Io)));
                let end = layout.map_err(|error| slot.take(error))?.end(offset);
                bytes.truncate(usize::try_from(end - offset).unwrap_or(usize::MAX));
                Ok(Bytes::from(bytes))
            };
            shared.export.limited(shared.asked("read"), read).await
        })
    }

    /// Sends a write of at most [`PIECE_BYTES`], when it is first polled.
    pub(super) fn start_write(
        self: &Arc<Self>,
        offset: u64,
        data: Bytes,
    ) -> BoxFuture<'static, io::Result<()>> {
        let shared = Arc::clone(self);
        Box::pin(async move {
            let written = async {
                let writer = Arc::clone(&shared);
                let begin = move |turn| {
                    let (tx, rx) = oneshot::channel();
                    let slot = writer.send_write(offset, data, move |outcome| {
                        drop(turn);
                        // The caller may be gone.
                        let _ = tx.send(outcome);
                    });
                    (slot, rx)
                };
                let (slot, rx) = shared.export.nfs.in_turn(begin).await?;
                rx.await.unwrap_or(Err(Error::Io)).map_err(|error| slot.take(error))
            };
            shared.export.limited(shared.asked("write"), written).await
        })
    }

    /// Sends a read now, and waits for nothing; `turn` ends with it.
    fn send_read(&self, offset: u64, len: usize, turn: OwnedSemaphorePermit) -> (Slot, Reply) {
        let (slot, (tx, rx)) = (Slot::default(), oneshot::channel());
        let op = ReadOp::to_vec(offset, len, move |bytes, layout| {
            drop(turn);
            // The caller may be gone.
            let _ = tx.send((bytes, layout));
        });
        slot.enter(|| self.file.submit_read(op));
        (slot, rx)
    }

    /// Sends a write now, and waits for nothing. The returned slot has the details of its error.
    pub(super) fn send_write(
        self: &Arc<Self>,
        offset: u64,
        data: Bytes,
        done: impl FnOnce(Result<()>) + Send + 'static,
    ) -> Slot {
        let slot = Slot::default();
        self.changes.fetch_add(1, SeqCst);
        let changed = Arc::clone(self);
        let op = WriteOp::new(offset, Box::new(data), move |_, outcome| {
            changed.changes.fetch_add(1, SeqCst);
            done(outcome);
        });
        slot.enter(|| self.file.submit_write(op));
        slot
    }
}
