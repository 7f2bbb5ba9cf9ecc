//! Byte-range locks: LOCK, LOCKT, LOCKU; RELEASE_LOCKOWNER, FREE_STATEID.
//!
//! ```text
//!            LOCK             restart of the server: LOCK with reclaim
//!   (none) -------> held <---------------------------------------------+
//!                    | |                                               |
//!              LOCKU | | the server does not have them any more  ------+--- refused
//!                    v v                                                     |
//!                 (none) <---- given up by their owners --------- lost <-----+
//! ```
//!
//! 1. The client records the locks held, so that it can reclaim them. It forgets one before it asks
//!    the server to release it: once that is executed another client may get the lock.
//! 2. A lock that the server revoked (it expired, for example, and another client may have held it
//!    since) is not silently acquired again: the file's I/O and locks fail until the owners have
//!    released their locks.
//! 3. A conflicting request is resent: when the server calls back (CB_NOTIFY_LOCK, from minor
//!    version 1 on), and after pauses.
//! 4. A lock owner that is done is released here and at the server, even if the file stays open.

use crate::error::{Error, Result};
use crate::protocol::{Handle, OpenContext, OpenLockOwner};
use crate::v4::client::V4;
use crate::v4::requests::putfh;
use crate::v4::session::answer::{Answer, Step};
use crate::v4::session::state::Session;
use crate::v4::state::lock_state::LockState;
use crate::v4::state::numbered::Counted;
use crate::v4::state::open_state::{OpenRecord, OpenState, is_state_lost, newest, open_state};
use std::sync::Arc;
use weir_nfs::v4::Detailed;
use weir_nfs::v4::op::lock::{self, ExistingLocker, NewLocker};
use weir_nfs::v4::op::{lockt, locku};
use weir_nfs::v4::types::{ClientId, LockDenied, LockType, StateId, StateOwner};
use weir_nfs::v4::{Op, OpRes};
use weir_vfs::{Error as VfsError, Lock, LockRange, TO_END};

impl V4 {
    /// Requests a lock. Returns whether it was granted.
    pub(in crate::v4) async fn lock_range(
        &self,
        open: &OpenContext,
        owner: OpenLockOwner,
        lock: Lock,
        waits: bool,
    ) -> Result<bool> {
        let state = open_state(open).ok_or(VfsError::NotSupported)?;
        let _turn = state.turn.lock().await;
        if state.known.lock().locks.are_lost() {
            return Err(VfsError::Io.into());
        }
        // A downgrade is recorded before the request, as a release is (1).
        let downgrade = || state.known.lock().locks.downgrade(owner, lock.range);
        let downgrade = (!lock.exclusive).then(downgrade);
        let outcome = self.lock_in_turn(open, state, owner, lock, waits).await;
        if let Some(downgrade) = downgrade {
            let mut known = state.known.lock();
            match &outcome {
                Ok(Outcome::Granted) => {}
                Ok(Outcome::Denied | Outcome::Refused(_)) => {
                    known.locks.take_back(owner, downgrade)
                }
                // The caller restores what was held, or has it lost.
                Err(Error::TimedOut { .. }) => {}
                Err(_) => known.locks.lose_downgraded(downgrade),
            }
        }
        match outcome? {
            Outcome::Granted => Ok(true),
            Outcome::Denied => Ok(false),
            Outcome::Refused(error) => Err(error),
        }
    }

    async fn lock_in_turn(
        &self,
        open: &OpenContext,
        state: &OpenState,
        owner: OpenLockOwner,
        lock: Lock,
        waits: bool,
    ) -> Result<Outcome> {
        for _ in 0..MAX_REOPENS {
            if state.known.lock().locks.are_lost() {
                return Err(VfsError::Io.into());
            }
            let before = state.stateid(self.has_sessions());
            let build = |known: &OpenRecord, client| {
                self.lock_ops(state, known, client, owner, lock, false, waits)
            };
            let answer = self.change(state, &open.cred, "LOCK", &build).await?;
            match answer.results.last() {
                Some(OpRes::Lock(Ok(stateid))) => {
                    let mut known = state.known.lock();
                    known.locks.granted(owner, *stateid);
                    // No other owner of this mount has it, or the server would not have granted it.
                    let _ = known.locks.held.lock(&owner, lock.range, lock.exclusive);
                    return Ok(Outcome::Granted);
                }
                Some(OpRes::Lock(Err(Detailed::Detail(_)))) => return Ok(Outcome::Denied),
                _ => {}
            }
            let error = match answer.status {
                Err(error) if is_state_lost(error) => error,
                Err(error) => return Ok(Outcome::Refused(self.failed("LOCK", error))),
                Ok(()) => return Err(self.unexpected("LOCK")),
            };
            // It may have been reclaimed while the request was in flight.
            if state.stateid(self.has_sessions()) == before {
                tracing::info!("{}: LOCK: {error}; reopening the file", self.server);
                self.reopen_in_turn(state).await?;
            }
        }
        Err(VfsError::Io.into())
    }

