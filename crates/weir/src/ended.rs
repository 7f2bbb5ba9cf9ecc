//! How a command ended, which becomes its exit code.

/// How a command that ran ended.
pub(crate) enum Ended {
    /// Everything that was asked for is done.
    Done,
    /// Something failed, and was said already.
    Failed,
    /// The user interrupted it.
    Interrupted,
    /// A command that was run for the user ended with this code.
    With(u8),
}
