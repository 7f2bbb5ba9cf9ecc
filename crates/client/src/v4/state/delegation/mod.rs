//! Read delegations: while this mount holds one, nobody else changes the file, so it is opened,
//! and its attributes are told, without asking the server (RFC 8881 section 10.4).
//!
//! ```text
//!          OPEN                 CB_RECALL, too many, doubt              DELEGRETURN
//! (none) --------> held, open <---+------------------> due, open or not -----------> (none)
//!                   |   ^         |                     ^
//!      last closed  v   | opened  |                     |
//!                  held, idle ----+---------------------+
//! ```
//!
//! 1. An idle file stays open at the server, so that it is opened again by the open that there is.
//!    It is closed when its delegation goes.
//! 2. What rests on a delegation is known by the number of its [`grant`](Delegations::grant), and
//!    holds only as long as that is the same: from the moment in which a recall is read, or as soon
//!    as one may have been missed (a connection was made anew, the lease is not known to be
//!    renewed, the server says that it cannot call back or took something away), it does not.
//! 3. A delegation is given back without the file's turn, which a request may hold that the server
//!    answers only then.
//! 4. At most [`MOST`] are held; whichever was not used for longest goes first.
//!
//! Write delegations are not asked for: data is written back before close anyway. In minor version 0
//! nothing can be asked for, and the server would have to connect to this process to recall it
//! (through whatever lies between, at a port that has to be open), so no server that checks its way
//! back gives any. What is given all the same, of either kind, goes back at once.

use crate::protocol::LockWaiters;
use crate::protocol::{Handle, Locker};
use crate::transport;
use crate::v4::V4;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use weir_base::sync::Mutex;
use weir_nfs::v4::cb::{recall_any, sequence};
use weir_nfs::v4::op::bind_conn_to_session::{self, DirFromClient};
use weir_nfs::v4::op::open::Delegation;
use weir_nfs::v4::op::sequence::StatusFlags;
use weir_nfs::v4::types::{SessionId, StateId};
use weir_nfs::v4::{
    CB_VERSION, CbCompoundHeader, CbOp, CbOpRes, CompoundResHeader, Error as Nfs4Error, Op,
    PROC_CB_COMPOUND, PROC_CB_NULL,
};
use weir_rpc::{AcceptStatus, CallHeader, ReplyHeader};
use weir_xdr::{Bytes, Decoder, Encoder, Message};

/// Most delegations held.
const MOST: usize = 256;
/// How often a backchannel that is down is bound again, at most.
const BIND_AGAIN: Duration = Duration::from_secs(20);
/// Operations in a callback that are looked at.
const MOST_OPS: u32 = 8;
/// The backchannel's program: one of those that clients choose themselves (RFC 5531 section 8.1).
pub(in crate::v4) const CALLBACK_PROGRAM: u32 = 0x4000_0000;

/// The delegations of a mount, and the service that the server calls.
#[derive(Default)]
pub(in crate::v4) struct Delegations {
    table: Mutex<Table>,
    /// Who waits for locks, of which the server may tell.
    pub(in crate::v4) waiters: LockWaiters,
    /// Some are to be given back.
    due: Notify,
}

#[derive(Default)]
struct Table {
    held: HashMap<Handle, Held>,
    /// Given without having been asked for.
    refused: Vec<(Handle, StateId)>,
    /// Counts delegations, and their uses.
    clock: u64,
    /// When the last request was sent that renewed the lease.
    renewed: Option<Instant>,
    session: SessionId,
    /// The number of the server's last call.
    last: u32,
    /// The backchannel has to be bound again.
    unbound: bool,
    /// When that was last tried.
    tried: Option<Instant>,
    /// The mount ends: no more are taken.
    ended: bool,
}

impl Table {
    /// Once too many wait to go back, the server has to ask for the others.
    fn refuse(&mut self, handle: &Handle, stateid: StateId) {
        if self.refused.len() < MOST {
            self.refused.push((handle.clone(), stateid));
        }
    }
}

