//! The frame allocator: gives frames to operations, and takes them back.
//!
//! 1. An operation that needs frames takes free ones; else it frees frames whose epoch has passed;
//!    else it reclaims clean pages; else it waits in the queue (`waiters.rs`). No operation waits
//!    for memory while it holds frames, or a lock that is needed to free some.
//! 2. An operation that lacks no more frames than wait for their epoch waits for that epoch: any
//!    page that it reclaimed instead would have to wait for the same epoch.
//! 3. Uncached operations use the reserve, which the background reclaimer keeps free of cached
//!    pages. One that finds it used up waits for other uncached operations, and takes pages of cached
//!    operations ([`lost_pages`]) only if none of these makes progress (`patience.rs`).
//! 4. Retired frames are free again soon, even if memory is plentiful. Otherwise a stream would go
//!    through all frames of the arena in turn: memory that was never touched, then memory that no
//!    processor's cache holds.
//! 5. Waiters cost little while nothing moves: each wakes the background once, and again when
//!    something has moved. The background looks on their behalf at growing intervals, and does not
//!    repeat a scan that found nothing until something has moved.
//! 6. A waiter whose future is not polled blocks no other: it is passed over.
//!
//! [`lost_pages`]: crate::Stats::lost_pages

use crate::cache_policy::CachePolicy;
use crate::memory::Memory;
use crate::memory::arena::Frames;
use crate::memory::frame_no::FrameNo;
use crate::memory::patience::Patience;
use crate::reclaim::{Effort, Reach};
use crate::stats::Count;
use weir_base::sync::atomic::{Ordering, fence};

/// Retired frames at which it pays to check whether their epoch has passed: a check reads a cache
/// line of each thread, and this many frames still fit in a processor's cache.
const COLLECT: usize = 32;

impl Memory {
    /// Takes up to `want` frames, at least `min`, and waits for them if necessary. Returns fewer
    /// than `min` if the budget shrinks meanwhile so far that a step asks for less.
    pub(crate) async fn alloc(&self, want: usize, min: usize, policy: CachePolicy) -> Frames {
        if let Some(frames) = self.try_alloc(want, min, policy) {
            return frames;
        }
        self.stats.add(Count::MemoryWaits, 1);
        let turn = self.waiters.enter(policy);
        fence(Ordering::SeqCst);
        let mut patience = Patience::new(self);
        let mut woken_at = None;
        loop {
            let ticket = self.waiters.freed.ticket();
            let is_first = turn.is_first();
            let moved = self.waiters.moved();
            let min = min.min(self.limits().step);
            let take_others = !policy.is_uncached() || patience.is_over(self);
            if is_first && let Some(frames) = self.grab(want, min, policy, take_others) {
                return frames;
            }
            if !policy.is_uncached() {
                self.background.short.store(true, Ordering::SeqCst);
            }
            if woken_at.replace(moved) != Some(moved) {
                self.background.signal.kick();
                self.kick_flushers();
            }
            self.waiters.freed.wait(ticket).await;
        }
    }

    /// Takes up to `want` frames, at least `min`, if that is possible without waiting and no other
    /// operation waits.
    pub(crate) fn try_alloc(&self, want: usize, min: usize, policy: CachePolicy) -> Option<Frames> {
        self.shrink_metadata();
        if !self.waiters.lets_pass(policy) {
            return None;
        }
        self.grab(want, min, policy, !policy.is_uncached())
    }

    /// Takes up to `want` free frames for read-ahead. It reclaims nothing: the page reclaimed might be
    /// the one that the read-ahead is for.
    pub(crate) fn alloc_spare(&self, want: usize, policy: CachePolicy) -> Option<Frames> {
        if self.waiters.any() || self.index_is_large() {
            return None;
        }
        let take = || self.arena.take(want, 1);
        let frames = take().or_else(|| {
            self.collect();
            take()
        });
        if !policy.is_uncached() && self.arena.free_frames() < self.limits().free_low {
            self.run_short();
        }
        self.commit_ahead();
        frames
    }

    /// Wakes the background reclaimer when cached operations use up the reserve. (Uncached
    /// operations are meant to use it.)
    fn run_short(&self) {
        self.background.short.store(true, Ordering::SeqCst);
        self.background.signal.kick();
    }

    /// Takes free frames, or frees some: for an uncached operation from pages that such operations
    /// left, and from pages of cached operations only with `take_others`.
    fn grab(
        &self,
        want: usize,
        min: usize,
        policy: CachePolicy,
        take_others: bool,
    ) -> Option<Frames> {
        let take = || self.arena.take(want, min);
        let frames = take().or_else(|| {
            self.collect();
            take()
        });
        if frames.is_some() {
            // Uncached operations return their frames by themselves.
            if !policy.is_uncached() && self.arena.free_frames() < self.limits().free_low {
                self.run_short();
            }
            self.commit_ahead();
            return frames;
        }
        // Enough frames wait for their epoch; a page reclaimed now would wait for the same epoch.
        if self.arena.free_frames() as usize + self.retired.frames() >= min {
            return None;
        }
        self.stats.add(Count::ReclaimDirect, 1);
        if policy.is_uncached() && self.reclaim(want, Reach::Uncached, Effort::Foreground) > 0 {
            self.collect();
            // If this fails, the operation waits for the epoch.
            return take();
        }
        if !take_others {
            return None;
        }
        let enough = if policy.is_uncached() { min } else { want.max(32) };
        let enough = enough.min(self.arena.frames() as usize / 4).max(min);
        let dropped = self.reclaim(enough, Reach::All, Effort::Foreground);
        if policy.is_uncached() {
            self.stats.add(Count::LostPages, dropped as u64);
        }
        self.collect();
        take()
    }

    /// Takes over frames and index nodes that a change of a file's index has unlinked.
    pub(crate) fn retire(&self, frames: Vec<FrameNo>, nodes: Option<Box<dyn Send>>) {
        self.retired.push(self.epoch.now(), frames, nodes);
    }

    /// Calls [`collect`](Self::collect) if enough frames are retired.
    pub(crate) fn collect_some(&self) {
        if self.retired.frames() >= COLLECT {
            self.collect();
        }
    }

    /// Frees retired frames whose epoch has passed.
    pub(crate) fn collect(&self) {
        // Two steps pass everything that no reader can see.
        self.epoch.advance();
        self.epoch.advance();
        let passed = self.retired.take_passed(&self.epoch);
        if passed.is_empty() {
            return;
        }
        self.unpin(passed.iter().flat_map(|retired| retired.frames.iter().copied()));
        self.retired.freed(passed);
    }

    /// Drops references to frames.
    pub(crate) fn unpin(&self, frames: impl Iterator<Item = FrameNo>) {
        self.arena.unpin(frames);
        self.waiters.notify();
    }

    /// Drops references to runs of frames.
    pub(crate) fn unpin_runs(&self, runs: impl Iterator<Item = (FrameNo, u32)>) {
        self.arena.unpin_runs(runs);
        self.waiters.notify();
    }
}
