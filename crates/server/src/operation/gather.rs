//! File data for replies: a sequence of pages that the cache lends, and zeros for holes.
//!
//! 1. Bytes are not copied: a reply holds pinned pages, and the transport sends them with a
//!    vectored write. Only data that the cache cannot lend at once (the cache is small, or the
//!    export is not cached) is copied piece by piece, because a short read before the end of the
//!    file is an error to some clients (libnfs, for one).
//! 2. Before pages are pinned, their bytes are reserved from the connection's reply memory. A call
//!    that cannot reserve them is told to retry later.

use crate::export::Served;
use crate::peer::Peer;
use crate::replies::{NoRoom, ReplyMemory};
use std::io::IoSlice;
use weir_pagecache::{File, Pages, Segment, Segments};
use weir_vfs::{Error, IoFlags, Result};
use weir_xdr::Payload;

static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// The connection of the call, and the call's reply memory.
#[derive(Clone, Copy)]
pub(crate) struct Reader<'a> {
    pub(crate) peer: &'a Peer,
    pub(crate) memory: &'a ReplyMemory,
}

/// Reads, without waiting if all pages are resident. Holes stay holes.
pub(crate) async fn read(
    file: &File,
    offset: u64,
    count: usize,
    reader: Reader<'_>,
    export: &Served,
) -> Result<Segments> {
    reader.memory.reserve(count).await.map_err(|NoRoom| Error::WouldBlock)?;
    let flags = export.read_flags(reader.peer.addr().ip(), file, offset, count);
    let lent = lend(file, offset, count, flags).await?;
    let data = lent.segments.iter().map(|segment| match segment {
        Segment::Data { pages, .. } => pages.len(),
        Segment::Hole { .. } => 0,
    });
    export.counts.read(data.sum());
    Ok(lent)
}

async fn lend(file: &File, offset: u64, count: usize, flags: IoFlags) -> Result<Segments> {
    // A read with flags (uncached) must not mark resident pages as recently used.
    let resident = flags.is_empty().then(|| file.read_segments_resident(offset, count)).flatten();
    match resident {
        Some(segments) => Ok(segments),
        None => file.read_segments_async(offset, count, flags).await,
    }
}

/// Reads `count` bytes, or up to the end of the file; holes are read as zeros.
pub(crate) async fn read_data(
    file: &File,
    offset: u64,
    count: usize,
    reader: Reader<'_>,
    export: &Served,
) -> Result<Data> {
    reader.memory.reserve(count).await.map_err(|NoRoom| Error::WouldBlock)?;
    let flags = export.read_flags(reader.peer.addr().ip(), file, offset, count);
    let data = read_whole(file, offset, count, flags).await?;
    export.counts.read(data.gathered.len);
    Ok(data)
}

async fn read_whole(file: &File, offset: u64, count: usize, flags: IoFlags) -> Result<Data> {
    let first = Data::of(lend(file, offset, count, flags).await?, offset, count);
    if first.is_whole(count) {
        return Ok(first);
    }
    let mut copied = Vec::with_capacity(count);
    let mut next = first;
    loop {
        let Data { gathered, eof } = next;
        gathered.copy_to(&mut copied);
        let none = gathered.len == 0;
        // Unpinned before the next read: a reader that waits for pages must not hold any.
        drop(gathered);
        if eof || none || copied.len() == count {
            let mut gathered = Gathered::default();
            gathered.push(GatheredPart::Copied(copied));
            return Ok(Data { gathered, eof });
        }
        let (offset, count) = (offset + copied.len() as u64, count - copied.len());
        next = Data::of(lend(file, offset, count, flags).await?, offset, count);
    }
}

/// What was read.
#[derive(Debug)]
pub(crate) struct Data {
    pub(crate) gathered: Gathered,
    /// The data reaches the end of the file.
    pub(crate) eof: bool,
}

impl Data {
    fn of(segments: Segments, offset: u64, count: usize) -> Self {
        let (reaches_end, end) = (segments.eof, segments.end(offset));
        let gathered = flatten(segments, count);
        // The last hole may extend past the requested range.
        let eof = reaches_end && end <= offset.saturating_add(gathered.len as u64);
        Self { gathered, eof }
    }

    fn is_whole(&self, count: usize) -> bool {
        self.eof || self.gathered.len == count
    }
}

/// Joins all segments, with holes as zeros; at most `count` bytes.
fn flatten(segments: Segments, count: usize) -> Gathered {
    let mut data = Gathered::default();
    for segment in segments.segments {
        data.push(match segment {
            Segment::Data { pages, .. } => GatheredPart::Pages(pages),
            Segment::Hole { start, end } => {
                let left = count - data.len;
                GatheredPart::Zeros(usize::try_from(end - start).map_or(left, |len| len.min(left)))
            }
        });
    }
    data
}

/// A part of [`Gathered`].
pub(crate) enum GatheredPart {
    Pages(Pages),
    Zeros(usize),
    Copied(Vec<u8>),
}

impl GatheredPart {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Pages(pages) => pages.len(),
            Self::Zeros(len) => *len,
            Self::Copied(bytes) => bytes.len(),
        }
    }

    /// Keeps the first `len` bytes.
    pub(crate) fn truncate(&mut self, len: usize) {
        match self {
            Self::Pages(pages) => pages.truncate(len),
            Self::Zeros(zeros) => *zeros = (*zeros).min(len),
            Self::Copied(bytes) => bytes.truncate(len),
        }
    }
}

/// Pinned pages and zeros.
#[derive(Default)]
pub(crate) struct Gathered {
    pieces: Vec<GatheredPart>,
    len: usize,
}

impl Gathered {
    pub(crate) fn push(&mut self, piece: GatheredPart) {
        self.len += piece.len();
        self.pieces.push(piece);
    }

    fn copy_to(&self, into: &mut Vec<u8>) {
        let mut slices = Vec::new();
        self.slices(0, &mut slices);
        slices.iter().for_each(|slice| into.extend_from_slice(slice));
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
                    GatheredPart::Pages(pages) => pages.slices(skip, out),
                    GatheredPart::Copied(bytes) => out.push(IoSlice::new(&bytes[skip..])),
                    GatheredPart::Zeros(_) => {
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
