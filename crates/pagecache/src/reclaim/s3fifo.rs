//! Which pages go when memory is short: S3-FIFO with one reference bit.
//!
//! 1. Only clean pages that are not pinned are dropped (I3).
//! 2. Pages that an uncached operation brought in lie in a queue of their own, go first, and never
//!    enter the main queue unless claimed.
//! 3. New pages enter the small queue (a tenth of all). Those used again later move to the main
//!    queue; those that were not are dropped and remembered for a while (the ghosts), and should
//!    one be missed soon, it enters the main queue at once. So a scan passes through the small
//!    queue and leaves the main one alone.
//! 4. A use that follows the insertion closely does not count: a stream that reads a page in
//!    eight pieces uses it once.
//! 5. A look has one of three results: it drops the page; or takes away the reference that a read
//!    left; or finds the page dirty and parks it (a flag, and out of the list) until the write
//!    that cleans it puts it back where it was, at the end. Only pinned pages are looked at again
//!    and again, and a call in the foreground gives up after a few hundred looks.
//!
//! Lock order: a mapping's state, then the queues. Reclaim takes candidates out under the queues'
//! lock, lets go of it, and then takes the mapping's; so no thread reclaims holding a mapping's lock.

use crate::memory::arena::{Arena, flag};
use crate::memory::frame_no::FrameNo;
use weir_base::sync::atomic::{AtomicU32, Ordering};

/// Pages looked at under one hold of it.
pub(super) const HOLD: usize = 256;

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
    pub(super) fn of(arena: &Arena, frame: FrameNo) -> Option<Self> {
        match (arena.meta(frame).flags() & flag::QUEUE) >> flag::QUEUE_SHIFT {
            1 => Some(Self::Small),
            2 => Some(Self::Main),
            3 => Some(Self::Uncached),
            _ => None,
        }
    }
}

/// Flags of a page that is not in the store yet.
pub(super) const UNWRITTEN: u16 = flag::DIRTY | flag::WRITEBACK;

#[derive(Clone, Copy)]
struct List {
    head: FrameNo,
    tail: FrameNo,
    len: u32,
}

impl List {
    /// Lets the page `prev` (or the head) point at `first`, and `next` (or the tail) at `last`.
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

    /// The cache has so many frames from now on.
    pub(crate) fn resize(&mut self, frames: u32) {
        self.ghosts.memory = frames;
    }

    /// Enters a page that is new in the cache.
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

    /// Puts `new` where `old` is, as old and as used as that.
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

    /// Takes a page out, if it is in a queue.
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

    /// Puts a page back that was at the end of its queue: there, or aside until it is clean.
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

    /// Notes that pages may have become clean. To be told after their flags were cleared: the reclaimer
    /// that parks a page looks at its flags under this lock, so either it sees them cleared, or this
    /// sees it parked.
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
    pub(super) fn len(&self) -> usize {
        self.lists.iter().map(|l| l.len as usize).sum()
    }

    /// Takes up to `want` pages out that have not been used since they were last looked at.
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

/// What one call of reclaim may still do.
pub(super) struct Pass {
    /// Only from the queue of uncached pages.
    pub(super) uncached_only: bool,
    /// Pages to look at.
    pub(super) looks: usize,
    /// Of these, in the queue of uncached pages: so that pinned ones there do not hide the others.
    pub(super) uncached_looks: usize,
    /// Where the last page looked at was pinned: the next look is elsewhere, for the same reason.
    pub(super) pinned_in: Option<Queue>,
}

/// A page that may go.
pub(super) struct Candidate {
    pub(super) frame: FrameNo,
    pub(super) queue: Queue,
    pub(super) mapping: u32,
    pub(super) page: u64,
}

/// Pages that were dropped lately: a table of fingerprints, each with the time of its drop.
pub(super) struct Ghosts {
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

    pub(super) fn remember(&mut self, key: u64) {
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
