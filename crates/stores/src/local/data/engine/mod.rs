//! Data transfer between memory and files: [`uring`], or [`threads`] where io_uring is not
//! available.
//!
//! 1. A transfer's `done` owns the memory that the [`Transfer`] names, until it has been called.
//! 2. Each transfer's `done` is called exactly once, on a thread of the engine, with all the bytes
//!    asked for (fewer only at the end of the file), or the error. An error that asks for another
//!    attempt is among them if it came [`MAX_REFUSALS`] times in a row: callers know when to retry.
//! 3. A dropped engine completes the transfers in flight.

mod threads;
mod uring;

use std::io;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
pub(in crate::local) use threads::Pool;
use uring::Uring;

/// The means of data transfer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IoEngine {
    /// io_uring where the kernel allows it, else threads.
    #[default]
    Auto,
    /// io_uring, or an error.
    Uring,
    /// A pool of threads.
    Threads,
}

/// Most vectors that one system call takes (IOV_MAX).
pub(in crate::local) const MAX_VECTORS: usize = 1024;

/// Do not keep the pages in the kernel's cache (preadv2(2): RWF_DONTCACHE, formerly
/// RWF_UNCACHED).
const RWF_DONTCACHE: i32 = 0x80;

/// Attempts in a row that the kernel may refuse with an error that asks for another: signals
/// interrupt a few, while a file system may give such an answer for ever.
const MAX_REFUSALS: u32 = 100;

/// Bytes to move between a file and memory.
pub(in crate::local) struct Transfer {
    pub(in crate::local) file: Arc<OwnedFd>,
    pub(in crate::local) write: bool,
    pub(in crate::local) offset: u64,
    pub(in crate::local) vectors: Vectors,
    /// Transferring this many bytes suffices: a read may have room for more than the file has.
    pub(in crate::local) want: usize,
    /// Used to continue when `file`, open for direct I/O, rejects an alignment.
    pub(in crate::local) fallback: Option<Arc<OwnedFd>>,
    /// The data goes through the kernel's cache, which should stay unchanged.
    pub(in crate::local) drop_cache: bool,
    pub(in crate::local) done: Box<dyn FnOnce(io::Result<usize>) + Send>,
}

/// Pieces of memory, at most [`MAX_VECTORS`].
pub(in crate::local) struct Vectors {
    list: Vec<libc::iovec>,
    skipped: usize,
}

// SAFETY: the memory belongs to the transfer (invariant 1), which only one thread has at a time.
unsafe impl Send for Vectors {}

impl Vectors {
    pub(in crate::local) fn new(list: Vec<libc::iovec>) -> Self {
        Self { list, skipped: 0 }
    }

    fn as_slice(&self) -> &[libc::iovec] {
        self.list.get(self.skipped..).unwrap_or_default()
    }

    /// Skips bytes that were transferred.
    fn advance(&mut self, mut moved: usize) {
        while let Some(vector) = self.list.get_mut(self.skipped) {
            if moved < vector.iov_len {
                vector.iov_base = vector.iov_base.cast::<u8>().wrapping_add(moved).cast();
                vector.iov_len -= moved;
                return;
            }
            moved -= vector.iov_len;
            self.skipped += 1;
        }
    }
}

/// A transfer, and its progress.
struct Progress {
    transfer: Transfer,
    moved: usize,
    /// Attempts since the last progress that were refused, and are to be repeated.
    refusals: u32,
}

/// The next step after the kernel's answer.
enum Next {
    Again(Progress),
    Done,
}

impl Progress {
    fn new(transfer: Transfer) -> Self {
        Self { transfer, moved: 0, refusals: 0 }
    }

    fn flags(&self) -> i32 {
        let drop_cache = self.transfer.drop_cache && DONTCACHE_WORKS.load(Relaxed);
        if drop_cache { RWF_DONTCACHE } else { 0 }
    }

    /// Handles the kernel's answer to one attempt: bytes transferred, or a negative errno.
    fn answered(mut self, result: i32, flags: i32) -> Next {
        if result < 0 {
            return self.refused(-result, flags);
        }
        let moved = result as usize;
        self.moved += moved;
        self.refusals = 0;
        self.transfer.vectors.advance(moved);
        if self.moved >= self.transfer.want || (moved == 0 && !self.transfer.write) {
            let moved = self.moved;
            return self.finish(Ok(moved));
        }
        if moved == 0 {
            // A write without progress or an error would be repeated forever.
            return self.finish(Err(io::ErrorKind::WriteZero.into()));
        }
        self.transfer.offset += moved as u64;
        Next::Again(self)
    }

    fn refused(mut self, errno: i32, flags: i32) -> Next {
        match errno {
            libc::EINTR | libc::EAGAIN | libc::ECANCELED if self.refusals < MAX_REFUSALS => {
                self.refusals += 1;
                Next::Again(self)
            }
            libc::EOPNOTSUPP | libc::EINVAL if flags & RWF_DONTCACHE != 0 => {
                // Another file system may support it, but without it the pages only stay a little
                // longer: not worth a record per file.
                DONTCACHE_WORKS.store(false, Relaxed);
                Next::Again(self)
            }
            libc::EINVAL if self.transfer.fallback.is_some() => {
                if let Some(buffered) = self.transfer.fallback.take() {
                    self.transfer.file = buffered;
                    self.transfer.drop_cache = true;
                }
                Next::Again(self)
            }
            errno => self.finish(Err(io::Error::from_raw_os_error(errno))),
        }
    }

