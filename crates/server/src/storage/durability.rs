//! Commits names and attributes to disk before the reply.
//!
//! NFS has COMMIT for data only: CREATE, REMOVE, RENAME, SETATTR and similar changes must be on
//! stable storage when the server replies (RFC 1813 section 3.3.7, RFC 8881 section 18.32.3).
//!
//! 1. A handler changes the store first and then commits. [`Committer::commit`] succeeds only if a
//!    sync of each node *began* after the call, hence after the change.
//! 2. One sync of a node runs at a time. Commits that arrive meanwhile share the next one, so
//!    concurrent changes to one directory cost few syncs. Syncs of different nodes run
//!    concurrently: the file system's journal merges them.
//! 3. A failed sync fails every commit that shared it, since the file system may report the error
//!    only once, and the commits that waited for the next sync. It also changes the write verifier:
//!    the file system may have dropped data that clients have not committed yet.
//!    A sync takes turns with those of the page cache ([`CachedFs::sync_stored`]), and an error of one
//!    fails the other.
//! 4. A sync that has begun runs to its end, even if the call that began it is dropped.
//! 5. No lock is held during a sync: neither this table's nor the changed directory's.

use crate::export::{Durability, Served};
use crate::handle::Node;
use crate::storage::write_verifier::WriteVerifier;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use tokio::sync::watch;
use weir_pagecache::CachedFs;
use weir_vfs::{Error, FileId, Result};

/// Commits changes of all exports.
#[derive(Debug)]
pub(crate) struct Committer {
    verifier: Arc<WriteVerifier>,
    /// The nodes with a running sync.
    running: Mutex<HashMap<Node, RunningSync>>,
}

/// A running sync.
#[derive(Debug, Default)]
struct RunningSync {
    /// The next sync, if a commit waits for it.
    next: Option<watch::Sender<Option<Result<()>>>>,
}

impl Committer {
    pub(crate) fn new(verifier: Arc<WriteVerifier>) -> Self {
        Self { verifier, running: Mutex::default() }
    }

    pub(crate) fn verifier(&self) -> &WriteVerifier {
        &self.verifier
    }

    /// Makes the changes to these files and directories durable, if the export requires it.
    ///
    /// # Errors
    /// [`Error::NoSpace`], [`Error::Quota`] or [`Error::Io`]: the changes were made, but may be
    /// lost.
    pub(crate) async fn commit(
        self: &Arc<Self>,
        export: &Served,
        nodes: impl IntoIterator<Item = FileId>,
    ) -> Result<()> {
        if export.export.options.durability == Durability::Relaxed {
            return Ok(());
        }
        // Begin all syncs before waiting for one, so that they share a journal commit.
        let (mut seen, mut begun): (Vec<FileId>, Vec<StartedSync>) = Default::default();
        for id in nodes {
            if seen.contains(&id) {
                continue;
            }
            seen.push(id);
            begun.push(self.begin(export.fs(), Node { export: export.id, id }));
        }
        let mut committed = Ok(());
        for sync in begun {
            let outcome = match sync {
                StartedSync::Done(outcome) => outcome,
                // The sync task always sends the outcome, unless the runtime is shutting down.
                StartedSync::Shared(mut outcome) => match outcome.wait_for(Option::is_some).await {
                    Ok(outcome) => outcome.unwrap_or(Err(Error::Io)),
                    Err(_) => Err(Error::Io),
                },
            };
            committed = committed.and(outcome);
        }
        committed
    }

    /// Begins a sync of a node, or joins the next one if one is running.
    fn begin(self: &Arc<Self>, fs: &CachedFs, node: Node) -> StartedSync {
        match self.running.lock().entry(node) {
            Entry::Occupied(mut running) => {
                let next = running.get_mut().next.get_or_insert_with(|| watch::Sender::new(None));
                return StartedSync::Shared(next.subscribe());
            }
            Entry::Vacant(place) => {
                place.insert(RunningSync::default());
            }
        }
        let mut task = SyncTask { committer: self.clone(), node, ended: false };
        // A sync that completes without waiting needs no task.
        let mut first = sync(fs.clone(), node.id);
        if let Some(outcome) = (&mut first).now_or_never() {
            self.note(outcome);
            if let Some(next) = task.next() {
                tokio::spawn(task.run(fs.clone(), None, outcome, next));
            }
            return StartedSync::Done(outcome);
        }
        let (sender, outcome) = watch::channel(None);
        tokio::spawn(task.run(fs.clone(), Some(first), Ok(()), sender));
        StartedSync::Shared(outcome)
    }

    fn note(&self, outcome: Result<()>) {
        if outcome.is_err() {
            self.verifier.data_may_be_lost();
        }
    }
}

