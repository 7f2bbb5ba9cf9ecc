//! Data that a store copies itself: shared (CLONE, reflinks), or copied within a server (COPY).
//!
//! 1. A refusal is no failure, unless the data has to be shared: what is missing is read and written.
//! 2. Only the source's data is copied, so that its holes stay holes, also where a store would fill
//!    them.
//! 3. Sources of many small extents are read and written instead: each takes two round trips here.

use super::copier::{Copier, add};
use super::data::Pair;
use super::options::{Reflink, Sparse};
use crate::failure::{Asked, Failure, Result};
use weir_pagecache::File;
use weir_vfs::{Attr, Capabilities, Error, Extent, IoFlags, SegmentKind};

/// What a store may do itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Offload {
    Clone,
    Copy,
}

/// Extents of data that are copied regardless of their size.
const FREE_EXTENTS: u64 = 16;
/// The least average size of extents that a server is asked to copy, in bytes.
const LEAST_BYTES: u64 = 1 << 20;
/// Bytes that a server is asked to copy at a time, between two reports of progress.
const PIECE_BYTES: u64 = 64 << 20;

/// Has the stores copy the source, whose attributes are `source`, from `start` on, where the copy ends.
/// Returns up to which offset the copy is complete.
pub(crate) async fn copy(
    copier: &Copier,
    pair: &Pair<'_>,
    source: &Attr,
    start: u64,
) -> Result<u64> {
    let options = &copier.options;
    if options.reflink == Reflink::Never || source.size <= start {
        return Ok(start);
    }
    if options.checksum || options.sparse == Sparse::Never {
        return match is_optional(copier) {
            true => Ok(start),
            false => Err(unshared(pair, Error::NotSupported)),
        };
    }
    if start == 0 && may(copier, pair, source, Offload::Clone, Capabilities::CLONE) {
        match pair.to.clone_range_async(pair.from, 0, 0, 0).await {
            // It may have grown, which is found later.
            Ok(()) => {
                let size = pair.to.size();
                add(&copier.tally.cloned_bytes, size);
                copier.progress.copied(size);
                return Ok(size);
            }
            Err(error) => refused(copier, pair, source, (Offload::Clone, error))?,
        }
    } else if options.reflink == Reflink::Always {
        return Err(unshared(pair, Error::NotSupported));
    }
    // The server's cache would keep what it copies.
    if options.flags.contains(IoFlags::UNCACHED)
        || !may(copier, pair, source, Offload::Copy, Capabilities::COPY)
    {
        return Ok(start);
    }
    copy_extents(copier, pair, source, start).await
}

/// Whether to ask the stores for this.
fn may(
    copier: &Copier,
    pair: &Pair<'_>,
    source: &Attr,
    offload: Offload,
    needed: Capabilities,
) -> bool {
    let is_able = |file: &File| file.capabilities().contains(needed);
    let is_refused =
        || copier.refused.lock().contains(&(source.fsid, offload)) && is_optional(copier);
    is_able(pair.from) && is_able(pair.to) && !is_refused()
}

fn is_optional(copier: &Copier) -> bool {
    copier.options.reflink != Reflink::Always
}

/// Notes a store's refusal; fails if the data has to be shared.
fn refused(
    copier: &Copier,
    pair: &Pair<'_>,
    source: &Attr,
    (offload, error): (Offload, Error),
) -> Result<()> {
    if !is_optional(copier) {
        return Err(unshared(pair, error));
    }
    // Other errors may concern this file alone.
    if matches!(error, Error::NotSupported | Error::CrossDevice) {
        copier.refused.lock().insert((source.fsid, offload));
    }
    Ok(())
}

fn unshared(pair: &Pair<'_>, error: Error) -> Failure {
    let asked = format!("share the data of {} with {}", pair.from_shown, pair.to_shown);
    let failure = Failure::of(asked, error);
    match error {
        Error::NotSupported | Error::CrossDevice => {
            failure.advice("use --reflink=auto to copy it where it cannot be shared")
        }
        _ => failure,
    }
}

async fn copy_extents(copier: &Copier, pair: &Pair<'_>, source: &Attr, start: u64) -> Result<u64> {
    let tally = &copier.tally;
    let (mut at, mut extents, mut copied) = (start, 0, 0);
    while at < source.size {
        let extent = match pair.from.extent_at_async(at).await {
            Ok(Extent { kind, end, .. }) => (kind, end.min(source.size)),
            // Truncated meanwhile, which is found later; or a failure that reading shows as well.
            Err(_) => return Ok(at),
        };
        let (kind, end) = extent;
        if kind == SegmentKind::Hole {
            add(&tally.holes_skipped, 1);
            add(&tally.hole_bytes, end - at);
            copier.progress.copied(end - at);
            at = end;
            continue;
        }
        extents += 1;
        if extents > FREE_EXTENTS && copied / extents < LEAST_BYTES {
            return Ok(at);
        }
        while at < end {
            let len = PIECE_BYTES.min(end - at);
            match pair.to.copy_range_async(pair.from, at, len, at).await {
                Ok(0) => return Ok(at),
                Ok(n) => {
                    at += n;
                    copied += n;
                    add(&tally.server_copied_bytes, n);
                    copier.progress.copied(n);
                }
                Err(error) => {
                    refused(copier, pair, source, (Offload::Copy, error))?;
                    // It may have copied a part of it.
                    let asked = || format!("write {}", pair.to_shown);
                    if pair.to.size() > at {
                        pair.to.truncate_async(at).await.asked(asked)?;
                    }
                    return Ok(at);
                }
            }
        }
    }
    Ok(at)
}
