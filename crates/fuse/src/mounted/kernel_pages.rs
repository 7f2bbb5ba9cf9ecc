//! What the kernel keeps of files, and how it drops it.
//!
//! 1. With [`Keeper::Window`](crate::Keeper::Window), what programs read passes through the kernel's cache, with its
//!    read-ahead, and leaves it soon after: each READ or WRITE that puts pages there is noted here, and when more than
//!    the limit is noted, those noted first are dropped.
//! 2. What is read again soon after it was dropped (the libraries of a program beside the data that it reads, say) is
//!    dropped after all others, while it is at most half of the limit.
//! 3. What is noted is bounded: ranges of one file that follow each other become one, and beyond `MOST_RANGES` they
//!    are dropped although they are short. If dropping stands still, the oldest are forgotten beyond twice as many.
//! 4. Dropping waits for pages that are being read, without end if the store does not answer. So threads do it that
//!    answer no request, and that do not keep the process from ending ([`notifier`](crate::session::notifier)): one
//!    for those who wait for it (holders of locks, and SEEK_DATA), one for all else.
//! 5. These threads have no descriptors, so they must not wake a task of the runtime, which may write to one. A third
//!    thread does that.
//! 6. Before it drops pages, the kernel writes out what was stored through mappings, by requests that need room as all
//!    do ([`session`](crate::session)). So those who wait for a drop must leave some.

use crate::session::device::Device;
use crate::session::notifier;
use hashlink::{LinkedHashMap, LinkedHashSet};
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use tokio::sync::oneshot;
use weir_base::PAGE_SIZE;

/// Ranges beyond which they are dropped, however short they are.
const MOST_RANGES: usize = 1 << 16;
/// Longest range that ranges become together: it is dropped at once.
const LONGEST: u64 = 1 << 20;
/// Most dropped ranges that are remembered.
const MOST_DROPPED: usize = 1 << 12;
/// The kernel's pages.
const PAGE: u64 = PAGE_SIZE as u64;

/// The pages that the kernel keeps for a mount.
#[derive(Debug)]
pub(super) struct KernelPages {
    shared: Arc<Shared>,
    /// Whether their number is bounded.
    is_window: bool,
}

#[derive(Debug)]
struct Shared {
    work: Mutex<Work>,
    /// There is something to drop, or the mount has ended.
    wake: Condvar,
}

/// Those who wait for a drop.
type Waiting = Vec<oneshot::Sender<()>>;

/// A drop that is waited for.
#[derive(Debug)]
struct Awaited {
    /// Where the pages begin.
    start: u64,
    waiting: Waiting,
}

/// What the threads have to do.
#[derive(Debug)]
struct Work {
    /// Nodes whose pages are to be dropped now.
    now: LinkedHashMap<u64, Awaited>,
    /// Nodes whose pages are to be dropped some time, and the offset from which on.
    soon: LinkedHashMap<u64, u64>,
    window: Option<Window>,
    ended: bool,
    /// The kernel does not drop what is waited for.
    #[cfg(test)]
    held: bool,
}

impl Work {
    /// What is dropped next of `now`.
    fn next_awaited(&mut self) -> Option<(u64, Awaited)> {
        #[cfg(test)]
        if self.held {
            return None;
        }
        self.now.pop_front()
    }

    /// What is dropped next, apart from `now`.
    fn next_of_rest(&mut self) -> Option<Passed> {
        if let Some((node, start)) = self.soon.pop_front() {
            return Some(Passed { node, start, end: u64::MAX });
        }
        self.window.as_mut().filter(|window| window.is_over())?.take()
    }
}

impl KernelPages {
    /// Begins; `limit` bounds their bytes.
    ///
    /// # Errors
    /// There are no more threads or descriptors.
    pub(super) fn new(device: &Device, limit: Option<u64>) -> io::Result<Self> {
        let work = Work {
            now: LinkedHashMap::new(),
            soon: LinkedHashMap::new(),
            window: limit.map(Window::new),
            ended: false,
            #[cfg(test)]
            held: false,
        };
        let shared = Arc::new(Shared { work: Mutex::new(work), wake: Condvar::new() });
        let pages = Self { shared: Arc::clone(&shared), is_window: limit.is_some() };
        let (dropped, told) = channel::<Waiting>();
        std::thread::Builder::new().name("weir-fuse-told".into()).spawn(move || {
            told.into_iter().flatten().for_each(|waits| _ = waits.send(()));
        })?;
        let locks = Arc::clone(&shared);
        notifier::start("weir-fuse-locks", device, move |device| locks.drop_now(&device, dropped))?;
        notifier::start("weir-fuse-pages", device, move |device| shared.drop_rest(&device))?;
        Ok(pages)
    }

