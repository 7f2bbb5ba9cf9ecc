//! WRITE_SAME (RFC 7862 section 15.12): the server makes the bytes, so that preparing a file for a
//! database, say, costs a call in the place of its length.
//!
//! 1. A reply counts whole blocks that were written; like WRITE's, it may be short, and the client
//!    asks on. [`MOST_BYTES`] of data are made for one call, of however few or many blocks.
//! 2. Long zeros are made as the store makes space: reserved, where it can, and no data. Nothing
//!    tells them from written ones but READ_PLUS and SEEK, which call them a hole.
//! 3. A block with long zeros gets its space, and is zeroed, before any of its data is written: one
//!    that finds no space leaves the file as it was.

pub(crate) mod pattern;

use crate::v4::context::{Context, FileIo, Target};
use crate::v4::ops::write_same::pattern::{Blocks, PIECE_BYTES, Piece};
use crate::v4::status::of_vfs;
use weir_nfs::v4::Error;
use weir_nfs::v4::op::write_same;
use weir_nfs::v4::types::{StableHow, WriteResponse};
use weir_vfs::Capabilities;
use weir_xdr::List;

/// Bytes of data that are made for one call, so that it holds its slot for no more than moments.
const MOST_BYTES: u64 = 64 << 20;
/// What a change of layout counts for, in bytes of data.
const LAYOUT_BYTES: u64 = 64 << 10;

pub(crate) async fn write_same(cx: &mut Context, args: write_same::Args) -> write_same::Res {
    let target = cx.current()?;
    let io = cx.io_to_change(&target, args.stateid).await?;
    let blocks = Blocks::of(&args)?;
    let makes_holes = target.capabilities().contains(Capabilities::HOLES);
    if !makes_holes && blocks.block_bytes() > MOST_BYTES {
        // Not one block of all data would be done in a call.
        return Err(Error::NotSupp);
    }
    // Taken before the write: should data be lost after it, the verifier is another one by then.
    let (verifier, errors) = (cx.services.verifier.get(&io.file), io.file.write_errors());
    let writing = Writing { cx, target: &target, io: &io, offset: args.offset, makes_holes };
    let count = writing.run(&blocks).await?;
    if args.stable != StableHow::Unstable && count > 0 {
        let range = args.offset..args.offset + count;
        let data_only = args.stable == StableHow::DataSync;
        let synced = cx.services.verifier.sync(&io.file, errors, range, data_only).await;
        synced.map_err(of_vfs)?;
    }
    Ok(WriteResponse { callback_id: List::default(), count, committed: args.stable, verifier })
}

struct Writing<'a> {
    cx: &'a Context,
    target: &'a Target<'a>,
    io: &'a FileIo,
    offset: u64,
    makes_holes: bool,
}

impl Writing<'_> {
    /// Writes as much as one call may; the bytes of the blocks that are whole.
    async fn run(&self, blocks: &Blocks) -> Result<u64, Error> {
        let (mut done, mut cost) = (0, 0);
        let mut buffer = Vec::new();
        let sparse = blocks.are_sparse(self.makes_holes);
        // The end of the block that was zeroed as a whole, before its data comes.
        let mut zeroed = 0;
        while done < blocks.len() && (cost < MOST_BYTES || blocks.whole(done) == 0) {
            let piece = blocks.next(done, self.makes_holes);
            let begins = sparse && done >= zeroed;
            let written = if begins {
                let block = blocks.block_bytes();
                zeroed = done + block;
                self.zero(self.offset + done, block).await.map(|()| 0)
            } else {
                let most = if sparse { zeroed - done } else { u64::MAX };
                match piece {
                    Piece::Zeros(len) if sparse => Ok(len.min(most)),
                    Piece::Zeros(len) => self.zero(self.offset + done, len).await.map(|()| len),
                    Piece::Data(len) => {
                        buffer.resize(len.min(most) as usize, 0);
                        blocks.fill(done, &mut buffer);
                        self.write(self.offset + done, &buffer).await
                    }
                }
            };
            cost += match (&written, piece) {
                (Ok(written), Piece::Data(_)) if !begins => *written,
                _ if begins || !sparse => LAYOUT_BYTES,
                _ => 0,
            };
            match written {
                Ok(written) => done += written,
                // What is written is written; the rest is asked for again, and fails then.
                Err(_) if blocks.whole(done) > 0 => break,
                Err(error) => return Err(error),
            }
            // Writes to memory never wait: others are to have their turn.
            tokio::task::yield_now().await;
        }
        Ok(blocks.whole(done))
    }

    async fn write(&self, at: u64, bytes: &[u8]) -> Result<u64, Error> {
        let (file, peer) = (&self.io.file, self.cx.peer.addr().ip());
        let flags = self.target.export.write_flags(peer, file, at, bytes.len());
        let written = file.write_at_async(bytes, at, flags).await.map_err(of_vfs)?;
        Ok(written as u64)
    }

    /// Zeros that take no data, on space that is reserved where the store can.
    async fn zero(&self, at: u64, len: u64) -> Result<(), Error> {
        let reserve = self.target.capabilities().contains(Capabilities::ALLOCATE);
        self.io.file.zero_range_async(at, len, reserve).await.map_err(of_vfs)
    }
}

const _: () = assert!(PIECE_BYTES <= MOST_BYTES);
