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
use crate::mounts::{Mounts, Place};
use std::sync::Arc;
use std::sync::atomic::Ordering;

mod attributes;
mod copier;
mod data;
mod device;
mod digest;
mod directory;
mod entry;
mod file;
mod look;
mod mend;
mod mirror;
mod names;
mod node;
mod offload;
mod options;
mod progress;
mod rate;
mod small;
pub mod source;
mod summary;
mod temporary;
mod tree;
mod update;
pub mod zeros;

pub use copier::Copier;
use copier::add;
pub(crate) use file::stream;
pub(crate) use mirror::below;
pub use mirror::{Filter, Mirror};
pub(crate) use names::fold;
pub use options::{Options, Overwrite, Reflink, Sparse};
pub use progress::Progress;
pub use summary::{FileStats, Summary};

impl Copier {
    /// Copies each first place, with everything below it, to the second place, and makes the copy
    /// durable.
    pub async fn copy(self: &Arc<Self>, pairs: Vec<(Place, Place)>) {
        tree::copy(self, pairs, None).await;
        self.end().await;
    }

    /// The same. `mounts`, where the places come from, finds what is not in their stores: the targets of
    /// symbolic links ([`Options::dereference`]), and file systems that are mounted in the trees.
    pub async fn copy_beyond(self: &Arc<Self>, pairs: Vec<(Place, Place)>, mounts: &mut Mounts) {
        tree::copy(self, pairs, Some(mounts)).await;
        self.end().await;
    }

    /// Copies a tree again, whose files are up to date except for a few.
    pub(crate) async fn copy_again(self: &Arc<Self>, from: Place, to: Place) {
        let count = &self.tally.up_to_date;
        let before = count.load(Ordering::Relaxed);
        self.copy(vec![(from, to)]).await;
        count.store(before, Ordering::Relaxed);
    }

    /// Writes what a stream yields to `to`, and makes it durable; `from_shown` names it in messages.
    /// Blocks of zeros become holes, unless all zeros are to be written.
    pub async fn copy_stream(
        self: &Arc<Self>,
        from_shown: &str,
        stream: std::fs::File,
        to: &Place,
    ) {
        if to.attr.is_some() && self.stays(&to.shown) {
            add(&self.tally.kept, 1);
            return;
        }
        if self.options.dry_run {
            self.progress.made(from_shown, &to.shown);
            return;
        }
        let done = tokio::select! {
            done = file::copy_stream(self, (from_shown, stream), to) => done,
            () = self.interrupted() => Ok(()),
        };
        if let Err(failure) = done {
            self.fail(failure);
        }
        self.end().await;
    }

    /// Whether a file or device that exists is not to be replaced by a stream. A stream is newer than any
    /// file.
    fn stays(&self, shown: &str) -> bool {
        let is_asked = || self.options.asks && !self.progress.may_replace(shown);
        self.options.overwrite == Overwrite::Keep || is_asked()
    }

    /// Removes the temporary files that are left, and makes the names durable unless the copy was interrupted.
    async fn end(&self) {
        self.clean_up().await;
        if self.is_interrupted() {
            return;
        }
        let changed = std::mem::take(&mut *self.changed.lock());
        for ((_, dir), fs) in changed {
            if let Err(failure) = fs.sync_node(dir).await.asked(|| "sync a directory".into()) {
                self.fail(failure);
            }
        }
    }
}
