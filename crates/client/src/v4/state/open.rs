//! Opens: one per file, shared by all its users in this mount.
//!
//! 1. CLOSE is sent when the last user has closed the file ([`crate::v4::state::close`]).
//! 2. With sessions the stateid is sent with sequence 0, the latest (RFC 8881 section 8.2.2), so
//!    that I/O need not wait for an OPEN that widens the access.
//! 3. After a server restart every open is reclaimed, with its locks, before any other request; an
//!    open that cannot be reclaimed is replaced by a new one at its next I/O. Locks that cannot be
//!    reclaimed are lost ([`crate::v4::state::lock`]).
//! 4. Minor version 0 opens by name only, so it needs to know one ([`crate::v4::open_names`]).
//!    Without one, a file is used with the anonymous stateid (RFC 7530 section 9.1.4.3).

use crate::error::Result;
use crate::protocol::{Handle, NewEntry, OpenContext};
use crate::v4::client::V4;
use crate::v4::requests::{node_ops, putfh};
use crate::v4::session::state::Session;
use crate::v4::state::numbered::Counted;
use crate::v4::state::open_state::{
    OpenRecord, OpenState, is_gone, is_state_lost, is_timed_out, newest,
};
use std::sync::Arc;
use weir_nfs::v4::op::open::{
    Args, Claim, DelegationType, How, Opened, ResultFlags, ShareAccess, ShareDeny,
};
use weir_nfs::v4::op::{close, open_confirm};
use weir_nfs::v4::types::{ClientId, StateId, StateOwner};
use weir_nfs::v4::{Error as Nfs4Error, Op, OpRes};
use weir_rpc::OpaqueAuth;
use weir_vfs::Access;

/// Whether a server refused a user what it may not do.
fn is_refused(error: &crate::Error) -> bool {
    matches!(error.to_vfs(), weir_vfs::Error::AccessDenied)
}

impl V4 {
    /// Opens a file, or joins an existing open that suffices.
    pub(in crate::v4) async fn open_file(
        &self,
        cred: Arc<OpaqueAuth>,
        handle: &Handle,
        access: Access,
    ) -> Result<OpenContext> {
        loop {
            let state = self.opens.entry(handle);
            let _turn = state.turn.lock().await;
            if access.contains(Access::WRITE) {
                self.give_back_held(handle).await;
            }
            let delegated = self.grant_of(handle).is_some();
            let (closed, suffices, mut asked, may_ask_less) = {
                let known = state.known.lock();
                let same_cred = known.cred.as_deref() == Some(&*cred);
                // An idle open is usable while the delegation that keeps it is.
                let usable = same_cred && (known.count > 0 || delegated);
                // All that the mount has, so that this user's credential opens the file again for all its users.
                let open = if known.is_open() { known.granted } else { Access::empty() };
                let asked = access | if same_cred { known.checked } else { open };
                // In minor version 0 the server takes CLOSE from the last user who opened, or from the mount's own.
                let is_own = known.cred.as_deref() == Some(&self.own);
                let may_ask_less = !same_cred && (self.has_sessions() || is_own);
                (known.closed, usable && known.checked.contains(access), asked, may_ask_less)
            };
            if closed {
                // If its close was given up, the entry is still there.
                self.opens.remove_entry(&state);
                continue;
            }
            let mut opened =
                if suffices { Ok(None) } else { self.send_open(&state, &cred, asked).await };
            if asked != access && may_ask_less && opened.as_ref().is_err_and(is_refused) {
                // The user may not do what others of this mount do.
                asked = access;
                opened = self.send_open(&state, &cred, asked).await;
                if let Ok(Some(lost)) = opened {
                    self.open_for_others(&state, lost).await;
                }
            }
            if let Err(error) = opened {
                let (is_open, is_closing) = {
                    let known = state.known.lock();
                    (known.is_open(), known.closing.is_some())
                };
                if !is_open && is_timed_out(&error) {
                    // The server may have it open, by this request.
                    self.close_later(&state, &cred, Some(asked));
                    return Err(error);
                }
                if !is_open && is_closing {
                    return Err(error);
                }
                let was_opened_by = {
                    let mut known = state.known.lock();
                    known.closed = known.count == 0;
                    known.cred.clone().filter(|_| known.closed && !known.granted.is_empty())
                };
                match was_opened_by {
                    // An idle open, kept by a delegation that may have ended.
                    Some(cred) => self.send_close(&state, &cred).await,
                    None if state.known.lock().closed => self.opens.remove_entry(&state),
                    None => {}
                }
                return Err(error);
            }
            let mut known = state.known.lock();
            if !suffices {
                known.join(&cred, asked);
            }
            known.count += 1;
            known.closing = None;
            drop(known);
            return Ok(OpenContext { cred, handle: handle.clone(), state: Some(state.clone()) });
        }
    }