struct Held {
    stateid: StateId,
    /// Its number.
    grant: u64,
    used: u64,
    /// Connections made anew when it was asked for.
    reconnects: u64,
    /// To be given back: nothing rests on it any more.
    due: bool,
}

impl Delegations {
    /// The number of the delegation that a file is held under, if it can be relied on.
    fn grant(&self, handle: &Handle, reconnects: u64, lease: Duration) -> Option<u64> {
        let table = &mut *self.table.lock();
        let held = table.held.get_mut(handle)?;
        let fresh = table.renewed.is_some_and(|at| at.elapsed() < lease);
        if held.reconnects != reconnects && !held.due {
            held.due = true;
            self.due.notify_one();
        }
        if held.due || !fresh {
            return None;
        }
        table.clock += 1;
        held.used = table.clock;
        Some(held.grant)
    }

    /// Whether there are any.
    pub(in crate::v4) fn any(&self) -> bool {
        !self.table.lock().held.is_empty()
    }

    /// Takes the delegation that came with an open, for which `reconnects` were known before.
    pub(in crate::v4) fn take(&self, handle: &Handle, given: &Delegation, reconnects: u64) {
        let Delegation::Read(read) = given else { return self.refuse(handle, given) };
        let stateid = read.stateid;
        let mut table = self.table.lock();
        table.clock += 1;
        let grant = table.clock;
        let due = read.recall || table.ended;
        let held = Held { stateid, grant, used: grant, reconnects, due };
        if let Some(before) = table.held.insert(handle.clone(), held)
            && before.stateid.other != stateid.other
        {
            table.refuse(handle, before.stateid);
        }
        if table.held.len() > MOST
            && let Some(oldest) = table.held.values_mut().min_by_key(|held| held.used)
        {
            oldest.due = true;
        }
        drop(table);
        self.due.notify_one();
    }

    /// Has a delegation given back that came with an open and was not asked for.
    pub(in crate::v4) fn refuse(&self, handle: &Handle, given: &Delegation) {
        let stateid = match given {
            Delegation::Read(read) => read.stateid,
            Delegation::Write(write) => write.stateid,
            Delegation::None | Delegation::NoneExt(_) => return,
        };
        tracing::debug!("a delegation that was not asked for goes back");
        self.table.lock().refuse(handle, stateid);
        self.due.notify_one();
    }

    /// Everything is to be given back.
    fn doubt(&self) {
        self.table.lock().held.values_mut().for_each(|held| held.due = true);
        self.due.notify_one();
    }

    /// The server knows of none any more: it restarted, or made this client a new one.
    pub(in crate::v4) fn forget_all(&self) {
        let mut table = self.table.lock();
        table.held.clear();
        table.refused.clear();
    }

    /// A new session, whose calls begin with 1.
    pub(in crate::v4) fn begin_session(&self, session: SessionId) {
        let mut table = self.table.lock();
        (table.session, table.last, table.unbound) = (session, 0, false);
    }

    /// A request that was sent at `sent` was answered in the session, with these flags.
    pub(in crate::v4) fn renewed(&self, sent: Instant, flags: StatusFlags) {
        let down = StatusFlags::CB_PATH_DOWN
            | StatusFlags::CB_PATH_DOWN_SESSION
            | StatusFlags::BACKCHANNEL_FAULT;
        let taken = StatusFlags::RECALLABLE_STATE_REVOKED
            | StatusFlags::EXPIRED_ALL_STATE_REVOKED
            | StatusFlags::EXPIRED_SOME_STATE_REVOKED
            | StatusFlags::ADMIN_STATE_REVOKED;
        let mut table = self.table.lock();
        table.renewed = table.renewed.max(Some(sent));
        let down = flags.intersects(down);
        // A server that never gets through is not asked at every turn.
        let bind = down && table.tried.is_none_or(|at| at.elapsed() > BIND_AGAIN);
        if bind {
            (table.unbound, table.tried) = (true, Some(Instant::now()));
        }
        let none = table.held.is_empty();
        drop(table);
        if bind || ((down || flags.intersects(taken)) && !none) {
            self.doubt();
        }
    }

