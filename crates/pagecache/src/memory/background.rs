//! The background reclaimer, one thread per cache: keeps some frames free, so that few operations
//! have to reclaim, frees retired frames, carries out changes of the budget, and gives frames memory
//! before their first use.

use crate::memory::Memory;
use crate::reclaim::{Effort, Reach};
use crate::stats::Count;
use std::time::{Duration, Instant};
use weir_base::sync::atomic::Ordering;

impl Memory {
    /// Runs until the cache is [stopped](super::Background::stop) and `is_done` agrees.
    pub(crate) fn reclaim_loop(&self, is_done: impl Fn() -> bool) {
        let state = &self.background;
        let mut reclaimer = Reclaimer::new(self);
        loop {
            state.signal.sleep(reclaimer.nap(self));
            if state.stop.load(Ordering::SeqCst) && is_done() {
                return;
            }
            reclaimer.round(self);
        }
    }
}

/// The reclaimer between two rounds.
pub(crate) struct Reclaimer {
    lull: Lull,
    /// What had moved before a pass that found nothing.
    in_vain: Option<u64>,
}

impl Reclaimer {
    pub(crate) fn new(memory: &Memory) -> Self {
        Self { lull: Lull { moved: 0, since: memory.now() }, in_vain: None }
    }

    /// How long to sleep before the next round.
    fn nap(&mut self, memory: &Memory) -> Duration {
        if memory.waiters.any() {
            self.lull.nap(memory)
        } else if !memory.retired.is_empty() || memory.background.is_resizing() {
            Duration::from_millis(5)
        } else {
            Duration::from_secs(1)
        }
    }

    /// Frees what can be freed, and reclaims if frames are short.
    pub(crate) fn round(&mut self, memory: &Memory) {
        let state = &memory.background;
        let moved = memory.waiters.moved();
        memory.collect();
        let (used, frames) = (memory.arena.used_frames(), memory.arena.frames());
        let resizing = state.is_resizing();
        // Set before `short` is cleared, so that an observer finds at least one of the two.
        state.reclaiming.store(true, Ordering::SeqCst);
        let short = state.short.swap(false, Ordering::SeqCst) || resizing;
        // Without progress since the last pass, all that is left is dirty or pinned.
        let tried = !resizing && self.in_vain == Some(moved);
        if short && !tried && used + memory.limits().free_low > frames {
            memory.stats.add(Count::ReclaimBackground, 1);
            let want = (used + memory.limits().free_high).saturating_sub(frames) as usize;
            let dropped = memory.reclaim(want, Reach::All, Effort::Background);
            self.in_vain = (dropped == 0).then_some(moved);
            memory.collect();
        }
        state.reclaiming.store(false, Ordering::SeqCst);
        if resizing {
            memory.resize();
        }
        if memory.waiters.any() {
            memory.waiters.wake(memory.now());
        }
        while !memory.is_reclaim_due() && memory.arena.commit_ahead() {}
    }
}

impl Memory {
    /// Whether the reclaimer has something to do that an operation may wait for.
    fn is_reclaim_due(&self) -> bool {
        let state = &self.background;
        self.waiters.any()
            || state.is_resizing()
            || [&state.short, &state.stop].iter().any(|it| it.load(Ordering::SeqCst))
    }

    /// Wakes the reclaimer if frames should get memory before their first use.
    pub(super) fn commit_ahead(&self) {
        if self.arena.is_behind() {
            self.background.signal.kick();
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
