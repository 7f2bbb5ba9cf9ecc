//! A client makes its session anew, and reclaims what it had when the server has restarted.

use super::{Held, Open, RECOVERY, SLOTS, Session, fh, is_session_lost};
use crate::client::{Client, Handle, Version};
use crate::host;
use crate::oracle::Holder;
use crate::world::LEASE;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::time::sleep;
use weir_nfs::v4::op::{create_session, exchange_id, open, reclaim_complete, sequence};
use weir_nfs::v4::types::{CallbackSec, ClientOwner, SessionId};
use weir_nfs::v4::{Error, Op, OpRes};
use weir_xdr::{List, Opaque};

impl Client {
    /// Makes a session in the place of `lost`, and takes back what the client had.
    pub(super) async fn recover(&self, lost: SessionId) {
        let _turn = self.v4.recovering.lock().await;
        while self.v4.session.lock().id == lost {
            if self.begin_session().await {
                return;
            }
            sleep(Duration::from_millis(100)).await;
        }
    }

    /// EXCHANGE_ID, CREATE_SESSION and, where state may be reclaimed, that. False: begin again.
    async fn begin_session(&self) -> bool {
        let boot = u64::from(self.v4.boot).to_be_bytes();
        let owner = format!("client {}", self.number);
        let exchange = Op::ExchangeId(exchange_id::Args {
            client: ClientOwner { verifier: boot, owner: Opaque(owner.into_bytes().into()) },
            flags: exchange_id::Flags::empty(),
            state_protect: exchange_id::StateProtect::None,
            impl_id: List::default(),
        });
        let (results, status, ..) = self.compound(&[exchange]).await;
        let Some(OpRes::ExchangeId(Ok(exchanged))) = results.last() else {
            if !matches!(status, Err(Error::Delay | Error::ClIdInUse)) {
                self.world.violation(format!("EXCHANGE_ID fails: {status:?}"));
            }
            return false;
        };
        let confirmed = exchanged.flags.contains(exchange_id::Flags::CONFIRMED_R);
        let channel = create_session::ChannelAttrs {
            max_request_size: 128 << 10,
            max_response_size: 128 << 10,
            max_response_size_cached: 4096,
            max_operations: 16,
            max_requests: SLOTS as u32,
            ..create_session::ChannelAttrs::default()
        };
        let args = create_session::Args {
            client_id: exchanged.client_id,
            sequence_id: exchanged.sequence_id,
            flags: create_session::Flags::CONN_BACK_CHAN,
            fore: channel.clone(),
            back: channel,
            cb_program: 0x4000_0000,
            sec_parms: vec![CallbackSec::None].into(),
        };
        let (results, status, sent, runs) = self.compound(&[Op::CreateSession(args)]).await;
        let Some(OpRes::CreateSession(Ok(created))) = results.last() else {
            if !matches!(status, Err(Error::Delay | Error::StaleClientId)) {
                // The disk of the records fails no calls, so there is no reason.
                self.world.violation(format!("CREATE_SESSION fails: {status:?}"));
            }
            return false;
        };
        let before = {
            let mut session = self.v4.session.lock();
            let before = (session.run, session.until);
            let until = sent + LEASE;
            *session = Session { id: created.session, run: runs.1, until, ..Session::default() };
            before
        };
        if confirmed { true } else { self.reclaim(before).await }
    }

    /// A compound during recovery. `None`: the session is lost again.
    async fn once(&self, ops: Vec<Op>) -> Option<(Vec<OpRes>, Result<(), Error>)> {
        if self.version == Version::V40 {
            return self.once40(&ops).await;
        }
        let mut in_slot = self.v4.slots[RECOVERY as usize].lock().await;
        loop {
            let id = self.v4.session.lock().id;
            let sequence = Op::Sequence(sequence::Args {
                session: id,
                sequence_id: in_slot.begin(id),
                slot: RECOVERY,
                highest_slot: RECOVERY,
                cache_this: true,
            });
            let all: Vec<Op> = std::iter::once(sequence).chain(ops.iter().cloned()).collect();
            let (mut results, status, ..) = self.compound(&all).await;
            match status {
                Err(error) if is_session_lost(error) => return None,
                Err(Error::Delay) => {
                    if results.len() <= 1 {
                        in_slot.take_back();
                    }
                    sleep(Duration::from_millis(300)).await;
                }
                _ if results.is_empty() => return None,
                _ => {
                    results.remove(0);
                    return Some((results, status));
                }
            }
        }
    }

