//! Caches which callers may read and write a file's data, so that not every READ asks the store.
//!
//! 1. A granted right holds for [`HOLDS`], but not after a client changes the file's mode, owner or
//!    ACL ([`RightsCache::changed`]). Changes by local programs take effect within [`HOLDS`].
//! 2. Refusals are not cached.
//! 3. At most [`SHARDS`] times [`SHARD_RIGHTS`] rights are cached, for all clients together.

use super::served::Served;
use crate::handle::Node;
use hashlink::LruCache;
use parking_lot::Mutex;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;
use weir_pagecache::File;
use weir_vfs::{Access, Caller, Error, FileId, Permissions, Result};

/// How long a granted right stays valid.
const HOLDS: Duration = Duration::from_secs(1);
const SHARDS: usize = 16;
const SHARD_RIGHTS: usize = 1024;
/// Number of change counters, which files share.
const BUCKETS: usize = 1024;

/// A caller's right to a file. The caller is identified by a keyed hash, because it may have many
/// groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    node: Node,
    caller: u64,
    access: Access,
}

#[derive(Clone, Copy, Debug)]
struct CachedRight {
    at: Duration,
    /// The file's change counter from before the store was asked.
    changes: u32,
}

/// Rights granted recently.
pub(crate) struct RightsCache {
    shards: [Mutex<LruCache<Key, CachedRight>>; SHARDS],
    changes: Vec<AtomicU32>,
    hasher: RandomState,
}

impl Default for RightsCache {
    fn default() -> Self {
        Self {
            shards: std::array::from_fn(|_| Mutex::new(LruCache::new(SHARD_RIGHTS))),
            changes: (0..BUCKETS).map(|_| AtomicU32::new(0)).collect(),
            hasher: RandomState::new(),
        }
    }
}

impl std::fmt::Debug for RightsCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RightsCache").finish_non_exhaustive()
    }
}

impl RightsCache {
    /// Refuses a caller that may not read or write a file that it has opened ([`Served::may`]).
    /// `now` is monotonic time.
    ///
    /// # Errors
    /// [`Error::AccessDenied`]; those of the store.
    pub(crate) async fn check(
        &self,
        export: &Served,
        caller: &Caller,
        node: Node,
        access: Access,
        now: Duration,
    ) -> Result<()> {
        let key = Key { node, caller: self.hasher.hash_one(caller), access };
        let shard = self.hasher.hash_one(key);
        let shard = &self.shards[(shard % SHARDS as u64) as usize];
        let changes = self.changes(node);
        if let Some(granted) = shard.lock().get(&key)
            && granted.changes == changes
            && now.saturating_sub(granted.at) < HOLDS
        {
            return Ok(());
        }
        if !export.may(caller, node.id, access).await? {
            return Err(Error::AccessDenied);
        }
        shard.lock().insert(key, CachedRight { at: now, changes });
        Ok(())
    }

    /// Notes that a file's mode, owner or ACL has changed. Call this after the change.
    pub(crate) fn changed(&self, node: Node) {
        self.changes_of(node).fetch_add(1, SeqCst);
    }

    /// A number that is another one after the file's mode, owner or ACL has changed. Read it before the store is
    /// asked for a right.
    pub(crate) fn changes(&self, node: Node) -> u32 {
        self.changes_of(node).load(SeqCst)
    }

    fn changes_of(&self, node: Node) -> &AtomicU32 {
        &self.changes[(self.hasher.hash_one(node) % BUCKETS as u64) as usize]
    }
}

impl Served {
    /// Whether a caller may read or write a file that it opened earlier, or that the protocol does
    /// not open (NFSv3). The mode and ACL decide, with two exceptions. The owner always may,
    /// because it may have opened the file before it removed its own permission (RFC 1813 section
    /// 4.4). A caller that may execute the file may read it for that purpose.
    pub(crate) async fn may(&self, caller: &Caller, id: FileId, access: Access) -> Result<bool> {
        if self.has(caller, id, access.into()).await? {
            return Ok(true);
        }
        self.may_nevertheless(caller, id, access).await
    }

    /// Opens a file for a caller, as its mode and ACL allow. A caller that may execute the file may
    /// also read it, because the server cannot distinguish the two.
    ///
    /// # Errors
    /// [`Error::AccessDenied`]; those of the store.
    pub(crate) async fn open_anew(
        &self,
        caller: &Caller,
        id: FileId,
        access: Access,
    ) -> Result<File> {
        match self.fs().open(caller, id, access).await {
            Err(Error::AccessDenied) if self.may_execute(caller, id, access).await? => {
                self.fs().open(&Caller::Own, id, access).await
            }
            opened => opened,
        }
    }

    /// Opens a file for I/O without an open in the protocol (NFSv3 and special stateids), or to
    /// continue an earlier open, if [`may`](Self::may) allows it.
    ///
    /// # Errors
    /// [`Error::AccessDenied`]; those of the store.
    pub(crate) async fn open_for_io(
        &self,
        caller: &Caller,
        id: FileId,
        access: Access,
    ) -> Result<File> {
        match self.fs().open(caller, id, access).await {
            Err(Error::AccessDenied) if self.may_nevertheless(caller, id, access).await? => {
                self.fs().open(&Caller::Own, id, access).await
            }
            opened => opened,
        }
    }

    /// Whether a caller may search a directory. Otherwise it learns only names from READDIR.
    pub(crate) async fn may_search(&self, caller: &Caller, dir: FileId) -> Result<bool> {
        self.has(caller, dir, Permissions::EXECUTE).await
    }

    /// Whether one of the exceptions of [`may`](Self::may) applies.
    async fn may_nevertheless(&self, caller: &Caller, id: FileId, access: Access) -> Result<bool> {
        Ok(self.owns(caller, id).await? || self.may_execute(caller, id, access).await?)
    }

    /// Whether `access` is reading and the caller may execute the file.
    async fn may_execute(&self, caller: &Caller, id: FileId, access: Access) -> Result<bool> {
        Ok(access == Access::READ && self.has(caller, id, Permissions::EXECUTE).await?)
    }

    async fn has(&self, caller: &Caller, id: FileId, wanted: Permissions) -> Result<bool> {
        match self.fs().check_access(caller, id, wanted).await {
            Err(Error::AccessDenied) => Ok(false),
            checked => checked.map(|()| true),
        }
    }

    async fn owns(&self, caller: &Caller, id: FileId) -> Result<bool> {
        match caller {
            Caller::Own => Ok(true),
            Caller::As(cred) => Ok(self.fs().getattr(id).await?.uid == cred.uid),
        }
    }
}
