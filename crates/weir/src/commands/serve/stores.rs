//! The directories being served, behind one page cache.
//!
//! 1. A directory is open once, however many exports it is behind: they share its pages.
//! 2. The server keeps them, not this table: one that is not exported any more is closed when the
//!    last call that uses it is done, so that it can be unmounted.

use super::state_dir;
use crate::config::Settings;
use std::collections::HashMap;
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
    /// Where each keeps what it knows of its files.
    state_dir: PathBuf,
    open: HashMap<PathBuf, WeakFs>,
}

impl Stores {
    /// No directories yet, and a cache of `budget_bytes`.
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

    /// The exports of a configuration, their directories opened.
    ///
    /// # Errors
    /// One cannot be opened; those that were open before still are.
    pub(super) fn exports(&mut self, settings: &Settings) -> Result<Vec<Export>> {
        warn_of_nested(settings);
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
        if let Some(fs) = self.open.get(dir).and_then(WeakFs::upgrade) {
            return Ok(fs);
        }
        let options = LocalOptions {
            state_dir: Some(self.state_dir.join(state_dir::name_of(dir))),
            ..LocalOptions::default()
        };
        let store = LocalFs::open(dir, options).asked(|| format!("serve {}", dir.display()))?;
        let fs = self.cache.mount(store);
        self.open.retain(|_, fs| fs.upgrade().is_some());
        self.open.insert(dir.to_owned(), fs.downgrade());
        Ok(fs)
    }
}

/// Says where the same files are served from two directories, of which each has pages of its own.
fn warn_of_nested(settings: &Settings) {
    for inner in &settings.exports {
        for outer in &settings.exports {
            if inner.dir != outer.dir && inner.dir.starts_with(&outer.dir) {
                warn!(
                    "{} is served within {} and by itself: each has a cache of its own, and what \
                     is changed through one is seen late through the other",
                    inner.dir.display(),
                    outer.dir.display()
                );
            }
        }
    }
}

/// Says when the key of all filehandles is served.
pub(super) fn warn_of_key(settings: &Settings, state_dir: &Path) {
    for export in settings.exports.iter().filter(|export| state_dir.starts_with(&export.dir)) {
        warn!(
            "the state directory {} is inside of {}, which is served, and the key to all \
             filehandles is in it; choose another one",
            state_dir.display(),
            export.dir.display()
        );
    }
}

/// What the server makes of exports that it cannot serve.
pub(super) fn refused(error: &weir_server::ServerError) -> Failure {
    Failure::new("serve", error.to_string())
}
