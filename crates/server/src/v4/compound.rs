//! COMPOUND (RFC 8881 section 16.2): executes operations in order, until one fails.
//!
//! 1. An operation runs only if the operation table permits it in this minor version, at this
//!    position and with these filehandles, and if its result fits the reply.
//! 2. In a session, a compound runs once. Its slot is freed on every path, with the reply if it is
//!    to be cached.
//! 3. The changes that an operation makes to names, attributes and sizes are durable before the
//!    next operation begins.
//! 4. A reply that grants state, or tells of other clients' locks, leaves once the disk records of
//!    all clients are up to date: they name what was revoked for it. No other reply depends on them
//!    ([`needs_records`]).
//! 5. The memory of a result is charged before the next operation begins
//!    ([`ReplyMemory`](crate::ReplyMemory)). If the charge exceeds the limit, no operation with a
//!    result of variable length begins.
//! 6. No operation waits for memory while the reply pins pages of an earlier result: their data is
//!    copied first.

use super::context::{Context, Renewing};
use super::ops;
use super::retried;
use crate::admission::Identity;
use crate::metrics::{Executed, Row};
use crate::program::{Call, Refusal};
use crate::state::{CallUses, Principal};
use crate::storage::retry_journal::RequestKey;
use crate::v4::nfs4::Nfs4;
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;
use tracing::trace;
use weir_nfs::v4::types::Status;
use weir_nfs::v4::{
    CompoundHeader, CompoundResHeader, Error, Filehandles, Op, OpCode, OpError, OpRes, ReplyBound,
    SequenceRule,
};
use weir_rpc::RECORD_HEADER_BYTES;
use weir_xdr::{Decoder, Encoder};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Maximum number of operations in a compound of minor version 0.
pub(crate) const MAX_OPERATIONS: u32 = 128;
/// Maximum length of a tag, in bytes.
const MAX_TAG_BYTES: usize = 1024;
/// Size of the largest result of an operation that failed without running, or does not fit: its
/// number and status, and the empty bitmap of a SETATTR.
pub(crate) const FAILURE_BYTES: usize = 12;

pub(crate) async fn run(
    nfs: Arc<Nfs4>,
    identity: Identity,
    mut call: Call,
    resumed: Option<RequestKey>,
    mut reply: Encoder,
) -> Result<Encoder, Refusal> {
    let request_bytes = call.args.remaining() + header_bytes(&call);
    let header: CompoundHeader = call.args.get()?;
    let digest = digest_of(call.credential(), header.operations, &call.args.clone().into_rest());
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
    let renewing = Renewing::new(nfs.services.clone());
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
        arguments_digest: 0,
        request_bytes,
        session: None,
        slot: None,
        resumed,
        position: 0,
        current: None,
        saved: None,
        current_stateid: None,
        saved_stateid: None,
        used_bytes: 0,
        reply_bytes_left: 0,
        renewing,
        uses: CallUses::default(),
        changed: Mutex::default(),
        replay: None,
    };
    let begin = reply.mark();
    let needs_records = execute(&mut cx, &header, &mut call, &mut reply).await;
    if let Some(kept) = cx.replay {
        reply.truncate(begin);
        reply.raw(&kept);
        return Ok(reply);
    }
    let keep = cx.session.is_some_and(|session| session.keep);
    let kept = keep.then(|| reply.copy_since(begin));
    if needs_records {
        cx.services.records.write_due().await.map_err(|_| Refusal::SystemError)?;
    }
    if let Some(slot) = cx.slot {
        slot.finish(kept);
    }
    Ok(reply)
}

