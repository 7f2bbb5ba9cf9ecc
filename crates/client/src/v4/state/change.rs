//! Requests that change opens and locks: OPEN, OPEN_CONFIRM, CLOSE, LOCK, LOCKU.
//!
//! 1. Those of one file are sent one after another: the sender holds [`OpenState::turn`]. What is known
//!    of the file has a lock of its own that is not held across an `await`, so that recovery, which
//!    may run in the middle of a request, can reclaim it.
//! 2. In minor version 0 they are counted, by open owner (one for each file) or lock owner; a
//!    request that the server looked at at all uses its number up (RFC 7530 section 9.1.7), so one
//!    that is repeated after DELAY or GRACE is made anew.
//! 3. A server of minor version 0 that has forgotten the client is introduced to it once, however
//!    many requests are told so; a request is repeated if there is a hope that it fares better.

use crate::backoff::Backoff;
use crate::error::Result;
use crate::protocol::OpenLockOwner;
use crate::v4::client::V4;
use crate::v4::session::answer::{Answer, Step};
use crate::v4::session::state::Session;
use crate::v4::state::open_state::{Known, OpenState};
use std::sync::Arc;
use weir_nfs::v4::types::ClientId;
use weir_nfs::v4::{Error as Nfs4Error, Op};
use weir_rpc::OpaqueAuth;

/// Whose request it is, where they are counted.
#[derive(Clone, Copy)]
pub(in crate::v4) enum Counted {
    Open,
    Lock(OpenLockOwner),
}

/// A request, made anew for each attempt of what is known by then.
pub(in crate::v4) type Build<'a> =
    &'a (dyn Fn(&Known, ClientId) -> (Vec<Op>, Counted) + Send + Sync);

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
                    // Everything is reclaimed if the client is not known. What is not reclaimed then
                    // will be as stale next time.
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

    /// The same as a part of recovery, as client `client` and in `session`.
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

    /// Counts a request that the server looked at: it is the second of its compound.
    fn count(&self, state: &OpenState, counted: Counted, answer: &Answer) {
        let not_counted = matches!(
            answer.status,
            Err(Nfs4Error::StaleClientId
                | Nfs4Error::StaleStateId
                | Nfs4Error::BadStateId
                | Nfs4Error::BadSeqId
                | Nfs4Error::BadXdr
                | Nfs4Error::Resource
                | Nfs4Error::NoFilehandle
                | Nfs4Error::Moved)
        );
        if self.has_sessions() || answer.results.len() < 2 || not_counted {
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
    /// To be made again after a pause.
    Wait,
}
