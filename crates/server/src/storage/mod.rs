//! What survives a restart: which clients had state, what a reply promised to be on disk, and how
//! clients learn what was lost.

pub(crate) mod client_tracking;
pub(crate) mod durability;
pub(crate) mod recovery;
pub(crate) mod write_verifier;
