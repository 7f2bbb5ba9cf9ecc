//! State that survives a restart: client records, changes that a reply promised to be durable,
//! changes that must not be made twice, and the write verifier, by which clients learn of lost data.

pub(crate) mod client_tracking;
mod database_file;
pub(crate) mod durability;
pub(crate) mod recovery;
pub(crate) mod retry_journal;
pub(crate) mod write_verifier;
