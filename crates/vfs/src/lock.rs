//! Byte-range locks of one file, as in POSIX and NFS: advisory, of whole bytes, shared or
//! exclusive; and the table of them for stores and servers.
//!
//! 1. Two owners never hold overlapping ranges of which one is exclusive.
//! 2. An owner's own ranges never overlap: a lock replaces the owner's locks in its range, an
//!    unlock splits the locks that it cuts.
//! 3. Adjacent ranges of one owner and one kind are merged, so that many small adjacent locks take
//!    one entry.

use crate::range_tree::{Locked, RangeTree};
use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::sync::Arc;

/// The end of a range that extends to the end of the file, even after its size changes.
pub const TO_END: u64 = u64::MAX;

/// Bytes `start..end`; `end` is [`TO_END`] for an open range. Never empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockRange {
    /// First byte.
    pub start: u64,
    /// After the last byte.
    pub end: u64,
}

impl LockRange {
    /// Every present and future byte of the file.
    pub const ALL: Self = Self { start: 0, end: TO_END };

    /// The range of an offset and a length on the wire: all ones means "to the end".
    ///
    /// `None` for an empty range or one that wraps (RFC 8881 section 18.10.3).
    pub fn from_wire(offset: u64, length: u64) -> Option<Self> {
        let end = match length {
            0 => return None,
            u64::MAX => TO_END,
            length => offset.checked_add(length)?,
        };
        (offset < end).then_some(Self { start: offset, end })
    }

    /// The length on the wire.
    pub fn wire_length(self) -> u64 {
        if self.end == TO_END { u64::MAX } else { self.end - self.start }
    }

    /// The range of an offset and a length in NLM: 0 means "to the end", and so do all ones, which
    /// some clients send. `None` for a range that wraps.
    pub fn from_nlm(offset: u64, length: u64) -> Option<Self> {
        Self::from_wire(offset, if length == 0 { u64::MAX } else { length })
    }

    /// The length in NLM.
    pub fn nlm_length(self) -> u64 {
        if self.end == TO_END { 0 } else { self.end - self.start }
    }

    /// The parts of it that none of the locks of one owner covers.
    pub fn without(self, locks: &[Lock]) -> Vec<Self> {
        let mut held = RangeLocks::default();
        for lock in locks {
            // A single owner has no conflicts.
            let _ = held.lock(&(), lock.range, lock.exclusive);
        }
        held.gaps(self)
    }
}

/// A lock, without its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lock {
    /// The bytes.
    pub range: LockRange,
    /// Whether it excludes readers as well.
    pub exclusive: bool,
}

/// An owner of locks in an open file: a number that the program chooses. The same number in another
/// open file is another owner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct LockOwner(pub u64);

/// A conflicting lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockConflict<O> {
    /// Its owner.
    pub owner: O,
    /// Its range.
    pub range: LockRange,
    /// Whether it excludes readers as well.
    pub exclusive: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Held {
    end: u64,
    exclusive: bool,
}

/// The locks of one file by owner.
///
/// An operation takes time in proportion to the logarithm of the number of locks, and to the number of locks that it
/// finds or changes.
#[derive(Clone, Debug)]
pub struct RangeLocks<O> {
    /// The owners that hold locks, and their numbers, which differ.
    owners: HashMap<Arc<O>, u32>,
    /// The number for the next owner, if it is free.
    next_number: u32,
    /// By the owner's number and the start of the range.
    held: BTreeMap<(u32, u64), Held>,
    /// The same ranges, of all owners.
    ranges: RangeTree<O>,
}

impl<O> Default for RangeLocks<O> {
    fn default() -> Self {
        let (owners, ranges) = (HashMap::new(), RangeTree::default());
        Self { owners, next_number: 0, held: BTreeMap::new(), ranges }
    }
}

impl<O: Clone + Eq + Hash> RangeLocks<O> {
    /// Whether there is no lock.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Number of ranges held.
    pub fn len(&self) -> usize {
        self.held.len()
    }

