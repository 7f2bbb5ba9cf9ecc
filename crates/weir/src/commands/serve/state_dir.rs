//! The directory for state that survives a restart. It holds the key to all filehandles, so only the
//! server's own user may read it.

use std::fs::{DirBuilder, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use weir_tools::failure::{Asked, Failure, Result};

/// The given directory or the default one, created if it does not exist. `below` names one server's
/// state in the default directory.
pub(super) fn make(asked: Option<&Path>, below: Option<&str>) -> Result<PathBuf> {
    let dir = match asked {
        Some(dir) => dir.to_owned(),
        None => {
            let usual = usual(
                rustix::process::geteuid().is_root(),
                std::env::var_os("XDG_STATE_HOME").map(PathBuf::from),
                std::env::home_dir(),
            );
            let usual = usual.ok_or_else(|| {
                let asked = "choose a directory for the server's state";
                Failure::new(asked, "there is no home directory")
                    .advice("name one with --state-dir")
            })?;
            below.map_or(usual.clone(), |name| usual.join(name))
        }
    };
    let shown = dir.display();
    make_private(&dir).map_err(|error| {
        Failure::new(format!("use the state directory {shown}"), error.to_string())
    })?;
    dir.canonicalize().asked(|| format!("find the state directory {shown}"))
}

/// Creates the directory and its parents, private to this user, or verifies that it is private.
///
/// # Errors
/// It cannot be created; or it exists and other users own it or can read it: the error says what to do.
fn make_private(path: &Path) -> io::Result<()> {
    if let Some(above) = path.parent() {
        std::fs::create_dir_all(above)?;
    }
    match DirBuilder::new().mode(0o700).create(path) {
        // The umask may have cleared bits.
        Ok(()) => return std::fs::set_permissions(path, Permissions::from_mode(0o700)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(error),
    }
    let found = std::fs::metadata(path)?;
    let refused = |why: String| Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    if !found.is_dir() {
        return Err(io::ErrorKind::NotADirectory.into());
    }
    let own = rustix::process::geteuid().as_raw();
    if found.uid() != own {
        return refused(format!(
            "it belongs to user {}, not to user {own}, which runs the server: choose another directory, \
             or chown it",
            found.uid()
        ));
    }
    let mode = found.mode() & 0o7777;
    if mode & 0o077 != 0 {
        return refused(format!(
            "its mode is {mode:04o}, so other users can reach the key to all filehandles in it: \
             chmod 0700 {}",
            path.display()
        ));
    }
    Ok(())
}

fn usual(root: bool, xdg: Option<PathBuf>, home: Option<PathBuf>) -> Option<PathBuf> {
    if root {
        return Some("/var/lib/weir".into());
    }
    // The XDG base directory specification ignores relative paths.
    let base = xdg.filter(|p| p.is_absolute()).or_else(|| Some(home?.join(".local/state")))?;
    Some(base.join("weir"))
}

/// A unique name for a directory's state: its own name, and a hash of its path.
pub(super) fn name_of(dir: &Path) -> String {
    let hash = dir.as_os_str().as_bytes().iter().fold(0xCBF2_9CE4_8422_2325_u64, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3)
    });
    let name = dir.file_name().map_or_else(|| "root".into(), |n| n.to_string_lossy());
    let plain = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '_' };
    let name: String = name.chars().take(64).map(plain).collect();
    format!("{name}-{hash:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_state_directory_follows_the_system() {
        let home = || Some("/home/me".into());
        let dir = |root, xdg: Option<&str>, home| usual(root, xdg.map(PathBuf::from), home);
        assert_eq!(dir(true, None, home()), Some("/var/lib/weir".into()));
        assert_eq!(dir(false, Some("/x"), home()), Some("/x/weir".into()));
        assert_eq!(dir(false, Some("x"), home()), Some("/home/me/.local/state/weir".into()));
        assert_eq!(dir(false, None, None), None);
    }

    #[test]
    fn every_directory_has_its_own_state() {
        let name = |dir: &str| name_of(Path::new(dir));
        assert_ne!(name("/a/b"), name("/c/b"));
        assert!(name("/srv/my files").starts_with("my_files-"));
        assert!(name("/").starts_with("root-"));
    }

    #[test]
    fn a_state_directory_is_private_or_refused() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("a/state");
        make_private(&state).unwrap();
        assert_eq!(state.metadata().unwrap().mode() & 0o7777, 0o700);
        make_private(&state).unwrap();
        for mode in [0o750, 0o701, 0o777] {
            std::fs::set_permissions(&state, Permissions::from_mode(mode)).unwrap();
            let refused = make_private(&state).unwrap_err().to_string();
            assert!(refused.contains("chmod 0700"), "{refused}");
        }
    }
}