/// Syncs a node. If dropped before the end (the store panicked, or the runtime ends),
/// the commits that wait for it fail.
struct SyncTask {
    committer: Arc<Committer>,
    node: Node,
    ended: bool,
}

impl SyncTask {
    /// Syncs the node until no commit waits for it. The first sync may have begun already; `before` is the
    /// outcome of one that ended before it.
    async fn run(
        mut self,
        fs: CachedFs,
        mut begun: Option<BoxFuture<'static, Result<()>>>,
        mut before: Result<()>,
        mut sender: watch::Sender<Option<Result<()>>>,
    ) {
        loop {
            let sync = begun.take().unwrap_or_else(|| sync(fs.clone(), self.node.id));
            let outcome = sync.await;
            // The verifier must change before any reply reports the failure.
            self.committer.note(outcome);
            // The changes of these commits may precede the previous sync. If that one failed, it
            // may have lost them and left nothing for this one to write.
            sender.send_replace(Some(outcome.and(before)));
            before = outcome;
            match self.next() {
                Some(next) => sender = next,
                None => return,
            }
        }
    }

    /// The commits that wait for the next sync. `None` ends the task.
    fn next(&mut self) -> Option<watch::Sender<Option<Result<()>>>> {
        let mut running = self.committer.running.lock();
        let next = running.get_mut(&self.node).and_then(|running| running.next.take());
        if next.is_none() {
            running.remove(&self.node);
            self.ended = true;
        }
        next
    }
}

impl Drop for SyncTask {
    fn drop(&mut self) {
        if !self.ended {
            self.committer.running.lock().remove(&self.node);
        }
    }
}

enum StartedSync {
    Done(Result<()>),
    Shared(watch::Receiver<Option<Result<()>>>),
}

