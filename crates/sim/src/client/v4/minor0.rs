//! Minor version 0: no sessions. Owners number their requests, and the server executes each once (RFC 7530 section
//! 9.1.7). Requests under state, and RENEW, renew the lease.

use super::{Done, Session, fh, is_state_lost};
use crate::client::{Client, Handle, Outcome};
use crate::host;
use crate::world::{LEASE, Plant};
use std::time::Duration;
use tokio::time::sleep;
use weir_nfs::v4::op::{open, open_confirm, setclientid, setclientid_confirm};
use weir_nfs::v4::types::{ClientOwner, NetAddr, StateId};
use weir_nfs::v4::{Error, Op, OpRes};
use weir_xdr::Opaque;

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
            self.renewed(begun + LEASE);
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
