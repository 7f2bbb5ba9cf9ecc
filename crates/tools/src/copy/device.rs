//! A block device of this machine as the destination of a copy.
//!
//! 1. The device is opened exclusively: one that is mounted, or in use otherwise, is not written to.
//! 2. Nothing is written if a source of known size does not fit.
//! 3. Holes of the source are zeros on the device; what follows the copy stays as it was.

use super::copier::{CHUNK_BYTES, Copier, add};
use super::file::stream;
use super::source;
use crate::failure::{Asked, Failure, Result};
use crate::mounts::Place;
use crate::text::kind_name;
use rustix::fs::{FallocateFlags, fallocate};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use weir_pagecache::Segment;
use weir_vfs::{Access, Caller, FileKind};

/// What to write: a name for messages, and a stream or a file of a store.
type From<'a> = (&'a str, Option<File>, Option<&'a Place>);

impl Copier {
    /// Writes a stream or file to the beginning of a block device, and makes that durable.
    pub async fn copy_to_device(self: &Arc<Self>, from: From<'_>, path: &Path) {
        let shown = crate::text::shown(path.as_os_str().as_encoded_bytes());
        if self.stays(&shown) {
            add(&self.tally.kept, 1);
            return;
        }
        let done = tokio::select! {
            done = write(self, from, path, &shown) => done,
            () = self.interrupted() => return,
        };
        self.in_place.lock().remove(&shown);
        match done {
            Ok(()) => add(&self.tally.files, 1),
            Err(failure) => self.fail(failure),
        }
    }
}

async fn write(copier: &Arc<Copier>, from: From<'_>, path: &Path, shown: &str) -> Result<()> {
    let asked = || format!("write {shown}");
    if copier.options.checksum {
        let failure = Failure::new(asked(), "--checksum does not support devices");
        return Err(failure.advice("compare with `weir checksum` or cmp(1)"));
    }
    if copier.options.dry_run {
        copier.progress.made(from.0, shown);
        return Ok(());
    }
    // Without O_CREAT, this refuses a device in use (open(2)).
    let exclusively = rustix::fs::OFlags::EXCL.bits().cast_signed();
    let mut opened =
        File::options().write(true).custom_flags(exclusively).open(path).asked(asked)?;
    let room = opened.seek(SeekFrom::End(0)).asked(asked)?;
    let device = Device { file: Arc::new(opened), shown, room };
    copier.in_place.lock().insert(shown.to_owned());
    let size = match from {
        (name, Some(stream), _) => of_stream(copier, &device, (name, stream)).await?,
        (_, None, Some(place)) => of_file(copier, &device, place).await?,
        (name, None, None) => return Err(Failure::new(asked(), format!("there is no {name}"))),
    };
    let file = Arc::clone(&device.file);
    blocking(move || file.sync_all()).await.asked(asked)?;
    add(&copier.tally.size_bytes, size);
    copier.progress.made(from.0, shown);
    Ok(())
}

struct Device<'a> {
    file: Arc<File>,
    shown: &'a str,
    room: u64,
}

impl Device<'_> {
    /// Fails if the copy does not fit.
    fn fits(&self, size: u64) -> Result<()> {
        if size <= self.room {
            return Ok(());
        }
        let failed = format!("it has {} bytes, and the copy more: at least {size}", self.room);
        Err(Failure::new(format!("write {}", self.shown), failed))
    }

    async fn put(&self, copier: &Copier, bytes: Vec<u8>, at: u64) -> Result<Vec<u8>> {
        let len = bytes.len() as u64;
        self.fits(at + len)?;
        copier.rate.admit(len).await;
        let file = Arc::clone(&self.file);
        let written = blocking(move || file.write_all_at(&bytes, at).map(|()| bytes)).await;
        let bytes = written.asked(|| format!("write {}", self.shown))?;
        add(&copier.tally.written_bytes, len);
        copier.progress.copied(len);
        Ok(bytes)
    }

    /// Writes zeros, by one request if the device has one.
    async fn zero(&self, copier: &Copier, start: u64, end: u64) -> Result<()> {
        let file = Arc::clone(&self.file);
        let flags = FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE;
        let zeroed = blocking(move || {
            if fallocate(&*file, flags, start, end - start).is_ok() {
                return Ok(());
            }
            let mut at = start;
            while at < end {
                let piece = super::zeros::some(end - at);
                file.write_all_at(piece, at)?;
                at += piece.len() as u64;
            }
            Ok(())
        });
        zeroed.await.asked(|| format!("write {}", self.shown))?;
        copier.progress.copied(end - start);
        Ok(())
    }
}

/// Runs calls that wait for a device.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> std::io::Result<T> + Send + 'static,
) -> std::io::Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(std::io::Error::other)?
}

async fn of_stream(
    copier: &Copier,
    device: &Device<'_>,
    (shown, stream): (&str, File),
) -> Result<u64> {
    let stream = Arc::new(stream);
    let (mut at, mut bytes) = (0, Vec::new());
    loop {
        let stream = Arc::clone(&stream);
        let read = blocking(move || {
            bytes.clear();
            (&*stream).take(CHUNK_BYTES).read_to_end(&mut bytes)?;
            Ok(bytes)
        });
        let read = read.await.asked(|| format!("read {shown}"))?;
        let len = read.len() as u64;
        if len == 0 {
            return Ok(at);
        }
        add(&copier.tally.read_bytes, len);
        bytes = device.put(copier, read, at).await?;
        at += len;
    }
}

async fn of_file(copier: &Copier, device: &Device<'_>, place: &Place) -> Result<u64> {
    let asked = || format!("read {}", place.shown);
    let attr = place.existing("read")?;
    if attr.kind != FileKind::Regular {
        return Err(Failure::new(asked(), format!("it is a {}", kind_name(attr.kind))));
    }
    let file = place.fs.open(&Caller::Own, attr.id, Access::READ).await.asked(asked)?;
    let attr = source::look(&file).await.asked(asked)?;
    if attr.allocated == 0
        && let Some(stream) = stream(place, &attr).await.asked(asked)?
    {
        return of_stream(copier, device, (&place.shown, stream)).await;
    }
    device.fits(attr.size)?;
    copier.progress.found(attr.size);
    let mut at = 0;
    while at < attr.size {
        let len = CHUNK_BYTES.min(attr.size - at) as usize;
        let found = file.read_segments_async(at, len, copier.options.flags).await.asked(asked)?;
        let before = at;
        for segment in &found.segments {
            match segment {
                Segment::Hole { end, .. } => {
                    let end = (*end).min(attr.size);
                    if end > at {
                        add(&copier.tally.holes_skipped, 1);
                        add(&copier.tally.hole_bytes, end - at);
                        device.zero(copier, at, end).await?;
                        at = end;
                    }
                }
                Segment::Data { start, pages } => {
                    let end = (start + pages.len() as u64).min(attr.size);
                    if end <= at {
                        continue;
                    }
                    let mut slices = Vec::new();
                    pages.slices((at - start) as usize, &mut slices);
                    let mut bytes = Vec::with_capacity((end - at) as usize);
                    slices.iter().for_each(|slice| bytes.extend_from_slice(slice));
                    bytes.truncate((end - at) as usize);
                    add(&copier.tally.read_bytes, bytes.len() as u64);
                    drop(slices);
                    device.put(copier, bytes, at).await?;
                    at = end;
                }
            }
        }
        if at == before {
            return Err(source::changed(&place.shown));
        }
    }
    source::unchanged(&file, &attr, &place.shown).await?;
    Ok(attr.size)
}
