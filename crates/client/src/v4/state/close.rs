//! Closing files at the server.
//!
//! 1. The last user's close sends CLOSE. A file that a delegation keeps open is closed when that ends.
//! 2. On a soft mount CLOSE may time out, and so may an OPEN of an existing file that the server has executed. The
//!    server would keep the open for the life of the mount, which renews its lease. So a task sends CLOSE again until
//!    it is answered ([`close_later`](V4::close_later)), or the file has users again, or the mount ends.

use crate::backoff::Backoff;
use crate::error::Result;
use crate::protocol::{Handle, OpenContext};
use crate::v4::client::V4;
use crate::v4::state::open::close_ops;
use crate::v4::state::open_state::{OpenRecord, OpenState, is_state_lost, is_timed_out};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use weir_nfs::v4::types::StateId;
use weir_rpc::OpaqueAuth;
use weir_vfs::Access;

impl V4 {
    /// Ends one use of an open; the last one closes the file at the server.
    pub(in crate::v4) async fn close_file(&self, open: OpenContext) {
        let Some(state) = open.state.and_then(|state| state.downcast::<OpenState>().ok()) else {
            return;
        };
        let _turn = state.turn.lock().await;
        {
            let mut known = state.known.lock();
            known.count = known.count.saturating_sub(1);
            if known.count > 0 {
                return;
            }
            let idle = known.granted == Access::READ && known.locks.are_unused();
            if idle && self.grant_of(&state.handle).is_some() {
                return;
            }
            known.closed = true;
        }
        self.send_close(&state, &open.cred).await;
    }

    /// Closes a file that was kept open by a delegation which has ended.
    pub(in crate::v4) async fn close_idle(&self, handle: &Handle) {
        let found = self.opens.by_handle.lock().get(handle).cloned();
        let Some(state) = found else { return };
        let _turn = state.turn.lock().await;
        let cred = {
            let mut known = state.known.lock();
            let delegated = self.grant_of(handle).is_some();
            let Some(cred) = known.cred.clone() else { return };
            if known.count > 0 || known.closed || delegated {
                return;
            }
            known.closed = true;
            cred
        };
        self.send_close(&state, &cred).await;
    }

    /// Closes a file that was created in minor version 0.
    pub(in crate::v4) async fn close_new_without_session(
        &self,
        cred: &OpaqueAuth,
        state: OpenState,
    ) {
        self.send_close(&Arc::new(state), &Arc::new(cred.clone())).await;
    }

    /// CLOSE, in the file's turn, of a file without users.
    pub(super) async fn send_close(&self, state: &Arc<OpenState>, cred: &Arc<OpaqueAuth>) {
        match self.close_once(state, cred).await {
            Err(error) if is_timed_out(&error) => {
                tracing::debug!("{error}");
                self.close_later(state, cred, None);
            }
            Err(error) => {
                tracing::debug!("{error}");
                self.opens.remove_entry(state);
            }
            Ok(()) => self.opens.remove_entry(state),
        }
    }

    async fn close_once(&self, state: &OpenState, cred: &OpaqueAuth) -> Result<()> {
        let mut sent = state.stateid(self.has_sessions());
        for _ in 0..MAX_CLOSES {
            let build = |known: &OpenRecord, _| {
                close_ops(&state.handle, known.open_stateid(self.has_sessions()), known)
            };
            let answer = self.change(state, cred, "CLOSE", &build).await?;
            let now = state.stateid(self.has_sessions());
            // It was reclaimed while the CLOSE was in flight.
            if answer.status.is_err_and(is_state_lost) && now.other != sent.other {
                sent = now;
                continue;
            }
            if answer.status.is_err_and(is_state_lost) {
                let lost = state.known.lock().stateids();
                self.acknowledge_loss(cred, &lost).await;
            }
            return self.checked("CLOSE", answer.status);
        }
        Ok(())
    }

    /// Has a task close a file without users whose CLOSE was not answered; or whose OPEN was not, for the access
    /// `opened`. The caller has the file's turn.
    pub(super) fn close_later(
        &self,
        state: &Arc<OpenState>,
        cred: &Arc<OpaqueAuth>,
        opened: Option<Access>,
    ) {
        let this = Arc::new(());
        let mut unknown = opened;
        {
            let mut known = state.known.lock();
            // A new user finds this entry, and with it the owner that numbers its requests.
            known.closed = false;
            let is_closing = known.closing.replace(Arc::clone(&this)).is_some();
            // Without a stateid, only the reply to another OPEN says what to close; also if the one that is known may
            // have been closed before.
            unknown.take_if(|_| known.stateid != StateId::ANONYMOUS && !is_closing);
        }
        let (mount, state, cred) = (Weak::clone(&self.me), Arc::clone(state), Arc::clone(cred));
        tokio::spawn(async move {
            let mut backoff = Backoff::endless();
            loop {
                backoff.wait().await;
                let Some(v4) = mount.upgrade().filter(|v4| !v4.ended.load(Relaxed)) else { return };
                let _turn = state.turn.lock().await;
                {
                    let mut known = state.known.lock();
                    let is_this =
                        known.closing.as_ref().is_some_and(|task| Arc::ptr_eq(task, &this));
                    if !is_this || known.closed || known.is_open() {
                        return;
                    }
                    known.closed = true;
                }
                match v4.close_unanswered(&state, &cred, &mut unknown).await {
                    Err(error) if is_timed_out(&error) => state.known.lock().closed = false,
                    outcome => {
                        if let Err(error) = outcome {
                            tracing::debug!("{error}");
                        }
                        v4.opens.remove_entry(&state);
                        return;
                    }
                }
            }
        });
    }

    async fn close_unanswered(
        &self,
        state: &OpenState,
        cred: &OpaqueAuth,
        unknown: &mut Option<Access>,
    ) -> Result<()> {
        if let Some(access) = *unknown {
            match self.send_open(state, cred, access).await {
                Err(error) if is_timed_out(&error) => return Err(error),
                outcome => drop(outcome),
            }
            *unknown = None;
        }
        let is_open = state.known.lock().stateid != StateId::ANONYMOUS;
        if is_open { self.close_once(state, cred).await } else { Ok(()) }
    }

    /// Closes all open files, for the end of the mount.
    pub(in crate::v4) async fn close_all(&self) {
        self.give_back_all().await;
        for state in self.opens.all() {
            let cred = {
                let mut known = state.known.lock();
                known.count = 1;
                known.cred.clone()
            };
            let Some(cred) = cred else { continue };
            let open = OpenContext { cred, handle: state.handle.clone(), state: Some(state) };
            self.give_up_locks(&open).await;
            self.close_file(open).await;
        }
    }
}

/// How often an open may be reclaimed while it is being closed.
const MAX_CLOSES: u32 = 4;
