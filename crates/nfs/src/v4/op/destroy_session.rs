//! DESTROY_SESSION (RFC 8881 section 18.37): ends a session.

use crate::macros::samples;
use crate::v4::types::{SessionId, Status};

/// The session.
pub type Args = SessionId;

/// Nothing more.
pub type Res = Status;

samples! {
    args: [*b"0123456789abcdef" => "30313233 34353637 38396162 63646566"],
    results: [
        Ok(()) => "00000000";
        Err(crate::v4::error::Error::BadSession) => "00002744";
    ],
}
