//! The cache: a budget, its settings, and its threads.
//!
//! 1. The arena is the budget (I7); `memory/allocator.rs` decides which operation gets its frames.
//! 2. Only a part of the arena may be dirty, so reads always find pages to replace. Writeback and
//!    fills in flight finish without further memory.
//! 3. Reclaim has one thread, which ends with the last handle. Each store has its own threads,
//!    which end once the store is unmounted and has no dirty data (`writeback/lane.rs`).

use crate::memory::Memory;
use crate::memory::background::Reclaimer;
use crate::memory::budget::frames_of;
use crate::stats::Stats;
use crate::thread::{self, Background};
use crate::writeback::flusher::flush_files;
use crate::writeback::throttle::Writeback;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use weir_base::PAGE_SIZE;
use weir_base::sync::Mutex;
use weir_base::sync::atomic::Ordering;
use weir_vfs::Result;

/// Settings of a new cache.
#[derive(Clone, Debug)]
pub struct Config {
    /// Hard limit on page frames in use, in flight and pinned, in bytes; raised to 64 KiB if lower, and
    /// lowered to 8 TiB if higher.
    pub budget_bytes: u64,
    /// Largest budget that [`Cache::set_budget`] can set later, in bytes; raised to `budget_bytes`
    /// if lower, and lowered to 8 TiB if higher. The cache reserves address space for it, and uses memory only for
    /// a bit for each page: 32 MiB for 1 TiB.
    pub max_budget_bytes: u64,
    /// Whether cached reads may take the fast path; [`Cache::set_fast_read`] changes it.
    pub fast_read: bool,
    /// Largest read-ahead window in bytes; 0 turns read-ahead off.
    pub readahead_bytes: u64,
    /// How long the cache retries a failed write to a store if the error may be transient (EIO, for
    /// one), all writes of a file together if none succeeds meanwhile. After that, and at once after
    /// a permanent error (no space, file too large, ...), it drops the pages and reports the error to
    /// every open file of the file.
    pub write_patience: Duration,
    /// Who runs the background work.
    pub background: Background,
}

impl Default for Config {
    /// A budget of 256 MiB, fast reads on, read-ahead of up to 4 MiB, failed writes retried for 3
    /// s.
    fn default() -> Self {
        Self {
            budget_bytes: 256 << 20,
            max_budget_bytes: 0,
            fast_read: true,
            readahead_bytes: 4 << 20,
            write_patience: Duration::from_secs(3),
            background: Background::Threads,
        }
    }
}

/// One page cache with one budget; cheap to clone.
#[derive(Clone)]
pub struct Cache {
    handle: Arc<Handle>,
}

/// Stops reclaim when the last [`Cache`], [`CachedFs`] and [`File`](crate::File) is dropped.
struct Handle {
    memory: Arc<Memory>,
    writeback: Arc<Writeback>,
    /// With [`Background::Rounds`].
    reclaimer: Mutex<Option<Reclaimer>>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        let background = &self.memory.background;
        background.stop.store(true, Ordering::SeqCst);
        background.signal.kick();
    }
}

impl Cache {
    /// Creates a cache and starts its thread; each store has up to two more while it has work.
    ///
    /// # Errors
    /// The memory cannot be mapped, or the thread cannot be started.
    pub fn new(config: Config) -> std::io::Result<Self> {
        let cache = Self::without_reclaimer(&config)?;
        if config.background == Background::Rounds {
            return Ok(cache);
        }
        let (memory, writeback) = (cache.memory().clone(), cache.writeback().clone());
        thread::try_spawn("weir-reclaim", move || {
            thread::restart_on_panic("weir-reclaim", || {
                memory.reclaim_loop(|| writeback.pages() == 0);
            });
        })?;
        Ok(cache)
    }

