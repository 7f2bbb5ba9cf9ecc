//! PUTROOTFH (RFC 8881 section 18.21): goes to the root.

use crate::macros::samples;
use crate::v4::error::Error;

/// None.
pub type Args = ();

/// Done.
pub type Res = Result<(), Error>;

samples! {
    args: [() => ""],
    results: [Ok(()) => "00000000"; Err(Error::Delay) => "00002718"],
}
