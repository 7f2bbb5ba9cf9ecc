//! The results of READ and READ_PLUS, received in place.
//!
//! 1. Every length is checked against the call before a byte is stored; no byte is stored outside
//!    the requested range.
//! 2. A hole stores nothing.
//! 3. The extents of one reply are contiguous and begin at the call's offset; otherwise the reply
//!    is rejected with the [`Violation`].

use super::read_in_flight::ReadInFlight;
use super::record::{Failure, RecordStream};
use crate::error::Violation;
use std::sync::Arc;
use weir_vfs::{Layout, SegmentKind};
use weir_xdr::padding;

/// The expected reply to a call.
#[derive(Clone)]
pub(crate) enum Expect {
    /// Results of limited length.
    Results {
        /// Most bytes after the RPC header.
        max_bytes: usize,
    },
    /// A read, whose payload is received in place.
    Read(ReadTarget, ResultForm),
}

/// Destination of the payload of one READ or READ_PLUS call.
#[derive(Clone)]
pub(crate) struct ReadTarget {
    /// The operation that owns the buffer.
    pub(crate) read: Arc<ReadInFlight>,
    /// File offset of byte 0 of the buffer.
    pub(crate) base: u64,
    /// First requested byte, as an offset in the file.
    pub(crate) offset: u64,
    /// Number of bytes requested.
    pub(crate) len: usize,
}

/// The form of the results around a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResultForm {
    /// NFSv3 READ (RFC 1813 section 3.3.6).
    V3,
    /// An NFSv4 COMPOUND that ends with READ or READ_PLUS.
    Compound,
}

/// Room for the results before a payload: those of SEQUENCE and PUTFH, a tag, attributes.
const MAX_HEAD_BYTES: usize = 2048;

// Numbers of the operations in a compound with a read (RFC 8881 section 18, RFC 7862 section
// 15.10), and the length of their results after an OK.
const OP_PUTFH: u32 = 22;
const OP_READ: u32 = 25;
const OP_SEQUENCE: u32 = 53;
const OP_READ_PLUS: u32 = 68;
const SEQUENCE_BYTES: usize = 36;
const POST_OP_ATTR_BYTES: usize = 84;

/// Receives the results for `target`. The part before the payload goes to `head`; the layout is
/// `None` if the operation failed (the head then ends with its status).
pub(super) async fn receive(
    stream: &mut RecordStream<'_>,
    target: &ReadTarget,
    form: ResultForm,
    head: &mut Vec<u8>,
) -> Result<Option<Layout>, Failure> {
    match form {
        ResultForm::V3 => receive_v3(stream, target, head).await,
        ResultForm::Compound => receive_compound(stream, target, head).await,
    }
}

async fn receive_v3(
    stream: &mut RecordStream<'_>,
    target: &ReadTarget,
    head: &mut Vec<u8>,
) -> Result<Option<Layout>, Failure> {
    if word(stream, head).await? != 0 {
        return Ok(None);
    }
    if word(stream, head).await? != 0 {
        stream.take_to(head, POST_OP_ATTR_BYTES).await?;
    }
    let _count = word(stream, head).await?;
    let eof = boolean(word(stream, head).await?)?;
    let len = stream.u32().await?;
    data(stream, target, target.offset, len).await?;
    progress(target, Layout::data(target.offset, len.into(), eof)).map(Some)
}

async fn receive_compound(
    stream: &mut RecordStream<'_>,
    target: &ReadTarget,
    head: &mut Vec<u8>,
) -> Result<Option<Layout>, Failure> {
    let _status = word(stream, head).await?;
    let tag_bytes = word(stream, head).await? as usize;
    if tag_bytes > MAX_HEAD_BYTES / 2 {
        return Err(Violation::TooLong.into());
    }
    stream.take_to(head, tag_bytes + padding(tag_bytes)).await?;
    for _ in 0..word(stream, head).await? {
        let operation = word(stream, head).await?;
        if word(stream, head).await? != 0 {
            return Ok(None);
        }
        if head.len() > MAX_HEAD_BYTES {
            return Err(Violation::TooLong.into());
        }
        match operation {
            OP_SEQUENCE => stream.take_to(head, SEQUENCE_BYTES).await?,
            OP_PUTFH => {}
            OP_READ => return read(stream, target).await.map(Some),
            OP_READ_PLUS => return read_plus(stream, target).await.map(Some),
            _ => return Err(Violation::WrongOperation.into()),
        }
    }
    // Every operation succeeded, but the read was not among them; a compound that failed as a whole
    // (minor version, say) has a status and no results.
    Ok(None)
}

async fn read(stream: &mut RecordStream<'_>, target: &ReadTarget) -> Result<Layout, Failure> {
    let eof = boolean(stream.u32().await?)?;
    let len = stream.u32().await?;
    data(stream, target, target.offset, len).await?;
    progress(target, Layout::data(target.offset, len.into(), eof))
}

/// `bool eof; read_plus_content contents<>` (RFC 7862 section 15.10.2).
async fn read_plus(stream: &mut RecordStream<'_>, target: &ReadTarget) -> Result<Layout, Failure> {
    let end = target.offset + target.len as u64;
    let mut layout = Layout { extents: Vec::new(), eof: boolean(stream.u32().await?)? };
    for index in 0..stream.u32().await? {
        let kind = stream.u32().await?;
        let start = stream.u64().await?;
        let expected = layout.end(target.offset);
        match kind {
            0 => {
                let len = stream.u32().await?;
                if start != expected {
                    return Err(Violation::NotContiguous.into());
                }
                if start >= end && len > 0 {
                    return Err(Violation::OutsideRequest.into());
                }
                stream.expect_segments(len as usize);
                data(stream, target, start, len).await?;
                layout.push(SegmentKind::Data, start, start + u64::from(len));
            }
            1 => {
                let len = stream.u64().await?;
                let hole_end = start.checked_add(len).ok_or(Violation::EndOverflows)?;
                // Only the first segment may begin before the requested range.
                let contiguous = start == expected || (index == 0 && start < expected);
                if !contiguous || (index == 0 && len > 0 && hole_end <= expected) {
                    return Err(Violation::NotContiguous.into());
                }
                layout.push(SegmentKind::Hole, expected, hole_end);
            }
            _ => return Err(Violation::BadValue.into()),
        }
    }
    progress(target, layout)
}

/// Receives `len` bytes of data at `start`, and their padding.
async fn data(
    stream: &mut RecordStream<'_>,
    target: &ReadTarget,
    start: u64,
    len: u32,
) -> Result<(), Failure> {
    let len = len as usize;
    let end = target.offset + target.len as u64;
    if start + len as u64 > end {
        return Err(Violation::MoreThanAsked.into());
    }
    stream.payload(&target.read, (start - target.base) as usize, len).await?;
    let mut pad = [0; 3];
    stream.take(&mut pad[..padding(len)]).await
}

/// A reply without bytes and without end of file would be requested again forever.
fn progress(target: &ReadTarget, layout: Layout) -> Result<Layout, Failure> {
    if layout.extents.is_empty() && !layout.eof && target.len > 0 {
        return Err(Violation::NoProgress.into());
    }
    Ok(layout)
}

async fn word(stream: &mut RecordStream<'_>, head: &mut Vec<u8>) -> Result<u32, Failure> {
    let value = stream.u32().await?;
    head.extend_from_slice(&value.to_be_bytes());
    Ok(value)
}

fn boolean(value: u32) -> Result<bool, Violation> {
    match value {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(Violation::BadValue),
    }
}
