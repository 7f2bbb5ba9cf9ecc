//! How long an uncached operation waits for the reserve before it takes pages of cached operations.

use crate::memory::Memory;
use std::time::{Duration, Instant};
use weir_base::sync::atomic::Ordering;

/// How long it waits while a store is at work and no frame is given back.
const STUCK: Duration = Duration::from_millis(250);
/// How long it waits while no store is at work and no frame is given back: only threads are in the
/// way then, which hold frames for microseconds, or readers that hold lent pages as long as they like.
const ALONE: Duration = Duration::from_millis(50);
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
    /// Since frames were last seen to be given back.
    stuck: Duration,
    /// Since that, or since a store was last seen at work.
    alone: Duration,
    /// How often frames had been given back then.
    returns: u32,
}

impl Patience {
    pub(super) fn new(memory: &Memory) -> Self {
        Self {
            looked: memory.now(),
            waited: Duration::ZERO,
            stuck: Duration::ZERO,
            alone: Duration::ZERO,
            returns: memory.arena.returns(),
        }
    }

    /// Looks again, and says whether the wait is over. It ends in any case after two seconds, since
    /// a store that hangs must not hold up the files of other stores for ever.
    pub(super) fn is_over(&mut self, memory: &Memory) -> bool {
        let now = memory.now();
        let passed = (now - std::mem::replace(&mut self.looked, now)).min(CREDIT);
        self.waited += passed;
        let returns = memory.arena.returns();
        if std::mem::replace(&mut self.returns, returns) != returns {
            (self.stuck, self.alone) = (Duration::ZERO, Duration::ZERO);
        } else {
            self.stuck += passed;
            self.alone =
                if is_store_at_work(memory) { Duration::ZERO } else { self.alone + passed };
        }
        self.alone >= ALONE || self.stuck >= STUCK || self.waited >= AT_MOST
    }
}

/// Whether a store is at work for an uncached operation: frames are being filled, or writes are in
/// flight.
fn is_store_at_work(memory: &Memory) -> bool {
    memory.arena.lent() > 0 || memory.reserve_writes.load(Ordering::SeqCst) > 0
}
