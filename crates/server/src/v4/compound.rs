//! COMPOUND (RFC 8881 section 16.2): operations in order, to the first that fails.
//!
//! 1. An operation runs only if its row of the table lets it: in this minor version, at this
//!    place, with these filehandles, and with room left for its result.
//! 2. In a session, a compound runs once: its slot is given back, with the reply if that is to be
//!    kept, on every way out.
//! 3. What an operation changed of names, attributes and sizes is on disk before the next one begins.
//! 4. What a compound took from other clients is off the disk before its reply goes out.
//! 5. What results take is counted before the next operation begins ([`ReplyMemory`](crate::ReplyMemory)); one with
//!    a result of variable length does not begin when there is no room for those before it.
//! 6. No operation waits for memory while the reply holds pages of an earlier one: those are copied before.

use super::context::{Context, InSession};
use super::ops;
use crate::admission::Identity;
use crate::metrics::{Executed, Row};
use crate::program::{Call, Refusal};
use crate::services::Services;
use crate::state::Principal;
use crate::v4::nfs4::Nfs4;
use parking_lot::Mutex;
use std::hash::{DefaultHasher, Hasher};
use std::sync::Arc;
use std::time::Instant;
use tracing::{error, trace};
use weir_nfs::v4::types::Status;
use weir_nfs::v4::{
    CompoundHeader, CompoundResHeader, Error, Filehandles, Op, OpCode, OpError, OpRes, ReplyBound,
    SequenceRule,
};
use weir_rpc::RECORD_HEADER_BYTES;
use weir_xdr::{Bytes, Encoder};

/// Most operations of a compound outside a session.
const MAX_OPERATIONS: u32 = 128;
/// Longest tag.
const MAX_TAG_BYTES: usize = 1024;
/// Number and status: what an operation that fails takes at least.
const FAILURE_BYTES: usize = 8;

pub(crate) async fn run(
    nfs: Arc<Nfs4>,
    identity: Identity,
    mut call: Call,
    mut reply: Encoder,
) -> Result<Encoder, Refusal> {
    let digest = digest(&call);
    let request_bytes = call.args.remaining() + header_bytes(&call);
    let header: CompoundHeader = call.args.get()?;
    if !nfs.versions.has_minor(header.minor_version) {
        put_header(&mut reply, Err(Error::MinorVersMismatch), &header, 0);
        return Ok(reply);
    }
    if header.tag.len() > MAX_TAG_BYTES {
        put_header(&mut reply, Err(Error::Inval), &header, 0);
        return Ok(reply);
    }
    let principal = Principal {
        flavor: call.header.cred.flavor.0,
        uid: identity.cred.as_ref().map_or(u32::MAX, |cred| cred.uid),
    };
    let mut cx = Context {
        exports: nfs.services.exports.table(),
        services: nfs.services.clone(),
        nfs,
        peer: call.peer.clone(),
        reply_memory: call.reply_memory.clone(),
        identity,
        principal,
        minor: header.minor_version,
        operations: header.operations as usize,
        digest,
        request_bytes,
        session: None,
        current: None,
        saved: None,
        current_stateid: None,
        saved_stateid: None,
        used_bytes: 0,
        room: 0,
        changed: Mutex::default(),
        replay: None,
    };
    let begin = reply.mark();
    let mut slot = SlotGuard { services: cx.services.clone(), session: None };
    execute(&mut cx, &header, &mut call, &mut reply, &mut slot).await;
    if let Some(kept) = cx.replay {
        reply.truncate(begin);
        reply.raw(&kept);
        return Ok(reply);
    }
    write_records(&cx).await?;
    let keep = cx.session.is_some_and(|session| session.keep);
    slot.finish(keep.then(|| reply.copy_since(begin)));
    Ok(reply)
}

/// Executes the operations, and appends the reply's body.
async fn execute(
    cx: &mut Context,
    header: &CompoundHeader,
    call: &mut Call,
    reply: &mut Encoder,
    slot: &mut SlotGuard,
) {
    let (status_at, results_at) = put_header(reply, Ok(()), header, 0);
    let (mut status, mut results): (Status, u32) = (Ok(()), 0);
    let mut begun = Instant::now();
    while results < header.operations && status.is_ok() {
        let used = reply.len() - RECORD_HEADER_BYTES;
        let (unread, mut row) = (call.args.remaining(), Row::V4(None));
        let result = match Op::decode_next(&mut call.args) {
            Ok(op) => {
                let code = op.code();
                row = Row::V4(Some(code));
                if !takes_no_memory(code) {
                    reply.own_payloads();
                }
                match gate(cx, header, code, results, used) {
                    Ok(()) => {
                        let mut result = ops::dispatch(cx, op).await;
                        if let Err(error) = cx.commit_changes().await
                            && result.status().is_ok()
                        {
                            result = OpRes::Failed(code, error);
                        }
                        slot.session = cx.session;
                        trace!(op = ?code, status = ?result.status(), "done");
                        result
                    }
                    Err(Error::OpIllegal) => OpRes::Illegal,
                    Err(error) => OpRes::Failed(code, error),
                }
            }
            Err(OpError::BadXdr(code)) => OpRes::Failed(code, Error::BadXdr),
            Err(OpError::Illegal(_) | OpError::Truncated) => OpRes::Illegal,
        };
        if cx.replay.is_some() {
            return;
        }
        let mark = reply.mark();
        reply.put(&result);
        status = result.status();
        if let Some(too_big) = too_big(cx, row, &result, reply.len() - RECORD_HEADER_BYTES - used) {
            reply.truncate(mark);
            let result = too_big;
            status = result.status();
            reply.put(&result);
        }
        cx.reply_memory.set_made(reply.len());
        results += 1;
        // One look at the clock ends an operation and begins the next.
        let took = begun.elapsed();
        begun += took;
        cx.services.metrics.count(&Executed {
            row,
            outcome: status.into(),
            took,
            received: unread - call.args.remaining(),
            sent: reply.len() - RECORD_HEADER_BYTES - used,
        });
    }
    reply.patch_u32(status_at, status.err().map_or(0, |error| error as u32));
    reply.patch_u32(results_at, results);
}

