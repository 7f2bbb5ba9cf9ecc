//! A file as a stream.
//!
//! ```text
//!            poll_read                          poll_write
//!   idle --------------> reading    idle ------------------> writing
//!    ^                      |         ^                         |
//!    +--- seek, write ------+         +--- flush, read, seek ---+
//! ```
//!
//! 1. Bytes of a read that began before a change through this file was done are not delivered after it.
//! 2. Memory in reads is at most [`READS`] pieces, in writes [`WRITES`], and one of each collected.
//! 3. The first failure of a write is reported once, by the next call that reads, writes, flushes or seeks.
//! 4. Calls at offsets come after the writes that were collected before them.
//! 5. A seek that failed, or that its caller gave up before a read or write, has no effect later.

use super::File;
use super::file::{PIECE_BYTES, Shared, WRITES};
use bytes::{Buf, Bytes, BytesMut};
use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesOrdered, FuturesUnordered, Stream, StreamExt};
use std::future::poll_fn;
use std::io::{self, SeekFrom};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncSeek, AsyncWrite, ReadBuf};

/// The first read after a seek, in bytes; each next one is twice as long, to [`PIECE_BYTES`].
const FIRST_BYTES: usize = 64 << 10;
/// Most reads in flight.
const READS: usize = 4;

type Read = BoxFuture<'static, (usize, io::Result<Bytes>)>;

/// The position, and what is in flight for it.
pub(super) struct Cursor {
    position: u64,
    /// Bytes at `position`.
    current: Bytes,
    reads: FuturesOrdered<Read>,
    /// Where the next read begins, and its length.
    next: (u64, usize),
    /// The changes of the file when `current` and `reads` began.
    as_of: u64,
    /// Bytes to be written before `position`.
    collected: BytesMut,
    writes: FuturesUnordered<BoxFuture<'static, io::Result<()>>>,
    failure: Option<io::Error>,
    seek: Option<Seek>,
}

/// A seek that has been started.
enum Seek {
    To(SeekFrom),
    FromEnd(i64, BoxFuture<'static, io::Result<u64>>),
}

impl Default for Cursor {
    fn default() -> Self {
        Self {
            position: 0,
            current: Bytes::new(),
            reads: FuturesOrdered::new(),
            next: (0, FIRST_BYTES),
            as_of: 0,
            collected: BytesMut::new(),
            writes: FuturesUnordered::new(),
            failure: None,
            seek: None,
        }
    }
}

impl File {
    /// Forgets what was read ahead.
    fn forget_reads(&mut self) {
        self.cursor.get_mut().current = Bytes::new();
        self.cursor.get_mut().reads = FuturesOrdered::new();
        self.cursor.get_mut().next = (self.cursor.get_mut().position, FIRST_BYTES);
    }

    /// Sends reads ahead of the position.
    fn read_ahead(&mut self, wanted: usize) {
        let cursor = self.cursor.get_mut();
        if cursor.reads.is_empty() {
            cursor.as_of = self.shared.changes();
        }
        // One at a time until the second in order.
        let most = if cursor.next.1 > FIRST_BYTES { READS } else { 1 };
        while cursor.reads.len() < most {
            let (at, len) = cursor.next;
            let len = if cursor.reads.is_empty() { len.max(wanted.min(PIECE_BYTES)) } else { len };
            let read = self.shared.start_read(at, len);
            cursor.reads.push_back(Box::pin(async move { (len, read.await) }));
            cursor.next = (at.saturating_add(len as u64), (2 * len).min(PIECE_BYTES));
        }
    }

    fn poll_writes(&mut self, cx: &mut Context<'_>, left: usize) -> Poll<io::Result<()>> {
        self.cursor.get_mut().poll_writes(&self.shared, cx, left)
    }

    /// Sends what was collected, and waits for every write of the stream.
    pub(super) async fn finish_writes(&self) -> io::Result<()> {
        if self.cursor.lock().has_no_writes() {
            return Ok(());
        }
        // One at a time, because only the last task that polled the writes is woken.
        let _turn = self.finishing.lock().await;
        poll_fn(|cx| self.cursor.lock().poll_writes(&self.shared, cx, 0)).await
    }
}

impl Cursor {
    /// Whether nothing is collected, in flight or to be reported.
    fn has_no_writes(&self) -> bool {
        self.collected.is_empty() && self.writes.is_empty() && self.failure.is_none()
    }

    /// What was collected, and its offset.
    fn take_collected(&mut self) -> Option<(u64, Bytes)> {
        let data = self.collected.split().freeze();
        (!data.is_empty()).then(|| (self.position - data.len() as u64, data))
    }

