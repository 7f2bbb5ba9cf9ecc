//! Open state, and the requests and results of the open transitions.

use crate::handle::Node;
use crate::state::client::{ClientId, OwnerName, Principal};
use crate::state::share::Share;
use crate::state::stateid::StateRef;
use crate::state::tables::lock::LockOwner;
use std::time::Duration;
use weir_vfs::Access;

/// An open of a file by an open-owner.
#[derive(Clone, Debug)]
pub(in crate::state) struct Open<F> {
    pub(in crate::state) client: ClientId,
    pub(in crate::state) owner: OwnerName,
    pub(in crate::state) node: Node,
    pub(in crate::state) seq: u32,
    pub(in crate::state) share: Share,
    /// The principal that opened it last.
    pub(in crate::state) by: Principal,
    /// The principal that created the file with this open.
    pub(in crate::state) made_by: Option<Principal>,
    /// When it began to wait for OPEN_CONFIRM; `None` if it is confirmed.
    pub(in crate::state) unconfirmed: Option<Duration>,
    /// Whether a lock request under it has been told to wait.
    pub(in crate::state) waits: bool,
    /// Each share mode that was opened, to check downgrades.
    pub(in crate::state) opened: Vec<Share>,
    pub(in crate::state) reader: Option<F>,
    pub(in crate::state) writer: Option<F>,
}

/// The use of a file that outlasts its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Use {
    /// The stateid that the client sent.
    pub under: StateRef,
    /// The file.
    pub node: Node,
    /// The access that the use needs.
    pub access: Access,
}

/// Whether an open is new, or the client already has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// A new open.
    New,
    /// The client had the open before the server restarted.
    Reclaim,
    /// The client opened the file locally, under a delegation.
    Delegated,
}

/// An OPEN request.
#[derive(Clone, Debug)]
pub struct OpenRequest<F> {
    /// The client.
    pub client: ClientId,
    /// The open-owner.
    pub owner: OwnerName,
    /// The file.
    pub node: Node,
    /// Access and deny modes.
    pub share: Share,
    /// Whether it is new.
    pub claim: Claim,
    /// Whether the owner must send OPEN_CONFIRM; only for an owner without other opens.
    pub confirm: bool,
    /// The principal that opens it.
    pub by: Principal,
    /// Whether this OPEN created the file.
    pub made: bool,
    /// An open file with the access of [`share`](Self::share).
    pub file: F,
}

/// A snapshot of an owner's open of a file, if it has one.
#[derive(Clone, Debug)]
pub struct Opened(pub(in crate::state) Option<OpenedBefore>);

/// The fields of an existing open that the owner's next OPEN changes.
#[derive(Clone, Debug)]
pub(in crate::state) struct OpenedBefore {
    pub(in crate::state) seq: u32,
    pub(in crate::state) share: Share,
    pub(in crate::state) opened: Vec<Share>,
    pub(in crate::state) by: Principal,
    pub(in crate::state) made_by: Option<Principal>,
}

/// What I/O under a stateid uses.
#[derive(Clone, Debug)]
pub struct Io<F> {
    /// The open file.
    pub file: F,
    /// The owner whose locks apply.
    pub lock_owner: Option<LockOwner>,
    /// The principal that opened it last; under a delegation, the one that opened the file when it
    /// was delegated.
    pub opened_by: Option<Principal>,
    /// The principal that created the file with this open.
    pub made_by: Option<Principal>,
}
