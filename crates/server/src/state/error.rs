//! Errors of operations on state.

/// An invalid use of state, or one that the server cannot serve now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum StateError {
    /// There is no such state, or it belongs to another file or client.
    #[error("no such state")]
    BadStateId,
    /// The state has a higher sequence number by now.
    #[error("the stateid is outdated")]
    OldStateId,
    /// The stateid is of an earlier run of the server.
    #[error("the stateid is of an earlier run of the server")]
    StaleStateId,
    /// There is no such client.
    #[error("no such client")]
    StaleClientId,
    /// The update names no confirmed client.
    #[error("no confirmed client of that name")]
    NoSuchClient,
    /// The update is for another incarnation of the client.
    #[error("the verifier is of another run of the client")]
    NotSameVerifier,
    /// An update, or a confirmation, by another principal.
    #[error("the client belongs to another principal")]
    NotSamePrincipal,
    /// The principal that changes a state neither opened the file nor created the client.
    #[error("the state belongs to another principal")]
    NotTheOpener,
    /// A live client of another principal has that name.
    #[error("the name is in use by another principal's client")]
    ClientInUse,
    /// The client still has sessions or state.
    #[error("the client still has sessions or state")]
    ClientBusy,
    /// A table is full.
    #[error("the server's limit is reached")]
    TooMany,
    /// The sizes of a channel leave no room for a useful request or reply.
    #[error("the channel is too small for any useful request")]
    TooSmall,
    /// There is no such session.
    #[error("no such session")]
    BadSession,
    /// No such slot.
    #[error("no such slot")]
    BadSlot,
    /// A sequence number that is neither the next nor the last one.
    #[error("the sequence number is out of turn")]
    Misordered,
    /// The client asks for a reply that was not kept.
    #[error("the reply was not kept")]
    Uncached,
    /// Another request was executed under this sequence number.
    #[error("not the request that had this sequence number")]
    FalseRetry,
    /// The request is being executed.
    #[error("the request is being executed")]
    Busy,
    /// The request conflicts with a share reservation.
    #[error("a share reservation conflicts")]
    ShareDenied,
    /// A share reservation forbids I/O without an open.
    #[error("a share reservation forbids this")]
    Locked,
    /// The file is not open for this access.
    #[error("not open for this access")]
    OpenMode,
    /// A downgrade to a combination that was never opened.
    #[error("not a combination of earlier opens")]
    NotASubset,
    /// A delegation conflicts and must be recalled first.
    #[error("a delegation conflicts")]
    Delegated,
    /// The delegation was revoked because it was not returned in time.
    #[error("the delegation was revoked")]
    Revoked,
    /// The state was revoked after the lease expired.
    #[error("the lease expired, and another client needed what was held")]
    Expired,
    /// The state was revoked because its export is no longer served.
    #[error("the export is no longer served")]
    AdminRevoked,
    /// The state still holds byte-range locks, or is not a lock state.
    #[error("ranges are locked")]
    LocksHeld,
    /// Not permitted during the grace period.
    #[error("not during the grace period")]
    Grace,
    /// The client cannot reclaim: there is no grace period, or it has nothing to reclaim.
    #[error("no grace period, or the client has nothing to reclaim")]
    NoGrace,
    /// The state was revoked before the restart, so others may have held it since; or it has been
    /// reclaimed in another mode.
    #[error("revoked before the restart, or reclaimed in another mode")]
    ReclaimDenied,
    /// The client must be on disk before it may have opens.
    #[error("the client is not recorded on disk yet")]
    Unrecorded,
    /// Changes of client records must be on disk before anything is granted.
    #[error("changes of client records are not on disk yet")]
    Unsettled,
    /// The client has already sent RECLAIM_COMPLETE.
    #[error("the client has already completed its reclaims")]
    CompleteAlready,
}
