//! Configuration that every protocol version needs to start.

use crate::options::MountOptions;
use crate::transport::{Counters, Patience, Peer};
use std::sync::Arc;
use weir_rpc::OpaqueAuth;

/// Configuration that every protocol version needs to start.
pub(crate) struct ProtocolConfig {
    pub(crate) peer: Peer,
    pub(crate) patience: Patience,
    pub(crate) options: MountOptions,
    /// The mount's own credential.
    pub(crate) own: OpaqueAuth,
    pub(crate) counters: Arc<Counters>,
}
