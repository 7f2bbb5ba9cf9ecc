//! Which pages go when memory is short: S3-FIFO with one reference bit.
//!
//! 1. Only clean pages that nobody has pinned are dropped (I3).
//! 2. Pages that an uncached operation brought in lie in a queue of their own, go first, and never
//!    enter the main queue unless claimed.
//! 3. New pages enter the small queue (a tenth of all). Those used again later move to the main
//!    queue; those that were not are dropped and remembered for a while (the ghosts), and should
//!    one be missed soon, it enters the main queue at once. So a scan passes through the small
//!    queue and leaves the main one alone.
//! 4. A use that follows the insertion closely does not count: a stream that reads a page in
//!    eight pieces uses it once.
//!
//! Lock order: a mapping's state, then the queues. Reclaim takes candidates out under the queues'
//! lock, lets go of it, and then takes the mapping's; so nobody reclaims holding a mapping's lock.

use crate::arena::{Arena, NONE, flag};
use crate::cache::Shared;
use crate::stats::Count;
use weir_base::sync::atomic::{AtomicU32, Ordering};

/// Pages looked at under one hold of the queues' lock.
const BATCH: usize = 64;

/// In which queue a page is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Queue {
    /// New pages.
    Small = 1,
    /// Pages used more than once.
    Main = 2,
    /// Pages that uncached operations brought in.
    Uncached = 3,
}

impl Queue {
    fn of(arena: &Arena, frame: u32) -> Option<Self> {
        match (arena.meta(frame).flags() & flag::QUEUE) >> flag::QUEUE_SHIFT {
            1 => Some(Self::Small),
            2 => Some(Self::Main),
            3 => Some(Self::Uncached),
            _ => None,
        }
    }
}

#[derive(Clone, Copy)]
struct List {
    head: u32,
    tail: u32,
    len: u32,
}

const EMPTY: List = List { head: NONE, tail: NONE, len: 0 };

/// The queues, as lists through the frames' metadata; new pages come in at the head.
pub(crate) struct Queues {
    lists: [List; 3],
    ghosts: Ghosts,
}

impl Queues {
    pub(crate) fn new(frames: u32) -> Self {
        Self { lists: [EMPTY; 3], ghosts: Ghosts::new(frames) }
    }

    /// Enters a page that is new in the cache.
    pub(crate) fn insert(&mut self, arena: &Arena, frame: u32, key: u64, clock: &AtomicU32) {
        let uncached = arena.meta(frame).has(flag::UNCACHED);
        let queue = if uncached {
            Queue::Uncached
        } else if self.ghosts.take(key) {
            Queue::Main
        } else {
            Queue::Small
        };
        arena.meta(frame).stamp.store(clock.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
        self.push(arena, queue, frame);
    }

    /// Puts `new` where `old` is, as old and as used as that.
    pub(crate) fn replace(&mut self, arena: &Arena, old: u32, new: u32, clock: &AtomicU32) {
        let (was, now) = (arena.meta(old), arena.meta(new));
        now.set(was.flags() & flag::REFERENCED);
        now.stamp.store(was.stamp.load(Ordering::Relaxed), Ordering::Relaxed);
        match Queue::of(arena, old) {
            // Claimed by the write, or out for inspection.
            Some(Queue::Uncached) | None => {
                self.remove(arena, old);
                let queue = if now.has(flag::UNCACHED) { Queue::Uncached } else { Queue::Small };
                now.stamp.store(clock.load(Ordering::Relaxed), Ordering::Relaxed);
                self.push(arena, queue, new);
            }
            Some(queue) => {
                let (prev, next) =
                    (was.prev.load(Ordering::Relaxed), was.next.load(Ordering::Relaxed));
                now.prev.store(prev, Ordering::Relaxed);
                now.next.store(next, Ordering::Relaxed);
                let list = &mut self.lists[queue as usize - 1];
                match prev {
                    NONE => list.head = new,
                    p => arena.meta(p).next.store(new, Ordering::Relaxed),
                }
                match next {
                    NONE => list.tail = new,
                    n => arena.meta(n).prev.store(new, Ordering::Relaxed),
                }
                was.clear(flag::QUEUE);
                now.set((queue as u32) << flag::QUEUE_SHIFT);
            }
        }
    }

    /// Takes a page out, if it is in a queue.
    pub(crate) fn remove(&mut self, arena: &Arena, frame: u32) {
        let Some(queue) = Queue::of(arena, frame) else { return };
        let meta = arena.meta(frame);
        let (prev, next) = (meta.prev.load(Ordering::Relaxed), meta.next.load(Ordering::Relaxed));
        let list = &mut self.lists[queue as usize - 1];
        match prev {
            NONE => list.head = next,
            p => arena.meta(p).next.store(next, Ordering::Relaxed),
        }
        match next {
            NONE => list.tail = prev,
            n => arena.meta(n).prev.store(prev, Ordering::Relaxed),
        }
        list.len -= 1;
        meta.clear(flag::QUEUE);
    }

    fn push(&mut self, arena: &Arena, queue: Queue, frame: u32) {
        let list = &mut self.lists[queue as usize - 1];
        let meta = arena.meta(frame);
        meta.prev.store(NONE, Ordering::Relaxed);
        meta.next.store(list.head, Ordering::Relaxed);
        match list.head {
            NONE => list.tail = frame,
            head => arena.meta(head).prev.store(frame, Ordering::Relaxed),
        }
        list.head = frame;
        list.len += 1;
        meta.set((queue as u32) << flag::QUEUE_SHIFT);
    }

    /// Puts a page back that was taken out as a candidate and could not go.
    fn put_back(&mut self, arena: &Arena, candidate: &Candidate) {
        if Queue::of(arena, candidate.frame).is_none() {
            self.push(arena, candidate.queue, candidate.frame);
        }
    }

    /// Pages in all queues.
    fn len(&self) -> usize {
        self.lists.iter().map(|l| l.len as usize).sum()
    }

    /// Takes the next page out that has not been used since it was last looked at; gives up after
    /// looking at `budget` pages.
    fn next_candidate(
        &mut self,
        arena: &Arena,
        reach: Reach,
        budget: &mut usize,
    ) -> Option<Candidate> {
        while *budget > 0 {
            *budget -= 1;
            let [small, main, uncached] = self.lists.map(|l| l.len);
            let queue = if uncached > 0 {
                Queue::Uncached
            } else if reach == Reach::Uncached {
                return None;
            } else if small > 0 && (small > main / 9 || main == 0) {
                Queue::Small
            } else if main > 0 {
                Queue::Main
            } else {
                return None;
            };
            let frame = self.lists[queue as usize - 1].tail;
            let meta = arena.meta(frame);
            self.remove(arena, frame);
            match queue {
                Queue::Uncached if !meta.has(flag::UNCACHED) => {
                    self.push(arena, Queue::Small, frame);
                }
                Queue::Small | Queue::Main if meta.clear(flag::REFERENCED) != 0 => {
                    self.push(arena, Queue::Main, frame);
                }
                _ => {
                    return Some(Candidate {
                        frame,
                        queue,
                        mapping: meta.mapping.load(Ordering::Relaxed),
                        page: meta.page.load(Ordering::Relaxed),
                    });
                }
            }
        }
        None
    }
}

/// From which queues reclaim takes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    /// What uncached operations left.
    Uncached,
    /// All.
    All,
}

