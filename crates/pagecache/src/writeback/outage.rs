//! A time in which no write of a file succeeds, although some were tried.
//!
//! 1. It begins with a failure that may be transient, and ends with the next write that succeeds, or
//!    once nothing is dirty.
//! 2. A page counts from the first failure, of any page, since it became dirty. So if the store is
//!    gone, all pages that were dirty then have their time together, however many writes they are:
//!    few writes are in flight at once, and only these are retried.
//! 3. Each page is tried once at least: only an own failure makes it a loss.

use crate::ranges::RangeSet;
use crate::writeback::failing::TOGETHER;
use std::ops::Range;
use std::time::{Duration, Instant};

/// The outage of a file.
pub(crate) struct Outage {
    since: Instant,
    /// Pages that became dirty later, by the time of the next failure. The last time of a page
    /// counts.
    later: Vec<(Instant, RangeSet)>,
    /// Pages that became dirty since the last failure.
    fresh: RangeSet,
}

impl Outage {
    /// A write has failed now, and pages are retried for as long as `patience`.
    pub(crate) fn write_failed(outage: &mut Option<Self>, now: Instant, patience: Duration) {
        let Some(outage) = outage else {
            *outage = Some(Self { since: now, later: Vec::new(), fresh: RangeSet::default() });
            return;
        };
        if outage.fresh.is_empty() {
            return;
        }
        let fresh = std::mem::take(&mut outage.fresh);
        // Without their times, these pages count from the beginning: their time is over as well.
        outage.later.retain(|&(since, _)| now - since < patience);
        match outage.later.last_mut() {
            Some((since, pages)) if now - *since < TOGETHER => {
                fresh.iter().for_each(|run| _ = pages.insert(run));
            }
            _ => outage.later.push((now, fresh)),
        }
    }

    /// Pages are about to become dirty; those in `dirty` are already.
    pub(crate) fn dirtied(&mut self, dirty: &RangeSet, pages: Range<u64>) {
        let mut at = pages.start;
        while at < pages.end {
            let known = dirty.first_from(at).filter(|run| run.start < pages.end);
            let known = known.unwrap_or(pages.end..pages.end);
            self.fresh.insert(at..known.start);
            at = known.end;
        }
    }

    /// Since when writes have failed while the page was dirty.
    pub(crate) fn since(&self, page: u64) -> Option<Instant> {
        if self.fresh.contains(page) {
            return None;
        }
        let later = self.later.iter().rev().find(|(_, pages)| pages.contains(page));
        Some(later.map_or(self.since, |&(since, _)| since))
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(3);

    #[test]
    fn a_page_counts_from_the_first_failure_since_it_became_dirty() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let (mut outage, mut dirty) = (None, RangeSet::default());
        dirty.insert(0..10);
        Outage::write_failed(&mut outage, at(0), PATIENCE);
        let since = |outage: &Option<Outage>, page| outage.as_ref().unwrap().since(page);
        assert_eq!([0, 9].map(|page| since(&outage, page)), [Some(at(0)); 2]);
        // Pages 5 to 9 were dirty before.
        outage.as_mut().unwrap().dirtied(&dirty, 5..12);
        dirty.insert(5..12);
        assert_eq!([9, 10].map(|page| since(&outage, page)), [Some(at(0)), None]);
        Outage::write_failed(&mut outage, at(2), PATIENCE);
        assert_eq!([9, 10, 11].map(|page| since(&outage, page)), [at(0), at(2), at(2)].map(Some));
        // Lost, and written again.
        dirty.remove(0..11);
        outage.as_mut().unwrap().dirtied(&dirty, 0..1);
        outage.as_mut().unwrap().dirtied(&dirty, 10..12);
        assert_eq!([0, 10, 11].map(|page| since(&outage, page)), [None, None, Some(at(2))]);
        Outage::write_failed(&mut outage, at(4), PATIENCE);
        assert_eq!([0, 10, 11].map(|page| since(&outage, page)), [at(4), at(4), at(2)].map(Some));
    }

    #[test]
    fn an_outage_remembers_no_more_than_the_times_that_make_a_difference() {
        let start = Instant::now();
        let (mut outage, dirty) = (None, RangeSet::default());
        for tick in 0..10_000 {
            Outage::write_failed(&mut outage, start + tick * Duration::from_millis(10), PATIENCE);
            outage.as_mut().unwrap().dirtied(&dirty, u64::from(tick)..u64::from(tick) + 1);
        }
        let outage = outage.unwrap();
        assert!(outage.later.len() <= 61, "{}", outage.later.len());
        assert_eq!(outage.since(0), Some(start));
    }
}
