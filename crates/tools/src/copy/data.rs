//! One file's data: a deep pipeline of reads that lend pages, and writes of all non-zero data.

use super::copier::{CHUNK_BYTES, Copier, add};
use super::digest::Digest;
use super::offload;
use super::options::Sparse;
use super::source;
use super::temporary::Temporary;
use super::zeros;
use crate::failure::{Asked, Failure, Result};
use crate::pipeline::Pipeline;
use std::io::{IoSlice, Read};
use std::ops::Range;
use tokio::sync::SemaphorePermit;
use weir_base::PAGE_SIZE;
use weir_pagecache::{File, Segment, Segments};
use weir_vfs::{Advice, Attr, Error};

/// Most reads in flight for one file.
const DEPTH: usize = 16;
/// Reads in flight until it is clear that there is data, and not one big hole.
const FIRST_DEPTH: usize = 2;

/// The two files of a copy, and their names in messages.
pub(crate) struct Pair<'a> {
    pub(crate) from: &'a File,
    pub(crate) to: &'a File,
    pub(crate) from_shown: &'a str,
    pub(crate) to_shown: &'a str,
    /// Records which data is durable.
    pub(crate) temporary: Option<&'a Temporary<'a>>,
}

impl Pair<'_> {
    fn target(&self) -> Target<'_> {
        Target { file: self.to, shown: self.to_shown }
    }
}

/// A file to write, and its name in messages.
#[derive(Clone, Copy)]
pub(crate) struct Target<'a> {
    pub(crate) file: &'a File,
    pub(crate) shown: &'a str,
}

/// Copies all of `from`, whose attributes are `source`, to `to`, which is empty or partly copied;
/// returns the size.
pub(crate) async fn copy(copier: &Copier, pair: &Pair<'_>, source: &Attr) -> Result<u64> {
    let start = pair.temporary.map_or(0, Temporary::start);
    if pair.to.size() != start {
        // Data past the start was not durable when the copy ended.
        pair.to.truncate_async(start).await.asked(|| format!("write {}", pair.to_shown))?;
    }
    add(&copier.tally.resumed_bytes, start);
    copier.progress.copied(start);
    let digest = match copier.options.checksum {
        // The comparison includes the data that an earlier run copied.
        true => {
            let digest = digest_of(copier, pair.from, 0..start, || read_asked(pair)).await?;
            Some(digest.ok_or_else(|| source::changed(pair.from_shown))?)
        }
        false => None,
    };
    let start = offload::copy(copier, pair, source, start).await?;
    let mut sink = Sink {
        copier,
        to: pair.to,
        to_shown: pair.to_shown,
        at: start,
        data_bytes: 0,
        in_hole: false,
        digest,
    };
    let mut durable = start;
    let mut size = pair.from.size();
    let mut depth = FIRST_DEPTH;
    let mut next = start;
    let mut reads = Pipeline::new();
    loop {
        while next < size && reads.len() < depth {
            // Only the first chunk waits for a permit: a file with one in flight continues without
            // another, so that files cannot wait for each other in a circle.
            let permit = match copier.window.try_acquire() {
                Ok(permit) => permit,
                Err(_) if !reads.is_empty() => break,
                Err(_) => copier
                    .window
                    .acquire()
                    .await
                    .map_err(|_| Error::Interrupted)
                    .asked(|| format!("copy {}", pair.from_shown))?,
            };
            let end = (next + CHUNK_BYTES).min(size);
            reads.push(read(copier, pair, next, end, permit));
            next = end;
        }
        let Some((end, found, permit)) = reads.next().await else { break };
        let before = sink.data_bytes;
        let mut found = found?;
        loop {
            reads.beside(sink.take(&found, size)).await?;
            if sink.at >= end || found.eof {
                break;
            }
            // A short read: read the rest of the chunk again.
            let at = sink.at;
            found = reads.beside(read_once(copier, pair, at, end)).await?;
            if found.segments.is_empty() && !found.eof {
                return Err(Error::Io).asked(|| format!("read {}", pair.from_shown));
            }
        }
        drop(permit);
        if sink.at < end {
            // The file was truncated after its size was read.
            size = sink.at;
            break;
        }
        if sink.data_bytes > before {
            depth = (depth * 2).min(DEPTH);
        }
        next = next.max(sink.at);
        if let (Some(every), Some(temporary)) = (copier.options.resume_bytes, pair.temporary)
            && temporary.is_resumable()
            && sink.at - durable >= every
        {
            durable = sink.at - sink.at % PAGE_SIZE as u64;
            reads.beside(make_durable(pair, temporary, durable)).await?;
        }
    }
    finish(copier, pair.target(), size, sink.digest.take()).await?;
    Ok(size)
}

