//! FREE_STATEID (RFC 8881 section 18.38): frees a stateid that is no longer in use.

use crate::macros::samples;
use crate::v4::types::{StateId, Status};

/// The stateid.
pub type Args = StateId;

/// Nothing more.
pub type Res = Status;

samples! {
    args: [crate::v4::types::STATEID => "00000007 61626364 65666768 696a6b6c"],
    results: [
        Ok(()) => "00000000";
        Err(crate::v4::error::Error::LocksHeld) => "00002735";
    ],
}
