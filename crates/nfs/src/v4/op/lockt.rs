//! LOCKT (RFC 8881 section 18.11): tests for a conflicting lock.

use crate::macros::samples;
use crate::v4::error::Detailed;
use crate::v4::types::{LockDenied, LockType, StateOwner};
use weir_xdr::xdr_struct;

xdr_struct! {
    /// The lock that would be asked for.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Args {
        /// Kind of lock.
        pub kind: LockType,
        /// First byte.
        pub offset: u64,
        /// Length; all ones: to the end of the file.
        pub length: u64,
        /// Whose own locks do not count.
        pub owner: StateOwner,
    }
}

/// No lock conflicts; if denied, the conflicting lock.
pub type Res = Result<(), Detailed<LockDenied>>;

samples! {
    args: [
        Args {
            kind: LockType::Write,
            offset: 1,
            length: 2,
            owner: StateOwner { client_id: 9, owner: "own".into() },
        } => "00000002 00000000 00000001 00000000 00000002 00000000 00000009 00000003 6f776e00",
    ],
    results: [
        Ok(()) => "00000000";
        Err(Detailed::Detail(LockDenied {
            offset: 0,
            length: u64::MAX,
            kind: LockType::Read,
            owner: StateOwner { client_id: 10, owner: "own".into() },
        })) => "0000271a 00000000 00000000 ffffffff ffffffff 00000001
            00000000 0000000a 00000003 6f776e00", variable 4;
        Err(Detailed::Plain(crate::v4::error::Error::Inval)) => "00000016";
    ],
}
