//! Who may read and write a file's data, asked of the store once in a while and not at every READ.
//!
//! 1. A right that the store has granted holds for [`HOLDS`], and not past a change of the file's
//!    mode, owner or lists that a client makes ([`Rights::changed`]). What a program on the server
//!    changes is noticed within [`HOLDS`].
//! 2. A refusal is not kept.
//! 3. At most [`SHARDS`] times [`SHARD_RIGHTS`] are kept, for all clients together.

use super::served::Served;
use crate::handle::Node;
use hashlink::LruCache;
use parking_lot::Mutex;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;
use weir_pagecache::File;
use weir_vfs::{Access, Caller, Error, FileId, Permissions, Result};

/// How long a right that was granted is not asked for again.
const HOLDS: Duration = Duration::from_secs(1);
const SHARDS: usize = 16;
const SHARD_RIGHTS: usize = 1024;
/// Counters of changes; files share them.
const BUCKETS: usize = 1024;

/// Whose right to what. The caller is known by a hash under a secret key: it has many groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    node: Node,
    caller: u64,
    access: Access,
}

#[derive(Clone, Copy, Debug)]
struct Granted {
    at: Duration,
    /// The file's count of changes before the store was asked.
    changes: u32,
}

/// The rights that were granted lately.
pub(crate) struct Rights {
    shards: [Mutex<LruCache<Key, Granted>>; SHARDS],
    changes: Vec<AtomicU32>,
    hasher: RandomState,
}

impl Default for Rights {
    fn default() -> Self {
        Self {
            shards: std::array::from_fn(|_| Mutex::new(LruCache::new(SHARD_RIGHTS))),
            changes: (0..BUCKETS).map(|_| AtomicU32::new(0)).collect(),
            hasher: RandomState::new(),
        }
    }
}

impl std::fmt::Debug for Rights {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rights").finish_non_exhaustive()
    }
}

impl Rights {
    /// Refuses a caller that may not read or write a file under an open of it
    /// ([`Served::may`]). `now` is of the monotonic clock.
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
        let changes = self.changes_of(node).load(SeqCst);
        if let Some(granted) = shard.lock().get(&key)
            && granted.changes == changes
            && now.saturating_sub(granted.at) < HOLDS
        {
            return Ok(());
        }
        if !export.may(caller, node.id, access).await? {
            return Err(Error::AccessDenied);
        }
        shard.lock().insert(key, Granted { at: now, changes });
        Ok(())
    }

    /// Notes that a file's mode, owner or lists have changed; called after the change.
    pub(crate) fn changed(&self, node: Node) {
        self.changes_of(node).fetch_add(1, SeqCst);
    }

    fn changes_of(&self, node: Node) -> &AtomicU32 {
        &self.changes[(self.hasher.hash_one(node) % BUCKETS as u64) as usize]
    }
}

impl Served {
    /// Whether a caller may read or write a file that it opened before, or that the protocol does not
    /// open: as its mode and lists allow; its owner always, who may have opened it before it took its
    /// own permission away (RFC 1813 section 4.4); and who may execute it may read it to that end.
    pub(crate) async fn may(&self, caller: &Caller, id: FileId, access: Access) -> Result<bool> {
        if self.has(caller, id, access.into()).await? {
            return Ok(true);
        }
        self.may_nevertheless(caller, id, access).await
    }

    /// Opens a file for a caller, as its mode and lists allow. Who may execute it may read it to that
    /// end: the server cannot tell the two apart.
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

    /// Opens a file for I/O that is not under an open of the protocol's (NFSv3, and the special
    /// stateids), or to go on with an earlier open: for whom [`may`](Self::may) allows it.
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

    /// Whether a caller may find what lies in a directory: only then is it told more of that than
    /// names.
    pub(crate) async fn may_search(&self, caller: &Caller, dir: FileId) -> Result<bool> {
        self.has(caller, dir, Permissions::EXECUTE).await
    }

    /// Whether a caller may read or write a file although its mode and lists do not allow it, as
    /// [`may`](Self::may) says: its owner, and to read it, a caller that may execute it.
    async fn may_nevertheless(&self, caller: &Caller, id: FileId, access: Access) -> Result<bool> {
        Ok(self.owns(caller, id).await? || self.may_execute(caller, id, access).await?)
    }

    /// Whether a caller may execute the file that it wants to read.
    async fn may_execute(&self, caller: &Caller, id: FileId, access: Access) -> Result<bool> {
        Ok(access == Access::READ && self.has(caller, id, Permissions::EXECUTE).await?)
    }

    async fn has(&self, caller: &Caller, id: FileId, wanted: Permissions) -> Result<bool> {
        Ok(self.fs().access(caller, id, wanted).await?.contains(wanted))
    }

    async fn owns(&self, caller: &Caller, id: FileId) -> Result<bool> {
        match caller {
            Caller::Own => Ok(true),
            Caller::As(cred) => Ok(self.fs().getattr(id).await?.uid == cred.uid),
        }
    }
}
