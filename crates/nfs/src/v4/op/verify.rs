//! VERIFY (RFC 8881 section 18.31): continues if attributes are the same.

use crate::macros::samples;
use crate::v4::attr::Fattr;
use crate::v4::error::Error;

/// The attributes to compare with the current file's.
pub type Args = Fattr;

/// They are the same.
pub type Res = Result<(), Error>;

samples! {
    args: [Fattr::default() => "00000000 00000000"],
    results: [Ok(()) => "00000000"; Err(Error::NotSame) => "0000272b"],
}
