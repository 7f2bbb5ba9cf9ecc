//! What a test comes to.

/// What the test of a rule came to, from good to bad.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// The server keeps it.
    Pass,
    /// The server is within its rights, but could do better, or does not support it.
    Note(String),
    /// The server breaks it; what was asked and what came.
    Fail(String),
}

/// Why a test could not go on.
pub(crate) type Error = Box<dyn std::error::Error + Send + Sync>;
pub(crate) type Result<T> = std::result::Result<T, Error>;
