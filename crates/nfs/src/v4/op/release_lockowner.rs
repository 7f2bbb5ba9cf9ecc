//! RELEASE_LOCKOWNER (RFC 7530 section 16.37): forgets a lock owner.

use crate::macros::samples;
use crate::v4::types::{StateOwner, Status};

/// The lock owner.
pub type Args = StateOwner;

/// Nothing more.
pub type Res = Status;

samples! {
    args: [
        StateOwner { client_id: 9, owner: "own".into() } => "00000000 00000009 00000003 6f776e00",
    ],
    results: [
        Ok(()) => "00000000";
        Err(crate::v4::error::Error::LocksHeld) => "00002735";
    ],
}
