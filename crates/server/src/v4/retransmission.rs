//! The duplicate request cache of minor version 0: a retransmitted compound is not executed again
//! (RFC 7530 section 3.1.1). Later minor versions have sessions for this.

use crate::admission::Identity;
use crate::operation::reply_cache::{Keep, Key, Lookup};
use crate::program::{Call, Refusal};
use crate::storage::retry_journal::RequestKey;
use crate::v4::compound::{self, MAX_OPERATIONS};
use crate::v4::nfs4::Nfs4;
use std::sync::Arc;
use weir_nfs::v4::{CompoundHeader, Op, OpCode};
use weir_xdr::Encoder;

/// Maximum size of a reply that is kept, in bytes. Only duplicates that wait get a longer one.
const MAX_REPLY_BYTES: usize = 16 << 10;

/// Executes a compound, unless it is a retransmission whose reply is known.
pub(crate) async fn run(
    nfs: Arc<Nfs4>,
    identity: Identity,
    call: Call,
    mut reply: Encoder,
) -> Result<Encoder, Refusal> {
    let keep = keep(&call);
    if keep == Keep::Nothing {
        return compound::run(nfs, identity, call, None, reply).await;
    }
    let (key, owner) = (Key::of(&call, keep), nfs.clone());
    // A duplicate that waits gives its memory back when its connection ends: its client sends others.
    let found = owner.replies.look_up(key, owner.services.now());
    match call.peer.while_open(found).await.ok_or(Refusal::SystemError)? {
        Lookup::Cached(results) => {
            reply.raw(&results);
            Ok(reply)
        }
        Lookup::New(execution) => {
            // The client disconnected while this call waited for the first transmission, which failed.
            if !call.peer.is_open() {
                return Err(Refusal::SystemError);
            }
            let begin = reply.mark();
            let retry = Some(RequestKey::from(&key));
            let reply = compound::run(nfs, identity, call, retry, reply).await?;
            let is_long = reply.len() - begin > MAX_REPLY_BYTES;
            let keep = if is_long { Keep::WhileRunning } else { keep };
            execution.done(reply.copy_since(begin), keep, owner.services.now());
            Ok(reply)
        }
    }
}

/// How long to keep the reply to a compound.
fn keep(call: &Call) -> Keep {
    let mut args = call.args.clone();
    let Ok(header) = args.get::<CompoundHeader>() else { return Keep::Nothing };
    if header.minor_version > 0 {
        return Keep::Nothing;
    }
    let mut keep = Keep::Nothing;
    for _ in 0..header.operations.min(MAX_OPERATIONS) {
        match Op::decode_next(&mut args).map(|op| op.code()) {
            Ok(OpCode::Write) => keep = Keep::WhileRunning,
            Ok(code) if code.is_idempotent() => {}
            Ok(_) => return Keep::Reply,
            // No operation from here on is executed.
            Err(_) => break,
        }
    }
    keep
}
