//! How a directory is made a store.

use super::data::engine::IoEngine;
use std::path::PathBuf;

/// How a directory is made a store.
#[derive(Clone, Debug)]
pub struct LocalOptions {
    /// Where identities are kept, so that they outlive the program; one process at a time, one
    /// directory per exported tree. `None`: after a restart, files are found by a bounded walk.
    pub state_dir: Option<PathBuf>,
    /// How bytes are moved.
    pub io: IoEngine,
    /// Pass the kernel's page cache by (O_DIRECT) where the file system takes it.
    pub direct: bool,
    /// Most files whose names are remembered, at about 110 bytes and the name each.
    pub max_nodes: usize,
    /// Most directories kept open; `None`: a quarter of the descriptors that the process may have,
    /// 4,096 at most.
    pub dir_fds: Option<usize>,
    /// Most names that a search looks at to find a file that another program moved.
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
