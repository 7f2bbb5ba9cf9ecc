//! GETXATTR (RFC 8276 section 8.4.1): reads an extended attribute.

use crate::macros::samples;
use crate::v4::error::Error;
use crate::v4::types::{Blob, Name};

/// The name, without `user.`.
pub type Args = Name;

/// The value.
pub type Res = Result<Blob, Error>;

samples! {
    args: ["key".into() => "00000003 6b657900"],
    results: [
        Ok(Blob::copy_from(b"value")) => "00000000 00000005 76616c75 65000000", variable 8;
        Err(Error::NoXattr) => "0000276f";
    ],
}
