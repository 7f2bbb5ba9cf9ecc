//! How a command ended, which becomes its exit code.

/// The result of a command that ran.
pub(crate) enum Ended {
    /// The command did everything requested.
    Done,
    /// Something failed, and was already reported.
    Failed,
    /// The user interrupted it.
    Interrupted,
    /// The command that `weir lock` ran ended with this code.
    With(u8),
}
