//! How a use of state fails, and the bounds on state.

/// Each way in which a client's use of state is wrong, or cannot be served now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    /// No state of that name, or not for this file or client.
    #[error("no such state")]
    BadStateId,
    /// The state has changed since.
    #[error("the stateid is of an earlier change")]
    OldStateId,
    /// The stateid is of an earlier run of the server.
    #[error("the stateid is of an earlier run of the server")]
    StaleStateId,
    /// No client of that number.
    #[error("no such client")]
    StaleClientId,
    /// An update names a client that is not confirmed.
    #[error("no confirmed client of that name")]
    NoSuchClient,
    /// An update is of another run of the client.
    #[error("the verifier is of another run of the client")]
    NotSameVerifier,
    /// An update, or a confirmation, by another principal.
    #[error("the client belongs to another principal")]
    NotSamePrincipal,
    /// A state is changed by a principal that neither opened the file nor speaks for the client.
    #[error("the state belongs to another principal")]
    NotTheOpener,
    /// A live client of another principal has that name.
    #[error("the name is in use by another principal's client")]
    ClientInUse,
    /// The client still has sessions or state.
    #[error("the client still has sessions or state")]
    ClientBusy,
    /// A table is full.
    #[error("the server keeps no more of these")]
    TooMany,
    /// Sizes of a channel that nothing fits.
    #[error("nothing useful fits the channel")]
    TooSmall,
    /// No session of that name.
    #[error("no such session")]
    BadSession,
    /// No such slot.
    #[error("no such slot")]
    BadSlot,
    /// A sequence number out of turn.
    #[error("the sequence number is out of turn")]
    Misordered,
    /// The reply asked for again was not kept.
    #[error("the reply was not kept")]
    Uncached,
    /// Another request than the one that had this sequence number.
    #[error("not the request that had this sequence number")]
    FalseRetry,
    /// The request is being executed.
    #[error("the request is being executed")]
    Busy,
    /// A share reservation is in the way.
    #[error("a share reservation is in the way")]
    ShareDenied,
    /// A share reservation forbids I/O without an open.
    #[error("a share reservation forbids this")]
    Locked,
    /// The file is not open for that.
    #[error("not open for that")]
    OpenMode,
    /// A downgrade to what was never opened.
    #[error("not a combination of earlier opens")]
    NotASubset,
    /// A delegation is in the way, and has to be recalled first.
    #[error("a delegation is in the way")]
    Delegated,
    /// The delegation was taken away because it was not given back.
    #[error("the delegation was revoked")]
    Revoked,
    /// The state was taken away after the lease was over.
    #[error("the lease was over, and another client wanted what was held")]
    Expired,
    /// The state was taken away because its export is served no more.
    #[error("what was held is of an export that is served no more")]
    AdminRevoked,
    /// Ranges are locked.
    #[error("ranges are locked")]
    LocksHeld,
    /// Not while clients reclaim what they had.
    #[error("not during grace")]
    Grace,
    /// There is nothing to reclaim any more.
    #[error("not in grace, or the client has nothing to reclaim")]
    NoGrace,
    /// It was taken away before the restart.
    #[error("it was taken away before the restart, and others may have had it since")]
    ReclaimDenied,
    /// The client must be on disk before it may have opens.
    #[error("the client is not on disk yet")]
    Unrecorded,
    /// RECLAIM_COMPLETE came before.
    #[error("reclaim was complete before")]
    CompleteAlready,
}
