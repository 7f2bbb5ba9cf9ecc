//! Opens files in their stores for locking, so that programs on the server's own machine and NFS
//! clients respect each other's locks ([`crate::state`] decides what to lock there).
//!
//! At most [`Limits::store_locks`](crate::state::Limits) files are open for this, and an address may
//! have as many opened as it leaves free. Files beyond that are locked between NFS clients only.

use crate::handle::Node;
use crate::state::{OpenedStoreLocks, State, StoreLocks};
use parking_lot::Mutex;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use weir_pagecache::CachedFs;
use weir_vfs::{Access, Caller, Error, Lock, LockRange, OpenFile};

/// Opens a file in its store for locking, for a peer at an address. `None` if local programs do not
/// lock files of this store, the address has used up its share, or the file cannot be opened.
pub(crate) async fn open_store_locks<F: Clone>(
    state: &Mutex<State<F>>,
    fs: &CachedFs,
    node: Node,
    by: Option<IpAddr>,
) -> Option<OpenedStoreLocks> {
    let store = fs.store();
    if !store.is_locked_by_programs() {
        return None;
    }
    {
        let mut state = state.lock();
        if let Some(locks) = state.store_locks_of(node) {
            // Another transition may detach it before ours, which attaches it again.
            return Some(OpenedStoreLocks { locks, by });
        }
        if !state.may_lock_in_store(by) {
            tracing::debug!("too many files are locked to lock one more against local programs");
            return None;
        }
    }
    let file = match store.open(&Caller::Own, node.id, Access::READ | Access::WRITE).await {
        Ok(file) => file,
        Err(_) => store.open(&Caller::Own, node.id, Access::READ).await.ok()?,
    };
    Some(OpenedStoreLocks { locks: Arc::new(LockedFile(file)), by })
}

/// A file that is open in its store for locking.
struct LockedFile(Arc<dyn OpenFile>);

impl fmt::Debug for LockedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LockedFile")
    }
}

impl StoreLocks for LockedFile {
    fn conflict(&self, lock: Lock) -> Option<Lock> {
        self.0.program_test_lock(lock).ok().flatten()
    }

    fn lock(&self, lock: Lock) -> Result<(), Lock> {
        match self.0.program_lock(lock) {
            Err(Error::WouldBlock) => Err(self.conflict(lock).unwrap_or(lock)),
            Ok(()) => Ok(()),
            Err(error) => {
                tracing::debug!(%error, "cannot lock a range in the store");
                Ok(())
            }
        }
    }

    fn unlock(&self, range: LockRange) {
        if let Err(error) = self.0.program_unlock(range) {
            tracing::debug!(%error, "cannot unlock a range in the store");
        }
    }
}
