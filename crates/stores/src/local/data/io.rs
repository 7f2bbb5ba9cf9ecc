//! The parts of a local store that its open files use.

use super::engine::Engine;
use crate::local::calls::Calls;
use crate::local::changes::watch::Watch;
use crate::local::probe::Stamps;

/// The parts of a local store that its open files use.
pub(in crate::local) struct Io {
    pub(in crate::local) engine: Engine,
    pub(in crate::local) calls: Calls,
    /// The calls with which transfers begin.
    pub(in crate::local) transfers: Calls,
    /// Whether aligned transfers bypass the kernel's cache.
    pub(in crate::local) direct: bool,
    pub(in crate::local) stamps: Stamps,
    /// The kernel's reports of changes by others.
    pub(in crate::local) watch: Option<Watch>,
    /// Largest size of a file, in bytes.
    pub(in crate::local) max_file_size: u64,
    pub(in crate::local) fsid: u64,
}