    /// The locks of `owner`.
    pub fn of(&self, owner: &O) -> impl Iterator<Item = Lock> {
        let number = self.owners.get(owner);
        let held = number.into_iter().flat_map(|&number| self.of_number(number));
        held.map(|(start, held)| held.lock_from(start))
    }

    /// The parts of `owner`'s locks in `range`.
    pub fn within(&self, owner: &O, range: LockRange) -> Vec<Lock> {
        let Some(&number) = self.owners.get(owner) else { return Vec::new() };
        let part = |(start, held): (u64, Held)| Lock {
            range: LockRange { start: start.max(range.start), end: held.end.min(range.end) },
            exclusive: held.exclusive,
        };
        self.overlapping(number, range).map(part).collect()
    }

    /// All locks with their owners.
    pub fn all(&self) -> impl Iterator<Item = (&O, Lock)> {
        self.ranges.iter().map(|locked| (locked.owner, locked.lock))
    }

    /// Owners that hold locks.
    pub fn owners(&self) -> impl Iterator<Item = &O> {
        self.owners.keys().map(|owner| &**owner)
    }

    /// Number of owners that hold locks.
    pub fn owner_count(&self) -> usize {
        self.owners.len()
    }

    /// Whether `owner` holds a lock.
    pub fn holds(&self, owner: &O) -> bool {
        self.owners.contains_key(owner)
    }

    /// A lock of another owner that conflicts with this one: that with the lowest start.
    pub fn conflict(
        &self,
        owner: &O,
        range: LockRange,
        exclusive: bool,
    ) -> Option<LockConflict<O>> {
        self.conflicting(owner, range, exclusive).next().map(|locked| {
            let Lock { range, exclusive } = locked.lock;
            LockConflict { owner: locked.owner.clone(), range, exclusive }
        })
    }