/// A page that may go.
struct Candidate {
    frame: u32,
    queue: Queue,
    mapping: u32,
    page: u64,
}

/// Pages that were dropped lately: a table of fingerprints, each with the time of its drop.
struct Ghosts {
    table: Vec<(u32, u32)>,
    now: u32,
    /// How long one is remembered, in drops.
    memory: u32,
}

impl Ghosts {
    fn new(frames: u32) -> Self {
        let len = (frames as usize).next_power_of_two().max(16);
        Self { table: vec![(0, 0); len], now: frames.max(16), memory: frames.max(16) }
    }

    fn place(&self, key: u64) -> (usize, u32) {
        (key as usize & (self.table.len() - 1), (key >> 32) as u32 | 1)
    }

    fn remember(&mut self, key: u64) {
        let (at, print) = self.place(key);
        self.now = self.now.wrapping_add(1);
        self.table[at] = (print, self.now);
    }

    /// Whether `key` was dropped lately; forgets it.
    fn take(&mut self, key: u64) -> bool {
        let (at, print) = self.place(key);
        let (was, when) = self.table[at];
        let hit = was == print && self.now.wrapping_sub(when) < self.memory;
        if hit {
            self.table[at].0 = 0;
        }
        hit
    }
}

impl Shared {
    /// Drops up to `want` pages and returns how many it dropped; they are free as soon as their
    /// epoch has passed.
    pub(crate) fn reclaim(&self, want: usize, reach: Reach) -> usize {
        let mut dropped = 0;
        let mut budget = 2 * self.queues.lock().len();
        while dropped < want {
            let candidates: Vec<Candidate> = {
                let mut queues = self.queues.lock();
                let n = (want - dropped).min(BATCH);
                std::iter::from_fn(|| queues.next_candidate(&self.arena, reach, &mut budget))
                    .take(n)
                    .collect()
            };
            if candidates.is_empty() {
                break;
            }
            for group in candidates.chunk_by(|a, b| a.mapping == b.mapping) {
                dropped += self.drop_candidates(group);
            }
        }
        dropped
    }

    /// Drops those candidates, all of one mapping, that are clean and not pinned.
    fn drop_candidates(&self, group: &[Candidate]) -> usize {
        // No mapping: it is being dropped, and its pages with it.
        let Some(mapping) = self.mapping(group[0].mapping) else { return 0 };
        let mut state = mapping.state.lock();
        let mut edit = mapping.edit();
        let mut dropped = 0;
        for candidate in group {
            if edit.frame_at(candidate.page) != Some(candidate.frame) {
                continue;
            }
            let meta = self.arena.meta(candidate.frame);
            if meta.has(flag::DIRTY | flag::WRITEBACK) || self.arena.is_pinned(candidate.frame) {
                self.queues.lock().put_back(&self.arena, candidate);
                continue;
            }
            edit.evict(candidate.page);
            dropped += 1;
            let count = match candidate.queue {
                Queue::Small => {
                    self.queues.lock().ghosts.remember(mapping.key(candidate.page));
                    Count::ReclaimedSmall
                }
                Queue::Main => Count::ReclaimedMain,
                Queue::Uncached => Count::ReclaimedUncached,
            };
            self.stats.add(count, 1);
        }
        edit.finish(&mut state);
        drop(state);
        dropped
    }
}
