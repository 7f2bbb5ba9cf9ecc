//! The result of a test.

/// The result of testing a rule, ordered from best to worst.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// The server keeps the rule.
    Pass,
    /// The server is within its rights, but could do better, or lacks the feature.
    Note(String),
    /// The server breaks the rule. Gives the request and the answer.
    Fail(String),
}

/// Why a test could not continue.
pub(crate) type Error = Box<dyn std::error::Error + Send + Sync>;
pub(crate) type Result<T> = std::result::Result<T, Error>;
