//! Limits on the state that the server keeps.

use std::time::Duration;

/// Limits on the state that the server keeps.
#[derive(Clone, Debug)]
pub struct Limits {
    /// The lease time.
    pub lease: Duration,
    /// How long state of a silent client is kept if no other client needs what it holds; not
    /// shorter than the lease.
    pub courtesy: Duration,
    /// Client records. An address may use as many as it leaves free.
    pub clients: usize,
    /// Sessions. A client may use as many as it leaves free; the same holds for opens and locks.
    pub sessions: usize,
    /// Bytes of replies that sessions keep. A client may use as many as it leaves free.
    pub kept_reply_bytes: u64,
    /// Bytes of owners of minor version 0 and the results kept for them. A client may use as many
    /// as it leaves free.
    pub owner_bytes: u64,
    /// Opens of files, of all clients together.
    pub opens: usize,
    /// Lock states, and separately locked ranges, of all clients together.
    pub locks: usize,
    /// Delegations, of all clients together. 0 disables delegations.
    pub delegations: usize,
    /// Files that are open in their stores for locks against programs of this machine. An address may
    /// use as many as it leaves free; the same holds for the limits on NLM hosts.
    pub store_locks: usize,
    /// Hosts that hold locks or share reservations by NLM, or held some within the last lease time.
    pub nlm_hosts: usize,
    /// Locks that NLM hosts wait for, or that are granted but not acknowledged.
    pub nlm_waiting: usize,
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
            store_locks: 1 << 20,
            nlm_hosts: 16 << 10,
            nlm_waiting: 16 << 10,
        }
    }
}
