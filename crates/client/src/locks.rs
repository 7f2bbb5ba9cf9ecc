//! Byte-range locks of an open file, over every version.
//!
//! 1. Dropping the future acquires no lock: if the server grants it afterwards, it is released
//!    again.
//! 2. A lock that conflicts is requested again: when the server calls back, and after pauses
//!    ([`RETRY`]), because a callback may be lost.
//! 3. A callback only causes another request. Only a reply to LOCK grants a lock.
//! 4. Locks are released before the file is closed.

use crate::files::opened::Opened;
use crate::protocol::{LockCallback, OpenLockOwner};
use std::sync::Arc;
use std::time::Duration;
use weir_vfs::{Lock, LockOwner, LockRange};

/// Pauses between requests, doubled each time. The longest is short although the server may call
/// back: Linux before 6.13 records a waiter of version 3 and never calls it.
const RETRY: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(20)..=Duration::from_secs(1);

/// A granted lock. Dropping it releases the lock, unless it was [kept](Self::keep).
pub(crate) struct Granted {
    opened: Option<Arc<Opened>>,
    owner: OpenLockOwner,
    range: LockRange,
}

impl Granted {
    pub(crate) fn keep(mut self) {
        self.opened = None;
    }
}

impl Drop for Granted {
    fn drop(&mut self) {
        let Some(opened) = self.opened.take() else { return };
        let (owner, range) = (self.owner, self.range);
        Arc::clone(&opened.deferred).spawn(async move {
            if let Err(error) = opened.protocol.unlock(&opened.open, owner, range).await {
                tracing::debug!("{error}");
            }
        });
    }
}

/// Requests a lock once. `None`: it conflicts with another owner's.
pub(crate) async fn request(
    opened: Arc<Opened>,
    owner: LockOwner,
    lock: Lock,
    waits: bool,
) -> crate::Result<Option<Granted>> {
    let owner = opened.owners.get(owner);
    let granted = opened.protocol.lock(&opened.open, owner, lock, waits).await?;
    Ok(granted.then(|| Granted { opened: Some(opened), owner, range: lock.range }))
}

/// A request that waits for a lock. Dropping it withdraws the request, unless it has
/// [ended](Self::end) with the lock.
pub(crate) struct WaitingRequest {
    opened: Arc<Opened>,
    id: u64,
    owner: OpenLockOwner,
    lock: Lock,
    callback: Arc<LockCallback>,
    pause: Duration,
    has_lock: bool,
}

impl WaitingRequest {
    /// Registers the request; callbacks from now on count.
    pub(crate) fn begin(opened: Arc<Opened>, owner: LockOwner, lock: Lock) -> Self {
        let owner = opened.owners.get(owner);
        let (id, callback) = opened.protocol.lock_waiters().add(owner, lock);
        Self { opened, id, owner, lock, callback, pause: *RETRY.start(), has_lock: false }
    }

    /// Resolves, on a runtime, when the request is to be sent again.
    pub(crate) fn pause(&mut self) -> impl Future<Output = crate::Result<()>> + use<> {
        let (callback, pause) = (Arc::clone(&self.callback), self.pause);
        self.pause = (pause * 2).min(*RETRY.end());
        async move {
            callback.wait(pause).await;
            Ok(())
        }
    }

    /// The lock was granted.
    pub(crate) fn end(mut self) {
        self.has_lock = true;
    }
}

impl Drop for WaitingRequest {
    fn drop(&mut self) {
        self.opened.protocol.lock_waiters().remove(self.id);
        if self.has_lock {
            return;
        }
        let opened = Arc::clone(&self.opened);
        let (owner, lock, granted) = (self.owner, self.lock, self.callback.is_granted());
        self.opened.deferred.spawn(async move {
            let protocol = &opened.protocol;
            if let Err(error) = protocol.withdraw_lock(&opened.open, owner, lock, granted).await {
                tracing::debug!("{error}");
            }
        });
    }
}
