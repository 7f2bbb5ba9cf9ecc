//! Closes the store's files of files that are not in use.
//!
//! While this program has a file open for writing, its machine cannot execute it (ETXTBSY); while
//! it has a removed file open, the space is not freed; and the file system cannot be unmounted.
//!
//! 1. When no program has had a file open for [`CLOSE_AFTER`], the flusher closes its store's file,
//!    once dirty pages are written and the attributes were read after that; the pages stay. If the
//!    attributes prove nothing for [`GIVE_UP_AFTER`], because other programs keep changing the
//!    file, the cache drops the pages and closes the file.
//! 2. If other open files remain, it gives up write access that long after the last close of an
//!    open file that may write.
//! 3. Of stores that other machines change, the last [`STAY_OPEN`] files stay open: an open file
//!    reports changes, and opening it again costs a call. Not more of them, because the server bounds
//!    a client's open files, and lets it wait for others to be closed.

use crate::fs::{FsShared, Table};
use crate::mapping::Mapping;
use crate::writeback::lane::IdleFiles;
use std::sync::Arc;
use std::time::{Duration, Instant};
use weir_base::sync::atomic::Ordering;
use weir_vfs::{Access, FileSystem, OpenFile};

/// How long the store's file stays open after the last close.
const CLOSE_AFTER: Duration = Duration::from_secs(2);
/// How long it stays open if nothing proves that no other program has changed it.
const GIVE_UP_AFTER: Duration = Duration::from_secs(30);
/// Files of a store that other machines change which stay open after the last close.
const STAY_OPEN: usize = 64;
/// Most files that one round looks at.
const ROUND: usize = 256;

/// When the last program closed a file.
#[derive(Clone, Copy)]
pub(crate) struct Idle {
    pub(crate) since: Instant,
    /// When to look at it again.
    due: Instant,
}

impl Idle {
    pub(crate) fn new(now: Instant) -> Self {
        Self { since: now, due: now + CLOSE_AFTER }
    }
}

impl IdleFiles for FsShared {
    fn close_idle(self: Arc<Self>, now: Instant) -> Vec<Arc<dyn OpenFile>> {
        let stay_open = stay_open(&*self.store);
        let metadata = &self.cache.memory().metadata;
        let tasks = &self.dirty.lane.tasks;
        // If the store hangs, the files that exceed the room are looked at again later.
        let room = self.dirty.lane.room_for_tasks();
        let mut closed = Vec::new();
        let mut prepare = Vec::new();
        let mut table = self.table.lock();
        for _ in 0..ROUND {
            if table.idle_open.len() <= stay_open {
                break;
            }
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
                    // A file that is dropped meanwhile needs no preparation, and its memory is freed.
                    prepare.push(Arc::downgrade(&mapping));
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
            tasks.spawn(async move {
                if let Some(mapping) = mapping.upgrade() {
                    mapping.prepare_to_close().await;
                }
            });
        }
        for mapping in unwanted {
            let fs = Arc::downgrade(&self);
            tasks.spawn(async move {
                // Open files get the error of what is lost.
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
    /// Enters a file that is open, but no longer for writing. Not for stores whose files stay open:
    /// the flusher would never remove the entry.
    pub(crate) fn note_written(&mut self, mapping: &Arc<Mapping>) {
        if mapping.store.names_change_here() && mapping.holds_write_access() {
            self.written.insert(mapping.id, Instant::now());
            mapping.lane().start();
        }
    }

    /// Whether there are files for the flusher to close.
    pub(crate) fn has_idle(&self) -> bool {
        let oldest = self.idle_open.values().next().and_then(|(id, _)| self.mappings.get(id));
        !self.written.is_empty() || oldest.is_some_and(|oldest| self.exceeds_open(&oldest.mapping))
    }

    /// Whether more idle files are open than may stay open of the store of `mapping`.
    pub(crate) fn exceeds_open(&self, mapping: &Mapping) -> bool {
        self.idle_open.len() > stay_open(&*mapping.store)
    }

    /// Looks at an idle file again later; it keeps its place among the idle files.
    fn wait_on(&mut self, id: weir_vfs::FileId, idle: Idle, tick: u64) {
        self.leave_idle(id);
        self.enter_idle(id, tick, idle);
    }
}

/// Idle files of a store that the flusher leaves open.
fn stay_open(store: &dyn FileSystem) -> usize {
    if store.names_change_here() { 0 } else { STAY_OPEN }
}

impl Mapping {
    /// Whether the store's file is open for writing though no open file may write.
    fn holds_write_access(&self) -> bool {
        self.writers.load(Ordering::SeqCst) == 0
            && self.opens.load(Ordering::SeqCst) > 0
            && !self.unlinked.load(Ordering::Relaxed)
            && self.file().access().contains(Access::WRITE)
    }

    /// Whether the store counts changes by other programs while it has the file open.
    pub(crate) fn counts_others(&self) -> bool {
        self.file().changes_by_others().is_some()
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::Config;
    use crate::memory::metadata::Shrinkable;
    use crate::testing::{Rig, poll_once};
    use weir_stores::fault::{Call, What};
    use weir_stores::memory::MemoryFs;
    use weir_vfs::{Caller, IoFlags};

    #[test]
    fn opens_wait_for_closes_when_metadata_has_no_room() {
        const RW: Access = Access::READ.union(Access::WRITE);
        let config = Config { budget_bytes: 64 * 4096, ..Config::default() };
        let rig = Rig::configured(MemoryFs::new(), config);
        let memory = rig.fs.cache().memory();
        let go_on = rig.hang_tasks();
        let open = |id| Box::pin(rig.fs.open(&Caller::Own, id, RW));
        let (mut last, mut waiting) = (None, None);
        for n in 0..10_000 {
            let id = rig.make(&format!("f{n}"));
            let mut opened = open(id);
            if poll_once(&mut opened).is_pending() {
                waiting = Some((id, opened));
                break;
            }
            last = Some(id);
            drop(opened);
            // As the flusher does some seconds later.
            rig.fs.shared.clone().close_idle(Instant::now() + CLOSE_AFTER);
        }
        let (id, mut waiting) = waiting.expect("opens go on without bound");
        let over = memory.metadata.bytes() - memory.limits().index_bytes;
        assert!(over <= 8192, "{over} bytes too many");
        let mut cancelled = open(rig.make("g"));
        assert!(poll_once(&mut cancelled).is_pending());
        drop(cancelled);
        // One that needs no memory does not wait.
        assert!(poll_once(open(last.unwrap())).is_ready());
        assert!(poll_once(&mut waiting).is_pending());
        drop(go_on);
        assert_eq!(pollster::block_on(waiting).unwrap().id(), id);
    }

    #[test]
    fn a_file_to_be_prepared_for_its_close_can_be_dropped() {
        let rig = Rig::new();
        let file = rig.create("f");
        let mapping = Arc::downgrade(&file.open.mapping);
        let go_on = rig.hang_tasks();
        drop(file);
        let shared = &rig.fs.shared;
        let alive = shared.dirty.lane.tasks.alive();
        shared.clone().close_idle(Instant::now() + CLOSE_AFTER);
        assert!(shared.dirty.lane.tasks.alive() > alive, "it is to be prepared");
        assert!(shared.drop_oldest_idle());
        assert_eq!(mapping.strong_count(), 0, "its memory is free");
        drop(go_on);
    }

    #[test]
    fn tasks_of_a_hanging_store_do_not_pile_up() {
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
