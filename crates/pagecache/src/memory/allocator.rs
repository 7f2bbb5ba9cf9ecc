//! Page frames for whoever needs them, and back.
//!
//! 1. Who needs frames takes free ones; else collects frames whose epoch has passed; else reclaims
//!    clean pages; else waits in line. Nobody waits for memory while holding frames or a lock that
//!    somebody needs in order to free some.
//! 2. Who lacks no more than what waits for its epoch waits for that: whatever else it could drop
//!    would have to wait for the same epoch.
//! 3. Uncached operations live on the reserve, which the background keeps free of cached pages. One
//!    that finds it used up waits for others of its kind, and takes pages of others ([`lost_pages`])
//!    only if none of these gets on.
//! 4. What is let go of is free again soon, without anybody being short of memory: else a stream
//!    goes through all frames of the arena in turn, memory that was never touched, then memory that
//!    no processor's cache holds.
//! 5. Where nothing moves, those who wait cost little: they rouse the background once, and again
//!    when something has moved; it looks on their behalf less and less often, and does not look in
//!    vain for what it has not found.
//!
//! [`lost_pages`]: crate::Stats::lost_pages

use crate::cache::Shared;
use crate::mapping::index::Garbage;
use crate::memory::arena::Frames;
use crate::reclaim::s3fifo::{Effort, Reach};
use crate::stats::Count;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};
use weir_base::sync::Mutex;
use weir_base::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};

/// What is known of memory that is wanted or on its way back.
#[derive(Default)]
pub(crate) struct Supply {
    /// What was let go of and is not free yet, the longest ago first.
    retired: Mutex<VecDeque<Retired>>,
    /// Frames in it.
    retired_frames: AtomicUsize,
    /// Those who wait for memory.
    line: Mutex<Line>,
    /// Cached operations have found too few frames free.
    short: AtomicBool,
    /// The background is reclaiming.
    reclaiming: AtomicBool,
    /// Counts what may have made memory free or droppable while somebody waited, and who came to
    /// wait.
    moved: AtomicU64,
    /// Threads that have frames of uncached operations in their hands, where nobody else sees them.
    at_work: AtomicUsize,
    /// Pages that uncached operations have dropped when done with them, so far.
    pub(crate) pruned: AtomicU64,
}

impl Shared {
    /// Takes up to `want` frames, at least `min`, waiting if need be. Fewer than `min` if the budget
    /// becomes so small meanwhile that a step asks for less.
    pub(crate) async fn alloc(self: &Arc<Self>, want: usize, min: usize, uncached: bool) -> Frames {
        if let Some(frames) = self.try_alloc(want, min, uncached) {
            return frames;
        }
        self.stats.add(Count::MemoryWaits, 1);
        let place = Place::take(self, uncached);
        let mut patience = Patience::new(self);
        let mut roused = None;
        loop {
            let ticket = self.freed.ticket();
            let moved = self.supply.moved.load(Ordering::SeqCst);
            let min = min.min(self.limits().step);
            let take_others = !uncached || patience.is_over(self);
            if place.is_first()
                && let Some(frames) = self.grab(want, min, uncached, take_others)
            {
                return frames;
            }
            if !uncached {
                self.supply.short.store(true, Ordering::SeqCst);
            }
            if roused.replace(moved) != Some(moved) {
                self.reclaimer.kick();
                self.kick_flushers();
            }
            self.freed.wait(ticket).await;
        }
    }

    /// Takes up to `want` frames, at least `min`, if they can be had without waiting and nobody
    /// else is waiting.
    pub(crate) fn try_alloc(&self, want: usize, min: usize, uncached: bool) -> Option<Frames> {
        self.make_room();
        if self.waiting.load(Ordering::Relaxed) > 0 && !self.supply.line.lock().lets_pass(uncached)
        {
            return None;
        }
        self.grab(want, min, uncached, !uncached)
    }

