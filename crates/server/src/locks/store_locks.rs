//! Opens files in their stores for locking, so that programs on the server's own machine and NFS
//! clients respect each other's locks ([`crate::state`] decides what to lock there).
//!
//! At most [`Limits::store_locks`](crate::state::Limits) files are open for this. Files beyond that
//! are locked between NFS clients only.

use crate::handle::Node;
use crate::state::{State, StoreLocks};
use parking_lot::Mutex;
use std::fmt;
use std::sync::Arc;
use weir_pagecache::CachedFs;
use weir_vfs::{Access, Caller, Error, Lock, LockRange, OpenFile};

/// Opens a file in its store for locking. `None` if local programs do not lock files of this store,
/// or the file cannot be opened.
pub(crate) async fn open_store_locks<F: Clone>(
    state: &Mutex<State<F>>,
    fs: &CachedFs,
    node: Node,
) -> Option<Arc<dyn StoreLocks>> {
    let store = fs.store();
    if !store.is_locked_by_programs() {
        return None;
    }
    let (held, files, most) = {
        let state = state.lock();
        (state.store_locks_of(node), state.files_locked_in_store(), state.limits().store_locks)
    };
    if held.is_some() {
        // Another transition may detach it before ours, which attaches it again.
        return held;
    }
    if files >= most {
        tracing::debug!(files, "too few descriptors to lock a file against local programs");
        return None;
    }
    let file = match store.open(&Caller::Own, node.id, Access::READ | Access::WRITE).await {
        Ok(file) => file,
        Err(_) => store.open(&Caller::Own, node.id, Access::READ).await.ok()?,
    };
    Some(Arc::new(LockedFile(file)))
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
