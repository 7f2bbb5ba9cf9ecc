//! RENEW (RFC 7530 section 16.28): renews a lease.

use crate::macros::samples;
use crate::v4::types::{ClientId, Status};

/// The client.
pub type Args = ClientId;

/// Nothing more.
pub type Res = Status;

samples! {
    args: [1 << 32 | 9 => "00000001 00000009"],
    results: [
        Ok(()) => "00000000";
        Err(crate::v4::error::Error::CbPathDown) => "00002740";
    ],
}
