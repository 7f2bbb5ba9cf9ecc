//! Begins one record of a connection: a call for a program, or a reply to one of the server's own
//! calls.

use super::connection::End;
use crate::admission::Taken;
use crate::peer::{Outgoing, Peer};
use crate::program::{Call, ProgramId, Programs};
use crate::replies::ReplyMemory;
use futures_util::FutureExt;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use tracing::error;
use weir_rpc::{
    AcceptStatus, CallHeader, MessageType, ReplyHeader, finish_record, message_type, start_record,
};
use weir_xdr::{Bytes, Decoder, Message};

/// A call being executed. Its output is the reply's record.
pub(super) type CallFuture = Pin<Box<dyn Future<Output = Outgoing> + Send>>;

/// What a record requires.
pub(super) enum RecordAction {
    /// Nothing: it was a reply.
    Nothing,
    /// A refusal: no program executes it.
    Refused(Outgoing),
    /// The execution of a call by a program.
    Call(CallFuture),
}

/// Begins a record. `memory` is the record's share of the call budget, held until the call ends.
///
/// # Errors
/// The record is not an RPC message.
pub(super) fn begin(
    programs: &Programs,
    peer: &Arc<Peer>,
    record: Bytes,
    memory: Option<Taken>,
) -> Result<RecordAction, End> {
    match message_type(&record) {
        Ok((_, MessageType::Call)) => {}
        Ok((xid, MessageType::Reply)) => {
            peer.replied(xid, record);
            return Ok(RecordAction::Nothing);
        }
        Err(_) => return Err(End::NotRpc),
    }
    let reply_memory = ReplyMemory::new(peer.replies().clone());
    let refuse = |header: &ReplyHeader, memory| {
        Ok(RecordAction::Refused(Outgoing::reply(encode_header(header), memory)))
    };
    let mut args = Decoder::new(record);
    let header = match CallHeader::decode(&mut args) {
        Ok(header) => header,
        Err(refused) => {
            let reply = refused.reply().ok_or(End::NotRpc)?;
            return refuse(&reply, reply_memory);
        }
    };
    let id = ProgramId { program: header.program, version: header.version };
    let program = match programs.find(id) {
        Ok(program) => program,
        Err(status) => {
            let reply = ReplyHeader::accepted(header.xid, status);
            return refuse(&reply, reply_memory);
        }
    };
    let xid = header.xid;
    let (peer, kept) = (peer.clone(), reply_memory.clone());
    let call = Call { header, args, peer, reply_memory: kept, _memory: memory };
    let mut reply = start_record();
    reply.put(&ReplyHeader::accepted(xid, AcceptStatus::Success));
    let called = AssertUnwindSafe(program.call(call, reply)).catch_unwind();
    Ok(RecordAction::Call(Box::pin(async move {
        let reply = match called.await {
            Ok(Ok(reply)) => finish_record(reply),
            Ok(Err(refusal)) => encode_header(&ReplyHeader { xid, body: refusal.into() }),
            Err(_) => {
                error!("a call of {id:?} panicked; it is refused");
                encode_header(&ReplyHeader::accepted(xid, AcceptStatus::SystemErr))
            }
        };
        Outgoing::reply(reply, reply_memory)
    })))
}

fn encode_header(header: &ReplyHeader) -> Message {
    let mut e = start_record();
    e.put(header);
    finish_record(e)
}
