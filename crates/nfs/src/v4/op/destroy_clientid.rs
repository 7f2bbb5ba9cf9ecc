//! DESTROY_CLIENTID (RFC 8881 section 18.50): forgets a client.

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
        Err(crate::v4::error::Error::ClientIdBusy) => "0000275a";
    ],
}
