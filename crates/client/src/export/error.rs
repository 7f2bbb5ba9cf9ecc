//! The error of an operation by path.

use crate::Error;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Why an operation by path failed: what was asked, of which file of which export, and the
/// [`Error`] of the client, which names the server, the protocol's operation and its status.
///
/// The operations return it within an [`io::Error`], whose kind is that of the errno.
///
/// ```
/// # fn report(error: &std::io::Error) {
/// use weir_client::{Error, PathError};
///
/// if let Some(failure) = PathError::of(error)
///     && let Error::Status { server, status, .. } = failure.cause()
/// {
///     eprintln!("{} of {:?}: {server} says {status}", failure.operation(), failure.path());
/// }
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct PathError {
    pub(super) operation: &'static str,
    pub(super) path: PathBuf,
    pub(super) to: Option<PathBuf>,
    pub(super) export: Arc<str>,
    pub(super) cause: Error,
}

impl PathError {
    /// The details of an error that an operation by path returned.
    pub fn of(error: &io::Error) -> Option<&Self> {
        error.get_ref()?.downcast_ref()
    }

    /// What was asked: "open", "rename" and so on.
    pub fn operation(&self) -> &'static str {
        self.operation
    }

    /// The path, as the caller gave it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The second path of a rename, copy or link.
    pub fn to(&self) -> Option<&Path> {
        self.to.as_deref()
    }

    /// What the client saw.
    pub fn cause(&self) -> &Error {
        &self.cause
    }

    /// The closest errno of Linux.
    pub fn errno(&self) -> i32 {
        self.cause.to_vfs().errno()
    }
}

impl fmt::Display for PathError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { operation, path, to, export, cause } = self;
        write!(f, "cannot {operation} {path:?}")?;
        if let Some(to) = to {
            write!(f, " to {to:?}")?;
        }
        write!(f, " in {export}: {cause}")
    }
}

impl std::error::Error for PathError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.cause)
    }
}

impl From<PathError> for io::Error {
    fn from(error: PathError) -> Self {
        Self::new(Self::from_raw_os_error(error.errno()).kind(), error)
    }
}
