//! READ_PLUS (RFC 7862 section 15.10): the segments of a file, borrowed from the page cache.
//!
//! 1. Segments are contiguous, in order, and begin exactly at the requested offset. (Linux's client
//!    ignores a hole that begins before the offset and ends after the request.)
//! 2. A hole that extends past the request is sent up to its end, but not past the end of a lock of
//!    the reader that covers the offset (RFC 7862 section 15.10.3).
//! 3. A reply never exceeds the bytes left for it. A truncated reply does not set eof.
//! 4. Data and holes come from a single read of the cache, so a hole never replaces data that a
//!    writer added in between.
//! 5. Holes shorter than [`MIN_HOLE_BYTES`] are sent as zeros within data.

use crate::operation::gather::{self, Gathered, GatheredPart};
use crate::v4::context::Context;
use crate::v4::status::of_vfs;
use std::sync::Arc;
use weir_nfs::Data;
use weir_nfs::v4::OpCode;
use weir_nfs::v4::op::read_plus::{
    self as read_plus_op, DATA_HEADER_BYTES, DataSegment, HOLE_BYTES, HoleSegment, ReadPlus,
    Segment as PlusSegment,
};
use weir_pagecache::{Segment, Segments};
use weir_vfs::Access;
use weir_xdr::{Payload, padding};

/// Minimum length of a hole segment. A hole saves its own bytes, but costs two segment headers and
/// the work to split and reassemble the data.
const MIN_HOLE_BYTES: u64 = 512;

pub(crate) async fn read_plus(cx: &mut Context, args: read_plus_op::Args) -> read_plus_op::Res {
    let target = cx.current()?;
    let io = cx.io(&target, args.stateid, Access::READ).await?;
    let bytes_left =
        cx.reply_bytes_left.saturating_sub(OpCode::ReadPlus.reply_bound().fixed_bytes());
    // Do not pin more pages than fit the reply if everything is data. Holes take less, but a
    // client that gets less than it asked for asks again.
    let count = bytes_left.min(args.count as usize);
    let own_lock_end = io
        .lock_owner
        .as_ref()
        .and_then(|owner| cx.state().own_lock_end(target.node, owner, args.offset));
    let segments = gather::read(&io.file, args.offset, count, cx.reader(), target.export)
        .await
        .map_err(of_vfs)?;
    let hole_end = own_lock_end.unwrap_or(u64::MAX);
    let request = SegmentRequest { offset: args.offset, count, bytes_left, hole_end };
    let plus = choose_segments(segments, request);
    target.export.counts.hole(described_bytes(&plus, args.offset.saturating_add(count as u64)));
    Ok(plus)
}

/// Bytes of holes that a reply describes instead of sending zeros, up to the end of the request.
fn described_bytes(plus: &ReadPlus, request_end: u64) -> u64 {
    let bytes = plus.segments.0.iter().map(|segment| match segment {
        PlusSegment::Data(_) => 0,
        PlusSegment::Hole(HoleSegment { offset, length }) => {
            offset.saturating_add(*length).min(request_end).saturating_sub(*offset)
        }
    });
    bytes.sum()
}

/// The request, and the limits of its reply.
#[derive(Clone, Copy, Debug)]
struct SegmentRequest {
    offset: u64,
    count: usize,
    /// Bytes for the encoded segments.
    bytes_left: usize,
    /// The maximum end of a hole, or the end of the request if that is later.
    hole_end: u64,
}

/// Chooses the segments of a READ_PLUS reply.
fn choose_segments(segments: Segments, request: SegmentRequest) -> ReadPlus {
    let SegmentRequest { offset, count, bytes_left, hole_end } = request;
    let request_end = offset.saturating_add(count as u64);
    let eof = segments.eof && segments.end(offset) <= request_end;
    let mut reply =
        SegmentReply { plus: ReadPlus::default(), at: offset, bytes_left, open_data: None };
    for segment in segments.segments {
        let fits = match segment {
            Segment::Data { pages, .. } => reply.data(GatheredPart::Pages(pages)),
            Segment::Hole { start, end } => {
                let end = end.min(hole_end.max(request_end));
                if end - start >= MIN_HOLE_BYTES {
                    reply.hole(end - start)
                } else {
                    let len = end.min(request_end).saturating_sub(start);
                    reply.data(GatheredPart::Zeros(len as usize))
                }
            }
        };
        if !fits {
            reply.close_data();
            return reply.plus;
        }
    }
    reply.close_data();
    reply.plus.eof = eof;
    reply.plus
}

/// The segments chosen so far.
struct SegmentReply {
    plus: ReadPlus,
    /// The offset of the next segment.
    at: u64,
    bytes_left: usize,
    open_data: Option<(u64, Gathered)>,
}

impl SegmentReply {
    /// Appends data to the last data segment, or begins one. Returns whether all of it fits.
    fn data(&mut self, mut piece: GatheredPart) -> bool {
        let len = piece.len();
        if len == 0 {
            return true;
        }
        let open = self.open_data.as_ref().map_or(0, |(_, data)| data.len());
        let header = if open == 0 { DATA_HEADER_BYTES } else { 0 };
        // `bytes_left` does not include the padding of the open segment, which is charged when it
        // is closed.
        let Some(bytes_left) = self.bytes_left.checked_sub(header) else { return false };
        let most = ((open + bytes_left) & !3).saturating_sub(open);
        let taken = len.min(most);
        if taken == 0 {
            return false;
        }
        piece.truncate(taken);
        let (_, data) = self.open_data.get_or_insert_with(|| (self.at, Gathered::default()));
        data.push(piece);
        self.bytes_left = bytes_left - taken;
        self.at += taken as u64;
        taken == len
    }

    fn hole(&mut self, len: u64) -> bool {
        self.close_data();
        let Some(bytes_left) = self.bytes_left.checked_sub(HOLE_BYTES) else { return false };
        self.bytes_left = bytes_left;
        let hole = HoleSegment { offset: self.at, length: len };
        self.plus.segments.0.push(PlusSegment::Hole(hole));
        self.at += len;
        true
    }

    fn close_data(&mut self) {
        if let Some((offset, data)) = self.open_data.take() {
            self.bytes_left -= padding(data.len());
            let data = Data::Shared(Arc::new(data));
            self.plus.segments.0.push(PlusSegment::Data(DataSegment { offset, data }));
        }
    }
}
