//! Small files: read whole, and written whole, in as few requests as their stores allow.
//!
//! 1. The promises are those of any file: the final name is given by the store only to a file with
//!    all of its data and attributes, after the source was found unchanged.
//! 2. A store that cannot do this, or fails, is asked for the single steps instead; its messages are
//!    those of the single steps.

use super::attributes;
use super::copier::{Copier, Left, add};
use super::file::Source;
use super::options::{Reflink, Sparse};
use super::{source, zeros};
use crate::mounts::Place;
use futures_util::future::join;
use std::sync::atomic::Ordering;
use weir_pagecache::Segment;
use weir_vfs::{
    AclKind, Caller, Capabilities, Error, FileId, FileKind, IoFlags, WholeFile, WholeRead,
    WholeRequest,
};

/// The largest file that is small, in bytes.
const SMALL_BYTES: u64 = 64 << 10;

/// Whether a file of this size is copied as a small one, as far as the options permit that.
pub(crate) fn is_small(copier: &Copier, size: u64) -> bool {
    let options = &copier.options;
    size <= SMALL_BYTES
        && !options.checksum
        && options.reflink != Reflink::Always
        && !options.stats
        && options.flags.is_empty()
        && options.resume_bytes.is_none_or(|every| size <= every)
}

/// Reads a file of this size whole; `None` if it takes the single steps.
pub(crate) async fn read(
    copier: &Copier,
    from: &Place,
    id: FileId,
    size: u64,
) -> weir_vfs::Result<Option<WholeRead>> {
    // Holes are not reported by such a read; they matter unless all zeros become holes.
    if !is_small(copier, size) || copier.options.sparse != Sparse::Always {
        return Ok(None);
    }
    let (most, with_xattrs) = (SMALL_BYTES as usize, copier.options.preserve);
    let read =
        from.fs.get_whole(&Caller::Own, WholeRequest { id, max_bytes: most, with_xattrs }).await?;
    Ok(read.filter(|read| source::is_whole(read, id)))
}

/// Writes a small file whole; `None` if it takes the single steps.
pub(crate) async fn write(
    copier: &Copier,
    source: &Source<'_>,
    to: &Place,
    name: &[u8],
) -> weir_vfs::Result<Option<FileId>> {
    let size = source.attr.size;
    let is_able = to.fs.store().capabilities().contains(Capabilities::WHOLE_FILES);
    if !is_able || !is_small(copier, size) || !is_expressible(copier, source, to).await? {
        return Ok(None);
    }
    let number = copier.next_temporary.fetch_add(1, Ordering::Relaxed);
    let temporary = copier.temporary_name(number);
    let Some(content) = content(source).await? else { return Ok(None) };
    let data = runs(copier, &content);
    let like = attributes::wanted(copier, source.like(), to);
    let written: u64 = data.iter().map(|(_, run)| run.len() as u64).sum();
    let file = WholeFile {
        temporary: temporary.clone(),
        name: name.to_vec(),
        replaced: to.attr.as_ref().map(|there| there.id),
        data,
        size,
        mode: like.mode,
        owner: like.owner,
        times: like.times,
    };
    copier.rate.admit(written).await;
    // Listed before it exists, so that it never exists unlisted.
    copier.temporary.lock().insert(number, Left::new(to, &temporary, false));
    let put = to.fs.put_whole(&Caller::Own, to.dir, &file).await;
    if put.is_err() {
        // It may exist; the failure before is the one to report.
        let _ = to.fs.unlink(&Caller::Own, to.dir.entry(&temporary)).await;
    }
    copier.temporary.lock().remove(&number);
    let Some(copy) = put? else { return Ok(None) };
    attributes::report(copier, &copy, &source.attr, to);
    let tally = &copier.tally;
    add(&tally.read_bytes, content.data_bytes);
    add(&tally.holes_skipped, content.holes);
    add(&tally.hole_bytes, size - content.data_bytes);
    if copier.options.sparse == Sparse::Always {
        add(&tally.zero_bytes, content.data_bytes.saturating_sub(written));
    }
    add(&tally.written_bytes, written);
    add(&tally.size_bytes, size);
    copier.progress.copied(size);
    Ok(Some(copy.id))
}

