//! Owners of minor version 0, which number their requests.

use std::collections::BTreeMap;
use weir_nfs::v4::op::{lock, open};
use weir_nfs::v4::types::{StateId, StateOwner};
use weir_nfs::v4::{Error, Op, OpRes};
use weir_xdr::Opaque;

/// How many files an open-owner creates. The server forgets it after a while without opens, and then asks the client to
/// confirm the opens of new ones.
const MADE: u64 = 4;
/// The open-owner of other opens.
const PROCESS: &str = "process";
/// The lock-owner.
const THREAD: &str = "thread";
/// The number of an owner's first request; soon after it, numbers begin again at zero.
const FIRST: u32 = u32::MAX - 3;

/// The owners of a client, and the numbers of their next requests.
#[derive(Default)]
pub(super) struct Owners {
    /// The server's name for the client. Another one has other owners.
    client: u64,
    next: BTreeMap<String, u32>,
    /// The owner of each open.
    by_open: BTreeMap<[u8; 12], String>,
    /// How many files they have created.
    made: u64,
    /// The lock-owner's stateid, and the open that it belongs to.
    locks: Option<([u8; 12], StateId)>,
}

impl Owners {
    pub(super) fn begin(&mut self, client: u64) {
        if self.client != client {
            *self = Self { client, ..Self::default() };
        }
    }

    fn next_of(&self, owner: &str) -> u32 {
        self.next.get(owner).copied().unwrap_or(FIRST)
    }

    fn count(&mut self, owner: &str) {
        let next = self.next_of(owner).wrapping_add(1);
        self.next.insert(owner.to_owned(), next);
    }

    /// The owner of a request that has a number.
    pub(super) fn owner_of(&self, op: &Op) -> Option<String> {
        let of_open = |id: StateId| {
            let known = self.by_open.get(&id.other).cloned();
            known.unwrap_or_else(|| PROCESS.into())
        };
        match op {
            Op::Open(args) if is_creation(args) => Some(format!("maker {}", self.made / MADE)),
            Op::Open(_) => Some(PROCESS.into()),
            Op::OpenConfirm(args) => Some(of_open(args.open_stateid)),
            Op::Close(args) => Some(of_open(args.open_stateid)),
            Op::Lock(lock::Args { locker: lock::Locker::New(new), .. }) => {
                Some(of_open(new.open_stateid))
            }
            Op::Lock(_) | Op::Locku(_) => Some(THREAD.into()),
            _ => None,
        }
    }

    /// A request with the number that is `later` than its owner's next, usually by 0.
    pub(super) fn numbered(&self, op: &Op, later: u32) -> Op {
        let mut op = op.clone();
        if let Op::Lock(args) = &mut op
            && let lock::Locker::New(new) = &args.locker
            && let Some((open, lock_stateid)) = self.locks
            && open == new.open_stateid.other
        {
            args.locker =
                lock::Locker::Existing(lock::ExistingLocker { lock_stateid, lock_seqid: 0 });
        }
        let Some(owner) = self.owner_of(&op) else { return op };
        let seqid = self.next_of(&owner).wrapping_add(later);
        let named = |name: &str| StateOwner {
            client_id: self.client,
            owner: Opaque(name.as_bytes().to_vec().into()),
        };
        match &mut op {
            Op::Open(args) => (args.seqid, args.owner) = (seqid, named(&owner)),
            Op::OpenConfirm(args) => args.seqid = seqid,
            Op::Close(args) => args.seqid = seqid,
            Op::Locku(args) => args.seqid = seqid,
            Op::Lock(args) => match &mut args.locker {
                lock::Locker::New(new) => {
                    (new.open_seqid, new.lock_seqid) = (seqid, self.next_of(THREAD));
                    new.lock_owner = named(THREAD);
                }
                lock::Locker::Existing(old) => old.lock_seqid = seqid,
            },
            _ => {}
        }
        op
    }

    /// Notes the results of a compound.
    pub(super) fn executed(&mut self, ops: &[Op], results: &[OpRes]) {
        for (op, result) in ops.iter().zip(results) {
            let Some(owner) = self.owner_of(op) else { continue };
            let failed = result.status().err();
            // The server does not know the owners of a client that has expired.
            if failed.is_none_or(|error| error.uses_up_seqid() && error != Error::Expired) {
                self.count(&owner);
            }
            match (op, result) {
                (Op::Open(args), OpRes::Open(Ok(opened))) => {
                    self.made += u64::from(is_creation(args));
                    self.by_open.insert(opened.stateid.other, owner);
                }
                (Op::Close(args), _) if failed.is_none() => {
                    let closed = args.open_stateid.other;
                    self.by_open.remove(&closed);
                    self.locks = self.locks.filter(|(open, _)| *open != closed);
                }
                (Op::Lock(args), OpRes::Lock(Ok(stateid))) => {
                    let open = match &args.locker {
                        lock::Locker::New(new) => {
                            self.count(THREAD);
                            Some(new.open_stateid.other)
                        }
                        lock::Locker::Existing(_) => self.locks.map(|(open, _)| open),
                    };
                    self.locks = open.map(|open| (open, *stateid));
                }
                (Op::Locku(_), OpRes::Locku(Ok(stateid))) => {
                    self.locks = self.locks.map(|(open, _)| (open, *stateid));
                }
                (Op::Lock(_) | Op::Locku(_), _) if failed.is_some_and(is_state_lost) => {
                    self.locks = None;
                }
                _ => {}
            }
        }
    }
}

fn is_creation(args: &open::Args) -> bool {
    matches!(args.how, open::How::Create(_))
}

/// The state that the operation was under is gone.
pub(in crate::client) fn is_state_lost(error: Error) -> bool {
    matches!(
        error,
        Error::BadStateId
            | Error::StaleStateId
            | Error::OldStateId
            | Error::Expired
            | Error::AdminRevoked
    )
}
