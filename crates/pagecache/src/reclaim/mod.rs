//! Reclaim: which pages leave the cache under memory pressure.
//!
//! Lock order: a mapping's state, then the queues. Reclaim takes candidates out of the queues under
//! their lock, releases it, and then takes the mapping's; so no thread reclaims while it holds a
//! mapping's lock.

pub(crate) mod s3fifo;

use crate::memory::Memory;
use crate::reclaim::s3fifo::{Candidate, HOLD, Pass, Queue, UNWRITTEN};
use crate::stats::Count;

/// Candidates taken out of the queues under one hold of their lock.
const BATCH: usize = 64;

/// The queues that reclaim takes pages from.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    /// Pages that uncached operations left.
    Uncached,
    /// All pages.
    All,
}

/// How long to search for reclaimable pages.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effort {
    /// A few hundred looks: an operation waits, and the background reclaimer continues if they
    /// fail.
    Foreground,
    /// Looks at every page, if necessary.
    Background,
}

impl Memory {
    /// Evicts up to `want` pages and returns how many; their frames are free once their epoch has
    /// passed.
    pub(crate) fn reclaim(&self, want: usize, reach: Reach, effort: Effort) -> usize {
        let looks = match effort {
            Effort::Foreground => 4 * want + HOLD,
            Effort::Background => 2 * self.queues.lock().len(),
        };
        let uncached_only = reach == Reach::Uncached;
        let mut pass = Pass { uncached_only, looks, uncached_looks: looks / 2, pinned_in: None };
        let mut evicted = 0;
        while evicted < want {
            let before = pass.looks;
            let n = (want - evicted).min(BATCH);
            let candidates = self.queues.lock().candidates(&self.arena, n, &mut pass);
            if pass.looks == before {
                break;
            }
            for group in candidates.chunk_by(|a, b| a.mapping == b.mapping) {
                evicted += self.evict(group);
            }
        }
        self.stats.add(Count::ReclaimLooks, (looks - pass.looks) as u64);
        evicted
    }

    /// Evicts those candidates, all of one file, that are clean and not pinned.
    fn evict(&self, group: &[Candidate]) -> usize {
        // Without an owner, the file is being dropped, and its pages with it.
        let Some(owner) = self.owners.get(group[0].mapping) else { return 0 };
        let mut pages = group.iter().map(|candidate| (candidate.page, candidate.frame));
        owner.evict(&mut pages, &mut |index, key| {
            let candidate = &group[index];
            let meta = self.arena.meta(candidate.frame);
            if meta.has(UNWRITTEN) || self.arena.is_pinned(candidate.frame) {
                let mut queues = self.queues.lock();
                if Queue::of(&self.arena, candidate.frame).is_none() {
                    queues.put_back(&self.arena, candidate.queue, candidate.frame);
                }
                return false;
            }
            let count = match candidate.queue {
                Queue::Small => {
                    self.queues.lock().ghosts.remember(key);
                    Count::ReclaimedSmall
                }
                Queue::Main => Count::ReclaimedMain,
                Queue::Uncached => Count::ReclaimedUncached,
            };
            self.stats.add(count, 1);
            true
        })
    }
}
