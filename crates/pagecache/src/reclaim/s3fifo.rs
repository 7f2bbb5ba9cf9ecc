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

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use std::sync::Arc;
    use weir_base::PAGE_SIZE;

    const FRAMES: u32 = 64;

    struct Cache {
        arena: Arc<Arena>,
        queues: Queues,
        clock: AtomicU32,
    }

    impl Cache {
        fn new() -> Self {
            let arena = Arc::new(Arena::new(FRAMES, FRAMES).unwrap());
            Self { arena, queues: Queues::new(FRAMES, FRAMES), clock: AtomicU32::new(0) }
        }

        /// A page that is in no queue.
        fn page(&self, flags: u16) -> FrameNo {
            self.arena.take(1, 1).unwrap().publish(0, flags, PAGE_SIZE)
        }

        fn insert(&mut self, flags: u16, key: u64) -> FrameNo {
            let frame = self.page(flags);
            self.queues.insert(&self.arena, frame, key, &self.clock);
            frame
        }

        /// A page in the small queue, or the one of uncached pages.
        fn new_page(&mut self, flags: u16) -> FrameNo {
            self.insert(flags, 0)
        }

        fn main_page(&mut self) -> FrameNo {
            self.queues.ghosts.remember(1);
            let frame = self.insert(0, 1);
            assert_eq!(self.queue_of(frame), Some(Queue::Main));
            frame
        }

        fn replace(&mut self, old: FrameNo, flags: u16) -> FrameNo {
            let new = self.page(flags);
            self.queues.replace(&self.arena, old, new, &self.clock);
            new
        }

        fn set(&self, frame: FrameNo, flags: u16) {
            self.arena.meta(frame).set(flags);
        }

        fn queue_of(&self, frame: FrameNo) -> Option<Queue> {
            Queue::of(&self.arena, frame)
        }

        /// The page's write to the store has ended.
        fn clean(&mut self, frame: FrameNo) {
            self.arena.meta(frame).clear(UNWRITTEN);
            self.queues.cleaned(&self.arena, [frame].into_iter());
        }

        fn look(&mut self, want: usize, looks: usize, uncached_only: bool) -> Vec<FrameNo> {
            let mut pass =
                Pass { uncached_only, looks, uncached_looks: looks / 2, pinned_in: None };
            let found = self.queues.candidates(&self.arena, want, &mut pass);
            found.iter().map(|candidate| candidate.frame).collect()
        }

        /// All candidates.
        fn drain(&mut self) -> Vec<FrameNo> {
            self.look(FRAMES as usize, 4 * FRAMES as usize, false)
        }
    }

    #[test]
    fn the_oldest_pages_go_first_and_used_ones_later() {
        let mut cache = Cache::new();
        let [a, b, c] = [0; 3].map(|_| cache.new_page(0));
        cache.set(b, flag::REFERENCED);
        assert_eq!(cache.look(2, 3, false), [a, c]);
        assert_eq!((cache.queue_of(a), cache.queue_of(b)), (None, Some(Queue::Main)));
        assert_eq!((cache.queues.len(), cache.drain()), (1, vec![b]));
        assert_eq!(cache.queues.len(), 0);
    }

    #[test]
    fn a_page_that_is_not_written_is_parked_until_it_is_clean() {
        for flags in [flag::DIRTY, flag::WRITEBACK] {
            let mut cache = Cache::new();
            let [parked, other] = [flags, 0].map(|flags| cache.new_page(flags));
            assert_eq!(cache.drain(), [other]);
            assert_eq!(cache.queues.len(), 0, "looked at once");
            cache.queues.cleaned(&cache.arena, [parked].into_iter());
            assert_eq!((cache.queues.len(), cache.drain()), (0, vec![]), "not clean yet");
            cache.clean(parked);
            cache.clean(parked);
            assert_eq!((cache.queues.len(), cache.drain()), (1, vec![parked]));
        }
    }

    #[test]
    fn removing_a_page_leaves_its_neighbours() {
        for removed in 0..4 {
            let mut cache = Cache::new();
            let parked = cache.new_page(flag::DIRTY);
            assert_eq!(cache.drain(), []);
            let mut all = vec![parked];
            all.extend([0; 3].map(|_| cache.new_page(0)));
            cache.queues.remove(&cache.arena, all[removed]);
            cache.queues.remove(&cache.arena, all[removed]);
            assert_eq!(cache.queue_of(all.remove(removed)), None);
            assert_eq!(cache.queues.len(), if removed == 0 { 3 } else { 2 });
            if removed > 0 {
                // To the end of the queue, which is looked at next.
                cache.clean(parked);
            }
            assert_eq!(cache.drain(), all);
        }
    }

    #[test]
    fn a_replacement_has_the_place_and_the_use_of_the_old_page() {
        for at in 0..3 {
            let mut cache = Cache::new();
            let mut pages = [0; 3].map(|_| cache.new_page(0));
            let old = pages[at];
            pages[at] = cache.replace(old, 0);
            assert_eq!((cache.queue_of(old), cache.queues.len()), (None, 3));
            assert_eq!(cache.drain(), pages);
        }
        let mut cache = Cache::new();
        let [a, b] = [0; 2].map(|_| cache.new_page(0));
        cache.set(a, flag::REFERENCED);
        let new = cache.replace(a, 0);
        assert_eq!(cache.look(1, 2, false), [b]);
        assert_eq!(cache.queue_of(new), Some(Queue::Main));
    }

    #[test]
    fn a_replacement_of_a_parked_page_waits_for_its_own_write() {
        let mut cache = Cache::new();
        let parked = cache.new_page(flag::WRITEBACK);
        assert_eq!(cache.drain(), []);
        let new = cache.replace(parked, flag::DIRTY);
        cache.clean(parked);
        assert_eq!((cache.queues.len(), cache.drain()), (0, vec![]));
        cache.clean(new);
        assert_eq!((cache.queues.len(), cache.drain()), (1, vec![new]));
    }

    #[test]
    fn a_replacement_of_a_page_without_a_queue_enters_its_own() {
        for (old, new, queue) in [
            (flag::UNCACHED, flag::UNCACHED, Queue::Uncached),
            (flag::UNCACHED, 0, Queue::Small),
            (0, 0, Queue::Small),
        ] {
            let mut cache = Cache::new();
            let page = cache.new_page(old);
            if old == 0 {
                assert_eq!(cache.drain(), [page], "out for inspection");
            }
            let new = cache.replace(page, new);
            assert_eq!(cache.queue_of(new), Some(queue));
            assert_eq!((cache.queue_of(page), cache.queues.len()), (None, 1));
        }
    }

    #[test]
    fn pages_of_uncached_operations_go_first_unless_claimed() {
        let mut cache = Cache::new();
        let [small, claimed, uncached] =
            [0, flag::UNCACHED, flag::UNCACHED].map(|flags| cache.new_page(flags));
        cache.arena.meta(claimed).clear(flag::UNCACHED);
        assert_eq!(cache.look(3, 10, true), [uncached]);
        assert_eq!(cache.queue_of(claimed), Some(Queue::Small));
        assert_eq!(cache.look(3, 10, true), [], "no others");
        assert_eq!(cache.drain(), [small, claimed]);
        let [small, uncached] = [0, flag::UNCACHED].map(|flags| cache.new_page(flags));
        assert_eq!(cache.drain(), [uncached, small]);
    }

    #[test]
    fn a_pinned_page_does_not_hide_those_of_other_queues() {
        let mut cache = Cache::new();
        let [pinned, uncached] = [0, flag::UNCACHED].map(|flags| cache.new_page(flags));
        let main = cache.main_page();
        cache.arena.pin(pinned);
        cache.arena.pin(uncached);
        // One look at each.
        assert_eq!(cache.look(1, 3, false), [main]);
        assert_eq!((cache.queues.len(), cache.look(2, 10, false)), (2, vec![]));
        cache.arena.unpin([pinned, uncached].into_iter());
        assert_eq!(cache.drain(), [uncached, pinned]);
    }

    #[test]
    fn the_small_queue_keeps_a_tenth() {
        let mut cache = Cache::new();
        let main = [0; 18].map(|_| cache.main_page());
        let small = [0; 3].map(|_| cache.new_page(0));
        assert_eq!(cache.look(3, 3, false), [small[0], main[0], small[1]]);
    }

    #[test]
    fn a_page_that_is_missed_soon_enters_the_main_queue_once() {
        let mut cache = Cache::new();
        let queue = |cache: &mut Cache| {
            let frame = cache.insert(0, 5);
            cache.queue_of(frame)
        };
        assert_eq!(queue(&mut cache), Some(Queue::Small), "never dropped");
        for drops in [FRAMES - 1, FRAMES] {
            cache.queues.ghosts.remember(5);
            (0..drops).for_each(|_| cache.queues.ghosts.remember(6));
            let is_soon = drops < FRAMES;
            let expected = if is_soon { Queue::Main } else { Queue::Small };
            assert_eq!(queue(&mut cache), Some(expected), "after {drops} drops");
            assert_eq!(queue(&mut cache), Some(Queue::Small));
        }
    }
}
