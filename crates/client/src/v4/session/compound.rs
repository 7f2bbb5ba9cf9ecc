//! Sends one compound, and resends it after every error that a client can recover from.
//!
//! ```text
//!                           slot                reply
//!   (call) -> waits for slot ---> sent once --------> answered (OK, or an error for the caller)
//!               ^      ^            |  |
//!               |      |  DELAY,    |  |  BADSESSION and its kin, no outcome
//!               |      +-- GRACE ---+  |  (DELAY of SEQUENCE itself: sent again in the same slot)
//!               +------- `recover` ----+
//! ```
//!
//! 1. With sessions, a compound is executed once, however often it is sent: each retransmission on
//!    a connection has the same bytes and the same slot, and the slot is not reused before there is
//!    an outcome. Only if the server has lost the session is a compound sent as a new one.
//! 2. If a server delays a compound half-way, after an operation that must not be repeated, only
//!    the rest is resent ([`resume`](crate::v4::session::resume)).
//! 3. A compound that changes a name, or an extended attribute that must or must not exist, and whose reply the
//!    server has not kept although it had to, fails: it was executed, with an unknown result. Any other is
//!    executed again, also one that sets a size or writes: a second truncation takes what others wrote since.
//! 4. If a server never completes a call (recovery again and again), the caller finally gets an
//!    error.

use crate::backoff::Backoff;
use crate::error::{Error, Result, Violation};
use crate::protocol::broken;
use crate::transport::{Expect, ReadTarget, Reply, Request, ResultForm};
use crate::v4::client::V4;
use crate::v4::session::MAX_OPERATIONS;
use crate::v4::session::answer::{Answer, Step};
use crate::v4::session::resume::Before;
use crate::v4::session::state::Session;
use crate::v4::state::delegation::table::since_boot;
use std::borrow::Cow;
use std::sync::Arc;
use weir_nfs::v4::op::open::{CreateHow, How};
use weir_nfs::v4::op::{sequence, setxattr};
use weir_nfs::v4::{self, CompoundHeader, CompoundResHeader, Error as Nfs4Error, Op, OpRes};
use weir_rpc::OpaqueAuth;
use weir_xdr::Decoder;

/// How often a call may find its session lost before it fails: enough for a server that restarts
/// repeatedly for more than a minute.
const MAX_RECOVERIES: u32 = 80;
/// Number of immediate retries.
const QUICK_RECOVERIES: u32 = 8;
/// Room for the results of everything except reads, and for those of raw ones: the default that
/// sessions are created with.
const MAX_RESULT_BYTES: usize = (1 << 20) + (16 << 10);

impl V4 {
    /// Sends operations and returns their results.
    ///
    /// # Errors
    /// Besides the transport's: [`Error::Status`] when one of the operations failed.
    pub(in crate::v4) async fn call(
        &self,
        cred: &OpaqueAuth,
        operation: &'static str,
        ops: &[Op],
    ) -> Result<Vec<OpRes>> {
        let answer = self.exchange(cred, operation, ops, None).await?;
        self.checked(operation, answer.status)?;
        Ok(answer.results)
    }

    /// Sends operations; with a `target`, the last one is a read.
    pub(in crate::v4) async fn exchange(
        &self,
        cred: &OpaqueAuth,
        operation: &'static str,
        ops: &[Op],
        target: Option<&ReadTarget>,
    ) -> Result<Answer> {
        let mut recoveries = 0;
        let (mut backoff, mut recovery_backoff) = (self.backoff(), Backoff::endless());
        let (mut ops, mut before) = (Cow::Borrowed(ops), Before::default());
        loop {
            let session = self.session();
            match self.exchange_once(&session, cred, operation, &ops, target).await? {
                Step::Answered(answer) => return Ok(before.join(answer)),
                Step::Wait(answer) => {
                    if let Some(answer) = answer {
                        before.resent |= answer.resent;
                        if let Some(rest) = before.take(&ops, answer) {
                            ops = Cow::Owned(rest);
                        }
                    }
                    if !backoff.wait().await {
                        return Err(self.timed_out(operation));
                    }
                }
                Step::Again | Step::Recover { .. } if recoveries >= MAX_RECOVERIES => {
                    return Err(broken(&self.server, operation, Violation::WrongSlot));
                }
                Step::Again => recoveries += 1,
                Step::Recover { resent } => {
                    before.resent |= resent;
                    if recoveries >= QUICK_RECOVERIES {
                        recovery_backoff.wait().await;
                    }
                    self.recover(&session).await?;
                    recoveries += 1;
                }
            }
        }
    }