    /// The owners of all conflicting locks; one who holds several of them, several times.
    pub fn conflicts(
        &self,
        owner: &O,
        range: LockRange,
        exclusive: bool,
    ) -> impl Iterator<Item = &O> + use<'_, O> {
        self.conflicting(owner, range, exclusive).map(|locked| locked.owner)
    }

    fn conflicting(
        &self,
        owner: &O,
        range: LockRange,
        exclusive: bool,
    ) -> impl Iterator<Item = Locked<'_, O>> + use<'_, O> {
        let own = self.owners.get(owner).copied();
        self.ranges.overlapping(range, !exclusive, own)
    }

    /// Locks `range` for `owner`, and replaces its locks there.
    ///
    /// # Errors The conflicting lock; nothing is changed then.
    pub fn lock(
        &mut self,
        owner: &O,
        range: LockRange,
        exclusive: bool,
    ) -> Result<(), LockConflict<O>> {
        if let Some(conflict) = self.conflict(owner, range, exclusive) {
            return Err(conflict);
        }
        let (owner, number) = self.numbered(owner);
        self.cut(&owner, number, range);
        let LockRange { mut start, mut end } = range;
        if let Some((before, held)) = self.ending_at(number, start)
            && held.exclusive == exclusive
        {
            self.take(number, before);
            start = before;
        }
        if let Some(&after) = self.held.get(&(number, end))
            && after.exclusive == exclusive
        {
            self.take(number, end);
            end = after.end;
        }
        self.put(&owner, number, start, Held { end, exclusive });
        Ok(())
    }

    /// Releases all locks of `owner` in `range`.
    pub fn unlock(&mut self, owner: &O, range: LockRange) {
        let Some((named, &number)) = self.owners.get_key_value(owner) else { return };
        self.cut(&named.clone(), number, range);
        if self.of_number(number).next().is_none() {
            self.owners.remove(owner);
        }
    }

    /// How many more ranges there are after `owner` locked a range in a mode, or unlocked it
    /// (`None`).
    pub fn growth(&self, owner: &O, range: LockRange, exclusive: Option<bool>) -> usize {
        let new = usize::from(exclusive.is_some());
        let Some(&number) = self.owners.get(owner) else { return new };
        // What is left of three or more is at most one on each side, and the new one.
        let cut: Vec<(u64, Held)> = self.overlapping(number, range).take(3).collect();
        let left = cut.first().filter(|(start, _)| *start < range.start).map(|(_, held)| *held);
        let right = cut.last().filter(|(_, held)| held.end > range.end).map(|(_, held)| *held);
        let parts = usize::from(left.is_some()) + usize::from(right.is_some());
        // The new range is merged with what is left of these, or with those that it touches.
        let left = left.or_else(|| self.ending_at(number, range.start).map(|(_, held)| held));
        let right = right.or_else(|| self.held.get(&(number, range.end)).copied());
        let merged = [left, right].into_iter().flatten();
        let merged = merged.filter(|held| Some(held.exclusive) == exclusive).count();
        (new + parts).saturating_sub(cut.len() + merged)
    }

    /// Releases all locks of `owner`.
    pub fn release(&mut self, owner: &O) {
        let Some(number) = self.owners.remove(owner) else { return };
        let starts: Vec<u64> = self.of_number(number).map(|(start, _)| start).collect();
        starts.into_iter().for_each(|start| self.take(number, start));
    }

    /// The parts of a range without a lock.
    pub fn gaps(&self, range: LockRange) -> Vec<LockRange> {
        let (mut gaps, mut rest) = (Vec::new(), range);
        while rest.start < rest.end {
            // Searched again after each lock: those that end no later are many where owners share ranges.
            let Some(next) = self.ranges.overlapping(rest, false, None).next() else {
                gaps.push(rest);
                break;
            };
            let held = next.lock.range;
            if held.start > rest.start {
                gaps.push(LockRange { start: rest.start, end: held.start });
            }
            rest.start = held.end;
        }
        gaps
    }

    /// The end of the range in which `owner` holds byte `offset`, if it does.
    pub fn covered_to(&self, owner: &O, offset: u64) -> Option<u64> {
        let number = *self.owners.get(owner)?;
        let (_, held) = self.held.range((number, 0)..=(number, offset)).next_back()?;
        (held.end > offset).then_some(held.end)
    }

    /// An owner and its number, a new one if it holds no lock.
    fn numbered(&mut self, owner: &O) -> (Arc<O>, u32) {
        if let Some((owner, &number)) = self.owners.get_key_value(owner) {
            return (owner.clone(), number);
        }
        // Numbers are small, for the memory of each range. After all were used once, those of owners without locks
        // are used again; there are fewer owners than numbers.
        while self.of_number(self.next_number).next().is_some() {
            self.next_number = self.next_number.wrapping_add(1);
        }
        let (owner, number) = (Arc::new(owner.clone()), self.next_number);
        self.next_number = self.next_number.wrapping_add(1);
        self.owners.insert(owner.clone(), number);
        (owner, number)
    }

    fn of_number(&self, number: u32) -> impl Iterator<Item = (u64, Held)> {
        let held = self.held.range((number, 0)..=(number, u64::MAX));
        held.map(|(&(_, start), &held)| (start, held))
    }

    /// The ranges of an owner that overlap `range`.
    fn overlapping(&self, number: u32, range: LockRange) -> impl Iterator<Item = (u64, Held)> {
        // Only the last range that starts before can overlap, because an owner's ranges are disjoint.
        let before = self.held.range((number, 0)..(number, range.start)).next_back();
        let before = before.filter(move |(_, held)| held.end > range.start);
        let within = self.held.range((number, range.start)..(number, range.end));
        before.into_iter().chain(within).map(|(&(_, start), &held)| (start, held))
    }

    /// The range of an owner that ends where another begins.
    fn ending_at(&self, number: u32, end: u64) -> Option<(u64, Held)> {
        let (&(_, start), &held) = self.held.range((number, 0)..(number, end)).next_back()?;
        (held.end == end).then_some((start, held))
    }

    /// Removes what an owner holds of `range`.
    fn cut(&mut self, owner: &Arc<O>, number: u32, range: LockRange) {
        let cut: Vec<(u64, Held)> = self.overlapping(number, range).collect();
        for (start, held) in cut {
            self.take(number, start);
            if start < range.start {
                self.put(owner, number, start, Held { end: range.start, ..held });
            }
            if held.end > range.end {
                self.put(owner, number, range.end, held);
            }
        }
    }

    fn put(&mut self, owner: &Arc<O>, number: u32, start: u64, held: Held) {
        self.held.insert((number, start), held);
        self.ranges.insert(owner.clone(), number, held.lock_from(start));
    }

    fn take(&mut self, number: u32, start: u64) {
        self.held.remove(&(number, start));
        self.ranges.remove(start, number);
    }
}

