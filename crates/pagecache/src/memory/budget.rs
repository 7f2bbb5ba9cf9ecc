//! The budget, which can be changed at run time.
//!
//! 1. A lower budget holds for new work at once: no frame is handed out until fewer are used than it
//!    allows (I7). Clean pages are reclaimed, dirty ones written first, and pinned ones waited for;
//!    nothing is lost.
//! 2. Then pages that lie in frames above the budget are moved below it, as a write moves a page,
//!    and the memory of all frames above it is given back to the system.
//! 3. A higher budget holds at once, up to the address space reserved at start.

use crate::cache::{Cache, Shared};
use crate::mapping::Mapping;
use crate::memory::arena::flag;
use std::sync::Arc;
use weir_base::PAGE_SIZE;
use weir_base::sync::atomic::Ordering;

/// Amounts that follow from the budget, in pages.
pub(crate) struct Limits {
    /// Dirty pages at which writeback begins in the background.
    pub(crate) dirty_background: u64,
    /// Dirty pages at which writers wait.
    pub(crate) dirty_hard: u64,
    /// Free frames below which reclaim begins in the background.
    pub(crate) free_low: u32,
    /// Free frames at which it stops.
    pub(crate) free_high: u32,
    /// Frames that one step of an operation asks for at most.
    pub(crate) step: usize,
    /// Free frames that are there for uncached operations: a step of a write at least, whose pages
    /// are all taken before the first is dropped.
    pub(crate) reserve: usize,
    /// Frames that a part of a long uncached operation uses at most: half of the reserve, so that
    /// two get on side by side.
    pub(crate) piece: usize,
    /// Memory for mappings and their indexes, in bytes.
    pub(crate) index_bytes: usize,
    /// Uses that follow the insertion by less than this many insertions do not count.
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

/// Frames of a budget in bytes.
pub(crate) fn frames_of(bytes: u64) -> u32 {
    (bytes / PAGE_SIZE as u64).clamp(16, u64::from(u32::MAX) / 2) as u32
}

impl Cache {
    /// Hard limit on memory for pages, in bytes.
    pub fn budget_bytes(&self) -> u64 {
        u64::from(self.shared().arena.frames()) * PAGE_SIZE as u64
    }

    /// The largest budget that can be set, in bytes.
    pub fn max_budget_bytes(&self) -> u64 {
        u64::from(self.shared().arena.reserved()) * PAGE_SIZE as u64
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
        let shared = self.shared();
        if frames_of(bytes) > shared.arena.reserved() {
            let max = self.max_budget_bytes();
            return Err(std::io::Error::new(
                std::io::ErrorKind::InvalidInput,
                format!(
                    "a budget of {bytes} bytes is more than the {max} that were reserved at start; \
                     raise Config::max_budget_bytes"
                ),
            ));
        }
        shared.arena.set_limit(frames_of(bytes));
        shared.queues.lock().resize(frames_of(bytes));
        shared.resizing.store(true, Ordering::SeqCst);
        shared.notify_waiting();
        shared.cleaned.notify();
        shared.kick_flushers();
        shared.reclaimer.kick();
        Ok(())
    }

    /// Waits until no more memory is used than the budget allows, and all that was given back.
    pub async fn budget_reached(&self) {
        let shared = self.shared();
        loop {
            let ticket = shared.resized.ticket();
            if !shared.resizing.load(Ordering::SeqCst) {
                return;
            }
            shared.resized.wait(ticket).await;
        }
    }
}

/// Pages moved under one hold of their file's lock.
const MOVE: usize = 64;

impl Shared {
    /// Amounts that follow from the budget.
    #[inline]
    pub(crate) fn limits(&self) -> Limits {
        let frames = self.arena.frames();
        let mut limits = Limits::new(frames);
        // What is read ahead is first used late, and that is no second use.
        let ahead = self.readahead_pages.min(u64::from(frames / 8)) as u32;
        limits.correlated = limits.correlated.max(2 * ahead);
        limits
    }

    /// Goes on with a change of the budget, after reclaim; to be called again as long as it is not
    /// reached.
    pub(crate) fn resize(&self) {
        if self.arena.used_frames() > self.arena.frames() {
            return;
        }
        // Whoever sets another one after this is seen by the next call.
        self.resizing.store(false, Ordering::SeqCst);
        let above = self.arena.release_above();
        if above.is_empty() && self.arena.used_frames() <= self.arena.frames() {
            self.resized.notify();
            return;
        }
        self.resizing.store(true, Ordering::SeqCst);
        let number = |frame: &u32| self.arena.meta(*frame).mapping.load(Ordering::Relaxed);
        for group in above.chunk_by(|a, b| number(a) == number(b)) {
            if let Some(mapping) = self.mapping(number(&group[0])) {
                group.chunks(MOVE).for_each(|frames| mapping.move_pages(frames));
            }
        }
        self.collect();
    }
}

impl Mapping {
    /// Moves pages from these frames, as far as they are this file's and nobody holds them, to
    /// lower ones.
    fn move_pages(self: &Arc<Self>, from: &[u32]) {
        let arena = &self.shared.arena;
        let Some(mut to) = arena.take(from.len(), 1) else { return };
        let mut state = self.state.lock();
        let mut edit = self.edit();
        for (index, &old) in from.iter().take(to.len()).enumerate() {
            let meta = arena.meta(old);
            let page = meta.page.load(Ordering::Relaxed);
            // Under writeback it is pinned, too.
            if edit.frame_at(page) != Some(old) || arena.is_pinned(old) {
                continue;
            }
            // SAFETY: in its slot while we hold the lock, which who fills in past the mark holds,
            // too.
            to.write(index, 0, unsafe { arena.bytes(old, 0, PAGE_SIZE) });
            let flags = meta.flags() & (flag::DIRTY | flag::UNCACHED | flag::READAHEAD);
            let new = to.publish(index, flags, meta.mark());
            edit.put(page, new);
        }
        edit.finish(&mut state);
    }
}
