//! Making a file durable: the store syncs a file for one caller at a time.
//!
//! 1. A store may report lost data to only one of several syncs that run at once: fsync(2) reports
//!    an error once per open file description, and the other call has nothing left to write and
//!    succeeds. So one sync of a file runs at a time, and its error is recorded before the callers
//!    that took part in it, or that waited for it to end, return.
//! 2. A call is answered by a sync that began after it. Calls that arrive during a sync share the
//!    next one.
//! 3. Every call that had begun when an error was recorded fails with it: the data that was lost
//!    may be that of any of them.
//! 4. A sync that has begun runs to its end, even if its caller goes away.
//! 5. Syncs of a file without its mapping take turns with these (`writeback/node_syncs.rs`).
//!
//! ```text
//!        join                 begin                   end
//! call -------> [next sync] --------> [running sync] -----> errors, durability; wakes all calls
//! ```

use super::{Mapping, State};
use crate::writeback::node_syncs::SyncBy;
use crate::writeback::syncs::{JoinedSync, Sync};
use std::ops::Range;
use std::sync::Arc;
use weir_vfs::{Error, FileId, FileSystem, Result};

impl Mapping {
    /// Writes back pages, and makes the file durable.
    ///
    /// # Errors
    /// Those of [`write_back`](Self::write_back) and [`make_durable`](Self::make_durable).
    pub(crate) async fn write_and_sync(
        self: &Arc<Self>,
        pages: Range<u64>,
        since: u64,
        data_only: bool,
    ) -> Result<()> {
        self.write_back(pages).await?;
        self.settle().await;
        self.make_durable(since, data_only).await
    }

    /// Has the store sync the file (with attributes, unless `data_only`), and records an error for
    /// all open files.
    ///
    /// # Errors
    /// The last error of writing or syncing the file, if there were more than `since`.
    pub(crate) async fn make_durable(self: &Arc<Self>, since: u64, data_only: bool) -> Result<()> {
        let number = self.state.lock().syncs.join(data_only);
        loop {
            let ticket = self.changed.ticket();
            let step = {
                let State { syncs, durability, .. } = &mut *self.state.lock();
                syncs.next_step(number, durability)
            };
            match step {
                JoinedSync::Done => return self.state.lock().errors.since(since),
                JoinedSync::Wait => {
                    // The caller that ran it may have left it to the thread of the tasks.
                    self.lane().tasks.retry();
                    self.changed.wait(ticket).await;
                }
                JoinedSync::Run(sync) => {
                    let running = Running { mapping: self.clone(), outcome: Err(Error::Io), sync };
                    crate::tasks::finish(&self.lane().tasks, running.run()).await;
                }
            }
        }
    }

    /// The store's sync: of the open file, or of the node if the store's file is closed.
    async fn sync_store(&self, data_only: bool) -> Result<()> {
        let (file, syncs) = (self.file(), &self.dirty.store.node_syncs);
        if file.access().is_empty() {
            return syncs.run(self.id, SyncBy::Id, sync_node(&*self.store, self.id)).await;
        }
        syncs.run(self.id, SyncBy::OpenFile, file.sync(data_only)).await
    }
}

/// Has the store sync a file or directory. One that is gone has nothing to be made durable.
///
/// # Errors
/// Those of the store. A file that was moved and is still being searched for
/// ([`Error::WouldBlock`]) is not synced.
pub(crate) async fn sync_node(store: &dyn FileSystem, id: FileId) -> Result<()> {
    match store.sync_node(id).await {
        Err(Error::NotFound | Error::Stale) => Ok(()),
        synced => synced,
    }
}

/// A sync that is running. It ends when this is dropped, with an error if the store has panicked.
struct Running {
    mapping: Arc<Mapping>,
    outcome: Result<()>,
    sync: Sync,
}

