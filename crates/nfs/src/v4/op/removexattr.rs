//! REMOVEXATTR (RFC 8276 section 8.4.4): removes an extended attribute.

use crate::macros::samples;
use crate::v4::error::Error;
use crate::v4::types::{ChangeInfo, Name};

/// The name, without `user.`.
pub type Args = Name;

/// The file's change.
pub type Res = Result<ChangeInfo, Error>;

samples! {
    args: ["key".into() => "00000003 6b657900"],
    results: [
        Ok(ChangeInfo { atomic: true, before: 1, after: 2 }) =>
            "00000000 00000001 00000000 00000001 00000000 00000002";
        Err(Error::NoXattr) => "0000276f";
    ],
}
