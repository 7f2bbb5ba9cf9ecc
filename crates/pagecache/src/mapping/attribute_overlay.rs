//! Times and change attribute of a file in the cache.
//!
//! 1. A write changes them at once: mtime and ctime move, and the change attribute grows with
//!    every call.
//! 2. Our own writeback changes them in the store, too. That is not a change that a program made, so
//!    what is shown stays the same.
//! 3. A change in the store that we did not cause is recognised when nothing of ours is under way,
//!    and shown as a value never shown before. A store that counts changes by others tells of those
//!    that came with ours, too; one that does not is believed after a change of ours.
//! 4. The modification time that others have set is never set back.

use std::time::{Duration, SystemTime};
use weir_vfs::Attr;

/// A change attribute that is a time of this age proves, if it is the same later, that nothing has
/// changed: file systems stamp in steps of up to two seconds, and before they copy the data.
const PROVEN: Duration = Duration::from_millis(2500);

/// What is shown of a file's times, and what is known of the store's.
#[derive(Debug)]
pub(crate) struct AttributeOverlay {
    /// The change attribute that is shown.
    shown: u64,
    /// The store's, as of our last change of it; `None` while that is not known.
    stored: Option<u64>,
    /// Counts our changes of the file in the store, begun and ended, and those of others as a whole.
    generation: u64,
    /// Changes begun and not ended.
    under_way: u32,
    mtime: Option<SystemTime>,
    ctime: Option<SystemTime>,
    /// `mtime` is not in the store yet.
    mtime_pending: bool,
    /// How many changes by others the store had counted when we last looked.
    others: Option<u64>,
    /// What was last seen, with nothing of ours under way or since, proves something later.
    proven: bool,
}

impl AttributeOverlay {
    /// Those of a file that is first seen now; the change attribute shown is ahead of the store's
    /// by `lead`.
    pub(crate) fn new(attr: &Attr, lead: u64, others: Option<u64>) -> Self {
        Self {
            shown: attr.change.saturating_add(lead),
            stored: Some(attr.change),
            generation: 0,
            under_way: 0,
            mtime: None,
            ctime: None,
            mtime_pending: false,
            others,
            proven: false,
        }
    }

    /// Changes with every change of the file in the store that is known of.
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// How far what is shown is ahead of the store.
    pub(crate) fn lead(&self) -> u64 {
        self.stored.map_or(0, |stored| self.shown.saturating_sub(stored))
    }

    /// A caller wrote, truncated or punched: data changed in the cache.
    pub(crate) fn modified(&mut self, now: SystemTime) {
        self.shown += 1;
        self.mtime = Some(now);
        self.ctime = Some(now);
        self.mtime_pending = true;
    }

    /// We begin to change the file in the store.
    pub(crate) fn begin(&mut self) {
        self.generation += 1;
        self.under_way += 1;
        self.stored = None;
        self.proven = false;
    }

    /// We have changed it.
    pub(crate) fn end(&mut self) {
        self.generation += 1;
        self.under_way -= 1;
    }

    /// Attributes were set through us (not the size), and are now `attr`. `mtime_set` says
    /// whether that one was among them.
    pub(crate) fn attributes_set(&mut self, attr: &Attr, mtime_set: bool) {
        self.shown += 1;
        self.ctime = None;
        if mtime_set {
            self.mtime = None;
            self.mtime_pending = false;
        }
        if self.under_way == 0 {
            self.stored = Some(attr.change);
        }
    }

    /// The modification time that is to be set in the store.
    pub(crate) fn pending(&self) -> Option<SystemTime> {
        self.mtime.filter(|_| self.mtime_pending && self.under_way == 0)
    }

    /// Everything is written back to a store that sets the times of writes itself: its own are shown
    /// from now on.
    pub(crate) fn left_to_store(&mut self) {
        if self.under_way == 0 {
            self.mtime = None;
            self.ctime = None;
            self.mtime_pending = false;
        }
    }

    /// `mtime` is in the store now, whose attributes are `attr`; unless something of ours happened
    /// since `generation`.
    pub(crate) fn settled(&mut self, generation: u64, mtime: SystemTime, attr: &Attr) {
        if self.generation == generation {
            self.stored = Some(attr.change);
        }
        if self.mtime == Some(mtime) {
            self.mtime_pending = false;
        }
    }

    /// Whether others have changed the file since the last look, as the store counts.
    pub(crate) fn others_moved(&mut self, others: Option<u64>) -> bool {
        let Some(others) = others else { return false };
        self.others.replace(others).is_some_and(|known| known != others)
    }

    /// Whether the store's attributes, read with nothing of ours under way, show a change that we
    /// did not cause. If so, they are believed from now on. `resized` says that the size shows one,
    /// `moved` that the store has counted one.
    pub(crate) fn changed_outside(&mut self, attr: &Attr, resized: bool, moved: bool) -> bool {
        if self.under_way > 0 {
            return false;
        }
        // A store that counts uses this machine's clock, or one for which nothing is proven.
        let is_old = || SystemTime::now().duration_since(attr.ctime).is_ok_and(|age| age >= PROVEN);
        self.proven = self.others.is_none() || is_old();
        let known = self.stored.replace(attr.change);
        if !resized && !moved && known.is_none_or(|known| known == attr.change) {
            return false;
        }
        // A look from before this one, whose answer comes after it, is out of date.
        self.generation += 1;
        self.shown = attr.change.max(self.shown + 1);
        self.mtime = None;
        self.ctime = None;
        self.mtime_pending = false;
        true
    }

    /// Others have changed the file, whose attributes in the store are `attr`, while something of
    /// ours was not there yet.
    pub(crate) fn adopt_others(&mut self, attr: &Attr) {
        self.shown = attr.change.max(self.shown + 1);
        if self.mtime.is_some_and(|ours| ours <= attr.mtime) {
            self.mtime = None;
            self.mtime_pending = false;
        }
        self.ctime = None;
    }

    /// The store's file is about to be closed: its count begins anew with the next.
    pub(crate) fn close(&mut self) {
        self.others = None;
    }

    /// Whether the last look, with nothing of ours since, is good to compare a later one with.
    pub(crate) fn is_proven(&self) -> bool {
        self.stored.is_some() && self.proven
    }

    /// Puts what is shown into the store's attributes.
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