    fn finish(self, result: io::Result<usize>) -> Next {
        let done = self.transfer.done;
        alone("the end of a transfer", move || done(result));
        Next::Done
    }
}

/// Runs a part of a thread's work. A panic ends only this part: the thread owns memory that the kernel still uses, or
/// is one of few.
fn alone(what: &str, part: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(part)).is_err() {
        tracing::error!("bug: {what} panicked");
    }
}

/// Whether the kernel supports RWF_DONTCACHE, as far as tried.
static DONTCACHE_WORKS: AtomicBool = AtomicBool::new(true);

/// The engine in use, and the threads for blocking system calls.
pub(in crate::local) struct Engine {
    uring: Option<Uring>,
    pool: Pool,
}

impl Engine {
    /// Starts an engine of the given kind.
    ///
    /// # Errors io_uring was requested, and is not available.
    pub(in crate::local) fn start(kind: IoEngine) -> io::Result<Self> {
        let uring = match kind {
            IoEngine::Threads => None,
            IoEngine::Uring => Some(Uring::start()?),
            IoEngine::Auto => match Uring::start() {
                Ok(uring) => Some(uring),
                Err(error) => {
                    tracing::warn!(%error, "io_uring is refused here: using threads");
                    None
                }
            },
        };
        Ok(Self { uring, pool: Pool::default() })
    }

    /// The engine's name, for logs.
    pub(in crate::local) fn name(&self) -> &'static str {
        if self.uring.is_some() { "io_uring" } else { "threads" }
    }

    /// Starts a transfer.
    pub(in crate::local) fn submit(&self, transfer: Transfer) {
        match &self.uring {
            Some(uring) => uring.submit(Progress::new(transfer)),
            None => self.pool.run(move || threads::transfer(Progress::new(transfer))),
        }
    }

    /// Runs a call that may block, off the calling thread and without an answer.
    pub(in crate::local) fn run(&self, call: impl FnOnce() + Send + 'static) {
        self.pool.run(call);
    }

    /// Runs a call that may block, off the calling thread.
    pub(in crate::local) async fn blocking<T: Send + 'static>(
        &self,
        call: impl FnOnce() -> weir_vfs::Result<T> + Send + 'static,
    ) -> weir_vfs::Result<T> {
        let (tx, rx) = tokio::sync::oneshot::channel();
        self.pool.run(move || {
            // The caller may have stopped waiting.
            let _ = tx.send(call());
        });
        rx.await.map_err(|_| weir_vfs::Error::Io)?
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    #[test]
    fn an_answer_that_asks_for_another_attempt_ends_the_transfer_if_it_stays() {
        for errno in [libc::EAGAIN, libc::EINTR, libc::ECANCELED] {
            let (tx, rx) = channel();
            let mut progress = Progress::new(Transfer {
                file: Arc::new(tempfile::tempfile().unwrap().into()),
                write: true,
                offset: 0,
                vectors: Vectors::new(Vec::new()),
                want: 2,
                fallback: None,
                drop_cache: false,
                done: Box::new(move |written| tx.send(written).unwrap()),
            });
            for attempt in 0..3 * MAX_REFUSALS {
                // Progress starts the count anew.
                let result = if attempt == MAX_REFUSALS / 2 { 1 } else { -errno };
                match progress.answered(result, 0) {
                    Next::Again(again) => progress = again,
                    Next::Done => {
                        assert_eq!(attempt, MAX_REFUSALS / 2 + 1 + MAX_REFUSALS);
                        break;
                    }
                }
                assert!(rx.try_recv().is_err(), "attempt {attempt} is not the last");
                assert!(attempt < 2 * MAX_REFUSALS, "refused without end");
            }
            let error = rx.try_recv().unwrap().unwrap_err();
            assert_eq!(error.raw_os_error(), Some(errno));
        }
    }

    #[test]
    fn a_callback_that_panics_ends_alone() {
        for kind in [IoEngine::Auto, IoEngine::Threads] {
            let engine = Engine::start(kind).unwrap();
            let file: Arc<OwnedFd> = Arc::new(tempfile::tempfile().unwrap().into());
            let (tx, rx) = channel();
            for offset in 0..4 {
                let (tx, bytes) = (tx.clone(), Box::new([7u8]));
                let iov_base = bytes.as_ptr().cast_mut().cast();
                engine.submit(Transfer {
                    file: file.clone(),
                    write: true,
                    offset,
                    vectors: Vectors::new(vec![libc::iovec { iov_base, iov_len: 1 }]),
                    want: 1,
                    fallback: None,
                    drop_cache: false,
                    done: Box::new(move |written| {
                        let written = (written.unwrap(), bytes);
                        tx.send(written.0).unwrap();
                        assert!(offset % 2 == 1, "as asked");
                    }),
                });
                // One at a time, so that the thread goes on after the panic.
                assert_eq!(rx.recv_timeout(Duration::from_secs(60)), Ok(1), "{}", engine.name());
            }
        }
    }
}
