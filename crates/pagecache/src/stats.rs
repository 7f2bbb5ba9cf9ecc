//! Counters: cheap to update, summed on read.
//!
//! 1. A thread counts in its own cache lines, with plain loads and stores, so that counting a hit
//!    shares no line and costs almost nothing (I6). Threads beyond [`SHARDS`] share one more set of
//!    lines, with atomic additions.

use crossbeam_utils::CachePadded;
use weir_base::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$meta:meta])* $name:ident $variant:ident,)*) => {
        /// The counters.
        #[derive(Clone, Copy, Debug)]
        pub(crate) enum Count { $($variant,)* }

        const COUNTS: usize = [$(Count::$variant),*].len();
        const NAMES: [&str; COUNTS] = [$(stringify!($name)),*];

        /// Counters of a cache since its creation, or of a file since its mapping was created.
        ///
        /// A file counts pages brought in, pruned, claimed, lost and written back; only the cache
        /// counts hits and waits.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Stats { $($(#[$meta])* pub $name: u64,)* }

        impl Stats {
            /// Name and value of every counter, in a fixed order.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                NAMES.into_iter().zip([$(self.$name),*])
            }

            fn from_array(values: [u64; COUNTS]) -> Self {
                let [$($name),*] = values;
                Self { $($name),* }
            }
        }
    };
}

counters! {
    /// Reads that took the fast path.
    fast_reads FastReads,
    /// Bytes that they copied or lent.
    fast_read_bytes FastReadBytes,
    /// Reads off the fast path because it is switched off, or the store does not allow it.
    fallback_off FallbackOff,
    /// Reads off the fast path because a page was not resident.
    fallback_missing FallbackMissing,
    /// Reads off the fast path because they began at or past the end of file.
    fallback_eof FallbackEof,
    /// Reads off the fast path because a write intervened.
    fallback_writer FallbackWriter,
    /// Reads off the fast path because a page triggers read-ahead, or is to be pruned.
    fallback_marked FallbackMarked,
    /// Reads of the store.
    fills Fills,
    /// Pages that fills published.
    fill_pages FillPages,
    /// Failed reads of the store.
    fill_errors FillErrors,
    /// Pages found to be holes.
    hole_pages HolePages,
    /// Reads that waited for a fill that another caller had started.
    fill_joins FillJoins,
    /// Pages read ahead.
    readahead_pages ReadaheadPages,
    /// Pages that uncached operations brought in.
    uncached_pages UncachedPages,
    /// Uncached pages that the operations then dropped.
    pruned_pages PrunedPages,
    /// Uncached pages that a cached access claimed, and that stay.
    claimed_pages ClaimedPages,
    /// Pages of cached operations that were evicted because an uncached operation needed memory.
    /// Stays 0 with any budget, unless a store hangs or a borrower keeps pages lent.
    lost_pages LostPages,
    /// Prunes left to reclaim because the file was busy.
    prune_skips PruneSkips,
    /// Pages reclaimed from the queue of new pages.
    reclaimed_small ReclaimedSmall,
    /// Pages reclaimed from the queue of pages used more than once.
    reclaimed_main ReclaimedMain,
    /// Reclaimed pages that uncached operations had left.
    reclaimed_uncached ReclaimedUncached,
    /// Pages examined by reclaim, whether evicted or not.
    reclaim_looks ReclaimLooks,
    /// Background passes of reclaim.
    reclaim_background ReclaimBackground,
    /// Passes of reclaim by operations that needed memory.
    reclaim_direct ReclaimDirect,
    /// Operations that waited for memory.
    memory_waits MemoryWaits,
    /// Bytes written by callers.
    written_bytes WrittenBytes,
    /// Appends that filled a page in place.
    appends_in_place AppendsInPlace,
    /// Writes to the store.
    writeback_ops WritebackOps,
    /// Pages in these writes.
    writeback_pages WritebackPages,
    /// Failed writes to the store.
    writeback_errors WritebackErrors,
    /// Pages dropped because they could not be written: lost data.
    writeback_lost_pages WritebackLostPages,
    /// The flusher's looks at dirty files.
    flush_looks FlushLooks,
    /// Calls that waited for writeback.
    throttle_waits ThrottleWaits,
    /// Detected changes of files by other programs.
    outside_changes OutsideChanges,
}

/// Threads with their own lines: one for each bit in [`TAKEN`].
const SHARDS: usize = 64;
/// The set of lines that the other threads share.
const OVERFLOW: usize = SHARDS;

type Values = [AtomicU64; COUNTS];

/// A cache's counters.
pub(crate) struct Counters(Box<[CachePadded<Values>]>);

/// One file's counters: all off the hit path, so one line for all threads suffices.
pub(crate) struct FileCounters(Values);

weir_base::sync::lazy_global! {
    static TAKEN: AtomicU64 = AtomicU64::new(0);
}

/// A thread's shard, freed when the thread ends. Its sums stay; the next owner adds to them.
struct Shard(usize);

impl Shard {
    fn take() -> Self {
        let taken = TAKEN.fetch_update(Ordering::Acquire, Ordering::Relaxed, |taken| {
            (taken != u64::MAX).then(|| taken | (taken + 1))
        });
        Self(taken.map_or(OVERFLOW, |taken| taken.trailing_ones() as usize))
    }
}

impl Drop for Shard {
    fn drop(&mut self) {
        if self.0 != OVERFLOW {
            // Release: the next owner sees the last values.
            TAKEN.fetch_and(!(1 << self.0), Ordering::Release);
        }
    }
}

weir_base::sync::thread_local! {
    static SHARD: Shard = Shard::take();
}

impl Default for Counters {
    fn default() -> Self {
        Self(
            (0..=OVERFLOW)
                .map(|_| CachePadded::new(std::array::from_fn(|_| AtomicU64::new(0))))
                .collect(),
        )
    }
}

impl Counters {
    /// Adds `n`.
    #[inline]
    pub(crate) fn add(&self, count: Count, n: u64) {
        self.add_all([(count, n)]);
    }

    /// Adds to several counters with one look-up of the thread's shard.
    #[inline]
    pub(crate) fn add_all<const N: usize>(&self, counts: [(Count, u64); N]) {
        let shard = SHARD.try_with(|shard| shard.0).unwrap_or(OVERFLOW);
        for (count, n) in counts {
            let value = &self.0[shard][count as usize];
            if shard == OVERFLOW {
                value.fetch_add(n, Ordering::Relaxed);
            } else {
                value.store(value.load(Ordering::Relaxed) + n, Ordering::Relaxed);
            }
        }
    }

    /// The sums.
    pub(crate) fn sum(&self) -> Stats {
        Stats::from_array(std::array::from_fn(|i| {
            self.0.iter().map(|shard| shard[i].load(Ordering::Relaxed)).sum()
        }))
    }
}

impl Default for FileCounters {
    fn default() -> Self {
        Self(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

impl FileCounters {
    /// Adds `n`.
    pub(crate) fn add(&self, count: Count, n: u64) {
        self.0[count as usize].fetch_add(n, Ordering::Relaxed);
    }

    /// The values.
    pub(crate) fn sum(&self) -> Stats {
        Stats::from_array(std::array::from_fn(|i| self.0[i].load(Ordering::Relaxed)))
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn counts_of_all_threads_are_summed() {
        let counters = Counters::default();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| counters.add(Count::Fills, 5));
            }
        });
        let stats = counters.sum();
        assert_eq!(stats.fills, 20);
        assert!(stats.iter().any(|pair| pair == ("fills", 20)));
    }
}