    /// One round of the background work of a cache with [`Background::Rounds`]: each store's flusher
    /// and tasks, then reclaim. To be called every few milliseconds; a round waits for no store.
    pub fn background_round(&self) {
        let memory = self.memory();
        for lane in self.writeback().lanes() {
            lane.round(memory);
        }
        let mut reclaimer = self.handle.reclaimer.lock();
        reclaimer.get_or_insert_with(|| Reclaimer::new(memory)).round(memory);
    }

    /// A cache without its reclaim thread.
    pub(crate) fn without_reclaimer(config: &Config) -> std::io::Result<Self> {
        let frames = frames_of(config.budget_bytes);
        let reserved = frames_of(config.max_budget_bytes).max(frames);
        let writeback = Arc::new(Writeback::new(config.write_patience, config.background));
        let readahead_pages = config.readahead_bytes / PAGE_SIZE as u64;
        let memory = Memory::new(frames, reserved, readahead_pages, writeback.clone())?;
        memory.fast_read.store(config.fast_read, Ordering::Relaxed);
        let memory = Arc::new(memory);
        Ok(Self { handle: Arc::new(Handle { memory, writeback, reclaimer: Mutex::default() }) })
    }

    /// Whether this is the same cache as `other`.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.handle, &other.handle)
    }

    /// Counters since the cache was made.
    pub fn stats(&self) -> Stats {
        self.memory().stats.sum()
    }

    /// Memory of pages in use, in flight, pinned or waiting to be freed, in bytes.
    pub fn used_bytes(&self) -> u64 {
        u64::from(self.memory().arena.used_frames()) * PAGE_SIZE as u64
    }

    /// Bytes of dirty pages.
    pub fn dirty_bytes(&self) -> u64 {
        self.writeback().pages() * PAGE_SIZE as u64
    }

    /// Memory for metadata of files, in bytes: at most a quarter of the budget or 1 MiB, whichever
    /// is more, plus less than 1 KiB for each open file.
    pub fn index_bytes(&self) -> u64 {
        self.memory().metadata.bytes() as u64
    }

    /// Switches the fast path of cached reads on or off.
    pub fn set_fast_read(&self, on: bool) {
        self.memory().fast_read.store(on, Ordering::Relaxed);
    }

    /// For tests: multiplies how long an uncached operation waits for others of its kind before it
    /// takes pages of cached operations.
    #[doc(hidden)]
    pub fn scale_patience(&self, factor: u32) {
        self.memory().patience_scale.store(factor, Ordering::Relaxed);
    }

    /// Writes back every dirty page of every file, and waits until the stores have them.
    ///
    /// # Errors
    /// The error of a write that failed permanently during this call; its data is lost.
    pub async fn flush(&self) -> Result<()> {
        // One task for each store, so that a store that hangs does not delay writeback to the
        // others.
        let mut running: Vec<_> = self
            .writeback()
            .lanes()
            .iter()
            .map(|lane| Box::pin(flush_files(lane.files.lock().all())))
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

    /// Changes the budget, in bytes; raised to 64 KiB if lower, and lowered to 8 TiB if higher. Returns at once.
    ///
    /// After a reduction, [`used_bytes`](Self::used_bytes) may exceed the budget for a while: new
    /// work waits, the cache drops clean pages, writes dirty ones back and waits for lent ones.
    /// Then it returns the memory to the system; see [`budget_reached`](Self::budget_reached).
    ///
    /// # Errors `bytes` is more than [`max_budget_bytes`](Self::max_budget_bytes).
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
        memory.set_budget(frames_of(bytes));
        memory.waiters.notify();
        self.writeback().cleaned.notify();
        memory.kick_flushers();
        memory.background.signal.kick();
        Ok(())
    }

    /// Waits until used memory is within the budget and the excess was returned to the system.
    pub async fn budget_reached(&self) {
        let memory = self.memory();
        loop {
            let ticket = memory.background.resized.ticket();
            if !memory.background.is_resizing() {
                return;
            }
            memory.background.resized.wait(ticket).await;
        }
    }
}