/// Executes the operations, and appends the body of the reply. Returns whether the reply may leave
/// only once the records of clients are on disk.
async fn execute(
    cx: &mut Context,
    header: &CompoundHeader,
    call: &mut Call,
    reply: &mut Encoder,
) -> bool {
    let (status_at, results_at) = put_header(reply, Ok(()), header, 0);
    let (mut status, mut results): (Status, u32) = (Ok(()), 0);
    let mut depends = false;
    let mut begun = Instant::now();
    while results < header.operations && status.is_ok() {
        let used = reply.len() - RECORD_HEADER_BYTES;
        let (unread, mut row) = (call.args.remaining(), Row::V4(None));
        let undecoded = (cx.minor == 0).then(|| call.args.clone());
        let result = match Op::decode_next(&mut call.args) {
            Ok(op) => {
                let code = op.code();
                row = Row::V4(Some(code));
                if !takes_no_memory(code) {
                    reply.own_payloads();
                }
                let mut may_run = gate(cx, header, code, results, used);
                if may_run.is_ok() && begins_settled(code) {
                    may_run = settled(cx, code).await;
                }
                match may_run {
                    Ok(()) => {
                        cx.position = results;
                        if let Some(undecoded) = undecoded.filter(|_| is_numbered(code)) {
                            let bytes = undecoded.into_rest();
                            let len = bytes.len() - call.args.remaining();
                            cx.arguments_digest = xxh3_64_with_seed(&bytes[..len], 0);
                        }
                        if let Some(node) = cx.current {
                            cx.uses.enter(node.export);
                        }
                        let mut result = dispatch(cx, op, &call.args).await;
                        if let Err(error) = cx.commit_changes().await
                            && result.status().is_ok()
                        {
                            result = OpRes::Failed(code, error);
                        }
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
            return false;
        }
        depends |= result.status().is_ok() && needs_records(row);
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
        // The end of an operation is the start of the next, so one clock read serves both.
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
    depends
}

/// Whether the result of an operation that succeeds depends on records: it grants what may have been
/// revoked from another client, or changes the client's own record.
///
/// I/O and changes that are made without an open wait for records before they begin
/// ([`Context::settle`], [`Recalls`](crate::delegation::recall::Recalls)). What gives state up takes
/// nothing that another client had; while its record is out of date, others are not granted it.
fn needs_records(row: Row) -> bool {
    let Row::V4(Some(code)) = row else { return false };
    matches!(code, OpCode::Open | OpCode::Lock) || begins_settled(code)
}

/// Whether an operation does not begin while a record is due that cannot be written, so that a client
/// that is told to wait has changed nothing. (A record that the operation itself makes due may fail
/// after it.) OPEN and LOCK see to that themselves: in minor version 0, their owner's sequence number
/// advances first.
fn begins_settled(code: OpCode) -> bool {
    matches!(
        code,
        OpCode::CreateSession
            | OpCode::DestroyClientid
            | OpCode::ExchangeId
            | OpCode::Lockt
            | OpCode::ReclaimComplete
            | OpCode::SetclientidConfirm
    )
}

/// Writes the records that are due, before an operation begins.
///
/// # Errors
/// As of [`Context::settle`]; but a client that gets an error for RECLAIM_COMPLETE may not send it
/// again, and then waits for the end of its grace period for ever. Linux's client counts a CREATE_SESSION that got an
/// error other than NFS4ERR_DELAY as executed, so its next one would be out of order.
async fn settled(cx: &Context, code: OpCode) -> Result<(), Error> {
    match (cx.settle().await, code) {
        (Err(Error::ServerFault), OpCode::CreateSession | OpCode::ReclaimComplete) => {
            Err(Error::Delay)
        }
        (settled, _) => settled,
    }
}

/// Executes an operation; `rest` holds those after it.
async fn dispatch(cx: &mut Context, op: Op, rest: &Decoder) -> OpRes {
    let sent = retried::may_depend_on_an_earlier_run(cx, &op).then(|| op.clone());
    let result = ops::dispatch(cx, op).await;
    match sent {
        Some(op) => retried::correct(cx, &op, result, rest),
        None => result,
    }
}

/// Checks that an operation may run here, and sets the bytes left for its result.
fn gate(
    cx: &mut Context,
    header: &CompoundHeader,
    code: OpCode,
    place: u32,
    used: usize,
) -> Result<(), Error> {
    if !code.is_in(cx.minor) {
        // An operation of a later minor version is illegal; one of an earlier minor version is
        // known but not supported.
        let known = (0..cx.minor).any(|earlier| code.is_in(earlier));
        return Err(if known { Error::NotSupp } else { Error::OpIllegal });
    }
    if cx.minor > 0 {
        match (code.sequence_rule(), cx.session.is_some() || cx.resumed.is_some()) {
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
    // Leave enough for the next operation to fail.
    let last = place + 1 == header.operations;
    let spare = if last { 0 } else { FAILURE_BYTES };
    (cx.used_bytes, cx.reply_bytes_left) = (used, (limit as usize).saturating_sub(used + spare));
    let bound = code.reply_bound();
    if cx.reply_bytes_left < bound.fixed_bytes() && cx.session.is_some() {
        return Err(too_big);
    }
    if matches!(bound, ReplyBound::And(_)) && place > 0 && cx.reply_memory.is_overdrawn() {
        return Err(Error::Delay);
    }
    Ok(())
}

/// The maximum size of the reply in bytes, and the error if a result exceeds it.
fn reply_limit(cx: &Context) -> (u32, Error) {
    let limit = cx.session.map_or(cx.nfs.record_bytes as u32, |session| session.limit());
    (limit, cx.too_big())
}

/// The error that replaces a result that does not fit. A result that reports a change is never
/// replaced, because the client must learn of the change.
fn too_big(cx: &Context, row: Row, result: &OpRes, bytes: usize) -> Option<OpRes> {
    let Row::V4(Some(code)) = row else { return None };
    let changes = !code.is_idempotent() && result.status().is_ok();
    (bytes > cx.reply_bytes_left && !changes && bytes > FAILURE_BYTES)
        .then(|| OpRes::Failed(code, reply_limit(cx).1))
}

/// Whether owners number the operation (in minor version 0).
fn is_numbered(code: OpCode) -> bool {
    matches!(
        code,
        OpCode::Open
            | OpCode::OpenConfirm
            | OpCode::OpenDowngrade
            | OpCode::Close
            | OpCode::Lock
            | OpCode::Locku
    )
}

/// Whether an operation never waits for memory or for the peer's share of replies. Lists those that
/// clients send after a READ.
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

/// Where the highest slot in use is in the bytes of a SEQUENCE: after the operation's number, the
/// session, the sequence number and the slot.
const HIGHEST_SLOT: Range<usize> = 28..32;

/// A hash that distinguishes requests with the same sequence number, of the credential, and of the
/// number, the length and the first bytes of the operations. Bulk data is left out: a client does not
/// by mistake send different data under the same sequence number. So is the highest slot that
/// SEQUENCE states: Linux's client states the one of the moment at which it sends a request again.
/// The journal of executed requests keeps the hash over restarts, so it must not depend on the build.
///
/// XXH3 suffices, because a client that makes requests collide confuses only its own slot.
fn digest_of((flavor, credential): (u32, &[u8]), operations: u32, bytes: &[u8]) -> u64 {
    const BEGINNING: usize = 1024;
    let beginning = &bytes[..bytes.len().min(BEGINNING)];
    let sequence = (OpCode::Sequence as u32).to_be_bytes();
    let (head, tail) = if beginning.starts_with(&sequence) && beginning.len() >= HIGHEST_SLOT.end {
        (&beginning[..HIGHEST_SLOT.start], &beginning[HIGHEST_SLOT.end..])
    } else {
        (&[][..], beginning)
    };
    let mut numbers = [0; 12];
    numbers[..4].copy_from_slice(&operations.to_be_bytes());
    numbers[4..].copy_from_slice(&(bytes.len() as u64).to_be_bytes());
    // Each part's hash, which covers its length, is the seed of the next.
    [credential, &numbers, head, tail]
        .into_iter()
        .fold(u64::from(flavor), |seed, part| xxh3_64_with_seed(part, seed))
}

fn header_bytes(call: &Call) -> usize {
    // XID, message type, RPC version, program, version, procedure; two flavors and lengths.
    const FIXED: usize = 6 * 4 + 2 * 8;
    FIXED + call.header.cred.body.len().next_multiple_of(4) + call.header.verf.body.len()
}

/// Appends the header of the reply. Returns the positions of its status and its result count.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A request that a client repeats after an upgrade of the server is recognized.
    #[test]
    fn the_digest_of_a_request_is_the_same_in_every_build() {
        assert_eq!(digest_of((1, b"credential"), 3, &[7; 2000]), 8_362_935_608_824_689_458);
    }

    #[test]
    fn requests_that_differ_have_other_digests() {
        let mut all = vec![
            digest_of((1, b"ab"), 1, b"c"),
            digest_of((1, b"a"), 1, b"bc"),
            digest_of((1, b""), 1, b"abc"),
            digest_of((0, b""), 1, b"abc"),
            digest_of((1, b""), 2, b"abc"),
            digest_of((1, b""), 1, &[0; 2000]),
            digest_of((1, b""), 1, &[0; 2001]),
        ];
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 7);
    }

    #[test]
    fn a_request_has_the_same_digest_with_another_highest_slot() {
        use weir_nfs::v4::op::sequence;
        let of = |slot, highest_slot, cache_this| {
            let (session, sequence_id) = ([7; 16], 9);
            let args = sequence::Args { session, sequence_id, slot, highest_slot, cache_this };
            let mut e = Encoder::new();
            e.put(&Op::Sequence(args));
            e.put(&Op::Putrootfh(()));
            digest_of((1, b""), 2, &e.finish().to_bytes())
        };
        assert_eq!(of(3, 3, true), of(3, 60, true));
        assert_ne!(of(3, 3, true), of(2, 3, true));
        assert_ne!(of(3, 3, true), of(3, 3, false));
    }
}
