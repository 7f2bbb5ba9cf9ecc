//! Callbacks of a separate connection: answers recalls with success, and returns no delegation; answers
//! CB_GETATTR with the attributes that the caller has set.

use std::collections::VecDeque;
use weir_base::sync::Mutex;
use weir_nfs::v4::cb::sequence;
use weir_nfs::v4::{
    Attrs, CB_VERSION, CbCompoundHeader, CbOp, CbOpRes, CompoundResHeader, Error, PROC_CB_COMPOUND,
    PROC_CB_NULL,
};
use weir_rpc::{AcceptStatus, ProgramId};
use weir_xdr::{Bytes, Decoder, Encoder, Message};

/// The callback program number that CREATE_SESSION announces.
pub(super) const PROGRAM: u32 = 0x4000_0000;
/// Maximum number of operations decoded from a callback.
const MOST_OPS: u32 = 16;

/// Operations that are remembered.
const REMEMBERED: usize = 64;

/// What the server calls over a connection, and what it is answered.
#[derive(Debug, Default)]
pub struct Callbacks(Mutex<Service>);

#[derive(Debug, Default)]
struct Service {
    attributes: Option<Attrs>,
    called: VecDeque<CbOp>,
}

impl Callbacks {
    /// Sets the attributes that answer CB_GETATTR; `None`: it fails with NFS4ERR_BADHANDLE, as at first.
    pub fn tell(&self, attributes: Option<Attrs>) {
        self.0.lock().attributes = attributes;
    }

    /// Takes the operations that were called since the last time, but for CB_SEQUENCE: the last 64.
    pub fn called(&self) -> Vec<CbOp> {
        self.0.lock().called.drain(..).collect()
    }

    /// Answers a call of the server's.
    pub(super) fn answer(&self, call: Bytes) -> Option<Message> {
        let id = ProgramId { program: PROGRAM, version: CB_VERSION };
        weir_rpc::answer(call, id, |header, d, e| match header.procedure {
            PROC_CB_NULL => Ok(()),
            PROC_CB_COMPOUND => self.compound(d, e),
            _ => Err(AcceptStatus::ProcUnavail),
        })
    }

    fn note(&self, op: &CbOp) {
        let called = &mut self.0.lock().called;
        if called.len() >= REMEMBERED {
            called.pop_front();
        }
        called.push_back(op.clone());
    }

    fn compound(&self, d: &mut Decoder, e: &mut Encoder) -> Result<(), AcceptStatus> {
        compound(d, e, |op| {
            self.note(&op);
            match op {
                CbOp::Recall(_) => CbOpRes::Recall(Ok(())),
                CbOp::RecallAny(_) => CbOpRes::RecallAny(Ok(())),
                CbOp::Getattr(args) => {
                    let attributes = self.0.lock().attributes.clone().ok_or(Error::BadHandle);
                    CbOpRes::Getattr(attributes.map(|mut attributes| {
                        attributes.retain(args.attrs);
                        attributes
                    }))
                }
                op => CbOpRes::Failed(op.code(), Error::NotSupp),
            }
        })
    }
}

fn compound(
    d: &mut Decoder,
    e: &mut Encoder,
    serve: impl Fn(CbOp) -> CbOpRes,
) -> Result<(), AcceptStatus> {
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
            Ok(op) => serve(op),
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
