//! RESTOREFH (RFC 8881 section 18.27): makes the saved filehandle the current one.

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
