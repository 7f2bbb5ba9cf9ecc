//! What is kept of a state that was taken away.

use crate::handle::Node;
use crate::state::stateid::StateKey;

/// Why a state was taken away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// Its client's lease was over, and another client wanted it.
    Expired,
    /// Its export is served no more.
    Removed,
    /// It is a delegation that was not given back.
    Recalled,
}

/// A state that was taken away from a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Revoked {
    /// Which.
    pub key: StateKey,
    /// Of which file.
    pub node: Node,
    /// Why.
    pub why: Why,
}
