//! Assigns threads to the shards of a counter.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

pub(super) const SHARDS: usize = 16;

/// The shard of the next thread.
static NEXT: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static SHARD: usize = NEXT.fetch_add(1, Relaxed) % SHARDS;
}

/// This thread's shard.
pub(super) fn shard() -> usize {
    SHARD.try_with(|shard| *shard).unwrap_or(0)
}
