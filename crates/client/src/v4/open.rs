//! Opens: one per file, shared by all that have the file open in this mount.
//!
//! 1. A file's OPENs and CLOSE follow one another: none is sent while another has no answer.
//! 2. CLOSE is sent when the last user has closed the file.
//! 3. The stateid is sent with sequence 0, the latest (RFC 8881 section 8.2.2), so that I/O needs
//!    not wait for an OPEN that widens the access.
//! 4. After a restart of the server every open is reclaimed before anything else is done; one that
//!    the server does not give back is opened anew, and if that fails, its I/O fails.

use super::V4;
use super::session::Session;
use crate::error::Result;
use crate::protocol::{Handle, OpenAt, Place};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use weir_base::sync::Mutex;
use weir_nfs::v4::op::open::{
    Args, Claim, DelegationType, How, Opened, ResultFlags, ShareAccess, ShareDeny,
};
use weir_nfs::v4::op::{close, open_confirm};
use weir_nfs::v4::types::{StateId, StateOwner};
use weir_nfs::v4::{Error as Nfs4Error, Op, OpRes};
use weir_rpc::OpaqueAuth;
use weir_vfs::Access;

/// The files that are open.
#[derive(Default)]
pub(super) struct Opens {
    by_handle: Mutex<HashMap<Handle, Arc<OpenState>>>,
    /// Owners used so far in minor version 0.
    owners: AtomicU64,
}

/// A file that is open at the server.
pub(crate) struct OpenState {
    handle: Handle,
    stateid: Mutex<StateId>,
    users: tokio::sync::Mutex<Users>,
}

#[derive(Default)]
struct Users {
    count: usize,
    /// Access that the server granted.
    granted: Access,
    /// In whose name.
    cred: Option<Arc<OpaqueAuth>>,
    /// It has been closed; whoever still has this entry looks it up again.
    closed: bool,
}

impl OpenState {
    /// The stateid to do I/O with.
    pub(super) fn stateid(&self) -> StateId {
        StateId { seqid: 0, ..*self.stateid.lock() }
    }
}

impl V4 {
    /// Opens a file, or joins an open that suffices.
    pub(super) async fn open_file(
        &self,
        cred: Arc<OpaqueAuth>,
        handle: &Handle,
        access: Access,
    ) -> Result<OpenAt> {
        loop {
            let state = self.opens.entry(handle);
            let mut users = state.users.lock().await;
            if users.closed {
                continue;
            }
            let same_cred = users.cred.as_deref() == Some(&*cred);
            if !same_cred || !users.granted.contains(access) {
                let wanted = users.granted | access;
                let ops = self.reopen_ops(handle, wanted, Claim::Fh);
                let opened = self.exchange(&cred, "OPEN", &ops, None);
                let outcome = opened.await.and_then(|answer| {
                    self.checked("OPEN", answer.status)?;
                    match answer.results.as_slice() {
                        [_, OpRes::Open(Ok(opened)), ..] => Ok(opened.stateid),
                        _ => Err(self.unexpected("OPEN")),
                    }
                });
                match outcome {
                    Ok(stateid) => *state.stateid.lock() = stateid,
                    Err(error) => {
                        if users.count == 0 {
                            users.closed = true;
                            self.opens.remove(handle);
                        }
                        return Err(error);
                    }
                }
                users.granted = wanted;
                users.cred = Some(Arc::clone(&cred));
            }
            users.count += 1;
            drop(users);
            return Ok(OpenAt { cred, handle: handle.clone(), state: Some(state) });
        }
    }

    fn reopen_ops(&self, handle: &Handle, access: Access, claim: Claim) -> [Op; 2] {
        [super::ops::putfh(handle), Op::Open(self.open_args(access, How::NoCreate, claim))]
    }

    /// Makes a new file in minor version 0 and closes it: OPEN is the only way to make one.
    pub(super) async fn create_without_session(
        &self,
        cred: &OpaqueAuth,
        place: &Place<'_>,
        how: How,
    ) -> Result<Vec<OpRes>> {
        let mut client_id = self.introduce(None).await?;
        for _ in 0..MAX_ATTEMPTS {
            let mut args =
                self.open_args(Access::WRITE, how.clone(), Claim::Null(place.name.into()));
            // An owner of its own for each file: owners count their calls, and nothing else of
            // this one's may be under way.
            let number = self.opens.owners.fetch_add(1, Relaxed);
            args.share_access = ShareAccess::WRITE;
            args.owner = StateOwner { client_id, owner: number.to_be_bytes().as_slice().into() };
            let ops = super::ops::node_ops(vec![super::ops::putfh(place.dir), Op::Open(args)]);
            let answer = self.exchange(cred, "OPEN", &ops, None).await?;
            match answer.status {
                Err(Nfs4Error::StaleClientId | Nfs4Error::Expired) => {
                    client_id = self.introduce(Some(client_id)).await?;
                    continue;
                }
                status => self.checked("OPEN", status)?,
            }
            let opened = answer.results.iter().find_map(|result| match result {
                OpRes::Open(Ok(opened)) => Some(opened),
                _ => None,
            });
            let handle = answer.results.iter().find_map(|result| match result {
                OpRes::Getfh(Ok(handle)) => Some(Handle(handle.0.clone())),
                _ => None,
            });
            let (Some(opened), Some(handle)) = (opened, handle) else {
                return Err(self.unexpected("OPEN"));
            };
            self.close_without_session(cred, &handle, opened).await;
            return Ok(answer.results);
        }
        Err(self.failed("OPEN", Nfs4Error::StaleClientId))
    }

