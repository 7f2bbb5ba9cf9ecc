//! Attributes of a cached file; detecting changes by other programs; closing the store's file.
//!
//! 1. The store's attributes reveal changes by others: through the change attribute while no change
//!    of ours is in progress, and at any time through the store's count of such changes, if it
//!    keeps one.
//! 2. After such a change, only dirty pages and pages under writeback stay, and no fill in flight
//!    publishes anything.
//! 3. The holder of a new lock sees what others had written ([`Mapping::revalidate`]): after the grant,
//!    a look at the store proves the clean pages to be current, or they are dropped. Data of ours is
//!    written back before the look, so that it tells changes by others from ours. A change attribute that
//!    is a time stamp proves nothing: the last holder may have written in the tick of the one before.
//! 4. The store's file of an idle file is closed only after a look, later than our last change,
//!    that a later look can be compared with: otherwise a change in between would go unnoticed.
//! 5. An open asks the store, and does not use attributes that the store has kept for some time.
//! 6. A change of attributes is preceded by a look, for the same reason.
//! 7. Write access is given up only while no open file may write and nothing is dirty.

use crate::mapping::attribute_change::AttributeChange;
use crate::mapping::attribute_overlay::Look;
use crate::mapping::invalidate_lock::InvalidateLock;
use crate::mapping::{Mapping, Purpose, State, open_stored};
use crate::mapping::{closed_file, index};
use crate::ranges::RangeSet;
use crate::stats::Count;
use std::ops::Range;
use std::sync::Arc;
use weir_base::PAGE_SIZE;
use weir_base::sync::atomic::Ordering;
use weir_vfs::{Access, Attr, Caller, KeptAttributes, OpenFile, Result};

/// How often the holder of a new lock tries to look at the store with nothing of ours unwritten.
const LOOKS: u32 = 8;

impl Mapping {
    /// The store's attributes, and its count of changes by others.
    pub(crate) async fn stored_attr(&self) -> Result<(Attr, Option<u64>)> {
        let file = self.file();
        if file.access().is_empty() {
            return Ok((self.store.getattr(self.id).await?, None));
        }
        let attr = file.getattr().await?;
        Ok((attr, file.changes_by_others()))
    }

    /// Has the next look ask the store, unless a change would have been told.
    pub(crate) fn forget_timed(&self) {
        let file = self.file();
        match file.access().is_empty() {
            true => self.store.forget_attributes(self.id, KeptAttributes::Timed),
            false => file.forget_attributes(KeptAttributes::Timed),
        }
    }

    /// Begins a change of attributes in the store, which excludes changes of the whole file.
    pub(crate) async fn begin_attributes(self: &Arc<Self>) -> AttributeChange {
        let exclusive = self.lock_invalidate().await;
        self.look_before_change(&exclusive).await;
        exclusive.begin_change()
    }

    /// A look at the store before a change of attributes, which would hide what others have changed before it,
    /// unless the store counts that, or nothing is cached.
    async fn look_before_change(&self, held: &InvalidateLock) {
        let is_counted = self.file().changes_by_others().is_some();
        if is_counted || self.index.bytes() == 0 || !self.state.lock().is_clean() {
            return;
        }
        self.forget_timed();
        let look = self.state.lock().overlay.look();
        let stored = self.stored_attr().await;
        let mut state = self.state.lock();
        match stored {
            Ok((attr, others)) => {
                _ = self.compare(&mut state, &attr, Some((look, Some(held))), others)
            }
            Err(_) => {
                self.drop_unproven(&mut state, 0..u64::MAX);
                state.overlay.pages_dropped();
            }
        }
    }

    /// Attributes, dirty data included.
    pub(crate) async fn getattr(self: &Arc<Self>) -> Result<Attr> {
        let look = self.state.lock().overlay.look();
        let (mut attr, others) = self.stored_attr().await?;
        self.overlay(&mut attr, Some(look), others);
        Ok(attr)
    }

