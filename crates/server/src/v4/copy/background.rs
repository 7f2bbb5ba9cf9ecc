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
//! 1. At most `MAX_RUNNING` copies run, `MAX_OF_CLIENT` of one client; a COPY
//!    beyond that is done, as far as it goes, before it is answered.
//! 2. A copy belongs to a client: no other client learns of it, and it ends with the client.
//! 3. While it runs, no client is given a delegation of the file that it writes.
//! 4. It runs under the stateids of its COPY and in its export: each piece is written after a look whether
//!    they are there still, and allow it; under special stateids, whether no share reservation forbids it. Who
//!    is given a file after that has changed waits for the writes that were under way then
//!    ([`Copies::quiesce`]), and no other follows. No client waits for the source's store, and a copy that waits
//!    for it looks every [`LOOK_EVERY`] whether it may still go on.
//! 5. Once OFFLOAD_CANCEL is answered nothing is written, and the client is told nothing.
//! 6. A piece is written with the job's turn held ([`Job::turn`]), and the client told with
//!    [`Job::telling`] held.

use crate::callback::Callbacks;
use crate::handle::{HANDLE_BYTES, Node};
use crate::operation::copies::{Copies, Forbidden, Job};
use crate::state::{ChangeGuard, ClientId, State, StateKey, Use};
use crate::storage::write_verifier::WriteVerifier;
use crate::v4::copy::piecewise::{Copying, Step};
use crate::v4::status::of_state;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use weir_nfs::v4::cb::offload;
use weir_nfs::v4::types::{StableHow, StateId, WriteResponse};
use weir_nfs::v4::{CbOp, CbOpRes, Error};
use weir_pagecache::File;
use weir_xdr::List;

/// How often a client is told that its copy has ended, before it is left to ask.
const TELLINGS: usize = 5;
/// How long to wait before it is told again.
const AGAIN: Duration = Duration::from_secs(1);
/// How often a copy that waits for its source looks whether it may still go on.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A copy to be done in the background.
pub(crate) struct Order {
    pub(crate) client: ClientId,
    /// The file that is written to, and its handle.
    pub(crate) node: Node,
    pub(crate) handle: [u8; HANDLE_BYTES],
    /// How the files are used, and under which states.
    pub(crate) uses: [Use; 2],
    pub(crate) copying: Copying,
    pub(crate) changing: ChangeGuard,
}

/// Does the copies in the background.
pub(crate) struct Background {
    pub(crate) copies: Arc<Copies>,
    pub(crate) state: Arc<Mutex<State<File>>>,
    pub(crate) callbacks: Arc<Callbacks>,
    pub(crate) verifier: Arc<WriteVerifier>,
    pub(crate) stop: CancellationToken,
}

impl Background {
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
        self.copies.insert(key, job.clone());
        tokio::spawn(self.clone().run(key, job, order));
        StateId { seqid: 1, other: key.to_wire() }
    }

    async fn run(self: Arc<Self>, key: StateKey, job: Arc<Job>, order: Order) {
        let Order { client, handle, mut copying, changing, .. } = order;
        let verifier = self.verifier.get(copying.destination());
        let ended = loop {
            let piece = tokio::select! {
                piece = copying.read() => Some(piece),
                () = job.cancel.cancelled() => None,
                () = self.is_to_end(&job) => None,
            };
            let turn = job.turn.lock().await;
            if job.cancel.is_cancelled() || self.is_client_gone(&job) {
                self.copies.remove(key);
                return;
            }
            if let Err(error) = self.copies.check(&job) {
                break Err(match error {
                    Forbidden::Unexported => Error::Stale,
                    Forbidden::State(error) => of_state(error),
                });
            }
            // What forbade the copy may be gone again.
            let Some(piece) = piece else { continue };
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
                    self.copies.remove(key);
                    return;
                }
                tokio::select! {
                    told = self.callbacks.call(client, op.clone(), None) => told,
                    // OFFLOAD_CANCEL waits for this.
                    () = job.cancel.cancelled() => continue,
                }
            };
            if let Some(CbOpRes::Offload(Ok(()))) = told {
                self.copies.remove(key);
                return;
            }
            sleep(AGAIN).await;
        }
        let lease = self.state.lock().limits().lease;
        sleep(lease).await;
        self.copies.remove(key);
    }

    /// Resolves when a copy's client is gone, or its files are not its client's to use any more.
    async fn is_to_end(&self, job: &Job) {
        loop {
            sleep(LOOK_EVERY).await;
            if self.is_client_gone(job) || self.copies.check(job).is_err() {
                return;
            }
        }
    }

    fn is_client_gone(&self, job: &Job) -> bool {
        self.state.lock().clients.get(job.client).is_err()
    }
}
