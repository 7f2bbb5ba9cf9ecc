//! READ (RFC 8881 section 18.22).

use crate::Data;
use crate::macros::samples;
use crate::v4::error::Error;
use crate::v4::types::StateId;
use weir_xdr::xdr_struct;

xdr_struct! {
    /// What to read of the current file.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Args {
        /// Stateid of an open, lock or delegation for reading, or a special one.
        pub stateid: StateId,
        /// Offset of the first byte.
        pub offset: u64,
        /// Most bytes to return.
        pub count: u32,
    }

    /// What was read.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct Read {
        /// The file ended with the last of the bytes.
        pub eof: bool,
        /// The bytes.
        pub data: Data,
    }
}

/// The data.
pub type Res = Result<Read, Error>;

samples! {
    args: [
        Args { stateid: crate::v4::types::STATEID, offset: 4096, count: 5 } =>
            "00000007 61626364 65666768 696a6b6c 00000000 00001000 00000005",
    ],
    results: [
        Ok(Read { eof: true, data: "hello".into() }) =>
            "00000000 00000001 00000005 68656c6c 6f000000", variable 8;
        Err(Error::OpenMode) => "00002736";
    ],
}
