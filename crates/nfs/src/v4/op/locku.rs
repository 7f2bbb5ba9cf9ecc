//! LOCKU (RFC 8881 section 18.12): unlocks a range.

use crate::macros::samples;
use crate::v4::error::Error;
use crate::v4::types::{LockType, StateId};
use weir_xdr::xdr_struct;

xdr_struct! {
    /// What to unlock.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Args {
        /// Kind of lock; need not be that of the locks in the range.
        pub kind: LockType,
        /// The lock owner's next sequence id (minor version 0).
        pub seqid: u32,
        /// The owner's locks on the file.
        pub lock_stateid: StateId,
        /// First byte.
        pub offset: u64,
        /// Length; all ones: to the end of the file.
        pub length: u64,
    }
}

/// The stateid of the owner's locks on the file.
pub type Res = Result<StateId, Error>;

samples! {
    args: [
        Args {
            kind: LockType::Read,
            seqid: 2,
            lock_stateid: crate::v4::types::STATEID,
            offset: 1,
            length: u64::MAX,
        } => "00000001 00000002 00000007 61626364 65666768 696a6b6c
            00000000 00000001 ffffffff ffffffff",
    ],
    results: [
        Ok(crate::v4::types::STATEID) => "00000000 00000007 61626364 65666768 696a6b6c";
        Err(Error::LockRange) => "0000272c";
    ],
}
