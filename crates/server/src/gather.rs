//! File data as replies carry it: pages that the cache lends, and zeros for holes, one after the
//! other.
//!
//! 1. Bytes are not copied: a reply holds pinned pages, and the transport gathers them.
//! 2. Before pages are pinned, their bytes are counted among those that may be queued for the
//!    peer; both are let go of together.

use crate::export::Served;
use crate::transport::{Peer, Reserved};
use std::io::IoSlice;
use std::sync::Arc;
use weir_pagecache::{File, Pages, Segment, Segments};
use weir_vfs::Result;
use weir_xdr::Payload;

static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// Reads, without waiting if all is resident. The reply's share of what may be queued for the peer
/// comes with it.
pub(crate) async fn read(
    file: &File,
    offset: u64,
    count: usize,
    peer: &Peer,
    export: &Served,
) -> Result<(Segments, Arc<Reserved>)> {
    let reserved = Arc::new(peer.reserve(count).await);
    let flags = export.read_flags(peer.addr().ip(), file, offset, count);
    // Only a read that stays in the cache may make what it finds there younger.
    let resident = flags.is_empty().then(|| file.read_segments_resident(offset, count)).flatten();
    let segments = match resident {
        Some(segments) => segments,
        None => file.read_segments_async(offset, count, flags).await?,
    };
    Ok((segments, reserved))
}

/// All segments in one, holes as zeros; at most `count` bytes.
pub(crate) fn flatten(segments: Segments, count: usize, reserved: Arc<Reserved>) -> Gathered {
    let mut data = Gathered::new(reserved);
    for segment in segments.segments {
        data.push(match segment {
            Segment::Data { pages, .. } => Piece::Pages(pages),
            Segment::Hole { start, end } => {
                let left = count - data.len;
                Piece::Zeros(usize::try_from(end - start).map_or(left, |len| len.min(left)))
            }
        });
    }
    data
}

/// A part of [`Gathered`].
pub(crate) enum Piece {
    Pages(Pages),
    Zeros(usize),
}

impl Piece {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Pages(pages) => pages.len(),
            Self::Zeros(len) => *len,
        }
    }

    /// Keeps the first `len` bytes.
    pub(crate) fn truncate(&mut self, len: usize) {
        match self {
            Self::Pages(pages) => pages.truncate(len),
            Self::Zeros(zeros) => *zeros = (*zeros).min(len),
        }
    }
}

/// Pinned pages and zeros.
pub(crate) struct Gathered {
    pieces: Vec<Piece>,
    len: usize,
    /// Held for as long as the pages are.
    _reserved: Arc<Reserved>,
}

impl Gathered {
    pub(crate) fn new(reserved: Arc<Reserved>) -> Self {
        Self { pieces: Vec::new(), len: 0, _reserved: reserved }
    }

    pub(crate) fn push(&mut self, piece: Piece) {
        self.len += piece.len();
        self.pieces.push(piece);
    }
}

impl std::fmt::Debug for Gathered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Gathered({} bytes in {} pieces)", self.len, self.pieces.len())
    }
}

impl Payload for Gathered {
    fn len(&self) -> usize {
        self.len
    }

    fn slices<'a>(&'a self, from: usize, out: &mut Vec<IoSlice<'a>>) {
        let mut skip = from;
        for piece in &self.pieces {
            let len = piece.len();
            if skip < len {
                match piece {
                    Piece::Pages(pages) => pages.slices(skip, out),
                    Piece::Zeros(_) => {
                        let mut left = len - skip;
                        while left > 0 {
                            let now = left.min(ZEROS.len());
                            out.push(IoSlice::new(&ZEROS[..now]));
                            left -= now;
                        }
                    }
                }
            }
            skip = skip.saturating_sub(len);
        }
    }
}
