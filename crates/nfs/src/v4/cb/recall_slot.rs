//! CB_RECALL_SLOT (RFC 8881 section 20.8): asks the client to use fewer slots.

use crate::macros::samples;
use crate::v4::types::Status;
use weir_xdr::xdr_struct;

xdr_struct! {
    /// How many.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Args {
        /// Highest slot that the client should use.
        pub target_highest_slot: u32,
    }
}

/// Nothing more.
pub type Res = Status;

samples! {
    args: [Args { target_highest_slot: 5 } => "00000005"],
    results: [
        Ok(()) => "00000000";
        Err(crate::v4::error::Error::BadHighSlot) => "0000275d";
    ],
}
