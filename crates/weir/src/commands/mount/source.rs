//! The store that is mounted.

use crate::commands::in_place;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::runtime::Handle;
use weir_client::{MountOptions, NfsFs};
use weir_stores::local::{LocalFs, LocalOptions};
use weir_tools::failure::{Asked, Failure, Result};
use weir_tools::location::Location;
use weir_tools::mounts::mount_failure;
use weir_vfs::FileSystem;

/// A store, and where it is on this machine.
pub(super) struct Source {
    pub(super) store: Arc<dyn FileSystem>,
    /// The directory, if it is one of this machine.
    pub(super) local: Option<PathBuf>,
}

/// Opens the store for a mount on `dir`, if that is known.
pub(super) async fn open(
    source: &Location,
    dir: Option<&PathBuf>,
    options: &MountOptions,
) -> Result<Source> {
    match source {
        Location::Local(path) => {
            let (path, dir) = (path.clone(), dir.cloned());
            // A disk that does not answer holds up no signal.
            let opened = tokio::task::spawn_blocking(move || local(&path, dir.as_deref())).await;
            opened.map_err(std::io::Error::other).asked(|| format!("mount {source}"))?
        }
        Location::Nfs(url) => {
            let mounted = NfsFs::mount_on(Handle::current(), url, options).await;
            let store = mounted.map_err(|error| mount_failure(url, &error))?;
            Ok(Source { store, local: None })
        }
    }
}

fn local(path: &Path, dir: Option<&Path>) -> Result<Source> {
    let asked = || format!("mount {}", path.display());
    let real = path.canonicalize().asked(asked)?;
    if let Some(Ok(dir)) = dir.map(|dir| dir.canonicalize())
        && dir != real
        && dir.starts_with(&real)
    {
        let failed = format!("{} is inside {}", dir.display(), real.display());
        let failure = Failure::new(asked(), failed);
        return Err(failure.advice("the mount would contain itself; name another directory"));
    }
    let options = LocalOptions { in_place, ..LocalOptions::default() };
    let store = LocalFs::open(&real, options).asked(asked)?;
    Ok(Source { store, local: Some(real) })
}
