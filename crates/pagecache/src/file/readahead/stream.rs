//! One stream: where its next reads are expected, and which pages to bring in for them.

use super::{PAGE, Plan};
use crate::mapping::fill::PIECE;
use std::ops::Range;

/// Most reads of a strided stream that are brought in at once.
pub(super) const STRIDES: u64 = 64;

#[derive(Clone, Debug)]
pub(super) struct Stream {
    /// The stream's last known read, in bytes.
    pub(super) last: Range<u64>,
    /// Pages to read ahead at a time; 0 until the stream has resumed.
    pub(super) window: u64,
    /// Half of the last window that proved too large, in pages.
    pub(super) safe: u64,
    pub(super) course: Course,
    /// When the stream was last seen, in misses and marks.
    pub(super) seen: u64,
}

#[derive(Clone, Debug)]
pub(super) enum Course {
    /// Consecutive pages.
    Sequential {
        /// The end of the pages read ahead.
        ahead: u64,
    },
    /// Reads of equal length whose starts are equally far apart.
    Strided {
        /// From one start to the next, in bytes.
        stride: i64,
        /// Start of the first read that was not read ahead yet, in bytes.
        ahead: i64,
    },
}

impl Stream {
    /// Pages of one of its reads.
    pub(super) fn read_pages(&self) -> u64 {
        pages(&self.last).max(1)
    }

    /// Enlarges the window: to at least `least` and at most `limit` pages.
    pub(super) fn grow(&mut self, least: u64, limit: u64) {
        let more = if self.window < self.safe {
            (2 * self.window).max(least).min(self.safe)
        } else {
            self.window + (self.window / 8).max(1)
        };
        self.window = more.min(limit);
    }

    /// Halves a window that was too large.
    pub(super) fn halve(&mut self) {
        self.window /= 2;
        self.safe = self.window;
    }

    /// If this is the stream's next read, or its last one repeated: the distance from the last one.
    pub(super) fn expects(&self, asked: &Range<u64>) -> Option<u64> {
        match self.course {
            Course::Sequential { ahead } => {
                let next = asked.start + PAGE >= self.last.end && asked.start / PAGE <= ahead;
                (next || *asked == self.last).then(|| asked.start.saturating_sub(self.last.end))
            }
            Course::Strided { stride, ahead } => {
                let from = asked.start as i64 - self.last.start as i64;
                let steps = (from % stride == 0).then_some(from / stride)?;
                let planned = ahead.saturating_sub(self.last.start as i64).saturating_div(stride);
                (0..=planned).contains(&steps).then_some(from.unsigned_abs())
            }
        }
    }

    /// Whether the page that a read misses was read ahead.
    pub(super) fn is_ahead(&self, asked: &Range<u64>, page: u64) -> bool {
        match self.course {
            Course::Sequential { ahead } => page < ahead,
            Course::Strided { stride, ahead } => {
                ahead.saturating_sub(asked.start as i64).signum() == stride.signum()
            }
        }
    }

    /// Whether no page before `end` is left to read ahead.
    pub(super) fn is_at_end(&self, end: u64) -> bool {
        match self.course {
            Course::Sequential { ahead } => ahead >= end,
            Course::Strided { ahead, .. } => !(0..(end * PAGE) as i64).contains(&ahead),
        }
    }

    /// If the page was read ahead for this stream: its distance from the last read.
    pub(super) fn covers(&self, page: u64) -> Option<u64> {
        let at = page * PAGE;
        match self.course {
            Course::Sequential { ahead } => (page < ahead && at + PAGE >= self.last.end)
                .then(|| at.saturating_sub(self.last.end)),
            Course::Strided { stride, ahead } => {
                let start = self.read_of(page)?;
                let planned = ahead.saturating_sub(start).signum() == stride.signum();
                let behind = start - self.last.start as i64;
                (planned && behind / stride >= 0).then_some(behind.unsigned_abs())
            }
        }
    }

