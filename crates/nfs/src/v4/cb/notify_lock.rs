//! CB_NOTIFY_LOCK (RFC 8881 section 20.11): a lock that the client wanted may be available.

use crate::macros::samples;
use crate::v4::types::{FileHandle, StateOwner, Status};
use weir_xdr::xdr_struct;

xdr_struct! {
    /// Which lock.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Args {
        /// The file.
        pub file: FileHandle,
        /// Who wanted it.
        pub lock_owner: StateOwner,
    }
}

/// Nothing more.
pub type Res = Status;

samples! {
    args: [
        Args { file: "fh".into(), lock_owner: StateOwner { client_id: 9, owner: "own".into() } } =>
            "00000002 66680000 00000000 00000009 00000003 6f776e00",
    ],
    results: [
        Ok(()) => "00000000";
        Err(crate::v4::error::Error::BadHandle) => "00002711";
    ],
}
