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

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::File;
    use crate::testing::Rig;
    use std::sync::Arc;
    use weir_vfs::IoFlags;

    /// A file of clean pages, in a cache without threads of its own.
    fn clean(pages: usize) -> (Rig, File) {
        let rig = Rig::without_threads();
        let file = rig.create("f");
        file.write_at(&vec![1; pages * 4096], 0, IoFlags::empty()).unwrap();
        file.sync(true).unwrap();
        (rig, file)
    }

    fn memory(file: &File) -> Arc<Memory> {
        file.open.mapping.memory.clone()
    }

    fn candidates(memory: &Memory, want: usize) -> Vec<Candidate> {
        let mut pass =
            Pass { uncached_only: false, looks: 100, uncached_looks: 0, pinned_in: None };
        memory.queues.lock().candidates(&memory.arena, want, &mut pass)
    }

    #[test]
    fn reclaim_takes_what_it_finds_and_ends() {
        for effort in [Effort::Foreground, Effort::Background] {
            let (_rig, file) = clean(3);
            let memory = memory(&file);
            assert_eq!(memory.reclaim(2, Reach::Uncached, effort), 0);
            assert_eq!(memory.reclaim(2, Reach::All, effort), 2);
            assert_eq!(file.resident(), [8192..3 * 4096]);
            assert_eq!(memory.reclaim(2, Reach::All, effort), 1);
            assert_eq!((file.resident(), memory.reclaim(2, Reach::All, effort)), (vec![], 0));
        }
    }

    #[test]
    fn a_candidate_that_is_used_meanwhile_stays_and_returns_to_its_queue() {
        let (_rig, file) = clean(3);
        let memory = memory(&file);
        let group = candidates(&memory, 3);
        assert_eq!((group.len(), memory.queues.lock().len()), (3, 0));
        // An append within the page's frame, and a reader.
        let arena = &memory.arena;
        arena.meta(group[0].frame).set(crate::memory::arena::flag::DIRTY);
        let lent = file.read_segments(4096, 4096, IoFlags::empty()).unwrap();
        assert_eq!(memory.evict(&group), 1);
        assert_eq!(file.resident(), [0..8192]);
        assert_eq!(memory.queues.lock().len(), 1, "the dirty page is parked");
        arena.meta(group[0].frame).clear(UNWRITTEN);
        memory.queues.lock().cleaned(arena, [group[0].frame].into_iter());
        drop(lent);
        assert_eq!(memory.reclaim(3, Reach::All, Effort::Background), 2);
    }

    #[test]
    fn a_page_that_was_evicted_from_the_small_queue_is_remembered() {
        let (_rig, file) = clean(2);
        let memory = memory(&file);
        assert_eq!(memory.reclaim(1, Reach::All, Effort::Foreground), 1);
        let mut bytes = [0; 4096];
        assert_eq!(file.read_at(&mut bytes, 0, IoFlags::empty()), Ok(4096));
        let queues = candidates(&memory, 2);
        let main: Vec<_> = queues.iter().map(|found| (found.page, found.queue)).collect();
        assert_eq!(main, [(1, Queue::Small), (0, Queue::Main)]);
    }
}
