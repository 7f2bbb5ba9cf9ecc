//! NFSv3 (RFC 1813).
//!
//! Every procedure has a row in [`table`] and a file in [`op`]; the row generates its variant of
//! [`Procedure`], ties its arguments to its results ([`Call`]), and tests its samples.

mod error;
pub mod op;
pub mod table;
pub mod types;

pub use error::{Error, Failure};
pub use table::{Call, Procedure};
pub use types::{MAX_HANDLE_BYTES, VERIFIER_BYTES};

/// Program number of NFS.
pub const PROGRAM: u32 = 100_003;
/// Version of the program.
pub const VERSION: u32 = 3;
