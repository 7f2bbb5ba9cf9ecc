//! State.
mod client;
mod range;
mod slot;
mod stateid;
pub use stateid::*;
/// Why
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateError {
    /// x
    BadStateId,
    /// x
    OldStateId,
    /// x
    StaleClientId,
    /// x
    NoSuchClient,
    /// x
    NotSameVerifier,
    /// x
    NotSamePrincipal,
    /// x
    ClientInUse,
    /// x
    TooMany,
}
