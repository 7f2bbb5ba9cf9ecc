//! NVERIFY (RFC 8881 section 18.15): continues if attributes differ.

use crate::macros::samples;
use crate::v4::attr::Fattr;
use crate::v4::error::Error;

/// The attributes to compare with the current file's.
pub type Args = Fattr;

/// They differ.
pub type Res = Result<(), Error>;

samples! {
    args: [Fattr::default() => "00000000 00000000"],
    results: [Ok(()) => "00000000"; Err(Error::Same) => "00002719"],
}
