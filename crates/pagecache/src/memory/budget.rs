//! The budget, which can change at run time.
//!
//! 1. A lower budget applies to new work at once: no frame is handed out until usage is below it
//!    (I7). Clean pages are reclaimed, dirty ones written first, and pinned ones waited for;
//!    nothing is lost.
//! 2. Then the cache moves pages from frames above the budget to lower ones, as a write moves a
//!    page, and returns the memory of all frames above it to the system.
//! 3. A higher budget applies at once, up to the address space reserved at start.

use crate::memory::Memory;
use crate::memory::frame_no::FrameNo;
use weir_base::PAGE_SIZE;
use weir_base::sync::atomic::Ordering;

/// Limits derived from the budget, in pages.
pub(crate) struct Limits {
    /// Dirty pages at which writeback begins in the background.
    pub(crate) dirty_background: u64,
    /// Dirty pages at which writers wait.
    pub(crate) dirty_hard: u64,
    /// Free frames below which reclaim begins in the background.
    pub(crate) free_low: u32,
    /// Free frames at which background reclaim stops.
    pub(crate) free_high: u32,
    /// Most frames that one step of an operation asks for.
    pub(crate) step: usize,
    /// Free frames reserved for uncached operations: at least one step of a write, whose pages are
    /// all allocated before the first is dropped.
    pub(crate) reserve: usize,
    /// Most frames that a piece of a long uncached operation uses: half of the reserve, so that two
    /// operations run in parallel.
    pub(crate) piece: usize,
    /// Memory for mappings and their indexes, in bytes.
    pub(crate) index_bytes: usize,
    /// A page's uses within this many insertions after its own do not count.
    pub(crate) correlated: u32,
}

/// Most pages that one step of an operation handles: 1 MiB, and one for an unaligned start.
pub(crate) const STEP_PAGES: usize = 257;

impl Limits {
    #[inline]
    pub(crate) fn new(frames: u32) -> Self {
        let pages = u64::from(frames);
        let step = (frames as usize / 8).clamp(1, STEP_PAGES);
        let reserve = (frames as usize / 32).min(8192).max(step);
        let free_low = reserve as u32;
        Self {
            dirty_background: pages / 10,
            dirty_hard: (pages * 4 / 10).max(1),
            free_low,
            free_high: (frames / 16).min(16384).max(free_low + free_low / 2),
            step,
            reserve,
            index_bytes: (frames as usize / 4 * PAGE_SIZE).max(1 << 20),
            piece: reserve.div_ceil(2),
            correlated: (frames / 20).max(1),
        }
    }
}

/// Frames of a budget in bytes: 64 KiB to 8 TiB.
pub(crate) fn frames_of(bytes: u64) -> u32 {
    (bytes / PAGE_SIZE as u64).clamp(16, u64::from(u32::MAX) / 2) as u32
}

/// Pages moved under one hold of their file's lock.
const MOVE: usize = 64;

impl Memory {
    /// Limits derived from the budget.
    #[inline]
    pub(crate) fn limits(&self) -> Limits {
        let frames = self.arena.frames();
        let mut limits = Limits::new(frames);
        // The first use of a page comes late after read-ahead, and does not count as a second one.
        let ahead = self.readahead_pages.min(u64::from(frames / 8)) as u32;
        limits.correlated = limits.correlated.max(2 * ahead);
        limits
    }

    /// Sets the budget; [`resize`](Self::resize) carries the change out.
    pub(crate) fn set_budget(&self, frames: u32) {
        self.arena.set_limit(frames);
        self.queues.lock().resize(frames);
        // Counted last: what reaches a budget begins with its count, and so with its limit.
        self.background.budgets_set.fetch_add(1, Ordering::SeqCst);
    }

    /// Continues a change of the budget, after reclaim; to be called, by one thread at a time, until the
    /// budget is reached.
    pub(crate) fn resize(&self) {
        // A budget that is set after this is reached by a later call.
        let set = self.background.budgets_set.load(Ordering::SeqCst);
        if self.arena.used_frames() > self.arena.frames() {
            return;
        }
        let above = self.arena.release_above();
        if above.is_empty() && self.arena.used_frames() <= self.arena.frames() {
            self.background.budgets_reached.store(set, Ordering::SeqCst);
            self.background.resized.notify();
            return;
        }
        let number = |frame: &FrameNo| self.arena.meta(*frame).mapping.load(Ordering::Relaxed);
        for group in above.chunk_by(|a, b| number(a) == number(b)) {
            if let Some(owner) = self.owners.get(number(&group[0])) {
                group.chunks(MOVE).for_each(|frames| owner.move_pages(frames));
            }
        }
        self.collect();
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use crate::testing::{Rig, poll_once};
    use std::pin::pin;
    use std::thread::yield_now;

    #[test]
    fn a_budget_is_reached_only_when_its_memory_is_returned() {
        let rig = Rig::without_threads();
        let cache = rig.fs.cache();
        let memory = cache.memory();
        let is_reached = || poll_once(pin!(cache.budget_reached())).is_ready();
        assert!(is_reached(), "the first one");
        cache.set_budget(1 << 20).unwrap();
        assert!(!is_reached());
        // As if the system took long to take the memory.
        let held = memory.arena.hold_limit();
        std::thread::scope(|scope| {
            let resize = scope.spawn(|| memory.resize());
            for _ in 0..1000 {
                assert!(!is_reached(), "it still has its memory");
                yield_now();
            }
            drop(held);
            resize.join().unwrap();
        });
        assert!(is_reached());
        // One that is set meanwhile is another one.
        cache.set_budget(1 << 19).unwrap();
        assert!(!is_reached());
        memory.resize();
        assert!(is_reached());
    }
}