/// Whether the attributes to copy are those that a file has when it is written whole: no extended
/// attributes, and no access control list.
async fn is_expressible(
    copier: &Copier,
    source: &Source<'_>,
    to: &Place,
) -> weir_vfs::Result<bool> {
    if !copier.options.preserve {
        let replaced = to.attr.as_ref().filter(|there| there.kind == FileKind::Regular);
        return Ok(match replaced {
            // It keeps its list and its attributes.
            Some(replaced) => {
                let acl = replaced.id.acl(AclKind::Access);
                let (list, names) =
                    join(to.fs.get_acl(acl), attributes::users_xattrs(to, replaced.id)).await;
                matches!(list, Ok(None) | Err(Error::NotSupported))
                    && names.is_ok_and(|names| names.is_empty())
            }
            None => true,
        });
    }
    let like = source.like();
    let has_list = !matches!(like.list(AclKind::Access).await, Ok(None) | Err(Error::NotSupported));
    // A directory may give new files a list of their own, where the store has lists.
    let may_inherit = to.fs.get_acl(to.dir.acl(AclKind::Default)).await != Err(Error::NotSupported);
    Ok(!has_list && !may_inherit && attributes::xattr_names(copier, like, to).await?.is_empty())
}

/// The content of a small file.
struct Content {
    bytes: Vec<u8>,
    /// The extents of data.
    data: Vec<(u64, u64)>,
    data_bytes: u64,
    holes: u64,
}

/// All of a source that has not changed since it was opened.
async fn content(source: &Source<'_>) -> weir_vfs::Result<Option<Content>> {
    let size = source.attr.size;
    let Some(file) = source.file() else {
        let bytes = source.whole().unwrap_or_default().to_vec();
        let data = if size > 0 { vec![(0, size)] } else { Vec::new() };
        return Ok(Some(Content { bytes, data, data_bytes: size, holes: 0 }));
    };
    let is_stream = source.attr.allocated == 0
        && super::file::stream(source.place, &source.attr).await?.is_some();
    if is_stream || file.size() != size {
        return Ok(None);
    }
    let mut content =
        Content { bytes: vec![0; size as usize], data: Vec::new(), data_bytes: 0, holes: 0 };
    let mut at = 0;
    while at < size {
        let found = file.read_segments_async(at, (size - at) as usize, IoFlags::empty()).await?;
        let before = at;
        for segment in &found.segments {
            match segment {
                Segment::Hole { end, .. } if *end > at => {
                    content.holes += 1;
                    at = (*end).min(size);
                }
                Segment::Hole { .. } => {}
                Segment::Data { start, pages } => {
                    let end = (start + pages.len() as u64).min(size);
                    if end <= at {
                        continue;
                    }
                    let mut slices = Vec::new();
                    pages.slices((at - start) as usize, &mut slices);
                    let first = at;
                    for slice in slices {
                        let len = slice.len().min((end - at) as usize);
                        content.bytes[at as usize..][..len].copy_from_slice(&slice[..len]);
                        at += len as u64;
                    }
                    content.data.push((first, at));
                    content.data_bytes += at - first;
                }
            }
        }
        if at == before {
            return Ok(None);
        }
    }
    let now = file.getattr().await?;
    Ok(source::is_unchanged(&source.attr, &now).then_some(content))
}

/// What to write of the content.
fn runs(copier: &Copier, content: &Content) -> Vec<(u64, Vec<u8>)> {
    let bytes = &content.bytes;
    match copier.options.sparse {
        Sparse::Always => {
            zeros::data_runs(0, bytes).map(|(offset, run)| (offset, run.to_vec())).collect()
        }
        Sparse::Auto => {
            let mut runs: Vec<(u64, Vec<u8>)> = Vec::new();
            for &(start, end) in &content.data {
                let part = &bytes[start as usize..end as usize];
                match runs.last_mut() {
                    Some((offset, run)) if *offset + run.len() as u64 == start => {
                        run.extend_from_slice(part);
                    }
                    _ => runs.push((start, part.to_vec())),
                }
            }
            runs
        }
        Sparse::Never if bytes.is_empty() => Vec::new(),
        Sparse::Never => vec![(0, bytes.clone())],
    }
}
