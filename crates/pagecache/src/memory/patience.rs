//! How long an uncached operation waits for the reserve before it takes pages of cached operations.

use crate::memory::Memory;
use std::time::{Duration, Instant};
use weir_base::sync::atomic::Ordering;

/// Limit of a wait without returned frames while a store is working.
const STUCK: Duration = Duration::from_millis(250);
/// Limit of a wait without returned frames while no store is working: then the frames are held by
/// threads, for microseconds, or by readers of lent pages, for as long as they like.
const ALONE: Duration = Duration::from_millis(50);
/// Limit of the whole wait.
const AT_MOST: Duration = Duration::from_secs(2);
/// Cap on the time credited between two looks: on a busy machine, or after a suspend, the other
/// operations have run no more than this one.
const CREDIT: Duration = Duration::from_millis(1);

/// Decides how long an uncached operation waits for others of its kind.
pub(super) struct Patience {
    looked: Instant,
    /// The whole wait.
    waited: Duration,
    /// Time since the last returned frame was seen.
    stuck: Duration,
    /// Time since then, or since a store was last seen working.
    alone: Duration,
    /// The arena's count of returns at that look.
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

    /// Looks again, and returns whether the wait is over. It ends after two seconds at the latest,
    /// since a store that hangs must not block the files of other stores forever.
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

/// Whether a store is working for an uncached operation: fills or writes are in flight.
fn is_store_at_work(memory: &Memory) -> bool {
    memory.arena.lent() > 0 || memory.reserve_writes.load(Ordering::SeqCst) > 0
}
