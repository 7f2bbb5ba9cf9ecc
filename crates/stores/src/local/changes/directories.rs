//! The change attribute of directories where the file system's time stamps are coarse.
//!
//! Two changes within a clock tick get one stamp, so by the stamp alone a client would take a
//! directory for unchanged when it is not.
//!
//! 1. Every change of a directory through this store advances its change attribute ([`changed`]
//!    counts, and the count is added to the stamp, in nanoseconds).
//! 2. A change by another program in the same tick advances it when the stamp is [`OLD`] enough
//!    that no later change can get it: then [`SETTLED`] is added, which is more than any count. So
//!    no value shown for a young stamp is ever shown again.
//! 3. The value shown never decreases while the directory is in the table, and no value is shown
//!    twice for different content, not even over restarts: a count under a stamp from before the
//!    start begins at [`RESTARTED`], which an earlier process did not reach.
//! 4. Directories are in the table only while their stamps are young, at most [`MAX_YOUNG`] of
//!    them; after an eviction, new counts start at the largest count evicted.
//!
//! [`changed`]: Directories::changed

use parking_lot::Mutex;
use std::collections::HashMap;
use std::time::{SystemTime, UNIX_EPOCH};
use weir_vfs::FileId;

/// No later change gets a stamp of this age in nanoseconds: file systems stamp in steps of up to
/// two seconds.
const OLD: u64 = 2_500_000_000;
/// Added to an old stamp: more than any count of changes under one stamp.
const SETTLED: u64 = 1 << 24;
/// Start of the counts under stamps from before the start.
const RESTARTED: u64 = 1 << 23;
/// More changes than a directory can get under one stamp.
const MOST_CHANGES: u64 = 1 << 22;
/// Most directories in the table, about 64 bytes each.
const MAX_YOUNG: usize = 16 * 1024;

/// Recently changed directories.
#[derive(Debug)]
pub(in crate::local) struct Directories {
    /// Every change gets its own stamp: stamps are shown unchanged.
    fine: bool,
    /// Nanoseconds since 1970.
    started: u64,
    young: Mutex<Young>,
}

#[derive(Debug, Default)]
struct Young {
    entries: HashMap<FileId, Entry>,
    /// The largest evicted count.
    floor: u64,
}

#[derive(Debug, Default)]
struct Entry {
    /// The stamp under which `changes` are counted; 0 until the first look.
    stamp: u64,
    changes: u64,
    /// The last value shown, and the number of changes that it included.
    shown: u64,
    shown_changes: u64,
}

impl Directories {
    pub(in crate::local) fn new(fine: bool) -> Self {
        Self { fine, started: nanos_now(), young: Mutex::default() }
    }

    /// The directory may just have been changed through this store.
    pub(in crate::local) fn changed(&self, dir: FileId) {
        if self.fine {
            return;
        }
        let mut young = self.young.lock();
        young.make_room(nanos_now());
        let floor = young.floor;
        let entry = young
            .entries
            .entry(dir)
            .or_insert_with(|| Entry { changes: floor, ..Entry::default() });
        entry.changes += 1;
    }

    /// [`changed`](Self::changed), if it is a directory.
    pub(in crate::local) fn changed_if(&self, is_dir: bool, id: FileId) {
        if is_dir {
            self.changed(id);
        }
    }

    /// The change attribute of a directory with this stamp.
    pub(in crate::local) fn show(&self, dir: FileId, stamp: u64) -> u64 {
        if self.fine { stamp } else { self.show_at(dir, stamp, nanos_now()) }
    }

    fn show_at(&self, dir: FileId, stamp: u64, now: u64) -> u64 {
        let mut young = self.young.lock();
        if now.saturating_sub(stamp) > OLD {
            let shown = young.entries.remove(&dir).map_or(0, |entry| entry.shown);
            return stamp.wrapping_add(SETTLED).max(shown);
        }
        let floor = young.floor;
        let base = if stamp <= self.started { RESTARTED } else { 0 };
        if !young.entries.contains_key(&dir) {
            // No changes were counted, so no entry is needed.
            return stamp.wrapping_add(base + floor);
        }
        let entry = young.entries.entry(dir).or_default();
        let moved = entry.stamp != stamp;
        if moved && entry.stamp != 0 {
            // The new stamp covers what was counted under the old one.
            entry.changes = floor;
        }
        if moved || entry.shown_changes != entry.changes {
            let at_least = entry.shown.wrapping_add(u64::from(entry.shown != 0));
            entry.shown = at_least.max(stamp.wrapping_add(base + entry.changes));
        }
        (entry.stamp, entry.shown_changes) = (stamp, entry.changes);
        entry.shown
    }
}

