//! Copies that go on after their COPY was answered (RFC 7862 section 4).
//!
//! ```text
//!         start            all copied, or an error      told, or asked (OFFLOAD_STATUS), or a lease later
//!  COPY --------> running ------------------------> ended ---------------------------------------------> (none)
//!                    | OFFLOAD_CANCEL, the client is gone, the server stops
//!                    v
//!                 (none)
//! ```
//!
//! A copy whose file is closed, or taken away from its client, ends with an error.
//!
//! 1. At most [`MAX_RUNNING`] copies run, [`MAX_OF_CLIENT`] of one client; a COPY beyond that is
//!    done, as far as it goes, before it is answered.
//! 2. A copy belongs to a client: nobody else learns of it, and it ends with the client.
//! 3. While it runs, nobody is given a delegation of the file that it writes.
//! 4. It runs under the stateids of its COPY and in its export: each piece is written after a look whether
//!    they are there still, and allow it; under special stateids, whether no share reservation forbids it. Who
//!    is given a file after that has changed waits for the writes that were under way then
//!    ([`Copies::quiesce`]), and no other follows. Nobody waits for the source's store.
//! 5. Once OFFLOAD_CANCEL is answered nothing is written, and the client is told nothing.
//! 6. A piece is written with the job's turn held ([`Job::turn`]), and the client told with
//!    [`Job::telling`] held.

use crate::callback::Callbacks;
use crate::export::Exports;
use crate::handle::{HANDLE_BYTES, Node};
use crate::state::{Changing, ClientId, State, StateKey, Use};
use crate::storage::write_verifier::WriteVerifier;
use crate::v4::{Copying, Piece, Step, of_state};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use weir_nfs::v4::cb::offload;
use weir_nfs::v4::types::{StableHow, StateId, WriteResponse};
use weir_nfs::v4::{CbOp, CbOpRes, Error};
use weir_pagecache::File;
use weir_xdr::List;

/// Copies that run at a time.
const MAX_RUNNING: usize = 32;
/// Copies of one client that run, or that it has not been told the end of.
const MAX_OF_CLIENT: usize = 8;
/// How often a client is told that its copy has ended, before it is left to ask.
const TELLINGS: usize = 5;
/// How long to wait before it is told again.
const AGAIN: Duration = Duration::from_secs(1);

/// How long OFFLOAD_CANCEL waits for a step before the client is told to come back.
const PATIENCE: Duration = Duration::from_millis(1500);

/// A copy in the background.
struct Job {
    client: ClientId,
    /// The file that is written to.
    node: Node,
    /// How the files are used, and under which states.
    uses: [Use; 2],
    /// Held by a step from the look at `uses` to the end of its writes.
    turn: tokio::sync::Mutex<()>,
    /// Held while the client is told of the end.
    telling: tokio::sync::Mutex<()>,
    copied: AtomicU64,
    /// How it ended.
    ended: Mutex<Option<Result<(), Error>>>,
    cancel: CancellationToken,
}

/// How far a copy is.
pub(crate) struct Progress {
    pub(crate) copied: u64,
    pub(crate) ended: Option<Result<(), Error>>,
}

/// The copies in the background.
pub(crate) struct Copies {
    state: Arc<Mutex<State<File>>>,
    exports: Arc<Exports>,
    callbacks: Arc<Callbacks>,
    verifier: Arc<WriteVerifier>,
    jobs: Mutex<HashMap<StateKey, Arc<Job>>>,
    stop: CancellationToken,
}

/// A copy to be done in the background.
pub(crate) struct Order {
    pub(crate) client: ClientId,
    /// The file that is written to, and its handle.
    pub(crate) node: Node,
    pub(crate) handle: [u8; HANDLE_BYTES],
    /// How the files are used, and under which states.
    pub(crate) uses: [Use; 2],
    pub(crate) copying: Copying,
    pub(crate) changing: Changing,
}

impl Copies {
    pub(crate) fn new(
        state: Arc<Mutex<State<File>>>,
        exports: Arc<Exports>,
        callbacks: Arc<Callbacks>,
        verifier: Arc<WriteVerifier>,
        stop: CancellationToken,
    ) -> Self {
        Self { state, exports, callbacks, verifier, jobs: Mutex::default(), stop }
    }

