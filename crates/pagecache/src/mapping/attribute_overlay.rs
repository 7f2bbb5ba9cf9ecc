//! Times and change attribute of a cached file.
//!
//! 1. Each write call changes them at once: mtime and ctime move, and the change attribute grows. It
//!    has no value that an earlier run has shown for data that a crash has lost, if the store's are time stamps.
//! 2. Writeback changes them in the store as well. That is not a change by a program, so the
//!    attributes shown stay the same.
//! 3. Another program's change in the store is detected while none of our own changes is in
//!    progress, and shown as a change attribute never shown before. A store that counts changes by
//!    others also reports those that coincide with ours; with other stores the first attributes
//!    after a change of ours are taken as ours.
//! 4. So such a store's changes by others may be taken for ours. Until the pages are dropped or proven to
//!    be current, they are in doubt; the holder of a new lock does not get them.
//! 5. The store's size applies, even while data of ours is unwritten, if it is larger than ours and
//!    nothing has made the file shorter since the look began: only others can have written there.
//! 6. A modification time that another program has set is never reset.

use std::time::{Duration, SystemTime};
use weir_vfs::Attr;

/// If a change attribute is a time stamp at least this old and later still the same, nothing has
/// changed: file systems stamp in steps of up to two seconds, and before they copy the data.
const PROVEN: Duration = Duration::from_millis(2500);

/// Time stamps of file systems may be so much earlier than the clock; more than the kernel's longest tick. What
/// is shown must not lead the store's stamps.
const TICK_NANOS: u64 = 20_000_000;

/// The time since 1970, in nanoseconds.
fn nanoseconds(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}

/// The times and change attribute shown for a file, and the known state of the store's.
#[derive(Debug)]
pub(crate) struct AttributeOverlay {
    /// The change attribute shown.
    shown: u64,
    /// Whether the store's change attributes are time stamps of this machine, in nanoseconds.
    stamps: bool,
    /// By how much `shown` was raised to the time of a write.
    raised: u64,
    /// The store's change attribute after our last change; `None` while unknown.
    stored: Option<u64>,
    /// Counts begins and ends of our changes in the store, and detected changes by others.
    generation: u64,
    /// Our changes in progress.
    under_way: u32,
    mtime: Option<SystemTime>,
    ctime: Option<SystemTime>,
    /// `mtime` is not in the store yet.
    mtime_pending: bool,
    /// The store's count of changes by others, as of the last look.
    others: Option<u64>,
    /// Whether the store has counted all changes by others between the last two looks.
    counted: bool,
    /// A change by others may have been taken for ours, so clean pages may be out of date.
    doubtful: bool,
    /// Counts begins and ends of changes of the whole file, and events that made the file shorter.
    resizes: u64,
    /// Comparing a later look with the last one detects any change in between.
    proven: bool,
}

/// The state of a file when a look at the store's attributes began.
#[derive(Clone, Copy)]
pub(crate) struct Look {
    generation: u64,
    resizes: u64,
}

impl Look {
    /// Whether no change of ours has begun or ended since then.
    pub(crate) fn is_current(self, overlay: &AttributeOverlay) -> bool {
        self.generation == overlay.generation
    }

    /// Whether nothing has made the file shorter since then.
    pub(crate) fn tells_size(self, overlay: &AttributeOverlay) -> bool {
        self.resizes == overlay.resizes
    }
}

impl AttributeOverlay {
    /// The state of a file that is first seen now; the change attribute shown leads the store's by
    /// `lead`.
    pub(crate) fn new(attr: &Attr, lead: u64, others: Option<u64>) -> Self {
        Self {
            shown: attr.change.saturating_add(lead),
            stamps: false,
            raised: 0,
            stored: Some(attr.change),
            generation: 0,
            under_way: 0,
            mtime: None,
            ctime: None,
            mtime_pending: false,
            others,
            counted: false,
            doubtful: false,
            resizes: 0,
            proven: false,
        }
    }