    /// Notes that the kernel has pages of a range.
    pub(super) fn note(&self, node: u64, start: u64, bytes: u64) {
        if !self.is_window || bytes == 0 {
            return;
        }
        let mut work = self.shared.work.lock();
        let Some(window) = &mut work.window else { return };
        let end = start.saturating_add(bytes).checked_next_multiple_of(PAGE).unwrap_or(u64::MAX);
        window.note(Passed { node, start: start - start % PAGE, end });
        if window.is_over() {
            self.shared.wake.notify_all();
        }
    }

    /// Has the kernel drop all pages and the attributes of a node, some time.
    pub(super) fn drop_soon(&self, node: u64) {
        self.drop_soon_from(node, 0);
    }

    /// The same for the pages from that of an offset on.
    pub(super) fn drop_soon_from(&self, node: u64, offset: u64) {
        let start = offset - offset % PAGE;
        let mut work = self.shared.work.lock();
        work.soon.entry(node).and_modify(|from| *from = start.min(*from)).or_insert(start);
        drop(work);
        self.shared.wake.notify_all();
    }

    /// Has the kernel drop all pages and the attributes of a node, and waits until it has. It writes out what programs
    /// have stored through mappings before.
    pub(super) async fn drop_now(&self, node: u64) {
        self.drop_now_from(node, 0).await;
    }

    /// The same for the pages from that of an offset on.
    pub(super) async fn drop_now_from(&self, node: u64, offset: u64) {
        let (tell, told) = oneshot::channel();
        let start = offset - offset % PAGE;
        {
            let mut work = self.shared.work.lock();
            let new = || Awaited { start, waiting: Vec::new() };
            let awaited = work.now.entry(node).or_insert_with(new);
            awaited.start = start.min(awaited.start);
            awaited.waiting.push(tell);
        }
        self.shared.wake.notify_all();
        // It has no result; the mount may be ending.
        let _ = told.await;
    }

    /// Has the kernel drop nothing of what is waited for, or go on with it.
    #[cfg(test)]
    pub(super) fn hold(&self, held: bool) {
        self.shared.work.lock().held = held;
        self.shared.wake.notify_all();
    }

    /// Whether the number of pages is bounded.
    pub(super) fn is_window(&self) -> bool {
        self.is_window
    }
}

impl Drop for KernelPages {
    fn drop(&mut self) {
        // Here, and not where the last thread ends (5).
        let waiting = {
            let mut work = self.shared.work.lock();
            work.ended = true;
            std::mem::take(&mut work.now)
        };
        drop(waiting);
        self.shared.wake.notify_all();
    }
}

impl Shared {
    /// Waits for something to do; `None` when the mount has ended: the kernel drops the rest then.
    fn next<T>(&self, mut next: impl FnMut(&mut Work) -> Option<T>) -> Option<T> {
        let mut work = self.work.lock();
        loop {
            if work.ended {
                return None;
            }
            if let Some(next) = next(&mut work) {
                return Some(next);
            }
            self.wake.wait(&mut work);
        }
    }

    fn drop_now(&self, device: &Device, dropped: Sender<Waiting>) {
        while let Some((node, awaited)) = self.next(Work::next_awaited) {
            device.drop_pages(node, awaited.start, 0);
            if let Err(unsent) = dropped.send(awaited.waiting) {
                // Its end would wake tasks (5).
                std::mem::forget(unsent);
            }
        }
    }

    fn drop_rest(&self, device: &Device) {
        while let Some(Passed { node, start, end }) = self.next(Work::next_of_rest) {
            // 0 bytes: up to the end.
            device.drop_pages(node, start, if end == u64::MAX { 0 } else { end - start });
        }
    }
}

/// Pages that the kernel may have.
#[derive(Debug)]
struct Window {
    /// Most bytes of them.
    limit: u64,
    once: Ranges,
    /// Those that were read again after they were dropped.
    again: Ranges,
    /// Where the last dropped ranges were.
    dropped: LinkedHashSet<(u64, u64)>,
}

/// Ranges, the first noted first.
#[derive(Debug, Default)]
struct Ranges {
    ranges: VecDeque<Passed>,
    bytes: u64,
}

/// A range of a file that the kernel got or wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Passed {
    node: u64,
    start: u64,
    end: u64,
}

impl Passed {
    /// The part of the file in which it begins.
    fn place(&self) -> (u64, u64) {
        (self.node, self.start / LONGEST)
    }
}

impl Ranges {
    fn note(&mut self, new: Passed) {
        if let Some(last) = self.ranges.back_mut()
            && last.node == new.node
            && (last.start..=last.end).contains(&new.start)
            && new.end <= last.start + LONGEST
        {
            self.bytes += new.end.saturating_sub(last.end);
            last.end = last.end.max(new.end);
            return;
        }
        if self.ranges.len() >= 2 * MOST_RANGES {
            self.take();
        }
        self.bytes += new.end - new.start;
        self.ranges.push_back(new);
    }

