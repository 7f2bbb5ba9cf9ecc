//! COPY, CLONE, OFFLOAD_STATUS, OFFLOAD_CANCEL (RFC 7862 sections 15.2, 15.13, 15.9, 15.8).
//!
//! Copies are done before the call returns, [`MAX_COPY_BYTES`] at a time (a short copy is legal,
//! the client asks on), through the page cache: holes stay holes, and bytes cross no wire.

use crate::v4::context::{Context, FileIo, Target};
use crate::v4::status::of_vfs;
use std::io::IoSlice;
use weir_nfs::v4::Detailed;
use weir_nfs::v4::Error;
use weir_nfs::v4::op::{clone, copy, offload_cancel, offload_status};
use weir_nfs::v4::types::{StableHow, StateId, WriteResponse};
use weir_pagecache::{File, Segment};
use weir_vfs::{Access, IoFlags};
use weir_xdr::List;

/// Most bytes of one COPY, so that it holds its slot for no more than moments.
const MAX_COPY_BYTES: u64 = 64 << 20;
const PIECE_BYTES: u64 = 1 << 20;

/// The two files of a copy, and how much of the source there is.
struct Pair {
    source: FileIo,
    destination: FileIo,
    len: u64,
}

async fn pair(
    cx: &Context,
    stateids: (StateId, StateId),
    offsets: (u64, u64),
    count: u64,
) -> Result<Pair, Error> {
    let (from, to): (Target<'_>, Target<'_>) = (cx.saved()?, cx.current()?);
    if from.node.export != to.node.export {
        return Err(Error::XDev);
    }
    let source = cx.io(&from, stateids.0, Access::READ).await?;
    let destination = cx.io_to_change(&to, stateids.1).await?;
    let left = source.file.size().checked_sub(offsets.0).ok_or(Error::Inval)?;
    let len = if count == 0 { left } else { count };
    if len > left || offsets.1.checked_add(len).is_none_or(|end| end > i64::MAX as u64) {
        return Err(Error::Inval);
    }
    let overlap = offsets.0 < offsets.1 + len && offsets.1 < offsets.0 + len;
    if from.node == to.node && overlap {
        return Err(Error::Inval);
    }
    Ok(Pair { source, destination, len })
}

pub(crate) async fn clone(cx: &mut Context, args: clone::Args) -> clone::Res {
    let (from, to) = (args.source_offset, args.destination_offset);
    let pair = pair(cx, (args.source, args.destination), (from, to), args.count).await?;
    let Pair { source, destination, .. } = pair;
    let done = destination.file.clone_range_async(&source.file, from, args.count, to).await;
    done.map_err(of_vfs)
}

pub(crate) async fn copy(cx: &mut Context, args: copy::Args) -> copy::Res {
    if !args.source_servers.is_empty() {
        return Err(Detailed::Plain(Error::NotSupp));
    }
    let (from, to) = (args.source_offset, args.destination_offset);
    let verifier = cx.core.verifier.get();
    let pair = pair(cx, (args.source, args.destination), (from, to), args.count).await;
    let Pair { source, destination, len } = pair.map_err(Detailed::Plain)?;
    let mut count = 0;
    let len = len.min(MAX_COPY_BYTES);
    while count < len {
        let piece = (len - count).min(PIECE_BYTES);
        match copy_piece(&source.file, &destination.file, from + count, to + count, piece).await {
            Ok(0) => break,
            Ok(copied) => count += copied,
            // What is copied is copied; the rest is asked for again, and fails then.
            Err(_) if count > 0 => break,
            Err(error) => return Err(Detailed::Plain(of_vfs(error))),
        }
    }
    let response = WriteResponse {
        callback_id: List::default(),
        count,
        committed: StableHow::Unstable,
        verifier,
    };
    let requirements = copy::Requirements { consecutive: true, synchronous: true };
    Ok(copy::Copied { response, requirements })
}

/// Copies up to `len` bytes; says how many.
async fn copy_piece(
    source: &File,
    destination: &File,
    from: u64,
    to: u64,
    len: u64,
) -> weir_vfs::Result<u64> {
    let read = source.read_segments_async(from, len as usize, IoFlags::empty()).await?;
    let mut copied = 0;
    for segment in read.segments {
        match segment {
            Segment::Data { pages, .. } => {
                let mut bytes = Vec::with_capacity(pages.len());
                let mut slices: Vec<IoSlice<'_>> = Vec::new();
                pages.slices(0, &mut slices);
                slices.iter().for_each(|slice| bytes.extend_from_slice(slice));
                let written =
                    destination.write_at_async(&bytes, to + copied, IoFlags::empty()).await?;
                copied += written as u64;
                if written < bytes.len() {
                    return Ok(copied);
                }
            }
            Segment::Hole { start, end } => {
                let hole = (end - start).min(len - copied);
                let (begin, end) = (to + copied, to + copied + hole);
                if destination.size() > begin {
                    destination.punch_hole_async(begin, hole).await?;
                }
                if destination.size() < end {
                    destination.truncate_async(end).await?;
                }
                copied += hole;
            }
        }
    }
    Ok(copied)
}

/// No copy goes on in the background, so none has this name.
pub(crate) async fn offload_status(
    _: &mut Context,
    _: offload_status::Args,
) -> offload_status::Res {
    Err(Error::BadStateId)
}

/// No copy goes on in the background, so none has this name.
pub(crate) async fn offload_cancel(
    _: &mut Context,
    _: offload_cancel::Args,
) -> offload_cancel::Res {
    Err(Error::BadStateId)
}
