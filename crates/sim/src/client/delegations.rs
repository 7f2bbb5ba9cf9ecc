//! A client's delegations. The client writes through, so it has nothing to write when one is recalled.

use super::v4::{fh, is_state_lost};
use super::{Client, Handle};
use crate::host;
use crate::world::Plant;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;
use weir_nfs::v4::cb::sequence::Sequenced;
use weir_nfs::v4::op::bind_conn_to_session::{Args as Bind, DirFromClient};
use weir_nfs::v4::op::open::{Delegation, DelegationType};
use weir_nfs::v4::types::{SessionId, StateId};
use weir_nfs::v4::{
    CbCompoundHeader, CbOp, CbOpRes, CompoundResHeader, Error, Op, OpRes, PROC_CB_COMPOUND,
};
use weir_rpc::{AcceptStatus, CallHeader, ReplyHeader, start_record};
use weir_xdr::{Bytes, Decoder};

/// The slot in which delegations are returned: what the other slots do may wait for that.
pub(super) const SLOT: u32 = 4;
/// The slot in which the client asks which delegations are good. A call in any other slot may wait for that.
pub(super) const TESTS: u32 = 6;

#[derive(Clone, Copy)]
struct Held {
    stateid: StateId,
    write: bool,
}

/// The delegations that a client holds, by file.
#[derive(Default)]
pub(super) struct Delegations {
    held: Mutex<BTreeMap<Handle, Held>>,
}

impl Client {
    /// An open came with, or was reclaimed with, what the server says of its delegation.
    pub(super) fn delegated(&self, file: &Handle, delegation: &Delegation) {
        let (stateid, write) = match delegation {
            Delegation::Read(given) => (given.stateid, false),
            Delegation::Write(given) => (given.stateid, true),
            _ => return,
        };
        let file_name = self.world.file_name(file);
        self.world
            .event(&format!("client {}: a delegation of {file_name}, write: {write}", self.number));
        self.v4.delegations.held.lock().insert(file.clone(), Held { stateid, write });
        let until = self.v4.until();
        let got = self.world.delegations.lock().got(file, self.number, write, (host::now(), until));
        if let Err(why) = got {
            self.world.violation(why);
        }
    }

    /// The kind of a file's delegation, to reclaim it.
    pub(super) fn delegation_of(&self, file: &Handle) -> DelegationType {
        match self.v4.delegations.held.lock().get(file) {
            None => DelegationType::None,
            Some(held) if held.write => DelegationType::Write,
            Some(_) => DelegationType::Read,
        }
    }

    /// The client uses a delegation no more.
    pub(super) fn forget_delegation(&self, file: &Handle) -> Option<StateId> {
        let held = self.v4.delegations.held.lock().remove(file)?;
        self.world.delegations.lock().gone(file, self.number);
        Some(held.stateid)
    }

    /// Returns a file's delegation, if there is one.
    pub(super) async fn return_delegation(&self, file: &Handle) {
        if self.world.plant == Some(Plant::Recalls) {
            return;
        }
        let Some(stateid) = self.forget_delegation(file) else { return };
        let done = self.run4(SLOT, vec![Op::Putfh(fh(file)), Op::Delegreturn(stateid)]).await;
        let (number, file_name) = (self.number, self.world.file_name(file));
        self.world.event(&format!("client {number}: DELEGRETURN {file_name}: {:?}", done.status));
        match done.status {
            Ok(()) => {}
            Err(error) if is_state_lost(error) || error == Error::DelegRevoked => {}
            Err(Error::Io | Error::NoSpc) if self.world.disk.failures() != (false, false) => {}
            Err(error) => self.world.violation(format!("DELEGRETURN fails: {error:?}")),
        }
    }

