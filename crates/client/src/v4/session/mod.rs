//! The client id and the session: how they are established and recovered (RFC 8881 sections 2.10 and
//! 8.4.2).
//!
//! ```text
//!              EXCHANGE_ID, CREATE_SESSION
//!   (mount) ------------------------------> live --------------------> (unmount)
//!              RECLAIM_COMPLETE             ^  |   DESTROY_SESSION, DESTROY_CLIENTID
//!                                           |  | BADSESSION, a slot without outcome
//!            EXCHANGE_ID, CREATE_SESSION;   |  v
//!            new client id: reclaim opens, +- dead
//!            RECLAIM_COMPLETE
//! ```
//!
//! 1. One task replaces a lost session; the others wait for it.
//! 2. Other tasks use a new session only after the opens of the old one were reclaimed, so that their
//!    I/O does not come before the reclaim.
//! 3. If the server restarts during recovery, recovery begins again after a pause, for about half a
//!    minute in all.
//! 4. On a soft mount, a task that has waited for its turn as long as a call may take fails together with
//!    the recovery that timed out meanwhile: callers of a dead server do not time out one after another.
//! 5. A dead session is destroyed at the server when it is replaced and its last call has ended.
//! 6. If a client that the server knew gets a new client id, the server may have restarted, with another lease: the
//!    shortest one holds until the task that renews the lease has asked for it.

pub(crate) mod answer;
pub(crate) mod compound;
pub(crate) mod resume;
pub(crate) mod slots;
pub(crate) mod state;

use crate::backoff::Backoff;
use crate::error::{Error, Result};
use crate::v4::client::V4;
use crate::v4::session::slots::Slots;
use crate::v4::session::state::Session;
use crate::v4::state::delegation::table::CALLBACK_PROGRAM;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use tokio::time::Instant;
use weir_nfs::v4::op::{
    create_session, exchange_id, reclaim_complete, setclientid, setclientid_confirm,
};
use weir_nfs::v4::types::{CallbackSec, ClientId, ImplId, NetAddr};
use weir_nfs::v4::{Error as Nfs4Error, Op, OpRes};

/// Most operations in one of this client's compounds.
pub(in crate::v4) const MAX_OPERATIONS: u32 = 50;
/// Number of slots to request.
const SLOTS: u32 = 128;
/// Room for headers around the largest payload.
const HEADER_ROOM: u32 = 16 << 10;
/// The part of it for this client's own headers: RPC with a credential, SEQUENCE, PUTFH.
const REQUEST_HEAD: usize = 1536;
const RESPONSE_HEAD: usize = 1024;

