//! Closing the store's files of files that are not in use.
//!
//! A file that this program has open for writing cannot be executed on its machine (ETXTBSY), the
//! space of one that is removed there is not freed, and its file system cannot be unmounted.
//!
//! 1. The store's file of a file that no program has had open for [`CLOSE_AFTER`] is closed, once what is
//!    dirty is written and the file was looked at after that; its pages stay. If the looks prove nothing
//!    for [`GIVE_UP_AFTER`], since others keep changing the file, its pages go and it is closed.
//! 2. Write access to one that others still have open is given up so long after the last open file
//!    that may write.
//! 3. Of stores that others change from elsewhere nothing is closed for this: an open file there
//!    tells of changes, and opening it again costs a call.

use crate::fs::{FsShared, Table};
use crate::mapping::Mapping;
use crate::writeback::lane::IdleFiles;
use std::sync::Arc;
use std::time::{Duration, Instant};
use weir_base::sync::atomic::Ordering;
use weir_vfs::{Access, OpenFile};

/// How long the store's file stays open after the last close.
const CLOSE_AFTER: Duration = Duration::from_secs(2);
/// How long it stays open if nothing proves that others leave it alone.
const GIVE_UP_AFTER: Duration = Duration::from_secs(30);
/// Files that are looked at in a round.
const ROUND: usize = 256;

/// Since when no program has a file open.
#[derive(Clone, Copy)]
pub(crate) struct Idle {
    pub(crate) since: Instant,
    /// When it is looked at again.
    due: Instant,
}

impl Idle {
    pub(crate) fn new(now: Instant) -> Self {
        Self { since: now, due: now + CLOSE_AFTER }
    }
}

impl IdleFiles for FsShared {
    fn close_idle(self: Arc<Self>, now: Instant) -> Vec<Arc<dyn OpenFile>> {
        if !self.store.names_change_here() {
            return Vec::new();
        }
        let metadata = &self.cache.memory().metadata;
        let tasks = &self.dirty.lane.tasks;
        // If the store hangs, what there is no room for is looked at again when it does not.
        let room = self.dirty.lane.room_for_tasks();
        let mut closed = Vec::new();
        let mut prepare = Vec::new();
        let mut table = self.table.lock();
        for _ in 0..ROUND {
            let Some((_, &(id, idle))) = table.idle_open.first_key_value() else { break };
            if now < idle.due {
                break;
            }
            let Some(mapping) = table.mappings.get(&id).map(|e| e.mapping.clone()) else {
                table.idle_open.pop_first();
                continue;
            };
            let mut may_close = mapping.may_close();
            if !may_close && now - idle.since >= GIVE_UP_AFTER {
                mapping.forget_clean();
                may_close = true;
            }
            match if may_close { mapping.take_file() } else { None } {
                Some(file) => {
                    table.idle_open.pop_first();
                    closed.push(file);
                }
                None => {
                    table.wait_on(id, Idle { due: now + CLOSE_AFTER / 4, ..idle }, metadata.tick());
                    prepare.push(mapping);
                }
            }
        }
        prepare.truncate(room);
        let due = table.written.extract_if(|_, since| now - *since >= CLOSE_AFTER);
        let due: Vec<_> = due.take(room - prepare.len()).map(|(id, _)| id).collect();
        let unwanted: Vec<_> =
            due.iter().filter_map(|id| Some(table.mappings.get(id)?.mapping.clone())).collect();
        drop(table);
        for mapping in prepare {
            tasks.spawn(async move { mapping.prepare_to_close().await });
        }
        for mapping in unwanted {
            let fs = Arc::downgrade(&self);
            tasks.spawn(async move {
                // Open files are told of what is lost.
                let _ = mapping.write_or_lose(0..u64::MAX).await;
                mapping.settle().await;
                mapping.drop_write_access().await;
                if mapping.holds_write_access()
                    && let Some(fs) = fs.upgrade()
                {
                    fs.table.lock().note_written(&mapping);
                }
            });
        }
        closed
    }

    fn with_list(&self, f: &mut dyn FnMut(bool) -> bool) -> bool {
        let table = self.table.lock();
        f(table.has_idle())
    }
}

impl Table {
    /// Notes a file that is open, but no longer for writing. Not for stores of which files are not
    /// closed: the flusher would never take the note out again.
    pub(crate) fn note_written(&mut self, mapping: &Arc<Mapping>) {
        if mapping.store.names_change_here() && mapping.holds_write_access() {
            self.written.insert(mapping.id, Instant::now());
            mapping.lane().start();
        }
    }

    /// Whether there are files that the flusher will close.
    pub(crate) fn has_idle(&self) -> bool {
        let closes =
            |id| self.mappings.get(id).is_some_and(|entry| entry.mapping.store.names_change_here());
        !self.written.is_empty() || self.idle_open.values().next().is_some_and(|(id, _)| closes(id))
    }

    /// Looks at an idle file again later; its place among the idle ones stays.
    fn wait_on(&mut self, id: weir_vfs::FileId, idle: Idle, tick: u64) {
        self.leave_idle(id);
        self.enter_idle(id, tick, idle);
    }
}

impl Mapping {
    /// Whether the store's file is open for writing though no open file may write.
    fn holds_write_access(&self) -> bool {
        self.writers.load(Ordering::SeqCst) == 0
            && self.opens.load(Ordering::SeqCst) > 0
            && !self.unlinked.load(Ordering::Relaxed)
            && self.file().access().contains(Access::WRITE)
    }

    /// Whether the store counts changes by others while it has the file open.
    pub(crate) fn counts_others(&self) -> bool {
        self.file().changes_by_others().is_some()
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::testing::Rig;
    use weir_stores::fault::{Call, What};
    use weir_vfs::{Caller, IoFlags};

    #[test]
    fn tasks_of_a_store_that_hangs_do_not_pile_up() {
        let rig = Rig::new();
        rig.always(Call::Write, What::Hold);
        let closed = rig.create("f");
        closed.write_at(&[1; 4096], 0, IoFlags::empty()).unwrap();
        drop(closed);
        let open_to_write = rig.create("g");
        let open = pollster::block_on(rig.fs.open(&Caller::Own, open_to_write.id(), Access::READ));
        drop(open_to_write);
        let mapping = &open.as_ref().unwrap().open.mapping;
        let shared = &rig.fs.shared;
        let tasks = &shared.dirty.lane.tasks;
        let go_on = rig.hang_tasks();
        let mut now = Instant::now();
        for _ in 0..3000 {
            now += CLOSE_AFTER;
            // As at each close of an open file that might write.
            shared.table.lock().note_written(mapping);
            shared.clone().close_idle(now);
        }
        assert!(tasks.alive() <= 1100, "{} tasks wait for the store", tasks.alive());
        assert!(shared.table.lock().written.contains_key(&mapping.id), "it is looked at again");
        drop(go_on);
        rig.store.clear();
        rig.store.release();
    }
}
