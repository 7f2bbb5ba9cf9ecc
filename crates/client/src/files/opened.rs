//! An open file: state shared by its operations, its locks and its close.
//!
//! 1. CLOSE is sent when the last reference is dropped: after every operation in flight.
//! 2. The locks are released before. On a soft mount, a release that times out is sent again until it is answered:
//!    the server would keep the lock for the life of the mount, or for ever (version 3).

use crate::backoff::Backoff;
use crate::files::attribute_cache::AttributeCache;
use crate::files::change_spans::OwnChanges;
use crate::files::deferred_close::Deferred;
use crate::files::lock_owners::LockOwners;
use crate::files::silly_rename::OpenFiles;
use crate::protocol::{OpenContext, OpenLockOwner, Protocol};
use std::sync::Arc;
use weir_vfs::{Access, FileId, LockRange};

/// A file that is open at the server. Dropping it unlocks and closes the file in the background.
pub(crate) struct Opened {
    pub(crate) protocol: Arc<dyn Protocol>,
    pub(crate) runtime: tokio::runtime::Handle,
    pub(crate) open: OpenContext,
    pub(crate) access: Access,
    pub(crate) id: FileId,
    pub(crate) open_files: Arc<OpenFiles>,
    pub(crate) attributes: Arc<AttributeCache>,
    pub(crate) changes: Arc<OwnChanges>,
    pub(crate) owners: LockOwners,
    pub(crate) deferred: Arc<Deferred>,
}

impl Drop for Opened {
    fn drop(&mut self) {
        let (protocol, open) = (Arc::clone(&self.protocol), self.open.clone());
        let silly_renamed = self.open_files.closed(self.id);
        let owners = self.owners.all();
        self.deferred.spawn(async move {
            for &owner in &owners {
                release_all(&*protocol, &open, owner).await;
            }
            protocol.close(open.clone()).await;
            for owner in owners {
                protocol.release_lock_owner(&open, owner).await;
            }
            if let Some(silly_renamed) = silly_renamed {
                silly_renamed.remove(&*protocol).await;
            }
        });
    }
}

/// Releases the locks of an owner, with a new attempt after each that times out. The end of the mount aborts it.
async fn release_all(protocol: &dyn Protocol, open: &OpenContext, owner: OpenLockOwner) {
    let mut backoff = Backoff::endless();
    while let Err(error) = protocol.unlock(open, owner, LockRange::ALL).await {
        tracing::debug!("{error}");
        if error.to_vfs() != weir_vfs::Error::TimedOut {
            return;
        }
        backoff.wait().await;
    }
}
