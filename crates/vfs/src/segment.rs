//! Data and holes.

use std::ops::Range;

/// Whether a part of a file has data or is a hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SegmentKind {
    /// Written bytes (which may be zero).
    Data,
    /// Nothing is stored; reads as zeros.
    Hole,
}

/// A run of data or a hole in a file, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Extent {
    /// Data or hole.
    pub kind: SegmentKind,
    /// Offset of the first byte in the file.
    pub start: u64,
    /// Offset after the last byte.
    pub end: u64,
}

impl Extent {
    /// Length in bytes.
    pub const fn len(&self) -> u64 {
        self.end - self.start
    }

    /// Whether it is empty.
    pub const fn is_empty(&self) -> bool {
        self.end <= self.start
    }

    /// The byte range.
    pub const fn range(&self) -> Range<u64> {
        self.start..self.end
    }
}

/// The layout found by a read: contiguous extents in order, beginning at the requested offset.
///
/// 1. The first extent starts at the request's offset, each next one where the previous one ended.
/// 2. Data extents end within the request, and their bytes are in the buffer at their distance from
///    the request's offset. Only a hole that is the last extent may extend past the request.
/// 3. A short layout means a short read; `eof` says whether the file ended there.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Layout {
    /// The extents.
    pub extents: Vec<Extent>,
    /// The file ends at or before the end of the last extent (or of the request, if none).
    pub eof: bool,
}

impl Layout {
    /// One data extent.
    pub fn data(offset: u64, len: u64, eof: bool) -> Self {
        let mut layout = Self { extents: Vec::new(), eof };
        layout.push(SegmentKind::Data, offset, offset + len);
        layout
    }

    /// Appends `start..end`, merged with the last extent if that is of the same kind; ignores empty
    /// ranges.
    pub fn push(&mut self, kind: SegmentKind, start: u64, end: u64) {
        if end <= start {
            return;
        }
        match self.extents.last_mut() {
            Some(last) if last.kind == kind && last.end == start => last.end = end,
            _ => self.extents.push(Extent { kind, start, end }),
        }
    }

    /// Offset after the last extent, or `offset` if there are none.
    pub fn end(&self, offset: u64) -> u64 {
        self.extents.last().map_or(offset, |e| e.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn push_joins_neighbours_of_a_kind_and_drops_the_empty() {
        let mut l = Layout::default();
        l.push(SegmentKind::Data, 0, 10);
        l.push(SegmentKind::Data, 10, 20);
        l.push(SegmentKind::Hole, 20, 20);
        l.push(SegmentKind::Hole, 20, 30);
        assert_eq!(l.extents.len(), 2);
        assert_eq!(l.extents[0].len(), 20);
        assert_eq!(l.end(0), 30);
    }
}
