//! The data of WRITE_SAME (RFC 7862 sections 8.1 and 15.12): blocks of equal length, each with its
//! block number and a pattern, and zeros everywhere else.
//!
//! The data is never in memory as a whole: [`Blocks::next`] returns it piece by piece, and
//! [`Blocks::fill`] generates the bytes of a piece.

use bytes::Bytes;
use std::ops::Range;
use weir_nfs::v4::Error;
use weir_nfs::v4::op::write_same::Args;

/// Maximum size of a piece of data, in bytes.
pub(in crate::v4) const PIECE_BYTES: u64 = 1 << 20;
/// Minimum length of a run of zeros that becomes a hole instead of data.
const ZERO_RUN_BYTES: u64 = 64 << 10;
/// The offset in a block that means "not present".
const NOWHERE: u64 = u64::MAX;
/// Size of a block number, which is encoded as in XDR.
const NUMBER_BYTES: u64 = 4;

/// The blocks to write, as one stream of bytes.
#[derive(Clone, Debug)]
pub(in crate::v4) struct Blocks {
    block_bytes: u64,
    count: u64,
    first_number: u32,
    /// The parts of a block that are not zeros, in order.
    parts: Vec<(Range<u64>, BlockPart)>,
    /// Length of the longest run of zeros.
    longest_zeros: u64,
}

#[derive(Clone, Debug)]
enum BlockPart {
    Number,
    Pattern(Bytes),
}

/// The next part of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::v4) enum PatternPiece {
    /// This many zeros.
    Zeros(u64),
    /// This many bytes of data, at most [`PIECE_BYTES`].
    Data(u64),
}

impl Blocks {
    /// # Errors
    /// [`Error::Inval`] if the block number or the pattern does not fit the block, or they overlap;
    /// [`Error::FBig`] if the end exceeds the maximum file size.
    pub(in crate::v4) fn of(args: &Args) -> Result<Self, Error> {
        let (block_bytes, count) = (args.block_size, args.block_count);
        let len = block_bytes.checked_mul(count).ok_or(Error::FBig)?;
        let end = args.offset.checked_add(len).filter(|&end| end <= i64::MAX as u64);
        end.ok_or(Error::FBig)?;
        let within = |at: u64, len: u64| {
            let end = at.checked_add(len).filter(|&end| end <= block_bytes);
            end.map(|end| at..end).ok_or(Error::Inval)
        };
        let pattern = &args.pattern.0;
        let mut parts = Vec::new();
        if args.relative_number_offset != NOWHERE {
            parts.push((within(args.relative_number_offset, NUMBER_BYTES)?, BlockPart::Number));
        }
        if args.relative_pattern_offset != NOWHERE && !pattern.is_empty() {
            let place = within(args.relative_pattern_offset, pattern.len() as u64)?;
            parts.push((place, BlockPart::Pattern(pattern.clone())));
        }
        parts.sort_by_key(|(place, _)| place.start);
        if let [(first, _), (second, _)] = &parts[..]
            && first.end > second.start
        {
            return Err(Error::Inval);
        }
        parts.retain(|(_, part)| match part {
            BlockPart::Number => true,
            BlockPart::Pattern(bytes) => bytes.iter().any(|&byte| byte != 0),
        });
        let longest_zeros = match &parts[..] {
            [] => len,
            [(only, _)] => block_bytes - (only.end - only.start),
            [(first, _), .., (last, _)] => {
                (last.start - first.end).max(block_bytes - last.end + first.start)
            }
        };
        Ok(Self { block_bytes, count, first_number: args.block_number, parts, longest_zeros })
    }

    /// Size of all blocks, in bytes.
    pub(in crate::v4) fn len(&self) -> u64 {
        self.block_bytes * self.count
    }

    /// Size of a block, in bytes.
    pub(in crate::v4) fn block_bytes(&self) -> u64 {
        self.block_bytes
    }

    /// How many of the first `len` bytes are in whole blocks.
    pub(in crate::v4) fn whole(&self, len: u64) -> u64 {
        if self.block_bytes == 0 { 0 } else { len - len % self.block_bytes }
    }

