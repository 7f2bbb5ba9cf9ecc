//! The outcome of sending a compound.

use crate::error::Violation;
use weir_nfs::v4::{Error as Nfs4Error, OpRes};
use weir_vfs::Layout;

/// The results of a compound, without SEQUENCE's.
pub(in crate::v4) struct Answer {
    /// The compound's status: OK, or the last result's error.
    pub(in crate::v4) status: std::result::Result<(), Nfs4Error>,
    /// The results of the operations, including the failed one; without the read's.
    pub(in crate::v4) results: Vec<OpRes>,
    /// The layout of a read, or the violation of the protocol in its results.
    pub(in crate::v4) read: Option<std::result::Result<Layout, Violation>>,
    /// The server may have executed the compound already, and this be its answer to the resent one.
    pub(in crate::v4) resent: bool,
}

/// The outcome of sending a compound once.
pub(in crate::v4) enum Step {
    Answered(Answer),
    /// Resend after a pause; with the answer, if there was one.
    Wait(Option<Answer>),
    /// Resend at once.
    Again,
    /// Resend in another session; says whether the server may have executed it already.
    Recover {
        resent: bool,
    },
}
