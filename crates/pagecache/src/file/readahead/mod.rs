//! Read-ahead: predicts an open file's next reads from its past ones. A state machine without I/O:
//! its input is misses and marked pages, its output the pages to bring in.
//!
//! 1. It runs on misses and marked pages only, never on a hit (I6). It thus sees a stream only now
//!    and then, and expects the next read anywhere in the range that was read ahead.
//! 2. A stream becomes sequential at its second read that starts where another ended (or at its
//!    first, at the start of the file), and strided, forwards or backwards, at the fourth read at
//!    equal distances. No other read causes read-ahead.
//! 3. Each stream has its own window. It doubles, up to the limit, when the stream reaches or
//!    outruns the pages read ahead, and halves when such pages are missing: dropped before their
//!    use, or never brought in for lack of memory. Past that size it then grows by only an eighth
//!    at a time. A window of several pieces of 1 MiB slides: each piece read triggers the next, so
//!    the store always has most of a window to work on while memory use is little more than one
//!    window.
//! 4. A stream that jumps restarts. Streams that end with unused pages reduce the first windows of
//!    later streams, until one proves to be long.
//! 5. Memory is bounded: [`STREAMS`] streams (the least recently seen is replaced), and [`RECENT`]
//!    single reads.
//!
//! ```text
//!   a read that misses --> single --(goes on)----------> sequential --+--(arrives at a mark)--+
//!                            |                                        |                       |
//!                            +---(four at equal distances)--> strided-+      `extend`: doubled
//!                                                                     |                       |
//!                                                 (read ahead, not there): halved <-----------+
//! ```

mod stream;
#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;

use self::stream::{Course, Stream, pages};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::ops::Range;
use weir_base::PAGE_SIZE;
use weir_vfs::Advice;

/// Streams of one open file that are tracked.
const STREAMS: usize = 8;
/// Remembered reads that belong to no stream: four for each of four interleaved readers.
const RECENT: usize = 16;
/// Smallest first window, in pages.
const FIRST: u64 = 8;
/// A stream that matched none of this many last misses and marks does not count for the limit.
const ACTIVE: u64 = 32;
/// Most times that a first window is halved.
const MOST_CAUTION: u32 = 4;

const PAGE: u64 = PAGE_SIZE as u64;

/// An open file's streams.
#[derive(Debug, Default)]
pub(crate) struct Readahead {
    /// The most recently seen last.
    streams: Vec<Stream>,
    /// Reads that belong to no stream, in bytes, the latest last.
    recent: VecDeque<Range<u64>>,
    advice: Option<Advice>,
    /// How many times the first window is halved.
    caution: u32,
    /// Misses and marks so far.
    now: u64,
}

/// The limits of read-ahead.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Largest window, in pages; 0 for no read-ahead.
    pub(crate) window: u64,
    /// Pages that all streams together may have read ahead.
    pub(crate) total: u64,
    /// The file's end, in pages.
    pub(crate) end: u64,
}

/// Page ranges to bring in in addition to those asked for, in the order of their expected use.
pub(crate) type Plan = SmallVec<[Range<u64>; 2]>;

impl Readahead {
    /// Applies advice to the whole file.
    pub(crate) fn advise(&mut self, advice: Advice) {
        self.advice = match advice {
            Advice::Random | Advice::Sequential => Some(advice),
            _ => None,
        };
        self.streams.clear();
        self.recent.clear();
        self.caution = 0;
    }

    /// Plans read-ahead for a read of the bytes `asked`, which misses `page`.
    pub(crate) fn miss(&mut self, asked: &Range<u64>, page: u64, bounds: Bounds) -> Plan {
        let asked = asked.start..asked.end.min(bounds.end * PAGE);
        if bounds.window == 0 || self.advice == Some(Advice::Random) || asked.is_empty() {
            return Plan::new();
        }
        self.now += 1;
        let limit = self.limit(bounds);
        let first = (4 * pages(&asked)).max(FIRST).min(limit);
        let stream = match self.take(|stream| stream.expects(&asked)) {
            Some(stream) if stream.last == asked => {
                // A later piece of a long read, whose read-ahead was planned with its first piece.
                self.keep(stream);
                return Plan::new();
            }
            Some(mut stream) => {
                if stream.is_ahead(&asked, page) {
                    stream.halve();
                    stream.forget(&asked);
                } else {
                    stream.grow(first, limit);
                }
                stream.last = asked.clone();
                Some(stream)
            }
            None => self.begin(&asked, page).map(|course| {
                let window = (first >> self.caution).max(1);
                Stream { last: asked.clone(), window, safe: u64::MAX, course, seen: 0 }
            }),
        };
        let Some(mut stream) = stream else {
            self.remember(asked);
            return Plan::new();
        };
        if self.advice == Some(Advice::Sequential) {
            stream.window = limit;
        }
        let plan = stream.extend(bounds.end);
        self.settle(stream, bounds.end);
        plan
    }

