//! A copy within the server, piece by piece, through the page cache: holes stay holes and cost
//! nothing, whatever their length; bytes cross no wire.

use super::context::FileIo;
use super::status::of_vfs;
use std::io::IoSlice;
use weir_nfs::v4::Error;
use weir_pagecache::{File, Segment};
use weir_vfs::{IoFlags, SegmentKind};

/// Most bytes of data in a piece.
const PIECE_BYTES: u64 = 1 << 20;

/// A copy that is under way.
pub(crate) struct Copying {
    source: FileIo,
    destination: FileIo,
    from: u64,
    to: u64,
    left: u64,
}

/// What a step copied.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Step {
    /// Bytes of the files.
    pub(crate) bytes: u64,
    /// Bytes of data among them.
    pub(crate) data: u64,
}

impl Copying {
    /// A copy of `len` bytes from offset `from` to offset `to`.
    pub(crate) fn new(source: FileIo, destination: FileIo, from: u64, to: u64, len: u64) -> Self {
        Self { source, destination, from, to, left: len }
    }

    /// Copies the next piece, or the whole of the next hole; nothing at the end.
    ///
    /// # Errors
    /// What the store says; the pieces before are copied.
    pub(crate) async fn step(&mut self) -> Result<Step, Error> {
        if self.left == 0 {
            return Ok(Step::default());
        }
        let (source, destination) = (&self.source.file, &self.destination.file);
        let step = match source.extent_at_async(self.from).await {
            Ok(extent) if extent.kind == SegmentKind::Hole => {
                let bytes = (extent.end - self.from).min(self.left);
                make_hole(destination, self.to, bytes).await.map_err(of_vfs)?;
                Step { bytes, data: 0 }
            }
            Ok(extent) => {
                let len = (extent.end - self.from).min(self.left).min(PIECE_BYTES);
                let bytes = copy_piece(source, destination, self.from, self.to, len).await;
                let bytes = bytes.map_err(of_vfs)?;
                Step { bytes, data: bytes }
            }
            // The file was made shorter meanwhile.
            Err(weir_vfs::Error::NoSuchRange) => Step::default(),
            Err(error) => return Err(of_vfs(error)),
        };
        self.from += step.bytes;
        self.to += step.bytes;
        self.left -= step.bytes;
        Ok(step)
    }
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
                make_hole(destination, to + copied, hole).await?;
                copied += hole;
            }
        }
    }
    Ok(copied)
}

/// Makes `len` bytes at `at` a hole, which may be past the end of the file.
async fn make_hole(file: &File, at: u64, len: u64) -> weir_vfs::Result<()> {
    if file.size() > at {
        file.punch_hole_async(at, len).await?;
    }
    if file.size() < at + len {
        file.truncate_async(at + len).await?;
    }
    Ok(())
}
