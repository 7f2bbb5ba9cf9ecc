//! Writes of one open file: sent without waiting for the server's disk, and completed when a COMMIT
//! has made them durable.
//!
//! ```text
//!             all pieces written                COMMIT, same verifier
//!  in flight --------------------> uncommitted ----------------------> completed
//!      ^          |                     |
//!      |          | written durably     | COMMIT, another verifier: the server restarted
//!      |          +---> completed       |
//!      +--------------------------------+
//!        again and again: written durably
//! ```
//!
//! 1. A write completes without error only when its bytes are durable at the server: written
//!    durably, or covered by a COMMIT that was sent after them and whose verifier equals those of
//!    all their pieces.
//! 2. The source is returned only when no connection refers to it any more.
//! 3. COMMIT is sent when no write is in flight, or when [`WINDOW_BYTES`] wait for it; one at a
//!    time.

use crate::detail::{self, Slot};
use crate::error::{Result, Violation};
use crate::files::opened::Opened;
use crate::protocol::{WriteRequest, Written, broken};
use futures_util::future::join_all;
use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use weir_base::sync::Mutex;
use weir_vfs::{Error, WriteOp};
use weir_xdr::Payload;

/// Bytes waiting for a COMMIT at which it is sent although more writes are in flight.
const WINDOW_BYTES: usize = 16 << 20;

/// How often a write may be lost before it is sent as a durable one: to a server whose verifiers
/// never match (several machines behind one address, say) it would be sent forever.
const MAX_LOSSES: u32 = 8;

/// A write to whose bytes calls in flight refer; it completes when the last of them drops it.
struct WriteInFlight {
    op: Option<WriteOp>,
    outcome: Mutex<weir_vfs::Result<()>>,
    /// Where its error is noted.
    detail: Slot,
    /// How often the server may have lost it.
    losses: AtomicU32,
}

impl WriteInFlight {
    fn is_lost(&self) {
        self.losses.fetch_add(1, Relaxed);
    }

    fn resolve(&self, outcome: Result<()>) {
        *self.outcome.lock() = outcome.map_err(|error| self.detail.neutral(error));
    }

    fn offset(&self) -> u64 {
        self.op.as_ref().map_or(0, WriteOp::offset)
    }

    fn len(&self) -> usize {
        self.op.as_ref().map_or(0, WriteOp::len)
    }
}

impl Drop for WriteInFlight {
    fn drop(&mut self) {
        if let Some(op) = self.op.take() {
            let outcome = *self.outcome.lock();
            op.complete(outcome);
        }
    }
}

/// A part of a write: the payload of one WRITE call.
struct WritePiece {
    write: Arc<WriteInFlight>,
    from: usize,
    to: usize,
}

impl Payload for WritePiece {
    fn len(&self) -> usize {
        self.to - self.from
    }

    fn slices<'a>(&'a self, from: usize, out: &mut Vec<IoSlice<'a>>) {
        if let Some(op) = &self.write.op {
            op.source().slices(self.from + from, self.to, out);
        }
    }
}

/// The writes of one open file.
pub(crate) struct Writes {
    opened: Arc<Opened>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    in_flight: usize,
    uncommitted: Vec<Uncommitted>,
    uncommitted_bytes: usize,
    committing: bool,
}

struct Uncommitted {
    write: Arc<WriteInFlight>,
    verifier: [u8; 8],
}

impl Writes {
    pub(crate) fn new(opened: Arc<Opened>) -> Arc<Self> {
        Arc::new(Self { opened, state: Mutex::default() })
    }

    /// Starts a write.
    pub(crate) fn submit(self: &Arc<Self>, op: WriteOp) {
        if op.is_empty() {
            return op.complete(Ok(()));
        }
        let fits = op.offset().checked_add(op.len() as u64).is_some_and(|e| e <= i64::MAX as u64);
        if !fits {
            return op.complete(Err(Error::TooBig));
        }
        let (outcome, losses) = (Mutex::new(Err(Error::Io)), AtomicU32::new(0));
        let detail = detail::current();
        self.start(Arc::new(WriteInFlight { op: Some(op), outcome, detail, losses }));
    }

