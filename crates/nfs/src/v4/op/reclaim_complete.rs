//! RECLAIM_COMPLETE (RFC 8881 section 18.51): ends a client's reclaims.

use crate::macros::samples;
use crate::v4::types::Status;
use weir_xdr::xdr_struct;

xdr_struct! {
    /// Where it ends.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Args {
        /// Only in the current file system, which has moved.
        pub one_fs: bool,
    }
}

/// Nothing more.
pub type Res = Status;

samples! {
    args: [Args { one_fs: true } => "00000001"],
    results: [
        Ok(()) => "00000000";
        Err(crate::v4::error::Error::CompleteAlready) => "00002746";
    ],
}
