//! Asynchronous copies: COPY operations that continue in the background after the reply (RFC 7862
//! section 4).
//!
//! ```text
//!        start            all copied, or an error      client informed, or a lease later
//! COPY --------> running ------------------------> ended ------------------------------> (none)
//!                   | OFFLOAD_CANCEL, the client is gone, the server stops
//!                   v
//!                (none)
//! ```
//!
//! A copy ends with an error if a file is closed, or the state that it uses is revoked.
//!
//! 1. At most `MAX_RUNNING` copies run, `MAX_OF_CLIENT` per client. Beyond that, COPY is
//!    synchronous, and copies as much as one call may.
//! 2. A copy belongs to a client: other clients cannot query or cancel it, and it ends with the
//!    client.
//! 3. While it runs, the server does not delegate the destination file.
//! 4. A copy depends on the stateids of its COPY and on its export, which may be served with other
//!    options meanwhile. Before it writes a piece, it checks that they are still valid and allow the
//!    access; with special stateids, that no share
//!    reservation denies it. A client that gets a file after this has changed waits for the write
//!    in progress ([`Copies::quiesce`]), and the copy writes no further piece. No client waits for
//!    a read from the source. A copy that waits for such a read repeats the check every
//!    [`LOOK_EVERY`]. Before each piece it also asks, as any I/O does, whether its user may still read
//!    the source and write the destination; that may ask the store, so it holds no lock meanwhile.
//! 5. After the reply to OFFLOAD_CANCEL, the copy writes nothing and sends no CB_OFFLOAD.
//! 6. The copy holds [`Job::write_lock`] while it writes a piece, and [`Job::telling`] while it
//!    sends CB_OFFLOAD.

use crate::callback::Callbacks;
use crate::export::Exports;
use crate::handle::{HANDLE_BYTES, Node};
use crate::operation::copies::{Copies, Forbidden, Job, Requester};
use crate::state::{ChangeGuard, ClientId, State, StateKey, Use};
use crate::storage::write_verifier::WriteVerifier;
use crate::v4::copy::piecewise::{Copying, SourcePiece, Step};
use crate::v4::status::of_state;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use weir_base::Clock;
use weir_nfs::v4::cb::offload;
use weir_nfs::v4::types::{StableHow, StateId, WriteResponse};
use weir_nfs::v4::{CbOp, CbOpRes, Error};
use weir_pagecache::File;
use weir_xdr::List;

/// How often the server tries CB_OFFLOAD. After that, the client has to ask with OFFLOAD_STATUS.
const TELLINGS: usize = 5;
/// Time between two attempts.
const AGAIN: Duration = Duration::from_secs(1);
/// How often a copy that waits for its source checks whether it may continue.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A copy to run in the background.
pub(crate) struct CopyRequest {
    pub(crate) client: ClientId,
    /// The destination file, and its handle.
    pub(crate) node: Node,
    pub(crate) handle: [u8; HANDLE_BYTES],
    pub(crate) by: Requester,
    /// The uses of source and destination, each with its stateid.
    pub(crate) uses: [Use; 2],
    pub(crate) copying: Copying,
    pub(crate) changing: ChangeGuard,
}

/// Runs copies in the background.
pub(crate) struct Background {
    pub(crate) copies: Arc<Copies>,
    pub(crate) state: Arc<Mutex<State<File>>>,
    pub(crate) exports: Arc<Exports>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) callbacks: Arc<Callbacks>,
    pub(crate) verifier: Arc<WriteVerifier>,
    pub(crate) stop: CancellationToken,
}

impl Background {
    /// Starts a copy. Returns its stateid.
    pub(crate) fn start(self: &Arc<Self>, request: CopyRequest) -> StateId {
        let key = self.state.lock().name_copy();
        let CopyRequest { client, node, handle, by, uses, copying, changing } = request;
        let job = Arc::new(Job {
            client,
            node,
            by,
            uses,
            write_lock: tokio::sync::Mutex::default(),
            telling: tokio::sync::Mutex::default(),
            copied: AtomicU64::new(0),
            ended: Mutex::new(None),
            cancel: self.stop.child_token(),
        });
        self.copies.insert(key, job.clone());
        tokio::spawn(self.clone().run(key, job, (handle, copying, changing)));
        StateId { seqid: 1, other: key.to_wire() }
    }

    async fn run(
        self: Arc<Self>,
        key: StateKey,
        job: Arc<Job>,
        (handle, mut copying, changing): ([u8; HANDLE_BYTES], Copying, ChangeGuard),
    ) {
        let verifier = self.verifier.get(copying.destination());
        let ended = loop {
            let piece = tokio::select! {
                piece = self.read(&copying) => Some(piece),
                () = job.cancel.cancelled() => None,
                () = self.is_to_end(&job) => None,
            };
            let writing = job.write_lock.lock().await;
            if job.cancel.is_cancelled() || self.is_client_gone(&job) {
                self.copies.remove(key);
                return;
            }
            if let Err(error) = self.copies.check(&job) {
                break Err(match error {
                    Forbidden::Unexported => Error::Stale,
                    Forbidden::ReadOnly => Error::RoFs,
                    Forbidden::Refused => Error::Access,
                    Forbidden::State(error) => of_state(error),
                });
            }
            // `is_to_end` has resolved, but what forbade the copy is gone again: read again.
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
            drop(writing);
            // Copies between cached pages may never wait, so let other tasks run.
            tokio::task::yield_now().await;
        };
        // Before the client learns of the end: it may open the files then, and expect a delegation.
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
        let wait = async |time| {
            let _ = timeout(time, job.cancel.cancelled()).await;
        };
        for _ in 0..TELLINGS {
            // The client rejects the callback if the reply to COPY has not arrived yet.
            let told = {
                let _telling = job.telling.lock().await;
                if job.cancel.is_cancelled() || self.is_client_gone(&job) {
                    self.copies.remove(key);
                    return;
                }
                tokio::select! {
                    told = self.callbacks.call(job.client, op.clone(), None) => told,
                    // OFFLOAD_CANCEL waits for `telling`, so stop at once.
                    () = job.cancel.cancelled() => continue,
                }
            };
            if let Some(CbOpRes::Offload(Ok(()))) = told {
                self.copies.remove(key);
                return;
            }
            wait(AGAIN).await;
        }
        let lease = self.state.lock().limits().lease;
        wait(lease).await;
        self.copies.remove(key);
    }

    /// Reads the next piece, and checks that the copy's user may still copy it.
    async fn read(&self, copying: &Copying) -> Result<SourcePiece, Error> {
        let piece = copying.read().await?;
        // What was written whole is complete, also if its user may not do that any more.
        if !matches!(piece, SourcePiece::End) {
            copying.check_rights(self.exports.rights(), self.clock.monotonic()).await?;
        }
        Ok(piece)
    }

    /// Resolves when the client of a copy is gone, or may no longer use the files.
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
