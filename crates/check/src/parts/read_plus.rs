//! READ_PLUS (RFC 7862 section 15.10). The rules read files of known layout with raw calls and
//! compare every reply with the file: order, contiguity, clipping, `eof`, holes where data was
//! written.
//!
//! A server may send data for a hole. That is a note, not a failure.

use crate::examiner::{Examiner, Known};
use crate::rule::{Rule, rule};
use crate::verdict::{Result, Verdict};
use weir_nfs::v4::op::read_plus::Segment;
use weir_vfs::Error;

pub(crate) const RULES: &[Rule] = &[
    rule!(
        "READ_PLUS is served",
        "RFC 7862 15.10",
        "one READ_PLUS of 4 KiB; NOTSUPP is a note and ends this part",
        is_served
    ),
    rule!(
        "data is returned correctly for any count",
        "RFC 7862 15.10.3",
        "1 MiB and 123 bytes of data in steps of 511 bytes to 4 MiB",
        data
    ),
    rule!(
        "every offset of an empty file is at the end",
        "RFC 7862 15.10.3",
        "offsets 0, 1 and 1 TiB of an empty file",
        empty
    ),
    rule!(
        "a hole reads as zeros for any count",
        "RFC 7862 15.10.3",
        "an 8 MiB hole in steps of 4 KiB, 64 KiB and 1 MiB",
        hole
    ),
    rule!(
        "a hole is sent as a hole segment",
        "RFC 7862 15.10.3",
        "the first segment of a read within a hole; data is a note",
        hole_as_hole
    ),
    rule!(
        "a hole segment extends past the request",
        "RFC 7862 15.10.3",
        "4 KiB requested in the middle of a hole; a hole that ends with the request is a note",
        whole_hole
    ),
    rule!(
        "alternating segments are in order, contiguous and correct",
        "RFC 7862 15.10.3",
        "64 blocks of 4 or 32 KiB, alternately data and hole, in steps of half a block, a block, a byte \
         more, and 1 MiB",
        alternating
    ),
    rule!(
        "requests that begin or end within a segment are clipped",
        "RFC 7862 15.10.3",
        "the same files, a byte before, at and after boundaries: data begins and ends with the request, \
         a hole may be longer",
        clipped
    ),
    rule!("very small counts work", "RFC 7862 15.10.3", "the same, 2 bytes each", small_counts),
    rule!(
        "a reply stays within the session's limit, for any count",
        "RFC 8881 2.10.6.4",
        "2^32 - 1 bytes requested from 3 MiB of data and holes",
        large_counts
    ),
    rule!(
        "a hole at the end ends with the file",
        "RFC 7862 15.10.3",
        "data, then a hole up to an odd size",
        last_hole
    ),
    rule!(
        "eof is set exactly when a read reaches the last byte",
        "RFC 7862 15.10.3",
        "reads that end before, at and past the last byte",
        eof
    ),
    rule!(
        "a read at or past the end has no segments, eof and no error",
        "RFC 8881 18.22.3",
        "reads at the end, a byte past it, at 1 TiB",
        past_the_end
    ),
    rule!(
        "a count of 0 is no error",
        "RFC 8881 18.22.3",
        "0 bytes at the beginning, in the middle, at the end",
        no_bytes
    ),
    rule!(
        "the largest offsets are handled",
        "RFC 8881 18.22.3",
        "2^63 and 2^64, less 4096 and less 1: eof, INVAL or FBIG",
        largest_offsets
    ),
    rule!(
        "zeros that were written read as zeros",
        "RFC 7862 15.10.3",
        "32 KiB of zeros written over data",
        zeros
    ),
    rule!(
        "data written into a hole is readable at once",
        "RFC 7862 15.10.3",
        "a hole filled block by block out of order while adjacent blocks are read: no hole after a \
         WRITE's reply",
        filled_hole
    ),
    rule!(
        "a punched hole reads as zeros at once",
        "RFC 7862 15.4.3",
        "DEALLOCATE at odd offsets; NOTSUPP is a note",
        punched_hole
    ),
    rule!(
        "truncated data does not reappear",
        "RFC 8881 18.30.3",
        "truncated, then extended: zeros",
        regrown
    ),
];

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
const STEPS: [usize; 5] = [511, 4 * KIB, 64 * KIB, MIB, 4 * MIB];
/// A file whose last hole ends at an odd size.
const TAIL: &[(bool, usize)] = &[(true, 5000), (false, 70_001)];
/// Block sizes of the files that alternate data and holes.
const BLOCKS: [usize; 2] = [4 * KIB, 32 * KIB];

