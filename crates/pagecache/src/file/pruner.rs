//! Prunes the pages that an open file's uncached reads have used (`mapping/prune.rs` says which).
//!
//! The page in the middle of which an uncached read ended stays until the open file's next uncached read
//! or its close.

use crate::cache_policy::CachePolicy;
use crate::file::Open;
use crate::file::read::pages_of;
use crate::ranges::RangeSet;
use weir_base::PAGE_SIZE;
use weir_base::sync::atomic::Ordering;

/// No page is half read.
pub(crate) const NO_PAGE: u64 = u64::MAX;

/// Prunes the pages that an uncached read has used when it ends or is cancelled.
pub(crate) struct Pruner<'a> {
    open: &'a Open,
    policy: CachePolicy,
    used: RangeSet,
    end: u64,
}

impl<'a> Pruner<'a> {
    pub(crate) fn new(open: &'a Open, policy: CachePolicy) -> Self {
        Self { open, policy, used: RangeSet::default(), end: 0 }
    }

    /// Notes that `len` bytes at `offset` were copied.
    pub(crate) fn used(&mut self, offset: u64, len: usize) {
        if self.policy.is_uncached() && len > 0 {
            self.used.insert(pages_of(offset, len));
            self.end = offset + len as u64;
            if self.used.len() >= self.open.mapping.memory.limits().piece as u64 {
                self.prune();
            }
        }
    }

    fn prune(&mut self) {
        if self.used.is_empty() {
            return;
        }
        let mapping = &self.open.mapping;
        let half_read = !self.end.is_multiple_of(PAGE_SIZE as u64) && self.end < mapping.size();
        let page = self.end / PAGE_SIZE as u64;
        let was =
            self.open.half_read.swap(if half_read { page } else { NO_PAGE }, Ordering::Relaxed);
        if was != NO_PAGE {
            self.used.insert(was..was + 1);
        }
        if half_read {
            self.used.remove(page..page + 1);
        }
        mapping.prune(&self.used);
        self.used = RangeSet::default();
    }
}

impl Drop for Pruner<'_> {
    fn drop(&mut self) {
        self.prune();
    }
}

impl Open {
    /// Drops the page in which the last uncached read ended; no read follows.
    pub(crate) fn prune_half_read(&self) {
        let page = self.half_read.swap(NO_PAGE, Ordering::Relaxed);
        if page != NO_PAGE {
            let mut pages = RangeSet::default();
            pages.insert(page..page + 1);
            self.mapping.prune(&pages);
        }
    }
}
