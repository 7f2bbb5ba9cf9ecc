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
//! 5. A look is paid for by somebody: it drops the page; or takes away the reference that a read
//!    left; or finds the page dirty and parks it (a flag, and out of the list) until the write
//!    that cleans it puts it back where it was, at the end. Only pinned pages are looked at again
//!    and again, and a call in the foreground gives up after a few hundred looks.
//!
//! Lock order: a mapping's state, then the queues. Reclaim takes candidates out under the queues'
//! lock, lets go of it, and then takes the mapping's; so nobody reclaims holding a mapping's lock.

use crate::cache::Shared;
use crate::memory::arena::{Arena, NONE, flag};
use crate::stats::Count;
use weir_base::sync::atomic::{AtomicU32, Ordering};

/// Pages taken out under one hold of the queues' lock.
const BATCH: usize = 64;
/// Pages looked at under one hold of it.
const HOLD: usize = 4 * BATCH;

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
    /// The queue that the page belongs to; in its list unless parked. `None` while it is out for
    /// inspection.
    fn of(arena: &Arena, frame: u32) -> Option<Self> {
        match (arena.meta(frame).flags() & flag::QUEUE) >> flag::QUEUE_SHIFT {
            1 => Some(Self::Small),
            2 => Some(Self::Main),
            3 => Some(Self::Uncached),
            _ => None,
        }
    }
}

/// Flags of a page that is not in the store yet.
const UNWRITTEN: u16 = flag::DIRTY | flag::WRITEBACK;

#[derive(Clone, Copy)]
struct List {
    head: u32,
    tail: u32,
    len: u32,
}

impl List {
    /// Lets the page `prev` (or the head) point at `first`, and `next` (or the tail) at `last`.
    fn relink(&mut self, arena: &Arena, [prev, first]: [u32; 2], [last, next]: [u32; 2]) {
        match prev {
            NONE => self.head = first,
            prev => arena.meta(prev).next.store(first, Ordering::Relaxed),
        }
        match next {
            NONE => self.tail = last,
            next => arena.meta(next).prev.store(last, Ordering::Relaxed),
        }
    }
}

const EMPTY: List = List { head: NONE, tail: NONE, len: 0 };

/// The queues, as lists through the frames' metadata; new pages come in at the head.
pub(crate) struct Queues {
    lists: [List; 3],
    ghosts: Ghosts,
}

impl Queues {
    pub(crate) fn new(frames: u32, reserved: u32) -> Self {
        let mut queues = Self { lists: [EMPTY; 3], ghosts: Ghosts::new(reserved) };
        queues.resize(frames);
        queues
    }

