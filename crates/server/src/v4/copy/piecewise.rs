//! A copy within the server, piece by piece, through the page cache: holes stay holes and cost
//! nothing, however long they are; bytes cross no wire. Reads and writes are those of the client that
//! asks for the copy, as far as the export's cache policy goes.
//!
//! A piece owns its bytes: a copy that waits, for memory above all, holds no pages of the cache.

use crate::export::Served;
use crate::operation::set_id;
use crate::v4::context::FileIo;
use crate::v4::status::of_vfs;
use std::io::IoSlice;
use std::net::IpAddr;
use std::sync::Arc;
use weir_nfs::v4::Error;
use weir_pagecache::{File, Segment, Segments};
use weir_vfs::{Caller, SegmentKind};

/// Most bytes of data in a piece.
const PIECE_BYTES: u64 = 1 << 20;

/// A copy that is under way.
pub(crate) struct Copying {
    /// Of both files.
    export: Arc<Served>,
    /// Whose copy it is.
    peer: IpAddr,
    /// On whose behalf.
    caller: Caller,
    source: FileIo,
    destination: FileIo,
    from: u64,
    to: u64,
    left: u64,
}

/// A part of the source, from where the copy is.
pub(crate) enum Piece {
    /// There is no more.
    End,
    /// Bytes of a hole.
    Hole(u64),
    /// Data, and holes of which the cache knows within it.
    Data(Vec<Part>),
}

/// A part of [`Piece::Data`].
pub(crate) enum Part {
    /// Bytes of data.
    Bytes(Vec<u8>),
    /// Bytes of a hole.
    Hole(u64),
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
    /// A copy of `len` bytes, from a file and an offset to others of the same export, for a client at
    /// `peer` and one of its users.
    pub(crate) fn new(
        (export, peer, caller): (Arc<Served>, IpAddr, Caller),
        (source, from): (FileIo, u64),
        (destination, to): (FileIo, u64),
        len: u64,
    ) -> Self {
        Self { export, peer, caller, source, destination, from, to, left: len }
    }

    /// The file that is copied to.
    pub(crate) fn destination(&self) -> &File {
        &self.destination.file
    }

    /// Copies the next piece, or the whole of the next hole; nothing at the end.
    ///
    /// # Errors
    /// What the store says; the pieces before are copied.
    pub(crate) async fn step(&mut self) -> Result<Step, Error> {
        let piece = self.read().await?;
        self.write(piece).await
    }

    /// Reads the next piece; the same again until it is written.
    ///
    /// # Errors
    /// What the store says.
    pub(crate) async fn read(&self) -> Result<Piece, Error> {
        if self.left == 0 {
            return Ok(Piece::End);
        }
        let source = &self.source.file;
        match source.extent_at_async(self.from).await {
            Ok(extent) if extent.kind == SegmentKind::Hole => {
                Ok(Piece::Hole((extent.end - self.from).min(self.left)))
            }
            Ok(extent) => {
                let len = (extent.end - self.from).min(self.left).min(PIECE_BYTES) as usize;
                let flags = self.export.read_flags(self.peer, source, self.from, len);
                let read = source.read_segments_async(self.from, len, flags).await;
                Ok(Piece::Data(copied(read.map_err(of_vfs)?, len as u64)))
            }
            // The file was made shorter meanwhile.
            Err(weir_vfs::Error::NoSuchRange) => Ok(Piece::End),
            Err(error) => Err(of_vfs(error)),
        }
    }

    /// Writes the piece that was read.
    ///
    /// # Errors
    /// What the store says; the pieces before are copied.
    pub(crate) async fn write(&mut self, piece: Piece) -> Result<Step, Error> {
        if matches!(piece, Piece::End) {
            return Ok(Step::default());
        }
        // The file may have become a program that runs as its owner since the piece before.
        if matches!(&self.caller, Caller::As(cred) if cred.uid != 0) {
            let attr = self.destination.file.getattr().await.map_err(of_vfs)?;
            set_id::clear(self.export.fs(), &self.caller, &attr).await.map_err(of_vfs)?;
        }
        let step = match piece {
            Piece::End => Step::default(),
            Piece::Hole(bytes) => {
                let zeroed = self.destination.file.zero_range_async(self.to, bytes, false).await;
                zeroed.map_err(of_vfs)?;
                Step { bytes, data: 0 }
            }
            Piece::Data(parts) => {
                let bytes = self.write_data(parts).await.map_err(of_vfs)?;
                Step { bytes, data: bytes }
            }
        };
        self.from += step.bytes;
        self.to += step.bytes;
        self.left -= step.bytes;
        Ok(step)
    }

    /// Writes as many of the bytes as the cache takes; says how many.
    async fn write_data(&self, parts: Vec<Part>) -> weir_vfs::Result<u64> {
        let destination = &self.destination.file;
        let mut copied = 0;
        for part in parts {
            let to = self.to + copied;
            match part {
                Part::Bytes(bytes) => {
                    let flags = self.export.write_flags(self.peer, destination, to, bytes.len());
                    let written = destination.write_at_async(&bytes, to, flags).await?;
                    copied += written as u64;
                    if written < bytes.len() {
                        break;
                    }
                }
                Part::Hole(len) => {
                    destination.zero_range_async(to, len, false).await?;
                    copied += len;
                }
            }
        }
        Ok(copied)
    }
}

/// A copy of what was read, at most `len` bytes of the file; the pages go back to the cache.
fn copied(found: Segments, len: u64) -> Vec<Part> {
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
                Part::Bytes(bytes)
            }
            // The last one may reach past what was asked for.
            Segment::Hole { start, end } => {
                let hole = (end - start).min(left);
                left -= hole;
                Part::Hole(hole)
            }
        });
    }
    parts
}
