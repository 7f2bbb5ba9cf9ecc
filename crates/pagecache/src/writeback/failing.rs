//! Pages whose last write failed with a possibly transient error, and since when each has failed.
//!
//! 1. Each page has the full time of [`Config::write_patience`](crate::Config): another page of the
//!    file that has failed for longer, in the same write or not, does not shorten it. Only an
//!    [outage](super::outage) does.
//! 2. Pages that first fail within [`TOGETHER`] of each other share a time, the earliest.

use crate::ranges::RangeSet;
use std::ops::Range;
use std::time::{Duration, Instant};

/// Small compared to any patience, so that there are few times to keep.
pub(super) const TOGETHER: Duration = Duration::from_millis(50);

/// The failing pages of a file.
#[derive(Default)]
pub(crate) struct Failing {
    /// By the time of their first failure, the earliest first.
    since: Vec<(Instant, RangeSet)>,
}

impl Failing {
    pub(crate) fn is_empty(&self) -> bool {
        self.since.is_empty()
    }

    /// The write of a page has failed now.
    pub(crate) fn insert(&mut self, page: u64, now: Instant) {
        if self.since(page).is_some() {
            return;
        }
        match self.since.last_mut() {
            Some((since, pages)) if now - *since < TOGETHER => _ = pages.insert(page..page + 1),
            _ => {
                let mut pages = RangeSet::default();
                pages.insert(page..page + 1);
                self.since.push((now, pages));
            }
        }
    }

    /// Pages were written or dropped.
    pub(crate) fn remove(&mut self, pages: Range<u64>) {
        self.since.retain_mut(|(_, failing)| {
            failing.remove(pages.clone());
            !failing.is_empty()
        });
    }

    /// Since when a page has been failing.
    pub(crate) fn since(&self, page: u64) -> Option<Instant> {
        self.since.iter().find(|(_, pages)| pages.contains(page)).map(|&(since, _)| since)
    }

    /// Takes over those of `pages` that are failing in `other`, with their times.
    pub(crate) fn move_from(&mut self, pages: &mut RangeSet, other: &Self) {
        for (since, failing) in &other.since {
            let new = pages.intersection(failing);
            if new.is_empty() {
                continue;
            }
            let index = self.since.iter().position(|(known, _)| known == since);
            let index = index.unwrap_or_else(|| {
                self.since.push((*since, RangeSet::default()));
                self.since.len() - 1
            });
            for run in new.iter() {
                pages.remove(run.clone());
                self.since[index].1.insert(run);
            }
        }
    }

    /// Pages that are also failing in `other`, since the same time.
    pub(crate) fn still_in(&self, other: &Self) -> RangeSet {
        let mut still = RangeSet::default();
        for (since, pages) in &self.since {
            for (_, failing) in other.since.iter().filter(|(known, _)| known == since) {
                pages.intersection(failing).iter().for_each(|run| _ = still.insert(run));
            }
        }
        still
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_new_failure_is_distinct_from_an_earlier_one() {
        let pages = |set: &RangeSet| set.iter().flatten().collect::<Vec<_>>();
        let start = Instant::now();
        let mut failing = Failing::default();
        failing.insert(1, start);
        failing.insert(2, start + 2 * TOGETHER);
        let (mut asked, mut seen) = (RangeSet::default(), Failing::default());
        asked.insert(0..3);
        seen.move_from(&mut asked, &failing);
        assert_eq!(pages(&asked), [0]);
        assert_eq!(pages(&seen.still_in(&failing)), [1, 2]);
        // The first is lost, written to again, and fails again.
        failing.remove(1..2);
        failing.insert(1, start + 4 * TOGETHER);
        seen.move_from(&mut asked, &failing);
        assert_eq!(pages(&seen.still_in(&failing)), [2]);
    }

    #[test]
    fn pages_that_no_longer_fail_leave_nothing() {
        let start = Instant::now();
        let mut failing = Failing::default();
        failing.insert(1, start);
        failing.insert(1, start + 2 * TOGETHER);
        failing.insert(3, start + 4 * TOGETHER);
        assert_eq!(failing.since(1), Some(start), "from its first failure on");
        failing.remove(0..2);
        assert_eq!((failing.since(1), failing.is_empty()), (None, false));
        failing.remove(3..4);
        assert!(failing.is_empty());
    }
}
