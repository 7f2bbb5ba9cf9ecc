//! WRITE_SAME (RFC 7862 section 15.12): writes a pattern repeatedly.

use crate::macros::samples;
use crate::v4::error::Error;
use crate::v4::types::{StableHow, StateId, WriteResponse};
use weir_xdr::{Opaque, xdr_struct};

/// Most bytes of a pattern.
pub const MAX_PATTERN_BYTES: usize = 1 << 20;

xdr_struct! {
    /// The data for the current file: blocks, each with its number and the pattern.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Args {
        /// Stateid of an open, lock or delegation for writing, or a special one.
        pub stateid: StateId,
        /// Stability required when the call returns.
        pub stable: StableHow,
        /// Offset of the first block.
        pub offset: u64,
        /// Bytes in a block.
        pub block_size: u64,
        /// How many blocks.
        pub block_count: u64,
        /// Where in a block its number goes.
        pub relative_number_offset: u64,
        /// Number of the first block.
        pub block_number: u32,
        /// Where in a block the pattern goes.
        pub relative_pattern_offset: u64,
        /// The pattern.
        pub pattern: Opaque<MAX_PATTERN_BYTES>,
    }
}

/// What was written.
pub type Res = Result<WriteResponse, Error>;

samples! {
    args: [
        Args {
            stateid: crate::v4::types::STATEID,
            stable: StableHow::DataSync,
            offset: 1,
            block_size: 2,
            block_count: 3,
            relative_number_offset: 4,
            block_number: 5,
            relative_pattern_offset: 6,
            pattern: Opaque::copy_from(b"ab"),
        } => "00000007 61626364 65666768 696a6b6c 00000001 00000000 00000001 00000000 00000002 \
              00000000 00000003 00000000 00000004 00000005 00000000 00000006 00000002 61620000",
    ],
    results: [
        Ok(WriteResponse {
            callback_id: Default::default(),
            count: 6,
            committed: StableHow::FileSync,
            verifier: *b"verifier",
        }) => "00000000 00000000 00000000 00000006 00000002 76657269 66696572";
        Err(Error::NotSupp) => "00002714";
    ],
}