impl Running {
    async fn run(mut self) {
        self.outcome = self.mapping.sync_store(self.sync.data_only).await;
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let mapping = &self.mapping;
        let mut state = mapping.state.lock();
        match self.outcome {
            Ok(()) => state.durability.synced(self.sync.covered),
            Err(error) => mapping.note_error(&mut state, error),
        }
        state.syncs.end();
        drop(state);
        mapping.changed.notify();
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::File;
    use crate::testing::{Rig, poll_once};
    use std::pin::{Pin, pin};
    use std::thread::yield_now;
    use weir_stores::fault::{Call, Fault, Rule, What, When};
    use weir_stores::memory::MemoryFs;
    use weir_vfs::IoFlags;

    /// A file whose syncs are held, over a disk of which one sync fails, which it tells once.
    fn held(failing: Option<u64>) -> (Rig, File) {
        let disk = Fault::over(MemoryFs::new(), 1);
        if let Some(nth) = failing {
            let what = What::Fail(Error::Io);
            disk.add(Rule { call: Call::Sync, when: When::Nth(nth), what });
        }
        let rig = Rig::over(disk);
        let file = rig.create("f");
        rig.always(Call::Sync, What::Hold);
        (rig, file)
    }

    type StableWrite<'a> = Pin<Box<dyn Future<Output = Result<usize>> + 'a>>;

    /// A stable write, as far as it gets: its data is in the store.
    fn stable_write(file: &File, page: u64) -> StableWrite<'_> {
        let mut call: StableWrite<'_> =
            Box::pin(
                async move { file.write_at_async(&[1; 4096], page * 4096, IoFlags::SYNC).await },
            );
        let stored = || {
            let state = file.open.mapping.state.lock();
            // The times, too.
            let settles = state.invalidating || state.overlay.unsettled().is_some();
            state.is_clean() && !settles && state.stored_size > page * 4096
        };
        loop {
            let was_stored = stored();
            assert!(poll_once(&mut call).is_pending());
            if was_stored {
                return call;
            }
            yield_now();
        }
    }

    #[test]
    fn calls_that_arrive_during_a_sync_share_the_next_one() {
        let (rig, file) = held(None);
        let first = stable_write(&file, 0);
        assert_eq!(rig.store.held(), 1);
        let others: Vec<_> = (1..9).map(|page| stable_write(&file, page)).collect();
        assert_eq!(rig.store.held(), 1, "one sync at a time");
        rig.store.release();
        assert_eq!(pollster::block_on(first), Ok(4096));
        let mut others = others.into_iter();
        let mut second = others.next().unwrap();
        assert!(poll_once(&mut second).is_pending(), "the first sync may not cover its write");
        assert_eq!(rig.store.held(), 1);
        rig.store.release();
        assert_eq!(pollster::block_on(second), Ok(4096));
        for mut other in others {
            assert_eq!(poll_once(&mut other), std::task::Poll::Ready(Ok(4096)));
        }
        assert_eq!(rig.store.injected(), 2);
    }

    #[test]
    fn a_sync_that_fails_fails_each_call_that_had_begun() {
        for failing in [0, 1] {
            let (rig, file) = held(Some(failing));
            let first = stable_write(&file, 0);
            let second = stable_write(&file, 1);
            rig.store.clear();
            rig.store.release();
            if failing == 0 {
                // The store tells one call only, also of what the other one has written.
                assert_eq!(pollster::block_on(first), Err(Error::Io));
                assert_eq!(pollster::block_on(second), Err(Error::Io));
            } else {
                assert_eq!(pollster::block_on(first), Ok(4096));
                assert_eq!(pollster::block_on(second), Err(Error::Io));
            }
            assert_eq!(file.write_at(&[3; 4096], 0, IoFlags::SYNC), Ok(4096), "written later");
        }
    }

    #[test]
    fn an_abandoned_sync_completes_and_its_error_is_reported() {
        let (rig, file) = held(Some(0));
        let first = stable_write(&file, 0);
        let second = stable_write(&file, 1);
        let other = rig.open(file.id());
        drop(first);
        rig.store.clear();
        rig.store.release();
        assert_eq!(pollster::block_on(second), Err(Error::Io));
        assert_eq!(other.sync(true), Err(Error::Io), "each open file is told");
        assert_eq!(other.sync(true), Ok(()));
    }

    #[test]
    fn a_store_that_panics_fails_the_sync_and_not_the_next() {
        let (rig, file) = held(None);
        let mapping = file.open.mapping.clone();
        let begun = {
            let State { syncs, durability, .. } = &mut *mapping.state.lock();
            let number = syncs.join(true);
            syncs.next_step(number, durability)
        };
        let JoinedSync::Run(sync) = begun else { panic!("nothing else runs") };
        let mut waiting = pin!(mapping.make_durable(0, true));
        assert!(poll_once(&mut waiting).is_pending());
        // As unwinding does.
        drop(Running { mapping: mapping.clone(), outcome: Err(Error::Io), sync });
        assert!(poll_once(&mut waiting).is_pending());
        assert_eq!(rig.store.held(), 1, "the next sync runs");
        rig.store.release();
        assert_eq!(pollster::block_on(waiting), Err(Error::Io));
    }
}