    fn take_due(&self) -> Option<(Handle, StateId)> {
        let mut table = self.table.lock();
        if let Some(refused) = table.refused.pop() {
            return Some(refused);
        }
        let handle = table.held.iter().find(|(_, held)| held.due)?.0.clone();
        table.held.remove(&handle).map(|held| (handle, held.stateid))
    }

    fn recall(&self, stateid: StateId) -> Result<(), Nfs4Error> {
        let mut table = self.table.lock();
        let found = table.held.values_mut().find(|held| held.stateid.other == stateid.other);
        found.ok_or(Nfs4Error::BadStateId)?.due = true;
        drop(table);
        self.due.notify_one();
        Ok(())
    }

    /// Keeps the `keep` used last.
    fn keep(&self, keep: usize) {
        let mut table = self.table.lock();
        let mut held: Vec<&mut Held> = table.held.values_mut().collect();
        held.sort_unstable_by_key(|held| std::cmp::Reverse(held.used));
        held.into_iter().skip(keep).for_each(|held| held.due = true);
        drop(table);
        self.due.notify_one();
    }

    /// Answers a call of the server's.
    pub(in crate::v4) fn answer(&self, call: Bytes) -> Option<Message> {
        transport::answer(call, |header, d, e| self.put_reply(header, d, e))
    }

    fn put_reply(&self, header: &CallHeader, d: &mut Decoder, e: &mut Encoder) {
        let reply = |status| ReplyHeader::accepted(header.xid, status);
        match header.procedure {
            _ if (header.program, header.version) != (CALLBACK_PROGRAM, CB_VERSION) => {
                e.put(&reply(AcceptStatus::ProgUnavail));
            }
            PROC_CB_NULL => e.put(&reply(AcceptStatus::Success)),
            PROC_CB_COMPOUND => match d.get::<CbCompoundHeader>() {
                Ok(compound) => {
                    e.put(&reply(AcceptStatus::Success));
                    let results = self.compound(d, compound.operations);
                    let status = results.last().map_or(Ok(()), CbOpRes::status);
                    let count = results.len() as u32;
                    e.put(&CompoundResHeader { status, tag: compound.tag, results: count });
                    results.iter().for_each(|result| e.put(result));
                }
                Err(_) => e.put(&reply(AcceptStatus::GarbageArgs)),
            },
            _ => e.put(&reply(AcceptStatus::ProcUnavail)),
        }
    }

    fn compound(&self, d: &mut Decoder, operations: u32) -> Vec<CbOpRes> {
        let mut results: Vec<CbOpRes> = Vec::new();
        for index in 0..operations.min(MOST_OPS) {
            let Ok(op) = CbOp::decode_next(d) else {
                results.push(CbOpRes::Illegal);
                break;
            };
            let code = op.code();
            tracing::trace!("the server calls: {code:?}");
            let result = match op {
                CbOp::Sequence(args) if index == 0 => CbOpRes::Sequence(self.sequence(&args)),
                CbOp::Sequence(_) => CbOpRes::Sequence(Err(Nfs4Error::SequencePos)),
                _ if index == 0 => CbOpRes::Failed(code, Nfs4Error::OpNotInSession),
                CbOp::Recall(args) => CbOpRes::Recall(self.recall(args.stateid)),
                CbOp::RecallAny(args) => {
                    if args.kinds.contains(recall_any::READ_DELEGATIONS) {
                        self.keep(args.keep as usize);
                    }
                    CbOpRes::RecallAny(Ok(()))
                }
                CbOp::NotifyLock(args) => {
                    tracing::debug!("the server says that a lock may be free");
                    if let Some(locker) = Locker::from_bytes(&args.lock_owner.owner.0) {
                        self.waiters.may_be_free(locker);
                    }
                    CbOpRes::NotifyLock(Ok(()))
                }
                // No write delegation is kept.
                CbOp::Getattr(_) => CbOpRes::Getattr(Err(Nfs4Error::BadHandle)),
                _ => CbOpRes::Failed(code, Nfs4Error::NotSupp),
            };
            let failed = result.status().is_err();
            results.push(result);
            if failed {
                break;
            }
        }
        results
    }

