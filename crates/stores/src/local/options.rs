//! Options of a local store.

use super::data::engine::IoEngine;
use std::path::PathBuf;

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
        }
    }
}
