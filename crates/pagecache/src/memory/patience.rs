//! How long an uncached operation waits for the reserve before it takes pages of cached operations.
//!
//! Nothing tells whether the frames are held by a store, by a reader of lent pages, or by a thread that
//! the system does not run at the moment. So one limit applies to all of them.

use crate::memory::Memory;
use std::time::{Duration, Instant};
use weir_base::sync::atomic::Ordering;

/// Limit of a wait without returned frames.
const STUCK: Duration = Duration::from_millis(250);
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
    /// The arena's count of returns at that look.
    returns: u32,
}

impl Patience {
    pub(super) fn new(memory: &Memory) -> Self {
        Self {
            looked: memory.now(),
            waited: Duration::ZERO,
            stuck: Duration::ZERO,
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
            self.stuck = Duration::ZERO;
        } else {
            self.stuck += passed;
        }
        let scale = memory.patience_scale.load(Ordering::Relaxed);
        self.stuck >= STUCK * scale || self.waited >= AT_MOST * scale
    }
}
