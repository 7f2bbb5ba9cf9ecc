//! Lock requests that wait until another owner releases its lock, and the server's callbacks about
//! them (CB_NOTIFY_LOCK, NLM_GRANTED).

use super::types::OpenLockOwner;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::timeout;
use weir_base::sync::Mutex;
use weir_vfs::{Lock, LockRange};

/// The waiting lock requests of a mount.
#[derive(Default)]
pub(crate) struct LockWaiters {
    waiters: Mutex<HashMap<u64, Waiter>>,
    next_id: AtomicU64,
}

struct Waiter {
    owner: OpenLockOwner,
    lock: Lock,
    callback: Arc<LockCallback>,
}

/// What the server has called back about one waiting request.
#[derive(Default)]
pub(crate) struct LockCallback {
    called: Notify,
    granted: AtomicBool,
}

impl LockCallback {
    /// Waits for a callback, for `longest` at most.
    pub(crate) async fn wait(&self, longest: Duration) {
        // The request is sent again in either case.
        let _ = timeout(longest, self.called.notified()).await;
    }

    /// Whether the server has said that it granted the lock.
    pub(crate) fn is_granted(&self) -> bool {
        self.granted.load(Relaxed)
    }
}

impl LockWaiters {
    /// Registers a request; its id is for [`remove`](Self::remove).
    pub(crate) fn add(&self, owner: OpenLockOwner, lock: Lock) -> (u64, Arc<LockCallback>) {
        let (id, callback) = (self.next_id.fetch_add(1, Relaxed), Arc::default());
        let waiter = Waiter { owner, lock, callback: Arc::clone(&callback) };
        self.waiters.lock().insert(id, waiter);
        (id, callback)
    }

    pub(crate) fn remove(&self, id: u64) {
        self.waiters.lock().remove(&id);
    }

    /// The server says that locks for which `owner` waits may be free (CB_NOTIFY_LOCK).
    pub(crate) fn may_be_free(&self, owner: OpenLockOwner) {
        let waiters = self.waiters.lock();
        let of_owner = waiters.values().filter(|waiter| waiter.owner == owner);
        of_owner.for_each(|waiter| waiter.callback.called.notify_one());
    }

    /// The server says that it granted a lock (NLM_GRANTED). Returns whether a request still waits
    /// for it.
    pub(crate) fn granted(&self, owner: OpenLockOwner, range: LockRange) -> bool {
        let waiters = self.waiters.lock();
        let matches = |waiter: &&Waiter| (waiter.owner, waiter.lock.range) == (owner, range);
        let Some(waiter) = waiters.values().find(matches) else { return false };
        waiter.callback.granted.store(true, Relaxed);
        waiter.callback.called.notify_one();
        true
    }
}
