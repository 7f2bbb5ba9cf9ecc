//! What comes of sending a compound.

use crate::error::Violation;
use weir_nfs::v4::{Error as Nfs4Error, OpRes};
use weir_vfs::Layout;

/// The results of a compound, without SEQUENCE's.
pub(in crate::v4) struct Answer {
    /// How it ended: OK, or the last result's error.
    pub(in crate::v4) status: std::result::Result<(), Nfs4Error>,
    /// What the operations returned, the failed one included; not the read's.
    pub(in crate::v4) results: Vec<OpRes>,
    /// What a read found, or how its results broke the protocol.
    pub(in crate::v4) read: Option<std::result::Result<Layout, Violation>>,
    /// The server may have executed the compound before, and this be its answer to a repetition.
    pub(in crate::v4) resent: bool,
}

/// What came of sending a compound once.
pub(in crate::v4) enum Step {
    Answered(Answer),
    /// To be sent again after a pause; the answer, where there was one.
    Wait(Option<Answer>),
    /// To be sent again at once.
    Again,
    /// To be sent again in another session; whether the server may have executed it already.
    Recover {
        resent: bool,
    },
}
