//! What the compounds of NFSv4 share.

use crate::operation::reply_cache::Replies;
use crate::services::Services;
use crate::v4::copy::background::Background;
use crate::v4::idmap::IdMap;
use crate::v4::owner_seqid::OwnerTable;
use crate::versions::Versions;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;
use weir_nfs::v4::Bitmap;
use weir_nfs::v4::attr::OF_DELEGATES;

/// How NFSv4 is served.
pub(crate) struct Options {
    pub(crate) versions: Versions,
    /// Largest record, in bytes.
    pub(crate) record_bytes: usize,
    /// The server's name for itself: the same in every run, and no other server's.
    pub(crate) identity: [u8; 16],
    /// The domain after the names of owners and groups; `None`: they are numbers.
    pub(crate) id_domain: Option<String>,
    /// Clients may answer for the times of files that they have delegated.
    pub(crate) delegated_times: bool,
    /// Most open owners and lock owners of minor version 0.
    pub(crate) max_owners: usize,
    /// Most bytes of their names and kept results.
    pub(crate) owner_bytes: usize,
}

/// The program NFS, version 4.
pub(crate) struct Nfs4 {
    pub(crate) services: Arc<Services>,
    pub(crate) background: Arc<Background>,
    pub(crate) owners: OwnerTable,
    /// To compounds of minor version 0.
    pub(crate) replies: Replies,
    pub(crate) id_map: IdMap,
    pub(crate) delegated_times: bool,
    pub(crate) versions: Versions,
    pub(crate) record_bytes: usize,
    pub(crate) identity: [u8; 16],
}

impl Nfs4 {
    /// Copies in the background end when `stop` is cancelled.
    pub(crate) fn new(services: Arc<Services>, options: Options, stop: CancellationToken) -> Self {
        let Options { versions, record_bytes, identity, delegated_times, .. } = options;
        let background = Arc::new(Background {
            copies: services.copies.clone(),
            state: services.state.clone(),
            callbacks: services.callbacks.clone(),
            verifier: services.verifier.clone(),
            stop,
        });
        let owners = OwnerTable::new(options.max_owners, options.owner_bytes);
        let id_map = IdMap::new(options.id_domain.as_deref());
        let replies = Replies::default();
        Self {
            services,
            background,
            owners,
            replies,
            id_map,
            delegated_times,
            versions,
            record_bytes,
            identity,
        }
    }

    /// Attributes that this server's settings turn off.
    pub(crate) fn refused_attributes(&self) -> Bitmap {
        if self.delegated_times { Bitmap::EMPTY } else { OF_DELEGATES }
    }

    /// Forgets the owners of minor version 0 that have been silent for long.
    pub(crate) fn sweep(&self) {
        let lease = self.services.state.lock().limits().lease;
        self.owners.sweep(&self.services.state, lease, self.services.now());
    }
}
