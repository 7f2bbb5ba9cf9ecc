//! A set of page numbers, kept as ranges.

use std::collections::BTreeMap;
use std::ops::Range;

/// Page numbers as disjoint ranges with gaps between them.
#[derive(Clone, Debug, Default)]
pub(crate) struct RangeSet {
    /// Start to end.
    ranges: BTreeMap<u64, u64>,
    len: u64,
}

impl RangeSet {
    /// Number of pages in the set.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Whether the set is empty.
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds a range; returns how many of its pages are new.
    pub(crate) fn insert(&mut self, range: Range<u64>) -> u64 {
        if range.is_empty() {
            return 0;
        }
        let before = self.len;
        let (mut start, mut end) = (range.start, range.end);
        // Swallow every range that overlaps or touches.
        while let Some((&s, &e)) = self.ranges.range(..=end).next_back() {
            if e < start {
                break;
            }
            self.ranges.remove(&s);
            self.len -= e - s;
            start = start.min(s);
            end = end.max(e);
        }
        self.ranges.insert(start, end);
        self.len += end - start;
        self.len - before
    }

    /// Removes a range; returns how many of its pages were in the set.
    pub(crate) fn remove(&mut self, range: Range<u64>) -> u64 {
        let before = self.len;
        while let Some((&s, &e)) = self.ranges.range(..range.end).next_back() {
            if e <= range.start || range.is_empty() {
                break;
            }
            self.ranges.remove(&s);
            self.len -= e - s;
            for rest in [s..range.start.max(s), range.end.min(e)..e] {
                if rest.start < rest.end {
                    self.ranges.insert(rest.start, rest.end);
                    self.len += rest.end - rest.start;
                }
            }
        }
        before - self.len
    }

    /// The first range at or after `from`, clipped to begin there.
    pub(crate) fn first_from(&self, from: u64) -> Option<Range<u64>> {
        if let Some((_, &e)) = self.ranges.range(..=from).next_back()
            && e > from
        {
            return Some(from..e);
        }
        self.ranges.range(from..).next().map(|(&s, &e)| s..e)
    }

    /// One more than the last page; 0 if the set is empty.
    pub(crate) fn end(&self) -> u64 {
        self.ranges.last_key_value().map_or(0, |(_, &end)| end)
    }

    /// Whether `page` is in the set.
    pub(crate) fn contains(&self, page: u64) -> bool {
        self.first_from(page).is_some_and(|r| r.start == page)
    }

    /// The numbers that are in both sets.
    pub(crate) fn intersection(&self, other: &Self) -> Self {
        let mut both = Self::default();
        for range in self.iter() {
            let mut at = range.start;
            while let Some(run) = other.first_from(at).filter(|r| r.start < range.end) {
                both.insert(run.start..run.end.min(range.end));
                at = run.end;
            }
        }
        both
    }

    /// The ranges, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.ranges.iter().map(|(&s, &e)| s..e)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn behaves_like_a_set_of_numbers(
            ops in prop::collection::vec((any::<bool>(), 0u64..60, 0u64..20), 0..40)
        ) {
            let mut set = RangeSet::default();
            let mut model = BTreeSet::new();
            for (insert, start, len) in ops {
                let range = start..start + len;
                if insert {
                    let new = range.clone().filter(|&n| model.insert(n)).count();
                    prop_assert_eq!(set.insert(range), new as u64);
                } else {
                    let gone = range.clone().filter(|n| model.remove(n)).count();
                    prop_assert_eq!(set.remove(range), gone as u64);
                }
                prop_assert_eq!(set.len(), model.len() as u64);
                let flat: Vec<u64> = set.iter().flatten().collect();
                prop_assert_eq!(flat, model.iter().copied().collect::<Vec<_>>());
                for n in 0..80 {
                    prop_assert_eq!(set.contains(n), model.contains(&n));
                    prop_assert_eq!(
                        set.first_from(n).map(|r| r.start), model.range(n..).next().copied());
                }
            }
        }
    }
}