async fn is_served(examiner: &mut Examiner) -> Result<Verdict> {
    let file = examiner.make("served", &[(true, 4 * KIB)]).await?;
    Ok(match file.read_plus(0, 4 * KIB as u64).await {
        Ok(_) => Verdict::Pass,
        Err(error) if error.to_vfs() == Error::NotSupported => Verdict::Note(error.to_string()),
        Err(error) => Verdict::Fail(error.to_string()),
    })
}

async fn data(examiner: &mut Examiner) -> Result<Verdict> {
    Ok(examiner.make("data", &[(true, MIB + 123)]).await?.in_steps(&STEPS).await)
}

async fn empty(examiner: &mut Examiner) -> Result<Verdict> {
    Ok(examiner.make("empty", &[]).await?.at(&[0, 1, 1 << 40], 4096).await)
}

async fn hole(examiner: &mut Examiner) -> Result<Verdict> {
    let hole = examiner.make("hole", &[(false, 8 * MIB)]).await?;
    Ok(hole.in_steps(&[4 * KIB, 64 * KIB, MIB]).await)
}

async fn hole_as_hole(examiner: &mut Examiner) -> Result<Verdict> {
    let hole = examiner.make("hole", &[(false, 8 * MIB)]).await?;
    let reply = hole.read_plus(0, MIB as u64).await?;
    Ok(match reply.segments.0.first() {
        Some(Segment::Hole(_)) => Verdict::Pass,
        _ => Verdict::Note("it comes as data, every byte of it".into()),
    })
}

async fn whole_hole(examiner: &mut Examiner) -> Result<Verdict> {
    let size = 8 * MIB as u64;
    let hole = examiner.make("hole", &[(false, 8 * MIB)]).await?;
    let reply = hole.read_plus(4096, 4096).await?;
    Ok(match reply.segments.0.last() {
        Some(Segment::Hole(hole)) if hole.offset.checked_add(hole.length) == Some(size) => {
            Verdict::Pass
        }
        _ => Verdict::Note("each request is told of its own part only".into()),
    })
}

/// Files that alternate data and holes, with the size of a block.
async fn mixed(examiner: &mut Examiner) -> Result<Vec<(Known, usize)>> {
    let mut files = Vec::new();
    for block in BLOCKS {
        for first in [true, false] {
            let layout: Vec<_> = (0..64).map(|i| ((i % 2 == 0) == first, block)).collect();
            files.push((examiner.make("mixed", &layout).await?, block));
        }
    }
    Ok(files)
}

/// Offsets around the boundaries of blocks of this size.
fn around(block: usize) -> [u64; 6] {
    let b = block as u64;
    [1, b - 1, b, b + 1, 2 * b - 1, 3 * b + 7]
}

async fn alternating(examiner: &mut Examiner) -> Result<Verdict> {
    let mut worst = Verdict::Pass;
    for (file, block) in mixed(examiner).await? {
        worst = worst.max(file.in_steps(&[block / 2, block, block + 1, MIB]).await);
    }
    Ok(worst)
}

async fn clipped(examiner: &mut Examiner) -> Result<Verdict> {
    let mut worst = Verdict::Pass;
    for (file, block) in mixed(examiner).await? {
        worst = worst.max(file.at(&around(block), block as u64 / 2 + 3).await);
    }
    Ok(worst)
}

async fn small_counts(examiner: &mut Examiner) -> Result<Verdict> {
    let mut worst = Verdict::Pass;
    for (file, block) in mixed(examiner).await? {
        worst = worst.max(file.at(&around(block), 2).await);
    }
    Ok(worst)
}

async fn large_counts(examiner: &mut Examiner) -> Result<Verdict> {
    let blocks = (0..512).map(|i| (i % 2 == 0, 4 * KIB)).chain([(true, MIB + 777)]);
    let large = examiner.make("large", &blocks.collect::<Vec<_>>()).await?;
    // The client refuses a reply that is longer than the session allows.
    Ok(large.in_steps(&[u32::MAX as usize]).await)
}

async fn last_hole(examiner: &mut Examiner) -> Result<Verdict> {
    Ok(examiner.make("tail", TAIL).await?.in_steps(&STEPS).await)
}

async fn eof(examiner: &mut Examiner) -> Result<Verdict> {
    let tail = examiner.make("tail", TAIL).await?;
    let size = tail.bytes.len() as u64;
    Ok(tail.at(&[size - 4097, size - 4096, size - 1], 4096).await)
}