    fn take(&mut self) -> Option<Passed> {
        let first = self.ranges.pop_front()?;
        self.bytes -= first.end - first.start;
        Some(first)
    }
}

impl Window {
    fn new(limit: u64) -> Self {
        let (once, again) = Default::default();
        Self { limit, once, again, dropped: LinkedHashSet::new() }
    }

    fn note(&mut self, new: Passed) {
        let to = if self.dropped.remove(&new.place()) { &mut self.again } else { &mut self.once };
        to.note(new);
    }

    fn is_over(&self) -> bool {
        self.once.bytes + self.again.bytes > self.limit
            || self.once.ranges.len() + self.again.ranges.len() > MOST_RANGES
    }

    /// The range to drop next.
    fn take(&mut self) -> Option<Passed> {
        let from_again = self.again.bytes > self.limit / 2;
        let taken = if from_again { self.again.take() } else { self.once.take() };
        let taken = taken.or_else(|| self.again.take())?;
        if self.dropped.len() == MOST_DROPPED {
            self.dropped.pop_front();
        }
        self.dropped.insert(taken.place());
        Some(taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passed(node: u64, start: u64, end: u64) -> Passed {
        Passed { node, start, end }
    }

    #[test]
    fn what_was_noted_first_is_dropped_first_and_ranges_in_a_row_are_one() {
        let mut window = Window::new(10_000);
        window.note(passed(1, 0, 4096));
        window.note(passed(1, 4096, 8192));
        assert!(!window.is_over());
        window.note(passed(2, 8192, 12_288));
        assert!(window.is_over());
        assert_eq!(window.take(), Some(passed(1, 0, 8192)));
        assert!(!window.is_over());
        assert_eq!((window.take(), window.take()), (Some(passed(2, 8192, 12_288)), None));
        assert_eq!(window.once.bytes, 0);
    }

    #[test]
    fn a_long_read_is_several_ranges() {
        let mut window = Window::new(0);
        let step = 128 << 10;
        for at in 0..24 {
            window.note(passed(1, at * step, (at + 1) * step));
        }
        assert_eq!(window.take(), Some(passed(1, 0, LONGEST)));
        assert_eq!(window.once.ranges.len(), 2);
    }

    #[test]
    fn what_is_read_again_is_dropped_last_up_to_half_of_the_limit() {
        let page = |node, at: u64| passed(node, at * LONGEST, at * LONGEST + 4096);
        let mut window = Window::new(4 * 4096);
        let next = |window: &mut Window, new| {
            window.note(new);
            if window.is_over() { window.take() } else { None }
        };
        // Node 1 is a library, node 2 a file that is read once.
        next(&mut window, page(1, 0));
        let dropped: Vec<_> = (0..4).filter_map(|at| next(&mut window, page(2, at))).collect();
        assert_eq!(dropped, [page(1, 0)]);
        next(&mut window, page(1, 0));
        let dropped: Vec<_> = (4..100).filter_map(|at| next(&mut window, page(2, at))).collect();
        assert_eq!(dropped.len(), 96);
        assert!(dropped.iter().all(|range| range.node == 2), "{dropped:?}");
        // What is read again and again of much does not push out all that is read once.
        for at in 0..100 {
            window.dropped.insert((3, at));
            next(&mut window, page(3, at));
        }
        assert!(window.again.bytes <= 3 * 4096, "{window:?}");
        assert!(window.dropped.len() <= MOST_DROPPED);
    }

    #[test]
    fn short_ranges_are_dropped_by_their_number() {
        let page = |at: u64| passed(1, at * 2 * PAGE, (at * 2 + 1) * PAGE);
        let mut window = Window::new(u64::MAX);
        for at in 0..=MOST_RANGES as u64 {
            assert!(!window.is_over());
            window.note(page(at));
        }
        assert!(window.is_over());
        assert_eq!(window.take(), Some(page(0)));
        // Dropping stands still.
        for at in 0..3 * MOST_RANGES as u64 {
            window.note(page(at));
        }
        assert_eq!(window.once.ranges.len(), 2 * MOST_RANGES);
        assert_eq!(window.once.bytes, 2 * MOST_RANGES as u64 * PAGE);
    }

    #[test]
    fn writes_within_a_page_are_one_range() {
        let mut window = Window::new(u64::MAX);
        for _ in 0..10 {
            window.note(passed(1, 0, PAGE));
        }
        window.note(passed(1, 0, 2 * PAGE));
        assert_eq!((window.once.ranges.len(), window.once.bytes), (1, 2 * PAGE));
    }
}
