//! Page caches under measurement, and files opened through them.

use std::path::Path;
use weir_pagecache::{Cache, Config, File};
use weir_stores::local::{LocalFs, LocalOptions};
use weir_tools::failure::{Asked, Failure, Result};
use weir_tools::text::size_text;
use weir_vfs::{Access, Caller, FileSystem};

/// A cache with more than enough room for a file of this size.
pub(crate) fn new_cache(size: u64) -> Result<Cache> {
    let config = Config { budget_bytes: size + size / 8 + (64 << 20), ..Config::default() };
    Cache::new(config).asked(|| format!("set up a page cache for {}", size_text(size)))
}

/// Opens a file of a directory through a cache.
pub(crate) fn open(cache: &Cache, path: &Path) -> Result<File> {
    open_for(cache, path, Access::READ)
}

/// Opens a file of a directory through a cache with this access.
pub(crate) fn open_for(cache: &Cache, path: &Path, access: Access) -> Result<File> {
    let (dir, name) = match (path.parent(), path.file_name()) {
        (Some(dir), Some(name)) => (dir, name.as_encoded_bytes()),
        _ => return Err(Failure::new("open a file", "it has no name")),
    };
    let asked = || format!("open {}", path.display());
    let store = LocalFs::open(dir, LocalOptions::default()).asked(asked)?;
    let root = store.root();
    let fs = cache.mount(store);
    let open = async {
        let id = fs.lookup(&Caller::Own, root.entry(name)).await?.id;
        fs.open(&Caller::Own, id, access).await
    };
    futures_util::FutureExt::now_or_never(open).unwrap_or(Err(weir_vfs::Error::Io)).asked(asked)
}
