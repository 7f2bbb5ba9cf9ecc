//! Callbacks of a separate connection: answers every one with success, and returns no delegation.

use weir_nfs::v4::cb::sequence;
use weir_nfs::v4::{
    CB_VERSION, CbCompoundHeader, CbOp, CbOpRes, CompoundResHeader, Error, PROC_CB_COMPOUND,
    PROC_CB_NULL,
};
use weir_rpc::{AcceptStatus, ProgramId};
use weir_xdr::{Bytes, Decoder, Encoder, Message};

/// The callback program number that CREATE_SESSION announces.
pub(super) const PROGRAM: u32 = 0x4000_0000;
/// Maximum number of operations decoded from a callback.
const MOST_OPS: u32 = 16;

/// Answers a call of the server.
pub(super) fn answer(call: Bytes) -> Option<Message> {
    let id = ProgramId { program: PROGRAM, version: CB_VERSION };
    weir_rpc::answer(call, id, |header, d, e| match header.procedure {
        PROC_CB_NULL => Ok(()),
        PROC_CB_COMPOUND => compound(d, e),
        _ => Err(AcceptStatus::ProcUnavail),
    })
}

fn compound(d: &mut Decoder, e: &mut Encoder) -> Result<(), AcceptStatus> {
    let header: CbCompoundHeader = d.get()?;
    let mut results = Vec::new();
    for _ in 0..header.operations.min(MOST_OPS) {
        let result = match CbOp::decode_next(d) {
            Ok(CbOp::Sequence(args)) => CbOpRes::Sequence(Ok(sequence::Sequenced {
                session: args.session,
                sequence_id: args.sequence_id,
                slot: args.slot,
                highest_slot: args.highest_slot,
                target_highest_slot: args.highest_slot,
            })),
            Ok(CbOp::Recall(_)) => CbOpRes::Recall(Ok(())),
            Ok(CbOp::RecallAny(_)) => CbOpRes::RecallAny(Ok(())),
            Ok(op) => CbOpRes::Failed(op.code(), Error::NotSupp),
            Err(_) => CbOpRes::Illegal,
        };
        let failed = result.status().is_err();
        results.push(result);
        if failed {
            break;
        }
    }
    let status = results.last().map_or(Ok(()), CbOpRes::status);
    e.put(&CompoundResHeader { status, tag: header.tag, results: results.len() as u32 });
    results.iter().for_each(|result| e.put(result));
    Ok(())
}
