//! The session, and this client's identity at the server.

use crate::v4::session::slots::Slots;
use std::sync::Arc;
use weir_base::sync::Mutex;
use weir_nfs::v4::types::{ClientId, ClientOwner, SessionId};

/// A session.
pub(in crate::v4) struct Session {
    pub(in crate::v4) id: SessionId,
    pub(in crate::v4) slots: Arc<Slots>,
    /// The largest transfers that its messages can carry, in bytes.
    pub(in crate::v4) max_read: usize,
    pub(in crate::v4) max_write: usize,
    /// The longest messages that it takes, in bytes.
    pub(in crate::v4) max_request: usize,
    pub(in crate::v4) max_response: usize,
    /// The most operations in one compound.
    pub(in crate::v4) max_operations: usize,
}

impl Session {
    /// Whether it is [`none`](Self::none).
    pub(in crate::v4) fn is_placeholder(&self) -> bool {
        self.max_operations == 0
    }

    /// A placeholder until there is a session.
    pub(in crate::v4) fn none() -> Arc<Self> {
        let slots = Slots::new(1);
        slots.kill();
        Arc::new(Self {
            id: [0; 16],
            slots,
            max_read: 0,
            max_write: 0,
            max_request: 0,
            max_response: 0,
            max_operations: 0,
        })
    }
}

/// This client's identity at the server.
pub(in crate::v4) struct Client {
    pub(in crate::v4) owner: ClientOwner,
    pub(in crate::v4) id: Mutex<Option<ClientId>>,
    /// The client id for which everything was reclaimed, and RECLAIM_COMPLETE sent.
    pub(in crate::v4) settled: Mutex<Option<ClientId>>,
}

impl Client {
    /// A client that no server has seen before.
    pub(in crate::v4) fn new() -> Self {
        let random = getrandom::u64().unwrap_or_else(|_| std::process::id().into());
        let host = rustix::system::uname();
        let name = format!("weir {} {random:016x}", host.nodename().to_string_lossy());
        let owner = name.as_bytes().into();
        let owner = ClientOwner { verifier: random.to_be_bytes(), owner };
        Self { owner, id: Mutex::new(None), settled: Mutex::new(None) }
    }

    pub(in crate::v4) fn owner(&self) -> &ClientOwner {
        &self.owner
    }

    /// Its client id, as long as the server knows it.
    pub(in crate::v4) fn id(&self) -> Option<ClientId> {
        *self.id.lock()
    }
}
