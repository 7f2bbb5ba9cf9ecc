//! Byte-range locks of one file, as in POSIX and NFS: advisory, of whole bytes, shared or
//! exclusive; and the table of them for stores and servers.
//!
//! 1. Two owners never hold overlapping ranges of which one is exclusive.
//! 2. An owner's own ranges never overlap: a lock replaces the owner's locks in its range, an
//!    unlock splits the locks that it cuts.
//! 3. Adjacent ranges of one owner and one kind are merged, so that many small adjacent locks take
//!    one entry.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

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
#[derive(Clone, Debug)]
pub struct RangeLocks<O> {
    owners: HashMap<O, BTreeMap<u64, Held>>,
    /// Number of ranges held, by all owners.
    len: usize,
}

impl<O> Default for RangeLocks<O> {
    fn default() -> Self {
        Self { owners: HashMap::new(), len: 0 }
    }
}

impl<O: Clone + Eq + Hash> RangeLocks<O> {
    /// Whether there is no lock.
    pub fn is_empty(&self) -> bool {
        self.owners.is_empty()
    }

    /// Number of ranges held.
    pub fn len(&self) -> usize {
        self.len
    }

    /// The locks of `owner`.
    pub fn of(&self, owner: &O) -> impl Iterator<Item = Lock> {
        self.owners.get(owner).into_iter().flatten().map(|(&start, held)| Lock {
            range: LockRange { start, end: held.end },
            exclusive: held.exclusive,
        })
    }

    /// The parts of `owner`'s locks in `range`.
    pub fn within(&self, owner: &O, range: LockRange) -> Vec<Lock> {
        let held = self.owners.get(owner).into_iter().flat_map(|held| overlapping(held, range));
        held.map(|(start, held)| Lock {
            range: LockRange { start: start.max(range.start), end: held.end.min(range.end) },
            exclusive: held.exclusive,
        })
        .collect()
    }

    /// All locks with their owners.
    pub fn all(&self) -> impl Iterator<Item = (&O, Lock)> {
        self.owners.iter().flat_map(|(owner, held)| {
            held.iter().map(move |(&start, held)| {
                let range = LockRange { start, end: held.end };
                (owner, Lock { range, exclusive: held.exclusive })
            })
        })
    }

    /// Owners that hold locks.
    pub fn owners(&self) -> impl Iterator<Item = &O> {
        self.owners.keys()
    }

    /// Number of owners that hold locks.
    pub fn owner_count(&self) -> usize {
        self.owners.len()
    }

    /// Whether `owner` holds a lock.
    pub fn holds(&self, owner: &O) -> bool {
        self.owners.contains_key(owner)
    }

    /// A lock of another owner that conflicts with this one.
    pub fn conflict(
        &self,
        owner: &O,
        range: LockRange,
        exclusive: bool,
    ) -> Option<LockConflict<O>> {
        self.owners.iter().filter(|(other, _)| *other != owner).find_map(|(other, held)| {
            overlapping(held, range).find(|(_, h)| exclusive || h.exclusive).map(|(start, h)| {
                LockConflict {
                    owner: other.clone(),
                    range: LockRange { start, end: h.end },
                    exclusive: h.exclusive,
                }
            })
        })
    }