    /// Sends operations in `session` until there is an outcome, without recovering the session
    /// (because they are part of that recovery).
    pub(in crate::v4) async fn call_in(
        &self,
        session: &Arc<Session>,
        cred: &OpaqueAuth,
        operation: &'static str,
        ops: &[Op],
    ) -> Result<Answer> {
        let (mut again, mut backoff) = (0, self.backoff());
        loop {
            match self.exchange_once(session, cred, operation, ops, None).await? {
                Step::Answered(answer) => return Ok(answer),
                Step::Again if again >= MAX_RECOVERIES => {
                    return Err(broken(&self.server, operation, Violation::WrongSlot));
                }
                Step::Again => again += 1,
                Step::Wait(_) if backoff.wait().await => {}
                Step::Wait(_) => return Err(self.timed_out(operation)),
                Step::Recover { .. } => {
                    return Err(self.failed(operation, Nfs4Error::DeadSession));
                }
            }
        }
    }

    pub(in crate::v4) async fn exchange_once(
        &self,
        session: &Arc<Session>,
        cred: &OpaqueAuth,
        operation: &'static str,
        ops: &[Op],
        target: Option<&ReadTarget>,
    ) -> Result<Step> {
        if !self.has_sessions() {
            let reply = self.send(cred, operation, None, ops, target).await?;
            return Ok(Self::step(self.decode(operation, &reply)?));
        }
        let Some(mut slot) = session.slots.acquire().await else {
            return Ok(Step::Recover { resent: false });
        };
        let begin = Op::Sequence(sequence::Args {
            session: session.id,
            sequence_id: slot.sequence,
            slot: slot.id,
            highest_slot: slot.highest,
            cache_this: ops.iter().any(|op| !op.code().is_idempotent()),
        });
        let sent = since_boot();
        let (mut backoff, mut resent) = (self.backoff(), false);
        slot.begin();
        // From here on a failure without an outcome drops the slot, which kills the session.
        let mut answer = loop {
            let reply = self.send(cred, operation, Some(&begin), ops, target).await?;
            let mut answer = self.decode(operation, &reply)?;
            resent |= answer.resent;
            answer.resent = resent;
            if !matches!(answer.results.first(), Some(OpRes::Sequence(Err(Nfs4Error::Delay)))) {
                break answer;
            }
            // If the call was resent, the server may still be executing the first one: with another
            // number it would be executed twice (RFC 8881 section 15.1.1.3).
            if !backoff.wait().await {
                if !resent {
                    slot.release(false);
                }
                return Err(self.timed_out(operation));
            }
        };
        let sequenced = match answer.results.is_empty() {
            true => None,
            false => Some(answer.results.remove(0)),
        };
        match sequenced {
            Some(OpRes::Sequence(Ok(now))) => {
                if (now.session, now.sequence_id, now.slot) != (session.id, slot.sequence, slot.id)
                {
                    return Err(broken(&self.server, operation, Violation::WrongSlot));
                }
                self.delegations.renewed(sent, now.status_flags);
                slot.release(true);
                // The slot ensured a single execution.
                answer.resent = false;
                session.slots.set_target(now.target_highest_slot.min(now.highest_slot));
                let next = answer.results.first().map(OpRes::status);
                if next == Some(Err(Nfs4Error::RetryUncachedRep)) {
                    // Linux's server reports it here.
                    return self.uncached(operation, ops);
                }
                Ok(Self::step(answer))
            }
            Some(OpRes::Sequence(Err(Nfs4Error::RetryUncachedRep))) => {
                slot.release(true);
                self.uncached(operation, ops)
            }
            Some(OpRes::Sequence(Err(
                error @ (Nfs4Error::TooManyOps
                | Nfs4Error::ReqTooBig
                | Nfs4Error::RepTooBig
                | Nfs4Error::RepTooBigToCache),
            ))) => {
                // Another session would not take it either.
                slot.release(false);
                Ok(Step::Answered(Answer { status: Err(error), ..answer }))
            }
            Some(OpRes::Sequence(Err(error))) => {
                tracing::debug!("{}: SEQUENCE: {error}", self.server);
                Ok(Step::Recover { resent: answer.resent })
            }
            None if answer.status.is_err() => {
                // Rejected as a whole, for its minor version for instance: the slot is unchanged.
                slot.release(false);
                Ok(Step::Answered(answer))
            }
            _ => Err(broken(&self.server, operation, Violation::WrongOperation)),
        }
    }

    /// The step after a compound that was executed, but whose reply is lost. It is executed again, unless
    /// it must run once: then the server had to keep its reply (RFC 8881 section 2.10.6.1.3).
    fn uncached(&self, operation: &'static str, ops: &[Op]) -> Result<Step> {
        match ops.iter().any(must_run_once) {
            true => Err(broken(&self.server, operation, Violation::ReplyLost)),
            false => Ok(Step::Again),
        }
    }

