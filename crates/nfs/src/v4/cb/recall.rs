//! CB_RECALL (RFC 8881 section 20.2): recalls a delegation.

use crate::macros::samples;
use crate::v4::types::{FileHandle, StateId, Status};
use weir_xdr::xdr_struct;

xdr_struct! {
    /// What to give back.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Args {
        /// The delegation.
        pub stateid: StateId,
        /// The file will be truncated to size 0: dirty data need not be written back.
        pub truncate: bool,
        /// The file.
        pub file: FileHandle,
    }
}

/// No results; the client returns the delegation by DELEGRETURN.
pub type Res = Status;

samples! {
    args: [
        Args { stateid: crate::v4::types::STATEID, truncate: true, file: "fh".into() } =>
            "00000007 61626364 65666768 696a6b6c 00000001 00000002 66680000",
    ],
    results: [
        Ok(()) => "00000000";
        Err(crate::v4::error::Error::BadStateId) => "00002729";
    ],
}
