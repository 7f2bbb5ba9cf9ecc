//! LOOKUPP (RFC 8881 section 18.14): goes to a directory's parent.

use crate::macros::samples;
use crate::v4::error::Error;

/// None.
pub type Args = ();

/// Done.
pub type Res = Result<(), Error>;

samples! {
    args: [() => ""],
    results: [Ok(()) => "00000000"; Err(Error::NoEnt) => "00000002"],
}
