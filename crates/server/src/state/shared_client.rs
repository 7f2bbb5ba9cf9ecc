//! What requests read and change of their client without the state's lock.

use crate::state::tables::calls::ExportsInUse;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use weir_base::Lease;

/// What requests read and change of their client without the state's lock.
#[derive(Debug)]
pub(crate) struct SharedClient {
    /// The client's lease. It ends when the client is removed.
    pub(crate) lease: Lease,
    /// The exports that its calls in progress use, in sessions.
    pub(crate) in_use: Arc<ExportsInUse>,
    /// Number of its sessions; changes under the state's lock.
    sessions: AtomicUsize,
    /// Whether it has revoked state to acknowledge; changes under the state's lock.
    has_revoked: AtomicBool,
}

impl SharedClient {
    /// A client without sessions.
    pub(in crate::state) fn new(now: Duration) -> Self {
        Self {
            lease: Lease::new(now),
            in_use: Arc::default(),
            sessions: AtomicUsize::new(0),
            has_revoked: AtomicBool::new(false),
        }
    }

    /// Number of its sessions.
    pub(in crate::state) fn sessions(&self) -> usize {
        self.sessions.load(Ordering::Relaxed)
    }

    pub(in crate::state) fn set_sessions(&self, sessions: usize) {
        self.sessions.store(sessions, Ordering::Relaxed);
    }

    /// Whether it has a revoked delegation to acknowledge.
    pub(in crate::state) fn has_revoked(&self) -> bool {
        self.has_revoked.load(Ordering::Acquire)
    }

    pub(in crate::state) fn set_revoked(&self, has_revoked: bool) {
        self.has_revoked.store(has_revoked, Ordering::Release);
    }
}
