//! Minor version 0: no sessions. Owners number their requests, and the server executes each once (RFC 7530 section
//! 9.1.7). Requests under state, and RENEW, renew the lease.

use super::{Done, Session, fh, is_state_lost};
use crate::client::{Client, Handle, Outcome};
use crate::host;
use crate::world::{LEASE, Plant};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::sleep;
use weir_nfs::v4::op::{lock, open, open_confirm, setclientid, setclientid_confirm};
use weir_nfs::v4::types::{ClientOwner, NetAddr, StateId, StateOwner};
use weir_nfs::v4::{Error, Op, OpRes};
use weir_xdr::Opaque;

/// How many files an open-owner creates. The server forgets it after a while without opens, and then asks the client to
/// confirm the opens of new ones.
const MADE: u64 = 4;
/// The open-owner of other opens.
const PROCESS: &str = "process";
/// The lock-owner.
pub(super) const THREAD: &str = "thread";
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
    fn begin(&mut self, client: u64) {
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
    fn owner_of(&self, op: &Op) -> Option<String> {
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
    fn numbered(&self, op: &Op, later: u32) -> Op {
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
    fn executed(&mut self, ops: &[Op], results: &[OpRes]) {
        for (op, result) in ops.iter().zip(results) {
            let Some(owner) = self.owner_of(op) else { continue };
            let failed = result.status().err();
            if failed.is_none_or(uses_up_the_number) {
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

/// Whether a request that fails so has used up its number (RFC 7530 section 9.1.7). Not for a client that has expired:
/// the server does not know its owners then.
fn uses_up_the_number(error: Error) -> bool {
    !matches!(
        error,
        Error::StaleClientId
            | Error::StaleStateId
            | Error::BadStateId
            | Error::BadSeqId
            | Error::BadXdr
            | Error::Resource
            | Error::NoFilehandle
            | Error::Moved
            | Error::Expired
    )
}

/// Whether an operation that succeeds renews the lease (RFC 7530 section 9.5).
fn renews(op: &Op) -> bool {
    matches!(
        op,
        Op::Open(_)
            | Op::OpenConfirm(_)
            | Op::Close(_)
            | Op::Lock(_)
            | Op::Locku(_)
            | Op::Read(_)
            | Op::Write(_)
            | Op::Setattr(_)
            | Op::Renew(_)
    )
}

/// The server does not know the client, or its state, any more.
fn is_client_lost(error: Error) -> bool {
    matches!(error, Error::StaleClientId | Error::StaleStateId | Error::Expired)
}

/// What came of a compound.
struct Answered {
    results: Vec<OpRes>,
    status: Result<(), Error>,
    runs: (u64, u64),
    /// The client ID that it was sent under.
    client: u64,
}

impl Client {
    /// A compound, made again until the server has done it or refused it.
    pub(super) async fn run40(&self, ops: &[Op]) -> Done {
        let opens = ops.iter().any(|op| matches!(op, Op::Open(_)));
        let (mut first, mut is_new_client) = (None, false);
        loop {
            self.renew40().await;
            let Answered { results, status, runs, client } = self.exchange40(ops).await;
            let first = *first.get_or_insert(runs.0);
            match status {
                Err(Error::Delay | Error::Grace) => {
                    sleep(Duration::from_millis(300)).await;
                    continue;
                }
                Err(error) if is_client_lost(error) => {
                    self.world.event(&format!("client {}: {error:?}", self.number));
                    self.recover40(client).await;
                    is_new_client = true;
                    if error == Error::StaleClientId || opens {
                        continue;
                    }
                }
                Err(Error::BadSeqId) => {
                    self.world.violation(format!("BAD_SEQID to {ops:?}"));
                }
                _ => {}
            }
            // What was done before under another client ID is not known to have been done.
            return Done { results, status, again: is_new_client || first != runs.1 };
        }
    }

    /// A compound under the client's ID, with the numbers of its owners.
    async fn exchange40(&self, ops: &[Op]) -> Answered {
        let mut owners = self.v4.owners.lock().await;
        if !ops.iter().any(|op| owners.owner_of(op).is_some()) {
            drop(owners);
            let client = self.v4.session.lock().client;
            let (results, status, begun, runs) = self.compound40(ops, None).await;
            self.renewed40(ops, &results, client, begun);
            return Answered { results, status, runs, client };
        }
        let client = self.v4.session.lock().client;
        owners.begin(client);
        let later = u32::from(self.world.plant == Some(Plant::Seqids));
        let [numbered, again] =
            [0, later].map(|l| ops.iter().map(|op| owners.numbered(op, l)).collect::<Vec<_>>());
        if self.world.below(12) == 0 {
            self.link.lose_reply();
        }
        let (results, status, begun, runs) = self.compound40(&numbered, Some(&again)).await;
        owners.executed(&numbered, &results);
        self.renewed40(ops, &results, client, begun);
        Answered { results, status, runs, client }
    }

    /// A compound has renewed the lease, if it succeeded in anything that does. It may have been executed when it was
    /// sent first, at `begun`.
    fn renewed40(&self, ops: &[Op], results: &[OpRes], client: u64, begun: Duration) {
        let renewed =
            ops.iter().zip(results).any(|(op, result)| renews(op) && result.status().is_ok());
        let mut session = self.v4.session.lock();
        if renewed && session.client == client && session.until < begun + LEASE {
            session.until = begun + LEASE;
            drop(session);
            self.world.renewed(self.number, begun + LEASE);
        }
    }

    /// Renews the lease, if half of it is over.
    async fn renew40(&self) {
        loop {
            let (client, until) = {
                let session = self.v4.session.lock();
                (session.client, session.until)
            };
            if host::now() + LEASE / 2 < until {
                return;
            }
            let answered = self.exchange40(&[Op::Renew(client)]).await;
            match answered.status {
                // The reply may have come late.
                Ok(()) => return,
                Err(error) if is_client_lost(error) => {
                    self.world.event(&format!("client {}: {error:?} to RENEW", self.number));
                    self.recover40(client).await;
                }
                Err(Error::Delay) => sleep(Duration::from_millis(300)).await,
                Err(error) => self.world.violation(format!("RENEW fails: {error:?}")),
            }
        }
    }

    /// Has the server know the client again, and takes back what the client had.
    pub(super) async fn recover40(&self, lost: u64) {
        let _turn = self.v4.recovering.lock().await;
        while self.v4.session.lock().client == lost {
            if self.begin40().await {
                return;
            }
            sleep(Duration::from_millis(100)).await;
        }
    }

    /// SETCLIENTID, SETCLIENTID_CONFIRM and, where state may be reclaimed, that. False: begin again.
    async fn begin40(&self) -> bool {
        let verifier = u64::from(self.v4.boot).to_be_bytes();
        let owner = Opaque(format!("client {}", self.number).into_bytes().into());
        let set = Op::Setclientid(setclientid::Args {
            client: ClientOwner { verifier, owner },
            cb_program: 0x4000_0000,
            // It cannot be called back, so it gets no delegations.
            cb_location: NetAddr::default(),
            callback_ident: 1,
        });
        let (results, status, ..) = self.compound40(&[set], None).await;
        let Some(OpRes::Setclientid(Ok(introduced))) = results.last() else {
            if !matches!(status, Err(Error::Delay | Error::ClIdInUse)) {
                self.world.violation(format!("SETCLIENTID fails: {status:?}"));
            }
            return false;
        };
        let (client_id, confirm) = (introduced.client_id, introduced.confirm);
        let ops = [Op::SetclientidConfirm(setclientid_confirm::Args { client_id, confirm })];
        let (_, status, begun, runs) = self.compound40(&ops, None).await;
        match status {
            Ok(()) => {}
            Err(Error::Delay | Error::StaleClientId) => return false,
            Err(error) => self.world.violation(format!("SETCLIENTID_CONFIRM fails: {error:?}")),
        }
        let before = {
            let mut session = self.v4.session.lock();
            let before = (session.run, session.until);
            let is_known = session.client == client_id;
            let (run, until) = (runs.1, begun + LEASE);
            *session = Session { client: client_id, run, until, ..Session::default() };
            (!is_known).then_some(before)
        };
        match before {
            Some(before) => self.reclaim(before).await,
            None => true,
        }
    }

    /// A compound during recovery. `None`: the client is lost again.
    pub(super) async fn once40(&self, ops: &[Op]) -> Option<(Vec<OpRes>, Result<(), Error>)> {
        loop {
            let Answered { results, status, .. } = self.exchange40(ops).await;
            match status {
                Err(error) if is_client_lost(error) => return None,
                Err(Error::Delay) => sleep(Duration::from_millis(300)).await,
                _ => return Some((results, status)),
            }
        }
    }

    /// Opens a file by its name: minor version 0 opens none by its handle.
    pub(super) async fn open40(
        &self,
        file: &Handle,
        access: open::ShareAccess,
    ) -> Outcome<open::Opened> {
        let known = self.world.paths.lock().get(file).cloned();
        let Some((dir, name)) = known else {
            self.world.violation("a file without a name is opened".into());
        };
        let claim = open::Claim::Null(Opaque(name.into_bytes().into()));
        let ops = [Op::Putfh(fh(&dir)), self.open_op(access, open::How::NoCreate, claim)];
        let done = self.run40(&ops).await;
        let again = done.again;
        let outcome = done.last(|result| match result {
            OpRes::Open(Ok(opened)) => Some(opened),
            _ => None,
        });
        let Ok(opened) = outcome.result else { return outcome };
        let stateid = self.confirm40(file, &opened).await;
        Outcome { result: Ok(open::Opened { stateid, ..opened }), again }
    }

    /// Confirms an open, if the server asks for that. Returns its stateid.
    pub(super) async fn confirm40(&self, file: &Handle, opened: &open::Opened) -> StateId {
        let open_stateid = opened.stateid;
        if !opened.flags.contains(open::ResultFlags::CONFIRM) {
            return open_stateid;
        }
        self.world.event(&format!("client {}: OPEN_CONFIRM", self.number));
        let confirm = Op::OpenConfirm(open_confirm::Args { open_stateid, seqid: 0 });
        let done = self.run40(&[Op::Putfh(fh(file)), confirm]).await;
        match (done.status, done.results.last()) {
            (Ok(()), Some(OpRes::OpenConfirm(Ok(stateid)))) => *stateid,
            // The next use of it tells that it is lost.
            (Err(error), _) if is_state_lost(error) => open_stateid,
            (Err(Error::Stale | Error::Io), _) => open_stateid,
            (status, _) => self.world.violation(format!("OPEN_CONFIRM fails: {status:?}")),
        }
    }
}
