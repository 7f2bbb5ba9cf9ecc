//! What every version needs to begin.

use crate::options::MountOptions;
use crate::transport::{Counters, Patience, Peer};
use std::sync::Arc;
use weir_rpc::OpaqueAuth;

/// What every version needs to begin.
pub(crate) struct ProtocolConfig {
    pub(crate) peer: Peer,
    pub(crate) patience: Patience,
    pub(crate) options: MountOptions,
    /// The mount's own credential.
    pub(crate) own: OpaqueAuth,
    pub(crate) counters: Arc<Counters>,
}
