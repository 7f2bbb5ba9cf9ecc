//! One sync of a file or directory in its store at a time, whether the cache has a mapping of it or not.
//!
//! 1. A store may report lost data to only one of several syncs that run at once (`mapping/sync.rs`). So
//!    every sync of a store's file or directory takes its turn here, and a call that waited while a sync
//!    failed fails with that sync's error.
//! 2. A sync by id covers all calls that asked for one before it began.

use crate::wait::WaitQueue;
use std::collections::HashMap;
use std::future::Future;
use weir_base::sync::Mutex;
use weir_vfs::{Error, FileId, Result};

/// The files and directories of a store that are being synced.
#[derive(Default)]
pub(crate) struct NodeSyncs {
    nodes: Mutex<HashMap<FileId, Node>>,
    changed: WaitQueue,
}

/// Which call of the store syncs a file.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum SyncBy {
    /// That of its open file.
    OpenFile,
    /// [`FileSystem::sync_node`](weir_vfs::FileSystem::sync_node).
    Id,
}

struct Node {
    /// Calls that sync it or wait for their turn.
    calls: usize,
    running: bool,
    /// Number of syncs by id that have begun.
    begun: u64,
    /// Number of syncs that have failed, and the error of the last one.
    failed: (u64, Error),
}

impl NodeSyncs {
    /// Runs a sync of `id` when no other one runs.
    ///
    /// # Errors
    /// Those of the sync, or of one that failed while this call waited.
    pub(crate) async fn run(
        &self,
        id: FileId,
        by: SyncBy,
        sync: impl Future<Output = Result<()>>,
    ) -> Result<()> {
        let mut turn = self.enter(id, by);
        loop {
            let ticket = self.changed.ticket();
            match turn.begin() {
                Some(Begun::Runs) => break,
                Some(Begun::Answered(outcome)) => return outcome,
                None => self.changed.wait(ticket).await,
            }
        }
        turn.outcome = sync.await;
        turn.outcome
    }

    fn enter(&self, id: FileId, by: SyncBy) -> SyncTurn<'_> {
        let new = || Node { calls: 0, running: false, begun: 0, failed: (0, Error::Io) };
        let mut nodes = self.nodes.lock();
        let node = nodes.entry(id).or_insert_with(new);
        node.calls += 1;
        let (number, failures) = (node.begun + 1, node.failed.0);
        SyncTurn { syncs: self, id, by, number, failures, runs: false, outcome: Err(Error::Io) }
    }
}

enum Begun {
    Runs,
    /// By another call's sync.
    Answered(Result<()>),
}

/// A call's place among the syncs of a node. It ends when this is dropped, with an error if the store
/// has panicked.
struct SyncTurn<'a> {
    syncs: &'a NodeSyncs,
    id: FileId,
    by: SyncBy,
    /// The first sync by id that covers the call.
    number: u64,
    /// Number of syncs that had failed when the call began.
    failures: u64,
    runs: bool,
    outcome: Result<()>,
}

impl SyncTurn<'_> {
    fn begin(&mut self) -> Option<Begun> {
        let mut nodes = self.syncs.nodes.lock();
        let node = nodes.get_mut(&self.id)?;
        if node.running {
            return None;
        }
        if node.failed.0 != self.failures {
            return Some(Begun::Answered(Err(node.failed.1)));
        }
        if self.by == SyncBy::Id {
            if node.begun >= self.number {
                return Some(Begun::Answered(Ok(())));
            }
            node.begun += 1;
        }
        node.running = true;
        self.runs = true;
        Some(Begun::Runs)
    }
}