    /// Sends what was collected, and waits until at most `left` writes are in flight.
    fn poll_writes(
        &mut self,
        shared: &Arc<Shared>,
        cx: &mut Context<'_>,
        left: usize,
    ) -> Poll<io::Result<()>> {
        if let Some((at, data)) = self.take_collected() {
            self.writes.push(shared.start_write(at, data));
        }
        loop {
            match Pin::new(&mut self.writes).poll_next(cx) {
                Poll::Ready(Some(Err(error))) => drop(self.failure.get_or_insert(error)),
                Poll::Ready(Some(Ok(()))) => {}
                Poll::Pending if self.writes.len() > left => return Poll::Pending,
                Poll::Ready(None) | Poll::Pending => break,
            }
        }
        Poll::Ready(self.failure.take().map_or(Ok(()), Err))
    }
}

impl AsyncRead for File {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let file = self.get_mut();
        file.cursor.get_mut().seek = None;
        if buf.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        ready!(file.poll_writes(cx, 0))?;
        loop {
            if file.cursor.get_mut().as_of != file.shared.changes() {
                file.forget_reads();
            }
            let cursor = file.cursor.get_mut();
            if !cursor.current.is_empty() {
                let len = cursor.current.len().min(buf.remaining());
                buf.put_slice(&cursor.current[..len]);
                cursor.current.advance(len);
                cursor.position += len as u64;
                return Poll::Ready(Ok(()));
            }
            file.read_ahead(buf.remaining());
            let cursor = file.cursor.get_mut();
            let Some((asked, read)) = ready!(Pin::new(&mut cursor.reads).poll_next(cx)) else {
                continue;
            };
            let is_old = cursor.as_of != file.shared.changes();
            match read {
                Ok(_) if is_old => {}
                Ok(bytes) => {
                    let ends = bytes.len() < asked;
                    let is_end = bytes.is_empty();
                    cursor.current = bytes;
                    if ends {
                        // Reads after the end are of no use; the file may have grown since.
                        cursor.reads = FuturesOrdered::new();
                        cursor.next = (cursor.position + cursor.current.len() as u64, FIRST_BYTES);
                    }
                    if is_end {
                        return Poll::Ready(Ok(()));
                    }
                }
                Err(error) => {
                    file.forget_reads();
                    return Poll::Ready(Err(error));
                }
            }
        }
    }
}

impl AsyncWrite for File {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let file = self.get_mut();
        file.cursor.get_mut().seek = None;
        if let Some(error) = file.cursor.get_mut().failure.take() {
            return Poll::Ready(Err(error));
        }
        file.forget_reads();
        if file.cursor.get_mut().collected.len() >= PIECE_BYTES
            || file.cursor.get_mut().writes.len() >= WRITES
        {
            ready!(file.poll_writes(cx, WRITES - 1))?;
        }
        let room = PIECE_BYTES - file.cursor.get_mut().collected.len();
        let len = buf.len().min(room);
        let Some(end) = file.cursor.get_mut().position.checked_add(len as u64) else {
            return Poll::Ready(Err(io::ErrorKind::FileTooLarge.into()));
        };
        file.cursor.get_mut().collected.extend_from_slice(&buf[..len]);
        file.cursor.get_mut().position = end;
        Poll::Ready(Ok(len))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().poll_writes(cx, 0)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().poll_writes(cx, 0)
    }
}

impl AsyncSeek for File {
    fn start_seek(self: Pin<&mut Self>, to: SeekFrom) -> io::Result<()> {
        self.get_mut().cursor.get_mut().seek = Some(Seek::To(to));
        Ok(())
    }

    fn poll_complete(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<u64>> {
        let file = self.get_mut();
        if file.cursor.get_mut().seek.is_none() {
            return Poll::Ready(Ok(file.cursor.get_mut().position));
        }
        if let Err(error) = ready!(file.poll_writes(cx, 0)) {
            file.cursor.get_mut().seek = None;
            return Poll::Ready(Err(error));
        }
        loop {
            let target = match file.cursor.get_mut().seek.take() {
                None => return Poll::Ready(Ok(file.cursor.get_mut().position)),
                Some(Seek::To(SeekFrom::Start(at))) => Some(at),
                Some(Seek::To(SeekFrom::Current(by))) => {
                    file.cursor.get_mut().position.checked_add_signed(by)
                }
                Some(Seek::To(SeekFrom::End(by))) => {
                    let shared = Arc::clone(&file.shared);
                    let size = Box::pin(async move {
                        let attr = shared.call("look up", shared.file().getattr()).await?;
                        Ok(attr.size)
                    });
                    file.cursor.get_mut().seek = Some(Seek::FromEnd(by, size));
                    continue;
                }
                Some(Seek::FromEnd(by, mut size)) => match size.as_mut().poll(cx) {
                    Poll::Pending => {
                        file.cursor.get_mut().seek = Some(Seek::FromEnd(by, size));
                        return Poll::Pending;
                    }
                    Poll::Ready(size) => size?.checked_add_signed(by),
                },
            };
            let Some(target) = target else {
                return Poll::Ready(Err(io::ErrorKind::InvalidInput.into()));
            };
            if target != file.cursor.get_mut().position {
                file.cursor.get_mut().position = target;
                file.forget_reads();
            }
        }
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let collected = self.cursor.get_mut().take_collected();
        // Those that still wait for their turn end with their futures.
        let writes = std::mem::take(&mut self.cursor.get_mut().writes);
        if collected.is_none() && writes.is_empty() {
            return;
        }
        if let Some((at, data)) = collected {
            // Its failure has no one to go to.
            let _ = self.shared.send_write(at, data, |_| ());
        }
        if let Ok(runtime) = self.shared.runtime() {
            runtime.spawn(writes.for_each(|_| std::future::ready(())));
        }
        self.fs().hurry();
    }
}
