//! LOOKUP (RFC 8881 section 18.13): finds a name in a directory.

use crate::macros::samples;
use crate::v4::error::Error;
use crate::v4::types::Name;

/// The name in the current directory.
pub type Args = Name;

/// Found; it is the current file now.
pub type Res = Result<(), Error>;

samples! {
    args: ["file".into() => "00000004 66696c65"],
    results: [Ok(()) => "00000000"; Err(Error::NoEnt) => "00000002"],
}
