//! WRITE (RFC 8881 section 18.32).

use crate::Data;
use crate::macros::samples;
use crate::v4::error::Error;
use crate::v4::types::{StableHow, StateId, Verifier};
use weir_xdr::xdr_struct;

xdr_struct! {
    /// What to write to the current file.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Args {
        /// Stateid of an open, lock or delegation for writing, or a special one.
        pub stateid: StateId,
        /// Offset of the first byte.
        pub offset: u64,
        /// Stability required when the call returns.
        pub stable: StableHow,
        /// The bytes.
        pub data: Data,
    }

    /// What was written.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Written {
        /// Bytes.
        pub count: u32,
        /// Stability provided: at least the requested one.
        pub committed: StableHow,
        /// Changes when the server loses unstable data.
        pub verifier: Verifier,
    }
}

/// What was written.
pub type Res = Result<Written, Error>;

samples! {
    args: [
        Args {
            stateid: crate::v4::types::STATEID,
            offset: 1,
            stable: StableHow::FileSync,
            data: "hi".into(),
        } => "00000007 61626364 65666768 696a6b6c 00000000 00000001 00000002 00000002 68690000",
    ],
    results: [
        Ok(Written { count: 2, committed: StableHow::FileSync, verifier: *b"verifier" }) =>
            "00000000 00000002 00000002 76657269 66696572";
        Err(Error::NoSpc) => "0000001c";
    ],
}
