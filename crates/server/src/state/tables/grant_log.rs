//! What an owner has locked of a file while grants to it are not acknowledged, so that any of these can be taken back
//! from among the others: grants to one owner may overlap.
//!
//! 1. Entries lie within the ranges of the unacknowledged grants. Locked one after the other, they give what the owner
//!    holds there.
//! 2. An entry of a grant goes with it if the host rejects it; the other entries stay.

use crate::state::tables::ranges::{merged, overlap, within};
use weir_vfs::{Lock, LockRange as Range};

/// The log of one owner and file.
#[derive(Debug, Default)]
pub(in crate::state) struct GrantLog {
    /// Oldest first, with the numbers of the grants that they come from.
    entries: Vec<(Lock, Option<u64>)>,
    /// The unacknowledged grants.
    granted: Vec<(u64, Range)>,
}

impl GrantLog {
    /// Whether no grant is unacknowledged.
    pub(in crate::state) fn is_over(&self) -> bool {
        self.granted.is_empty()
    }

    /// The number of entries that do not come from unacknowledged grants. They count as held ranges.
    pub(in crate::state) fn counted(&self) -> usize {
        self.entries.iter().filter(|(_, grant)| grant.is_none()).count()
    }

    /// Adds a grant; `held` is what the owner held in its range before.
    pub(in crate::state) fn grant(&mut self, number: u64, lock: Lock, held: &[Lock]) {
        let covered = self.covered();
        let covered = covered.iter().map(|&range| Lock { range, exclusive: false });
        let covered: Vec<Lock> = covered.collect();
        let new = held.iter().flat_map(|held| {
            let parts = held.range.without(&covered);
            parts.into_iter().map(|range| (Lock { range, ..*held }, None))
        });
        let new: Vec<_> = new.collect();
        // No other entry is in their ranges, so the order among them does not matter.
        self.entries.extend(new);
        self.entries.push((lock, Some(number)));
        self.granted.push((number, lock.range));
    }

    /// Adds a lock that the owner has taken.
    pub(in crate::state) fn lock(&mut self, lock: Lock) {
        for range in self.covered().into_iter().filter(|&range| overlap(range, lock.range)) {
            let lock = Lock { range: within(lock.range, range), ..lock };
            self.entries.retain(|(other, _)| within(other.range, lock.range) != other.range);
            self.entries.push((lock, None));
        }
    }

    /// Removes a range that the owner unlocks.
    pub(in crate::state) fn unlock(&mut self, range: Range) {
        let left = self
            .entries
            .iter()
            .flat_map(|(lock, grant)| without(lock, range).map(|lock| (lock, *grant)));
        self.entries = left.collect();
    }

    /// How many entries more count as held ranges once a range is unlocked, at most.
    pub(in crate::state) fn splits(&self, range: Range) -> usize {
        let counted = self.entries.iter().filter(|(_, grant)| grant.is_none());
        counted.filter(|(lock, _)| without(lock, range).count() > 1).count()
    }

    /// Ends a grant that the host wants, or knows of already.
    pub(in crate::state) fn accept(&mut self, number: u64) {
        for (_, grant) in &mut self.entries {
            *grant = grant.filter(|&grant| grant != number);
        }
        self.end(number);
    }

    /// Ends a grant that the host rejects. Returns what the owner has without it in its range, to be locked one after
    /// the other.
    pub(in crate::state) fn reject(&mut self, number: u64) -> Vec<Lock> {
        let range =
            self.granted.iter().find(|(other, _)| *other == number).map(|(_, range)| *range);
        let Some(range) = range else { return Vec::new() };
        self.entries.retain(|(_, grant)| *grant != Some(number));
        let kept = self.entries.iter().filter(|(lock, _)| overlap(lock.range, range));
        let kept = kept.map(|(lock, _)| Lock { range: within(lock.range, range), ..*lock });
        let kept = kept.collect();
        self.end(number);
        kept
    }

    /// Removes a grant, and the parts of entries that lie in no other.
    fn end(&mut self, number: u64) {
        self.granted.retain(|(other, _)| *other != number);
        let covered = self.covered();
        let parts = self.entries.iter().flat_map(|(lock, grant)| {
            let covered = covered.iter().filter(|range| overlap(**range, lock.range));
            covered.map(|range| (Lock { range: within(lock.range, *range), ..*lock }, *grant))
        });
        self.entries = parts.collect();
        self.drop_hidden();
    }

    /// Drops the entries that later ones cover which cannot be taken back: they never show again. So the entries that
    /// are left are at most as many as the ends of ranges, not as the products of locks and grants.
    fn drop_hidden(&mut self) {
        let mut covered: Vec<Range> = Vec::new();
        let mut shown = Vec::new();
        for (lock, grant) in std::mem::take(&mut self.entries).into_iter().rev() {
            let at = covered.partition_point(|range| range.end < lock.range.end);
            if covered.get(at).is_some_and(|range| range.start <= lock.range.start) {
                continue;
            }
            if grant.is_none() {
                add(&mut covered, lock.range);
            }
            shown.push((lock, grant));
        }
        shown.reverse();
        self.entries = shown;
    }

    /// The ranges of the unacknowledged grants, merged.
    fn covered(&self) -> Vec<Range> {
        merged(self.granted.iter().map(|(_, range)| *range).collect())
    }
}

/// Adds a range to ranges that are sorted and do not touch.
fn add(ranges: &mut Vec<Range>, range: Range) {
    let from = ranges.partition_point(|other| other.end < range.start);
    let to = ranges.partition_point(|other| other.start <= range.end);
    let joined = ranges[from..to].iter().fold(range, |all, other| Range {
        start: all.start.min(other.start),
        end: all.end.max(other.end),
    });
    ranges.splice(from..to, [joined]);
}

/// What is left of a lock after a range is unlocked.
fn without(lock: &Lock, range: Range) -> impl Iterator<Item = Lock> + use<> {
    let lock = *lock;
    let in_front = Range { end: lock.range.end.min(range.start), ..lock.range };
    let behind = Range { start: lock.range.start.max(range.end), ..lock.range };
    let left = [in_front, behind].into_iter().filter(|range| range.start < range.end);
    left.map(move |range| Lock { range, ..lock })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lock(start: u64, end: u64) -> Lock {
        Lock { range: Range { start, end }, exclusive: true }
    }

    #[test]
    fn nested_locks_over_many_grants_leave_few_entries() {
        const MANY: u64 = 100;
        let mut log = GrantLog::default();
        log.grant(0, lock(0, 10 * MANY), &[]);
        (1..MANY).for_each(|i| log.grant(i, lock(2 * i, 2 * i + 1), &[]));
        (0..MANY).for_each(|i| log.lock(lock(0, 9 * MANY - i)));
        log.accept(0);
        assert!(log.entries.len() <= 2 * MANY as usize, "{} entries", log.entries.len());
        assert!((1..MANY).all(|i| log.reject(i) == [lock(2 * i, 2 * i + 1)]));
        assert!(log.is_over() && log.entries.is_empty());
    }
}
