//! OFFLOAD_STATUS (RFC 7862 section 15.9): the progress of a background copy.

use crate::macros::samples;
use crate::v4::error::Error;
use crate::v4::types::StateId;
use weir_xdr::{List, xdr_struct};

/// The copy, by the stateid in its reply; the current file is its destination.
pub type Args = StateId;

xdr_struct! {
    /// How far it is.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Progress {
        /// Bytes copied.
        pub count: u64,
        /// Its final status (an `nfsstat4`), if it has ended.
        pub complete: List<u32, 1>,
    }
}

/// How far it is.
pub type Res = Result<Progress, Error>;

samples! {
    args: [crate::v4::types::STATEID => "00000007 61626364 65666768 696a6b6c"],
    results: [
        Ok(Progress { count: 9, complete: List(vec![0]) }) =>
            "00000000 00000000 00000009 00000001 00000000";
        Err(Error::BadStateId) => "00002729";
    ],
}
