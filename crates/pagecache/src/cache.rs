//! The cache: one budget, its switches and its threads.
//!
//! 1. The arena is the budget (I7); `memory/allocator.rs` says which operation gets frames of it.
//! 2. At most a part of the arena is dirty, so that reads always find pages to replace. Writeback
//!    and fills in flight need no more memory to finish.
//! 3. Reclaim has a thread, which ends with the last handle. Each store has its own threads, which
//!    end when it is not mounted any more and nothing of it is dirty (`writeback/lane.rs`).

use crate::memory::Memory;
use crate::memory::budget::frames_of;
use crate::stats::Stats;
use crate::thread;
use crate::writeback::flusher::DirtyFile;
use crate::writeback::throttle::Writeback;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use weir_base::PAGE_SIZE;
use weir_base::sync::atomic::Ordering;
use weir_vfs::Result;

/// How a cache is set up.
#[derive(Clone, Debug)]
pub struct Config {
    /// Hard limit on page frames in use, in flight and pinned, in bytes; at least 64 KiB is taken.
    pub budget_bytes: u64,
    /// Largest budget that [`Cache::set_budget`] can set later, in bytes. It is reserved as address
    /// space only; 0, or less than `budget_bytes`: as much as that.
    pub max_budget_bytes: u64,
    /// Whether cached reads may take the fast path (a run-time switch, too).
    pub fast_read: bool,
    /// Largest read-ahead window in bytes; 0 turns read-ahead off.
    pub readahead_bytes: u64,
    /// How long a write to a store that fails is tried again, where the error may pass (an I/O
    /// error, for one). Then its pages are dropped, as they are at once after an error that will not
    /// pass (no space, file too large, ...), and every open file of the file is told.
    pub write_patience: Duration,
}

impl Default for Config {
    /// A budget of 256 MiB, fast reads on, read-ahead of up to 4 MiB, failing writes tried for 3 s.
    fn default() -> Self {
        Self {
            budget_bytes: 256 << 20,
            max_budget_bytes: 0,
            fast_read: true,
            readahead_bytes: 4 << 20,
            write_patience: Duration::from_secs(3),
        }
    }
}

/// One page cache with one budget; cheap to clone.
#[derive(Clone)]
pub struct Cache {
    handle: Arc<Handle>,
}

/// Ends reclaim when the last [`Cache`], [`CachedFs`] and [`File`](crate::File) is gone.
struct Handle {
    memory: Arc<Memory>,
    writeback: Arc<Writeback>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        let background = &self.memory.background;
        background.stop.store(true, Ordering::SeqCst);
        background.signal.kick();
    }
}

impl Cache {
    /// Makes a cache and starts its thread; each store has up to two more, while they have work.
    ///
    /// # Errors
    /// The memory cannot be mapped, or the thread cannot be started.
    pub fn new(config: Config) -> std::io::Result<Self> {
        let cache = Self::without_threads(&config)?;
        let (memory, writeback) = (cache.memory().clone(), cache.writeback().clone());
        thread::try_spawn("weir-reclaim", move || {
            thread::restart_on_panic("weir-reclaim", || {
                memory.reclaim_loop(|| writeback.pages() == 0);
            });
        })?;
        Ok(cache)
    }

    /// A cache without its reclaimer's thread.
    pub(crate) fn without_threads(config: &Config) -> std::io::Result<Self> {
        let frames = frames_of(config.budget_bytes);
        let reserved = frames_of(config.max_budget_bytes).max(frames);
        let writeback = Arc::new(Writeback::new(config.write_patience));
        let readahead_pages = config.readahead_bytes / PAGE_SIZE as u64;
        let memory = Memory::new(frames, reserved, readahead_pages, writeback.clone())?;
        memory.fast_read.store(config.fast_read, Ordering::Relaxed);
        Ok(Self { handle: Arc::new(Handle { memory: Arc::new(memory), writeback }) })
    }

