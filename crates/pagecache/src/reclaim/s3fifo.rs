//! Chooses the pages to evict when memory is short: S3-FIFO with one reference bit.
//!
//! 1. Only clean pages that are not pinned are dropped (I3).
//! 2. Pages that an uncached operation brought in have their own queue, go first, and never enter
//!    the main queue unless claimed.
//! 3. New pages enter the small queue (a tenth of all). Pages that are used again later move to the
//!    main queue; the others are dropped and remembered for a while (the ghosts), and a ghost that
//!    is soon missed enters the main queue at once. So a scan passes through the small queue and
//!    leaves the main one alone.
//! 4. A use soon after the insertion does not count: a stream that reads a page in eight pieces
//!    uses it once.
//! 5. A look at a page has one of three results: it drops the page; or clears its reference bit; or
//!    finds it dirty and parks it (a flag, and removal from the list) until the write that cleans
//!    it returns it to the end of its queue. Only pinned pages are looked at repeatedly, and a call
//!    in the foreground gives up after a few hundred looks.
//!
//! Lock order: a mapping's state, then the queues. Reclaim takes candidates out under the queues'
//! lock, releases it, and then takes the mapping's; so no thread reclaims holding a mapping's lock.

use crate::memory::arena::{Arena, flag};
use crate::memory::frame_no::FrameNo;
use weir_base::sync::atomic::{AtomicU32, Ordering};

/// Most pages examined under one hold of the queues' lock.
pub(super) const HOLD: usize = 256;

/// The queue of a page.
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
    /// The page's queue, in whose list it is unless parked. `None` while it is out for inspection.
    pub(super) fn of(arena: &Arena, frame: FrameNo) -> Option<Self> {
        match (arena.meta(frame).flags() & flag::QUEUE) >> flag::QUEUE_SHIFT {
            1 => Some(Self::Small),
            2 => Some(Self::Main),
            3 => Some(Self::Uncached),
            _ => None,
        }
    }
}

/// Flags of a dirty page, or one under writeback.
pub(super) const UNWRITTEN: u16 = flag::DIRTY | flag::WRITEBACK;

#[derive(Clone, Copy)]
struct List {
    head: FrameNo,
    tail: FrameNo,
    len: u32,
}

impl List {
    /// Makes the page `prev` (or the head) point at `first`, and `next` (or the tail) at `last`.
    fn relink(&mut self, arena: &Arena, [prev, first]: [FrameNo; 2], [last, next]: [FrameNo; 2]) {
        match prev {
            FrameNo::NONE => self.head = first,
            prev => arena.meta(prev).set_next(first),
        }
        match next {
            FrameNo::NONE => self.tail = last,
            next => arena.meta(next).set_prev(last),
        }
    }
}

const EMPTY: List = List { head: FrameNo::NONE, tail: FrameNo::NONE, len: 0 };

/// The queues, as lists through the frames' metadata; new pages come in at the head.
pub(crate) struct Queues {
    lists: [List; 3],
    pub(super) ghosts: Ghosts,
}

impl Queues {
    pub(crate) fn new(frames: u32, reserved: u32) -> Self {
        let mut queues = Self { lists: [EMPTY; 3], ghosts: Ghosts::new(reserved) };
        queues.resize(frames);
        queues
    }

    /// Adapts to a cache of so many frames.
    pub(crate) fn resize(&mut self, frames: u32) {
        self.ghosts.memory = frames;
    }