impl Young {
    fn make_room(&mut self, now: u64) {
        if self.entries.len() < MAX_YOUNG {
            return;
        }
        // A directory that was not shown since its change has no stamp yet.
        self.entries.retain(|_, entry| entry.stamp == 0 || now.saturating_sub(entry.stamp) <= OLD);
        if self.entries.len() >= MAX_YOUNG / 2 {
            let counts = self.entries.values().map(|entry| entry.changes);
            self.floor = counts.max().unwrap_or(0).max(self.floor).min(MOST_CHANGES);
            self.entries.clear();
        }
    }
}

/// Nanoseconds since 1970, like the stamps.
pub(in crate::local) fn nanos_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIR: FileId = FileId { ino: 7, generation: 1 };
    const TICK: u64 = 4_000_000;

    fn coarse(started: u64) -> Directories {
        Directories { fine: false, started, young: Mutex::default() }
    }

    #[test]
    fn every_own_change_moves_the_change_attribute_within_one_stamp() {
        let dirs = coarse(1);
        let mut last = dirs.show_at(DIR, 1000 * TICK, 1000 * TICK);
        for change in 0..1000u64 {
            let stamp = (1000 + change / 100) * TICK;
            dirs.changed(DIR);
            let shown = dirs.show_at(DIR, stamp, stamp + 5);
            assert!(shown > last, "change {change}: {last} {shown}");
            assert_eq!(dirs.show_at(DIR, stamp, stamp + 6), shown, "it stays without a change");
            last = shown;
        }
    }

    #[test]
    fn change_attributes_of_young_and_old_stamps_differ() {
        let dirs = coarse(1);
        let stamp = 1000 * TICK;
        let young = dirs.show_at(DIR, stamp, stamp + 5);
        dirs.changed(DIR);
        let changed = dirs.show_at(DIR, stamp, stamp + 5);
        // Another program changes it in the same tick: unnoticed until the stamp is old.
        let old = dirs.show_at(DIR, stamp, stamp + OLD + 1);
        assert!(young < changed && changed < old, "{young} {changed} {old}");
        assert_eq!(dirs.show_at(DIR, stamp, stamp + 3 * OLD), old);
        assert!(dirs.young.lock().entries.is_empty(), "nothing is left to remember");
        let later = stamp + OLD + TICK;
        assert!(dirs.show_at(DIR, later, later) > old);
    }

    #[test]
    fn no_change_attribute_repeats_after_a_restart_or_a_forgotten_directory() {
        let stamp = 1000 * TICK;
        let before = coarse(1);
        let mut shown = vec![before.show_at(DIR, stamp, stamp)];
        for _ in 0..5 {
            before.changed(DIR);
            shown.push(before.show_at(DIR, stamp, stamp));
        }
        let after = coarse(stamp + 10);
        let again = after.show_at(DIR, stamp, stamp + 20);
        assert!(!shown.contains(&again));
        after.changed(DIR);
        let changed = after.show_at(DIR, stamp, stamp + 20);
        assert!(changed > again);
        let mut young = after.young.lock();
        for ino in 0..MAX_YOUNG as u64 {
            young
                .entries
                .insert(FileId { ino, generation: 2 }, Entry { stamp, ..Entry::default() });
        }
        young.make_room(stamp + 20);
        assert!(young.entries.is_empty());
        drop(young);
        assert!(after.show_at(DIR, stamp, stamp + 20) >= changed, "forgotten, and not back");
        after.changed(DIR);
        assert!(after.show_at(DIR, stamp, stamp + 20) > changed);
        assert!(after.show_at(DIR, stamp, stamp + 2 * OLD) > changed);
    }
}
