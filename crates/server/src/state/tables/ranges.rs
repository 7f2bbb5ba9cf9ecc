//! What transitions compute with byte ranges.

use weir_vfs::LockRange as Range;

/// Sorts ranges, and merges those that overlap or touch.
pub(in crate::state) fn merged(mut ranges: Vec<Range>) -> Vec<Range> {
    ranges.sort_unstable_by_key(|range| range.start);
    ranges.dedup_by(|next, last| {
        let joins = next.start <= last.end;
        if joins {
            last.end = last.end.max(next.end);
        }
        joins
    });
    ranges
}

/// Whether two ranges have a byte in common.
pub(in crate::state) fn overlap(a: Range, b: Range) -> bool {
    a.start < b.end && b.start < a.end
}

/// The part of a range within one that overlaps it.
pub(in crate::state) fn within(range: Range, other: Range) -> Range {
    Range { start: range.start.max(other.start), end: range.end.min(other.end) }
}
