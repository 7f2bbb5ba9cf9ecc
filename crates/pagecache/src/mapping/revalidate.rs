//! Attributes of a file in the cache; noticing what others change; letting go of the store's file.
//!
//! 1. A look at the store's attributes shows changes by others: by the change attribute when nothing
//!    of ours is under way, and at any time by the store's count of them, if it keeps one.
//! 2. After such a change no page stays but those that are dirty or under writeback, and nothing
//!    that is being read is published.
//! 3. The store's file of a file that no program has open is closed only after a look, after the last
//!    change of ours, that a later one can be compared with: else a change meanwhile would go unseen.
//! 4. Write access is given up only while no open file may write and nothing is dirty.

use crate::mapping::{Mapping, State};
use crate::mapping::{closed_file, index};
use crate::ranges::RangeSet;
use crate::stats::Count;
use std::sync::Arc;
use weir_base::sync::atomic::Ordering;
use weir_vfs::{Access, Attr, Caller, OpenFile, Result};

impl Mapping {
    /// Attributes in the store, and how many changes by others it has counted.
    pub(crate) async fn stored_attr(&self) -> Result<(Attr, Option<u64>)> {
        let file = self.file();
        if file.access().is_empty() {
            return Ok((self.store.getattr(self.id).await?, None));
        }
        let attr = file.getattr().await?;
        Ok((attr, file.changes_by_others()))
    }

    /// Attributes as they are with what the cache knows.
    pub(crate) async fn getattr(self: &Arc<Self>) -> Result<Attr> {
        let seen = self.state.lock().overlay.generation();
        let (mut attr, others) = self.stored_attr().await?;
        self.overlay(&mut attr, Some(seen), others);
        Ok(attr)
    }

    /// Puts what the cache knows into attributes that the store gave. `seen` is the generation of
    /// our own changes before the store was asked, `None` if that was not noted; `others` how many
    /// changes by others it had counted then.
    pub(crate) fn overlay(&self, attr: &mut Attr, seen: Option<u64>, others: Option<u64>) {
        let mut state = self.state.lock();
        let quiet = state.is_clean() && !state.invalidating;
        let current = quiet && seen == Some(state.overlay.generation());
        // While the file is changed as a whole, the next look tells.
        let moved = !state.invalidating && state.overlay.others_moved(others);
        let resized = attr.size != self.size();
        if current && state.overlay.changed_outside(attr, resized, moved) {
            self.count(Count::OutsideChanges, 1);
            self.invalidate(&mut state, attr.size);
        } else if moved {
            self.count(Count::OutsideChanges, 1);
            state.overlay.adopt_others(attr);
            self.drop_unproven(&mut state);
        }
        state.overlay.present(attr);
        attr.size = self.size();
    }

    /// Drops every clean page and every hole, and sets the size: the file has changed behind our
    /// back. Nothing is dirty; the lock is held.
    pub(crate) fn invalidate(&self, state: &mut State, size: u64) {
        let mut edit = self.edit(state);
        let seqcount = self.write_seqcount();
        edit.replace(0..u64::MAX, index::Replacement::Empty);
        seqcount.set_size(size);
        drop(seqcount);
        edit.finish(state);
        state.stored_size = size;
    }

    /// The same while some pages are dirty or under writeback: these stay, and so does the size. The
    /// lock is held.
    pub(crate) fn drop_unproven(&self, state: &mut State) {
        let mut kept = RangeSet::default();
        for run in state.dirty.iter().chain(state.writeback.values().cloned()) {
            kept.insert(run);
        }
        let mut edit = self.edit(state);
        let seqcount = self.write_seqcount();
        let mut at = 0;
        for run in kept.iter() {
            if at < run.start {
                edit.replace(at..run.start, index::Replacement::Empty);
            }
            at = run.end;
        }
        edit.replace(at..u64::MAX, index::Replacement::Empty);
        drop(seqcount);
        edit.finish(state);
    }

    /// Makes sure that the store's file is open for `access`.
    pub(crate) async fn upgrade(&self, access: Access) -> Result<()> {
        if self.file().access().contains(access) {
            return Ok(());
        }
        let file = self.store.open(&Caller::Own, self.id, access | Access::READ).await?;
        let mut open = self.file.write();
        // Unless another caller has come first.
        if !open.access().contains(access) {
            *open = file;
        }
        Ok(())
    }

    /// Takes the store's file away, to be closed, unless it is in use. The caller sees to it that the
    /// file is not opened meanwhile.
    pub(crate) fn take_file(&self) -> Option<Arc<dyn OpenFile>> {
        let mut state = self.state.lock();
        if !state.is_clean() || state.invalidating || !state.fills.is_empty() {
            return None;
        }
        state.overlay.close();
        Some(std::mem::replace(&mut *self.file.write(), closed_file::shared()))
    }

    /// Whether the store's file may be closed: a look at it later can be compared with the last one.
    pub(crate) fn may_close(&self) -> bool {
        self.state.lock().overlay.is_proven()
    }

    /// Brings the file to where its store file may be closed.
    pub(crate) async fn prepare_to_close(self: &Arc<Self>) {
        self.flush_soon();
        self.settle().await;
        // A file that cannot be looked at stays open, and is looked at again.
        let _ = self.getattr().await;
    }

    /// Forgets what cannot be proven: the next look at the file is as the first.
    pub(crate) fn forget_clean(&self) {
        let mut state = self.state.lock();
        if !state.invalidating {
            self.drop_unproven(&mut state);
        }
    }

    /// Gives up write access to the store's file, if no open file may write and nothing is dirty.
    pub(crate) async fn drop_write_access(self: &Arc<Self>) {
        let unwanted = |mapping: &Self| {
            mapping.writers.load(Ordering::SeqCst) == 0
                && mapping.file.read().access().contains(Access::WRITE)
        };
        if !unwanted(self) {
            return;
        }
        // One whose last name is gone cannot be opened again: it stays as it is.
        let Ok(file) = self.store.open(&Caller::Own, self.id, Access::READ).await else { return };
        let state = self.state.lock();
        if !state.is_clean() || state.invalidating || !unwanted(self) {
            return;
        }
        let old = {
            let mut open = self.file.write();
            // Who may write has been counted before looking at the file: under its lock either we
            // see the count, or the writer finds the file open for reading and opens it anew.
            if self.writers.load(Ordering::SeqCst) > 0 {
                return;
            }
            std::mem::replace(&mut *open, file)
        };
        drop(state);
        drop(old);
    }
}
