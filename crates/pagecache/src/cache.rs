//! The cache: one budget, its switches, its threads, and memory for what is known of files.
//!
//! 1. The arena is the budget (I7); `memory/allocator.rs` says who gets frames of it.
//! 2. At most a part of the arena is dirty, so there is always something that reads can turn
//!    over. Writeback and fills in flight need no more memory to finish.
//! 3. Reclaim has a thread, which ends with the last handle. Each store has its own threads, which
//!    end when it is not mounted any more and nothing of it is dirty (`writeback/lane.rs`).

use crate::fs::{CachedFs, FsShared};
use crate::mapping::Mapping;
use crate::mapping::closed_file::ClosedFile;
use crate::memory::allocator::Supply;
use crate::memory::arena::Arena;
use crate::memory::budget::frames_of;
use crate::memory::epoch::Domain;
use crate::memory::shrinker::Room;
use crate::reclaim::s3fifo::Queues;
use crate::stats::{Counters, Stats};
use crate::wait::WaitQueue;
use crate::writeback::lane::{Lane, Visit};
use crate::writeback::throttle::Dirty;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use std::task::Poll;
use std::time::{Duration, Instant};
use weir_base::PAGE_SIZE;
use weir_base::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use weir_base::sync::{Condvar, Mutex, RwLock};
use weir_vfs::{FileSystem, OpenFile, Result};

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
    shared: Arc<Shared>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.reclaimer.kick();
    }
}

impl Cache {
    /// Makes a cache and starts its thread; each store has up to two more, while they have work.
    ///
    /// # Errors
    /// The memory cannot be mapped, or the thread cannot be started.
    pub fn new(config: Config) -> std::io::Result<Self> {
        let shared = Shared::new(&config)?;
        let reclaimer = shared.clone();
        try_spawn_thread("weir-reclaim", move || {
            survive("weir-reclaim", || reclaimer.reclaim_loop());
        })?;
        Ok(Self { handle: Arc::new(Handle { shared }) })
    }

    /// Whether this is the same cache as `other`.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.handle.shared, &other.handle.shared)
    }

    /// A cache whose threads are the model's.
    #[cfg(all(test, shuttle))]
    pub(crate) fn without_threads(shared: Arc<Shared>) -> Self {
        Self { handle: Arc::new(Handle { shared }) }
    }

    /// Puts a store under this cache.
    pub fn mount(&self, store: Arc<dyn FileSystem>) -> CachedFs {
        CachedFs::new(self.clone(), store)
    }

    /// Counters since the cache was made.
    pub fn stats(&self) -> Stats {
        self.shared().stats.sum()
    }

    /// Memory for pages that is in use, in flight, pinned or about to be freed, in bytes.
    pub fn used_bytes(&self) -> u64 {
        u64::from(self.shared().arena.used_frames()) * PAGE_SIZE as u64
    }

    /// Bytes of pages that are not yet in their stores.
    pub fn dirty_bytes(&self) -> u64 {
        self.shared().dirty.pages() * PAGE_SIZE as u64
    }

    /// Memory for what is known of files besides their pages, in bytes: at most a quarter of the
    /// budget, or 1 MiB, besides what open files cost, less than 1 KiB each.
    pub fn index_bytes(&self) -> u64 {
        self.shared().room.bytes() as u64
    }

    /// Switches the fast path of cached reads on or off.
    pub fn set_fast_read(&self, on: bool) {
        self.shared().fast_read.store(on, Ordering::Relaxed);
    }

    /// Writes back every dirty page of every file and waits.
    ///
    /// # Errors
    /// An error of a write that failed for good during this call; the data concerned is lost.
    pub async fn flush(&self) -> Result<()> {
        // Each store by itself, so that one that hangs does not keep others' data from being written.
        let flush = |files: Vec<Arc<Mapping>>| async move {
            let mut result = Ok(());
            for mapping in files {
                result = result.and(mapping.write_back(0..u64::MAX).await);
            }
            result
        };
        let mut running: Vec<_> = self
            .shared()
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

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.handle.shared
    }
}

/// Starts a thread of the cache.
pub(crate) fn try_spawn_thread(
    name: &str,
    f: impl FnOnce() + Send + 'static,
) -> std::io::Result<()> {
    std::thread::Builder::new().name(name.into()).spawn(f).map(drop)
}

