//! CB_OFFLOAD (RFC 7862 section 16.1): a background copy has ended.

use crate::macros::samples;
use crate::v4::error::Error;
use crate::v4::types::{FileHandle, StateId, Status, WriteResponse};
use weir_xdr::xdr_struct;

xdr_struct! {
    /// Which copy, and how it ended.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Args {
        /// The file that was written to.
        pub file: FileHandle,
        /// The copy.
        pub stateid: StateId,
        /// What it wrote (`offload_info4`).
        pub outcome: Result<WriteResponse, Failed>,
    }

    /// A copy that failed.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Failed {
        /// Why.
        pub error: Error,
        /// Bytes copied before that.
        pub bytes_copied: u64,
    }
}

/// Nothing more.
pub type Res = Status;

samples! {
    args: [
        Args {
            file: "fh".into(),
            stateid: crate::v4::types::STATEID,
            outcome: Ok(WriteResponse {
                callback_id: vec![].into(),
                count: 5,
                committed: crate::v4::types::StableHow::FileSync,
                verifier: *b"verifier",
            }),
        } => "00000002 66680000 00000007 61626364 65666768 696a6b6c 00000000
            00000000 00000000 00000005 00000002 76657269 66696572",
        Args {
            file: "fh".into(),
            stateid: crate::v4::types::STATEID,
            outcome: Err(Failed { error: Error::NoSpc, bytes_copied: 7 }),
        } => "00000002 66680000 00000007 61626364 65666768 696a6b6c 0000001c 00000000 00000007",
    ],
    results: [
        Ok(()) => "00000000";
        Err(Error::BadStateId) => "00002729";
    ],
}