    /// All other owners that hold conflicting locks.
    pub fn conflicts<'a, 'b>(
        &'a self,
        owner: &'b O,
        range: LockRange,
        exclusive: bool,
    ) -> impl Iterator<Item = &'a O> + use<'a, 'b, O> {
        let others = self.owners.iter().filter(move |(other, _)| *other != owner);
        let in_the_way = others.filter(move |(_, held)| {
            overlapping(held, range).any(|(_, held)| exclusive || held.exclusive)
        });
        in_the_way.map(|(other, _)| other)
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
        let held = self.owners.entry(owner.clone()).or_default();
        self.len -= held.len();
        remove(held, range);
        let LockRange { mut start, mut end } = range;
        if let Some((&before, h)) = held.range(..start).next_back()
            && h.end == start
            && h.exclusive == exclusive
        {
            start = before;
        }
        if let Some(after) = held.get(&end)
            && after.exclusive == exclusive
        {
            let after = after.end;
            held.remove(&end);
            end = after;
        }
        held.insert(start, Held { end, exclusive });
        self.len += held.len();
        Ok(())
    }

    /// Releases all locks of `owner` in `range`.
    pub fn unlock(&mut self, owner: &O, range: LockRange) {
        if let Some(held) = self.owners.get_mut(owner) {
            self.len -= held.len();
            remove(held, range);
            self.len += held.len();
            if held.is_empty() {
                self.owners.remove(owner);
            }
        }
    }

    /// How many more ranges there are after `owner` locked a range in a mode, or unlocked it
    /// (`None`).
    pub fn growth(&self, owner: &O, range: LockRange, exclusive: Option<bool>) -> usize {
        let Some(held) = self.owners.get(owner) else { return usize::from(exclusive.is_some()) };
        let touched: Vec<(u64, Held)> =
            overlapping(held, range).take(3).map(|(start, h)| (start, *h)).collect();
        // What is left of three or more is at most one on each side, and the new one.
        if touched.len() > 2 {
            return 0;
        }
        let beside = held.range(..range.start).next_back().filter(|(_, h)| h.end == range.start);
        let after = held.get_key_value(&range.end);
        let beside = beside.into_iter().chain(after).map(|(&start, h)| (start, *h));
        let part: BTreeMap<u64, Held> = touched.into_iter().chain(beside).collect();
        let before = part.len();
        let mut part = Self { len: before, owners: HashMap::from([(owner.clone(), part)]) };
        match exclusive {
            Some(exclusive) => {
                // The only owner here has no conflict.
                drop(part.lock(owner, range, exclusive));
            }
            None => part.unlock(owner, range),
        }
        part.len.saturating_sub(before)
    }

    /// Releases all locks of `owner`.
    pub fn release(&mut self, owner: &O) {
        self.len -= self.owners.remove(owner).map_or(0, |held| held.len());
    }

    /// The parts of a range without a lock.
    pub fn gaps(&self, range: LockRange) -> Vec<LockRange> {
        let mut held: Vec<(u64, u64)> = self
            .owners
            .values()
            .flat_map(|held| overlapping(held, range).map(|(start, held)| (start, held.end)))
            .collect();
        held.sort_unstable();
        let (mut gaps, mut from) = (Vec::new(), range.start);
        for (start, end) in held {
            if start > from {
                gaps.push(LockRange { start: from, end: start });
            }
            from = from.max(end);
        }
        if from < range.end {
            gaps.push(LockRange { start: from, end: range.end });
        }
        gaps
    }

    /// The end of the range in which `owner` holds byte `offset`, if it does.
    pub fn covered_to(&self, owner: &O, offset: u64) -> Option<u64> {
        let (_, held) = self.owners.get(owner)?.range(..=offset).next_back()?;
        (held.end > offset).then_some(held.end)
    }
}

/// The held ranges that overlap `range`.
fn overlapping(
    held: &BTreeMap<u64, Held>,
    range: LockRange,
) -> impl Iterator<Item = (u64, &Held)> + '_ {
    // Only the last range that starts before can overlap, because an owner's ranges are disjoint.
    let before = held.range(..range.start).next_back().filter(move |(_, h)| h.end > range.start);
    before.into_iter().chain(held.range(range.start..range.end)).map(|(&start, h)| (start, h))
}

fn remove(held: &mut BTreeMap<u64, Held>, range: LockRange) {
    let cut: Vec<(u64, Held)> = overlapping(held, range).map(|(start, h)| (start, *h)).collect();
    for (start, h) in cut {
        held.remove(&start);
        if start < range.start {
            held.insert(start, Held { end: range.start, ..h });
        }
        if h.end > range.end {
            held.insert(range.end, h);
        }
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

    /// Number of ranges in the model: maximal runs of bytes of one owner and kind.
    fn runs(model: &[[u8; 3]]) -> usize {
        let held = |at: usize, owner: usize| model.get(at).map_or(0, |b| b[owner]);
        let begins = |at: usize, owner: usize| {
            let before = at.checked_sub(1).map_or(0, |before| held(before, owner));
            held(at, owner) != 0 && before != held(at, owner)
        };
        (0..model.len()).map(|at| (0..3).filter(|&owner| begins(at, owner)).count()).sum()
    }

    proptest! {
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
