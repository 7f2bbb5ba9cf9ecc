//! CB_WANTS_CANCELLED (RFC 8881 section 20.10): delegations that the client wanted will not be
//! granted.

use crate::macros::samples;
use crate::v4::types::Status;
use weir_xdr::xdr_struct;

xdr_struct! {
    /// Which wants.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Args {
        /// Those that waited for the end of contention.
        pub contended: bool,
        /// Those that waited for resources.
        pub resourced: bool,
    }
}

/// Nothing more.
pub type Res = Status;

samples! {
    args: [Args { contended: true, resourced: false } => "00000001 00000000"],
    results: [
        Ok(()) => "00000000";
        Err(crate::v4::error::Error::NotSupp) => "00002714";
    ],
}
