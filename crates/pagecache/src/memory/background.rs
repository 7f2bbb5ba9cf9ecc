//! The background reclaimer, one thread per cache: keeps some frames free, so that few operations
//! have to reclaim, frees retired frames, and carries out changes of the budget.

use crate::memory::Memory;
use crate::reclaim::{Effort, Reach};
use crate::stats::Count;
use std::time::{Duration, Instant};
use weir_base::sync::atomic::Ordering;

impl Memory {
    /// Runs until the cache is [stopped](super::Background::stop) and `is_done` agrees.
    pub(crate) fn reclaim_loop(&self, is_done: impl Fn() -> bool) {
        let state = &self.background;
        let mut lull = Lull { moved: 0, since: self.now() };
        let mut in_vain = None;
        loop {
            let nap = if self.waiters.any() {
                lull.nap(self)
            } else if !self.retired.is_empty() || state.resizing.load(Ordering::SeqCst) {
                Duration::from_millis(5)
            } else {
                Duration::from_secs(1)
            };
            state.signal.sleep(nap);
            if state.stop.load(Ordering::SeqCst) && is_done() {
                return;
            }
            let moved = self.waiters.moved();
            self.collect();
            let (used, frames) = (self.arena.used_frames(), self.arena.frames());
            let resizing = state.resizing.load(Ordering::SeqCst);
            // Set before `short` is cleared, so that an observer finds at least one of the two.
            state.reclaiming.store(true, Ordering::SeqCst);
            let short = state.short.swap(false, Ordering::SeqCst) || resizing;
            // Without progress since the last pass, all that is left is dirty or pinned.
            let tried = !resizing && in_vain == Some(moved);
            if short && !tried && used + self.limits().free_low > frames {
                self.stats.add(Count::ReclaimBackground, 1);
                let want = (used + self.limits().free_high).saturating_sub(frames) as usize;
                let dropped = self.reclaim(want, Reach::All, Effort::Background);
                in_vain = (dropped == 0).then_some(moved);
                self.collect();
            }
            state.reclaiming.store(false, Ordering::SeqCst);
            if resizing {
                self.resize();
            }
            if self.waiters.any() {
                self.waiters.freed.notify();
            }
        }
    }
}

/// A period without progress for the waiters.
struct Lull {
    moved: u64,
    since: Instant,
}

impl Lull {
    /// How long to sleep before the next look on behalf of the waiters: 200 µs at first, and a
    /// thousandth of the lull so far, up to 20 ms, as a waiter whose store hangs waits long anyway.
    fn nap(&mut self, memory: &Memory) -> Duration {
        let (moved, now) = (memory.waiters.moved(), memory.now());
        if std::mem::replace(&mut self.moved, moved) != moved {
            self.since = now;
        }
        ((now - self.since) / 1000).clamp(Duration::from_micros(200), Duration::from_millis(20))
    }
}
