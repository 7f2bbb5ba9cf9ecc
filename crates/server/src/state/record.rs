//! The disk record of a client, which lets the client reclaim after a restart.

use crate::state::client::Principal;
use crate::state::tables::reclaim_denied::ReclaimDenied;
use std::net::IpAddr;
use std::time::Duration;

/// The disk record of a client.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Record {
    /// What the client may not reclaim.
    pub(crate) reclaim_denied: ReclaimDenied,
    /// The client's principal; `None` if a server version wrote the record that did not store it.
    pub(crate) principal: Option<Principal>,
}

impl Record {
    /// Whether a principal may reclaim what the client had. If the record names no principal, only
    /// the superuser may: kernel clients use that credential, while any user can claim a name.
    pub(crate) fn is_of(&self, principal: &Principal) -> bool {
        self.principal.as_ref().map_or(principal.is_superuser(), |mine| mine == principal)
    }
}

/// The disk record of a host with NLM locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LockHost {
    /// Its address.
    pub(crate) host: IpAddr,
    /// This server's address, as the host knew it.
    pub(crate) server: IpAddr,
}

/// A run's lease, to be recorded with clients' records.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecordedLease {
    pub(crate) time: Duration,
    /// No client with a record may know the longer one of an earlier run.
    pub(crate) may_be_shorter: bool,
}
