//! The copies in the background, as far as others wait for them or ask about them
//! (RFC 7862 section 4). `v4::copy::background` does them.
//!
//! 1. A copy belongs to a client: no other client learns of it, and it ends with the client.
//! 2. A piece is written with the job's turn held ([`Job::turn`]), after [`Copies::check`] said that the
//!    copy may still write. A client that is given the file after that has changed waits for the turn
//!    ([`Copies::quiesce`]).
//! 3. The client is told with [`Job::telling`] held. Once a copy is cancelled it writes nothing, and the
//!    client is told nothing.

use crate::export::Exports;
use crate::handle::Node;
use crate::state::{ClientId, State, StateError, StateKey, Use};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use weir_nfs::v4::Error;
use weir_pagecache::File;

/// Copies that run at a time.
const MAX_RUNNING: usize = 32;
/// Copies of one client that run, or that it has not been told the end of.
const MAX_OF_CLIENT: usize = 8;
/// How long OFFLOAD_CANCEL and OPEN wait for a step before the client is told to come back.
const PATIENCE: Duration = Duration::from_millis(1500);

/// A copy in the background.
pub(crate) struct Job {
    pub(crate) client: ClientId,
    /// The file that is written to.
    pub(crate) node: Node,
    /// How the files are used, and under which states.
    pub(crate) uses: [Use; 2],
    /// Held by a step from the look at `uses` to the end of its writes.
    pub(crate) turn: tokio::sync::Mutex<()>,
    /// Held while the client is told of the end.
    pub(crate) telling: tokio::sync::Mutex<()>,
    pub(crate) copied: AtomicU64,
    /// How it ended.
    pub(crate) ended: Mutex<Option<Result<(), Error>>>,
    pub(crate) cancel: CancellationToken,
}

/// How far a copy is.
pub(crate) struct Progress {
    pub(crate) copied: u64,
    pub(crate) ended: Option<Result<(), Error>>,
}

/// Why a copy may not go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Forbidden {
    /// Its export is served no more.
    Unexported,
    /// Its stateids are gone, or do not allow it any more.
    State(StateError),
}

/// The copies in the background.
pub(crate) struct Copies {
    state: Arc<Mutex<State<File>>>,
    exports: Arc<Exports>,
    jobs: Mutex<HashMap<StateKey, Arc<Job>>>,
}

impl Copies {
    pub(crate) fn new(state: Arc<Mutex<State<File>>>, exports: Arc<Exports>) -> Self {
        Self { state, exports, jobs: Mutex::default() }
    }

    /// Whether another copy of a client may go on in the background.
    pub(crate) fn has_room(&self, client: ClientId) -> bool {
        let jobs = self.jobs.lock();
        let running = jobs.values().filter(|job| job.ended.lock().is_none()).count();
        let of_client = jobs.values().filter(|job| job.client == client).count();
        running < MAX_RUNNING && of_client < MAX_OF_CLIENT
    }

    pub(crate) fn insert(&self, key: StateKey, job: Arc<Job>) {
        self.jobs.lock().insert(key, job);
    }

    pub(crate) fn remove(&self, key: StateKey) {
        self.jobs.lock().remove(&key);
    }

    /// Whether a copy's files are still its client's to use.
    ///
    /// # Errors
    /// Why they are not.
    pub(crate) fn check(&self, job: &Job) -> Result<(), Forbidden> {
        self.exports.table().get(job.node.export).map_err(|_| Forbidden::Unexported)?;
        let state = self.state.lock();
        let check = |used| state.check_use(job.client, used).map_err(Forbidden::State);
        job.uses.iter().try_for_each(check)
    }

    /// Waits until no copy writes to a file that it may not write to any more: for those to whom the
    /// file, or a lock of it, was given just now.
    ///
    /// That takes as long as a store that hangs. A request for a lock is not told to come back instead
    /// ([`quiesce_soon`](Self::quiesce_soon)): it has the lock, and to take that back would not give its owner what it
    /// held of the range before. Only requests for the one file wait, whose store is the one that hangs.
    pub(crate) async fn quiesce(&self, node: Node) {
        let jobs: Vec<Arc<Job>> = {
            let jobs = self.jobs.lock();
            let of_node = jobs.values().filter(|job| job.node == node);
            of_node.filter(|job| job.ended.lock().is_none()).cloned().collect()
        };
        for job in jobs {
            if self.check(&job).is_err() || self.state.lock().clients.get(job.client).is_err() {
                drop(job.turn.lock().await);
            }
        }
    }

    /// The same, for a request that can be undone.
    ///
    /// # Errors
    /// [`Error::Delay`]: a step takes long.
    pub(crate) async fn quiesce_soon(&self, node: Node) -> Result<(), Error> {
        timeout(PATIENCE, self.quiesce(node)).await.map_err(|_| Error::Delay)
    }

    /// How far a copy is; one that has ended is forgotten once its client knows.
    ///
    /// # Errors
    /// [`Error::BadStateId`].
    pub(crate) fn progress(
        &self,
        client: ClientId,
        key: StateKey,
        node: Node,
    ) -> Result<Progress, Error> {
        let job = self.find(client, key, node)?;
        let ended = *job.ended.lock();
        if ended.is_some() {
            self.jobs.lock().remove(&key);
        }
        Ok(Progress { copied: job.copied.load(Ordering::Relaxed), ended })
    }

    /// Ends a copy, with the step that it is at. What was copied stays, and the client is not told.
    ///
    /// # Errors
    /// [`Error::BadStateId`]; [`Error::Delay`] when the step takes long.
    pub(crate) async fn cancel(
        &self,
        client: ClientId,
        key: StateKey,
        node: Node,
    ) -> Result<(), Error> {
        let job = self.find(client, key, node)?;
        job.cancel.cancel();
        let quiet = async { (job.turn.lock().await, job.telling.lock().await) };
        let Ok(_quiet) = timeout(PATIENCE, quiet).await else { return Err(Error::Delay) };
        self.jobs.lock().remove(&key);
        Ok(())
    }

    fn find(&self, client: ClientId, key: StateKey, node: Node) -> Result<Arc<Job>, Error> {
        let job = self.jobs.lock().get(&key).cloned().ok_or(Error::BadStateId)?;
        if job.client == client && job.node == node { Ok(job) } else { Err(Error::BadStateId) }
    }
}