    /// Forgets the delegations that the server has revoked.
    pub(super) async fn forget_revoked_delegations(&self) {
        let held: Vec<_> = {
            let held = self.v4.delegations.held.lock();
            held.iter().map(|(file, held)| (file.clone(), held.stateid)).collect()
        };
        if held.is_empty() {
            return;
        }
        let stateids: Vec<StateId> = held.iter().map(|(_, stateid)| *stateid).collect();
        let done = self.run4(TESTS, vec![Op::TestStateid(stateids.into())]).await;
        let tested = done.last(|result| match result {
            OpRes::TestStateid(tested) => tested.ok(),
            _ => None,
        });
        // If the session was made anew, the server knows none of them.
        let Ok(tested) = tested.result else { return };
        let is_revoked = |status: &Result<(), Error>| {
            matches!(status, Err(Error::Expired | Error::DelegRevoked | Error::AdminRevoked))
        };
        let revoked = held.into_iter().zip(tested.0).filter(|(_, status)| is_revoked(status));
        let mut freed = Vec::new();
        // None counts as held any more once this client waits again: its lease is good by now.
        for ((file, stateid), status) in revoked {
            let (number, file_name) = (self.number, self.world.file_name(&file));
            self.world.event(&format!("client {number}: delegation of {file_name}: {status:?}"));
            let now_held = self.v4.delegations.held.lock().get(&file).map(|held| held.stateid);
            if now_held == Some(stateid) {
                self.forget_delegation(&file);
            }
            freed.push(stateid);
        }
        for stateid in freed {
            self.run4(TESTS, vec![Op::FreeStateid(stateid)]).await;
        }
    }

    /// Returns all delegations.
    pub(crate) async fn return_delegations(&self) {
        let files: Vec<Handle> = self.v4.delegations.held.lock().keys().cloned().collect();
        for file in files {
            self.return_delegation(&file).await;
        }
    }

    /// Executes a call of the server's. Returns the reply.
    pub(crate) fn called(self: &Arc<Self>, record: Bytes) -> Option<Bytes> {
        let mut d = Decoder::new(record);
        let header = CallHeader::decode(&mut d).ok()?;
        let mut e = start_record();
        e.put(&ReplyHeader::accepted(header.xid, AcceptStatus::Success));
        if header.procedure == PROC_CB_COMPOUND {
            let compound: CbCompoundHeader = d.get().ok()?;
            let mut results = Vec::new();
            for _ in 0..compound.operations {
                let result = self.called_back(CbOp::decode_next(&mut d).ok()?);
                let failed = result.status().is_err();
                results.push(result);
                if failed {
                    break;
                }
            }
            let status = results.last().map_or(Ok(()), CbOpRes::status);
            e.put(&CompoundResHeader { status, tag: compound.tag, results: results.len() as u32 });
            results.iter().for_each(|result| e.put(result));
        }
        Some(weir_rpc::finish_record(e).to_bytes().slice(4..))
    }

    fn called_back(self: &Arc<Self>, op: CbOp) -> CbOpRes {
        if !matches!(op, CbOp::Sequence(_)) {
            self.world.event(&format!("client {}: called back: {:?}", self.number, op.code()));
        }
        match op {
            CbOp::Sequence(args) => CbOpRes::Sequence(Ok(Sequenced {
                session: args.session,
                sequence_id: args.sequence_id,
                slot: args.slot,
                highest_slot: args.highest_slot,
                target_highest_slot: args.highest_slot,
            })),
            CbOp::Recall(args) => {
                let file = args.file.0.to_vec();
                let held = self.v4.delegations.held.lock().get(&file).copied();
                // The server asks again as long as the reply that grants it has not come.
                if held.is_none_or(|held| held.stateid.other != args.stateid.other) {
                    return CbOpRes::Recall(Err(Error::BadStateId));
                }
                let (client, pause) = (self.clone(), Duration::from_millis(self.world.below(400)));
                tokio::spawn(async move {
                    sleep(pause).await;
                    client.return_delegation(&file).await;
                });
                CbOpRes::Recall(Ok(()))
            }
            // It knows no more than the server, which recalls the delegation then.
            CbOp::Getattr(_) => CbOpRes::Getattr(Err(Error::ServerFault)),
            other => CbOpRes::Failed(other.code(), Error::NotSupp),
        }
    }

    /// Has the server call back over the connection that is in use.
    pub(super) async fn bind_backchannel(&self, session: SessionId) {
        let bind = Bind { session, dir: DirFromClient::ForeOrBoth, use_rdma: false };
        // If it fails, the next reply says again that the path is down.
        let _ = self.compound(&[Op::BindConnToSession(bind)]).await;
    }
}
