//! Byte-range locks of an open file, over every version.
//!
//! 1. Dropping the future acquires no lock: if the server grants it afterwards, the owner is left with
//!    what it held before, be it a lock of another kind ([`restore`]).
//! 2. The requests of one lock owner take turns ([`LockOwners::turn`]). A grant that waits for its
//!    caller has none; what is undone is never the lock of a later request ([`Later`]).
//! 3. A lock that conflicts is requested again: when the server calls back, and after pauses
//!    ([`RETRY`]), because a callback may be lost. Between two requests the owner's turn is free.
//! 4. A callback only causes another request. Only a reply to LOCK grants a lock.
//! 5. A granted lock drops the file's cached attributes: those of before do not show what the locks of
//!    others protected.
//! 6. Locks are released before the file is closed.
//!
//! [`LockOwners::turn`]: crate::files::lock_owners::LockOwners::turn

use crate::files::lock_owners::Later;
use crate::files::opened::Opened;
use crate::protocol::{LockCallback, OpenLockOwner};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::OwnedMutexGuard;
use weir_vfs::{KeptAttributes, Lock, LockOwner, LockRange};

/// Pauses between requests, doubled each time. The longest is short although the server may call
/// back: Linux before 6.13 records a waiter of version 3 and never calls it.
const RETRY: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(20)..=Duration::from_secs(1);

/// A lock that was granted, or may have been. Dropping it undoes that, unless it was
/// [kept](Self::keep).
pub(crate) struct Granted {
    opened: Option<Arc<Opened>>,
    owner: OpenLockOwner,
    lock: Lock,
    /// What the owner held in the range before.
    before: Vec<Lock>,
    later: Arc<Later>,
    /// No reply came: the server may have granted it, and may know the owner only by that request.
    is_unknown: bool,
    /// Until the reply is known.
    turn: Option<OwnedMutexGuard<()>>,
}

impl Granted {
    pub(crate) fn keep(mut self) {
        self.opened = None;
    }
}

impl Drop for Granted {
    fn drop(&mut self) {
        let Some(opened) = self.opened.take() else { return };
        let (owner, lock, turn) = (self.owner, self.lock, self.turn.take());
        let is_unknown = self.is_unknown;
        let (before, later) = (std::mem::take(&mut self.before), Arc::clone(&self.later));
        Arc::clone(&opened.deferred).spawn(async move {
            let _turn = match turn {
                Some(turn) => turn,
                None => opened.owners.turn(owner.owner).await,
            };
            // The reply brings what UNLOCK has to name, in version 4 the owner's stateid.
            if is_unknown
                && let Err(error) = opened.protocol.lock(&opened.open, owner, lock, false).await
            {
                tracing::debug!("{error}");
            }
            let unchanged = later.lock().gaps(lock.range);
            for range in unchanged {
                restore(&opened, owner, Lock { range, ..lock }, &before).await;
            }
        });
    }
}

/// Requests a lock once. `None`: it conflicts with another owner's. `caller` ends when the caller gives
/// the request up before it is granted: then it is undone before the owner's next request.
pub(crate) async fn request(
    opened: Arc<Opened>,
    owner: LockOwner,
    lock: Lock,
    waits: bool,
    caller: Weak<()>,
) -> crate::Result<Option<Granted>> {
    let turn = Some(opened.owners.turn(owner).await);
    let owner = opened.owners.get(owner);
    let before = opened.protocol.locks_held(&opened.open, owner, lock.range);
    let (undoes, later) = (Some(Arc::clone(&opened)), Arc::default());
    let is_unknown = true;
    let mut attempt = Granted { opened: undoes, owner, lock, before, later, is_unknown, turn };
    match opened.protocol.lock(&opened.open, owner, lock, waits).await {
        Ok(true) => {
            let file = (opened.id, &opened.open.handle);
            opened.attributes.forget_kept(&*opened.protocol, file, KeptAttributes::Timed);
            attempt.is_unknown = false;
            opened.owners.changes(owner.owner, lock.range, Some(&attempt.later));
            if caller.strong_count() > 0 {
                attempt.turn = None;
            }
            Ok(Some(attempt))
        }
        // The server may have granted it.
        Err(error @ crate::Error::TimedOut { .. }) => Err(error),
        outcome => {
            attempt.keep();
            outcome.map(|_| None)
        }
    }
}

/// Releases a lock owner's locks in a range.
pub(crate) async fn release(
    opened: Arc<Opened>,
    owner: LockOwner,
    range: LockRange,
) -> crate::Result<()> {
    let _turn = opened.owners.turn(owner).await;
    opened.owners.changes(owner, range, None);
    opened.protocol.unlock(&opened.open, opened.owners.get(owner), range).await
}

/// Undoes the grant of a lock that is not wanted: of its range, the owner keeps what it `held` there. An
/// exclusive lock that it does not get back is lost: the program takes it for held.
async fn restore(opened: &Opened, owner: OpenLockOwner, lock: Lock, held: &[Lock]) {
    for range in lock.range.without(held) {
        if let Err(error) = opened.protocol.unlock(&opened.open, owner, range).await {
            tracing::warn!("a lock that was given up was not released: {error}");
        }
    }
    for part in held.iter().filter(|part| part.exclusive != lock.exclusive) {
        let start = part.range.start.max(lock.range.start);
        let end = part.range.end.min(lock.range.end);
        if start >= end {
            continue;
        }
        let part = Lock { range: LockRange { start, end }, ..*part };
        if !part.exclusive {
            // The owner has at least that, also if the request fails.
            opened.protocol.claim_shared(&opened.open, owner, part.range);
        }
        match opened.protocol.lock(&opened.open, owner, part, false).await {
            Ok(true) => continue,
            Ok(false) => tracing::warn!("a lock was not restored: another owner has one there"),
            Err(error) => tracing::warn!("a lock was not restored: {error}"),
        }
        if part.exclusive {
            opened.protocol.lose_locks(&opened.open);
        }
    }
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
            let _turn = opened.owners.turn(owner.owner).await;
            if let Err(error) = opened.protocol.withdraw_lock(&opened.open, owner, lock).await {
                tracing::debug!("{error}");
            }
            if granted {
                let held = opened.protocol.locks_held(&opened.open, owner, lock.range);
                restore(&opened, owner, lock, &held).await;
            }
        });
    }
}
