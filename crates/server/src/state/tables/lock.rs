//! Lock state, and the requests and results of the lock transitions.

use crate::handle::Node;
use crate::state::client::{ClientId, OwnerName};
use crate::state::error::StateError;
use crate::state::stateid::{StateId, StateKey};
use crate::state::tables::nlm::NlmOwner;
use weir_vfs::{LockConflict as Conflict, LockRange as Range};

/// An NFSv4 lock-owner.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct LockOwner {
    /// The client.
    pub(crate) client: ClientId,
    /// The client's name for the owner.
    pub(crate) name: OwnerName,
}

/// The holder of a range, in either protocol.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Holder {
    /// A lock-owner of an NFSv4 client.
    V4(LockOwner),
    /// An owner of an NLM host.
    Nlm(NlmOwner),
    /// A program on the server's machine. Appears only in conflicts, never in the table.
    LocalProgram,
}

/// The locks of one owner on one file.
#[derive(Clone, Debug)]
pub(in crate::state) struct LockState {
    pub(in crate::state) owner: LockOwner,
    pub(in crate::state) node: Node,
    pub(in crate::state) open: StateKey,
    pub(in crate::state) seq: u32,
}

/// The stateid of a LOCK request.
#[derive(Clone, Debug)]
pub(crate) enum LockTarget {
    /// An open stateid: the owner's first lock on the file.
    Open(StateId, OwnerName),
    /// The stateid of earlier locks.
    Locks(StateId),
}

/// A LOCK request.
#[derive(Clone, Debug)]
pub(crate) struct LockRequest {
    /// The client.
    pub(crate) client: ClientId,
    /// The stateid.
    pub(crate) target: LockTarget,
    /// The file.
    pub(crate) node: Node,
    /// The byte range.
    pub(crate) range: Range,
    /// Whether it is a write lock.
    pub(crate) exclusive: bool,
    /// Whether the owner reclaims a lock that it held before the server restarted.
    pub(crate) reclaim: bool,
    /// Whether the owner waits for the lock, and retries until it gets it.
    pub(crate) wait: bool,
    /// Whether the client accepts CB_NOTIFY_LOCK.
    pub(crate) listens: bool,
}

/// Why a lock is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LockError {
    /// The request or its state is not valid, or a limit is reached.
    State(StateError),
    /// Another owner holds a conflicting lock.
    Denied(Conflict<Holder>),
    /// The holder of the conflicting lock waits, perhaps through others, for this owner.
    Deadlock,
}

impl From<StateError> for LockError {
    fn from(error: StateError) -> Self {
        Self::State(error)
    }
}