    /// Start of the strided read that contains a page.
    pub(super) fn read_of(&self, page: u64) -> Option<i64> {
        let Course::Strided { stride, .. } = self.course else { return None };
        // The range of starts of a read whose bytes include some of this page.
        let within = (self.last.end - self.last.start) as i64;
        let (from, to) = ((page * PAGE) as i64 - within + 1, ((page + 1) * PAGE - 1) as i64);
        let start = to - (to - self.last.start as i64).rem_euclid(stride);
        (start >= from && start >= 0).then_some(start)
    }

    /// Notes that `page` is being read.
    pub(super) fn arrive(&mut self, page: u64) {
        match self.read_of(page) {
            Some(start) => {
                let len = self.last.end - self.last.start;
                self.last = start as u64..start as u64 + len;
            }
            None => self.last = page * PAGE..page * PAGE,
        }
    }

    /// Pages read ahead from `page` on.
    pub(super) fn left(&self, page: u64) -> u64 {
        match self.course {
            Course::Sequential { ahead } => ahead.saturating_sub(page),
            Course::Strided { stride, ahead } => {
                let reads = ahead.saturating_sub(self.last.start as i64).saturating_div(stride);
                reads.max(0) as u64 * self.read_pages()
            }
        }
    }

    /// Stops relying on the pages that were read ahead beyond this read.
    pub(super) fn forget(&mut self, asked: &Range<u64>) {
        match &mut self.course {
            Course::Sequential { ahead } => *ahead = asked.end.div_ceil(PAGE),
            Course::Strided { stride, ahead } => {
                *ahead = (asked.start as i64).saturating_add(*stride)
            }
        }
    }

    /// The pieces to read ahead when the reader is at `page`: enough to leave a window and a piece
    /// ahead of it, if only a window or less is left.
    pub(super) fn slide(&mut self, page: u64, end: u64) -> Plan {
        let window = match self.course {
            Course::Sequential { .. } => {
                let piece = self.window.clamp(1, PIECE);
                (self.window + piece).saturating_sub(self.left(page)) / piece * piece
            }
            Course::Strided { .. } => self.window,
        };
        self.extend_by(window, end)
    }

    /// Another window, after the pages read ahead and before the page `end`.
    pub(super) fn extend(&mut self, end: u64) -> Plan {
        self.extend_by(self.window, end)
    }

    fn extend_by(&mut self, window: u64, end: u64) -> Plan {
        let mut plan = Plan::new();
        let read = self.read_pages();
        match &mut self.course {
            Course::Sequential { ahead } => {
                let start = (*ahead).max(self.last.end.div_ceil(PAGE)).min(end);
                *ahead = (start + window).min(end);
                if start < *ahead {
                    plan.push(start..*ahead);
                }
            }
            Course::Strided { stride, ahead } => {
                let next = (self.last.start as i64).saturating_add(*stride);
                if next.saturating_sub(*ahead).signum() == stride.signum() {
                    *ahead = next;
                }
                let len = self.last.end - self.last.start;
                let reads = (window / read).max(window.min(1)).min(STRIDES);
                for _ in 0..reads {
                    let Ok(start) = u64::try_from(*ahead) else { break };
                    let pages = start / PAGE..(start + len).div_ceil(PAGE).min(end);
                    if pages.is_empty() {
                        break;
                    }
                    *ahead = ahead.saturating_add(*stride);
                    match plan.last_mut() {
                        // Adjacent ranges are brought in together, backward ones as well.
                        Some(last) if pages.start <= last.end && last.start <= pages.end => {
                            *last = last.start.min(pages.start)..last.end.max(pages.end);
                        }
                        _ => plan.push(pages),
                    }
                }
            }
        }
        plan
    }
}

/// Pages that a range of bytes touches.
pub(super) fn pages(bytes: &Range<u64>) -> u64 {
    bytes.end.div_ceil(PAGE) - bytes.start / PAGE
}
