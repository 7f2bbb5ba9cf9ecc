//! NFSv3 and the MOUNT protocol (RFC 1813 and its appendix I), and NFSACL (`acl`), each a
//! [`Program`](crate::Program).
//!
//! The table of procedures ([`weir_nfs::v3_procedures`]) generates the dispatch. `ops` has one
//! function per procedure, which returns the results as a value.
//!
//! 1. A call that is not idempotent is executed once, however often the client sends it
//!    (`reply_cache`).
//! 2. NFSv3 has no OPEN: every READ and WRITE checks the caller's rights. Files stay open between
//!    calls (`open_files`).
//! 3. The server recalls conflicting delegations of NFSv4 clients before it accesses a file. If the
//!    recall takes long, the caller gets NFS3ERR_JUKEBOX ([`Recalls`](crate::Recalls)).
//! 4. Data of an UNSTABLE WRITE may be lost only if the write verifier changes: at a restart of the
//!    server or after a failed sync (`storage/write_verifier.rs`).
//! 5. Changes of names, attributes and sizes are on disk before the reply
//!    (`storage/durability.rs`).

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
pub(crate) use open_files::Files as OpenFiles;