    #[allow(clippy::too_many_arguments, reason = "the arguments of LOCK, and where it is sent")]
    fn lock_ops(
        &self,
        state: &OpenState,
        known: &OpenRecord,
        client: ClientId,
        owner: OpenLockOwner,
        lock: Lock,
        reclaim: bool,
        waits: bool,
    ) -> (Vec<Op>, Counted) {
        let sessions = self.has_sessions();
        let (who, counted) = match known.locks.states.get(&owner) {
            Some(state) => {
                let lock_stateid = newest(state.stateid, sessions);
                let existing = ExistingLocker { lock_stateid, lock_seqid: state.seqid };
                (lock::Locker::Existing(existing), Counted::Lock(owner))
            }
            None => {
                let new = NewLocker {
                    open_seqid: known.seqid,
                    open_stateid: known.open_stateid(sessions),
                    lock_seqid: 0,
                    lock_owner: owner_of(client, owner),
                };
                (lock::Locker::New(new), Counted::Open)
            }
        };
        let args = lock::Args {
            kind: kind_of(lock, waits),
            reclaim,
            offset: lock.range.start,
            length: lock.range.wire_length(),
            locker: who,
        };
        (vec![putfh(&state.handle), Op::Lock(args)], counted)
    }

    /// A conflicting lock.
    pub(in crate::v4) async fn lock_in_the_way(
        &self,
        open: &OpenContext,
        owner: OpenLockOwner,
        lock: Lock,
    ) -> Result<Option<Lock>> {
        let Some(denied) = self.denied(open, owner, lock).await? else { return Ok(None) };
        let exclusive = matches!(denied.kind, LockType::Write | LockType::WriteWaiting);
        // Up to the end of file: all ones on the wire, but nfs-ganesha sends 0, and Linux's server
        // the length up to its own largest offset.
        let start = denied.offset;
        let end = match start.checked_add(denied.length) {
            Some(end) if end < i64::MAX as u64 && end > start => end,
            _ => TO_END,
        };
        Ok(Some(Lock { range: LockRange { start, end }, exclusive }))
    }

    /// A conflicting lock, as in the server's reply.
    pub(crate) async fn denied(
        &self,
        open: &OpenContext,
        owner: OpenLockOwner,
        lock: Lock,
    ) -> Result<Option<LockDenied>> {
        let mut client = if self.has_sessions() { 0 } else { self.introduce(None).await? };
        for _ in 0..MAX_REOPENS {
            let args = lockt::Args {
                kind: kind_of(lock, false),
                offset: lock.range.start,
                length: lock.range.wire_length(),
                owner: owner_of(client, owner),
            };
            let ops = [putfh(&open.handle), Op::Lockt(args)];
            let answer = self.exchange(&open.cred, "LOCKT", &ops, None).await?;
            match answer.results.last() {
                Some(OpRes::Lockt(Ok(()))) => return Ok(None),
                Some(OpRes::Lockt(Err(Detailed::Detail(denied)))) => {
                    return Ok(Some(denied.clone()));
                }
                _ => {}
            }
            match answer.status {
                Err(error) if !self.has_sessions() && is_client_lost(error) => {
                    client = self.introduce(Some(client)).await?;
                }
                status => {
                    self.checked("LOCKT", status)?;
                    return Err(self.unexpected("LOCKT"));
                }
            }
        }
        Err(VfsError::Io.into())
    }

    /// Releases a lock owner's locks in a range.
    pub(in crate::v4) async fn unlock_range(
        &self,
        open: &OpenContext,
        owner: OpenLockOwner,
        range: LockRange,
    ) -> Result<()> {
        let Some(state) = open_state(open) else { return Ok(()) };
        let _turn = state.turn.lock().await;
        // Before the request: if it is executed and the server restarts before its reply comes, another
        // client may have the lock, which a reclaim would take away.
        let held = state.known.lock().locks.forget_range(owner, range);
        for _ in 0..MAX_REOPENS {
            let begin = || state.known.lock().locks.begin_release(owner);
            let mut before = begin();
            if before.is_none() && held {
                // A reclaim may be on its way that began when the owner still held the lock.
                drop(self.recovering.lock().await);
                before = begin();
            }
            let Some(before) = before else { return Ok(()) };
            let build = |known: &OpenRecord, _: ClientId| {
                let place = (range.start, range.wire_length());
                known.locku_ops(&state.handle, owner, before, place, self.has_sessions())
            };
            let answer = self.change(state, &open.cred, "LOCKU", &build).await?;
            let is_lost = {
                let mut known = state.known.lock();
                match (answer.results.last(), answer.status) {
                    (Some(OpRes::Locku(Ok(stateid))), _) => {
                        known.locks.granted(owner, *stateid);
                        known.locks.released(owner);
                        return Ok(());
                    }
                    // The server has no such locks: they count as released, and others as lost.
                    (_, Err(error)) if is_state_lost(error) => {
                        known.locks.lose_state(owner, before)
                    }
                    (_, status) => {
                        self.checked("LOCKU", status)?;
                        return Err(self.unexpected("LOCKU"));
                    }
                }
            };
            if is_lost {
                self.acknowledge_loss(&open.cred, &[before]).await;
            }
        }
        Err(VfsError::Io.into())
    }

