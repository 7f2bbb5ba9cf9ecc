//! Open files: data transfer, extents and locks.

pub(super) mod engine;
pub(super) mod extents;
pub(super) mod file;
pub(super) mod inode;
pub(super) mod io;
pub(super) mod locks;
pub(super) mod reserve;
pub mod stream;