fn sync(fs: CachedFs, id: FileId) -> BoxFuture<'static, Result<()>> {
    async move {
        // Nothing of a file that was removed meanwhile can be lost: the call that removed it commits
        // the removal.
        match fs.sync_stored(id).await {
            Ok(()) => Ok(()),
            Err(error @ (Error::NoSpace | Error::Quota)) => Err(error),
            // The change was made: an error that makes the client retry would make it fail on its
            // own change.
            Err(_) => Err(Error::Io),
        }
    }
    .boxed()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::{Export, ExportOptions};
    use weir_pagecache::{Cache, Config};
    use weir_stores::fault::{Call, Fault, Rule, What, When};
    use weir_stores::memory::MemoryFs;
    use weir_vfs::{Access, Caller, CreateMode, FileSystem, SetAttr};

    struct Fixture {
        fault: Arc<Fault>,
        export: Arc<Served>,
        committer: Arc<Committer>,
        root: FileId,
    }

    /// An export whose syncs behave as `what` says.
    fn fixture(durability: Durability, what: What) -> Fixture {
        fixture_over(MemoryFs::new(), durability, what)
    }

    fn fixture_over(store: Arc<dyn FileSystem>, durability: Durability, what: What) -> Fixture {
        let fault = Fault::over(store, 1);
        let fs = Cache::new(Config::default()).unwrap().mount(fault.clone());
        let options = ExportOptions { durability, ..ExportOptions::default() };
        let root = fs.root();
        let export = Export { path: "/".into(), source: "".into(), fs, options };
        fault.add(Rule { call: Call::SyncNode, when: When::Always, what });
        Fixture {
            fault,
            export: Arc::new(Served::new(1, export)),
            committer: Arc::new(Committer::new(Arc::default())),
            root,
        }
    }

    impl Fixture {
        fn commit(&self) -> tokio::task::JoinHandle<Result<()>> {
            let (committer, export, root) =
                (self.committer.clone(), self.export.clone(), self.root);
            tokio::spawn(async move { committer.commit(&export, [root, root]).await })
        }

        /// The number of commits that wait for the next sync.
        fn waiting(&self) -> usize {
            let running = self.committer.running.lock();
            let next = running.values().filter_map(|running| running.next.as_ref());
            next.map(watch::Sender::receiver_count).sum()
        }

        async fn until(&self, done: impl Fn(&Self) -> bool) {
            while !done(self) {
                tokio::time::sleep(std::time::Duration::from_millis(1)).await;
            }
        }
    }

    #[tokio::test]
    async fn commits_that_arrive_during_a_sync_share_the_next_one() {
        const MANY: usize = 100;
        let f = fixture(Durability::Sync, What::Hold);
        let first = f.commit();
        f.until(|f| f.fault.held() == 1).await;
        let others: Vec<_> = (0..MANY).map(|_| f.commit()).collect();
        f.until(|f| f.waiting() == MANY).await;
        assert!(!first.is_finished());
        f.fault.release();
        assert_eq!(first.await.unwrap(), Ok(()));
        // The first sync may have begun before the other commits' changes, so it does not answer
        // them.
        f.until(|f| f.fault.held() == 1).await;
        assert!(others.iter().all(|other| !other.is_finished()));
        f.fault.release();
        for other in others {
            assert_eq!(other.await.unwrap(), Ok(()));
        }
        assert_eq!(f.fault.injected(), 2);
        assert!(f.committer.running.lock().is_empty());
    }

    #[tokio::test]
    async fn a_failed_sync_fails_each_commit_that_shared_it_and_changes_the_verifier() {
        let f = fixture(Durability::Sync, What::Hold);
        let first = f.commit();
        f.until(|f| f.fault.held() == 1).await;
        let others = [f.commit(), f.commit()];
        f.until(|f| f.waiting() == 2).await;
        f.fault.clear();
        // The store reports the error once, as a file system does.
        let what = What::Fail(Error::Interrupted);
        f.fault.add(Rule { call: Call::SyncNode, when: When::First(1), what });
        let verifier = f.committer.verifier().of_syncs();
        f.fault.release();
        assert_eq!(first.await.unwrap(), Ok(()));
        for other in others {
            assert_eq!(other.await.unwrap(), Err(Error::Io), "nothing to try again");
        }
        assert_ne!(f.committer.verifier().of_syncs(), verifier);
        assert_eq!(f.commit().await.unwrap(), Ok(()));
    }

    #[tokio::test]
    async fn the_commits_that_wait_for_a_sync_that_fails_fail_too() {
        let disk = Fault::over(MemoryFs::new(), 1);
        let fails = What::Fail(Error::Io);
        disk.add(Rule { call: Call::SyncNode, when: When::Nth(0), what: fails });
        let f = fixture_over(disk, Durability::Sync, What::Hold);
        let first = f.commit();
        f.until(|f| f.fault.held() == 1).await;
        let second = f.commit();
        f.until(|f| f.waiting() == 1).await;
        f.fault.clear();
        f.fault.release();
        assert_eq!(first.await.unwrap(), Err(Error::Io));
        // The second commit's change may precede the first sync, which has lost it.
        assert_eq!(second.await.unwrap(), Err(Error::Io));
        assert_eq!(f.commit().await.unwrap(), Ok(()));
    }

    #[tokio::test]
    async fn a_commit_waits_for_a_sync_of_the_page_cache() {
        let f = fixture(Durability::Sync, What::Hold);
        f.fault.add(Rule { call: Call::Sync, when: When::Always, what: What::Hold });
        let (fs, set) = (f.export.fs(), SetAttr::default());
        let new = f.root.entry(b"file").with(&set);
        let made = fs.create(&Caller::Own, new, CreateMode::MustBeNew).await.unwrap();
        let file = fs.open(&Caller::Own, made.attr.id, Access::WRITE).await.unwrap();
        let mut sync = std::pin::pin!(file.sync_async(true));
        assert!((&mut sync).now_or_never().is_none());
        let mut commit = std::pin::pin!(f.committer.commit(&f.export, [made.attr.id]));
        assert!((&mut commit).now_or_never().is_none());
        assert_eq!(f.fault.held(), 1, "one sync of a file at a time");
        f.fault.clear();
        f.fault.release();
        assert_eq!((sync.await, commit.await), (Ok(()), Ok(())));
    }

    #[tokio::test]
    async fn a_call_that_is_dropped_leaves_its_sync_running_for_the_others() {
        let f = fixture(Durability::Sync, What::Hold);
        let first = f.commit();
        f.until(|f| f.fault.held() == 1).await;
        let (second, third) = (f.commit(), f.commit());
        f.until(|f| f.waiting() == 2).await;
        first.abort();
        second.abort();
        f.fault.clear();
        f.fault.release();
        assert_eq!(third.await.unwrap(), Ok(()));
        f.until(|f| f.committer.running.lock().is_empty()).await;
    }

    #[tokio::test]
    async fn relaxed_exports_and_removed_files_need_no_sync() {
        let f = fixture(Durability::Relaxed, What::Fail(Error::Io));
        assert_eq!(f.commit().await.unwrap(), Ok(()));
        assert_eq!(f.fault.injected(), 0);
        for (gone, outcome) in [
            (Error::Stale, Ok(())),
            (Error::NotFound, Ok(())),
            (Error::NoSpace, Err(Error::NoSpace)),
        ] {
            let f = fixture(Durability::Sync, What::Fail(gone));
            assert_eq!(f.commit().await.unwrap(), outcome);
        }
    }
}