    /// Releases all locks of a file, for the end of the mount. (Servers may refuse to close the
    /// file before that, RFC 8881 section 18.2.)
    pub(in crate::v4) async fn give_up_locks(&self, open: &OpenContext) {
        let Some(state) = open_state(open) else { return };
        let owners = state.known.lock().locks.owners();
        for owner in owners {
            if let Err(error) = self.unlock_range(open, owner, LockRange::ALL).await {
                tracing::debug!("{error}");
            }
        }
    }

    /// Makes the server forget a lock owner that has ended, with a single attempt: if it fails, the
    /// owner ends with the lease (RFC 7530 section 16.37) or the open (RFC 8881 section 18.38).
    pub(in crate::v4) async fn forget_lock_owner(&self, open: &OpenContext, owner: OpenLockOwner) {
        let Some(state) = open_state(open) else { return };
        let (stateid, is_open) = {
            let mut known = state.known.lock();
            let Some(stateid) = known.locks.forget(owner) else { return };
            (stateid, known.is_open())
        };
        let (operation, op) = match (self.has_sessions(), self.client.id()) {
            (true, _) if is_open => ("FREE_STATEID", Op::FreeStateid(newest(stateid, true))),
            (false, Some(client)) => {
                ("RELEASE_LOCKOWNER", Op::ReleaseLockowner(owner_of(client, owner)))
            }
            _ => return,
        };
        let session = self.session();
        match self.exchange_once(&session, &open.cred, operation, &[op], None).await {
            Ok(Step::Answered(Answer { status: Ok(()), .. })) => {}
            Ok(_) => tracing::debug!("{}: {operation}: not done", self.server),
            Err(error) => tracing::debug!("{error}"),
        }
    }

    /// Reclaims the locks of a reclaimed open.
    pub(in crate::v4) async fn reclaim_locks(
        &self,
        session: &Arc<Session>,
        client: ClientId,
        state: &OpenState,
    ) -> Result<()> {
        let held: Vec<(OpenLockOwner, Lock)> = {
            let known = state.known.lock();
            known.locks.held.all().map(|(who, lock)| (*who, lock)).collect()
        };
        for (owner, lock) in held {
            let build = |known: &OpenRecord, client| {
                self.lock_ops(state, known, client, owner, lock, true, false)
            };
            let answer = self.change_in(session, client, state, "LOCK", &build).await?;
            match answer.results.last() {
                Some(OpRes::Lock(Ok(stateid))) => {
                    state.known.lock().locks.granted(owner, *stateid);
                }
                _ if self.is_begun_anew(answer.status) => {
                    return Err(self.failed("LOCK", weir_nfs::v4::Error::StaleClientId));
                }
                _ => {
                    let why = answer.status.map_err(|error| self.failed("LOCK", error));
                    tracing::warn!("a lock could not be reclaimed: {why:?}");
                    // Of those reclaimed so far, the stateids are needed to release them.
                    state.known.lock().locks.lose_some();
                    return Ok(());
                }
            }
        }
        Ok(())
    }
}

/// What the server answered to LOCK.
enum Outcome {
    Granted,
    /// Another owner's lock is in the way.
    Denied,
    Refused(Error),
}

/// How often one request may find its state lost.
const MAX_REOPENS: u32 = 4;

fn is_client_lost(error: weir_nfs::v4::Error) -> bool {
    use weir_nfs::v4::Error;
    matches!(error, Error::StaleClientId | Error::Expired)
}

fn kind_of(lock: Lock, waits: bool) -> LockType {
    match (lock.exclusive, waits) {
        (false, false) => LockType::Read,
        (true, false) => LockType::Write,
        (false, true) => LockType::ReadWaiting,
        (true, true) => LockType::WriteWaiting,
    }
}

fn owner_of(client_id: ClientId, owner: OpenLockOwner) -> StateOwner {
    StateOwner { client_id, owner: owner.to_bytes().as_slice().into() }
}

impl OpenRecord {
    /// LOCKU of a range, as on the wire; `before` is the owner's stateid if it has got none since.
    pub(super) fn locku_ops(
        &self,
        file: &Handle,
        owner: OpenLockOwner,
        before: StateId,
        (offset, length): (u64, u64),
        sessions: bool,
    ) -> (Vec<Op>, Counted) {
        let found = self.locks.states.get(&owner).cloned().unwrap_or(LockState::new(before, 0));
        let args = locku::Args {
            kind: LockType::Write,
            seqid: found.seqid,
            lock_stateid: newest(found.stateid, sessions),
            offset,
            length,
        };
        (vec![putfh(file), Op::Locku(args)], Counted::Lock(owner))
    }
}
