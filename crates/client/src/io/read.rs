//! A [`ReadOp`] as READ calls: split into pieces of the server's size, all in flight at once; short
//! replies are continued.
//!
//! 1. On every outcome, the buffer is returned only after the last connection has dropped its
//!    reference.
//! 2. Bytes of a hole are not written. If the file ends within a page, the rest of that page is
//!    zeroed.
//! 3. The layout is well-formed for any reply: pieces after the end of the file are omitted, and
//!    holes are clipped to their piece except in the last.

use crate::detail::Slot;
use crate::error::Result;
use crate::files::opened::Opened;
use crate::protocol::{OpenContext, Protocol};
use crate::transport::{ReadInFlight, ReadTarget};
use futures_util::future::join_all;
use std::sync::Arc;
use weir_base::PAGE_SIZE;
use weir_vfs::{Error, Layout, ReadOp, SegmentKind};

/// Executes the read and completes it.
pub(crate) async fn run(opened: Arc<Opened>, op: ReadOp, detail: Slot) {
    let (offset, len) = (op.offset(), op.len());
    let read = Arc::new(ReadInFlight::new(op));
    let outcome = match end_of(offset, len) {
        Some(end) => {
            let layout = whole(&*opened.protocol, &opened.open, &read, offset, end).await;
            layout.map_err(|error| detail.neutral(error))
        }
        None => Err(Error::Invalid),
    };
    if let Ok(layout) = &outcome {
        zero_rest_of_page(&read, layout, offset, len);
    }
    read.resolve(outcome);
}

/// The largest offset at which a file can end.
const MOST: u64 = i64::MAX as u64;

/// The end of a read of `len` bytes at `offset` on the wire; `None` past all possible files. The
/// last page of the largest file extends further, but servers reject reads there.
fn end_of(offset: u64, len: usize) -> Option<u64> {
    let end = offset.checked_add(len as u64)?.min(MOST);
    let in_last_page = offset.saturating_add(len as u64) <= MOST.next_multiple_of(PAGE_SIZE as u64);
    (offset <= end && in_last_page).then_some(end)
}

async fn whole(
    protocol: &dyn Protocol,
    open: &OpenContext,
    read: &Arc<ReadInFlight>,
    offset: u64,
    end: u64,
) -> Result<Layout> {
    let step = protocol.limits().read;
    if end - offset <= step as u64 {
        return piece(protocol, open, read, offset, offset, end).await;
    }
    let starts = (offset..end).step_by(step);
    let ends = starts.clone().map(|start| (start + step as u64).min(end));
    let pieces =
        starts.zip(ends.clone()).map(|(from, to)| piece(protocol, open, read, offset, from, to));
    let layouts = join_all(pieces).await.into_iter().collect::<Result<Vec<_>>>()?;
    Ok(join(layouts, ends, offset, end))
}

/// Joins the layouts of adjacent pieces that end at `ends`.
fn join(layouts: Vec<Layout>, ends: impl Iterator<Item = u64>, offset: u64, end: u64) -> Layout {
    let mut all = Layout::default();
    for (layout, piece_end) in layouts.into_iter().zip(ends) {
        let limit = if piece_end == end { u64::MAX } else { piece_end };
        for extent in layout.extents {
            all.push(extent.kind, extent.start, extent.end.min(limit));
        }
        all.eof = layout.eof;
        if all.end(offset) < piece_end {
            break;
        }
    }
    all
}

/// Reads bytes `from..to`, in as many calls as necessary.
async fn piece(
    protocol: &dyn Protocol,
    open: &OpenContext,
    read: &Arc<ReadInFlight>,
    base: u64,
    from: u64,
    to: u64,
) -> Result<Layout> {
    let mut all = Layout::default();
    let mut at = from;
    while at < to && !all.eof {
        let target =
            ReadTarget { read: Arc::clone(read), base, offset: at, len: (to - at) as usize };
        let layout = protocol.read(open, target).await?;
        at = layout.end(at);
        all.eof = layout.eof;
        for extent in layout.extents {
            all.push(extent.kind, extent.start, extent.end);
        }
    }
    Ok(all)
}

fn zero_rest_of_page(read: &ReadInFlight, layout: &Layout, offset: u64, len: usize) {
    if let Some(last) = layout.extents.last()
        && layout.eof
        && last.kind == SegmentKind::Data
    {
        let at = (last.end - offset) as usize;
        let rest = (last.end.next_multiple_of(PAGE_SIZE as u64) - last.end) as usize;
        read.op().lock().buffer().zero(at, (at + rest).min(len));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use SegmentKind::{Data, Hole};

    fn layout(eof: bool, extents: &[(SegmentKind, u64, u64)]) -> Layout {
        let mut layout = Layout { extents: Vec::new(), eof };
        extents.iter().for_each(|&(kind, start, end)| layout.push(kind, start, end));
        layout
    }

    #[test]
    fn the_last_page_of_the_largest_file_can_be_read() {
        assert_eq!(end_of(10, 20), Some(30));
        assert_eq!(
            end_of(MOST - 4095, 4096),
            Some(MOST),
            "a page is 4096 bytes, of which 4095 are"
        );
        assert_eq!(end_of(MOST - 5000, 5000), Some(MOST));
        for (offset, len) in [(MOST - 4095, 4097), (MOST + 1, 4096), (u64::MAX, 1)] {
            assert_eq!(end_of(offset, len), None);
        }
    }

    #[test]
    fn pieces_join_and_only_the_last_hole_goes_past_the_request() {
        let ends = || [10, 20, 25].into_iter();
        let pieces = vec![
            layout(false, &[(Data, 0, 4), (Hole, 4, 90)]),
            layout(false, &[(Hole, 10, 90)]),
            layout(false, &[(Hole, 20, 90)]),
        ];
        assert_eq!(join(pieces, ends(), 0, 25), layout(false, &[(Data, 0, 4), (Hole, 4, 90)]));
        let ended = vec![
            layout(true, &[(Data, 0, 7)]),
            layout(true, &[]),
            // The file grew meanwhile: data after a gap is not part of this read.
            layout(true, &[(Data, 20, 25)]),
        ];
        assert_eq!(join(ended, ends(), 0, 25), layout(true, &[(Data, 0, 7)]));
    }
}
