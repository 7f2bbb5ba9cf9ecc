//! Where the server keeps what must survive a restart.

use crate::failure::{Asked, Failure, Result};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The directory asked for, or the usual one; made if it is not there. `below` is the name in it
/// of one of several servers' state.
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
    std::fs::create_dir_all(&dir).asked(|| format!("make the state directory {shown}"))?;
    dir.canonicalize().asked(|| format!("find the state directory {shown}"))
}

fn usual(root: bool, xdg: Option<PathBuf>, home: Option<PathBuf>) -> Option<PathBuf> {
    if root {
        return Some("/var/lib/weir".into());
    }
    // The base directory specification has relative paths ignored.
    let base = xdg.filter(|p| p.is_absolute()).or_else(|| Some(home?.join(".local/state")))?;
    Some(base.join("weir"))
}

/// A name for a directory's state: of the directory's own name, and a hash of its whole path, so
/// that no two are alike.
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
    fn state_is_kept_where_the_system_wants_it() {
        let home = || Some("/home/me".into());
        let dir = |root, xdg: Option<&str>, home| usual(root, xdg.map(PathBuf::from), home);
        assert_eq!(dir(true, None, home()), Some("/var/lib/weir".into()));
        assert_eq!(dir(false, Some("/x"), home()), Some("/x/weir".into()));
        assert_eq!(dir(false, Some("x"), home()), Some("/home/me/.local/state/weir".into()));
        assert_eq!(dir(false, None, None), None);
    }

    #[test]
    fn every_directory_has_a_state_of_its_own() {
        let name = |dir: &str| name_of(Path::new(dir));
        assert_ne!(name("/a/b"), name("/c/b"));
        assert!(name("/srv/my files").starts_with("my_files-"));
        assert!(name("/").starts_with("root-"));
    }
}
