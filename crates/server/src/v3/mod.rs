//! NFSv3 (RFC 1813) and the MOUNT protocol that goes with it (appendix I), each a [`Program`](crate::Program);
//! and NFSACL (`acl`).
//!
//! The table of procedures ([`weir_nfs::v3_procedures`]) makes the dispatch; `ops` has a function
//! for every procedure, which returns its results as a value.
//!
//! 1. A call that is not idempotent is executed once, however often it is sent
//!    (`reply_cache`).
//! 2. The protocol has no opens: every READ and WRITE checks the caller's rights, with files kept
//!    open in between (`open_files`).
//! 3. Delegations of NFSv4's clients are recalled before a file is touched; who must wait for them
//!    long gets JUKEBOX ([`Recalls`](crate::Recalls)).
//! 4. Data of an UNSTABLE WRITE may be lost only if the write verifier changes; it does with
//!    every start of the server.
//! 5. What changes names, attributes or sizes is on disk before it is answered (`storage/durability.rs`).

mod acl;
mod convert;
mod mount;
mod nfs3;
mod open_files;
mod ops;
mod program;
mod request;
#[cfg(test)]
mod tests;

pub use acl::NfsAcl3;
pub use mount::Mount3;
pub use nfs3::Nfs3;