    fn start(self: &Arc<Self>, write: Arc<WriteInFlight>) {
        self.state.lock().in_flight += 1;
        self.opened.attributes.forget(self.opened.id);
        self.opened.runtime.spawn(Arc::clone(self).run(write));
    }

    async fn run(self: Arc<Self>, write: Arc<WriteInFlight>) {
        let outcome = self.write_all(&write).await;
        self.opened.attributes.forget(self.opened.id);
        {
            let mut state = self.state.lock();
            state.in_flight -= 1;
            match outcome {
                Ok(None) => write.resolve(Ok(())),
                Ok(Some(verifier)) => {
                    state.uncommitted_bytes += write.len();
                    state.uncommitted.push(Uncommitted { write, verifier });
                }
                Err(error) => write.resolve(Err(error)),
            }
            let due = !state.uncommitted.is_empty()
                && (state.in_flight == 0 || state.uncommitted_bytes >= WINDOW_BYTES);
            if !due || state.committing {
                return;
            }
            state.committing = true;
        }
        self.commit().await;
    }

    /// Writes every piece; returns the verifier that a COMMIT must return, or `None` if all of them
    /// are durable.
    async fn write_all(&self, write: &Arc<WriteInFlight>) -> Result<Option<[u8; 8]>> {
        let step = self.opened.protocol.limits().write;
        loop {
            let pieces = (0..write.len())
                .step_by(step)
                .map(|from| self.write_piece(write, from, (from + step).min(write.len())));
            let verifiers = join_all(pieces).await.into_iter().collect::<Result<Vec<_>>>()?;
            let mut unstable = verifiers.into_iter().flatten();
            let Some(first) = unstable.next() else { return Ok(None) };
            if unstable.all(|verifier| verifier == first) {
                return Ok(Some(first));
            }
            // The server restarted in between and may have lost unstable data.
            write.is_lost();
        }
    }

    /// Writes bytes `from..to` of the operation; returns the verifier, unless they are durable.
    async fn write_piece(
        &self,
        write: &Arc<WriteInFlight>,
        mut from: usize,
        to: usize,
    ) -> Result<Option<[u8; 8]>> {
        let start = from;
        let mut verifier = None;
        while from < to {
            let durable = write.losses.load(Relaxed) >= MAX_LOSSES;
            let request = WriteRequest {
                offset: write.offset() + from as u64,
                data: Arc::new(WritePiece { write: Arc::clone(write), from, to }),
                durable,
            };
            let change = self.opened.changes.begin();
            let Written { count, stable, verifier: now, span } =
                self.opened.protocol.write(&self.opened.open, request).await?;
            change.done(span);
            if count == 0 || count > to - from {
                return Err(broken(self.opened.protocol.server(), "WRITE", Violation::WrongCount));
            }
            if durable && !stable {
                return Err(broken(self.opened.protocol.server(), "WRITE", Violation::NotDurable));
            }
            if !stable {
                // The first part of a short write had another verifier: start again.
                let lost = verifier.is_some_and(|v| v != now);
                if lost {
                    write.is_lost();
                }
                from = if lost { start } else { from + count };
                verifier = Some(now);
            } else {
                from += count;
            }
        }
        Ok(verifier)
    }

    /// Sends COMMITs until none is due.
    async fn commit(self: &Arc<Self>) {
        loop {
            let batch = {
                let mut state = self.state.lock();
                let due = state.in_flight == 0 || state.uncommitted_bytes >= WINDOW_BYTES;
                if state.uncommitted.is_empty() || !due {
                    state.committing = false;
                    return;
                }
                state.uncommitted_bytes = 0;
                std::mem::take(&mut state.uncommitted)
            };
            let change = self.opened.changes.begin();
            match self.opened.protocol.commit(&self.opened.open).await {
                Ok((verifier, span)) => {
                    change.done(span);
                    for Uncommitted { write, verifier: written } in batch {
                        match written == verifier {
                            true => write.resolve(Ok(())),
                            false => {
                                write.is_lost();
                                self.start(write);
                            }
                        }
                    }
                }
                Err(error) => {
                    batch.iter().for_each(|u| u.write.resolve(Err(error.clone())));
                }
            }
        }
    }
}
