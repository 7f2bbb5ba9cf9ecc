//! Read-ahead: what an open file's reads so far say about the next ones.
//!
//! 1. Looked at on misses and at marked pages only, never on a hit (I6).
//! 2. A stream begins with the second read that goes on where one ended (or the first at the front
//!    of the file); its window doubles up to the limit, and ends with a read elsewhere.

use std::ops::Range;
use weir_base::PAGE_SIZE;
use weir_vfs::Advice;

/// An open file's streams.
#[derive(Debug, Default)]
pub(crate) struct Readahead {
    /// The page after the last one that was read, as far as misses and marks show.
    next: u64,
    /// Pages to read ahead; 0 until reads prove to be sequential.
    window: u64,
    /// Read ahead up to here.
    ahead: u64,
    advice: Option<Advice>,
}

/// What to read ahead with a miss.
pub(crate) struct Plan {
    /// Pages after those that were asked for.
    pub(crate) ahead: u64,
}

impl Readahead {
    /// Takes advice on all of the file.
    pub(crate) fn advise(&mut self, advice: Advice) {
        self.advice = match advice {
            Advice::Random | Advice::Sequential => Some(advice),
            _ => None,
        };
    }

    /// Plans the fill for a read that misses `page` and goes up to `last`.
    pub(crate) fn plan(&mut self, page: u64, last: u64, limit: u64) -> Plan {
        let sequential = page == 0
            || (page + 1 >= self.next && page <= self.next.max(self.ahead))
            || self.advice == Some(Advice::Sequential);
        self.window = match self.advice {
            Some(Advice::Random) => 0,
            Some(Advice::Sequential) => limit,
            _ if sequential => (self.window * 2).max(4 * (last - page)).max(8).min(limit),
            _ => 0,
        };
        self.next = last;
        self.ahead = last + self.window;
        Plan { ahead: self.window }
    }

    /// What to read next, as the marked `page` was reached; `None` for nothing.
    pub(crate) fn advance(&mut self, page: u64, limit: u64) -> Option<Range<u64>> {
        if limit == 0 || self.advice == Some(Advice::Random) {
            return None;
        }
        self.window = (self.window * 2).max(8).min(limit);
        let start = self.ahead.max(page + 1);
        self.ahead = start + self.window;
        Some(start..self.ahead)
    }

    /// Notes a read that went the filling way.
    pub(crate) fn read(&mut self, offset: u64, len: usize) {
        self.next = (offset + len as u64) / PAGE_SIZE as u64;
    }
}