    /// After an OPEN for one user, opens a file for its other users again, if the server had lost their open, `lost`.
    async fn open_for_others(&self, state: &OpenState, lost: StateId) {
        let narrow = {
            let mut known = state.known.lock();
            if !known.is_open() {
                return;
            }
            std::mem::replace(&mut known.stateid, lost)
        };
        if let Err(error) = self.reopen_in_turn(state).await {
            tracing::debug!("{error}");
            // The others' I/O fails, and the last of all closes the file.
            let mut known = state.known.lock();
            if known.stateid == lost {
                known.stateid = narrow;
            }
        }
    }

    /// OPEN of an existing file, in its turn. Returns the stateid that the file had, if the server has begun another
    /// one: it had no longer known the open.
    pub(super) async fn send_open(
        &self,
        state: &OpenState,
        cred: &OpaqueAuth,
        access: Access,
    ) -> Result<Option<StateId>> {
        let claim = self.claim_again(&state.handle)?;
        let build =
            |known: &OpenRecord, client| self.open_ops(state, known, client, access, &claim);
        let reconnects = self.reconnects();
        let (mut opens, mut lost) = (0, None);
        let opened = loop {
            let answer = self.change(state, cred, "OPEN", &build).await?;
            self.checked("OPEN", answer.status)?;
            let opened = self.opened(state, &answer.results)?;
            let found = answer_handle(&answer.results);
            if let Some(other) = found.filter(|found| *found != state.handle) {
                // By now the name refers to another file, whose stateid no I/O of this one may get.
                if let Err(error) = self.close_other(state, cred, &other, &opened).await {
                    tracing::debug!("{error}");
                }
                return Err(weir_vfs::Error::Stale.into());
            }
            // As reclaimed meanwhile, if the server has restarted.
            let had = std::mem::replace(&mut state.known.lock().stateid, opened.stateid);
            if had.other != opened.stateid.other {
                lost = Some(had);
            }
            if !opened.flags.contains(ResultFlags::CONFIRM) {
                break opened;
            }
            let build = |known: &OpenRecord, _| confirm_ops(&state.handle, known.stateid, known);
            let confirm = self.change(state, cred, "OPEN_CONFIRM", &build).await?;
            match confirm.status {
                // The server has restarted in between.
                Err(error) if is_state_lost(error) && opens < MAX_OPENS => opens += 1,
                status => {
                    self.checked("OPEN_CONFIRM", status)?;
                    confirmed(state, &confirm.results);
                    break opened;
                }
            }
        };
        match self.wants_delegations {
            true => self.delegations.take(&state.handle, &opened.delegation, reconnects),
            false => self.delegations.refuse(&state.handle, &opened.delegation),
        }
        Ok(lost)
    }

    /// Closes the file that an OPEN of `state` found under a name which is no longer its own. An open that is not
    /// confirmed cannot be closed (RFC 7530 section 16.18.5).
    async fn close_other(
        &self,
        state: &OpenState,
        cred: &OpaqueAuth,
        other: &Handle,
        opened: &Opened,
    ) -> Result<()> {
        self.delegations.refuse(other, &opened.delegation);
        let mut stateid = opened.stateid;
        if opened.flags.contains(ResultFlags::CONFIRM) {
            let build = |known: &OpenRecord, _| confirm_ops(other, stateid, known);
            let confirm = self.change(state, cred, "OPEN_CONFIRM", &build).await?;
            self.checked("OPEN_CONFIRM", confirm.status)?;
            stateid = confirmed_stateid(&confirm.results).unwrap_or(stateid);
        }
        let build = |known: &OpenRecord, _| close_ops(other, stateid, known);
        let closed = self.change(state, cred, "CLOSE", &build).await?;
        self.checked("CLOSE", closed.status)
    }

    fn opened(&self, state: &OpenState, results: &[OpRes]) -> Result<Opened> {
        match results {
            [_, OpRes::Open(Ok(opened)), ..] => Ok(opened.clone()),
            _ => {
                tracing::debug!("{}: OPEN of {:?} was not answered", self.server, state.handle);
                Err(self.unexpected("OPEN"))
            }
        }
    }

    /// The claim for opening an existing file: by its handle, or in minor version 0 by its name.
    fn claim_again(&self, handle: &Handle) -> Result<(Handle, Claim)> {
        if self.has_sessions() {
            return Ok((handle.clone(), Claim::Fh));
        }
        let name = self.names.get(handle);
        let (dir, name) = name.ok_or(weir_vfs::Error::Stale)?;
        Ok((dir, Claim::Null(name.as_slice().into())))
    }