    /// Whether the blocks have both data and runs of zeros long enough for a hole; `apart` is whether
    /// the store supports holes.
    pub(in crate::v4) fn are_sparse(&self, apart: bool) -> bool {
        apart && self.longest_zeros >= ZERO_RUN_BYTES && !self.parts.is_empty()
    }

    /// The piece at `at`, which must be before the end. Unless `apart`, zeros count as data.
    pub(in crate::v4) fn next(&self, at: u64, apart: bool) -> PatternPiece {
        let most = (self.len() - at).min(PIECE_BYTES);
        if !apart || self.longest_zeros < ZERO_RUN_BYTES {
            return PatternPiece::Data(most);
        }
        let mut len = 0;
        while len < most {
            let zeros = self.zeros_at(at + len);
            if zeros >= ZERO_RUN_BYTES {
                return if len == 0 { PatternPiece::Zeros(zeros) } else { PatternPiece::Data(len) };
            }
            len += zeros;
            len += self.part_at(at + len);
        }
        PatternPiece::Data(most)
    }

    /// Number of zeros from `at` to the next part or the end.
    fn zeros_at(&self, at: u64) -> u64 {
        let left = self.len() - at;
        let (within, block) = (at % self.block_bytes, self.block_bytes);
        let Some((first, _)) = self.parts.first() else { return left };
        let next = self.parts.iter().find(|(place, _)| place.end > within);
        let next = next.map_or(block + first.start, |(place, _)| place.start);
        next.saturating_sub(within).min(left)
    }

    /// Number of bytes from `at` to the end of its part.
    fn part_at(&self, at: u64) -> u64 {
        let within = at % self.block_bytes;
        let part = self.parts.iter().find(|(place, _)| place.contains(&within));
        part.map_or(0, |(place, _)| place.end - within)
    }