    /// Adds a page that is new in the cache.
    pub(crate) fn insert(&mut self, arena: &Arena, frame: FrameNo, key: u64, clock: &AtomicU32) {
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

    /// Puts `new` in the place of `old`, with its age and its reference bit.
    pub(crate) fn replace(&mut self, arena: &Arena, old: FrameNo, new: FrameNo, clock: &AtomicU32) {
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
                let (prev, next) = (was.prev(), was.next());
                now.set_prev(prev);
                now.set_next(next);
                self.lists[queue as usize - 1].relink(arena, [prev, new], [new, next]);
                was.clear(flag::QUEUE);
                now.set((queue as u16) << flag::QUEUE_SHIFT);
            }
        }
    }

    /// Removes a page, if it is in a queue.
    pub(crate) fn remove(&mut self, arena: &Arena, frame: FrameNo) {
        let Some(queue) = Queue::of(arena, frame) else { return };
        let meta = arena.meta(frame);
        if meta.clear(flag::PARKED | flag::QUEUE) & flag::PARKED == 0 {
            let (prev, next) = (meta.prev(), meta.next());
            let list = &mut self.lists[queue as usize - 1];
            list.relink(arena, [prev, next], [prev, next]);
            list.len -= 1;
        }
    }

    fn push(&mut self, arena: &Arena, queue: Queue, frame: FrameNo) {
        let list = &mut self.lists[queue as usize - 1];
        let meta = arena.meta(frame);
        meta.set_prev(FrameNo::NONE);
        meta.set_next(list.head);
        list.relink(arena, [FrameNo::NONE, frame], [frame, list.head]);
        list.len += 1;
        meta.set((queue as u16) << flag::QUEUE_SHIFT);
    }

    /// Returns a page to the end of its queue, or parks it until it is clean.
    pub(super) fn put_back(&mut self, arena: &Arena, queue: Queue, frame: FrameNo) {
        let meta = arena.meta(frame);
        let list = &mut self.lists[queue as usize - 1];
        meta.set((queue as u16) << flag::QUEUE_SHIFT);
        if meta.has(UNWRITTEN) {
            meta.set(flag::PARKED);
            return;
        }
        meta.set_next(FrameNo::NONE);
        meta.set_prev(list.tail);
        list.relink(arena, [list.tail, frame], [frame, FrameNo::NONE]);
        list.len += 1;
    }

    /// Unparks pages that have become clean. Call it after their flags were cleared: the reclaimer
    /// that parks a page checks its flags under this lock, so either it sees them cleared, or this
    /// call sees the page parked.
    pub(crate) fn cleaned(&mut self, arena: &Arena, frames: impl Iterator<Item = FrameNo>) {
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
    pub(crate) fn len(&self) -> usize {
        self.lists.iter().map(|l| l.len as usize).sum()
    }

    /// Takes out up to `want` pages that were not used since the last look at them.
    pub(super) fn candidates(
        &mut self,
        arena: &Arena,
        want: usize,
        pass: &mut Pass,
    ) -> Vec<Candidate> {
        let mut found = Vec::new();
        let mut hold = HOLD;
        while found.len() < want && hold > 0 {
            let [small, main, uncached] = self.lists.map(|l| l.len);
            let queue = if uncached > 0 && pass.uncached_looks > 0 {
                pass.uncached_looks -= 1;
                Queue::Uncached
            } else if pass.uncached_only || small + main == 0 {
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

/// Remaining effort of one reclaim call.
pub(super) struct Pass {
    /// Only take pages from the queue of uncached pages.
    pub(super) uncached_only: bool,
    /// Remaining looks at pages.
    pub(super) looks: usize,
    /// Remaining looks at uncached pages: pinned ones there must not hide the other queues.
    pub(super) uncached_looks: usize,
    /// The queue whose page was pinned at the last look: look elsewhere next, for the same reason.
    pub(super) pinned_in: Option<Queue>,
}

/// A page that may be evicted.
pub(super) struct Candidate {
    pub(super) frame: FrameNo,
    pub(super) queue: Queue,
    pub(super) mapping: u32,
    pub(super) page: u64,
}

/// Recently dropped pages: a table of fingerprints, each with the time of its drop.
pub(super) struct Ghosts {
    /// The part of it in use depends on the budget.
    table: Vec<(u32, u32)>,
    now: u32,
    /// How long a page is remembered, in drops.
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

    pub(super) fn remember(&mut self, key: u64) {
        let (at, print) = self.place(key);
        self.now = self.now.wrapping_add(1);
        self.table[at] = (print, self.now);
    }

    /// Whether `key` was dropped recently; forgets it.
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