/// Copies a file that is read as a stream, to `to`, which is empty; returns the size.
pub(crate) async fn copy_stream(
    copier: &Copier,
    from_shown: &str,
    to: Target<'_>,
    stream: std::fs::File,
) -> Result<u64> {
    let read_asked = || format!("read {from_shown}");
    let digest = copier.options.checksum.then(Digest::default);
    let mut sink = Sink {
        copier,
        to: to.file,
        to_shown: to.shown,
        at: 0,
        data_bytes: 0,
        in_hole: false,
        digest,
    };
    let mut held = (stream, Vec::new());
    loop {
        // A whole chunk, as pages have to be complete; the kernel often returns less.
        let (stream, mut bytes) = held;
        let read = tokio::task::spawn_blocking(move || {
            bytes.clear();
            let read = (&stream).take(CHUNK_BYTES).read_to_end(&mut bytes);
            ((stream, bytes), read)
        });
        let read = read.await.map_err(std::io::Error::other);
        let (back, read) = read.asked(read_asked)?;
        let len = read.asked(read_asked)? as u64;
        held = back;
        if len == 0 {
            break;
        }
        let end = sink.at + len;
        sink.data(&[IoSlice::new(&held.1)], end).await?;
    }
    let size = sink.at;
    finish(copier, to, size, sink.digest.take()).await?;
    Ok(size)
}

/// Copies all bytes of a file to `to`, which is empty; returns the size.
pub(crate) async fn copy_bytes(
    copier: &Copier,
    to: &File,
    to_shown: &str,
    bytes: &[u8],
) -> Result<u64> {
    let size = bytes.len() as u64;
    let mut sink =
        Sink { copier, to, to_shown, at: 0, data_bytes: 0, in_hole: false, digest: None };
    sink.data(&[IoSlice::new(bytes)], size).await?;
    if to.size() != size {
        to.truncate_async(size).await.asked(|| format!("write {to_shown}"))?;
    }
    Ok(size)
}

fn read_asked(pair: &Pair<'_>) -> String {
    format!("read {}", pair.from_shown)
}

/// Sets the copy's size, which is still missing if it ends in a hole, and compares.
async fn finish(
    copier: &Copier,
    to: Target<'_>,
    size: u64,
    expected: Option<Digest>,
) -> Result<()> {
    if to.file.size() != size {
        to.file.truncate_async(size).await.asked(|| format!("write {}", to.shown))?;
    }
    match expected {
        Some(expected) => verify(copier, to, size, expected).await,
        None => Ok(()),
    }
}

/// Makes everything up to `durable` durable, and records that.
async fn make_durable(pair: &Pair<'_>, temporary: &Temporary<'_>, durable: u64) -> Result<()> {
    let asked = || format!("write {}", pair.to_shown);
    if pair.to.size() < durable {
        pair.to.truncate_async(durable).await.asked(asked)?;
    }
    pair.to.sync_async(true).await.asked(asked)?;
    temporary.checkpoint(durable).await.asked(asked)
}

/// Reads the copy back from its store, and compares.
async fn verify(copier: &Copier, to: Target<'_>, size: u64, expected: Digest) -> Result<()> {
    let asked = || format!("read back {}", to.shown);
    to.file.sync_async(true).await.asked(asked)?;
    to.file.advise(0, size, Advice::DontNeed).asked(asked)?;
    // A digest does not count zeros, so it cannot tell whether those at the end are there.
    let stored = to.file.stored().getattr().await.asked(asked)?.size;
    let failed = match digest_of(copier, to.file, 0..size, asked).await? {
        _ if stored != size => format!("{stored} bytes are stored where {size} were written"),
        Some(digest) if digest == expected => {
            add(&copier.tally.verified_bytes, size);
            return Ok(());
        }
        Some(_) => "the stored data differs from the written data".to_owned(),
        None => format!("less is stored than the {size} bytes that were written"),
    };
    let advice = "its storage or the way to it corrupts data; trust neither";
    Err(Failure::new(format!("copy to {}", to.shown), failed).advice(advice))
}

