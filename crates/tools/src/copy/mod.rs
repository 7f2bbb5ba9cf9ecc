//! Copying files and trees between places: sparse in, sparse out, atomic, bounded in memory.
//!
//! 1. A regular file appears under its name only when all of its data is durable and its source is
//!    unchanged since before it was read: it is written under a temporary name in the same
//!    directory, synced, then renamed. In place only on request; then a failure reports the file as
//!    incomplete.
//! 2. Holes are never read or written, and zeros become holes unless requested otherwise.
//! 3. Memory is bounded: each chunk in flight, of any file, holds a permit of the run.
//! 4. A failure concerns one file; the others are still copied.

use crate::failure::Asked;
use crate::mounts::Place;
use std::sync::Arc;
use weir_pagecache::CachedFs;

mod attributes;
mod copier;
mod data;
mod digest;
mod file;
mod options;
mod progress;
mod small;
pub mod source;
mod summary;
mod temporary;
mod tree;
pub mod zeros;

pub use copier::Copier;
pub use options::{Options, Sparse};
pub use progress::Progress;
pub use summary::{FileStats, Summary};

impl Copier {
    /// Copies each first place, with everything below it, to the second place, and makes the copy
    /// durable. All destinations are in the one store `to`.
    pub async fn copy(self: &Arc<Self>, pairs: Vec<(Place, Place)>, to: &CachedFs) {
        tree::copy(self, pairs).await;
        if self.is_interrupted() {
            return self.clean_up().await;
        }
        let changed = std::mem::take(&mut *self.changed.lock());
        for dir in changed {
            if let Err(failure) = to.sync_node(dir).await.asked(|| "sync a directory".into()) {
                self.fail(failure);
            }
        }
    }
}