    /// Takes up to `want` frames that are free, for read-ahead: that is not worth dropping a page
    /// for, which may be the very one that it runs ahead of.
    pub(crate) fn alloc_spare(&self, want: usize, uncached: bool) -> Option<Frames> {
        if self.waiting.load(Ordering::Relaxed) > 0 || self.trees_are_large() {
            return None;
        }
        let take = || Some(self.arena.take(want, 1)?.lend(uncached));
        let frames = take().or_else(|| {
            self.collect();
            take()
        });
        if !uncached && self.arena.free_frames() < self.limits().free_low {
            self.run_short();
        }
        frames
    }

    /// Has the background keep some frames free: cached operations use up the reserve. (Uncached
    /// ones may; it is there for them.)
    fn run_short(&self) {
        self.supply.short.store(true, Ordering::SeqCst);
        self.reclaimer.kick();
    }

    /// Takes free frames, or makes some free: for an uncached operation from what such operations
    /// left, and from others' pages only with `take_others`.
    fn grab(&self, want: usize, min: usize, uncached: bool, take_others: bool) -> Option<Frames> {
        let take = || Some(self.arena.take(want, min)?.lend(uncached));
        let frames = take().or_else(|| {
            self.collect();
            take()
        });
        if frames.is_some() {
            // Uncached operations give their frames back by themselves.
            if !uncached && self.arena.free_frames() < self.limits().free_low {
                self.run_short();
            }
            return frames;
        }
        let _at_work = uncached.then(|| self.at_work());
        // Enough is on its way, and what is dropped now would wait for the same epoch.
        let soon = self.supply.retired_frames.load(Ordering::Relaxed);
        if self.arena.free_frames() as usize + soon >= min {
            return None;
        }
        self.stats.add(Count::ReclaimDirect, 1);
        if uncached && self.reclaim(want, Reach::Uncached, Effort::Foreground) > 0 {
            self.collect();
            // If not, it waits for its epoch.
            return take();
        }
        if !take_others {
            return None;
        }
        let enough = if uncached { min } else { want.max(32) };
        let enough = enough.min(self.arena.frames() as usize / 4).max(min);
        let dropped = self.reclaim(enough, Reach::All, Effort::Foreground);
        if uncached {
            self.stats.add(Count::LostPages, dropped as u64);
        }
        self.collect();
        take()
    }

