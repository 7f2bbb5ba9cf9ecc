//! SEEK (RFC 7862 section 15.11).

use crate::macros::samples;
use crate::v4::error::Error;
use crate::v4::types::{Content, StateId};
use weir_xdr::xdr_struct;

xdr_struct! {
    /// What to look for in the current file.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Args {
        /// Stateid of an open, lock or delegation for reading, or a special one.
        pub stateid: StateId,
        /// Where to begin.
        pub offset: u64,
        /// Data, or a hole.
        pub what: Content,
    }

    /// Where it is.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Found {
        /// None follows the offset: the rest of the file is of the other kind.
        pub eof: bool,
        /// Offset of its first byte.
        pub offset: u64,
    }
}

/// Its offset; [`Error::NxIo`] past the end of the file.
pub type Res = Result<Found, Error>;

samples! {
    args: [
        Args { stateid: crate::v4::types::STATEID, offset: 2, what: Content::Hole } =>
            "00000007 61626364 65666768 696a6b6c 00000000 00000002 00000001",
    ],
    results: [
        Ok(Found { eof: false, offset: 4096 }) => "00000000 00000000 00000000 00001000";
        Err(Error::NxIo) => "00000006";
    ],
}