/// Runs a thread's loop to its end, again after a panic: a cache with a flusher or reclaim that has ended
/// takes no more writes, and says nothing.
pub(crate) fn survive(name: &str, run: impl Fn()) {
    while catch_unwind(AssertUnwindSafe(&run)).is_err() {
        tracing::error!("thread {name} of the page cache panicked, and goes on; this is a bug");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// What wakes a thread of the cache.
#[derive(Default)]
pub(crate) struct Signal {
    kicked: Mutex<bool>,
    wake: Condvar,
}

impl Signal {
    /// Wakes the thread, or keeps it from falling asleep.
    pub(crate) fn kick(&self) {
        let mut kicked = self.kicked.lock();
        if !*kicked {
            *kicked = true;
            self.wake.notify_one();
        }
    }

    /// Sleeps until kicked, at most this long.
    pub(crate) fn sleep(&self, at_most: Duration) {
        let mut kicked = self.kicked.lock();
        if !*kicked {
            let _ = self.wake.wait_for(&mut kicked, at_most);
        }
        *kicked = false;
    }
}

/// All that the parts of a cache share.
pub(crate) struct Shared {
    pub(crate) arena: Arc<Arena>,
    /// When what was let go of can be used again.
    pub(crate) epoch: Domain,
    pub(crate) stats: Counters,
    pub(crate) queues: Mutex<Queues>,
    /// Insertions so far, for ages.
    pub(crate) clock: AtomicU32,
    pub(crate) fast_read: AtomicBool,
    pub(crate) readahead_pages: u64,
    pub(crate) write_patience: Duration,
    pub(crate) supply: Supply,
    /// Something was freed, or can now be.
    pub(crate) freed: WaitQueue,
    /// How many wait for memory.
    pub(crate) waiting: AtomicUsize,
    /// Pages that uncached writes have in flight to a store.
    pub(crate) uncached_io: AtomicUsize,
    /// Pages dirty or under writeback.
    pub(crate) dirty: Dirty,
    /// Writeback has made progress, or has failed.
    pub(crate) cleaned: WaitQueue,
    pub(crate) reclaimer: Signal,
    mappings: RwLock<Registry>,
    /// The stores above this cache.
    pub(crate) stores: Mutex<Vec<Weak<FsShared>>>,
    /// Their lanes, and those of stores that are not mounted any more and have dirty files.
    pub(crate) lanes: RwLock<Vec<Weak<Lane>>>,
    /// What an idle mapping has for its store's file.
    pub(crate) closed: Arc<dyn OpenFile>,
    /// Memory of mappings and their indexes.
    pub(crate) room: Room,
    ticks: AtomicU64,
    pub(crate) stop: AtomicBool,
    /// A change of the budget is on its way.
    pub(crate) resizing: AtomicBool,
    /// It is not any more.
    pub(crate) resized: WaitQueue,
}

/// Mappings by number, so that a frame can name its own in four bytes.
#[derive(Default)]
struct Registry {
    mappings: Vec<Weak<Mapping>>,
    vacant: Vec<u32>,
}

impl Shared {
    pub(crate) fn new(config: &Config) -> std::io::Result<Arc<Self>> {
        let frames = frames_of(config.budget_bytes);
        let reserved = frames_of(config.max_budget_bytes).max(frames);
        let arena = Arc::new(Arena::new(frames, reserved)?);
        Ok(Arc::new(Self {
            epoch: Domain::new(),
            stats: Counters::default(),
            queues: Mutex::new(Queues::new(frames, reserved)),
            clock: AtomicU32::new(0),
            fast_read: AtomicBool::new(config.fast_read),
            write_patience: config.write_patience,
            readahead_pages: config.readahead_bytes / PAGE_SIZE as u64,
            supply: Supply::default(),
            freed: WaitQueue::default(),
            waiting: AtomicUsize::new(0),
            uncached_io: AtomicUsize::new(0),
            dirty: Dirty::default(),
            cleaned: WaitQueue::default(),
            reclaimer: Signal::default(),
            mappings: RwLock::default(),
            stores: Mutex::default(),
            lanes: RwLock::default(),
            closed: Arc::new(ClosedFile),
            room: Room::default(),
            ticks: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            resizing: AtomicBool::new(false),
            resized: WaitQueue::default(),
            arena,
        }))
    }

    /// The next moment, for the order in which files were closed.
    pub(crate) fn tick(&self) -> u64 {
        self.ticks.fetch_add(1, Ordering::Relaxed)
    }

    /// The stores above this cache that are in use.
    pub(crate) fn stores(&self) -> Vec<Arc<FsShared>> {
        let mut used = Vec::new();
        self.stores.lock().retain(|store| {
            used.extend(store.upgrade());
            store.strong_count() > 0
        });
        used
    }

    /// Gives a mapping its number.
    pub(crate) fn register(&self, mapping: Weak<Mapping>) -> u32 {
        let mut registry = self.mappings.write();
        if let Some(number) = registry.vacant.pop() {
            registry.mappings[number as usize] = mapping;
            return number;
        }
        registry.mappings.push(mapping);
        registry.mappings.len() as u32 - 1
    }

    /// Takes a mapping's number back.
    pub(crate) fn unregister(&self, number: u32) {
        let mut registry = self.mappings.write();
        registry.mappings[number as usize] = Weak::new();
        registry.vacant.push(number);
    }

    /// Numbers of mappings are below this.
    pub(crate) fn mappings_made(&self) -> u32 {
        self.mappings.read().mappings.len() as u32
    }

    /// The mapping of this number, unless it is being dropped.
    pub(crate) fn mapping(&self, number: u32) -> Option<Visit> {
        self.mappings.read().mappings.get(number as usize)?.upgrade().map(Visit::new)
    }

    /// Monotonic time.
    pub(crate) fn now(&self) -> Instant {
        Instant::now()
    }
}
