//! How long an uncached operation waits for the reserve before it takes pages of cached operations.

use crate::memory::Memory;
use std::time::{Duration, Instant};
use weir_base::sync::atomic::Ordering;

/// How long it waits while others of its kind are at work and none makes progress.
const STUCK: Duration = Duration::from_millis(250);
/// How long it waits while none of its kind is at work.
const ALONE: Duration = Duration::from_millis(20);
/// How long it waits in all.
const AT_MOST: Duration = Duration::from_secs(2);
/// Cap on the time credited between two looks: on a busy machine, or one that was suspended, the
/// other operations have not run any more than this one has.
const CREDIT: Duration = Duration::from_millis(1);

/// Whether it still makes sense for an uncached operation to wait for others of its kind.
pub(super) struct Patience {
    looked: Instant,
    /// In all.
    waited: Duration,
    /// Since one of the others was last seen to make progress.
    stuck: Duration,
    /// Since one of them was last seen at work.
    alone: Duration,
    /// What was counted then.
    pruned: u64,
    returns: u32,
}

impl Patience {
    pub(super) fn new(memory: &Memory) -> Self {
        Self {
            looked: memory.now(),
            waited: Duration::ZERO,
            stuck: Duration::ZERO,
            alone: Duration::ZERO,
            pruned: memory.reserve.pruned.load(Ordering::Relaxed),
            returns: memory.arena.returns(),
        }
    }

    /// Looks again, and says whether the wait is over. It ends in any case after two seconds, since
    /// a store that hangs must not hold up the files of other stores for ever.
    pub(super) fn is_over(&mut self, memory: &Memory) -> bool {
        let now = memory.now();
        let passed = (now - std::mem::replace(&mut self.looked, now)).min(CREDIT);
        let pruned = memory.reserve.pruned.load(Ordering::Relaxed);
        let progress = std::mem::replace(&mut self.pruned, pruned) != pruned;
        self.stuck = if progress { Duration::ZERO } else { self.stuck + passed };
        self.alone = if self.is_any_at_work(memory) { Duration::ZERO } else { self.alone + passed };
        self.waited += passed;
        self.alone >= ALONE || self.stuck >= STUCK || self.waited >= AT_MOST
    }

    /// Whether an uncached operation is at work: one has just given frames back, holds frames that
    /// no file has (in `grab`, a prune or a commit; or filling them), has writes in flight, or waits
    /// for the flusher, for an epoch, or for the background to reclaim what cached operations have
    /// put in the reserve.
    fn is_any_at_work(&mut self, memory: &Memory) -> bool {
        let returns = memory.arena.returns();
        std::mem::replace(&mut self.returns, returns) != returns
            || memory.arena.lent() > 0
            || memory.reserve.io.load(Ordering::SeqCst) > 0
            || !memory.flushers.have_seen_all()
            || memory.retired.frames() > 0
            || memory.reserve.is_at_work()
            || memory.background.short.load(Ordering::SeqCst)
            || memory.background.reclaiming.load(Ordering::SeqCst)
    }
}