async fn past_the_end(examiner: &mut Examiner) -> Result<Verdict> {
    let tail = examiner.make("tail", TAIL).await?;
    let size = tail.bytes.len() as u64;
    Ok(tail.at(&[size, size + 1, 1 << 40], 4096).await)
}

async fn no_bytes(examiner: &mut Examiner) -> Result<Verdict> {
    let tail = examiner.make("tail", TAIL).await?;
    Ok(tail.at(&[0, 5000, tail.bytes.len() as u64], 0).await)
}

async fn largest_offsets(examiner: &mut Examiner) -> Result<Verdict> {
    let tail = examiner.make("tail", TAIL).await?;
    for offset in [i64::MAX as u64 - 4095, i64::MAX as u64, u64::MAX - 4095, u64::MAX] {
        match tail.read_plus(offset, 4096).await {
            Ok(reply) if reply.eof && reply.segments.0.is_empty() => {}
            Ok(_) => return Ok(Verdict::Fail(format!("something is said to be at {offset}"))),
            Err(error) if matches!(error.to_vfs(), Error::Invalid | Error::TooBig) => {}
            Err(error) => return Ok(Verdict::Fail(format!("at {offset}: {error}"))),
        }
    }
    Ok(Verdict::Pass)
}

async fn zeros(examiner: &mut Examiner) -> Result<Verdict> {
    let mut file = examiner.make("zeros", &[(true, 64 * KIB)]).await?;
    file.write(16 * KIB, &vec![0; 32 * KIB]).await?;
    Ok(file.in_steps(&[4 * KIB, 64 * KIB]).await)
}

/// Fills a hole block by block. After each WRITE, no reply may report a hole in the block.
async fn filled_hole(examiner: &mut Examiner) -> Result<Verdict> {
    let mut file = examiner.make("filled", &[(false, MIB)]).await?;
    for block in (0..256).map(|i| i * 37 % 256) {
        let at = block * 4 * KIB;
        let bytes = [block as u8 | 1; 4 * KIB];
        // Adjacent blocks are read during the write.
        let both = futures_util::future::join(
            file.read_plus(at.saturating_sub(8 * KIB) as u64, 24 * KIB as u64),
            file.write_bytes(at, &bytes),
        );
        let (before, written) = both.await;
        before?;
        written?;
        file.bytes[at..at + 4 * KIB].fill(block as u8 | 1);
        let verdict = file.at(&[at as u64], 4 * KIB as u64).await;
        if verdict != Verdict::Pass {
            return Ok(verdict);
        }
    }
    Ok(file.in_steps(&[64 * KIB]).await)
}

async fn punched_hole(examiner: &mut Examiner) -> Result<Verdict> {
    let mut file = examiner.make("punched", &[(true, 256 * KIB)]).await?;
    match file.file.punch_hole(64 * KIB as u64 + 5, 100_000).await {
        Ok(()) => {}
        Err(Error::NotSupported) => {
            return Ok(Verdict::Note("the server has no DEALLOCATE".into()));
        }
        Err(error) => return Err(error.into()),
    }
    file.bytes[64 * KIB + 5..64 * KIB + 5 + 100_000].fill(0);
    Ok(file.in_steps(&[4 * KIB, 100_000, MIB]).await)
}

async fn regrown(examiner: &mut Examiner) -> Result<Verdict> {
    let mut file = examiner.make("regrown", &[(true, 100_000)]).await?;
    file.file.set_size(10_001).await?;
    file.file.set_size(50_000).await?;
    file.bytes.truncate(10_001);
    file.bytes.resize(50_000, 0);
    Ok(file.in_steps(&[4 * KIB, MIB]).await)
}

impl Known {
    /// Reads the whole file in steps of each size.
    async fn in_steps(&self, steps: &[usize]) -> Verdict {
        for &step in steps {
            let mut offset = 0;
            loop {
                let end = match self.judged(offset, step as u64).await {
                    Ok(end) => end,
                    Err(fault) => return Verdict::Fail(fault),
                };
                if end >= self.bytes.len() as u64 {
                    break;
                }
                offset = end.min(offset + step as u64);
            }
        }
        Verdict::Pass
    }

    async fn at(&self, offsets: &[u64], count: u64) -> Verdict {
        for &offset in offsets {
            if let Err(fault) = self.judged(offset, count).await {
                return Verdict::Fail(fault);
            }
        }
        Verdict::Pass
    }
}
