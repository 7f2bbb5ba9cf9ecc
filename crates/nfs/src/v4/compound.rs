//! COMPOUND and CB_COMPOUND (RFC 8881 sections 16.2 and 20.2): the frame around operations.
//!
//! Operations are decoded and executed one by one, because an unknown one makes the rest
//! undecodable: the reply holds the results up to and including the first failure.

use super::types::{Name, Status};
use weir_xdr::xdr_struct;

xdr_struct! {
    /// What comes before the operations.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct CompoundHeader {
        /// For the client's own use; returned unchanged.
        pub tag: Name,
        /// Minor version.
        pub minor_version: u32,
        /// Operations that follow.
        pub operations: u32,
    }

    /// What comes before the results.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct CompoundResHeader {
        /// Status of the last operation done.
        pub status: Status,
        /// The call's.
        pub tag: Name,
        /// Results that follow.
        pub results: u32,
    }

    /// The part before a callback's operations; its results begin like a compound's.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct CbCompoundHeader {
        /// For the server's own use; returned unchanged.
        pub tag: Name,
        /// Minor version.
        pub minor_version: u32,
        /// Which client (minor version 0).
        pub callback_ident: u32,
        /// Operations that follow.
        pub operations: u32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::v4::error::Error;
    use weir_xdr::sample::check;

    #[test]
    fn samples() {
        check(
            &CompoundHeader { tag: "ab".into(), minor_version: 2, operations: 3 },
            "00000002 61620000 00000002 00000003",
        );
        check(
            &CompoundResHeader { status: Err(Error::Stale), tag: "".into(), results: 1 },
            "00000046 00000000 00000001",
        );
        check(
            &CbCompoundHeader {
                tag: "".into(),
                minor_version: 1,
                callback_ident: 7,
                operations: 2,
            },
            "00000000 00000001 00000007 00000002",
        );
    }
}
