//! Requests that change opens and locks: OPEN, OPEN_CONFIRM, CLOSE, LOCK, LOCKU.
//!
//! 1. The requests of one file are sent one at a time: the sender holds [`OpenState::turn`]. The
//!    file's known state has its own lock, which is not held across an `await`, so that recovery,
//!    which may run in the middle of a request, can reclaim the file.
//! 2. Minor version 0 numbers them, by open owner (one for each file) or lock owner; every request
//!    that the server examines uses up its number (RFC 7530 section 9.1.7), so one that is repeated
//!    after DELAY or GRACE is rebuilt.
//! 3. If a server of minor version 0 has forgotten the client, the client introduces itself once,
//!    however many requests fail; a request is repeated if that may succeed.

use crate::backoff::Backoff;
use crate::error::Result;
use crate::protocol::OpenLockOwner;
use crate::v4::client::V4;
use crate::v4::session::answer::{Answer, Step};
use crate::v4::session::state::Session;
use crate::v4::state::open_state::{OpenRecord, OpenState};
use std::sync::Arc;
use weir_nfs::v4::types::ClientId;
use weir_nfs::v4::{Error as Nfs4Error, Op};
use weir_rpc::OpaqueAuth;

/// The owner that a request is numbered by, where requests are numbered.
#[derive(Clone, Copy)]
pub(in crate::v4) enum Counted {
    Open,
    Lock(OpenLockOwner),
}

/// Builds a request from the known state, anew for each attempt.
pub(in crate::v4) type Build<'a> =
    &'a (dyn Fn(&OpenRecord, ClientId) -> (Vec<Op>, Counted) + Send + Sync);

/// How often the server may forget the client during one request.
const MAX_RECOVERIES: u32 = 32;

impl V4 {
    /// Sends a request until it is answered. The caller has the file's turn.
    pub(in crate::v4) async fn change(
        &self,
        state: &OpenState,
        cred: &OpaqueAuth,
        operation: &'static str,
        build: Build<'_>,
    ) -> Result<Answer> {
        if self.has_sessions() {
            let (ops, _) = build(&state.known.lock(), 0);
            return self.exchange(cred, operation, &ops, None).await;
        }
        let session = self.session();
        let (mut backoff, mut recoveries) = (Backoff::new(self.hard), 0);
        loop {
            let client = self.introduce(None).await?;
            let before = state.stateid(false);
            let answer = match self.attempt(&session, client, state, cred, operation, build).await?
            {
                Attempt::Answered(answer) => answer,
                Attempt::Wait if backoff.wait().await => continue,
                Attempt::Wait => return Err(self.timed_out(operation)),
            };
            match answer.status {
                _ if recoveries >= MAX_RECOVERIES => return Ok(answer),
                Err(Nfs4Error::StaleClientId) => drop(self.introduce(Some(client)).await?),
                Err(Nfs4Error::StaleStateId | Nfs4Error::Expired) => {
                    // Reclaims everything if the client is unknown. State that is not reclaimed
                    // then will be just as stale next time.
                    self.renew().await?;
                    if state.stateid(false) == before {
                        return Ok(answer);
                    }
                }
                _ => return Ok(answer),
            }
            recoveries += 1;
        }
    }

    /// The same as part of recovery, as client `client` and in `session`.
    pub(in crate::v4) async fn change_in(
        &self,
        session: &Arc<Session>,
        client: ClientId,
        state: &OpenState,
        operation: &'static str,
        build: Build<'_>,
    ) -> Result<Answer> {
        let cred = state.known.lock().cred.clone();
        let cred = cred.as_deref().unwrap_or(&self.own);
        let mut backoff = Backoff::new(self.hard);
        loop {
            match self.attempt(session, client, state, cred, operation, build).await? {
                Attempt::Answered(answer) => return Ok(answer),
                Attempt::Wait if backoff.wait().await => {}
                Attempt::Wait => return Err(self.timed_out(operation)),
            }
        }
    }

    async fn attempt(
        &self,
        session: &Arc<Session>,
        client: ClientId,
        state: &OpenState,
        cred: &OpaqueAuth,
        operation: &'static str,
        build: Build<'_>,
    ) -> Result<Attempt> {
        let (ops, counted) = build(&state.known.lock(), client);
        match self.exchange_once(session, cred, operation, &ops, None).await? {
            Step::Answered(answer) => {
                self.count(state, counted, &answer);
                Ok(Attempt::Answered(answer))
            }
            Step::Wait(answer) => {
                answer.iter().for_each(|answer| self.count(state, counted, answer));
                Ok(Attempt::Wait)
            }
            Step::Again => Ok(Attempt::Wait),
            Step::Recover { .. } => Err(self.failed(operation, Nfs4Error::DeadSession)),
        }
    }

    /// Counts a request that the server examined: it is the second of its compound.
    fn count(&self, state: &OpenState, counted: Counted, answer: &Answer) {
        let is_counted = answer.status.err().is_none_or(Nfs4Error::uses_up_seqid);
        if self.has_sessions() || answer.results.len() < 2 || !is_counted {
            return;
        }
        let mut known = state.known.lock();
        match counted {
            Counted::Open => known.seqid = known.seqid.wrapping_add(1),
            Counted::Lock(owner) => known.locks.count(owner),
        }
    }
}

enum Attempt {
    Answered(Answer),
    /// To be rebuilt after a pause.
    Wait,
}
