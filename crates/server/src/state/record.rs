//! What is kept on disk of a client, so that it may reclaim after a restart.

use crate::state::client::Principal;
use crate::state::tables::reclaim_denied::ReclaimDenied;
use std::net::IpAddr;

/// What is on disk of a client.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// What it may not reclaim.
    pub barred: ReclaimDenied,
    /// Who may speak for it; `None`: the record is of a version that did not say.
    pub principal: Option<Principal>,
}

impl Record {
    /// Whether a principal may reclaim what the client had. Where the record does not say, the
    /// superuser may: kernels speak for themselves as such, while any user can claim a name.
    pub fn is_of(&self, principal: &Principal) -> bool {
        self.principal.as_ref().map_or(principal.is_superuser(), |mine| mine == principal)
    }
}

/// A host with locks by NLM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockHost {
    /// Its address.
    pub host: IpAddr,
    /// This server's address, as the host knew it.
    pub server: IpAddr,
}