impl Held {
    fn lock_from(self, start: u64) -> Lock {
        Lock { range: LockRange { start, end: self.end }, exclusive: self.exclusive }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn range(start: u64, end: u64) -> LockRange {
        LockRange { start, end }
    }

    #[test]
    fn wire_ranges() {
        assert_eq!(LockRange::from_wire(5, u64::MAX), Some(range(5, TO_END)));
        assert_eq!(LockRange::from_wire(5, 0), None);
        assert_eq!(LockRange::from_wire(5, u64::MAX - 3), None);
        assert_eq!(LockRange::from_wire(5, 1).unwrap().wire_length(), 1);
        assert_eq!(LockRange::from_wire(u64::MAX, u64::MAX), None);
        for length in [0, u64::MAX] {
            assert_eq!(LockRange::from_nlm(5, length), Some(range(5, TO_END)));
        }
        assert_eq!((range(5, TO_END).nlm_length(), range(5, 7).nlm_length()), (0, 2));
    }

    #[test]
    fn readers_share_and_writers_exclude() {
        let mut locks = RangeLocks::default();
        locks.lock(&'a', range(0, 10), false).unwrap();
        locks.lock(&'b', range(5, 15), false).unwrap();
        let conflict = locks.lock(&'c', range(12, 13), true).unwrap_err();
        assert_eq!(conflict, LockConflict { owner: 'b', range: range(5, 15), exclusive: false });
        locks.unlock(&'b', range(11, 14));
        locks.lock(&'c', range(12, 13), true).unwrap();
        assert!(locks.conflict(&'a', range(0, TO_END), false).is_some());
    }

    #[test]
    fn neighbours_are_joined_and_an_upgrade_splits() {
        let mut locks = RangeLocks::default();
        for i in 0..1000 {
            locks.lock(&0, range(i * 10, i * 10 + 10), false).unwrap();
        }
        assert_eq!(locks.len(), 1);
        locks.lock(&0, range(100, 200), true).unwrap();
        assert_eq!(locks.len(), 3);
        assert_eq!(locks.covered_to(&0, 150), Some(200));
        assert_eq!(locks.covered_to(&0, 10_000), None);
        locks.release(&0);
        assert!(locks.is_empty());
    }

    #[test]
    fn the_parts_of_locks_in_a_range() {
        let mut locks = RangeLocks::default();
        locks.lock(&0, range(0, 10), false).unwrap();
        locks.lock(&0, range(20, TO_END), true).unwrap();
        let part = |start, end, exclusive| Lock { range: range(start, end), exclusive };
        let found = locks.within(&0, range(5, 25));
        assert_eq!(found, [part(5, 10, false), part(20, 25, true)]);
        assert_eq!(locks.within(&0, range(10, 20)), []);
        assert_eq!(locks.within(&1, LockRange::ALL), []);
        assert_eq!(range(5, 25).without(&found), [range(10, 20)]);
        assert_eq!(range(5, 25).without(&[]), [range(5, 25)]);
        assert_eq!(range(21, 25).without(&found), []);
    }

    #[test]
    fn the_number_of_an_owner_with_locks_is_not_used_again() {
        let mut locks = RangeLocks::default();
        locks.lock(&'a', range(0, 5), true).unwrap();
        locks.lock(&'b', range(5, 9), true).unwrap();
        locks.release(&'b');
        locks.next_number = 0;
        let conflict = locks.lock(&'c', range(0, 1), true).unwrap_err();
        assert_eq!(conflict.owner, 'a');
        locks.lock(&'c', range(6, 7), true).unwrap();
        assert_eq!((locks.owners[&'a'], locks.owners[&'c']), (0, 1));
    }

    /// Number of ranges in the model: maximal runs of bytes of one owner and kind.
    fn runs(model: &[[u8; 3]]) -> usize {
        let held = |at: usize, owner: usize| model.get(at).map_or(0, |b| b[owner]);
        let begins = |at: usize, owner: usize| {
            let before = at.checked_sub(1).map_or(0, |before| held(before, owner));
            held(at, owner) != 0 && before != held(at, owner)
        };
        (0..model.len()).map(|at| (0..3).filter(|&owner| begins(at, owner)).count()).sum()
    }

    /// What a naive list of every owner's locks answers.
    #[derive(Default)]
    struct Naive(Vec<(u8, Lock)>);

    impl Naive {
        fn conflicts(&self, owner: u8, range: LockRange, exclusive: bool) -> Vec<(u8, Lock)> {
            let held = self.0.iter().copied();
            held.filter(|(other, lock)| {
                *other != owner && overlap(lock.range, range) && (exclusive || lock.exclusive)
            })
            .collect()
        }

        fn unlock(&mut self, owner: u8, range: LockRange) {
            let (cut, kept): (Vec<_>, Vec<_>) = std::mem::take(&mut self.0)
                .into_iter()
                .partition(|(other, lock)| *other == owner && overlap(lock.range, range));
            self.0 = kept;
            for (owner, Lock { range: held, exclusive }) in cut {
                let before = LockRange { end: range.start, ..held };
                let after = LockRange { start: range.end, ..held };
                let parts = [before, after].into_iter().filter(|part| part.start < part.end);
                self.0.extend(parts.map(|range| (owner, Lock { range, exclusive })));
            }
        }

        fn lock(&mut self, owner: u8, range: LockRange, exclusive: bool) {
            self.unlock(owner, range);
            let mut joined = range;
            self.0.retain(|(other, lock)| {
                let held = lock.range;
                let touches = held.end == range.start || held.start == range.end;
                let joins = *other == owner && lock.exclusive == exclusive && touches;
                if joins {
                    joined.start = joined.start.min(held.start);
                    joined.end = joined.end.max(held.end);
                }
                !joins
            });
            self.0.push((owner, Lock { range: joined, exclusive }));
        }
    }

    fn overlap(a: LockRange, b: LockRange) -> bool {
        a.start < b.end && b.start < a.end
    }

    fn sorted(mut locks: Vec<(u8, Lock)>) -> Vec<(u8, Lock)> {
        locks.sort_by_key(|(owner, lock)| (*owner, lock.range.start));
        locks
    }

    proptest! {
        /// Many owners, with ranges that are far apart, nested, equal, or to the end.
        #[test]
        fn agrees_with_a_list_of_the_locks_of_many_owners(
            next_number in prop::sample::select(vec![0, u32::MAX - 5]),
            first in prop::sample::select(vec![0, TO_END - 200]),
            steps in prop::collection::vec((0u8..20, 0u64..200, 1u64..60, 0u8..12), 1..250)
        ) {
            let mut locks = RangeLocks { next_number, ..RangeLocks::default() };
            let mut naive = Naive::default();
            for (owner, start, length, action) in steps {
                let start = first + start;
                let end = if length == 59 { TO_END } else { start.saturating_add(length) };
                let (r, exclusive) = (range(start, end), action == 11);
                match action {
                    0 => {
                        locks.release(&owner);
                        naive.0.retain(|(other, _)| *other != owner);
                    }
                    1..4 => {
                        let growth = locks.growth(&owner, r, None);
                        naive.unlock(owner, r);
                        prop_assert_eq!(growth, naive.0.len().saturating_sub(locks.len()));
                        locks.unlock(&owner, r);
                    }
                    _ => {
                        let growth = locks.growth(&owner, r, Some(exclusive));
                        let conflicts = naive.conflicts(owner, r, exclusive);
                        let locked = locks.lock(&owner, r, exclusive);
                        let mut owners: Vec<u8> =
                            locks.conflicts(&owner, r, exclusive).copied().collect();
                        owners.sort_unstable();
                        prop_assert_eq!(owners, sorted(conflicts.clone()).iter().map(|c| c.0).collect::<Vec<_>>());
                        if let Err(LockConflict { owner, range, exclusive }) = locked {
                            let found = (owner, Lock { range, exclusive });
                            prop_assert!(conflicts.contains(&found));
                            let lowest = conflicts.iter().map(|(_, lock)| lock.range.start).min();
                            prop_assert_eq!(Some(range.start), lowest);
                        } else {
                            prop_assert!(conflicts.is_empty());
                            let before = naive.0.len();
                            naive.lock(owner, r, exclusive);
                            prop_assert_eq!(growth, naive.0.len().saturating_sub(before));
                        }
                    }
                }
                locks.ranges.check();
                let all = locks.all().map(|(owner, lock)| (*owner, lock)).collect();
                prop_assert_eq!(sorted(all), sorted(naive.0.clone()));
                prop_assert_eq!(locks.len(), naive.0.len());
                let own: Vec<Lock> = locks.of(&owner).collect();
                let naives = sorted(naive.0.clone()).into_iter().filter(|(other, _)| *other == owner);
                prop_assert_eq!(&own, &naives.map(|(_, lock)| lock).collect::<Vec<_>>());
                prop_assert_eq!(locks.holds(&owner), !own.is_empty());
                prop_assert_eq!(locks.owners().filter(|other| **other == owner).count(), usize::from(!own.is_empty()));
                let gaps = locks.gaps(r);
                prop_assert!(gaps.iter().all(|gap| gap.start < gap.end && overlap(*gap, r)));
                prop_assert!(gaps.is_sorted_by(|a, b| a.end < b.start));
                let edges = naive.0.iter().flat_map(|(_, lock)| [lock.range.start, lock.range.end]);
                for at in edges.chain([r.start]).filter(|at| (r.start..r.end).contains(at)) {
                    let one = range(at, at + 1);
                    let is_free = naive.0.iter().all(|(_, lock)| !overlap(lock.range, one));
                    prop_assert_eq!(gaps.iter().any(|gap| overlap(*gap, one)), is_free);
                }
            }
        }

        /// Compared with a model that has a state for every byte and owner.
        #[test]
        fn agrees_with_a_lock_per_byte(
            steps in prop::collection::vec((0u8..3, 0u64..24, 1u64..24, 0u8..3), 1..60)
        ) {
            let mut locks = RangeLocks::default();
            let mut model = [[0u8; 3]; 48];
            for (owner, start, len, action) in steps {
                let r = range(start, start + len);
                let bytes = start as usize..(start + len) as usize;
                let before = locks.len();
                let growth = locks.growth(&owner, r, (action > 0).then_some(action == 2));
                if action == 0 {
                    locks.unlock(&owner, r);
                    for b in &mut model[bytes] {
                        b[owner as usize] = 0;
                    }
                } else {
                    let free = model[bytes.clone()].iter().all(|b| {
                        b.iter().enumerate().all(|(o, &kind)| {
                            o == owner as usize || kind == 0 || (kind == 1 && action == 1)
                        })
                    });
                    prop_assert_eq!(locks.lock(&owner, r, action == 2).is_ok(), free);
                    if !free {
                        continue;
                    }
                    for b in &mut model[bytes] {
                        b[owner as usize] = action;
                    }
                }
                prop_assert_eq!(locks.len(), runs(&model));
                prop_assert_eq!(growth, locks.len().saturating_sub(before));
                let gaps = locks.gaps(range(0, 48));
                for (at, b) in model.iter().enumerate() {
                    let free = gaps.iter().any(|g| (g.start..g.end).contains(&(at as u64)));
                    prop_assert_eq!(free, *b == [0; 3]);
                }
                for (at, b) in model.iter().enumerate() {
                    let others_exclusive = b[1] == 2 || b[2] == 2;
                    let others_any = b[1] != 0 || b[2] != 0;
                    let one = range(at as u64, at as u64 + 1);
                    prop_assert_eq!(locks.conflict(&0, one, false).is_some(), others_exclusive);
                    prop_assert_eq!(locks.conflict(&0, one, true).is_some(), others_any);
                }
            }
        }
    }
}
