//! Counters: cheap to count, summed when looked at.
//!
//! 1. A thread counts in lines of its own, with plain loads and stores, so that counting a hit
//!    shares nothing and costs next to nothing (I6). Threads beyond [`SHARDS`] share one more set
//!    of lines, with atomic additions.

use crossbeam_utils::CachePadded;
use weir_base::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$meta:meta])* $name:ident $variant:ident,)*) => {
        /// What is counted.
        #[derive(Clone, Copy, Debug)]
        pub(crate) enum Count { $($variant,)* }

        const COUNTS: usize = [$(Count::$variant),*].len();
        const NAMES: [&str; COUNTS] = [$(stringify!($name)),*];

        /// Counters of a cache since it was made, or of one file since its mapping was.
        ///
        /// A file counts what is brought in, pruned, claimed, lost and written back; hits and waits
        /// are counted by the cache alone.
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
    /// Reads that went the filling way since the fast path was switched off, or the store opted out.
    fallback_off FallbackOff,
    /// ... since a page was not resident.
    fallback_missing FallbackMissing,
    /// ... since they began at or past the end of the file.
    fallback_eof FallbackEof,
    /// ... since writers got in between.
    fallback_writer FallbackWriter,
    /// ... since a page asked for the next read-ahead, or is to be pruned.
    fallback_marked FallbackMarked,
    /// Reads of the store.
    fills Fills,
    /// Pages brought in by them.
    fill_pages FillPages,
    /// Reads of the store that failed.
    fill_errors FillErrors,
    /// Pages found to be holes.
    hole_pages HolePages,
    /// Reads that waited for a read that another caller had begun.
    fill_joins FillJoins,
    /// Pages brought in ahead of their use.
    readahead_pages ReadaheadPages,
    /// Pages that uncached operations brought in.
    uncached_pages UncachedPages,
    /// Of these, pages dropped when done with.
    pruned_pages PrunedPages,
    /// Of these, pages that stay because a cached access claimed them.
    claimed_pages ClaimedPages,
    /// Pages of others that were dropped since an uncached operation needed memory. Stays 0, in a
    /// budget of any size, unless what such operations use stays in use for long: a store hangs, or
    /// who has borrowed pages keeps them.
    lost_pages LostPages,
    /// Prunes that were left to reclaim, as the file was busy.
    prune_skips PruneSkips,
    /// Pages reclaimed from the queue of new pages.
    reclaimed_small ReclaimedSmall,
    /// Pages reclaimed from the queue of pages used more than once.
    reclaimed_main ReclaimedMain,
    /// Pages reclaimed that uncached operations had left.
    reclaimed_uncached ReclaimedUncached,
    /// Pages that reclaim looked at, whether they could go or not.
    reclaim_looks ReclaimLooks,
    /// Passes of reclaim in the background.
    reclaim_background ReclaimBackground,
    /// Passes of reclaim by those who needed memory.
    reclaim_direct ReclaimDirect,
    /// Calls that waited for memory.
    memory_waits MemoryWaits,
    /// Bytes written by callers.
    written_bytes WrittenBytes,
    /// Appends that filled a page in place.
    appends_in_place AppendsInPlace,
    /// Writes to the store.
    writeback_ops WritebackOps,
    /// Pages written by them.
    writeback_pages WritebackPages,
    /// Writes to the store that failed.
    writeback_errors WritebackErrors,
    /// Pages dropped since they could not be written: data that was lost.
    writeback_lost_pages WritebackLostPages,
    /// Dirty files that the flusher looked at.
    flush_looks FlushLooks,
    /// Writers made to wait for writeback.
    throttle_waits ThrottleWaits,
    /// Times that a file turned out to have changed behind the cache's back.
    outside_changes OutsideChanges,
}

/// Threads with lines of their own: as many as there are bits in [`TAKEN`].
const SHARDS: usize = 64;
/// What the others share.
const OVERFLOW: usize = SHARDS;

type Values = [AtomicU64; COUNTS];

/// A cache's counters.
pub(crate) struct Counters(Box<[CachePadded<Values>]>);

/// One file's counters: only what is not on the hit path, so one line for all is fine.
pub(crate) struct FileCounters(Values);

weir_base::sync::lazy_global! {
    static TAKEN: AtomicU64 = AtomicU64::new(0);
}

/// A thread's shard, given back when the thread ends. Its sums stay; the next owner goes on there.
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
            // Release: the next owner sees the last counts.
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
    /// Counts `n` more.
    #[inline]
    pub(crate) fn add(&self, count: Count, n: u64) {
        self.add_all([(count, n)]);
    }

    /// Counts several things with one look for the thread's shard.
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
    /// Counts `n` more.
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
