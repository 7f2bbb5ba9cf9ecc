//! The lock owners of an open file.
//!
//! 1. The requests of one owner that change its locks take turns. A request that its caller has given
//!    up keeps its turn until its outcome is known and undone, so that this undoes nothing later.

use crate::protocol::OpenLockOwner;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use tokio::sync::OwnedMutexGuard;
use weir_base::sync::Mutex;
use weir_vfs::LockOwner;

/// The lock owners of one open file, each with a number assigned at its first use.
pub(crate) struct LockOwners {
    open: u64,
    owners: Mutex<HashMap<LockOwner, Entry>>,
}

struct Entry {
    number: u32,
    turn: Arc<tokio::sync::Mutex<()>>,
}

impl Entry {
    fn new() -> Self {
        Self { number: next_number(), turn: Arc::default() }
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
