//! The lock owners of an open file.
//!
//! 1. The requests of one owner that change its locks take turns, until their outcome is known, and
//!    undone if the caller has given up.
//! 2. A granted lock that its caller has not taken yet has no turn, or a caller that awaits another
//!    request of the owner first would wait for ever. Undoing it later leaves what other requests
//!    changed [since](Later).

use crate::protocol::OpenLockOwner;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock, Weak};
use tokio::sync::OwnedMutexGuard;
use weir_base::sync::Mutex;
use weir_vfs::{LockOwner, LockRange, RangeLocks};

/// The ranges that an owner's requests have changed since a grant.
pub(crate) type Later = Mutex<RangeLocks<()>>;

/// The lock owners of one open file, each with a number assigned at its first use.
pub(crate) struct LockOwners {
    open: u64,
    owners: Mutex<HashMap<LockOwner, Entry>>,
}

struct Entry {
    number: u32,
    turn: Arc<tokio::sync::Mutex<()>>,
    /// Of the grants that may have to be undone.
    later: Vec<Weak<Later>>,
}

impl Entry {
    fn new() -> Self {
        Self { number: next_number(), turn: Arc::default(), later: Vec::new() }
    }
}

impl LockOwners {
    /// The lock owners of a newly opened file: none.
    pub(crate) fn new() -> Self {
        static OPENS: AtomicU64 = AtomicU64::new(1);
        Self { open: OPENS.fetch_add(1, Relaxed), owners: Mutex::default() }
    }

    pub(crate) fn get(&self, owner: LockOwner) -> OpenLockOwner {
        let number = self.owners.lock().entry(owner).or_insert_with(Entry::new).number;
        OpenLockOwner { open: self.open, owner, number }
    }

    /// Waits until no other request of the owner is on its way, or being undone.
    pub(crate) async fn turn(&self, owner: LockOwner) -> OwnedMutexGuard<()> {
        let turn = Arc::clone(&self.owners.lock().entry(owner).or_insert_with(Entry::new).turn);
        turn.lock_owned().await
    }

    /// A request in its turn changes the owner's locks in a range: by a grant, or by unlocking.
    pub(crate) fn changes(&self, owner: LockOwner, range: LockRange, grant: Option<&Arc<Later>>) {
        let mut owners = self.owners.lock();
        let later = &mut owners.entry(owner).or_insert_with(Entry::new).later;
        later.retain(|later| {
            let Some(later) = later.upgrade() else { return false };
            // A single owner has no conflicts.
            later.lock().lock(&(), range, true).is_ok()
        });
        later.extend(grant.map(Arc::downgrade));
    }

    pub(crate) fn all(&self) -> Vec<OpenLockOwner> {
        let owners = self.owners.lock();
        let owner = |(&owner, entry): (&LockOwner, &Entry)| {
            let number = entry.number;
            OpenLockOwner { open: self.open, owner, number }
        };
        owners.iter().map(owner).collect()
    }
}

/// Numbers start at random: some servers distinguish lock owners by host and process number alone
/// (NLM's `svid`), and several programs of one machine may mount from them.
fn next_number() -> u32 {
    static NUMBERS: OnceLock<AtomicU32> = OnceLock::new();
    let begin = || AtomicU32::new(getrandom::u32().unwrap_or_else(|_| std::process::id() << 10));
    NUMBERS.get_or_init(begin).fetch_add(1, Relaxed)
}
