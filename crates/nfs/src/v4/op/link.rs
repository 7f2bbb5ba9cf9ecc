//! LINK (RFC 8881 section 18.9): adds a name for a file.

use crate::macros::samples;
use crate::v4::error::Error;
use crate::v4::types::{ChangeInfo, Name};

/// The name in the current directory for the saved file.
pub type Args = Name;

/// The directory's change.
pub type Res = Result<ChangeInfo, Error>;

samples! {
    args: ["new".into() => "00000003 6e657700"],
    results: [
        Ok(ChangeInfo { atomic: true, before: 1, after: 2 }) =>
            "00000000 00000001 00000000 00000001 00000000 00000002";
        Err(Error::Exist) => "00000011";
    ],
}
