//! SETCLIENTID_CONFIRM (RFC 7530 section 16.34): confirms an introduction.

use crate::macros::samples;
use crate::v4::types::{ClientId, Status, Verifier};
use weir_xdr::xdr_struct;

xdr_struct! {
    /// What to confirm.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Args {
        /// The client.
        pub client_id: ClientId,
        /// What SETCLIENTID answered.
        pub confirm: Verifier,
    }
}

/// Nothing more.
pub type Res = Status;

samples! {
    args: [
        Args { client_id: 9, confirm: *b"verifier" } => "00000000 00000009 76657269 66696572",
    ],
    results: [
        Ok(()) => "00000000";
        Err(crate::v4::error::Error::StaleClientId) => "00002726";
    ],
}