    fn open_ops(
        &self,
        state: &OpenState,
        known: &OpenRecord,
        client: ClientId,
        access: Access,
        (at, claim): &(Handle, Claim),
    ) -> (Vec<Op>, Counted) {
        let mut args = self.open_args(access, How::NoCreate, claim.clone());
        if !self.has_sessions() {
            args.seqid = known.seqid;
            args.owner = owner_of(client, known.owner);
        } else if known.granted.contains(Access::WRITE) {
            args.share_access.insert(ShareAccess::WANT_NO_DELEG);
        }
        let at = if matches!(claim, Claim::Null(_)) { at } else { &state.handle };
        (vec![putfh(at), Op::Open(args), Op::Getfh(())], Counted::Open)
    }

    /// Creates a file in minor version 0, which only OPEN can do, and closes it.
    pub(in crate::v4) async fn create_without_session(
        &self,
        cred: &OpaqueAuth,
        entry: &NewEntry<'_>,
        how: How,
    ) -> Result<Vec<OpRes>> {
        let (state, results) = self.open_new_without_session(cred, entry, how).await?;
        self.close_new_without_session(cred, state).await;
        Ok(results)
    }

    /// Creates a file in minor version 0, and leaves it open.
    pub(in crate::v4) async fn open_new_without_session(
        &self,
        cred: &OpaqueAuth,
        entry: &NewEntry<'_>,
        how: How,
    ) -> Result<(OpenState, Vec<OpRes>)> {
        // A separate open, so that its owner has no other request in flight.
        let mut state = self.opens.new_state(&Handle(weir_xdr::Bytes::new()));
        let claim = Claim::Null(entry.name.into());
        let build = |known: &OpenRecord, client| {
            let mut args = self.open_args(Access::WRITE, how.clone(), claim.clone());
            args.seqid = known.seqid;
            args.owner = owner_of(client, known.owner);
            let ops = node_ops(vec![putfh(entry.dir), Op::Open(args)]);
            (ops, Counted::Open)
        };
        let answer = self.change(&state, cred, "OPEN", &build).await?;
        self.checked("OPEN", answer.status)?;
        let opened = self.opened(&state, &answer.results)?;
        state.handle = answer_handle(&answer.results).ok_or_else(|| self.unexpected("OPEN"))?;
        state.known.lock().stateid = opened.stateid;
        self.delegations.refuse(&state.handle, &opened.delegation);
        if opened.flags.contains(ResultFlags::CONFIRM) {
            let build = |known: &OpenRecord, _| confirm_ops(&state.handle, known.stateid, known);
            let confirm = self.change(&state, cred, "OPEN_CONFIRM", &build).await?;
            confirmed(&state, &confirm.results);
        }
        Ok((state, answer.results))
    }

    /// Arguments of OPEN, with the client's single owner if there are sessions.
    pub(in crate::v4) fn open_args(&self, access: Access, how: How, claim: Claim) -> Args {
        let only_reads = access == Access::READ && claim == Claim::Fh;
        let wanted = self.wants_delegations && only_reads;
        let mut share_access = match self.has_sessions() && !wanted {
            true => ShareAccess::WANT_NO_DELEG,
            false => ShareAccess::empty(),
        };
        share_access.set(ShareAccess::READ, access.contains(Access::READ));
        share_access.set(ShareAccess::WRITE, access.contains(Access::WRITE));
        Args {
            seqid: 0,
            share_access,
            share_deny: ShareDeny::empty(),
            owner: StateOwner { client_id: 0, owner: self.client.owner().owner.clone() },
            how,
            claim,
        }
    }

    /// Reopens a file whose state the server has lost. `stale` is the stateid that it rejected.
    pub(in crate::v4) async fn reopen(&self, state: &OpenState, stale: StateId) -> Result<()> {
        let _turn = state.turn.lock().await;
        if state.stateid(self.has_sessions()) != stale {
            return Ok(());
        }
        self.reopen_in_turn(state).await
    }

    /// The same, in the file's turn. Locks that belonged to the lost state are lost.
    pub(in crate::v4) async fn reopen_in_turn(&self, state: &OpenState) -> Result<()> {
        let (cred, granted, lost) = {
            let mut known = state.known.lock();
            let lost = known.stateids();
            known.locks.lose();
            (known.cred.clone(), known.granted, lost)
        };
        let cred = cred.as_deref().unwrap_or(&self.own);
        self.acknowledge_loss(cred, &lost).await;
        match self.send_open(state, cred, granted).await {
            Err(error) if !self.has_sessions() && is_gone(&error) => {
                state.known.lock().stateid = StateId::ANONYMOUS;
                Ok(())
            }
            outcome => outcome.map(|_| ()),
        }
    }

