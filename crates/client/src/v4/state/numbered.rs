//! Numbered requests of minor version 0: which owner's numbers they use, and those that were not answered.

use crate::protocol::OpenLockOwner;
use weir_nfs::v4::Op;
use weir_rpc::OpaqueAuth;

/// The owner that a request is numbered by, where requests are numbered.
#[derive(Clone, Copy, Debug)]
pub(in crate::v4) enum Counted {
    Open,
    Lock(OpenLockOwner),
}

/// A request that is numbered and not answered.
pub(in crate::v4) struct Unanswered {
    pub(super) cred: OpaqueAuth,
    pub(super) operation: &'static str,
    pub(super) ops: Vec<Op>,
    pub(super) counted: Counted,
}
