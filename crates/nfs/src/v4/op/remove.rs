//! REMOVE (RFC 8881 section 18.25): removes a name.

use crate::macros::samples;
use crate::v4::error::Error;
use crate::v4::types::{ChangeInfo, Name};

/// The name in the current directory.
pub type Args = Name;

/// The directory's change.
pub type Res = Result<ChangeInfo, Error>;

samples! {
    args: ["old".into() => "00000003 6f6c6400"],
    results: [
        Ok(ChangeInfo { atomic: true, before: 1, after: 2 }) =>
            "00000000 00000001 00000000 00000001 00000000 00000002";
        Err(Error::NotEmpty) => "00000042";
    ],
}
