//! Copies between files of one export, piece by piece, through the page cache. Holes are preserved
//! and cost nothing, even very long ones. For the export's cache policy, reads and writes count as
//! those of the client that asked for the copy.
//!
//! A piece owns its bytes: a copy that waits, usually for memory, pins no pages of the cache.

use crate::export::{RightsCache, Served};
use crate::operation::set_id;
use crate::v4::context::FileIo;
use crate::v4::status::of_vfs;
use std::io::IoSlice;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use weir_nfs::v4::Error;
use weir_pagecache::{File, Segment, Segments};
use weir_vfs::{Access, Caller, SegmentKind};

/// Maximum size of the data in a piece, in bytes.
const PIECE_BYTES: u64 = 1 << 20;

/// A copy in progress.
pub(crate) struct Copying {
    /// The export of both files.
    export: Arc<Served>,
    /// The client's address.
    peer: IpAddr,
    /// The user on whose behalf the server copies.
    caller: Caller,
    source: FileIo,
    destination: FileIo,
    from: u64,
    to: u64,
    left: u64,
}

/// The next part of the source.
pub(crate) enum SourcePiece {
    /// The end of the copy or of the source.
    End,
    /// A hole of this many bytes.
    Hole(u64),
    /// Data, with the holes in it that the cache knows of.
    Data(Vec<DataPart>),
}

/// A part of [`SourcePiece::Data`].
pub(crate) enum DataPart {
    /// Data.
    Bytes(Vec<u8>),
    /// A hole of this many bytes.
    Hole(u64),
}

/// What a step copied.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Step {
    /// Bytes copied, holes included.
    pub(crate) bytes: u64,
    /// Bytes of data among them.
    pub(crate) data: u64,
}

impl Copying {
    /// A copy of `len` bytes between two files of the same export, each with its offset, for the user
    /// `caller` of the client at `peer`.
    pub(crate) fn new(
        (export, peer, caller): (Arc<Served>, IpAddr, Caller),
        (source, from): (FileIo, u64),
        (destination, to): (FileIo, u64),
        len: u64,
    ) -> Self {
        Self { export, peer, caller, source, destination, from, to, left: len }
    }

    /// The file that the copy writes to.
    pub(crate) fn destination(&self) -> &File {
        &self.destination.file
    }

    /// Copies the next piece, or the whole of the next hole. Copies nothing at the end.
    ///
    /// # Errors
    /// Any error of the store; the pieces before remain copied.
    pub(crate) async fn step(&mut self) -> Result<Step, Error> {
        let piece = self.read().await?;
        self.write(piece).await
    }

    /// Reads the next piece. The position advances only when the piece is written.
    ///
    /// # Errors
    /// Any error of the store.
    pub(crate) async fn read(&self) -> Result<SourcePiece, Error> {
        if self.left == 0 {
            return Ok(SourcePiece::End);
        }
        let source = &self.source.file;
        match source.extent_at_async(self.from).await {
            Ok(extent) if extent.kind == SegmentKind::Hole => {
                Ok(SourcePiece::Hole((extent.end - self.from).min(self.left)))
            }
            Ok(extent) => {
                let len = (extent.end - self.from).min(self.left).min(PIECE_BYTES) as usize;
                let flags = self.export.read_flags(self.peer, source, self.from, len);
                let read = source.read_segments_async(self.from, len, flags).await;
                Ok(SourcePiece::Data(copied(read.map_err(of_vfs)?, len as u64)))
            }
            // The source was truncated meanwhile.
            Err(weir_vfs::Error::NoSuchRange) => Ok(SourcePiece::End),
            Err(error) => Err(of_vfs(error)),
        }
    }

    /// Checks that the user may still read the source and write the destination.
    ///
    /// # Errors
    /// [`Error::Access`]; those of the store.
    pub(crate) async fn check_rights(
        &self,
        rights: &RightsCache,
        now: Duration,
    ) -> Result<(), Error> {
        let by = (&*self.export, &self.caller);
        for (io, access) in [(&self.source, Access::READ), (&self.destination, Access::WRITE)] {
            io.kept.check_rights(rights, by, (&io.file, access), now).await?;
        }
        Ok(())
    }

    /// Writes the piece that [`read`](Self::read) returned.
    ///
    /// # Errors
    /// Any error of the store; the pieces before remain copied.
    pub(crate) async fn write(&mut self, piece: SourcePiece) -> Result<Step, Error> {
        if matches!(piece, SourcePiece::End) {
            return Ok(Step::default());
        }
        // The destination may have become a set-user-ID program since the last piece.
        if matches!(&self.caller, Caller::As(cred) if cred.uid != 0) {
            let attr = self.destination.file.getattr().await.map_err(of_vfs)?;
            set_id::clear(self.export.fs(), &self.caller, &attr).await.map_err(of_vfs)?;
        }
        let step = match piece {
            SourcePiece::End => Step::default(),
            SourcePiece::Hole(bytes) => {
                let zeroed = self.destination.file.zero_range_async(self.to, bytes, false).await;
                zeroed.map_err(of_vfs)?;
                Step { bytes, data: 0 }
            }
            SourcePiece::Data(parts) => {
                let bytes = self.write_data(parts).await.map_err(of_vfs)?;
                Step { bytes, data: bytes }
            }
        };
        self.from += step.bytes;
        self.to += step.bytes;
        self.left -= step.bytes;
        Ok(step)
    }

    /// Writes as much of the data as the cache accepts. Returns the number of bytes.
    async fn write_data(&self, parts: Vec<DataPart>) -> weir_vfs::Result<u64> {
        let destination = &self.destination.file;
        let mut copied = 0;
        for part in parts {
            let to = self.to + copied;
            match part {
                DataPart::Bytes(bytes) => {
                    let flags = self.export.write_flags(self.peer, destination, to, bytes.len());
                    let written = destination.write_at_async(&bytes, to, flags).await?;
                    copied += written as u64;
                    if written < bytes.len() {
                        break;
                    }
                }
                DataPart::Hole(len) => {
                    destination.zero_range_async(to, len, false).await?;
                    copied += len;
                }
            }
        }
        Ok(copied)
    }
}

/// Copies the first `len` bytes out of the cache, and releases the pages.
fn copied(found: Segments, len: u64) -> Vec<DataPart> {
    let mut left = len;
    let mut parts = Vec::with_capacity(found.segments.len());
    for segment in found.segments {
        parts.push(match segment {
            Segment::Data { pages, .. } => {
                let mut bytes = Vec::with_capacity(pages.len());
                let mut slices: Vec<IoSlice<'_>> = Vec::new();
                pages.slices(0, &mut slices);
                slices.iter().for_each(|slice| bytes.extend_from_slice(slice));
                left -= bytes.len() as u64;
                DataPart::Bytes(bytes)
            }
            // The last hole may extend past the requested range.
            Segment::Hole { start, end } => {
                let hole = (end - start).min(left);
                left -= hole;
                DataPart::Hole(hole)
            }
        });
    }
    parts
}
