//! CB_RECALL_ANY (RFC 8881 section 20.6): recalls any delegations or layouts.

use crate::macros::samples;
use crate::v4::bitmap::Bitmap;
use crate::v4::types::Status;
use weir_xdr::xdr_struct;

/// Read delegations, in [`Args::kinds`].
pub const READ_DELEGATIONS: u32 = 0;
/// Write delegations.
pub const WRITE_DELEGATIONS: u32 = 1;
/// Directory delegations.
pub const DIR_DELEGATIONS: u32 = 2;
/// Layouts of type "files".
pub const FILE_LAYOUTS: u32 = 3;
/// Layouts of type "blocks".
pub const BLOCK_LAYOUTS: u32 = 4;

xdr_struct! {
    /// What to give back.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Args {
        /// How many the client may keep.
        pub keep: u32,
        /// Kinds to recall ([`READ_DELEGATIONS`] and so on).
        pub kinds: Bitmap,
    }
}

/// Nothing more.
pub type Res = Status;

samples! {
    args: [
        Args { keep: 5, kinds: Bitmap::of(&[READ_DELEGATIONS, WRITE_DELEGATIONS]) } =>
            "00000005 00000001 00000003",
    ],
    results: [
        Ok(()) => "00000000";
        Err(crate::v4::error::Error::Inval) => "00000016";
    ],
}
