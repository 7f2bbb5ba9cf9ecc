//! The delegations of a mount, and the callback service for them.

use crate::protocol::{Handle, LockWaiters, OpenLockOwner};
use rustix::time::{ClockId, clock_gettime};
use std::collections::HashMap;
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use weir_base::sync::Mutex;
use weir_nfs::v4::cb::{recall_any, sequence};
use weir_nfs::v4::op::open::Delegation;
use weir_nfs::v4::op::sequence::StatusFlags;
use weir_nfs::v4::types::{SessionId, StateId};
use weir_nfs::v4::{
    CB_VERSION, CbCompoundHeader, CbOp, CbOpRes, CompoundResHeader, Error as Nfs4Error,
    PROC_CB_COMPOUND, PROC_CB_NULL,
};
use weir_rpc::{AcceptStatus, CallHeader, ProgramId};
use weir_xdr::{Bytes, Decoder, Encoder, Message};

/// Most delegations held.
pub(in crate::v4) const MOST: usize = 256;
/// Least time between attempts to rebind a backchannel that is down.
pub(in crate::v4) const BIND_AGAIN: Duration = Duration::from_secs(20);
/// Operations of a callback that are examined.
pub(in crate::v4) const MOST_OPS: u32 = 8;
/// The backchannel's program, from the range that clients may choose (RFC 5531 section 8.1).
pub(in crate::v4) const CALLBACK_PROGRAM: u32 = 0x4000_0000;

/// The delegations of a mount, and its callback service.
#[derive(Default)]
pub(in crate::v4) struct Delegations {
    pub(in crate::v4) table: Mutex<Table>,
    /// Waiting lock requests that the server may call back about.
    pub(in crate::v4) waiters: LockWaiters,
    /// Notified when some are due for return.
    pub(in crate::v4) due: Notify,
}

#[derive(Default)]
pub(in crate::v4) struct Table {
    pub(in crate::v4) held: HashMap<Handle, Held>,
    /// Unrequested delegations, to be returned.
    pub(in crate::v4) refused: Vec<(Handle, StateId)>,
    /// Numbers delegations, and their uses.
    pub(in crate::v4) clock: u64,
    /// When the last request that renewed the lease was sent, as [`since_boot`].
    pub(in crate::v4) renewed: Option<Duration>,
    pub(in crate::v4) session: SessionId,
    /// The number of the last callback.
    pub(in crate::v4) last: u32,
    /// The backchannel has to be rebound.
    pub(in crate::v4) unbound: bool,
    /// The last attempt of that.
    pub(in crate::v4) tried: Option<Instant>,
    /// The mount ends: it takes no more.
    pub(in crate::v4) ended: bool,
}

impl Table {
    /// Keeps a bounded number for return; beyond that, the server has to recall them.
    pub(in crate::v4) fn refuse(&mut self, handle: &Handle, stateid: StateId) {
        if self.refused.len() < MOST {
            self.refused.push((handle.clone(), stateid));
        }
    }
}

pub(in crate::v4) struct Held {
    pub(in crate::v4) stateid: StateId,
    /// Its number.
    pub(in crate::v4) grant: u64,
    pub(in crate::v4) used: u64,
    /// Number of reconnects when it was requested.
    pub(in crate::v4) reconnects: u64,
    /// To be returned: nothing relies on it any more.
    pub(in crate::v4) due: bool,
}

/// Time since the machine booted. A lease runs on while the machine is suspended, and so does this, but not `Instant`.
pub(in crate::v4) fn since_boot() -> Duration {
    clock_gettime(ClockId::Boottime).try_into().unwrap_or_default()
}