    /// Whether another copy of a client may go on in the background.
    pub(crate) fn has_room(&self, client: ClientId) -> bool {
        let jobs = self.jobs.lock();
        let running = jobs.values().filter(|job| job.ended.lock().is_none()).count();
        let of_client = jobs.values().filter(|job| job.client == client).count();
        running < MAX_RUNNING && of_client < MAX_OF_CLIENT
    }

    /// Begins a copy; its name.
    pub(crate) fn start(self: &Arc<Self>, order: Order) -> StateId {
        let key = self.state.lock().name_copy();
        let job = Arc::new(Job {
            client: order.client,
            node: order.node,
            uses: order.uses,
            turn: tokio::sync::Mutex::default(),
            telling: tokio::sync::Mutex::default(),
            copied: AtomicU64::new(0),
            ended: Mutex::new(None),
            cancel: self.stop.child_token(),
        });
        self.jobs.lock().insert(key, job.clone());
        tokio::spawn(self.clone().run(key, job, order));
        StateId { seqid: 1, other: key.to_wire() }
    }

    async fn run(self: Arc<Self>, key: StateKey, job: Arc<Job>, order: Order) {
        let Order { client, handle, mut copying, changing, .. } = order;
        let verifier = self.verifier.get(copying.destination());
        let ended = loop {
            let piece = tokio::select! {
                piece = copying.read() => piece,
                () = job.cancel.cancelled() => Ok(Piece::End),
            };
            let turn = job.turn.lock().await;
            if job.cancel.is_cancelled() || self.state.lock().clients.get(client).is_err() {
                self.jobs.lock().remove(&key);
                return;
            }
            if let Err(error) = self.check(&job) {
                break Err(error);
            }
            let step = match piece {
                Ok(piece) => copying.write(piece).await,
                Err(error) => Err(error),
            };
            match step {
                Ok(Step { bytes: 0, .. }) => break Ok(()),
                Ok(step) => job.copied.fetch_add(step.bytes, Ordering::Relaxed),
                Err(error) => break Err(error),
            };
            drop(turn);
            // Copies from memory never wait: others are to have their turn.
            tokio::task::yield_now().await;
        };
        // The files are closed, and may be delegated, before the client knows.
        drop((copying, changing));
        *job.ended.lock() = Some(ended);
        let count = job.copied.load(Ordering::Relaxed);
        let outcome = match ended {
            Ok(()) => Ok(WriteResponse {
                callback_id: List::default(),
                count,
                committed: StableHow::Unstable,
                verifier,
            }),
            Err(error) => Err(offload::Failed { error, bytes_copied: count }),
        };
        let stateid = StateId { seqid: 1, other: key.to_wire() };
        let op = CbOp::Offload(offload::Args { file: handle[..].into(), stateid, outcome });
        for _ in 0..TELLINGS {
            // The reply to the COPY may not have arrived yet: the client refuses what it does not know.
            let told = {
                let _telling = job.telling.lock().await;
                if job.cancel.is_cancelled() {
                    self.jobs.lock().remove(&key);
                    return;
                }
                tokio::select! {
                    told = self.callbacks.call(client, op.clone(), None) => told,
                    // Whoever cancels waits for this.
                    () = job.cancel.cancelled() => continue,
                }
            };
            if let Some(CbOpRes::Offload(Ok(()))) = told {
                self.jobs.lock().remove(&key);
                return;
            }
            sleep(AGAIN).await;
        }
        let lease = self.state.lock().limits().lease;
        sleep(lease).await;
        self.jobs.lock().remove(&key);
    }

    /// Whether a copy's files are still its client's to use.
    fn check(&self, job: &Job) -> Result<(), Error> {
        self.exports.table().get(job.node.export).map_err(|_| Error::Stale)?;
        let state = self.state.lock();
        job.uses.iter().try_for_each(|used| state.check_use(job.client, used).map_err(of_state))
    }

    /// Waits until no copy writes to a file that it may not write to any more: for those to whom the
    /// file, or a lock of it, was given just now.
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

    /// Ends a copy, with the step that it is at. What was copied stays, and nobody is told.
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