    /// Shows what others had written to the file before the call, as the holder of a lock that was
    /// just granted expects: drops the clean pages that are not proven to be current. Returns whether the change
    /// attribute proves anything.
    pub(crate) async fn revalidate(self: &Arc<Self>) -> bool {
        for left in (0..LOOKS).rev() {
            // Open files get the error of what is lost.
            let _ = self.write_or_lose(0..u64::MAX).await;
            // No change of ours is in progress during the look.
            let exclusive = self.lock_invalidate().await;
            if left > 0 && !self.state.lock().is_clean() {
                continue;
            }
            let look = self.state.lock().overlay.look();
            let stored = self.stored_attr().await;
            let told = |(attr, _): &(Attr, _)| self.file().change_is_exact(attr);
            let is_exact = stored.as_ref().is_ok_and(told);
            let mut state = self.state.lock();
            let current = stored.is_ok_and(|(attr, others)| {
                self.compare(&mut state, &attr, Some((look, Some(&exclusive))), others)
            });
            if !current || !is_exact || state.overlay.is_doubtful() {
                self.drop_unproven(&mut state, 0..u64::MAX);
                state.overlay.doubts_dropped();
            }
            return is_exact;
        }
        false
    }

    /// Applies the cache's state to attributes from the store. `look`: the state of the file before
    /// the store was asked, if known. `others`: the store's count of changes by others at that time.
    pub(crate) fn overlay(&self, attr: &mut Attr, look: Option<Look>, others: Option<u64>) {
        let mut state = self.state.lock();
        self.compare(&mut state, attr, look.map(|look| (look, None)), others);
        state.overlay.present(attr);
        attr.size = self.size();
        // Programs take a file without space for one hole (GNU tar: `--sparse`).
        let written: u64 = state.writeback.values().map(|run| run.end - run.start).sum();
        attr.allocated = attr.allocated.max((state.dirty.len() + written) * PAGE_SIZE as u64);
    }

    /// Compares attributes from the store with the known ones; if others have changed the file, what
    /// they changed applies. Returns whether the attributes show any such change, as nothing of ours
    /// was in progress. `look`: as in [`overlay`](Self::overlay), and the lock if it was held.
    fn compare(
        &self,
        state: &mut State,
        attr: &Attr,
        look: Option<(Look, Option<&InvalidateLock>)>,
        others: Option<u64>,
    ) -> bool {
        let held = look.is_some_and(|(_, held)| held.is_some());
        let changing = state.invalidating && !held;
        let quiet = state.is_clean() && !changing;
        let current = quiet && look.is_some_and(|(look, _)| look.is_current(&state.overlay));
        // During a change of the whole file, leave this to the next look.
        let moved = !changing && state.overlay.others_moved(others);
        let resized = attr.size != self.size();
        if current && state.overlay.changed_outside(attr, resized, moved) {
            self.count(Count::OutsideChanges, 1);
            self.invalidate(state, attr.size);
        } else {
            let tells_size = look.is_some_and(|(look, _)| look.tells_size(&state.overlay));
            let grown = !changing && tells_size && self.grow(state, attr.size);
            if moved || grown {
                self.count(Count::OutsideChanges, 1);
                state.overlay.adopt_others(attr);
                self.drop_unproven(state, 0..u64::MAX);
            }
        }
        current
    }

    /// Others have made the file longer, if `size` is more than the known one: adopts it. Not while
    /// the page at the known end is unwritten: its zeros would be written over their data.
    fn grow(&self, state: &mut State, size: u64) -> bool {
        let known = self.size();
        let tail = known / PAGE_SIZE as u64;
        let is_cut = !known.is_multiple_of(PAGE_SIZE as u64);
        let unwritten = is_cut
            && (state.dirty.contains(tail) || state.writeback_of(&(tail..tail + 1)).is_some());
        if size <= known || unwritten {
            return false;
        }
        let mut edit = self.edit(state);
        let seqcount = self.write_seqcount(&edit);
        edit.replace(tail..u64::MAX, index::Replacement::Empty);
        seqcount.set_size(size);
        drop(seqcount);
        edit.finish();
        state.stored_size = state.stored_size.max(size);
        true
    }

    /// Drops every clean page and every hole, and sets the size: another program has changed the
    /// file. Nothing is dirty.
    pub(crate) fn invalidate(&self, state: &mut State, size: u64) {
        let mut edit = self.edit(state);
        let seqcount = self.write_seqcount(&edit);
        edit.replace(0..u64::MAX, index::Replacement::Empty);
        seqcount.set_size(size);
        drop(seqcount);
        edit.finish();
        state.stored_size = size;
        state.overlay.resizing();
    }

