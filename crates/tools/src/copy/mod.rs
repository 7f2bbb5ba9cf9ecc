//! Copying files and trees between places: sparse in, sparse out, atomic, bounded in memory.
//!
//! 1. A regular file appears under its name only when all of its data is durable and its source is
//!    what it was before it was read: it is written under a temporary name in the same directory,
//!    synced, then renamed. In place only if asked to; a failure says that it is incomplete then.
//! 2. Holes are never read, never written, and zeros become holes unless asked otherwise.
//! 3. Memory is bounded: chunks in flight, over all files, hold a permit of the run.
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
    /// Copies each first place to the name that the second one is, with all that is below it,
    /// and makes it durable. All destinations are in the one store `to`.
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
