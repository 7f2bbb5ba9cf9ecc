//! Bounds on what is remembered.

use std::time::Duration;

/// Bounds on what is remembered.
#[derive(Clone, Debug)]
pub struct Limits {
    /// How long a client may be silent.
    pub lease: Duration,
    /// How long state of a silent client is kept when no other client wants what it holds.
    pub courtesy: Duration,
    /// Client records. An address may have as many as it leaves free.
    pub clients: usize,
    /// Sessions. A client may have as many as it leaves free; so it is with opens and locks.
    pub sessions: usize,
    /// Bytes of the replies that sessions keep; a client may keep as many as it leaves free.
    pub kept_reply_bytes: u64,
    /// Bytes of the owners of minor version 0 and their kept results; a client's may take as many as it leaves free.
    pub owner_bytes: u64,
    /// Opens of files, of all clients together.
    pub opens: usize,
    /// Lock owners' states and locked ranges, of all clients together, each.
    pub locks: usize,
    /// Delegations, of all clients together; 0: none are given.
    pub delegations: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(90),
            courtesy: Duration::from_secs(24 * 3600),
            clients: 16 << 10,
            sessions: 16 << 10,
            kept_reply_bytes: 128 << 20,
            owner_bytes: 128 << 20,
            opens: 1 << 20,
            locks: 1 << 20,
            delegations: 8 << 10,
        }
    }
}
