//! The stores of the served directories, behind one page cache.
//!
//! 1. Exports of the same directory share one store and its pages, but not what clients hold.
//! 2. The server owns the stores, not this table: a store that is no longer exported is closed when
//!    the last call that uses it ends and its data is written, so that its file system can be unmounted.

use super::state_dir;
use crate::commands::in_place;
use crate::config::Settings;
use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use tracing::warn;
use weir_pagecache::{Cache, CachedFs, Config, WeakFs};
use weir_server::export::Export;
use weir_stores::local::{LocalFs, LocalOptions};
use weir_tools::failure::{Asked, Failure, Result};
use weir_tools::memory::{READAHEAD_BYTES, most_bytes};
use weir_tools::text::size_text;

pub(super) struct Stores {
    cache: Cache,
    /// The directory for the stores' logs of file identities.
    state_dir: PathBuf,
    /// The stores, and how many directories each may keep open.
    open: HashMap<PathBuf, (WeakFs, usize)>,
}

impl Stores {
    /// An empty table, with a cache of `budget_bytes`.
    pub(super) fn new(budget_bytes: u64, state_dir: &Path) -> Result<Self> {
        let config = Config {
            budget_bytes,
            max_budget_bytes: most_bytes(),
            readahead_bytes: READAHEAD_BYTES,
            ..Config::default()
        };
        let cache = Cache::new(config)
            .asked(|| format!("set up a page cache of {}", size_text(budget_bytes)))?;
        Ok(Self { cache, state_dir: state_dir.join("files"), open: HashMap::new() })
    }

    pub(super) fn cache(&self) -> &Cache {
        &self.cache
    }

    /// The stores that are open.
    pub(super) fn mounted(&self) -> Vec<CachedFs> {
        self.open.values().filter_map(|(fs, _)| fs.upgrade()).collect()
    }

    /// Opens the directories of a configuration, and returns its exports.
    ///
    /// # Errors
    /// A directory cannot be opened; those that were open before stay open.
    pub(super) fn exports(&mut self, settings: &Settings) -> Result<Vec<Export>> {
        warn_of_overlapping(settings);
        let mut exports = Vec::new();
        for export in &settings.exports {
            exports.push(Export {
                path: export.name.clone(),
                source: export.dir.clone(),
                fs: self.open(&export.dir)?,
                options: settings.options(export),
            });
        }
        Ok(exports)
    }

    fn open(&mut self, dir: &Path) -> Result<CachedFs> {
        self.open.retain(|_, (fs, _)| fs.upgrade().is_some());
        if let Some(fs) = self.open.get(dir).and_then(|(fs, _)| fs.upgrade()) {
            return Ok(fs);
        }
        let dir_fds = self.directories_of_next();
        let options = LocalOptions {
            dir_fds: Some(dir_fds),
            state_dir: Some(self.state_dir.join(state_dir::name_of(dir))),
            in_place,
            ..LocalOptions::default()
        };
        let store = LocalFs::open(dir, options).asked(|| format!("serve {}", dir.display()))?;
        let fs = self.cache.mount(store);
        self.open.insert(dir.to_owned(), (fs.downgrade(), dir_fds));
        Ok(fs)
    }

    /// How many directories the next store may keep open: half of what the others leave, so that
    /// there are some for every store.
    fn directories_of_next(&self) -> usize {
        let used: usize = self.open.values().map(|(_, dir_fds)| dir_fds).sum();
        (weir_server::directory_descriptors().saturating_sub(used) / 2).clamp(1, 4096)
    }
}

/// Warns if two exports contain the same files: what clients hold by one name does not bind those that use the other.
/// Each directory has its own pages.
fn warn_of_overlapping(settings: &Settings) {
    for (at, inner) in settings.exports.iter().enumerate() {
        for outer in &settings.exports[..at] {
            if inner.dir == outer.dir {
                warn!(
                    "{} is served as {} and as {}: deny modes of one do not hold in the other, and \
                     files are not delegated to clients",
                    inner.dir.display(),
                    outer.name,
                    inner.name
                );
            }
        }
        for outer in &settings.exports {
            let is_inside = inner.dir != outer.dir && inner.dir.starts_with(&outer.dir);
            if is_inside && are_of_one_file_system(&inner.dir, &outer.dir) {
                warn!(
                    "{} is served both inside {} and on its own: they have separate caches, so \
                     changes through one show late in the other; deny modes of one do not hold in \
                     the other, and files are not delegated to clients",
                    inner.dir.display(),
                    outer.dir.display()
                );
            }
        }
    }
}

/// A store does not go beyond its file system.
fn are_of_one_file_system(a: &Path, b: &Path) -> bool {
    let device = |dir: &Path| dir.metadata().map(|found| found.dev()).ok();
    device(a) == device(b)
}

/// Warns if an export contains the key to all filehandles.
pub(super) fn warn_of_key(settings: &Settings, state_dir: &Path) {
    for export in settings.exports.iter().filter(|export| state_dir.starts_with(&export.dir)) {
        warn!(
            "the state directory {} is inside the export {}, so clients can read the key to all \
             filehandles; choose another one",
            state_dir.display(),
            export.dir.display()
        );
    }
}

/// The failure for exports that the server refuses.
pub(super) fn refused(error: &weir_server::ServerError) -> Failure {
    Failure::new("serve", error.to_string())
}
