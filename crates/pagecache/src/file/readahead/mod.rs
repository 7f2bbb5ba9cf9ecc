//! Read-ahead: what an open file's reads so far say about the next ones. A state machine without
//! I/O: misses and marked pages go in, pages to bring in come out.
//!
//! 1. Looked at on misses and at marked pages only, never on a hit (I6). So a stream is seen now
//!    and then, and its next read is expected anywhere in what was read ahead for it.
//! 2. A stream is sequential from the second read that goes on where another ended (or the first
//!    of all, at the front of the file), and strided, forwards or backwards, from the fourth read
//!    at equal distances. No other read causes read-ahead.
//! 3. Each stream has a window of its own. It doubles when the stream arrives at what was read
//!    ahead or outruns it, up to the limit, and halves when what was read ahead is not there:
//!    dropped before its use, or never brought in for want of memory. From then on it grows past
//!    that size by an eighth at a time only. A window of several pieces of 1 MiB slides: a piece is
//!    brought in whenever one was read, so that the store always has most of a window to do while
//!    little more than a window of memory is in use.
//! 4. A stream that jumps begins anew. Streams that were left with pages read ahead for nothing
//!    make the first windows of later ones smaller, until one proves to be long.
//! 5. Bounded: [`STREAMS`] streams, the least recently seen makes room; [`RECENT`] single reads.
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

/// Streams of one open file that are told apart.
const STREAMS: usize = 8;
/// Reads remembered that belong to no stream: four each of four readers who take turns.
const RECENT: usize = 16;
/// Smallest first window, in pages.
const FIRST: u64 = 8;
/// A stream that none of so many last misses and marks belonged to does not count for the limit.
const ACTIVE: u64 = 32;
/// How often a first window is halved at most.
const MOST_CAUTION: u32 = 4;

const PAGE: u64 = PAGE_SIZE as u64;

/// An open file's streams.
#[derive(Debug, Default)]
pub(crate) struct Readahead {
    /// The most recently seen one last.
    streams: Vec<Stream>,
    /// Reads that belong to no stream, in bytes, the latest last.
    recent: VecDeque<Range<u64>>,
    advice: Option<Advice>,
    /// How often the first window is halved.
    caution: u32,
    /// Misses and marks so far.
    now: u64,
}

/// What there is to read ahead within.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Largest window, in pages; 0 for no read-ahead.
    pub(crate) window: u64,
    /// Pages that all streams together may have read ahead.
    pub(crate) total: u64,
    /// The file's end, in pages.
    pub(crate) end: u64,
}

/// Ranges of pages to bring in besides those asked for, in the order in which they will be used.
pub(crate) type Plan = SmallVec<[Range<u64>; 2]>;

impl Readahead {
    /// Takes advice on all of the file.
    pub(crate) fn advise(&mut self, advice: Advice) {
        self.advice = match advice {
            Advice::Random | Advice::Sequential => Some(advice),
            _ => None,
        };
        self.streams.clear();
        self.recent.clear();
        self.caution = 0;
    }

    /// Plans what to bring in with a read of the bytes `asked`, which misses `page`.
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
                // A long read, brought in by pieces; its read-ahead was planned with the first.
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

    /// Plans what to read next, as the marked `page` was reached. Behind it, pages are there, or on
    /// their way, up to `missing`.
    pub(crate) fn marked(&mut self, page: u64, missing: u64, bounds: Bounds) -> Plan {
        if bounds.window == 0 || self.advice == Some(Advice::Random) {
            return Plan::new();
        }
        self.now += 1;
        let limit = self.limit(bounds);
        let mut stream = self.take(|stream| stream.covers(page)).unwrap_or_else(|| {
            // Another open file's, or one that had to make room: it goes on where that ended.
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

    /// There was no memory to bring in `page`, and what was planned behind it.
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

    /// Largest window of a stream now.
    fn limit(&self, bounds: Bounds) -> u64 {
        let active = self.streams.iter().filter(|s| s.seen + ACTIVE > self.now).count() as u64;
        // Twice: the window being read, and the one on its way.
        bounds.window.min(bounds.total / (2 * active.max(1))).max(1)
    }

    /// Takes out the stream that `fits` best: where it says the least.
    fn take(&mut self, fits: impl Fn(&Stream) -> Option<u64>) -> Option<Stream> {
        let fitting = self.streams.iter().enumerate();
        let best = fitting.filter_map(|(i, stream)| Some((fits(stream)?, i))).min()?;
        Some(self.streams.remove(best.1))
    }

    fn keep(&mut self, mut stream: Stream) {
        stream.seen = self.now;
        self.streams.push(stream);
    }

    /// Puts a stream in its place, and learns from the one that makes room for it.
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

    /// Whether a read of no stream begins one.
    fn begin(&mut self, asked: &Range<u64>, page: u64) -> Option<Course> {
        let ahead = asked.end.div_ceil(PAGE);
        let front = asked.start == 0 && self.recent.is_empty() && self.streams.is_empty();
        if front || self.advice == Some(Advice::Sequential) {
            return Some(Course::Sequential { ahead });
        }
        // Between the two there may have been hits in the page where the first one ended.
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

    /// The distance at which three reads, in this order, lie before the one at `start`.
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

/// Where the read began that was `n` strides before the one at `start`.
fn before(start: i64, stride: i64, n: i64) -> Option<i64> {
    start.checked_sub(stride.checked_mul(n)?)
}
