//! A copy within the export, by the server where it can.
//!
//! 1. In order: CLONE, which shares the data; COPY of each extent of data, so that holes stay holes; reads
//!    and writes through this program.

use super::{Asked, Export, File, OpenOptions};
use futures_util::stream::{self, StreamExt, TryStreamExt};
use std::io;
use std::ops::Range;
use std::path::Path;
use weir_vfs::{Capabilities, Error, FileSystem, OpenFile, Result, SegmentKind};

/// Bytes that the server is asked to copy at a time.
const COPY_BYTES: u64 = 64 << 20;
/// Bytes of one read and write.
const PIECE_BYTES: u64 = 1 << 20;
/// Reads and writes in flight.
const PIECES: usize = 8;

impl Export {
    /// Copies the data and the permission bits of a file to another one, which is created or
    /// overwritten, and returns the number of bytes. The server shares or copies the data itself
    /// (version 4.2) where it can. Holes stay holes.
    ///
    /// # Errors
    /// Also if both are the same file.
    pub async fn copy(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<u64> {
        let (path, to) = (from.as_ref(), to.as_ref());
        let asked = Asked { operation: "copy", path, to: Some(to) };
        let source = self.open(path).await?;
        let about = source.metadata().await?;
        let options = OpenOptions::new().read(true).write(true).create(true).mode(about.mode());
        let target = self.open_with(to, &options).await?;
        if target.metadata().await?.attr().id == about.attr().id {
            return self.call(asked, async { Err(Error::Invalid) }).await;
        }
        target.set_len(0).await?;
        let (from_file, to_file) = (source.shared.file(), target.shared.file());
        let capabilities = self.nfs.capabilities();
        let mut size = None;
        if capabilities.contains(Capabilities::CLONE) && about.len() > 0 {
            let shared = self.call(asked, to_file.clone_range(from_file, 0, 0, 0)).await;
            if shared.is_ok() {
                size = Some(target.metadata().await?.len());
            }
        }
        let size = match size {
            Some(size) => size,
            None => {
                let may_offload = capabilities.contains(Capabilities::COPY);
                self.copy_extents(asked, (&source, &target), may_offload).await?
            }
        };
        target.set_permissions(about.mode()).await?;
        Ok(size)
    }

    async fn copy_extents(
        &self,
        asked: Asked<'_>,
        (source, target): (&File, &File),
        mut may_offload: bool,
    ) -> io::Result<u64> {
        let mut at = 0;
        while let Some(extent) = source.extent_at(at).await? {
            at = match extent.kind {
                SegmentKind::Hole => extent.end.max(at),
                SegmentKind::Data => {
                    self.copy_data(asked, (source, target), at..extent.end, &mut may_offload)
                        .await?
                }
            };
            if at < extent.end {
                // The source ended before.
                break;
            }
        }
        // Neither what was added since nor what was truncated is there; a hole may be at the end.
        let size = source.metadata().await?.len().min(at);
        target.set_len(size).await?;
        Ok(size)
    }

    /// Copies a range of data; returns where it ended, earlier only at the end of the source.
    async fn copy_data(
        &self,
        asked: Asked<'_>,
        (source, target): (&File, &File),
        range: Range<u64>,
        may_offload: &mut bool,
    ) -> io::Result<u64> {
        let mut at = range.start;
        while at < range.end {
            let len = COPY_BYTES.min(range.end - at);
            let ends = (source.shared.file(), target.shared.file());
            if *may_offload {
                match self.call(asked, offload(ends, at, len)).await {
                    Ok(copied) if copied > 0 => {
                        at += copied;
                        continue;
                    }
                    // What is wrong with the data is found by reading it.
                    Ok(_) | Err(_) => *may_offload = false,
                }
            }
            let copied = copy_through(source, target, at, len).await?;
            at += copied;
            if copied < len {
                break;
            }
        }
        Ok(at)
    }
}

async fn offload((from, to): (&dyn OpenFile, &dyn OpenFile), at: u64, len: u64) -> Result<u64> {
    to.copy_range(from, at, len, at).await
}

/// Reads and writes; returns how many bytes, fewer only at the end of the source.
async fn copy_through(source: &File, target: &File, at: u64, len: u64) -> io::Result<u64> {
    let pieces: Vec<(u64, u64)> = stream::iter((at..at + len).step_by(PIECE_BYTES as usize))
        .map(|from| async move {
            let asked = PIECE_BYTES.min(at + len - from) as usize;
            let data = source.read_at(from, asked).await?;
            let read = data.len() as u64;
            target.write_at(from, data).await?;
            io::Result::Ok((from, read))
        })
        .buffered(PIECES)
        .try_collect()
        .await?;
    // The source may have been truncated and extended again between two reads: what was read after a
    // gap does not count.
    let end =
        pieces.iter().fold(at, |end, &(from, read)| if from == end { end + read } else { end });
    Ok(end - at)
}
