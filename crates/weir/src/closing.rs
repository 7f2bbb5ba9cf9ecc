//! Closes a descriptor without losing the file system's last word.
//!
//! Sound because the descriptor is owned, and nothing uses its number afterwards.
#![allow(unsafe_code, reason = "neither std nor rustix returns the error of close(2)")]

use std::io;
use std::os::fd::{IntoRawFd, OwnedFd};

/// Closes a descriptor. NFS and FUSE may write data only now, and report its loss here alone, to the first duplicate
/// that is closed. Source: close(2), "Dealing with error returns from close()".
///
/// # Errors
/// Those of close(2); the descriptor is closed all the same.
pub(crate) fn close(descriptor: impl Into<OwnedFd>) -> io::Result<()> {
    // SAFETY: see the header.
    match unsafe { libc::close(descriptor.into().into_raw_fd()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn a_descriptor_is_closed_once() {
        let (file, mut other) = io::pipe().unwrap();
        close(file).unwrap();
        let error = io::Write::write(&mut other, b"x").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
        close(File::open("/dev/null").unwrap()).unwrap();
    }
}
