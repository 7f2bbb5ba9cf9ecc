//! The record of a revoked state.

use crate::handle::Node;
use crate::state::stateid::StateKey;

/// Why a state was revoked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// Its client's lease expired, and another client wanted what it held.
    Expired,
    /// Its export is no longer served.
    Removed,
    /// It is a delegation that the client did not return in time.
    Recalled,
}

/// What a revoked state was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// An open.
    Open,
    /// The locks of an owner, under this open or delegation.
    Lock(StateKey),
    /// A delegation.
    Delegation,
}

/// A state that the server revoked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Revoked {
    /// Its key.
    pub(crate) key: StateKey,
    /// What it was.
    pub(crate) kind: Kind,
    /// The file.
    pub(crate) node: Node,
    /// The reason.
    pub(crate) why: Why,
}