    /// Acknowledges that the server has revoked state. Until then it may report that in each SEQUENCE, and refuse
    /// the client's reclaims of the file after a restart (RFC 8881 sections 8.4.3 and 18.38).
    pub(in crate::v4) async fn acknowledge_loss(&self, cred: &OpaqueAuth, lost: &[StateId]) {
        if !self.has_sessions() {
            return;
        }
        for stateid in lost {
            let ops = [Op::FreeStateid(newest(*stateid, true))];
            // It may be state that the server has never had, after a restart for example.
            if let Err(error) = self.call(cred, "FREE_STATEID", &ops).await {
                tracing::debug!("{error}");
            }
        }
    }

    /// Reclaims every open, and its locks, in a new session or, after a server restart, as a new
    /// client.
    pub(in crate::v4) async fn reclaim_opens(
        &self,
        session: &Arc<Session>,
        client: ClientId,
    ) -> Result<()> {
        self.delegations.forget_all();
        for state in self.opens.all() {
            let known = {
                let mut known = state.known.lock();
                // The restarted server numbers the requests of new owners from 0.
                (known.owner, known.seqid) = (self.opens.new_owner(), 0);
                known.unanswered = None;
                known.locks.forget_states();
                known.count > 0
            };
            if known {
                self.reclaim_open(session, client, &state).await?;
            } else if let Ok(_turn) = state.turn.try_lock() {
                // Another task that holds the turn is opening or closing it.
                state.known.lock().closed = true;
                self.opens.remove_entry(&state);
            }
        }
        Ok(())
    }

    /// Whether the server has restarted since a client of minor version 0 was introduced to it, so
    /// that reclaim has to restart. (With sessions, their errors show it.)
    pub(in crate::v4) fn is_begun_anew(&self, status: std::result::Result<(), Nfs4Error>) -> bool {
        let anew = matches!(status, Err(Nfs4Error::StaleClientId | Nfs4Error::StaleStateId));
        !self.has_sessions() && anew
    }

    async fn reclaim_open(
        &self,
        session: &Arc<Session>,
        client: ClientId,
        state: &OpenState,
    ) -> Result<()> {
        let granted = state.known.lock().granted;
        let claim = (state.handle.clone(), Claim::Previous(DelegationType::None));
        let build =
            |known: &OpenRecord, client| self.open_ops(state, known, client, granted, &claim);
        let answer = self.change_in(session, client, state, "OPEN", &build).await?;
        if let Err(error) = self.checked("OPEN", answer.status) {
            if self.is_begun_anew(answer.status) {
                return Err(self.failed("OPEN", Nfs4Error::StaleClientId));
            }
            // Its next I/O reopens it; not now, before RECLAIM_COMPLETE.
            tracing::warn!("{error}");
            state.known.lock().locks.lose();
            return Ok(());
        }
        let opened = self.opened(state, &answer.results)?;
        state.known.lock().stateid = opened.stateid;
        self.delegations.refuse(&state.handle, &opened.delegation);
        if opened.flags.contains(ResultFlags::CONFIRM) {
            let build = |known: &OpenRecord, _| confirm_ops(&state.handle, known.stateid, known);
            let confirm = self.change_in(session, client, state, "OPEN_CONFIRM", &build).await?;
            if self.is_begun_anew(confirm.status) {
                return Err(self.failed("OPEN_CONFIRM", Nfs4Error::StaleClientId));
            }
            confirmed(state, &confirm.results);
        }
        self.reclaim_locks(session, client, state).await
    }
}

fn confirm_ops(file: &Handle, open_stateid: StateId, known: &OpenRecord) -> (Vec<Op>, Counted) {
    let args = open_confirm::Args { open_stateid, seqid: known.seqid };
    (vec![putfh(file), Op::OpenConfirm(args)], Counted::Open)
}

pub(super) fn close_ops(
    file: &Handle,
    open_stateid: StateId,
    known: &OpenRecord,
) -> (Vec<Op>, Counted) {
    let args = close::Args { seqid: known.seqid, open_stateid };
    (vec![putfh(file), Op::Close(args)], Counted::Open)
}

fn confirmed(state: &OpenState, results: &[OpRes]) {
    if let Some(stateid) = confirmed_stateid(results) {
        state.known.lock().stateid = stateid;
    }
}

fn confirmed_stateid(results: &[OpRes]) -> Option<StateId> {
    match results {
        [_, OpRes::OpenConfirm(Ok(stateid))] => Some(*stateid),
        _ => None,
    }
}

pub(in crate::v4) fn answer_handle(results: &[OpRes]) -> Option<Handle> {
    results.iter().find_map(|result| match result {
        OpRes::Getfh(Ok(handle)) => Some(Handle(handle.0.clone())),
        _ => None,
    })
}

fn owner_of(client_id: ClientId, owner: u64) -> StateOwner {
    StateOwner { client_id, owner: owner.to_be_bytes().as_slice().into() }
}

/// How often an open may be lost before it is confirmed.
const MAX_OPENS: u32 = 8;