impl Delegations {
    /// The number of a file's delegation, if it can be relied on `now`, which is a time [`since_boot`].
    pub(in crate::v4) fn grant(
        &self,
        handle: &Handle,
        reconnects: u64,
        lease: Duration,
        now: Duration,
    ) -> Option<u64> {
        let table = &mut *self.table.lock();
        let held = table.held.get_mut(handle)?;
        let fresh = table.renewed.is_some_and(|at| now.saturating_sub(at) < lease);
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

    /// Takes the delegation granted with an open; `reconnects` is the count from before the open.
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

    /// Queues an unrequested delegation, granted with an open, for return.
    pub(in crate::v4) fn refuse(&self, handle: &Handle, given: &Delegation) {
        let stateid = match given {
            Delegation::Read(read) | Delegation::ReadAttrs(read) => read.stateid,
            Delegation::Write(write) | Delegation::WriteAttrs(write) => write.stateid,
            Delegation::None | Delegation::NoneExt(_) => return,
        };
        tracing::debug!("returning a delegation that was not requested");
        self.table.lock().refuse(handle, stateid);
        self.due.notify_one();
    }

    /// Makes all delegations due for return.
    pub(in crate::v4) fn doubt(&self) {
        self.table.lock().held.values_mut().for_each(|held| held.due = true);
        self.due.notify_one();
    }

    /// The server has lost all: it restarted, or assigned a new client id.
    pub(in crate::v4) fn forget_all(&self) {
        let mut table = self.table.lock();
        table.held.clear();
        table.refused.clear();
    }

    /// A new session, whose callbacks are numbered from 1.
    pub(in crate::v4) fn begin_session(&self, session: SessionId) {
        let mut table = self.table.lock();
        (table.session, table.last, table.unbound) = (session, 0, false);
    }

    /// A request sent at `sent`, a time [`since_boot`], was answered in the session, with these flags.
    pub(in crate::v4) fn renewed(&self, sent: Duration, flags: StatusFlags) {
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
        // Limit the attempts if the server's callbacks never arrive.
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

    pub(in crate::v4) fn take_due(&self) -> Option<(Handle, StateId)> {
        let mut table = self.table.lock();
        if let Some(refused) = table.refused.pop() {
            return Some(refused);
        }
        let handle = table.held.iter().find(|(_, held)| held.due)?.0.clone();
        table.held.remove(&handle).map(|held| (handle, held.stateid))
    }

    pub(in crate::v4) fn recall(&self, stateid: StateId) -> Result<(), Nfs4Error> {
        let mut table = self.table.lock();
        let found = table.held.values_mut().find(|held| held.stateid.other == stateid.other);
        found.ok_or(Nfs4Error::BadStateId)?.due = true;
        drop(table);
        self.due.notify_one();
        Ok(())
    }

    /// Keeps the `keep` most recently used.
    pub(in crate::v4) fn keep(&self, keep: usize) {
        let mut table = self.table.lock();
        let mut held: Vec<&mut Held> = table.held.values_mut().collect();
        held.sort_unstable_by_key(|held| std::cmp::Reverse(held.used));
        held.into_iter().skip(keep).for_each(|held| held.due = true);
        drop(table);
        self.due.notify_one();
    }

    /// Answers a callback.
    pub(in crate::v4) fn answer(&self, call: Bytes) -> Option<Message> {
        let id = ProgramId { program: CALLBACK_PROGRAM, version: CB_VERSION };
        weir_rpc::answer(call, id, |header, d, e| self.execute(header, d, e))
    }

    fn execute(
        &self,
        header: &CallHeader,
        d: &mut Decoder,
        e: &mut Encoder,
    ) -> Result<(), AcceptStatus> {
        match header.procedure {
            PROC_CB_NULL => {}
            PROC_CB_COMPOUND => {
                let compound: CbCompoundHeader = d.get()?;
                let results = self.compound(d, compound.operations);
                let status = results.last().map_or(Ok(()), CbOpRes::status);
                let count = results.len() as u32;
                e.put(&CompoundResHeader { status, tag: compound.tag, results: count });
                results.iter().for_each(|result| e.put(result));
            }
            _ => return Err(AcceptStatus::ProcUnavail),
        }
        Ok(())
    }

    pub(in crate::v4) fn compound(&self, d: &mut Decoder, operations: u32) -> Vec<CbOpRes> {
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
                    tracing::debug!("the server reports that a lock may be free");
                    if let Some(owner) = OpenLockOwner::from_bytes(&args.lock_owner.owner.0) {
                        self.waiters.may_be_free(owner);
                    }
                    CbOpRes::NotifyLock(Ok(()))
                }
                // No write delegation is held.
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

    pub(in crate::v4) fn sequence(&self, args: &sequence::Args) -> sequence::Res {
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

#[cfg(test)]
mod tests;