    /// Generates the bytes at `at`.
    pub(in crate::v4) fn fill(&self, at: u64, bytes: &mut [u8]) {
        let (mut made, len) = (0, bytes.len());
        while made < len {
            let at = at + made as u64;
            let (number, within) = (at / self.block_bytes, at % self.block_bytes);
            let number = self.first_number.wrapping_add(number as u32).to_be_bytes();
            let piece = (self.block_bytes - within).min((len - made) as u64) as usize;
            let bytes = &mut bytes[made..made + piece];
            bytes.fill(0);
            for (place, part) in &self.parts {
                let source = match part {
                    BlockPart::Number => &number[..],
                    BlockPart::Pattern(pattern) => pattern,
                };
                let seen = within..within + piece as u64;
                let (from, to) = (place.start.max(seen.start), place.end.min(seen.end));
                if from < to {
                    let source =
                        &source[(from - place.start) as usize..(to - place.start) as usize];
                    bytes[(from - within) as usize..(to - within) as usize].copy_from_slice(source);
                }
            }
            made += piece;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use weir_nfs::v4::types::{StableHow, StateId};
    use weir_xdr::Opaque;

    fn args(offset: u64, block: (u64, u64), number: (u64, u32), pattern: (u64, &[u8])) -> Args {
        Args {
            stateid: StateId::ANONYMOUS,
            stable: StableHow::Unstable,
            offset,
            block_size: block.0,
            block_count: block.1,
            relative_number_offset: number.0,
            block_number: number.1,
            relative_pattern_offset: pattern.0,
            pattern: Opaque::copy_from(pattern.1),
        }
    }

    #[test]
    fn patterns_outside_a_block_or_file_are_refused() {
        let of = |args: Args| Blocks::of(&args).map(|blocks| blocks.len());
        let nowhere = (NOWHERE, 0);
        assert_eq!(of(args(0, (16, 3), (12, 0), (0, b"pattern"))), Ok(48));
        assert_eq!(of(args(0, (16, 3), (13, 0), (0, b"pattern"))), Err(Error::Inval));
        assert_eq!(of(args(0, (16, 3), (NOWHERE - 1, 0), (0, b""))), Err(Error::Inval));
        assert_eq!(of(args(0, (16, 3), (4, 0), (0, b"pattern"))), Err(Error::Inval));
        assert_eq!(of(args(0, (6, 3), nowhere, (0, b"pattern"))), Err(Error::Inval));
        assert_eq!(of(args(0, (6, 3), nowhere, (NOWHERE, b"pattern"))), Ok(18));
        assert_eq!(of(args(0, (6, 3), nowhere, (70, b""))), Ok(18), "no pattern, nowhere");
        assert_eq!(of(args(0, (0, 3), nowhere, (0, b""))), Ok(0));
        assert_eq!(of(args(1 << 62, (1 << 20, 1 << 42), nowhere, (0, b""))), Err(Error::FBig));
        assert_eq!(of(args(0, (1 << 32, 1 << 33), nowhere, (0, b""))), Err(Error::FBig));
        assert_eq!(of(args(u64::MAX, (1, 1), nowhere, (0, b""))), Err(Error::FBig));
    }

    #[test]
    fn long_runs_of_zeros_are_holes_and_short_ones_are_data() {
        const MIB: u64 = 1 << 20;
        let pieces = |args: Args| {
            let blocks = Blocks::of(&args).unwrap();
            let mut at = 0;
            let mut pieces = Vec::new();
            while at < blocks.len() {
                let piece = blocks.next(at, true);
                at += match piece {
                    PatternPiece::Zeros(len) | PatternPiece::Data(len) => len,
                };
                pieces.push(piece);
            }
            pieces
        };
        let nowhere = (NOWHERE, 0);
        let zeros = [0; 64];
        assert_eq!(
            pieces(args(0, (MIB, 1 << 20), nowhere, (0, &zeros))),
            [PatternPiece::Zeros(1 << 40)]
        );
        // Block number, pattern, then zeros up to the next block number.
        let sparse = pieces(args(0, (MIB, 2), (0, 7), (8, b"abc")));
        let (data, hole) = (PatternPiece::Data(11), PatternPiece::Zeros(MIB - 11));
        assert_eq!(sparse, [data, hole, data, hole]);
        // Zeros that extend past the end of a block.
        let middle = pieces(args(0, (MIB, 2), nowhere, (MIB / 2, b"a")));
        let (data, half) = (PatternPiece::Data(1), PatternPiece::Zeros(MIB / 2));
        assert_eq!(
            middle,
            [half, data, PatternPiece::Zeros(MIB - 1), data, PatternPiece::Zeros(MIB / 2 - 1)]
        );
        assert_eq!(pieces(args(0, (4096, 300), (0, 7), (8, b"abc"))).len(), 2);
    }

    proptest! {
        #[test]
        fn the_stream_is_the_concatenation_of_the_blocks(
            block in prop_oneof![1u64..40, 60_000u64..200_000],
            count in 0u64..20,
            places in (0.0..1.0, 0.0..1.0),
            first in any::<u32>(),
            has_number: bool,
            pattern in prop::collection::vec(0u8..3, 0..30),
            cut in 1usize..100_000,
            apart: bool,
        ) {
            let place = |part: f64| (block as f64 * part) as u64;
            let number = (if has_number { place(places.0) } else { NOWHERE }, first);
            let args = args(0, (block, count), number, (place(places.1), &pattern));
            let Ok(blocks) = Blocks::of(&args) else { return Ok(()) };
            let mut expected = vec![0u8; (block * count) as usize];
            for (i, bytes) in expected.chunks_mut(block as usize).enumerate() {
                if has_number {
                    let at = number.0 as usize;
                    let number = first.wrapping_add(i as u32).to_be_bytes();
                    bytes[at..at + 4].copy_from_slice(&number);
                }
                if !pattern.is_empty() {
                    let at = place(places.1) as usize;
                    bytes[at..at + pattern.len()].copy_from_slice(&pattern);
                }
            }
            let mut made = Vec::new();
            while (made.len() as u64) < blocks.len() {
                match blocks.next(made.len() as u64, apart) {
                    PatternPiece::Zeros(len) => made.resize(made.len() + len as usize, 0),
                    PatternPiece::Data(len) => {
                        let len = (len as usize).min(cut);
                        let mut bytes = vec![9; len];
                        blocks.fill(made.len() as u64, &mut bytes);
                        made.extend(bytes);
                    }
                }
            }
            prop_assert_eq!(made, expected);
        }
    }
}
