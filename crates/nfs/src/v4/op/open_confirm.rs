//! OPEN_CONFIRM (RFC 7530 section 16.18): confirms a new open owner.

use crate::macros::samples;
use crate::v4::error::Error;
use crate::v4::types::StateId;
use weir_xdr::xdr_struct;

xdr_struct! {
    /// What to confirm.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Args {
        /// The open.
        pub open_stateid: StateId,
        /// The open owner's next number.
        pub seqid: u32,
    }
}

/// The open.
pub type Res = Result<StateId, Error>;

samples! {
    args: [
        Args { open_stateid: crate::v4::types::STATEID, seqid: 2 } =>
            "00000007 61626364 65666768 696a6b6c 00000002",
    ],
    results: [
        Ok(crate::v4::types::STATEID) => "00000000 00000007 61626364 65666768 696a6b6c";
        Err(Error::BadSeqId) => "0000272a";
    ],
}
