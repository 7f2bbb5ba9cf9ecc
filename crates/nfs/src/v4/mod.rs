//! NFSv4: minor versions 0 (RFC 7530), 1 (RFC 8881) and 2 (RFC 7862), extended attributes
//! (RFC 8276), the umask attribute (RFC 8275).
//!
//! Every operation has a row in [`table`] and a file in [`op`] (callbacks: [`cb`]); the row
//! generates its variant of [`Op`] and [`OpRes`], its rules ([`OpCode`]) and the test of its
//! samples. A COMPOUND is decoded and encoded operation by operation ([`compound`]).

pub mod acl;
pub mod attr;
pub mod bitmap;
pub mod cb;
pub mod compound;
mod error;
pub mod op;
pub mod table;
pub mod types;

pub use attr::{Attrs, Fattr};
pub use bitmap::Bitmap;
pub use cb::{CbOp, CbOpCode, CbOpError, CbOpRes};
pub use compound::{CbCompoundHeader, CompoundHeader, CompoundResHeader};
pub use error::{Detail, Detailed, Error, Failure, Outcome};
pub use table::{Filehandles, Op, OpCode, OpError, OpRes, ReplyBound, SequenceRule, StateIdRule};

/// Program number of NFS.
pub const PROGRAM: u32 = 100_003;
/// Version of the program.
pub const VERSION: u32 = 4;
/// The procedure that does nothing.
pub const PROC_NULL: u32 = 0;
/// The procedure that carries operations.
pub const PROC_COMPOUND: u32 = 1;
/// The callback program's NULL procedure.
pub const PROC_CB_NULL: u32 = 0;
/// The callback program's COMPOUND procedure.
pub const PROC_CB_COMPOUND: u32 = 1;
/// Version of the callback program; the client chooses the program's number.
pub const CB_VERSION: u32 = 1;
/// The callback version that some clients of minor version 0 request.
pub const CB_VERSION_4: u32 = 4;
