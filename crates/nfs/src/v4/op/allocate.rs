//! ALLOCATE (RFC 7862 section 15.1): reserves space.

use crate::macros::samples;
use crate::v4::error::Error;
use crate::v4::types::StateId;
use weir_xdr::xdr_struct;

xdr_struct! {
    /// What to reserve of the current file.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Args {
        /// Stateid of an open, lock or delegation for writing, or a special one.
        pub stateid: StateId,
        /// First byte.
        pub offset: u64,
        /// Length in bytes.
        pub length: u64,
    }
}

/// Done.
pub type Res = Result<(), Error>;

samples! {
    args: [
        Args { stateid: crate::v4::types::STATEID, offset: 4096, length: 8192 } =>
            "00000007 61626364 65666768 696a6b6c 00000000 00001000 00000000 00002000",
    ],
    results: [Ok(()) => "00000000"; Err(Error::NotSupp) => "00002714"],
}
