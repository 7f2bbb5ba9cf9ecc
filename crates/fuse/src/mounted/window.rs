//! A bounded window of the kernel's pages: what programs read passes through the kernel's cache, with its
//! read-ahead, and leaves it soon after.
//!
//! 1. The kernel has pages of a file only where a READ or WRITE put them: each is noted here, and when more than
//!    the limit is noted, those noted first are dropped.
//! 2. What is read again soon after it was dropped (the libraries of a program beside the data that it reads, say) is
//!    dropped after all others, while it is at most half of the limit.
//! 3. Dropping waits for pages that are being read, so it has a thread of its own, which answers no request.
//! 4. What is noted is bounded: ranges of one file that follow each other become one, and beyond `MOST_RANGES` the
//!    oldest is forgotten. Its pages stay until the kernel needs the memory, or the mount ends.

use crate::session::device::Device;
use hashlink::LinkedHashSet;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

/// Most ranges that are noted.
const MOST_RANGES: usize = 1 << 16;
/// Longest range that ranges become together: it is dropped at once.
const LONGEST: u64 = 1 << 20;
/// Most dropped ranges that are remembered.
const MOST_DROPPED: usize = 1 << 12;

/// The window of one mount.
#[derive(Debug)]
pub(super) struct Window {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    queue: Mutex<Queue>,
    /// More than the limit is noted, or the mount has ended.
    wake: Condvar,
}

/// Pages that the kernel may have.
#[derive(Debug)]
struct Queue {
    /// Most bytes of them.
    limit: u64,
    once: Ranges,
    /// Those that were read again after they were dropped.
    again: Ranges,
    /// Where the last dropped ranges were.
    dropped: LinkedHashSet<(u64, u64)>,
    ended: bool,
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
        self.bytes += new.end - new.start;
        if let Some(last) = self.ranges.back_mut()
            && (last.node, last.end) == (new.node, new.start)
            && new.end - last.start <= LONGEST
        {
            last.end = new.end;
            return;
        }
        if self.ranges.len() == MOST_RANGES {
            self.take();
        }
        self.ranges.push_back(new);
    }

    fn take(&mut self) -> Option<Passed> {
        let first = self.ranges.pop_front()?;
        self.bytes -= first.end - first.start;
        Some(first)
    }
}

impl Queue {
    fn new(limit: u64) -> Self {
        let (once, again) = Default::default();
        Self { limit, once, again, dropped: LinkedHashSet::new(), ended: false }
    }

    fn note(&mut self, new: Passed) {
        let to = if self.dropped.remove(&new.place()) { &mut self.again } else { &mut self.once };
        to.note(new);
    }

    fn is_over(&self) -> bool {
        self.once.bytes + self.again.bytes > self.limit
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

impl Window {
    /// A window of `limit` bytes.
    ///
    /// # Errors
    /// There are no more threads.
    pub(super) fn new(limit: u64, device: Arc<Device>) -> io::Result<Self> {
        let shared =
            Arc::new(Shared { queue: Mutex::new(Queue::new(limit)), wake: Condvar::new() });
        let window = Self { shared: Arc::clone(&shared) };
        std::thread::Builder::new()
            .name("weir-fuse-window".into())
            .spawn(move || shared.drop_pages(&device))?;
        Ok(window)
    }

    /// Notes that the kernel has pages of a range.
    pub(super) fn note(&self, node: u64, start: u64, bytes: u64) {
        if bytes == 0 {
            return;
        }
        let mut queue = self.shared.queue.lock();
        queue.note(Passed { node, start, end: start.saturating_add(bytes) });
        if queue.is_over() {
            self.shared.wake.notify_one();
        }
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        self.shared.queue.lock().ended = true;
        self.shared.wake.notify_one();
    }
}

impl Shared {
    /// Drops pages until the mount has ended: the kernel drops the others then.
    fn drop_pages(&self, device: &Device) {
        loop {
            let first = {
                let mut queue = self.queue.lock();
                while !queue.ended && !queue.is_over() {
                    self.wake.wait(&mut queue);
                }
                if queue.ended {
                    return;
                }
                queue.take()
            };
            if let Some(Passed { node, start, end }) = first {
                device.drop_pages(node, start, end - start);
            }
        }
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
        let mut queue = Queue::new(10_000);
        queue.note(passed(1, 0, 4096));
        queue.note(passed(1, 4096, 8192));
        assert!(!queue.is_over());
        queue.note(passed(2, 8192, 12_288));
        assert!(queue.is_over());
        assert_eq!(queue.take(), Some(passed(1, 0, 8192)));
        assert!(!queue.is_over());
        assert_eq!((queue.take(), queue.take()), (Some(passed(2, 8192, 12_288)), None));
        assert_eq!(queue.once.bytes, 0);
    }

    #[test]
    fn a_long_read_is_several_ranges() {
        let mut queue = Queue::new(0);
        let step = 128 << 10;
        for at in 0..24 {
            queue.note(passed(1, at * step, (at + 1) * step));
        }
        assert_eq!(queue.take(), Some(passed(1, 0, LONGEST)));
        assert_eq!(queue.once.ranges.len(), 2);
    }

    #[test]
    fn what_is_read_again_is_dropped_last_up_to_half_of_the_limit() {
        let page = |node, at: u64| passed(node, at * LONGEST, at * LONGEST + 4096);
        let mut queue = Queue::new(4 * 4096);
        let next = |queue: &mut Queue, new| {
            queue.note(new);
            if queue.is_over() { queue.take() } else { None }
        };
        // Node 1 is a library, node 2 a file that is read once.
        next(&mut queue, page(1, 0));
        let dropped: Vec<_> = (0..4).filter_map(|at| next(&mut queue, page(2, at))).collect();
        assert_eq!(dropped, [page(1, 0)]);
        next(&mut queue, page(1, 0));
        let dropped: Vec<_> = (4..100).filter_map(|at| next(&mut queue, page(2, at))).collect();
        assert_eq!(dropped.len(), 96);
        assert!(dropped.iter().all(|range| range.node == 2), "{dropped:?}");
        // What is read again and again of much does not push out all that is read once.
        for at in 0..100 {
            queue.dropped.insert((3, at));
            next(&mut queue, page(3, at));
        }
        assert!(queue.again.bytes <= 3 * 4096, "{queue:?}");
        assert!(queue.dropped.len() <= MOST_DROPPED);
    }

    #[test]
    fn scattered_reads_take_bounded_memory() {
        let mut queue = Queue::new(u64::MAX);
        for at in 0..MOST_RANGES as u64 + 3 {
            queue.note(passed(1, at * 8192, at * 8192 + 4096));
        }
        assert_eq!(queue.once.ranges.len(), MOST_RANGES);
        assert_eq!(queue.once.bytes, MOST_RANGES as u64 * 4096);
        assert_eq!(queue.take(), Some(passed(1, 3 * 8192, 3 * 8192 + 4096)));
    }
}
