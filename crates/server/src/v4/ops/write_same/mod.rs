//! WRITE_SAME (RFC 7862 section 15.12): the server generates the data, so that a client can, for
//! instance, initialize a database file without sending its content.
//!
//! 1. The count in the reply is that of whole blocks written. Like a WRITE, the call may be short,
//!    and the client asks for the rest. One call generates about [`MOST_BYTES`] of data.
//! 2. Long runs of zeros are not written as data; the server reserves the space if the store can.
//!    Only READ_PLUS and SEEK, which report them as holes, tell them from written zeros.
//! 3. The whole of a block with long runs of zeros is zeroed, and its space reserved, before its
//!    data is written. If there is no space, the block is left unchanged.

pub(crate) mod pattern;

use crate::v4::context::{Context, FileIo, Target};
use crate::v4::ops::write_same::pattern::{Blocks, PIECE_BYTES, PatternPiece};
use crate::v4::status::of_vfs;
use weir_nfs::v4::Error;
use weir_nfs::v4::op::write_same;
use weir_nfs::v4::types::{StableHow, WriteResponse};
use weir_vfs::Capabilities;
use weir_xdr::List;

/// How much data one call generates, in bytes. Limits how long a call occupies its slot.
const MOST_BYTES: u64 = 64 << 20;
/// How much a change of the file's layout counts toward that, in bytes.
const LAYOUT_BYTES: u64 = 64 << 10;

pub(crate) async fn write_same(cx: &mut Context, args: write_same::Args) -> write_same::Res {
    let target = cx.current()?;
    let io = cx.io_to_change(&target, args.stateid).await?;
    let blocks = Blocks::of(&args)?;
    target.check_size(args.offset, blocks.len())?;
    let makes_holes = target.capabilities().contains(Capabilities::HOLES);
    if !makes_holes && blocks.block_bytes() > MOST_BYTES {
        // A block that is all data would exceed the limit of a call.
        return Err(Error::NotSupp);
    }
    // Read before the write: if the written data is lost, the verifier changes after this point, so
    // the client notices.
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
    /// Writes as much as one call may. Returns the bytes of the whole blocks written.
    async fn run(&self, blocks: &Blocks) -> Result<u64, Error> {
        let (mut done, mut cost) = (0, 0);
        let mut buffer = Vec::new();
        let sparse = blocks.are_sparse(self.makes_holes);
        // The end of the last block that was zeroed as a whole.
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
                    PatternPiece::Zeros(len) if sparse => Ok(len.min(most)),
                    PatternPiece::Zeros(len) => {
                        self.zero(self.offset + done, len).await.map(|()| len)
                    }
                    PatternPiece::Data(len) => {
                        buffer.resize(len.min(most) as usize, 0);
                        blocks.fill(done, &mut buffer);
                        self.write(self.offset + done, &buffer).await
                    }
                }
            };
            cost += match (&written, piece) {
                (Ok(written), PatternPiece::Data(_)) if !begins => *written,
                _ if begins || !sparse => LAYOUT_BYTES,
                _ => 0,
            };
            match written {
                Ok(written) => done += written,
                // Report what was written. The client asks for the rest, and gets the error then.
                Err(_) if blocks.whole(done) > 0 => break,
                Err(error) => return Err(error),
            }
            // Writes to the page cache may never wait, so let other tasks run.
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

    /// Zeroes a range without writing data; reserves the space if the store can.
    async fn zero(&self, at: u64, len: u64) -> Result<(), Error> {
        let reserve = self.target.capabilities().contains(Capabilities::ALLOCATE);
        self.io.file.zero_range_async(at, len, reserve).await.map_err(of_vfs)
    }
}

const _: () = assert!(PIECE_BYTES <= MOST_BYTES);
