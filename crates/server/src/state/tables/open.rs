//! What is kept of an open, and what is asked and told of opens.

use crate::handle::Node;
use crate::state::client::{ClientId, OwnerName, Principal};
use crate::state::share::Share;
use crate::state::stateid::StateRef;
use crate::state::tables::lock::LockOwner;
use std::time::Duration;
use weir_vfs::Access;

/// An open of a file by an owner.
#[derive(Clone, Debug)]
pub(in crate::state) struct Open<F> {
    pub(in crate::state) client: ClientId,
    pub(in crate::state) owner: OwnerName,
    pub(in crate::state) node: Node,
    pub(in crate::state) seq: u32,
    pub(in crate::state) share: Share,
    /// Who opened it last.
    pub(in crate::state) by: Principal,
    /// Who made the file by opening it.
    pub(in crate::state) made_by: Option<Principal>,
    /// Since when it waits for its owner to confirm it.
    pub(in crate::state) unconfirmed: Option<Duration>,
    /// A request was made to wait for a lock that was asked for under it.
    pub(in crate::state) waits: bool,
    /// Each combination that was opened, for downgrades.
    pub(in crate::state) opened: Vec<Share>,
    pub(in crate::state) reader: Option<F>,
    pub(in crate::state) writer: Option<F>,
}

/// How a file is used for longer than a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Use {
    /// What the client named for it.
    pub under: StateRef,
    /// The file.
    pub node: Node,
    /// What is done to it.
    pub access: Access,
}

/// Whether an open is new, or its client has had it already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// New.
    New,
    /// It was there before the server restarted.
    Reclaim,
    /// Its client opened the file on its own, under a delegation.
    Delegated,
}

/// An open to be made.
#[derive(Clone, Debug)]
pub struct OpenRequest<F> {
    /// Whose.
    pub client: ClientId,
    /// The client's name for who opens.
    pub owner: OwnerName,
    /// The file.
    pub node: Node,
    /// What for.
    pub share: Share,
    /// New or reclaimed.
    pub claim: Claim,
    /// Its owner has to confirm it; only of an owner that has nothing else open.
    pub confirm: bool,
    /// Who opens it.
    pub by: Principal,
    /// The file was made by this.
    pub made: bool,
    /// A handle for what [`share`](Self::share) gives access to.
    pub file: F,
}

/// What an owner has open of a file, at a moment.
#[derive(Clone, Debug)]
pub struct Opened(pub(in crate::state) Option<OpenedBefore>);

/// Of an open that is there already: what the next OPEN of its owner changes.
#[derive(Clone, Debug)]
pub(in crate::state) struct OpenedBefore {
    pub(in crate::state) seq: u32,
    pub(in crate::state) share: Share,
    pub(in crate::state) opened: Vec<Share>,
    pub(in crate::state) by: Principal,
    pub(in crate::state) made_by: Option<Principal>,
}

/// What I/O under a stateid is done with.
#[derive(Clone, Debug)]
pub struct Io<F> {
    /// The handle.
    pub file: F,
    /// Under whose locks.
    pub lock_owner: Option<LockOwner>,
    /// Who opened it last; under a delegation, who opened it when it was delegated.
    pub opened_by: Option<Principal>,
    /// Who made the file by opening it.
    pub made_by: Option<Principal>,
}
