//! The locks of an open file, whatever the version.
//!
//! 1. A future that is dropped takes nothing: a lock that comes after it has gone is given up again.
//! 2. A lock that is in somebody's way is asked for again and again, with pauses of [`PAUSE`].
//! 3. What is held is given up before the file is closed.

use crate::file::Opened;
use crate::protocol::Locker;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use weir_base::sync::Mutex;
use weir_vfs::{Lock, LockOwner, LockRange};

/// Pauses between attempts.
pub(crate) const PAUSE: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(20)..=Duration::from_secs(1);

/// Who has taken locks of an open file.
pub(crate) struct Lockers {
    open: u64,
    owners: Mutex<HashSet<LockOwner>>,
}

impl Lockers {
    /// Of a newly opened file.
    pub(crate) fn new() -> Self {
        static OPENS: AtomicU64 = AtomicU64::new(1);
        Self { open: OPENS.fetch_add(1, Relaxed), owners: Mutex::default() }
    }

    pub(crate) fn get(&self, owner: LockOwner) -> Locker {
        Locker { open: self.open, owner }
    }

    fn takes(&self, owner: LockOwner) -> Locker {
        self.owners.lock().insert(owner);
        self.get(owner)
    }

    /// Everybody, for the end.
    pub(crate) fn all(&self) -> Vec<Locker> {
        self.owners.lock().iter().map(|owner| self.get(*owner)).collect()
    }
}

/// A lock that was taken, and is given up again unless somebody [keeps](Self::keep) it.
pub(crate) struct Taken {
    opened: Option<Arc<Opened>>,
    locker: Locker,
    range: LockRange,
}

impl Taken {
    pub(crate) fn keep(mut self) {
        self.opened = None;
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        let Some(opened) = self.opened.take() else { return };
        let (locker, range) = (self.locker, self.range);
        opened.runtime.clone().spawn(async move {
            if let Err(error) = opened.protocol.unlock(&opened.open, locker, range).await {
                tracing::debug!("{error}");
            }
        });
    }
}

/// Asks once.
pub(crate) async fn take(
    opened: Arc<Opened>,
    owner: LockOwner,
    lock: Lock,
    waits: bool,
) -> crate::Result<Option<Taken>> {
    let locker = opened.lockers.takes(owner);
    let taken = opened.protocol.lock(&opened.open, locker, lock, waits).await?;
    Ok(taken.then(|| Taken { opened: Some(opened), locker, range: lock.range }))
}
