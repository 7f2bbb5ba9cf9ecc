//! Pages: the unit of caching.

use std::ops::Range;

/// Base-two logarithm of [`PAGE_SIZE`].
pub const PAGE_SHIFT: u32 = 12;
/// Bytes in a page: 4096.
pub const PAGE_SIZE: usize = 1 << PAGE_SHIFT;

/// The number of a page within its file: byte offset divided by [`PAGE_SIZE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct PageIndex(pub u64);

impl PageIndex {
    /// The page that contains byte `offset`.
    pub const fn containing(offset: u64) -> Self {
        Self(offset >> PAGE_SHIFT)
    }

    /// The byte offset at which this page begins.
    pub const fn offset(self) -> u64 {
        self.0 << PAGE_SHIFT
    }

    /// The page after this one.
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// The half-open range of page numbers touched by `len` bytes at `offset`; empty when `len` is 0.
///
/// The end saturates at the last page that a 64-bit offset can name.
pub const fn pages_spanning(offset: u64, len: u64) -> Range<u64> {
    let first = offset >> PAGE_SHIFT;
    if len == 0 {
        return first..first;
    }
    let last = offset.saturating_add(len - 1) >> PAGE_SHIFT;
    first..last + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans() {
        assert_eq!(pages_spanning(0, 0), 0..0);
        assert_eq!(pages_spanning(0, 1), 0..1);
        assert_eq!(pages_spanning(4095, 2), 0..2);
        assert_eq!(pages_spanning(4096, 4096), 1..2);
        assert_eq!(pages_spanning(u64::MAX, 9).end, (u64::MAX >> PAGE_SHIFT) + 1);
    }
}
