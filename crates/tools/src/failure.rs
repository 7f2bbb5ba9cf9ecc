//! Error messages for users: what was asked, what failed, and what to do.

use std::fmt;
use weir_vfs::Error;

/// Result of a command.
pub type Result<T, E = Failure> = std::result::Result<T, E>;

/// A failure: `cannot ASKED: FAILED; ADVICE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    asked: String,
    failed: String,
    advice: Option<String>,
}

impl Failure {
    /// A failure to do `asked` ("read x"); `failed` is the cause.
    pub fn new(asked: impl Into<String>, failed: impl Into<String>) -> Self {
        Self { asked: asked.into(), failed: failed.into(), advice: None }
    }

    /// A failure to do `asked` because of a store's error, with the usual advice for its kind.
    pub fn of(asked: impl Into<String>, error: Error) -> Self {
        let failure = Self::new(asked, error.to_string());
        match usual_advice(error) {
            Some(advice) => failure.advice(advice),
            None => failure,
        }
    }

    /// Whether this error of a store caused it.
    pub fn is_of(&self, error: Error) -> bool {
        self.failed == error.to_string()
    }

    /// Adds advice for the user.
    pub fn advice(mut self, advice: impl Into<String>) -> Self {
        self.advice = Some(advice.into());
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot {}: {}", self.asked, self.failed)?;
        match &self.advice {
            Some(advice) => write!(f, "; {advice}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Failure {}

/// Adds the requested action to an error.
pub trait Asked<T> {
    /// Turns the error into a [`Failure`] to do `asked()`, with the usual advice for its kind.
    fn asked(self, asked: impl FnOnce() -> String) -> Result<T>;
}

impl<T> Asked<T> for weir_vfs::Result<T> {
    fn asked(self, asked: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|error| Failure::of(asked(), error))
    }
}

impl<T> Asked<T> for std::io::Result<T> {
    fn asked(self, asked: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|error| match Error::from_errno(error.raw_os_error().unwrap_or(0)) {
            // No errno, or one without a variant: the system's own message says more.
            Error::Io => Failure::new(asked(), error.to_string()),
            named => Failure::of(asked(), named),
        })
    }
}

/// Advice for errors of this kind, if there is any.
pub fn usual_advice(error: Error) -> Option<&'static str> {
    let is_root = rustix::process::geteuid().is_root();
    Some(match error {
        Error::AccessDenied | Error::NotPermitted if is_root => {
            "an NFS server may treat root as an anonymous user (root_squash): name the files' \
             owner with -o uid=, or export without it (--squash none, no_root_squash)"
        }
        Error::NotFound => "check the path",
        Error::NameTooLong => "a name has at most 255 bytes; shorten it",
        Error::AccessDenied => "check its permissions, or run as a user who may",
        Error::NotPermitted => "run as its owner or as root",
        Error::NotDirectory => "a part of the path is not a directory",
        Error::NoSpace | Error::Quota => "free some space there, or choose another place",
        Error::ReadOnly => "mount or export it writable, or choose another place",
        Error::Stale => "another program removed it; list the directory again",
        Error::TimedOut => "check that the server runs and that its port can be reached",
        Error::TooManyOpen => "raise the limit on open files (ulimit -n)",
        Error::Loop => "a symbolic link leads back to itself",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_reports_request_cause_and_advice() {
        let failure = Err::<(), _>(Error::NotFound).asked(|| "read x".into()).unwrap_err();
        assert_eq!(failure.to_string(), "cannot read x: no such file or directory; check the path");
        let own = std::io::Error::other("odd");
        let failure = Err::<(), _>(own).asked(|| "read x".into()).unwrap_err();
        assert_eq!(failure.to_string(), "cannot read x: odd");
    }
}
