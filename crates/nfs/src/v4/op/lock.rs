//! LOCK (RFC 8881 section 18.10): locks a range.

use crate::macros::samples;
use crate::v4::error::Error;
use crate::v4::error::{Detail, Detailed};
use crate::v4::types::{LockDenied, LockType, StateId, StateOwner};
use weir_xdr::{xdr_struct, xdr_union};

xdr_struct! {
    /// What to lock, and for whom.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Args {
        /// Kind of lock.
        pub kind: LockType,
        /// The lock was held before the server restarted.
        pub reclaim: bool,
        /// First byte.
        pub offset: u64,
        /// Length; all ones: to the end of the file.
        pub length: u64,
        /// Who.
        pub locker: Locker,
    }

    /// A lock owner without locks on the file yet (`open_to_lock_owner4`).
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct NewLocker {
        /// The open owner's next sequence id (minor version 0).
        pub open_seqid: u32,
        /// The open that the lock goes with.
        pub open_stateid: StateId,
        /// The lock owner's next sequence id (minor version 0).
        pub lock_seqid: u32,
        /// The lock owner.
        pub lock_owner: StateOwner,
    }

    /// A lock owner that has a stateid for the file (`exist_lock_owner4`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct ExistingLocker {
        /// Its locks.
        pub lock_stateid: StateId,
        /// The lock owner's next sequence id (minor version 0).
        pub lock_seqid: u32,
    }
}

xdr_union! {
    /// Who locks.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub enum Locker {
        /// A lock owner that has a stateid for the file.
        Existing(ExistingLocker) = 0,
        /// A lock owner that has none.
        New(NewLocker) = 1,
    }
}

impl Detail for LockDenied {
    const ERROR: Error = Error::Denied;
}

/// The stateid of the owner's locks on the file; if denied, the conflicting lock.
pub type Res = Result<StateId, Detailed<LockDenied>>;

samples! {
    args: [
        Args {
            kind: LockType::WriteWaiting,
            reclaim: false,
            offset: 1,
            length: u64::MAX,
            locker: Locker::New(NewLocker {
                open_seqid: 2,
                open_stateid: crate::v4::types::STATEID,
                lock_seqid: 3,
                lock_owner: StateOwner { client_id: 9, owner: "own".into() },
            }),
        } => "00000004 00000000 00000000 00000001 ffffffff ffffffff 00000001
            00000002 00000007 61626364 65666768 696a6b6c 00000003
            00000000 00000009 00000003 6f776e00",
        Args {
            kind: LockType::Read,
            reclaim: true,
            offset: 0,
            length: 16,
            locker: Locker::Existing(ExistingLocker {
                lock_stateid: crate::v4::types::STATEID,
                lock_seqid: 4,
            }),
        } => "00000001 00000001 00000000 00000000 00000000 00000010 00000000
            00000007 61626364 65666768 696a6b6c 00000004",
    ],
    results: [
        Ok(crate::v4::types::STATEID) => "00000000 00000007 61626364 65666768 696a6b6c";
        Err(Detailed::Detail(LockDenied {
            offset: 1,
            length: 2,
            kind: LockType::Write,
            owner: StateOwner { client_id: 9, owner: "owner".into() },
        })) => "0000271a 00000000 00000001 00000000 00000002 00000002
            00000000 00000009 00000005 6f776e65 72000000", variable 8;
        Err(Detailed::Plain(Error::Grace)) => "0000271d";
    ],
}