    /// While it lives, those who wait for frames of uncached operations know that somebody has some
    /// in his hands.
    pub(crate) fn at_work(&self) -> AtWork<'_> {
        self.supply.at_work.fetch_add(1, Ordering::SeqCst);
        AtWork(&self.supply.at_work)
    }

    /// Hands over what a mapping's slots let go of.
    pub(crate) fn retire(&self, frames: Vec<u32>, nodes: Vec<Garbage>) {
        let tag = self.epoch.now();
        let mut retired = self.supply.retired.lock();
        self.supply.retired_frames.fetch_add(frames.len(), Ordering::SeqCst);
        retired.push_back(Retired { tag, frames, nodes });
    }

    /// [`collect`](Self::collect), where it is worth a look.
    pub(crate) fn collect_some(&self) {
        if self.supply.retired_frames.load(Ordering::Relaxed) >= COLLECT {
            self.collect();
        }
    }

    /// Frees what was retired and whose epoch has passed.
    pub(crate) fn collect(&self) {
        // Two steps make everything pass that nobody can see.
        self.epoch.advance();
        self.epoch.advance();
        let mut passed = Vec::new();
        {
            let mut retired = self.supply.retired.lock();
            while retired.front().is_some_and(|r| self.epoch.passed(r.tag)) {
                passed.extend(retired.pop_front());
            }
        }
        if passed.is_empty() {
            return;
        }
        self.unpin(passed.iter().flat_map(|r| r.frames.iter().copied()));
        let frames = passed.iter().map(|r| r.frames.len()).sum();
        self.supply.retired_frames.fetch_sub(frames, Ordering::SeqCst);
        drop(passed.into_iter().map(|r| r.nodes).collect::<Vec<_>>());
    }

    /// Drops references to frames.
    pub(crate) fn unpin(&self, frames: impl Iterator<Item = u32>) {
        self.arena.unpin(frames);
        self.notify_waiting();
    }

    /// Drops references to runs of frames.
    pub(crate) fn unpin_runs(&self, runs: impl Iterator<Item = (u32, u32)>) {
        self.arena.unpin_runs(runs);
        self.notify_waiting();
    }

    /// Wakes those in line for memory: pages are free, or may be reclaimed from here on.
    pub(crate) fn notify_waiting(&self) {
        // Who takes a place in line after this looks for memory after it, too.
        fence(Ordering::SeqCst);
        if self.waiting.load(Ordering::SeqCst) > 0 {
            self.supply.moved.fetch_add(1, Ordering::SeqCst);
            self.freed.notify();
        }
    }

    /// The background's work on memory: keeps some frames free, so that few have to reclaim
    /// themselves, and frees what waited for its epoch.
    pub(crate) fn reclaim_loop(&self) {
        let mut lull = Lull { moved: 0, since: self.now() };
        let mut in_vain = None;
        loop {
            let waiting = self.waiting.load(Ordering::SeqCst) > 0;
            let retired = !self.supply.retired.lock().is_empty();
            let nap = if waiting {
                lull.nap(self)
            } else if retired || self.resizing.load(Ordering::SeqCst) {
                Duration::from_millis(5)
            } else {
                Duration::from_secs(1)
            };
            self.reclaimer.sleep(nap);
            if self.stop.load(Ordering::SeqCst) && self.dirty.pages() == 0 {
                return;
            }
            let moved = self.supply.moved.load(Ordering::SeqCst);
            self.collect();
            let (used, frames) = (self.arena.used_frames(), self.arena.frames());
            let resizing = self.resizing.load(Ordering::SeqCst);
            // Set first, so that nobody finds neither.
            self.supply.reclaiming.store(true, Ordering::SeqCst);
            let short = self.supply.short.swap(false, Ordering::SeqCst) || resizing;
            // What a pass has left is unwritten or pinned, and so it is until something moves.
            let tried = !resizing && in_vain == Some(moved);
            if short && !tried && used + self.limits().free_low > frames {
                self.stats.add(Count::ReclaimBackground, 1);
                let want = (used + self.limits().free_high).saturating_sub(frames) as usize;
                let dropped = self.reclaim(want, Reach::All, Effort::Background);
                in_vain = (dropped == 0).then_some(moved);
                self.collect();
            }
            self.supply.reclaiming.store(false, Ordering::SeqCst);
            if resizing {
                self.resize();
            }
            if self.waiting.load(Ordering::SeqCst) > 0 {
                self.freed.notify();
            }
        }
    }
}

/// How long it has been that nothing moved for those who wait.
struct Lull {
    moved: u64,
    since: Instant,
}

impl Lull {
    /// How long to let them wait before the next look: at first as briefly as makes little
    /// difference, in the end as long as somebody hardly minds who waits for a store that hangs.
    fn nap(&mut self, shared: &Shared) -> Duration {
        let (moved, now) = (shared.supply.moved.load(Ordering::SeqCst), shared.now());
        if std::mem::replace(&mut self.moved, moved) != moved {
            self.since = now;
        }
        ((now - self.since) / 1000).clamp(Duration::from_micros(200), Duration::from_millis(20))
    }
}

/// What a mapping's slots let go of; to be used again when its epoch has passed.
struct Retired {
    tag: u64,
    frames: Vec<u32>,
    nodes: Vec<Garbage>,
}

/// See [`Shared::at_work`].
pub(crate) struct AtWork<'a>(&'a AtomicUsize);

impl Drop for AtWork<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Frames that may wait for their epoch before somebody looks whether it has passed: a look reads a
/// line of each thread, and these still fit in a processor's cache.
const COLLECT: usize = 32;

/// Those who wait for memory by number; uncached operations behind all others, since they wait for
/// each other.
#[derive(Default)]
struct Line {
    next: u64,
    waiting: BTreeSet<(bool, u64)>,
}

