//! DELEGRETURN (RFC 8881 section 18.6): returns a delegation.

use crate::macros::samples;
use crate::v4::types::{StateId, Status};

/// The delegation.
pub type Args = StateId;

/// Nothing more.
pub type Res = Status;

samples! {
    args: [crate::v4::types::STATEID => "00000007 61626364 65666768 696a6b6c"],
    results: [
        Ok(()) => "00000000";
        Err(crate::v4::error::Error::BadStateId) => "00002729";
    ],
}