/// Whether an operation may run here; sets the room for its result.
fn gate(
    cx: &mut Context,
    header: &CompoundHeader,
    code: OpCode,
    place: u32,
    used: usize,
) -> Result<(), Error> {
    if !code.is_in(cx.minor) {
        // Operations of later versions are unknown to an earlier one; the other way they are not.
        let known = (0..cx.minor).any(|earlier| code.is_in(earlier));
        return Err(if known { Error::NotSupp } else { Error::OpIllegal });
    }
    if cx.minor > 0 {
        match (code.sequence_rule(), cx.session.is_some()) {
            (SequenceRule::First, _) if place > 0 => return Err(Error::SequencePos),
            (SequenceRule::Alone, false) if header.operations > 1 => return Err(Error::NotOnlyOp),
            (SequenceRule::Within, false) => return Err(Error::OpNotInSession),
            _ => {}
        }
    } else if place >= MAX_OPERATIONS {
        return Err(Error::Resource);
    }
    match code.filehandles() {
        Filehandles::Both if cx.saved.is_none() => return Err(Error::NoFilehandle),
        Filehandles::Current | Filehandles::Both if cx.current.is_none() => {
            return Err(Error::NoFilehandle);
        }
        _ => {}
    }
    let (limit, too_big) = reply_limit(cx);
    // The operation after this one must have room to fail.
    let last = place + 1 == header.operations;
    let spare = if last { 0 } else { FAILURE_BYTES };
    (cx.used_bytes, cx.room) = (used, (limit as usize).saturating_sub(used + spare));
    let bound = code.reply_bound();
    if cx.room < bound.fixed_bytes() && cx.session.is_some() {
        return Err(too_big);
    }
    if matches!(bound, ReplyBound::And(_)) && place > 0 && cx.reply_memory.is_overdrawn() {
        return Err(Error::Delay);
    }
    Ok(())
}

/// Most bytes that a reply may have, and what is said of a longer one.
fn reply_limit(cx: &Context) -> (u32, Error) {
    let limit = cx.session.map_or(cx.nfs.record_bytes as u32, |session| session.limit());
    (limit, cx.too_big())
}

/// The result in the place of one that is longer than its room and does not say that something was changed.
fn too_big(cx: &Context, row: Row, result: &OpRes, bytes: usize) -> Option<OpRes> {
    let Row::V4(Some(code)) = row else { return None };
    let changes = !code.is_idempotent() && result.status().is_ok();
    (bytes > cx.room && !changes && bytes > FAILURE_BYTES)
        .then(|| OpRes::Failed(code, reply_limit(cx).1))
}

/// Whether an operation, one that clients send after a READ, never waits for memory or for room in the peer's
/// replies.
fn takes_no_memory(code: OpCode) -> bool {
    matches!(
        code,
        OpCode::Getattr
            | OpCode::Getfh
            | OpCode::Putfh
            | OpCode::Putrootfh
            | OpCode::Restorefh
            | OpCode::Savefh
    )
}

async fn write_records(cx: &Context) -> Result<(), Refusal> {
    cx.services.records.write_due().await.map_err(|error| {
        error!("cannot write the state database: {error}");
        Refusal::SystemError
    })
}

/// Tells a request from others, by who sends it, how long it is and how it begins: the operations and
/// their arguments but for bulk data, of which no client sends two versions under one number by mistake.
fn digest(call: &Call) -> u64 {
    const BEGINNING: usize = 1024;
    let body = call.args.clone().into_rest();
    let mut hasher = DefaultHasher::new();
    hasher.write(&call.header.cred.body);
    hasher.write_usize(body.len());
    hasher.write(&body[..body.len().min(BEGINNING)]);
    hasher.finish()
}

fn header_bytes(call: &Call) -> usize {
    // Transaction, direction, RPC version, program, version, procedure; two flavors and lengths.
    const FIXED: usize = 6 * 4 + 2 * 8;
    FIXED + call.header.cred.body.len().next_multiple_of(4) + call.header.verf.body.len()
}

/// Gives a session's slot back however the compound ends.
struct SlotGuard {
    services: Arc<Services>,
    session: Option<InSession>,
}

impl SlotGuard {
    fn finish(mut self, reply: Option<Bytes>) {
        if let Some(session) = self.session.take() {
            self.services.state.lock().sessions.finish(session.id, session.slot, reply);
        }
    }
}

impl Drop for SlotGuard {
    fn drop(&mut self) {
        if let Some(session) = self.session.take() {
            self.services.state.lock().sessions.finish(session.id, session.slot, None);
        }
    }
}

/// Appends the reply's header; the places of its status and of its count of results.
fn put_header(
    reply: &mut Encoder,
    status: Status,
    header: &CompoundHeader,
    results: u32,
) -> (usize, usize) {
    let status_at = reply.mark();
    reply.put(&CompoundResHeader { status, tag: header.tag.clone(), results });
    (status_at, reply.mark() - 4)
}
