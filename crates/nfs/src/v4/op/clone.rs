//! CLONE (RFC 7862 section 15.13): shares a range of the saved file with the current one.

use crate::macros::samples;
use crate::v4::error::Error;
use crate::v4::types::StateId;
use weir_xdr::xdr_struct;

xdr_struct! {
    /// What to share.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Args {
        /// To read the saved file under.
        pub source: StateId,
        /// To write the current file under.
        pub destination: StateId,
        /// First byte in the saved file.
        pub source_offset: u64,
        /// First byte in the current file.
        pub destination_offset: u64,
        /// Length in bytes; 0: to the end of the saved file.
        pub count: u64,
    }
}

/// Done, all of it.
pub type Res = Result<(), Error>;

samples! {
    args: [
        Args {
            source: crate::v4::types::STATEID,
            destination: StateId::ANONYMOUS,
            source_offset: 1,
            destination_offset: 2,
            count: 3,
        } => "00000007 61626364 65666768 696a6b6c 00000000 00000000 00000000 00000000 \
              00000000 00000001 00000000 00000002 00000000 00000003",
    ],
    results: [Ok(()) => "00000000"; Err(Error::Inval) => "00000016"],
}
