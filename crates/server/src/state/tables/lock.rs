//! What is kept of the locks of an owner, and what is asked and told of locks.

use crate::handle::Node;
use crate::state::client::{ClientId, OwnerName};
use crate::state::error::StateError;
use crate::state::stateid::{StateId, StateKey};
use crate::state::tables::nlm::NlmOwner;
use weir_vfs::{LockConflict as Conflict, LockRange as Range};

/// Who holds locks: an owner of a client.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LockOwner {
    /// The client.
    pub client: ClientId,
    /// The client's name for the owner.
    pub name: OwnerName,
}

/// Who holds a range, in either protocol.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Holder {
    /// An owner of an NFSv4 client.
    V4(LockOwner),
    /// An owner of a host that uses NLM.
    Nlm(NlmOwner),
    /// A program of the server's machine: never in the table, only in the way.
    Machine,
}

/// The locks of one owner on one file.
#[derive(Clone, Debug)]
pub(in crate::state) struct LockState {
    pub(in crate::state) owner: LockOwner,
    pub(in crate::state) node: Node,
    pub(in crate::state) open: StateKey,
    pub(in crate::state) seq: u32,
}

/// Under which stateid a lock is asked for.
#[derive(Clone, Debug)]
pub enum LockTarget {
    /// Under an open: the owner's first lock on the file.
    Open(StateId, OwnerName),
    /// Under the stateid of earlier locks.
    Locks(StateId),
}

/// A lock to be taken.
#[derive(Clone, Debug)]
pub struct LockRequest {
    /// Whose.
    pub client: ClientId,
    /// Under which stateid.
    pub target: LockTarget,
    /// The file.
    pub node: Node,
    /// The bytes.
    pub range: Range,
    /// Whether it excludes readers as well.
    pub exclusive: bool,
    /// It was held before the server restarted.
    pub reclaim: bool,
    /// The owner waits for it, and asks again until it has it.
    pub wait: bool,
    /// The client takes CB_NOTIFY_LOCK.
    pub listens: bool,
}

/// Why a lock is not taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LockError {
    /// Something is wrong.
    State(StateError),
    /// Another owner holds a conflicting lock.
    Denied(Conflict<Holder>),
    /// The holder of the conflicting lock waits for this owner.
    Deadlock,
}

impl From<StateError> for LockError {
    fn from(error: StateError) -> Self {
        Self::State(error)
    }
}