    /// Plans the next read-ahead when a read reaches the marked `page`. The pages behind it are
    /// present or in flight up to `missing`.
    pub(crate) fn marked(&mut self, page: u64, missing: u64, bounds: Bounds) -> Plan {
        if bounds.window == 0 || self.advice == Some(Advice::Random) {
            return Plan::new();
        }
        self.now += 1;
        let limit = self.limit(bounds);
        let mut stream = self.take(|stream| stream.covers(page)).unwrap_or_else(|| {
            // The stream belongs to another open file, or was replaced: continue where its pages
            // end.
            let window = (missing - page).clamp(FIRST.min(limit), limit);
            let course = Course::Sequential { ahead: missing };
            Stream { last: 0..0, window, safe: u64::MAX, course, seen: 0 }
        });
        stream.arrive(page);
        let plan = if stream.left(page) <= stream.window {
            if stream.window == limit {
                self.caution = 0;
            }
            match self.advice {
                Some(Advice::Sequential) => stream.window = limit,
                _ => stream.grow(1, limit),
            }
            stream.slide(page, bounds.end)
        } else {
            Plan::new()
        };
        self.settle(stream, bounds.end);
        plan
    }

    /// Memory did not suffice to bring in `page` and the planned pages behind it.
    pub(crate) fn fell_short(&mut self, page: u64) {
        if let Some(mut stream) = self.take(|stream| stream.covers(page)) {
            stream.halve();
            match &mut stream.course {
                Course::Sequential { ahead } => *ahead = page,
                Course::Strided { stride, ahead } => {
                    let steps = (page as i64 * PAGE as i64 - stream.last.start as i64) / *stride;
                    *ahead = stream.last.start as i64 + steps.max(1) * *stride;
                }
            }
            self.keep(stream);
        }
    }

    /// The largest window of a stream at present.
    fn limit(&self, bounds: Bounds) -> u64 {
        let active = self.streams.iter().filter(|s| s.seen + ACTIVE > self.now).count() as u64;
        // Twice: the window being read, and the one in flight.
        bounds.window.min(bounds.total / (2 * active.max(1))).max(1)
    }

    /// Removes and returns the stream with the smallest value of `fits`.
    fn take(&mut self, fits: impl Fn(&Stream) -> Option<u64>) -> Option<Stream> {
        let fitting = self.streams.iter().enumerate();
        let best = fitting.filter_map(|(i, stream)| Some((fits(stream)?, i))).min()?;
        Some(self.streams.remove(best.1))
    }

    fn keep(&mut self, mut stream: Stream) {
        stream.seen = self.now;
        self.streams.push(stream);
    }

    /// Stores a stream, and learns from the one that it replaces.
    fn settle(&mut self, stream: Stream, end: u64) {
        if self.streams.len() == STREAMS && !self.streams.remove(0).is_at_end(end) {
            self.caution = (self.caution + 1).min(MOST_CAUTION);
        }
        self.keep(stream);
    }

    fn remember(&mut self, asked: Range<u64>) {
        if self.recent.back() == Some(&asked) {
            return;
        }
        if self.recent.len() == RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back(asked);
    }

    /// Whether a read that belongs to no stream starts one.
    fn begin(&mut self, asked: &Range<u64>, page: u64) -> Option<Course> {
        let ahead = asked.end.div_ceil(PAGE);
        let front = asked.start == 0 && self.recent.is_empty() && self.streams.is_empty();
        if front || self.advice == Some(Advice::Sequential) {
            return Some(Course::Sequential { ahead });
        }
        // Hits in the page in which the first read ended may lie between the two.
        let goes_on = |r: &Range<u64>| {
            asked.start == r.end || (asked.start > r.end && page == r.end.div_ceil(PAGE))
        };
        if let Some(i) = self.recent.iter().rposition(goes_on) {
            self.recent.remove(i);
            return Some(Course::Sequential { ahead });
        }
        let stride = self.stride_to(asked.start as i64)?;
        let start = asked.start as i64;
        self.recent.retain(|r| !(1..4).any(|n| Some(r.start as i64) == before(start, stride, n)));
        Some(Course::Strided { stride, ahead: start.saturating_add(stride) })
    }

    /// The distance at which three reads precede, in this order, the one at `start`.
    fn stride_to(&self, start: i64) -> Option<i64> {
        let starts: SmallVec<[i64; RECENT]> = self.recent.iter().map(|r| r.start as i64).collect();
        (0..starts.len()).rev().find_map(|third| {
            let stride = start - starts[third];
            let find = |end: usize, n| {
                let at = before(start, stride, n)?;
                starts[..end].iter().rposition(|&s| s == at)
            };
            find(find(third, 2)?, 3)?;
            (stride != 0).then_some(stride)
        })
    }
}

/// Where the read `n` strides before the one at `start` began.
fn before(start: i64, stride: i64, n: i64) -> Option<i64> {
    start.checked_sub(stride.checked_mul(n)?)
}