    /// The cache has so many frames from now on.
    pub(crate) fn resize(&mut self, frames: u32) {
        self.ghosts.memory = frames;
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
            Some(queue) if was.has(flag::PARKED) => {
                self.remove(arena, old);
                self.put_back(arena, queue, new);
            }
            Some(queue) => {
                let (prev, next) =
                    (was.prev.load(Ordering::Relaxed), was.next.load(Ordering::Relaxed));
                now.prev.store(prev, Ordering::Relaxed);
                now.next.store(next, Ordering::Relaxed);
                self.lists[queue as usize - 1].relink(arena, [prev, new], [new, next]);
                was.clear(flag::QUEUE);
                now.set((queue as u16) << flag::QUEUE_SHIFT);
            }
        }
    }

    /// Takes a page out, if it is in a queue.
    pub(crate) fn remove(&mut self, arena: &Arena, frame: u32) {
        let Some(queue) = Queue::of(arena, frame) else { return };
        let meta = arena.meta(frame);
        if meta.clear(flag::PARKED | flag::QUEUE) & flag::PARKED == 0 {
            let (prev, next) =
                (meta.prev.load(Ordering::Relaxed), meta.next.load(Ordering::Relaxed));
            let list = &mut self.lists[queue as usize - 1];
            list.relink(arena, [prev, next], [prev, next]);
            list.len -= 1;
        }
    }

    fn push(&mut self, arena: &Arena, queue: Queue, frame: u32) {
        let list = &mut self.lists[queue as usize - 1];
        let meta = arena.meta(frame);
        meta.prev.store(NONE, Ordering::Relaxed);
        meta.next.store(list.head, Ordering::Relaxed);
        list.relink(arena, [NONE, frame], [frame, list.head]);
        list.len += 1;
        meta.set((queue as u16) << flag::QUEUE_SHIFT);
    }

    /// Puts a page back that was at the end of its queue: there, or aside until it is clean.
    fn put_back(&mut self, arena: &Arena, queue: Queue, frame: u32) {
        let meta = arena.meta(frame);
        let list = &mut self.lists[queue as usize - 1];
        meta.set((queue as u16) << flag::QUEUE_SHIFT);
        if meta.has(UNWRITTEN) {
            meta.set(flag::PARKED);
            return;
        }
        meta.next.store(NONE, Ordering::Relaxed);
        meta.prev.store(list.tail, Ordering::Relaxed);
        list.relink(arena, [list.tail, frame], [frame, NONE]);
        list.len += 1;
    }

    /// Notes that pages may have become clean. To be told after their flags were cleared: whoever
    /// parks a page looks at its flags under this lock, so either it sees them cleared, or this
    /// sees it parked.
    pub(crate) fn cleaned(&mut self, arena: &Arena, frames: impl Iterator<Item = u32>) {
        for frame in frames {
            let meta = arena.meta(frame);
            if meta.has(flag::PARKED)
                && !meta.has(UNWRITTEN)
                && let Some(queue) = Queue::of(arena, frame)
            {
                meta.clear(flag::PARKED);
                self.put_back(arena, queue, frame);
            }
        }
    }

    /// Pages in all queues.
    fn len(&self) -> usize {
        self.lists.iter().map(|l| l.len as usize).sum()
    }

    /// Takes up to `want` pages out that have not been used since they were last looked at.
    fn candidates(&mut self, arena: &Arena, want: usize, pass: &mut Pass) -> Vec<Candidate> {
        let mut found = Vec::new();
        let mut hold = HOLD;
        while found.len() < want && hold > 0 {
            let [small, main, uncached] = self.lists.map(|l| l.len);
            let queue = if uncached > 0 && pass.uncached_looks > 0 {
                pass.uncached_looks -= 1;
                Queue::Uncached
            } else if pass.reach == Reach::Uncached || small + main == 0 {
                break;
            } else {
                match pass.pinned_in {
                    Some(Queue::Small) if main > 0 => Queue::Main,
                    Some(Queue::Main) if small > 0 => Queue::Small,
                    _ if main == 0 || small > main / 9 => Queue::Small,
                    _ => Queue::Main,
                }
            };
            if pass.looks == 0 {
                break;
            }
            pass.looks -= 1;
            pass.pinned_in = None;
            hold -= 1;
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
                _ if meta.has(UNWRITTEN) => self.put_back(arena, queue, frame),
                _ if arena.is_pinned(frame) => {
                    self.push(arena, queue, frame);
                    pass.pinned_in = Some(queue);
                }
                _ => found.push(Candidate {
                    frame,
                    queue,
                    mapping: meta.mapping.load(Ordering::Relaxed),
                    page: meta.page.load(Ordering::Relaxed),
                }),
            }
        }
        found
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

/// What one call of reclaim may still do.
struct Pass {
    reach: Reach,
    /// Pages to look at.
    looks: usize,
    /// Of these, in the queue of uncached pages: so that pinned ones there do not hide the others.
    uncached_looks: usize,
    /// Where the last page looked at was pinned: the next look is elsewhere, for the same reason.
    pinned_in: Option<Queue>,
}

/// How long to look for pages that may go.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effort {
    /// A few hundred looks: somebody waits, and will be woken by the background if it is in vain.
    Foreground,
    /// At every page, if need be.
    Background,
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
    /// As much of it is used as the budget needs.
    table: Vec<(u32, u32)>,
    now: u32,
    /// How long one is remembered, in drops.
    memory: u32,
}

impl Ghosts {
    fn new(reserved: u32) -> Self {
        let len = (reserved as usize).next_power_of_two();
        Self { table: vec![(0, 0); len], now: reserved, memory: reserved }
    }

    fn place(&self, key: u64) -> (usize, u32) {
        let mask = (self.memory as usize).next_power_of_two() - 1;
        (key as usize & mask, (key >> 32) as u32 | 1)
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
    pub(crate) fn reclaim(&self, want: usize, reach: Reach, effort: Effort) -> usize {
        let looks = match effort {
            Effort::Foreground => 4 * want + HOLD,
            Effort::Background => 2 * self.queues.lock().len(),
        };
        let mut pass = Pass { reach, looks, uncached_looks: looks / 2, pinned_in: None };
        let mut dropped = 0;
        while dropped < want {
            let before = pass.looks;
            let n = (want - dropped).min(BATCH);
            let candidates = self.queues.lock().candidates(&self.arena, n, &mut pass);
            if pass.looks == before {
                break;
            }
            for group in candidates.chunk_by(|a, b| a.mapping == b.mapping) {
                dropped += self.drop_candidates(group);
            }
        }
        self.stats.add(Count::ReclaimLooks, (looks - pass.looks) as u64);
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
            if meta.has(UNWRITTEN) || self.arena.is_pinned(candidate.frame) {
                let mut queues = self.queues.lock();
                if Queue::of(&self.arena, candidate.frame).is_none() {
                    queues.put_back(&self.arena, candidate.queue, candidate.frame);
                }
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
