//! OPEN_DOWNGRADE (RFC 8881 section 18.18): reduces an open's access.

use super::open::{ShareAccess, ShareDeny};
use crate::macros::samples;
use crate::v4::error::Error;
use crate::v4::types::StateId;
use weir_xdr::xdr_struct;

xdr_struct! {
    /// What to keep.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Args {
        /// The open.
        pub open_stateid: StateId,
        /// The open owner's next sequence id (minor version 0).
        pub seqid: u32,
        /// Access from now on.
        pub share_access: ShareAccess,
        /// What others shall not do from now on.
        pub share_deny: ShareDeny,
    }
}

/// The open.
pub type Res = Result<StateId, Error>;

samples! {
    args: [
        Args {
            open_stateid: crate::v4::types::STATEID,
            seqid: 2,
            share_access: ShareAccess::READ,
            share_deny: ShareDeny::empty(),
        } => "00000007 61626364 65666768 696a6b6c 00000002 00000001 00000000",
    ],
    results: [
        Ok(crate::v4::types::STATEID) => "00000000 00000007 61626364 65666768 696a6b6c";
        Err(Error::Inval) => "00000016";
    ],
}
