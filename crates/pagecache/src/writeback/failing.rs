//! Pages whose last write failed with an error that may pass, and since when each has been failing.
//!
//! 1. Each page has the whole of its patience ([`Config::write_patience`](crate::Config)): another page
//!    of the file that has been failing for longer, in the same write or not, takes none of it.
//! 2. Pages that begin to fail within [`TOGETHER`] of each other share a time, the earliest.

use crate::ranges::RangeSet;
use std::ops::Range;
use std::time::{Duration, Instant};

/// A fraction of any patience, so that there are few times to keep.
const TOGETHER: Duration = Duration::from_millis(50);

/// Those of a file.
#[derive(Default)]
pub(crate) struct Failing {
    /// By the time of the first failure, the earliest first.
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

    /// Pages are written, or dropped.
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

    /// Those of `pages` that are failing.
    pub(crate) fn among(&self, pages: &RangeSet) -> RangeSet {
        let mut failing = RangeSet::default();
        for (_, set) in &self.since {
            pages.intersection(set).iter().for_each(|run| _ = failing.insert(run));
        }
        failing
    }
}
