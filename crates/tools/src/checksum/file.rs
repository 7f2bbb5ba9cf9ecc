//! The checksum of one file.

use super::CHUNK_BYTES;
use super::algorithm::{Algorithm, Checksum, Hasher};
use crate::copy::{source, stream, zeros};
use crate::failure::{Asked, Failure, Result};
use crate::mounts::Place;
use crate::pipeline::Pipeline;
use crate::text::kind_name;
use std::io::Read;
use tokio::sync::Semaphore;
use weir_pagecache::{File, Segment, Segments};
use weir_vfs::{Access, Attr, Caller, Error, FileKind, IoFlags, WholeRequest};

/// Most reads in flight for one file.
const DEPTH: usize = 4;
/// The largest file that is read in one request, where its store can do that.
const WHOLE_BYTES: u64 = 64 << 10;

/// The failure to read a file without content.
pub(super) fn not_regular(shown: &str, kind: FileKind) -> Failure {
    let failure = Failure::new(format!("read {shown}"), format!("it is a {}", kind_name(kind)));
    failure.advice("only regular files have checksums")
}

/// The size and checksum of the file at `place`, listed as `attr`.
pub(super) async fn sum(
    algorithm: Algorithm,
    window: &Semaphore,
    place: &Place,
    listed: &Attr,
) -> Result<(u64, Checksum)> {
    if listed.kind != FileKind::Regular {
        return Err(not_regular(&place.shown, listed.kind));
    }
    let asked = || format!("read {}", place.shown);
    if listed.size > 0 && listed.size <= WHOLE_BYTES {
        let _permit = window.acquire().await.map_err(|_| Error::Interrupted).asked(asked)?;
        let max_bytes = WHOLE_BYTES as usize;
        let request = WholeRequest { id: listed.id, max_bytes, with_xattrs: false };
        let whole = place.fs.get_whole(&Caller::Own, request).await.asked(asked)?;
        if let Some(whole) = whole.filter(|whole| source::is_whole(whole, listed.id)) {
            let mut hasher = Hasher::new(algorithm);
            hasher.add(&whole.data);
            return Ok((whole.data.len() as u64, hasher.finish()));
        }
    }
    let open = || place.fs.open(&Caller::Own, listed.id, Access::READ);
    let file = place.found_again(listed.id, open).await.asked(asked)?;
    let before = source::look(&file).await.asked(asked)?;
    let stream = match before.allocated {
        0 => stream(place, &before).await.asked(asked)?,
        _ => None,
    };
    let found = match stream {
        Some(stream) => {
            // A stream's chunk counts as one, too.
            let _permit = window.acquire().await.map_err(|_| Error::Interrupted).asked(asked)?;
            let read = tokio::task::spawn_blocking(move || of_stream(algorithm, stream));
            read.await.map_err(std::io::Error::other).asked(asked)?.asked(asked)?
        }
        None => {
            let mut hasher = Hasher::new(algorithm);
            let size = add_all(&mut hasher, window, place, &file).await?;
            if size != before.size {
                return Err(source::changed(&place.shown));
            }
            (size, hasher.finish())
        }
    };
    source::unchanged(&file, &before, &place.shown).await?;
    Ok(found)
}

fn of_stream(algorithm: Algorithm, mut stream: std::fs::File) -> std::io::Result<(u64, Checksum)> {
    let (mut hasher, mut size) = (Hasher::new(algorithm), 0);
    let mut bytes = vec![0; CHUNK_BYTES as usize];
    loop {
        match stream.read(&mut bytes) {
            Ok(0) => return Ok((size, hasher.finish())),
            Ok(len) => {
                hasher.add(&bytes[..len]);
                size += len as u64;
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Adds the content of a file to the checksum, with several reads in flight; returns its size.
async fn add_all(
    hasher: &mut Hasher,
    window: &Semaphore,
    place: &Place,
    file: &File,
) -> Result<u64> {
    let asked = || format!("read {}", place.shown);
    let size = file.size();
    let (mut at, mut next) = (0, 0);
    let mut reads = Pipeline::new();
    loop {
        while next < size && reads.len() < DEPTH {
            // Only the first read waits for a permit: a file with one in flight continues without
            // another, so that files cannot wait for each other in a circle.
            let permit = match window.try_acquire() {
                Ok(permit) => permit,
                Err(_) if !reads.is_empty() => break,
                Err(_) => window.acquire().await.map_err(|_| Error::Interrupted).asked(asked)?,
            };
            let (start, end) = (next, (next + CHUNK_BYTES).min(size));
            reads.push(async move { (end, read(file, start, end).await, permit) });
            next = end;
        }
        let Some((end, found, permit)) = reads.next().await else { return Ok(at) };
        let mut found = found.asked(asked)?;
        loop {
            let before = at;
            reads.beside(add(hasher, &found, &mut at, size)).await;
            if at >= end {
                break;
            }
            if at == before {
                // It was truncated.
                return Ok(at);
            }
            found = reads.beside(read(file, at, end)).await.asked(asked)?;
        }
        drop(permit);
        next = next.max(at);
    }
}

async fn read(file: &File, start: u64, end: u64) -> weir_vfs::Result<Segments> {
    file.read_segments_async(start, (end - start) as usize, IoFlags::empty()).await
}

/// Adds the part of `found` from `at` to `size`, and advances `at`. An earlier hole may already have
/// covered the part before that.
async fn add(hasher: &mut Hasher, found: &Segments, at: &mut u64, size: u64) {
    for segment in &found.segments {
        match segment {
            Segment::Hole { end, .. } => {
                let end = (*end).min(size);
                while *at < end {
                    let piece = zeros::some(end - *at);
                    hasher.add(piece);
                    *at += piece.len() as u64;
                    // A hole takes long to count, and waits for nothing.
                    tokio::task::yield_now().await;
                }
            }
            Segment::Data { start, pages } => {
                let end = (start + pages.len() as u64).min(size);
                if end <= *at {
                    continue;
                }
                let mut slices = Vec::new();
                pages.slices((*at - start) as usize, &mut slices);
                for slice in slices {
                    let len = (slice.len() as u64).min(end - *at);
                    hasher.add(&slice[..len as usize]);
                    *at += len;
                }
            }
        }
    }
}