    /// The store's time stamps, of which its change attributes may consist, are those of this machine.
    pub(crate) fn show_stamps(&mut self, attr: &Attr) {
        let is_fine = !attr.change.is_multiple_of(1_000_000_000);
        self.stamps = is_fine && attr.change == nanoseconds(attr.ctime);
    }

    /// A counter that advances with every known change of the file in the store.
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// What a look at the store's attributes, which begins now, is to be compared with.
    pub(crate) fn look(&self) -> Look {
        Look { generation: self.generation, resizes: self.resizes }
    }

    /// The size may become smaller, or has become smaller: the size of a look that began before says
    /// nothing about the time after it.
    pub(crate) fn resizing(&mut self) {
        self.resizes += 1;
    }

    /// Whether clean pages may be out of date though no look has shown a change.
    pub(crate) fn is_doubtful(&self) -> bool {
        self.doubtful
    }

    /// The clean pages that were in doubt are gone: reads may return different data from now on.
    pub(crate) fn doubts_dropped(&mut self) {
        self.shown += 1;
        self.doubtful = false;
    }

    /// Clean pages are gone that a change which failed may have changed in the store.
    pub(crate) fn pages_dropped(&mut self) {
        self.shown += 1;
    }

    /// The lead of the change attribute shown over the store's.
    pub(crate) fn lead(&self) -> u64 {
        // Where the store's clock is behind, or has long steps, the time of a write leads its stamp.
        self.stored
            .map_or(0, |stored| self.shown.saturating_sub(stored.saturating_add(self.raised)))
    }

    /// A caller wrote, truncated or punched: data changed in the cache.
    pub(crate) fn modified(&mut self, now: SystemTime) {
        // After a crash, the store has the time stamp of an earlier change. What was shown for the
        // data that is lost must not be shown for other data.
        let floor = if self.stamps { nanoseconds(now).saturating_sub(TICK_NANOS) } else { 0 };
        self.shown += 1;
        self.raised += floor.saturating_sub(self.shown);
        self.shown = self.shown.max(floor);
        self.mtime = Some(now);
        self.ctime = Some(now);
        self.mtime_pending = true;
    }

    /// A change of the file in the store begins.
    pub(crate) fn begin(&mut self) {
        self.generation += 1;
        self.under_way += 1;
        self.stored = None;
        self.proven = false;
        self.doubtful = true;
    }

    /// It has ended.
    pub(crate) fn end(&mut self) {
        self.generation += 1;
        self.under_way -= 1;
    }

    /// The store's change attribute is known.
    fn store_has(&mut self, change: u64) {
        self.stored = Some(change);
        // Nothing leads it any more.
        if change >= self.shown {
            self.raised = 0;
        }
    }

    /// A caller set attributes (not the size) through the cache; they are now `attr`. `mtime_set`
    /// says whether the modification time was among them.
    pub(crate) fn attributes_set(&mut self, attr: &Attr, mtime_set: bool) {
        self.shown += 1;
        self.ctime = None;
        if mtime_set {
            self.mtime = None;
            self.mtime_pending = false;
        }
        if self.under_way == 0 {
            self.store_has(attr.change);
        }
    }

    /// The modification time to set in the store.
    pub(crate) fn pending(&self) -> Option<SystemTime> {
        self.unsettled().filter(|_| self.under_way == 0)
    }

    /// The modification time that is not in the store yet, though a change of ours that is in progress
    /// may be setting it.
    pub(crate) fn unsettled(&self) -> Option<SystemTime> {
        self.mtime.filter(|_| self.mtime_pending)
    }

    /// All data is written back to a store that sets the times of writes itself: from now on the
    /// store's times are shown.
    pub(crate) fn left_to_store(&mut self) {
        if self.under_way == 0 {
            self.mtime = None;
            self.ctime = None;
            self.mtime_pending = false;
        }
    }

    /// The mapping is about to be dropped: its times are no longer to be set in the store.
    pub(crate) fn abandon(&mut self) {
        self.mtime_pending = false;
    }

