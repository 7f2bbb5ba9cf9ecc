//! READLINK (RFC 8881 section 18.24): the target of a symbolic link.

use crate::macros::samples;
use crate::v4::error::Error;
use crate::v4::types::LinkText;

/// None.
pub type Args = ();

/// The target.
pub type Res = Result<LinkText, Error>;

samples! {
    args: [() => ""],
    results: [
        Ok("to".into()) => "00000000 00000002 746f0000", variable 4;
        Err(Error::Inval) => "00000016";
    ],
}
