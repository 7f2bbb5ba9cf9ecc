//! Requests that change opens and locks: OPEN, OPEN_CONFIRM, CLOSE, LOCK, LOCKU.
//!
//! 1. The requests of one file are sent one at a time: the sender holds [`OpenState::turn`]. The
//!    file's known state has its own lock, which is not held across an `await`, so that recovery,
//!    which may run in the middle of a request, can reclaim the file.
//! 2. Minor version 0 numbers them, by open owner (one for each file) or lock owner; every request
//!    that the server examines uses up its number (RFC 7530 section 9.1.7), so one that is repeated
//!    after DELAY or GRACE is rebuilt. One whose answer did not come in time may have used up its
//!    number: it is sent again as it was before the owner's next request, which would get its answer
//!    otherwise ([`Unanswered`]).
//! 3. If a server of minor version 0 has forgotten the client, the client introduces itself once,
//!    however many requests fail; a request is repeated if that may succeed.

use crate::error::{Error, Result};
use crate::protocol::{Handle, OpenLockOwner};
use crate::v4::client::V4;
use crate::v4::session::answer::{Answer, Step};
use crate::v4::session::state::Session;
use crate::v4::state::numbered::{Counted, Unanswered};
use crate::v4::state::open::answer_handle;
use crate::v4::state::open_state::{OpenRecord, OpenState, is_timed_out};
use std::sync::Arc;
use weir_nfs::v4::op::lock::Locker;
use weir_nfs::v4::types::{ClientId, StateId};
use weir_nfs::v4::{Error as Nfs4Error, Op, OpRes};
use weir_rpc::OpaqueAuth;

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
        let (mut backoff, mut recoveries) = (self.backoff(), 0);
        loop {
            let client = self.introduce(None).await?;
            let before = state.stateid(false);
            let answer = match self.attempt(&session, client, state, cred, operation, build).await?
            {
                Attempt::Answered(answer) => answer,
                Attempt::Again(unwanted) => {
                    if let Some(unwanted) = unwanted {
                        self.release_unwanted(&session, client, state, unwanted).await?;
                    }
                    continue;
                }
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
        let mut backoff = self.backoff();
        loop {
            match self.attempt(session, client, state, cred, operation, build).await? {
                Attempt::Answered(answer) => return Ok(answer),
                // Recovery begins without unanswered requests, and what it reclaims is held.
                Attempt::Again(_) => {}
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
        if self.has_sessions() {
            let (ops, _) = build(&state.known.lock(), client);
            let step = self.exchange_once(session, cred, operation, &ops, None).await?;
            return self.attempted(step, operation);
        }
        let (request, is_earlier) = {
            let mut known = state.known.lock();
            let (ops, counted) = build(&known, client);
            let request = Unanswered { cred: cred.clone(), operation, ops, counted };
            known.begin(Arc::new(request))
        };
        let Unanswered { cred, ops, operation, .. } = &*request;
        let step = match self.exchange_once(session, cred, operation, ops, None).await {
            Ok(step) => step,
            Err(error) => {
                // The server may have executed it.
                let is_unanswered = match error {
                    Error::TimedOut { .. } => true,
                    Error::Protocol { .. } => !is_earlier,
                    _ => false,
                };
                if is_unanswered {
                    return Err(error);
                }
                state.known.lock().end(&request);
                return if is_earlier { Ok(Attempt::Again(None)) } else { Err(error) };
            }
        };
        let mut unwanted = None;
        let mut known = state.known.lock();
        if known.end(&request)
            && let Step::Answered(answer) | Step::Wait(Some(answer)) = &step
        {
            known.count(request.counted, answer);
            if is_earlier {
                unwanted = known.absorb(&state.handle, &request, answer);
            }
        }
        drop(known);
        match is_earlier {
            true => Ok(Attempt::Again(unwanted)),
            false => self.attempted(step, operation),
        }
    }

    /// Releases a lock that an earlier request took, whose caller has given it up. If this fails, it stays until its
    /// owner, or the last user of the file, is done.
    ///
    /// # Errors
    /// It timed out, as the request that waits for it would.
    async fn release_unwanted(
        &self,
        session: &Arc<Session>,
        client: ClientId,
        state: &OpenState,
        Unwanted { owner, offset, length, cred }: Unwanted,
    ) -> Result<()> {
        let Some(before) = state.known.lock().locks.begin_release(owner) else { return Ok(()) };
        let build = |known: &OpenRecord, _: ClientId| {
            let place = (offset, length);
            known.locku_ops(&state.handle, owner, before, place, self.has_sessions())
        };
        let mut backoff = self.backoff();
        loop {
            match self.attempt(session, client, state, &cred, "LOCKU", &build).await {
                Ok(Attempt::Answered(answer)) => {
                    if let Some(OpRes::Locku(Ok(stateid))) = answer.results.last() {
                        let mut known = state.known.lock();
                        known.locks.granted(owner, *stateid);
                        known.locks.released(owner);
                    }
                    return Ok(());
                }
                Ok(Attempt::Again(_)) => {}
                Ok(Attempt::Wait) if backoff.wait().await => {}
                Ok(Attempt::Wait) => return Err(self.timed_out("LOCKU")),
                Err(error) if is_timed_out(&error) => return Err(error),
                Err(error) => {
                    tracing::debug!("cannot release a lock that its caller gave up: {error}");
                    return Ok(());
                }
            }
        }
    }

    fn attempted(&self, step: Step, operation: &'static str) -> Result<Attempt> {
        match step {
            Step::Answered(answer) => Ok(Attempt::Answered(answer)),
            Step::Wait(_) | Step::Again => Ok(Attempt::Wait),
            Step::Recover { .. } => Err(self.failed(operation, Nfs4Error::DeadSession)),
        }
    }
}

impl OpenRecord {
    /// Returns the request to send, and whether that is an earlier one of the same owner.
    fn begin(&mut self, request: Arc<Unanswered>) -> (Arc<Unanswered>, bool) {
        let Some(place) = self.unanswered(request.counted) else { return (request, false) };
        match place {
            // With another credential, it would get the answer to someone else's request.
            Some(earlier) if earlier.ops != request.ops || earlier.cred != request.cred => {
                (Arc::clone(earlier), true)
            }
            place => {
                *place = Some(Arc::clone(&request));
                (request, false)
            }
        }
    }

    /// A request was answered. Returns false if recovery has given the file another owner meanwhile.
    fn end(&mut self, request: &Arc<Unanswered>) -> bool {
        let place = self.unanswered(request.counted);
        place.and_then(|place| place.take_if(|known| Arc::ptr_eq(known, request))).is_some()
    }

    fn unanswered(&mut self, counted: Counted) -> Option<&mut Option<Arc<Unanswered>>> {
        match counted {
            Counted::Open => Some(&mut self.unanswered),
            Counted::Lock(owner) => {
                self.locks.states.get_mut(&owner).map(|state| &mut state.unanswered)
            }
        }
    }

    /// Counts a request that the server examined: it is the second of its compound.
    fn count(&mut self, counted: Counted, answer: &Answer) {
        let is_counted = answer.status.err().is_none_or(Nfs4Error::uses_up_seqid);
        if answer.results.len() < 2 || !is_counted {
            return;
        }
        match counted {
            Counted::Open => self.seqid = self.seqid.wrapping_add(1),
            Counted::Lock(owner) => self.locks.count(owner),
        }
    }

    /// Takes what later requests have to name from the answer to a request that its caller has given up. What it
    /// granted counts as not held. Returns the lock if its owner is new to the server: its program may be gone, and
    /// releases nothing.
    fn absorb(&mut self, file: &Handle, request: &Unanswered, answer: &Answer) -> Option<Unwanted> {
        let (op, result) = (request.ops.get(1)?, answer.results.get(1)?);
        match (op, result) {
            (Op::Lock(args), OpRes::Lock(Ok(stateid))) => {
                let owner = match (&args.locker, request.counted) {
                    (Locker::New(new), _) => OpenLockOwner::from_bytes(&new.lock_owner.owner.0),
                    (Locker::Existing(_), Counted::Lock(owner)) => Some(owner),
                    (Locker::Existing(_), Counted::Open) => None,
                };
                let owner = owner?;
                self.locks.granted(owner, *stateid);
                self.locks.begin_release(owner);
                if let Locker::New(_) = args.locker
                    && !args.reclaim
                {
                    let (offset, length, cred) = (args.offset, args.length, request.cred.clone());
                    return Some(Unwanted { owner, offset, length, cred });
                }
            }
            (_, OpRes::Locku(Ok(stateid))) => {
                if let Counted::Lock(owner) = request.counted {
                    self.locks.granted(owner, *stateid);
                }
            }
            (_, OpRes::Open(Ok(opened)))
                if answer_handle(&answer.results).as_ref() == Some(file) =>
            {
                self.absorb_stateid(opened.stateid);
            }
            (_, OpRes::OpenConfirm(Ok(stateid))) => self.absorb_stateid(*stateid),
            _ => {}
        }
        None
    }

    fn absorb_stateid(&mut self, stateid: StateId) {
        if self.stateid == StateId::ANONYMOUS || self.stateid.other == stateid.other {
            self.stateid = stateid;
        }
    }
}

/// A lock that an earlier request took, as on the wire.
struct Unwanted {
    owner: OpenLockOwner,
    offset: u64,
    length: u64,
    /// Of the user who took it: a server takes no other one's release.
    cred: OpaqueAuth,
}

enum Attempt {
    Answered(Answer),
    /// An earlier request was answered; this one is to be built again.
    Again(Option<Unwanted>),
    /// To be rebuilt after a pause.
    Wait,
}