impl Drop for SyncTurn<'_> {
    fn drop(&mut self) {
        let mut nodes = self.syncs.nodes.lock();
        let Some(node) = nodes.get_mut(&self.id) else { return };
        node.calls -= 1;
        if self.runs {
            node.running = false;
            if let Err(error) = self.outcome {
                node.failed = (node.failed.0 + 1, error);
            }
        }
        if node.calls == 0 {
            nodes.remove(&self.id);
        }
        drop(nodes);
        self.syncs.changed.notify();
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::{NodeSyncs, SyncBy};
    use crate::File;
    use crate::memory::metadata::Shrinkable;
    use crate::testing::{Rig, poll_once};
    use std::cell::Cell;
    use std::future::poll_fn;
    use std::pin::pin;
    use std::task::Poll;
    use weir_stores::fault::{Call, Fault, Rule, What, When};
    use weir_stores::memory::MemoryFs;
    use weir_vfs::{Caller, Error, FileId, IoFlags};

    /// A file with data that is not synced, of which the cache has no mapping. The disk fails its first sync by id.
    fn without_mapping(fails: bool) -> (Rig, FileId) {
        let disk = Fault::over(MemoryFs::new(), 1);
        if fails {
            let what = What::Fail(Error::Io);
            disk.add(Rule { call: Call::SyncNode, when: When::Nth(0), what });
        }
        let rig = Rig::over(disk);
        let file = rig.create("f");
        file.write_at(&[1], 0, IoFlags::empty()).unwrap();
        pollster::block_on(file.write_back_async()).unwrap();
        let id = file.id();
        drop(file);
        while !rig.fs.shared.drop_oldest_idle() {
            std::thread::yield_now();
        }
        (rig, id)
    }

    fn hold_syncs(rig: &Rig) {
        rig.always(Call::SyncNode, What::Hold);
        rig.always(Call::Sync, What::Hold);
    }

    fn release_all(rig: &Rig) {
        rig.store.clear();
        rig.store.release();
    }

    #[test]
    fn a_file_that_is_opened_while_it_is_synced_by_its_id_is_not_synced_beside() {
        for fails in [false, true] {
            let (rig, id) = without_mapping(fails);
            hold_syncs(&rig);
            let mut by_id = pin!(rig.fs.sync_node(id));
            assert!(poll_once(by_id.as_mut()).is_pending());
            let file: File = rig.open(id);
            let mut by_file = pin!(file.sync_async(true));
            assert!(poll_once(by_file.as_mut()).is_pending());
            assert_eq!(rig.store.held(), 1, "one sync at a time");
            release_all(&rig);
            let outcome = if fails { Err(Error::Io) } else { Ok(()) };
            assert_eq!(pollster::block_on(by_id), outcome);
            assert_eq!(pollster::block_on(by_file), outcome, "it had begun when the other failed");
            assert_eq!(file.sync(true), Ok(()));
        }
    }

    #[test]
    fn an_error_of_a_sync_by_id_is_told_to_each_open_file() {
        let (rig, id) = without_mapping(true);
        hold_syncs(&rig);
        let mut by_id = pin!(rig.fs.sync_node(id));
        assert!(poll_once(by_id.as_mut()).is_pending());
        let file = rig.open(id);
        release_all(&rig);
        assert_eq!(pollster::block_on(by_id), Err(Error::Io));
        assert_eq!(file.sync(true), Err(Error::Io));
        assert_eq!(file.sync(true), Ok(()));
    }

    #[test]
    fn a_sync_of_what_the_store_has_waits_for_that_of_an_open_file() {
        let rig = Rig::new();
        let file = rig.create("f");
        hold_syncs(&rig);
        let mut by_file = pin!(file.sync_async(true));
        assert!(poll_once(by_file.as_mut()).is_pending());
        let mut stored = pin!(rig.fs.sync_stored(file.id()));
        let mut again = pin!(rig.fs.sync_stored(file.id()));
        assert!(poll_once(stored.as_mut()).is_pending());
        assert!(poll_once(again.as_mut()).is_pending());
        assert_eq!(rig.store.held(), 1, "one sync at a time");
        rig.store.release();
        assert_eq!(pollster::block_on(by_file), Ok(()));
        assert!(poll_once(stored.as_mut()).is_pending());
        assert_eq!(rig.store.held(), 1);
        release_all(&rig);
        assert_eq!(pollster::block_on(stored), Ok(()));
        assert_eq!(poll_once(again.as_mut()), Poll::Ready(Ok(())), "it shares that sync");
        assert!(rig.fs.shared.dirty.node_syncs.nodes.lock().is_empty());
    }

    #[test]
    fn an_abandoned_sync_of_a_closed_file_keeps_its_error() {
        let (rig, id) = without_mapping(true);
        hold_syncs(&rig);
        let mut sync = Box::pin(rig.fs.sync_node(id));
        assert!(poll_once(&mut sync).is_pending());
        drop(sync);
        release_all(&rig);
        while rig.fs.write_errors() == 0 {
            std::thread::yield_now();
        }
        let file = rig.open(id);
        assert_eq!(file.sync(true), Err(Error::Io), "the store tells it only once");
        assert_eq!(file.sync(true), Ok(()));
    }

    #[test]
    fn a_mapping_is_not_dropped_while_its_file_is_synced() {
        let rig = Rig::new();
        let file = rig.create("f");
        hold_syncs(&rig);
        let mapping = file.open.mapping.clone();
        let mut sync = pin!(mapping.make_durable(0, true));
        assert!(poll_once(sync.as_mut()).is_pending());
        drop(file);
        assert!(!rig.fs.shared.drop_oldest_idle(), "an error of the sync has to be kept");
        release_all(&rig);
        assert_eq!(pollster::block_on(sync), Ok(()));
        assert!(rig.fs.shared.drop_oldest_idle());
    }

    #[test]
    fn a_file_that_is_gone_has_nothing_to_sync() {
        for open in [true, false] {
            let rig = Rig::new();
            let file = rig.create("f");
            let id = file.id();
            let file = open.then_some(file);
            // By another program: the cache does not know.
            let entry = rig.fs.root().entry(b"f");
            pollster::block_on(rig.fs.store().unlink(&Caller::Own, entry)).unwrap();
            if !open {
                assert!(rig.fs.shared.drop_oldest_idle());
            }
            assert_eq!(pollster::block_on(rig.fs.sync_node(id)), Ok(()), "open: {open}");
            drop(file);
        }
    }

    #[test]
    fn calls_that_wait_share_a_failure_and_those_by_id_a_sync() {
        let id = FileId { ino: 1, generation: 1 };
        for outcome in [Ok(()), Err(Error::Io)] {
            let (syncs, begun, may_end) = (NodeSyncs::default(), Cell::new(0), Cell::new(false));
            let sync = |outcome| {
                let (begun, may_end) = (&begun, &may_end);
                async move {
                    begun.set(begun.get() + 1);
                    poll_fn(|_| if may_end.get() { Poll::Ready(()) } else { Poll::Pending }).await;
                    outcome
                }
            };
            let mut first = pin!(syncs.run(id, SyncBy::OpenFile, sync(outcome)));
            assert!(poll_once(first.as_mut()).is_pending());
            let mut by_file = pin!(syncs.run(id, SyncBy::OpenFile, sync(Ok(()))));
            let mut by_id = pin!(syncs.run(id, SyncBy::Id, sync(Ok(()))));
            let mut shares = pin!(syncs.run(id, SyncBy::Id, sync(Ok(()))));
            assert!(poll_once(by_file.as_mut()).is_pending());
            assert!(poll_once(by_id.as_mut()).is_pending());
            assert!(poll_once(shares.as_mut()).is_pending());
            assert_eq!(begun.get(), 1, "one at a time");
            may_end.set(true);
            assert_eq!(poll_once(first), Poll::Ready(outcome));
            assert_eq!(poll_once(by_file), Poll::Ready(outcome));
            assert_eq!(poll_once(by_id), Poll::Ready(outcome));
            assert_eq!(poll_once(shares), Poll::Ready(outcome));
            assert_eq!(begun.get(), if outcome.is_ok() { 3 } else { 1 });
            assert!(syncs.nodes.lock().is_empty());
            let later = pin!(syncs.run(id, SyncBy::OpenFile, sync(Ok(()))));
            assert_eq!(poll_once(later), Poll::Ready(Ok(())), "it began after the failure");
        }
    }
}
