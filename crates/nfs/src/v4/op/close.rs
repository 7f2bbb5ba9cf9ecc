//! CLOSE (RFC 8881 section 18.2): ends an open.

use crate::macros::samples;
use crate::v4::error::Error;
use crate::v4::types::StateId;
use weir_xdr::xdr_struct;

xdr_struct! {
    /// What to close.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Args {
        /// The open owner's next sequence id (minor version 0).
        pub seqid: u32,
        /// The open.
        pub open_stateid: StateId,
    }
}

/// The stateid, which is no longer valid.
pub type Res = Result<StateId, Error>;

samples! {
    args: [
        Args { seqid: 3, open_stateid: crate::v4::types::STATEID } =>
            "00000003 00000007 61626364 65666768 696a6b6c",
    ],
    results: [
        Ok(StateId::INVALID) => "00000000 ffffffff 00000000 00000000 00000000";
        Err(Error::LocksHeld) => "00002735";
    ],
}