    async fn close_without_session(&self, cred: &OpaqueAuth, handle: &Handle, opened: &Opened) {
        let (mut open_stateid, mut seqid) = (opened.stateid, 1);
        if opened.flags.contains(ResultFlags::CONFIRM) {
            let confirm = Op::OpenConfirm(open_confirm::Args { open_stateid, seqid });
            let ops = [super::ops::putfh(handle), confirm];
            if let Ok(results) = self.call(cred, "OPEN_CONFIRM", &ops).await
                && let [_, OpRes::OpenConfirm(Ok(confirmed))] = results.as_slice()
            {
                open_stateid = *confirmed;
            }
            seqid += 1;
        }
        let close = Op::Close(close::Args { seqid, open_stateid });
        // What stays open here is closed when the lease ends.
        if let Err(error) = self.call(cred, "CLOSE", &[super::ops::putfh(handle), close]).await {
            tracing::debug!("{error}");
        }
    }

    /// Arguments of OPEN for this client's one owner.
    pub(super) fn open_args(&self, access: Access, how: How, claim: Claim) -> Args {
        let mut share_access = ShareAccess::WANT_NO_DELEG;
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

    /// Lets go of an open; the last one closes the file.
    pub(super) async fn close_file(&self, open: OpenAt) {
        let Some(state) = open.state else { return };
        let mut users = state.users.lock().await;
        users.count = users.count.saturating_sub(1);
        if users.count > 0 {
            return;
        }
        users.closed = true;
        let ops = [
            super::ops::putfh(&open.handle),
            Op::Close(close::Args { seqid: 0, open_stateid: state.stateid() }),
        ];
        if let Err(error) = self.call(&open.cred, "CLOSE", &ops).await {
            tracing::debug!("{error}");
        }
        self.opens.remove(&open.handle);
    }

    /// Closes whatever is open, for the end of the mount.
    pub(super) async fn close_all(&self) {
        let states: Vec<_> = self.opens.by_handle.lock().values().cloned().collect();
        for state in states {
            let cred = state.users.lock().await.cred.clone();
            let Some(cred) = cred else { continue };
            state.users.lock().await.count = 1;
            self.close_file(OpenAt { cred, handle: state.handle.clone(), state: Some(state) })
                .await;
        }
    }

    /// Opens a file again whose state the server says it does not have. `stale` is the stateid
    /// that it refused.
    pub(super) async fn reopen(&self, state: &Arc<OpenState>, stale: StateId) -> Result<()> {
        let users = state.users.lock().await;
        if state.stateid().other != stale.other {
            return Ok(());
        }
        let cred = users.cred.as_deref().unwrap_or(&self.own);
        let ops = self.reopen_ops(&state.handle, users.granted, Claim::Fh);
        let results = self.call(cred, "OPEN", &ops).await?;
        match results.as_slice() {
            [_, OpRes::Open(Ok(opened)), ..] => {
                *state.stateid.lock() = opened.stateid;
                Ok(())
            }
            _ => Err(self.unexpected("OPEN")),
        }
    }

    /// Takes back every open in a new session after a restart of the server.
    pub(super) async fn reclaim_opens(&self, session: &Arc<Session>) -> Result<()> {
        let states: Vec<_> = self.opens.by_handle.lock().values().cloned().collect();
        for state in states {
            // An OPEN or CLOSE under way holds this lock and waits for the new session; it then
            // finds its state gone and opens the file itself.
            let Ok(users) = state.users.try_lock() else { continue };
            if users.count == 0 {
                continue;
            }
            let cred = users.cred.as_deref().unwrap_or(&self.own);
            for claim in [Claim::Previous(DelegationType::None), Claim::Fh] {
                let ops = self.reopen_ops(&state.handle, users.granted, claim);
                let answer = match self.reclaim(session, cred, &ops).await? {
                    Some(answer) => answer,
                    None => break,
                };
                if let Some(stateid) = answer {
                    *state.stateid.lock() = stateid;
                    break;
                }
            }
        }
        Ok(())
    }

    /// `Some(None)`: try another claim; `None`: the open is lost.
    async fn reclaim(
        &self,
        session: &Arc<Session>,
        cred: &OpaqueAuth,
        ops: &[Op],
    ) -> Result<Option<Option<StateId>>> {
        let answer = self.call_in(session, cred, "OPEN", ops).await?;
        match (answer.status, answer.results.as_slice()) {
            (Ok(()), [_, OpRes::Open(Ok(opened)), ..]) => Ok(Some(Some(opened.stateid))),
            (Err(Nfs4Error::NoGrace | Nfs4Error::ReclaimBad), _) => Ok(Some(None)),
            (Err(error), _) => {
                tracing::warn!("{}", self.failed("OPEN", error));
                Ok(None)
            }
            _ => Err(self.unexpected("OPEN")),
        }
    }
}

impl Opens {
    fn entry(&self, handle: &Handle) -> Arc<OpenState> {
        let mut opens = self.by_handle.lock();
        let entry = opens.entry(handle.clone()).or_insert_with(|| {
            Arc::new(OpenState {
                handle: handle.clone(),
                stateid: Mutex::new(StateId::ANONYMOUS),
                users: tokio::sync::Mutex::default(),
            })
        });
        Arc::clone(entry)
    }

    fn remove(&self, handle: &Handle) {
        self.by_handle.lock().remove(handle);
    }
}

/// How often the server may forget the client while a file is made.
const MAX_ATTEMPTS: u32 = 4;

/// Whether the server says that it does not have the state of a stateid (any more).
pub(super) fn is_state_lost(error: Nfs4Error) -> bool {
    matches!(
        error,
        Nfs4Error::BadStateId
            | Nfs4Error::StaleStateId
            | Nfs4Error::OldStateId
            | Nfs4Error::Expired
            | Nfs4Error::AdminRevoked
    )
}