    /// The store's modification time was set to `mtime`, and its attributes are `attr`, unless
    /// something changed since `generation`.
    pub(crate) fn settled(&mut self, generation: u64, mtime: SystemTime, attr: &Attr) {
        if self.generation == generation {
            self.store_has(attr.change);
        }
        if self.mtime == Some(mtime) {
            self.mtime_pending = false;
        }
    }

    /// Whether the store has counted changes by others since the last look.
    pub(crate) fn others_moved(&mut self, others: Option<u64>) -> bool {
        let known = others.and_then(|others| self.others.replace(others));
        self.counted = known.is_some();
        known.is_some_and(|known| Some(known) != others)
    }

    /// Whether the store's attributes, read with no change of ours in progress, show a change by
    /// another program. If so, they apply from now on. `resized`: the size shows a change; `moved`:
    /// the store has counted one.
    pub(crate) fn changed_outside(&mut self, attr: &Attr, resized: bool, moved: bool) -> bool {
        if self.under_way > 0 {
            return false;
        }
        // A store that counts stamps with this machine's clock, or with one that proves nothing.
        let is_old = || SystemTime::now().duration_since(attr.ctime).is_ok_and(|age| age >= PROVEN);
        self.proven = self.others.is_none() || is_old();
        let known = self.stored;
        self.store_has(attr.change);
        self.doubtful &= !self.counted;
        if !resized && !moved && known.is_none_or(|known| known == attr.change) {
            return false;
        }
        // A look that began before this one and ends after it is out of date.
        self.generation += 1;
        self.doubtful = false;
        self.shown = attr.change.max(self.shown + 1);
        self.mtime = None;
        self.ctime = None;
        self.mtime_pending = false;
        true
    }

    /// Another program has changed the file, whose attributes in the store are `attr`, while data
    /// of ours was not written yet.
    pub(crate) fn adopt_others(&mut self, attr: &Attr) {
        // A look that began before this one and ends after it is out of date.
        self.generation += 1;
        self.shown = attr.change.max(self.shown + 1);
        if self.mtime.is_some_and(|ours| ours <= attr.mtime) {
            self.mtime = None;
            self.mtime_pending = false;
        }
        self.ctime = None;
    }

    /// The store's file is about to be closed; the next one starts its count anew.
    pub(crate) fn close(&mut self) {
        self.others = None;
    }

    /// Whether a later look can be compared with the last one.
    pub(crate) fn is_proven(&self) -> bool {
        self.stored.is_some() && self.proven
    }

    /// Replaces the store's attributes by those shown.
    pub(crate) fn present(&self, attr: &mut Attr) {
        attr.change = self.shown;
        if let Some(mtime) = self.mtime {
            attr.mtime = mtime;
        }
        if let Some(ctime) = self.ctime {
            attr.ctime = ctime;
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use weir_stores::memory::MemoryFs;
    use weir_vfs::FileSystem;

    #[test]
    fn data_that_a_crash_has_lost_and_other_data_differ_in_their_change_attribute() {
        let fs = MemoryFs::new();
        let start = SystemTime::now();
        let root = pollster::block_on(fs.getattr(fs.root())).unwrap();
        let start = start
            + Duration::from_nanos(u64::from(nanoseconds(start).is_multiple_of(1_000_000_000)));
        let stored = Attr { change: nanoseconds(start), ctime: start, ..root };
        let after_write = |seconds| {
            let mut overlay = AttributeOverlay::new(&stored, 0, None);
            overlay.show_stamps(&stored);
            let now = start + Duration::from_secs(seconds);
            overlay.modified(now);
            // No more than the store's stamp of a write at that time.
            assert!(overlay.shown <= nanoseconds(now));
            // A store whose clock is behind is not led by more than the number of changes.
            let shown = overlay.shown;
            overlay.store_has(stored.change);
            assert_eq!(overlay.lead(), 1);
            // Once its stamps have come after that, each change counts.
            overlay.store_has(nanoseconds(now));
            overlay.shown = nanoseconds(now) + 2;
            assert_eq!(overlay.lead(), 2);
            shown
        };
        assert!(after_write(1) < after_write(2));
    }
}