impl Line {
    /// Whether nobody is in the way of a newcomer.
    fn lets_pass(&self, uncached: bool) -> bool {
        match self.waiting.first() {
            None => true,
            Some(&(first_uncached, _)) => first_uncached && !uncached,
        }
    }
}

/// A place in the line for memory; left on drop.
struct Place<'a> {
    shared: &'a Shared,
    number: (bool, u64),
}

impl<'a> Place<'a> {
    fn take(shared: &'a Shared, uncached: bool) -> Self {
        let mut line = shared.supply.line.lock();
        let number = (uncached, line.next);
        line.next += 1;
        line.waiting.insert(number);
        shared.waiting.store(line.waiting.len(), Ordering::SeqCst);
        shared.supply.moved.fetch_add(1, Ordering::SeqCst);
        drop(line);
        if uncached {
            // The flushers look again, now also for pages that were left half-written.
            for lane in shared.lanes() {
                lane.urgent.fetch_add(1, Ordering::SeqCst);
            }
        }
        fence(Ordering::SeqCst);
        Self { shared, number }
    }

    fn is_first(&self) -> bool {
        self.shared.supply.line.lock().waiting.first() == Some(&self.number)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut line = self.shared.supply.line.lock();
        line.waiting.remove(&self.number);
        self.shared.waiting.store(line.waiting.len(), Ordering::SeqCst);
        drop(line);
        self.shared.notify_waiting();
    }
}

/// How long an uncached operation waits while others of its kind are at work and none gets on.
const PATIENCE: Duration = Duration::from_millis(250);
/// The same while none is at work.
const ALONE: Duration = Duration::from_millis(20);
/// How long it waits at most.
const AT_MOST: Duration = Duration::from_secs(2);
/// As so much at most counts the time from one look to the next: on a busy machine, or one that was
/// suspended, the others have not run any more than this one has.
const LOOK: Duration = Duration::from_millis(1);

/// Whether it still makes sense for an uncached operation to wait for others of its kind.
struct Patience {
    looked: Instant,
    /// In all.
    waited: Duration,
    /// Since one of the others was last seen to get on.
    stuck: Duration,
    /// Since one of them was last seen at work.
    alone: Duration,
    /// What was counted then.
    pruned: u64,
    returns: u32,
}

impl Patience {
    fn new(shared: &Shared) -> Self {
        Self {
            looked: shared.now(),
            waited: Duration::ZERO,
            stuck: Duration::ZERO,
            alone: Duration::ZERO,
            pruned: shared.supply.pruned.load(Ordering::Relaxed),
            returns: shared.arena.returns(),
        }
    }

    /// To be asked again and again; a store that hangs must not hold up the others' files for ever.
    fn is_over(&mut self, shared: &Shared) -> bool {
        let now = shared.now();
        let passed = (now - std::mem::replace(&mut self.looked, now)).min(LOOK);
        let pruned = shared.supply.pruned.load(Ordering::Relaxed);
        let got_on = std::mem::replace(&mut self.pruned, pruned) != pruned;
        self.stuck = if got_on { Duration::ZERO } else { self.stuck + passed };
        // One that is at work has just given frames back, has some in its hands, is filling some, has
        // I/O in flight, or waits for the flusher, for an epoch, or for the background to drop what
        // cached operations have put in the reserve.
        let supply = &shared.supply;
        let returns = shared.arena.returns();
        let at_work = std::mem::replace(&mut self.returns, returns) != returns
            || shared.arena.lent() > 0
            || shared.uncached_io.load(Ordering::SeqCst) > 0
            || !shared.flushers_have_seen_all()
            || supply.retired_frames.load(Ordering::SeqCst) > 0
            || supply.at_work.load(Ordering::SeqCst) > 0
            || supply.short.load(Ordering::SeqCst)
            || supply.reclaiming.load(Ordering::SeqCst);
        self.alone = if at_work { Duration::ZERO } else { self.alone + passed };
        self.waited += passed;
        self.alone >= ALONE || self.stuck >= PATIENCE || self.waited >= AT_MOST
    }
}
