//! The locks of an open file, whatever the version.
//!
//! 1. A future that is dropped takes nothing: a lock that comes after it has gone is given up again.
//! 2. A lock that is in somebody's way is asked for again: when the server says that it is free, and
//!    after pauses ([`PAUSE`]), because its word may be lost.
//! 3. What a server says is a reason to ask, and no more: nobody has a lock but by a reply.
//! 4. What is held is given up before the file is closed.

use crate::fs::file::Opened;
use crate::protocol::Locker;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::Notify;
use weir_base::sync::Mutex;
use weir_vfs::{Lock, LockOwner, LockRange};

/// Pauses between attempts. The longest is short although a server may call: Linux before 6.13 takes
/// note of who waits over version 3, and calls nobody.
const PAUSE: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(20)..=Duration::from_secs(1);

/// Who has to do with locks of an open file.
pub(crate) struct Lockers {
    open: u64,
    owners: Mutex<HashMap<LockOwner, u32>>,
}

impl Lockers {
    /// Of a newly opened file.
    pub(crate) fn new() -> Self {
        static OPENS: AtomicU64 = AtomicU64::new(1);
        Self { open: OPENS.fetch_add(1, Relaxed), owners: Mutex::default() }
    }

    pub(crate) fn get(&self, owner: LockOwner) -> Locker {
        let number = *self.owners.lock().entry(owner).or_insert_with(next_number);
        Locker { open: self.open, owner, number }
    }

    /// Everybody, for the end.
    pub(crate) fn all(&self) -> Vec<Locker> {
        let owners = self.owners.lock();
        let locker = |(&owner, &number)| Locker { open: self.open, owner, number };
        owners.iter().map(locker).collect()
    }
}

/// Numbers of lockers begin at random: programs of one machine are told apart by nothing else where
/// a server goes by host and process.
fn next_number() -> u32 {
    static NUMBERS: OnceLock<AtomicU32> = OnceLock::new();
    let begin = || AtomicU32::new(getrandom::u32().unwrap_or_else(|_| std::process::id() << 10));
    NUMBERS.get_or_init(begin).fetch_add(1, Relaxed)
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
        Arc::clone(&opened.farewells).say(async move {
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
    let locker = opened.lockers.get(owner);
    let taken = opened.protocol.lock(&opened.open, locker, lock, waits).await?;
    Ok(taken.then(|| Taken { opened: Some(opened), locker, range: lock.range }))
}

/// Who waits for locks of a mount.
#[derive(Default)]
pub(crate) struct LockWaits {
    waits: Mutex<HashMap<u64, Wait>>,
    numbers: AtomicU64,
}

struct Wait {
    locker: Locker,
    lock: Lock,
    told: Arc<Told>,
}

/// What a server said to one who waits.
#[derive(Default)]
struct Told {
    some: Notify,
    granted: AtomicBool,
}

impl LockWaits {
    /// Somebody's lock may be free now.
    pub(crate) fn may_be_free(&self, locker: Locker) {
        let waits = self.waits.lock();
        let his = waits.values().filter(|wait| wait.locker == locker);
        his.for_each(|wait| wait.told.some.notify_one());
    }

    /// The server has taken a lock for somebody; says whether it is still wanted.
    pub(crate) fn granted(&self, locker: Locker, range: LockRange) -> bool {
        let waits = self.waits.lock();
        let wanted = |wait: &&Wait| (wait.locker, wait.lock.range) == (locker, range);
        let Some(wait) = waits.values().find(wanted) else { return false };
        wait.told.granted.store(true, Relaxed);
        wait.told.some.notify_one();
        true
    }
}

/// Somebody who waits for a lock; whoever goes away without it is withdrawn.
pub(crate) struct Waiting {
    opened: Arc<Opened>,
    number: u64,
    locker: Locker,
    lock: Lock,
    told: Arc<Told>,
    pause: Duration,
    has_it: bool,
}

impl Waiting {
    /// Begins to wait: from here on nothing that the server says is missed.
    pub(crate) fn begin(opened: Arc<Opened>, owner: LockOwner, lock: Lock) -> Self {
        let (locker, told): (Locker, Arc<Told>) = (opened.lockers.get(owner), Arc::default());
        let waits = opened.protocol.waits();
        let number = waits.numbers.fetch_add(1, Relaxed);
        waits.waits.lock().insert(number, Wait { locker, lock, told: Arc::clone(&told) });
        Self { opened, number, locker, lock, told, pause: *PAUSE.start(), has_it: false }
    }

    /// Resolves, on a runtime, when it is time to ask again.
    pub(crate) fn pause(&mut self) -> impl Future<Output = crate::Result<()>> + use<> {
        let (told, pause) = (Arc::clone(&self.told), self.pause);
        self.pause = (pause * 2).min(*PAUSE.end());
        async move {
            // Told or not, it is time then.
            let _ = tokio::time::timeout(pause, told.some.notified()).await;
            Ok(())
        }
    }

    /// It has the lock.
    pub(crate) fn end(mut self) {
        self.has_it = true;
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let protocol = &self.opened.protocol;
        protocol.waits().waits.lock().remove(&self.number);
        if self.has_it {
            return;
        }
        let opened = Arc::clone(&self.opened);
        let (locker, lock, granted) = (self.locker, self.lock, self.told.granted.load(Relaxed));
        self.opened.farewells.say(async move {
            let protocol = &opened.protocol;
            if let Err(error) = protocol.withdraw_lock(&opened.open, locker, lock, granted).await {
                tracing::debug!("{error}");
            }
        });
    }
}