    fn sequence(&self, args: &sequence::Args) -> sequence::Res {
        let mut table = self.table.lock();
        if args.session != table.session {
            return Err(Nfs4Error::BadSession);
        }
        if args.slot != 0 {
            return Err(Nfs4Error::BadSlot);
        }
        match args.sequence_id.wrapping_sub(table.last) {
            1 => table.last = args.sequence_id,
            0 => return Err(Nfs4Error::RetryUncachedRep),
            _ => return Err(Nfs4Error::SeqMisordered),
        }
        Ok(sequence::Sequenced {
            session: args.session,
            sequence_id: args.sequence_id,
            slot: 0,
            highest_slot: 0,
            target_highest_slot: 0,
        })
    }
}

impl V4 {
    /// The number of the delegation that a file is held under, if it can be relied on.
    pub(in crate::v4) fn grant_of(&self, handle: &Handle) -> Option<u64> {
        let lease = self.lease()?;
        self.delegations.grant(handle, self.reconnects(), lease)
    }

    /// Gives back what is due for as long as the mount lives.
    pub(in crate::v4) fn give_back_what_is_due(self: &Arc<Self>) {
        let (mount, delegations): (Weak<Self>, _) =
            (Arc::downgrade(self), Arc::clone(&self.delegations));
        tokio::spawn(async move {
            loop {
                delegations.due.notified().await;
                let Some(v4) = mount.upgrade() else { return };
                if delegations.table.lock().unbound {
                    v4.bind_back().await;
                }
                while let Some((handle, stateid)) = delegations.take_due() {
                    v4.give_back(&handle, stateid).await;
                    let v4 = Arc::clone(&v4);
                    tokio::spawn(async move { v4.close_idle(&handle).await });
                }
            }
        });
    }

    /// Gives back the delegation of a file that is about to lose a name.
    pub(in crate::v4) async fn give_back_file(&self, handle: &Handle) {
        let held = self.delegations.table.lock().held.remove(handle);
        if let Some(held) = held {
            self.give_back(handle, held.stateid).await;
            self.close_idle(handle).await;
        }
    }

    /// Gives back all, for the end of the mount.
    pub(in crate::v4) async fn give_back_all(&self) {
        let held: HashSet<_> = {
            let mut table = self.delegations.table.lock();
            table.ended = true;
            table.held.drain().map(|(handle, held)| (handle, held.stateid)).collect()
        };
        for (handle, stateid) in held {
            self.give_back(&handle, stateid).await;
        }
    }

    async fn give_back(&self, handle: &Handle, stateid: StateId) {
        let ops = [crate::v4::ops::putfh(handle), Op::Delegreturn(stateid)];
        match self.exchange(&self.own, "DELEGRETURN", &ops, None).await {
            // It was taken away; the server wants to hear that this is known (section 10.2.1).
            Ok(answer)
                if matches!(
                    answer.status,
                    Err(Nfs4Error::DelegRevoked | Nfs4Error::AdminRevoked | Nfs4Error::Expired)
                ) =>
            {
                let ops = [Op::FreeStateid(stateid)];
                if let Err(error) = self.call(&self.own, "FREE_STATEID", &ops).await {
                    tracing::debug!("{error}");
                }
            }
            Ok(answer) => {
                if let Err(error) = self.checked("DELEGRETURN", answer.status) {
                    tracing::debug!("{error}");
                }
            }
            Err(error) => tracing::debug!("{error}"),
        }
    }

    /// Has the server call back over connections that were made after the session.
    async fn bind_back(&self) {
        self.delegations.table.lock().unbound = false;
        let session = self.session().id;
        let args =
            bind_conn_to_session::Args { session, dir: DirFromClient::ForeOrBoth, use_rdma: false };
        if let Err(error) =
            self.call_alone("BIND_CONN_TO_SESSION", Op::BindConnToSession(args)).await
        {
            tracing::debug!("{error}");
        }
    }
}

#[cfg(test)]
mod tests;
