//! Background copies, as other requests wait for them or ask about them (RFC 7862 section 4).
//! `v4::copy::background` executes them.
//!
//! 1. A copy belongs to a client: no other client can see it, and it ends with the client.
//! 2. The copier writes each piece while it holds the job's write lock ([`Job::write_lock`]), after
//!    [`Copies::check`] has allowed it. Once the copy has lost that right, a request that gives the
//!    file to another client waits for it ([`Copies::quiesce`]).
//! 3. The server notifies the client while it holds [`Job::telling`]. Once a copy is cancelled, it
//!    writes nothing more and the client is not notified.

use crate::admission::Identity;
use crate::export::{Admitted, Exports};
use crate::handle::Node;
use crate::operation::patience::Patience;
use crate::state::{ClientId, State, StateError, StateKey, Use};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio_util::sync::CancellationToken;
use weir_nfs::v4::Error;
use weir_pagecache::File;
use weir_vfs::Caller;

/// Maximum number of copies that run at a time.
const MAX_RUNNING: usize = 32;
/// Maximum number of one client's copies that run or whose end the client does not know yet.
const MAX_OF_CLIENT: usize = 8;

/// A background copy.
pub(crate) struct Job {
    pub(crate) client: ClientId,
    /// The destination file.
    pub(crate) node: Node,
    pub(crate) by: Requester,
    /// The use of source and destination, with their stateids.
    pub(crate) uses: [Use; 2],
    /// Held by a step from the check of `uses` to the end of its writes.
    pub(crate) write_lock: tokio::sync::Mutex<()>,
    /// Held while the server notifies the client of the end.
    pub(crate) telling: tokio::sync::Mutex<()>,
    pub(crate) copied: AtomicU64,
    /// The result, once the copy has ended.
    pub(crate) ended: Mutex<Option<Result<(), Error>>>,
    pub(crate) cancel: CancellationToken,
}

/// The user that asked for a copy, and as whom the export admitted it.
pub(crate) struct Requester {
    pub(crate) identity: Identity,
    pub(crate) address: IpAddr,
    pub(crate) caller: Caller,
}

/// The progress of a copy.
pub(crate) struct CopyProgress {
    pub(crate) copied: u64,
    pub(crate) ended: Option<Result<(), Error>>,
}

/// Why a copy must stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Forbidden {
    /// Its export was removed.
    Unexported,
    /// The export is read-only for its user now.
    ReadOnly,
    /// The export no longer admits its user, or as another one.
    Refused,
    /// Its stateids are gone or no longer allow it.
    State(StateError),
}

/// All background copies.
pub(crate) struct Copies {
    state: Arc<Mutex<State<File>>>,
    exports: Arc<Exports>,
    jobs: Mutex<HashMap<StateKey, Arc<Job>>>,
}

impl Copies {
    pub(crate) fn new(state: Arc<Mutex<State<File>>>, exports: Arc<Exports>) -> Self {
        Self { state, exports, jobs: Mutex::default() }
    }

    /// Whether the client may start another background copy.
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

    /// Checks that the client may still use the copy's files.
    ///
    /// # Errors
    /// The reason why it may not.
    pub(crate) fn check(&self, job: &Job) -> Result<(), Forbidden> {
        let table = self.exports.table();
        let export = table.get(job.node.export).map_err(|_| Forbidden::Unexported)?;
        let Requester { identity, address, caller } = &job.by;
        match export.admit(identity, *address) {
            Some(Admitted { read_only: true, .. }) => return Err(Forbidden::ReadOnly),
            Some(admitted) if admitted.caller == *caller => {}
            Some(_) | None => return Err(Forbidden::Refused),
        }
        let state = self.state.lock();
        let check = |used| state.check_use(job.client, used).map_err(Forbidden::State);
        job.uses.iter().try_for_each(check)
    }

    /// Waits until no copy writes to `node` that has lost the right to do so. Requests that have
    /// just been given the file or a lock on it call this.
    ///
    /// This waits as long as a store hangs. A lock request cannot be told to come back instead
    /// ([`quiesce_soon`](Self::quiesce_soon)): it has the lock already, and releasing it would not
    /// restore what its owner held of the range before. Only requests for this one file wait.
    pub(crate) async fn quiesce(&self, node: Node) {
        let jobs: Vec<Arc<Job>> = {
            let jobs = self.jobs.lock();
            let of_node = jobs.values().filter(|job| job.node == node);
            of_node.filter(|job| job.ended.lock().is_none()).cloned().collect()
        };
        for job in jobs {
            if self.check(&job).is_err() || self.state.lock().clients.get(job.client).is_err() {
                drop(job.write_lock.lock().await);
            }
        }
    }

    /// As [`quiesce`](Self::quiesce), with a time limit, for requests that can be undone.
    ///
    /// # Errors
    /// [`Error::Delay`]: a step takes longer than a call's [`Patience`].
    pub(crate) async fn quiesce_soon(&self, node: Node) -> Result<(), Error> {
        Patience::new().wait(self.quiesce(node)).await.ok_or(Error::Delay)
    }

    /// The progress of a copy. One that has ended stays until its client has answered CB_OFFLOAD, or for a while: the
    /// reply to this may be lost.
    ///
    /// # Errors
    /// [`Error::BadStateId`].
    pub(crate) fn progress(
        &self,
        client: ClientId,
        key: StateKey,
        node: Node,
    ) -> Result<CopyProgress, Error> {
        let job = self.find(client, key, node)?;
        let ended = *job.ended.lock();
        Ok(CopyProgress { copied: job.copied.load(Ordering::Relaxed), ended })
    }

    /// Cancels a copy and waits for its current step. The data copied so far stays; the client is
    /// not notified.
    ///
    /// # Errors
    /// [`Error::BadStateId`]; [`Error::Delay`] if the step takes longer than a call's [`Patience`].
    pub(crate) async fn cancel(
        &self,
        client: ClientId,
        key: StateKey,
        node: Node,
    ) -> Result<(), Error> {
        let job = self.find(client, key, node)?;
        job.cancel.cancel();
        let quiet = async { (job.write_lock.lock().await, job.telling.lock().await) };
        let Some(_quiet) = Patience::new().wait(quiet).await else { return Err(Error::Delay) };
        self.jobs.lock().remove(&key);
        Ok(())
    }

    fn find(&self, client: ClientId, key: StateKey, node: Node) -> Result<Arc<Job>, Error> {
        let job = self.jobs.lock().get(&key).cloned().ok_or(Error::BadStateId)?;
        if job.client == client && job.node == node { Ok(job) } else { Err(Error::BadStateId) }
    }
}
