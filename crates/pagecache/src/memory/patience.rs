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
        let scale = memory.patience_scale.load(Ordering::Relaxed);
        self.look(memory.now(), memory.arena.returns(), scale)
    }

    fn look(&mut self, now: Instant, returns: u32, scale: u32) -> bool {
        let passed = (now - std::mem::replace(&mut self.looked, now)).min(CREDIT);
        self.waited += passed;
        if std::mem::replace(&mut self.returns, returns) != returns {
            self.stuck = Duration::ZERO;
        } else {
            self.stuck += passed;
        }
        self.stuck >= STUCK * scale || self.waited >= AT_MOST * scale
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    /// After how many looks, a millisecond apart, the wait is over if a frame is returned every so often.
    fn looks(returned_every: u32, scale: u32) -> u32 {
        let begun = Instant::now();
        let (waited, stuck) = (Duration::ZERO, Duration::ZERO);
        let mut patience = Patience { looked: begun, waited, stuck, returns: 0 };
        let mut is_over = |look: u32| {
            let now = begun + Duration::from_millis(look.into());
            patience.look(now, look / returned_every, scale)
        };
        (1..).find(|look| is_over(*look)).unwrap()
    }

    #[test]
    fn a_wait_lasts_longer_while_frames_are_returned() {
        assert_eq!(looks(u32::MAX, 1), 250);
        assert_eq!(looks(200, 1), 2000);
        assert_eq!(looks(300, 1), 250);
        assert_eq!(looks(u32::MAX, 4), 1000);
    }

    #[test]
    fn a_time_in_which_the_thread_did_not_run_counts_as_one_look() {
        let mut patience = Patience {
            looked: Instant::now(),
            waited: Duration::ZERO,
            stuck: Duration::ZERO,
            returns: 0,
        };
        assert!(!patience.look(patience.looked + Duration::from_secs(60), 0, 1));
        assert_eq!((patience.waited, patience.stuck), (CREDIT, CREDIT));
    }
}