/// The digest of a range of a file that begins at a page boundary; `None` if the file ends before the range does.
async fn digest_of(
    copier: &Copier,
    file: &File,
    range: Range<u64>,
    asked: impl Fn() -> String,
) -> Result<Option<Digest>> {
    let mut digest = Digest::default();
    let mut at = range.start;
    while at < range.end {
        let len = CHUNK_BYTES.min(range.end - at) as usize;
        let found = file.read_segments_async(at, len, copier.options.flags).await;
        let found = found.asked(&asked)?;
        let before = at;
        for segment in &found.segments {
            match segment {
                Segment::Hole { end, .. } => at = at.max(*end),
                Segment::Data { start, pages } => {
                    let mut slices = Vec::new();
                    pages.slices((at - start) as usize, &mut slices);
                    for slice in slices {
                        digest.add(at, &slice);
                        at += slice.len() as u64;
                    }
                }
            }
        }
        if at == before {
            return Ok(None);
        }
    }
    Ok(Some(digest))
}

async fn read<'a>(
    copier: &'a Copier,
    pair: &Pair<'_>,
    start: u64,
    end: u64,
    permit: SemaphorePermit<'a>,
) -> (u64, Result<Segments>, SemaphorePermit<'a>) {
    (end, read_once(copier, pair, start, end).await, permit)
}

async fn read_once(copier: &Copier, pair: &Pair<'_>, start: u64, end: u64) -> Result<Segments> {
    let len = (end - start) as usize;
    let found = pair.from.read_segments_async(start, len, copier.options.flags).await;
    found.asked(|| format!("read {}", pair.from_shown))
}

/// The destination of segments, in order.
struct Sink<'a> {
    copier: &'a Copier,
    to: &'a File,
    to_shown: &'a str,
    /// The offset up to which the file is copied.
    at: u64,
    /// Data found so far.
    data_bytes: u64,
    /// Whether a hole ends there.
    in_hole: bool,
    /// Of the data read, if requested.
    digest: Option<Digest>,
}

impl Sink<'_> {
    /// Writes the part of `found` from [`at`](Self::at) to `size`, and advances. An earlier hole
    /// may already have covered the part before that.
    async fn take(&mut self, found: &Segments, size: u64) -> Result<()> {
        for segment in &found.segments {
            match segment {
                Segment::Hole { start: _, end } => self.hole((*end).min(size)).await?,
                Segment::Data { start, pages } => {
                    let end = (start + pages.len() as u64).min(size);
                    if end > self.at {
                        let mut slices = Vec::new();
                        pages.slices((self.at - start) as usize, &mut slices);
                        self.data(&slices, end).await?;
                    }
                }
            }
        }
        Ok(())
    }

    async fn hole(&mut self, end: u64) -> Result<()> {
        if end <= self.at {
            return Ok(());
        }
        let tally = &self.copier.tally;
        if !self.in_hole {
            add(&tally.holes_skipped, 1);
            self.in_hole = true;
        }
        let len = end - self.at;
        add(&tally.hole_bytes, len);
        if self.copier.options.sparse == Sparse::Never {
            while self.at < end {
                let piece = zeros::some(end - self.at);
                self.write(self.at, piece).await?;
                self.at += piece.len() as u64;
            }
        }
        self.at = end;
        self.copier.progress.copied(len);
        Ok(())
    }

    async fn data(&mut self, slices: &[IoSlice<'_>], end: u64) -> Result<()> {
        self.in_hole = false;
        self.copier.rate.admit(end - self.at).await;
        for slice in slices {
            let len = (slice.len() as u64).min(end - self.at);
            let bytes = &slice[..len as usize];
            self.data_bytes += len;
            add(&self.copier.tally.read_bytes, len);
            if let Some(digest) = &mut self.digest {
                digest.add(self.at, bytes);
            }
            if self.copier.options.sparse == Sparse::Always {
                let mut written = 0;
                for (offset, run) in zeros::data_runs(self.at, bytes) {
                    self.write(offset, run).await?;
                    written += run.len() as u64;
                }
                add(&self.copier.tally.zero_bytes, len - written);
            } else {
                self.write(self.at, bytes).await?;
            }
            self.at += len;
            self.copier.progress.copied(len);
        }
        Ok(())
    }

    async fn write(&self, mut offset: u64, mut bytes: &[u8]) -> Result<()> {
        let asked = || format!("write {}", self.to_shown);
        add(&self.copier.tally.written_bytes, bytes.len() as u64);
        while !bytes.is_empty() {
            let flags = self.copier.options.flags;
            let n = self.to.write_at_async(bytes, offset, flags).await.asked(asked)?;
            if n == 0 {
                return Err(Error::NoSpace).asked(asked);
            }
            offset += n as u64;
            bytes = &bytes[n..];
        }
        Ok(())
    }
}
