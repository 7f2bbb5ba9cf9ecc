//! A cache's memory: page frames, their allocation to operations, and when a frame is free again.
//!
//! [`Memory`] combines the parts. Each part has its own file and does not depend on [`Memory`]; the
//! files that implement its methods (`allocator`, `background`, `budget`, `shrinker`, `reclaim/`)
//! use all parts. Memory management calls up through three traits only:
//! [`FrameOwner`](owner::FrameOwner) for a file whose page a frame holds,
//! [`Shrinkable`](metadata::Shrinkable) for a mounted store, and [`Flushers`] for writeback.

pub(crate) mod allocator;
pub(crate) mod arena;
pub(crate) mod background;
pub(crate) mod budget;
pub(crate) mod epoch;
pub(crate) mod frame_bitmap;
pub(crate) mod frame_no;
pub(crate) mod metadata;
pub(crate) mod owner;
pub(crate) mod patience;
pub(crate) mod region;
pub(crate) mod retired;
pub(crate) mod shrinker;
pub(crate) mod waiters;

use crate::memory::arena::Arena;
use crate::memory::epoch::Domain;
use crate::memory::metadata::Metadata;
use crate::memory::owner::Owners;
use crate::memory::retired::RetireList;
use crate::memory::waiters::Waiters;
use crate::reclaim::s3fifo::Queues;
use crate::stats::Counters;
use crate::thread::Signal;
use crate::wait::WaitQueue;
use std::sync::Arc;
use std::time::Instant;
use weir_base::sync::Mutex;
use weir_base::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// What memory management asks of writeback: only clean pages can be reclaimed.
pub(crate) trait Flushers: Send + Sync {
    /// Wakes the flusher of each store.
    fn kick(&self);
}

/// Frames, their metadata, and the operations that wait for frames.
pub(crate) struct Memory {
    pub(crate) arena: Arc<Arena>,
    /// Decides when retired frames can be reused.
    pub(crate) epoch: Domain,
    pub(crate) stats: Counters,
    /// Whether cached reads may take the fast path.
    pub(crate) fast_read: AtomicBool,
    /// Largest read-ahead window, in pages.
    pub(crate) readahead_pages: u64,
    /// Reclaim's queues.
    pub(crate) queues: Mutex<Queues>,
    /// Counts insertions into the queues, as a clock for ages.
    pub(crate) clock: AtomicU32,
    /// The files whose pages the frames hold.
    pub(crate) owners: Owners,
    pub(crate) retired: RetireList,
    pub(crate) waiters: Waiters,
    pub(crate) metadata: Metadata,
    pub(crate) background: Background,
    /// Factor of the limits of uncached operations' waits (`patience.rs`).
    pub(crate) patience_scale: AtomicU32,
    flushers: Arc<dyn Flushers>,
}

/// State of the background reclaimer.
#[derive(Default)]
pub(crate) struct Background {
    pub(crate) signal: Signal,
    /// Cached operations found too few free frames.
    short: AtomicBool,
    /// The reclaimer is in a pass.
    reclaiming: AtomicBool,
    /// The last handle of the cache is gone.
    pub(crate) stop: AtomicBool,
    /// Number of changes of the budget.
    budgets_set: AtomicU64,
    /// How many of them there had been when the cache began the work that reached the last one.
    budgets_reached: AtomicU64,
    /// Notified when a new budget is reached.
    pub(crate) resized: WaitQueue,
}

impl Background {
    /// Whether a new budget has not been reached yet.
    pub(crate) fn is_resizing(&self) -> bool {
        let reached = self.budgets_reached.load(Ordering::SeqCst);
        reached != self.budgets_set.load(Ordering::SeqCst)
    }
}

impl Memory {
    /// Memory with address space for `reserved` frames, of which `frames` may be used.
    pub(crate) fn new(
        frames: u32,
        reserved: u32,
        readahead_pages: u64,
        flushers: Arc<dyn Flushers>,
    ) -> std::io::Result<Self> {
        Ok(Self {
            arena: Arc::new(Arena::new(frames, reserved)?),
            epoch: Domain::new(),
            stats: Counters::default(),
            fast_read: AtomicBool::new(true),
            readahead_pages,
            queues: Mutex::new(Queues::new(frames, reserved)),
            clock: AtomicU32::new(0),
            owners: Owners::default(),
            retired: RetireList::default(),
            waiters: Waiters::default(),
            metadata: Metadata::default(),
            background: Background::default(),
            patience_scale: AtomicU32::new(1),
            flushers,
        })
    }

    /// Wakes the flusher of each store.
    pub(crate) fn kick_flushers(&self) {
        self.flushers.kick();
    }

    /// Monotonic time.
    pub(crate) fn now(&self) -> Instant {
        Instant::now()
    }
}
