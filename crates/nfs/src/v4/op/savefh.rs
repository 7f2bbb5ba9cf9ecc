//! SAVEFH (RFC 8881 section 18.28): saves the current filehandle.

use crate::macros::samples;
use crate::v4::error::Error;

/// None.
pub type Args = ();

/// Done.
pub type Res = Result<(), Error>;

samples! {
    args: [() => ""],
    results: [Ok(()) => "00000000"; Err(Error::NoFilehandle) => "00002724"],
}
