//! The directory of the control sockets: `$XDG_RUNTIME_DIR/weir`, for root `/run/weir`, else
//! `/tmp/weir-UID`.

use rustix::fs::{CWD, Mode, mkdirat};
use rustix::io::Errno;
use std::ffi::OsString;
use std::fs::Metadata;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Why the directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    /// It cannot be created or read.
    #[error("cannot use {}: {source}", path.display())]
    Io {
        /// The directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Others could put sockets there.
    #[error("{} is not a directory of user {uid} with mode 0700: remove it, or set XDG_RUNTIME_DIR", path.display())]
    NotPrivate {
        /// The directory.
        path: PathBuf,
        /// This user.
        uid: u32,
    },
}

/// The directory of this user's sockets.
pub fn socket_dir() -> PathBuf {
    let uid = rustix::process::geteuid().as_raw();
    usual(std::env::var_os("XDG_RUNTIME_DIR"), uid)
}

fn usual(runtime_dir: Option<OsString>, uid: u32) -> PathBuf {
    // The XDG base directory specification ignores relative paths.
    match runtime_dir.map(PathBuf::from).filter(|dir| dir.is_absolute()) {
        Some(dir) => dir.join("weir"),
        None if uid == 0 => "/run/weir".into(),
        None => format!("/tmp/weir-{uid}").into(),
    }
}

/// Creates the directory if it is missing, and verifies that only this user can enter it.
pub(crate) fn make(dir: &Path) -> Result<(), DirectoryError> {
    let in_dir = |source| DirectoryError::Io { path: dir.to_owned(), source };
    match mkdirat(CWD, dir, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(in_dir(error.into())),
    }
    verify(dir)
}

/// Verifies that only this user can enter the directory.
pub(crate) fn verify(dir: &Path) -> Result<(), DirectoryError> {
    let in_dir = |source| DirectoryError::Io { path: dir.to_owned(), source };
    let found = std::fs::symlink_metadata(dir).map_err(in_dir)?;
    let uid = rustix::process::geteuid().as_raw();
    match is_private(&found, uid) {
        true => Ok(()),
        false => Err(DirectoryError::NotPrivate { path: dir.to_owned(), uid }),
    }
}

fn is_private(found: &Metadata, uid: u32) -> bool {
    found.is_dir() && found.uid() == uid && found.permissions().mode() & 0o077 == 0
}

/// The process that a socket's name belongs to.
pub(crate) fn pid_of(socket: &Path) -> Option<u32> {
    socket.file_name()?.to_str()?.strip_suffix(".sock")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;

    #[test]
    fn the_usual_directory_depends_on_the_user() {
        assert_eq!(usual(Some("/run/user/7".into()), 7), Path::new("/run/user/7/weir"));
        assert_eq!(usual(Some("relative".into()), 0), Path::new("/run/weir"));
        assert_eq!(usual(None, 7), Path::new("/tmp/weir-7"));
    }

    #[test]
    fn a_directory_that_others_can_enter_is_refused() {
        let parent = tempfile::tempdir().unwrap();
        let dir = parent.path().join("weir");
        make(&dir).unwrap();
        make(&dir).unwrap();
        std::fs::set_permissions(&dir, Permissions::from_mode(0o710)).unwrap();
        assert!(matches!(make(&dir), Err(DirectoryError::NotPrivate { .. })));
        // A link of another user might lead to a private directory of this one.
        let link = parent.path().join("link");
        std::os::unix::fs::symlink(parent.path(), &link).unwrap();
        assert!(matches!(make(&link), Err(DirectoryError::NotPrivate { .. })));
        assert!(matches!(make(&dir.join("a/b")), Err(DirectoryError::Io { .. })));
    }

    #[test]
    fn names_of_sockets_are_process_ids() {
        assert_eq!(pid_of(Path::new("/run/weir/77.sock")), Some(77));
        assert_eq!(pid_of(Path::new("/run/weir/77.sock.tmp")), None);
        assert_eq!(pid_of(Path::new("/run/weir/x.sock")), None);
    }
}