    /// Takes opens and the lock back after a restart of the server. The session before was given by that
    /// `run`, and its lease was good `until` then.
    pub(super) async fn reclaim(&self, before: (u64, Duration)) -> bool {
        self.v4.reclaiming.store(true, Relaxed);
        let reclaimed = self.reclaim_all(before).await;
        self.v4.reclaiming.store(false, Relaxed);
        reclaimed
    }

    async fn reclaim_all(&self, (run, until): (u64, Duration)) -> bool {
        let opens: Vec<(Handle, Open)> =
            self.v4.opens.lock().iter().map(|(file, open)| (file.clone(), *open)).collect();
        let (ended, started) = *self.world.restarted.lock();
        // The server has restarted once since, the lease was good then, and it is early enough.
        let is_due = || {
            run + 1 == self.world.run()
                && self.v4.session.lock().run == self.world.run()
                && until > ended
                && host::now() < started + LEASE - Duration::from_millis(500)
        };
        let excused = |status| status == Err(Error::Io) && self.world.disk.failures().0;
        for (file, Open { access, .. }) in opens {
            let begun_due = is_due();
            let claim = open::Claim::Previous(self.delegation_of(&file));
            let ops = vec![Op::Putfh(fh(&file)), self.open_op(access, open::How::NoCreate, claim)];
            let Some((results, status)) = self.once(ops).await else { return false };
            let is_kept = |held: &Held| held.file == file && !held.releasing;
            let lock = self.v4.lock.lock().clone().filter(is_kept);
            match results.last() {
                Some(OpRes::Open(Ok(opened))) => {
                    let had_delegation = self.forget_delegation(&file).is_some();
                    self.delegated(&file, &opened.delegation);
                    let has_delegation = self.delegation_of(&file) != open::DelegationType::None;
                    let failed = self.world.disk.failures().0;
                    if had_delegation && !has_delegation && begun_due && is_due() && !failed {
                        self.world.violation("a delegation cannot be reclaimed".into());
                    }
                    let open = Open { stateid: opened.stateid, access };
                    self.v4.opens.lock().insert(file, open);
                    let Some(held) = lock else { continue };
                    let op = self.lock_op(opened.stateid, held.range, true);
                    let ops = vec![Op::Putfh(fh(&held.file)), op];
                    let Some((results, status)) = self.once(ops).await else { return false };
                    match results.last() {
                        Some(OpRes::Lock(Ok(stateid))) => {
                            let mut now = self.v4.lock.lock();
                            let releasing = now.as_ref().is_some_and(|now| now.releasing);
                            let (run, until) = {
                                let session = self.v4.session.lock();
                                (session.run, session.until)
                            };
                            let range = held.range;
                            *now = Some(Held { stateid: *stateid, run, releasing, ..held });
                            drop(now);
                            let holder = Holder { client: self.number, until };
                            let mut locks = self.world.locks.lock();
                            if !releasing && let Err(why) = locks.got(range, holder, host::now()) {
                                drop(locks);
                                self.world.violation(why);
                            }
                        }
                        _ => self.lost(
                            &format!("{status:?} to its reclaim"),
                            begun_due && is_due() && !excused(status),
                        ),
                    }
                }
                _ => {
                    self.v4.opens.lock().remove(&file);
                    self.forget_delegation(&file);
                    let excused = excused(status);
                    if begun_due && is_due() && !excused {
                        self.world.violation(format!("an open cannot be reclaimed: {status:?}"));
                    }
                    if lock.is_some() {
                        self.lost(
                            "its open cannot be reclaimed",
                            begun_due && is_due() && !excused,
                        );
                    }
                }
            }
        }
        if self.version == Version::V40 {
            // There is no operation that says so.
            return true;
        }
        let complete = Op::ReclaimComplete(reclaim_complete::Args { one_fs: false });
        match self.once(vec![complete]).await {
            Some((_, Ok(()) | Err(Error::CompleteAlready))) => true,
            Some((_, status)) => {
                self.world.violation(format!("RECLAIM_COMPLETE fails: {status:?}"))
            }
            None => false,
        }
    }

    /// The lock is gone, which must not be where it is `due`.
    pub(super) fn lost(&self, why: &str, due: bool) {
        if let Some(held) = self.v4.lock.lock().take() {
            self.world.event(&format!("client {} lost its lock: {why}", self.number));
            let mut locks = self.world.locks.lock();
            // If not, it was about to be given up.
            let mine = locks.held.get(&held.range).is_some_and(|it| it.client == self.number);
            if mine {
                locks.held.remove(&held.range);
            }
            drop(locks);
            if due && mine {
                let number = self.number;
                self.world
                    .violation(format!("client {number} lost a lock within its lease: {why}"));
            }
        }
    }
}
