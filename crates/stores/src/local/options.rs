//! Options of a local store.

use super::data::engine::IoEngine;
use std::path::PathBuf;

/// How a program makes a call that may hold its thread up: it calls the closure exactly once, on the same
/// thread, before it returns.
///
/// A thread that has other work hands it on first. With tokio's multi-threaded runtime, `tokio::task::block_in_place`
/// does so.
pub type InPlace = fn(&mut dyn FnMut());

/// Options of a local store.
#[derive(Clone, Debug)]
pub struct LocalOptions {
    /// Directory that keeps identities over restarts; for one process at a time, and one exported
    /// tree. `None`: after a restart, a bounded search finds files.
    pub state_dir: Option<PathBuf>,
    /// The means of data transfer.
    pub io: IoEngine,
    /// Bypass the kernel's page cache (O_DIRECT) where the file system supports it.
    pub direct: bool,
    /// Most files in the table of names, at about 110 bytes plus the name each.
    pub max_nodes: usize,
    /// Most directories kept open; `None`: a quarter of the process's descriptor limit, at most
    /// 4,096.
    pub dir_fds: Option<usize>,
    /// Most names that a call examines to find a file that another program moved.
    pub search_entries: usize,
    /// The store is that of one command, which lists from begin to end: a directory stays open between the
    /// requests that list it, so no name hides another one that is removed meanwhile, on any file system.
    /// And a rename that must not replace is made as a link and a removal where the file system has no
    /// request for it; programs of others may expect one step, and get EINVAL.
    pub for_command: bool,
    /// How to make a metadata call, which a disk that does not answer may hold up. By default: without precaution.
    pub in_place: InPlace,
}

impl Default for LocalOptions {
    fn default() -> Self {
        Self {
            state_dir: None,
            io: IoEngine::Auto,
            direct: true,
            max_nodes: 2_000_000,
            dir_fds: None,
            search_entries: 100_000,
            for_command: false,
            in_place: |call| call(),
        }
    }
}
