//! Errors of the trait for those of files.

use object_store::path::Path;
use object_store::{Error, Result};
use std::io::{self, ErrorKind};

/// The error of an operation on an object.
pub(crate) fn failed(location: &Path, error: io::Error) -> Error {
    let (path, kind) = (location.to_string(), error.kind());
    let source = error.into();
    match kind {
        // No directory is an object, and none is below one.
        ErrorKind::NotFound | ErrorKind::IsADirectory | ErrorKind::NotADirectory => {
            Error::NotFound { path, source }
        }
        ErrorKind::AlreadyExists => Error::AlreadyExists { path, source },
        ErrorKind::PermissionDenied => Error::PermissionDenied { path, source },
        _ => Error::Generic { store: "NFS", source },
    }
}

/// A name that no object may have.
pub(crate) fn refused(location: &Path, reason: &str) -> Error {
    Error::Generic { store: "NFS", source: format!("{location}: {reason}").into() }
}

/// `None` if the file does not exist.
pub(crate) fn found<T>(outcome: io::Result<T>) -> Result<Option<T>, io::Error> {
    match outcome {
        Ok(found) => Ok(Some(found)),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}