    /// Drops those of `pages` that are neither dirty nor under writeback; the size stays.
    pub(crate) fn drop_unproven(&self, state: &mut State, pages: Range<u64>) {
        let mut kept = RangeSet::default();
        for run in state.dirty.iter().chain(state.writeback.values().cloned()) {
            kept.insert(run);
        }
        let mut edit = self.edit(state);
        let seqcount = self.write_seqcount(&edit);
        let mut at = pages.start;
        for run in kept.iter() {
            let end = run.start.min(pages.end);
            if at < end {
                edit.replace(at..end, index::Replacement::Empty);
            }
            at = at.max(run.end);
        }
        if at < pages.end {
            edit.replace(at..pages.end, index::Replacement::Empty);
        }
        drop(seqcount);
        edit.finish();
    }

    /// Makes sure that the store's file is open for `purpose`, for `caller`, who has been checked ([`open_stored`]).
    pub(crate) async fn upgrade(&self, caller: &Caller, purpose: Purpose) -> Result<()> {
        let serves = |open: &dyn OpenFile| {
            let executes = purpose == Purpose::Execution;
            open.access().contains(purpose.access())
                && (executes || !self.only_to_execute.load(Ordering::Relaxed))
        };
        if serves(&**self.file.read()) {
            return Ok(());
        }
        let file = open_stored(&self.store, caller, self.id, purpose).await?;
        let mut open = self.file.write();
        // Unless another caller was faster.
        let unused = match serves(&**open) {
            true => file,
            false => {
                self.only_to_execute.store(purpose == Purpose::Execution, Ordering::Relaxed);
                std::mem::replace(&mut *open, file)
            }
        };
        // A store may do a lot when a file is closed.
        drop(open);
        drop(unused);
        Ok(())
    }

    /// Takes the store's file, for the caller to close, unless it is in use. The caller ensures
    /// that the file is not opened meanwhile.
    pub(crate) fn take_file(&self) -> Option<Arc<dyn OpenFile>> {
        let mut state = self.state.lock();
        if !state.is_clean() || state.invalidating || !state.fills.is_empty() {
            return None;
        }
        state.overlay.close();
        Some(std::mem::replace(&mut *self.file.write(), closed_file::shared()))
    }

    /// Whether the store's file may be closed: a later look can be compared with the last one.
    pub(crate) fn may_close(&self) -> bool {
        self.state.lock().overlay.is_proven()
    }

    /// Prepares the file so that its store file may be closed.
    pub(crate) async fn prepare_to_close(self: &Arc<Self>) {
        self.flush_soon();
        self.settle().await;
        // If this fails, the file stays open, and the flusher tries again.
        let _ = self.getattr().await;
    }

    /// Drops the clean pages: the next look at the file counts as the first.
    pub(crate) fn forget_clean(&self) {
        let mut state = self.state.lock();
        if !state.invalidating {
            self.drop_unproven(&mut state, 0..u64::MAX);
        }
    }

    /// Gives up write access to the store's file if no open file may write and nothing is dirty.
    pub(crate) async fn drop_write_access(self: &Arc<Self>) {
        let unwanted = |mapping: &Self| {
            mapping.writers.load(Ordering::SeqCst) == 0
                && mapping.file.read().access().contains(Access::WRITE)
        };
        if !unwanted(self) {
            return;
        }
        // A file without names cannot be opened again: it stays as it is.
        let Ok(file) = self.store.open(&Caller::Own, self.id, Access::READ).await else { return };
        let state = self.state.lock();
        if !state.is_clean() || state.invalidating || !unwanted(self) {
            return;
        }
        let old = {
            let mut open = self.file.write();
            // A writer is counted before it looks at the store's file. So under that file's lock
            // either we see the count, or the writer finds the file open for reading only and
            // reopens it.
            if self.writers.load(Ordering::SeqCst) > 0 {
                return;
            }
            std::mem::replace(&mut *open, file)
        };
        drop(state);
        drop(old);
    }
}