    /// Sends one operation outside any session.
    pub(in crate::v4) async fn call_alone(&self, operation: &'static str, op: Op) -> Result<OpRes> {
        let mut backoff = self.backoff();
        loop {
            let reply = self.send(&self.own, operation, None, std::slice::from_ref(&op), None);
            let mut answer = self.decode(operation, &reply.await?)?;
            if answer.status == Err(Nfs4Error::Delay) {
                match backoff.wait().await {
                    true => continue,
                    false => return Err(self.timed_out(operation)),
                }
            }
            let Some(result) = answer.results.pop() else {
                self.checked(operation, answer.status)?;
                return Err(broken(&self.server, operation, Violation::WrongOperation));
            };
            return Ok(result);
        }
    }

    /// Calls NULL: whether the server offers the version.
    pub(in crate::v4) async fn null(&self) -> Result<()> {
        let program = (v4::PROGRAM, v4::VERSION, v4::PROC_NULL);
        let expect = Expect::Results { max_bytes: 0 };
        let request = Request::new(program, &OpaqueAuth::NONE, "NULL", expect);
        self.connection().call(request).await.map(drop)
    }

    async fn send(
        &self,
        cred: &OpaqueAuth,
        operation: &'static str,
        sequence: Option<&Op>,
        ops: &[Op],
        target: Option<&ReadTarget>,
    ) -> Result<Reply> {
        let expect = match target {
            Some(target) => Expect::Read(target.clone(), ResultForm::Compound),
            None => Expect::Results { max_bytes: MAX_RESULT_BYTES },
        };
        let program = (v4::PROGRAM, v4::VERSION, v4::PROC_COMPOUND);
        let mut request = Request::new(program, cred, operation, expect);
        let encoder = request.encoder();
        encoder.put(&CompoundHeader {
            tag: "".into(),
            minor_version: self.minor,
            operations: (ops.len() + usize::from(sequence.is_some())) as u32,
        });
        sequence.into_iter().chain(ops).for_each(|op| encoder.put(op));
        self.connection().call(request).await
    }

    fn decode(&self, operation: &'static str, reply: &Reply) -> Result<Answer> {
        let bad = |error: weir_xdr::Error| broken(&self.server, operation, error.into());
        let mut d = Decoder::new(reply.body.clone());
        let header: CompoundResHeader = d.get().map_err(bad)?;
        // Of a successful read, only the number and the status are here.
        let read = if reply.read.is_some() { 1 } else { 0 };
        let mut results = Vec::new();
        for _ in read..header.results.min(MAX_OPERATIONS) {
            if read == 1 && d.remaining() <= READ_HEAD_BYTES {
                break;
            }
            results.push(OpRes::decode_next(&mut d).map_err(bad)?);
        }
        let status = match reply.read {
            Some(_) => Ok(()),
            None => header.status,
        };
        Ok(Answer { status, results, read: reply.read.clone(), resent: reply.resent })
    }

    fn step(answer: Answer) -> Step {
        match answer.status {
            Err(Nfs4Error::Delay | Nfs4Error::Grace) => Step::Wait(Some(answer)),
            _ => Step::Answered(answer),
        }
    }

    /// The status as a client error.
    pub(in crate::v4) fn checked(
        &self,
        operation: &'static str,
        status: std::result::Result<(), Nfs4Error>,
    ) -> Result<()> {
        status.map_err(|error| self.failed(operation, error))
    }

    pub(in crate::v4) fn failed(&self, operation: &'static str, error: Nfs4Error) -> Error {
        Error::Status {
            server: Arc::clone(&self.server),
            operation,
            status: error.name().to_owned(),
            error: crate::v4::attr::neutral(error),
        }
    }

    pub(in crate::v4) fn timed_out(&self, operation: &'static str) -> Error {
        Error::TimedOut { server: Arc::clone(&self.server), operation }
    }

    pub(in crate::v4) fn unexpected(&self, operation: &'static str) -> Error {
        broken(&self.server, operation, Violation::WrongOperation)
    }
}
/// The part of a read's result in the head of its reply: operation and status.
const READ_HEAD_BYTES: usize = 8;

/// Whether the operation changes a name, or an extended attribute that must or must not exist: the result of
/// its second execution would be misleading, or it would change what others have made since.
fn must_run_once(op: &Op) -> bool {
    match op {
        Op::Create(_) | Op::Remove(_) | Op::Rename(_) | Op::Link(_) | Op::Removexattr(_) => true,
        Op::Setxattr(args) => args.mode != setxattr::Mode::Either,
        Op::Open(args) => matches!(args.how, How::Create(CreateHow::Guarded(_))),
        _ => false,
    }
}