    /// Whether this is the same cache as `other`.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.handle, &other.handle)
    }

    /// Counters since the cache was made.
    pub fn stats(&self) -> Stats {
        self.memory().stats.sum()
    }

    /// Memory for pages that is in use, in flight, pinned or about to be freed, in bytes.
    pub fn used_bytes(&self) -> u64 {
        u64::from(self.memory().arena.used_frames()) * PAGE_SIZE as u64
    }

    /// Bytes of pages that are not yet in their stores.
    pub fn dirty_bytes(&self) -> u64 {
        self.writeback().pages() * PAGE_SIZE as u64
    }

    /// Memory for what is known of files besides their pages, in bytes: at most a quarter of the
    /// budget, or 1 MiB, besides what open files cost, less than 1 KiB each.
    pub fn index_bytes(&self) -> u64 {
        self.memory().metadata.bytes() as u64
    }

    /// Switches the fast path of cached reads on or off.
    pub fn set_fast_read(&self, on: bool) {
        self.memory().fast_read.store(on, Ordering::Relaxed);
    }

    /// Writes back every dirty page of every file and waits.
    ///
    /// # Errors
    /// An error of a write that failed for good during this call; the data concerned is lost.
    pub async fn flush(&self) -> Result<()> {
        // Each store by itself, so that one that hangs does not keep others' data from being written.
        let flush = |files: Vec<Arc<dyn DirtyFile>>| async move {
            let mut result = Ok(());
            for file in files {
                result = result.and(file.write_all_back().await);
            }
            result
        };
        let mut running: Vec<_> = self
            .writeback()
            .lanes()
            .iter()
            .map(|lane| Box::pin(flush(lane.files.lock().all())))
            .collect();
        let mut result = Ok(());
        std::future::poll_fn(move |cx| {
            running.retain_mut(|store| match store.as_mut().poll(cx) {
                Poll::Ready(flushed) => {
                    result = result.and(flushed);
                    false
                }
                Poll::Pending => true,
            });
            if running.is_empty() { Poll::Ready(result) } else { Poll::Pending }
        })
        .await
    }

    pub(crate) fn memory(&self) -> &Arc<Memory> {
        &self.handle.memory
    }

    pub(crate) fn writeback(&self) -> &Arc<Writeback> {
        &self.handle.writeback
    }
}

impl Cache {
    /// Hard limit on memory for pages, in bytes.
    pub fn budget_bytes(&self) -> u64 {
        u64::from(self.memory().arena.frames()) * PAGE_SIZE as u64
    }

    /// The largest budget that can be set, in bytes.
    pub fn max_budget_bytes(&self) -> u64 {
        u64::from(self.memory().arena.reserved()) * PAGE_SIZE as u64
    }

    /// Changes the budget, in bytes; at least 64 KiB is taken. Returns at once.
    ///
    /// With a lower one, [`used_bytes`](Self::used_bytes) may be above it for a while: new work
    /// waits, clean pages go, dirty ones are written first, lent ones are waited for. Then the
    /// memory is given back to the system; see [`budget_reached`](Self::budget_reached).
    ///
    /// # Errors
    /// It is more than [`max_budget_bytes`](Self::max_budget_bytes).
    pub fn set_budget(&self, bytes: u64) -> std::io::Result<()> {
        let memory = self.memory();
        if frames_of(bytes) > memory.arena.reserved() {
            let max = self.max_budget_bytes();
            return Err(std::io::Error::new(
                std::io::ErrorKind::InvalidInput,
                format!(
                    "a budget of {bytes} bytes is more than the {max} that were reserved at start; \
                     raise Config::max_budget_bytes"
                ),
            ));
        }
        memory.arena.set_limit(frames_of(bytes));
        memory.queues.lock().resize(frames_of(bytes));
        memory.background.resizing.store(true, Ordering::SeqCst);
        memory.waiters.notify();
        self.writeback().cleaned.notify();
        memory.kick_flushers();
        memory.background.signal.kick();
        Ok(())
    }

    /// Waits until no more memory is used than the budget allows, and all that was given back.
    pub async fn budget_reached(&self) {
        let memory = self.memory();
        loop {
            let ticket = memory.background.resized.ticket();
            if !memory.background.resizing.load(Ordering::SeqCst) {
                return;
            }
            memory.background.resized.wait(ticket).await;
        }
    }
}
