//! [`Nfs4`]: what all NFSv4 compounds share.

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

/// The options of the NFSv4 server.
pub(crate) struct Options {
    pub(crate) versions: Versions,
    /// Maximum size of an RPC record, in bytes.
    pub(crate) record_bytes: usize,
    /// The server owner and scope: unique to this server, and the same in every run.
    pub(crate) identity: [u8; 16],
    /// The domain of owner and group names; `None` to send numeric IDs.
    pub(crate) id_domain: Option<String>,
    /// Whether clients with a write delegation may maintain the times of the file.
    pub(crate) delegated_times: bool,
    /// Maximum number of open-owners and lock-owners of minor version 0.
    pub(crate) max_owners: usize,
    /// Maximum size of their names and cached results, in bytes.
    pub(crate) owner_bytes: usize,
}

/// The NFS program, version 4.
pub(crate) struct Nfs4 {
    pub(crate) services: Arc<Services>,
    pub(crate) background: Arc<Background>,
    pub(crate) owners: OwnerTable,
    /// The duplicate request cache of minor version 0.
    pub(crate) replies: Replies,
    pub(crate) id_map: IdMap,
    pub(crate) delegated_times: bool,
    pub(crate) versions: Versions,
    pub(crate) record_bytes: usize,
    pub(crate) identity: [u8; 16],
}

impl Nfs4 {
    /// Creates the program. Background copies end when `stop` is cancelled.
    pub(crate) fn new(services: Arc<Services>, options: Options, stop: CancellationToken) -> Self {
        let Options { versions, record_bytes, identity, delegated_times, .. } = options;
        let background = Arc::new(Background {
            copies: services.copies.clone(),
            state: services.state.clone(),
            exports: services.exports.clone(),
            clock: services.clock.clone(),
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

    /// Periodic: forgets idle owners of minor version 0.
    pub(crate) fn sweep(&self) {
        let lease = self.services.state.lock().limits().lease;
        self.owners.sweep(&self.services.state, lease, self.services.now());
    }
}