/// When a recovery last timed out on a soft mount, and the operation that got no answer.
pub(super) type LastTimeout = Option<(Instant, &'static str)>;

impl V4 {
    pub(super) fn session(&self) -> Arc<Session> {
        Arc::clone(&self.session.lock())
    }

    /// Replaces an unusable session, unless that is done already.
    pub(super) async fn recover(&self, dead: &Arc<Session>) -> Result<()> {
        dead.slots.kill();
        let asked = Instant::now();
        let mut turn = self.recovering.lock().await;
        if self.ended.load(Relaxed) {
            return Err(weir_vfs::Error::Io.into());
        }
        if Arc::ptr_eq(&self.session(), dead) {
            self.check_patience(asked, *turn)?;
            tracing::info!("{}: session lost; creating another", self.server);
            let outcome = self.establish_locked().await;
            note_timeout(&mut turn, &outcome);
            outcome?;
        }
        Ok(())
    }

    /// Fails if a recovery timed out after this task, which `asked` for its turn then, had waited as long as
    /// a call may take.
    fn check_patience(&self, asked: Instant, last: LastTimeout) -> Result<()> {
        match last {
            Some((at, operation)) if at.saturating_duration_since(asked) >= self.limit => {
                Err(self.timed_out(operation))
            }
            _ => Ok(()),
        }
    }

    /// Creates the first session.
    pub(super) async fn establish(&self) -> Result<()> {
        let _one_at_a_time = self.recovering.lock().await;
        self.establish_locked().await
    }

    async fn establish_locked(&self) -> Result<()> {
        let mut backoff = Backoff::endless();
        for attempt in 0..MAX_ATTEMPTS {
            if attempt > 0 {
                backoff.wait().await;
            }
            let exchanged = self.exchange_id().await?;
            let known = self.client.id.lock().replace(exchanged.client_id);
            let kept = *self.client.settled.lock() == Some(exchanged.client_id)
                && exchanged.flags.contains(exchange_id::Flags::CONFIRMED_R);
            let Some(session) = self.create_session(&exchanged).await? else { continue };
            let session = Arc::new(session);
            if !kept {
                if let Err(error) =
                    self.settle(&session, exchanged.client_id, known.is_some()).await
                {
                    self.destroy_later(session);
                    match error {
                        // The server restarted again.
                        Error::Status { status, .. } if status == Nfs4Error::DeadSession.name() => {
                            continue;
                        }
                        error => return Err(error),
                    }
                }
                *self.client.settled.lock() = Some(exchanged.client_id);
                if known.is_some() {
                    self.lease_may_differ();
                }
            }
            let replaced = std::mem::replace(&mut *self.session.lock(), session);
            self.destroy_later(replaced);
            return Ok(());
        }
        Err(self.failed("CREATE_SESSION", Nfs4Error::StaleClientId))
    }

    /// Destroys a session that is not used any more once its last call has ended: servers limit the sessions of a
    /// client. Its calls in progress still get the replies that the server keeps for it.
    fn destroy_later(&self, session: Arc<Session>) {
        if session.is_placeholder() {
            return;
        }
        session.slots.kill();
        let mount = Weak::clone(&self.me);
        tokio::spawn(async move {
            session.slots.calls_ended().await;
            // The server may still execute a call that timed out here.
            let mut backoff = Backoff::endless();
            loop {
                let Some(v4) = mount.upgrade().filter(|v4| !v4.ended.load(Relaxed)) else { return };
                match v4.call_alone("DESTROY_SESSION", Op::DestroySession(session.id)).await {
                    Ok(result) if result.status().is_ok() => return,
                    Ok(result) => {
                        // The server may have lost it.
                        tracing::debug!("{}", v4.failure_of("DESTROY_SESSION", &result));
                        return;
                    }
                    Err(error) => {
                        tracing::debug!("{error}");
                        if error.to_vfs() != weir_vfs::Error::TimedOut {
                            return;
                        }
                    }
                }
                drop(v4);
                backoff.wait().await;
            }
        });
    }

    /// Reclaims the opens of a client that the server knew before, and sends RECLAIM_COMPLETE. A new
    /// client sends that with its first compound.
    async fn settle(&self, session: &Arc<Session>, id: ClientId, was_known: bool) -> Result<()> {
        if !was_known {
            self.complete_due.store(true, Relaxed);
            return Ok(());
        }
        self.reclaim_opens(session, id).await?;
        self.reclaim_complete(session).await
    }

    async fn exchange_id(&self) -> Result<exchange_id::Exchanged> {
        let op = Op::ExchangeId(exchange_id::Args {
            client: self.client.owner.clone(),
            flags: exchange_id::Flags::USE_NON_PNFS,
            state_protect: exchange_id::StateProtect::None,
            impl_id: vec![ImplId {
                domain: "weir".into(),
                name: concat!("weir ", env!("CARGO_PKG_VERSION")).into(),
                ..ImplId::default()
            }]
            .into(),
        });
        match self.call_alone("EXCHANGE_ID", op).await? {
            OpRes::ExchangeId(Ok(exchanged)) => Ok(exchanged),
            other => Err(self.failure_of("EXCHANGE_ID", &other)),
        }
    }

    /// `None`: the client id has expired, introduce the client again.
    async fn create_session(&self, client: &exchange_id::Exchanged) -> Result<Option<Session>> {
        let fore = create_session::ChannelAttrs {
            max_request_size: self.asked.write as u32 + HEADER_ROOM,
            max_response_size: self.asked.read as u32 + HEADER_ROOM,
            max_response_size_cached: 8192,
            max_operations: MAX_OPERATIONS,
            max_requests: SLOTS,
            ..Default::default()
        };
        let back = create_session::ChannelAttrs {
            max_request_size: 4096,
            max_response_size: 4096,
            max_response_size_cached: 4096,
            max_operations: 2,
            max_requests: 1,
            ..Default::default()
        };
        let op = Op::CreateSession(create_session::Args {
            client_id: client.client_id,
            sequence_id: client.sequence_id,
            flags: create_session::Flags::CONN_BACK_CHAN,
            fore,
            back,
            cb_program: CALLBACK_PROGRAM,
            sec_parms: vec![CallbackSec::None].into(),
        });
        match self.call_alone("CREATE_SESSION", op).await? {
            OpRes::CreateSession(Ok(created)) => {
                let fit = |max: u32, head: usize, asked: usize| {
                    let room = (max as usize).saturating_sub(head).min(asked);
                    // Whole pages, unless not even one fits.
                    if room >= 4096 { room & !4095 } else { room.max(512) }
                };
                let (fore, asked) = (created.fore, self.asked);
                self.delegations.begin_session(created.session);
                Ok(Some(Session {
                    id: created.session,
                    slots: Slots::new(fore.max_requests as usize),
                    max_read: fit(fore.max_response_size, RESPONSE_HEAD, asked.read),
                    max_write: fit(fore.max_request_size, REQUEST_HEAD, asked.write),
                    max_request: fore.max_request_size as usize,
                    max_response: fore.max_response_size as usize,
                    max_operations: fore.max_operations.min(MAX_OPERATIONS) as usize,
                }))
            }
            OpRes::CreateSession(Err(Nfs4Error::StaleClientId | Nfs4Error::SeqMisordered)) => {
                Ok(None)
            }
            other => Err(self.failure_of("CREATE_SESSION", &other)),
        }
    }

    async fn reclaim_complete(&self, session: &Arc<Session>) -> Result<()> {
        let op = Op::ReclaimComplete(reclaim_complete::Args { one_fs: false });
        let answer = self.call_in(session, &self.own, "RECLAIM_COMPLETE", &[op]).await?;
        match answer.status {
            Err(Nfs4Error::CompleteAlready) => Ok(()),
            status => self.checked("RECLAIM_COMPLETE", status),
        }
    }

    /// Introduces the client in minor version 0 (RFC 7530 section 9.1.1), unless the server already
    /// knows it by an id other than `unknown`.
    pub(super) async fn introduce(&self, unknown: Option<ClientId>) -> Result<ClientId> {
        let asked = Instant::now();
        let mut turn = self.recovering.lock().await;
        let known = *self.client.id.lock();
        if let Some(id) = known.filter(|id| Some(*id) != unknown) {
            return Ok(id);
        }
        if self.ended.load(Relaxed) {
            return Err(weir_vfs::Error::Io.into());
        }
        self.check_patience(asked, *turn)?;
        let outcome = self.introduce_locked(known.is_some()).await;
        note_timeout(&mut turn, &outcome);
        outcome
    }

    async fn introduce_locked(&self, was_known: bool) -> Result<ClientId> {
        let mut backoff = Backoff::endless();
        for _ in 0..MAX_ATTEMPTS {
            match self.introduce_once(was_known).await {
                // The server restarted again.
                Err(Error::Status { status, .. }) if status == Nfs4Error::StaleClientId.name() => {
                    backoff.wait().await;
                }
                outcome => return outcome,
            }
        }
        Err(self.failed("SETCLIENTID", Nfs4Error::StaleClientId))
    }

    async fn introduce_once(&self, was_known: bool) -> Result<ClientId> {
        let op = Op::Setclientid(setclientid::Args {
            client: self.client.owner.clone(),
            cb_program: CALLBACK_PROGRAM,
            // No callbacks, so no delegations either.
            cb_location: NetAddr { netid: "tcp".into(), addr: "0.0.0.0.0.0".into() },
            callback_ident: 0,
        });
        let introduced = match self.call_alone("SETCLIENTID", op).await? {
            OpRes::Setclientid(Ok(introduced)) => introduced,
            other => return Err(self.failure_of("SETCLIENTID", &other)),
        };
        let (client_id, confirm) = (introduced.client_id, introduced.confirm);
        let op = Op::SetclientidConfirm(setclientid_confirm::Args { client_id, confirm });
        match self.call_alone("SETCLIENTID_CONFIRM", op).await? {
            OpRes::SetclientidConfirm(Ok(())) => {}
            other => return Err(self.failure_of("SETCLIENTID_CONFIRM", &other)),
        }
        if was_known {
            self.reclaim_opens(&self.session(), client_id).await?;
        }
        *self.client.id.lock() = Some(client_id);
        if was_known {
            self.lease_may_differ();
        }
        Ok(client_id)
    }

    /// Ends the session and the client. Requests that come too late for the session do not create
    /// another.
    pub(super) async fn destroy(&self) -> Result<()> {
        self.ended.store(true, Relaxed);
        let _one_at_a_time = self.recovering.lock().await;
        let session = self.session();
        session.slots.kill();
        let id = self.client.id.lock().take();
        let destroy = [
            ("DESTROY_SESSION", Some(Op::DestroySession(session.id))),
            ("DESTROY_CLIENTID", id.map(Op::DestroyClientid)),
        ];
        let mut outcome = Ok(());
        for (operation, op) in destroy {
            let Some(op) = op else { continue };
            let result = self.call_alone(operation, op).await?;
            // Destroys the client even if its session is gone already.
            if result.status().is_err() {
                outcome = Err(self.failure_of(operation, &result));
            }
        }
        outcome
    }

    pub(super) fn failure_of(&self, operation: &'static str, result: &OpRes) -> Error {
        match result.status() {
            Err(error) => self.failed(operation, error),
            Ok(()) => self.unexpected(operation),
        }
    }
}

/// Notes a recovery that got no answer in time. On a hard mount, none ends so.
fn note_timeout<T>(last: &mut LastTimeout, outcome: &Result<T>) {
    *last = match outcome {
        Err(Error::TimedOut { operation, .. }) => Some((Instant::now(), operation)),
        _ => None,
    };
}

/// How often the server may forget the client during its introduction.
const MAX_ATTEMPTS: u32 = 32;
