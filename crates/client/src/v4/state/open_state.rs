//! The known state of the files that are open at the server.

use crate::error::Error;
use crate::protocol::{Handle, OpenContext};
use crate::v4::state::lock_state::Locks;
use crate::v4::state::numbered::Unanswered;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use weir_base::sync::Mutex;
use weir_nfs::v4::Error as Nfs4Error;
use weir_nfs::v4::types::StateId;
use weir_rpc::OpaqueAuth;
use weir_vfs::Access;

/// The files that are open.
#[derive(Default)]
pub(in crate::v4) struct Opens {
    pub(in crate::v4) by_handle: Mutex<HashMap<Handle, Arc<OpenState>>>,
    /// Number of owners used in minor version 0.
    pub(in crate::v4) owners: AtomicU64,
}

/// A file that is open at the server.
pub(crate) struct OpenState {
    pub(in crate::v4) handle: Handle,
    /// Held during a request that changes the open or its locks.
    pub(in crate::v4) turn: tokio::sync::Mutex<()>,
    pub(in crate::v4) known: Mutex<OpenRecord>,
}

/// The known state of an open file.
pub(in crate::v4) struct OpenRecord {
    /// Number of users.
    pub(in crate::v4) count: usize,
    /// Access that the server granted, to all users of this mount together: it joins the opens of one owner.
    pub(in crate::v4) granted: Access,
    /// The credential of the open: of the user who has all of that access, if there is one.
    pub(in crate::v4) cred: Option<Arc<OpaqueAuth>>,
    /// Access that the server granted to that credential.
    pub(in crate::v4) checked: Access,
    /// It was closed; a task that still has this entry has to look the file up again.
    pub(in crate::v4) closed: bool,
    /// The task that closes it, if that is to be done later, and it has no users meanwhile.
    pub(in crate::v4) closing: Option<Arc<()>>,
    pub(in crate::v4) stateid: StateId,
    /// The open owner, and the number of its next request (minor version 0).
    pub(in crate::v4) owner: u64,
    pub(in crate::v4) seqid: u32,
    /// The last request that the open owner numbered, unless that was answered (minor version 0).
    pub(in crate::v4) unanswered: Option<Arc<Unanswered>>,
    pub(in crate::v4) locks: Locks,
}

/// The state of an open, unless the file was opened without one.
pub(in crate::v4) fn open_state(open: &OpenContext) -> Option<&OpenState> {
    open.state.as_deref()?.downcast_ref()
}

impl OpenState {
    /// The stateid for I/O.
    pub(in crate::v4) fn stateid(&self, sessions: bool) -> StateId {
        self.known.lock().open_stateid(sessions)
    }
}

impl OpenRecord {
    pub(in crate::v4) fn open_stateid(&self, sessions: bool) -> StateId {
        newest(self.stateid, sessions)
    }

    /// The server has granted `access` to a user with `cred`, besides what it granted before.
    pub(in crate::v4) fn join(&mut self, cred: &Arc<OpaqueAuth>, access: Access) {
        // An idle open has no users.
        if !self.is_open() {
            self.granted = Access::empty();
        }
        if access.contains(self.granted) {
            (self.cred, self.checked) = (Some(Arc::clone(cred)), access);
        }
        self.granted |= access;
    }

    /// The stateids of its locks, then its own: a server may not free an open before its locks.
    pub(in crate::v4) fn stateids(&self) -> Vec<StateId> {
        let locks = self.locks.states.values().map(|state| state.stateid);
        let open = (self.stateid != StateId::ANONYMOUS).then_some(self.stateid);
        locks.chain(open).collect()
    }

    /// Whether this mount has the file open.
    pub(in crate::v4) fn is_open(&self) -> bool {
        self.count > 0
    }
}

/// With sessions, sequence 0 means the latest.
pub(in crate::v4) fn newest(stateid: StateId, sessions: bool) -> StateId {
    if sessions { StateId { seqid: 0, ..stateid } } else { stateid }
}

impl Opens {
    pub(in crate::v4) fn entry(&self, handle: &Handle) -> Arc<OpenState> {
        let mut opens = self.by_handle.lock();
        let entry = opens.entry(handle.clone()).or_insert_with(|| Arc::new(self.new_state(handle)));
        Arc::clone(entry)
    }

    pub(in crate::v4) fn new_state(&self, handle: &Handle) -> OpenState {
        let known = OpenRecord {
            count: 0,
            granted: Access::empty(),
            cred: None,
            checked: Access::empty(),
            closed: false,
            closing: None,
            stateid: StateId::ANONYMOUS,
            owner: self.new_owner(),
            seqid: 0,
            unanswered: None,
            locks: Locks::default(),
        };
        OpenState {
            handle: handle.clone(),
            turn: tokio::sync::Mutex::default(),
            known: Mutex::new(known),
        }
    }

    pub(in crate::v4) fn new_owner(&self) -> u64 {
        self.owners.fetch_add(1, Relaxed)
    }

    pub(in crate::v4) fn all(&self) -> Vec<Arc<OpenState>> {
        self.by_handle.lock().values().cloned().collect()
    }

    /// Removes an entry, unless the file has another one by now.
    pub(in crate::v4) fn remove_entry(&self, state: &Arc<OpenState>) {
        let mut opens = self.by_handle.lock();
        if opens.get(&state.handle).is_some_and(|entry| Arc::ptr_eq(entry, state)) {
            opens.remove(&state.handle);
        }
    }
}

/// Whether the file can no longer be opened under its name.
pub(in crate::v4) fn is_gone(error: &crate::Error) -> bool {
    matches!(error.to_vfs(), weir_vfs::Error::Stale | weir_vfs::Error::NotFound)
}

/// Whether the server may have executed a request, although the mount has given it up.
pub(in crate::v4) fn is_timed_out(error: &Error) -> bool {
    matches!(error, Error::TimedOut { .. })
}

/// Whether the error says that the server does not have a stateid's state (any more).
pub(in crate::v4) fn is_state_lost(error: Nfs4Error) -> bool {
    matches!(
        error,
        Nfs4Error::BadStateId
            | Nfs4Error::StaleStateId
            | Nfs4Error::OldStateId
            | Nfs4Error::Expired
            | Nfs4Error::AdminRevoked
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_removed_by_those_that_have_it() {
        let (opens, handle) = (Opens::default(), Handle(weir_xdr::Bytes::from_static(b"file")));
        let first = opens.entry(&handle);
        opens.remove_entry(&first);
        let second = opens.entry(&handle);
        assert!(!Arc::ptr_eq(&first, &second));
        opens.remove_entry(&first);
        assert!(Arc::ptr_eq(&second, &opens.entry(&handle)));
    }
}
