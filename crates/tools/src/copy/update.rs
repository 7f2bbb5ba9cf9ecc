//! Files that changed in place: only the ranges that differ are written.
//!
//! ```text
//!   compare --(first difference)--> begin --> write --> sync --> end
//!      |                              |                           |
//!      '--(none)--> set attributes    |-- clone: a temporary file, which shares the old data;
//!                                     |   it gets the name at the end
//!                                     '-- in place: the file has a size that is not the source's
//!                                         until all data is durable; its times come last
//! ```
//!
//! 1. A file that is not completely updated is never equal to its source by size and time: as a clone
//!    it has another name, and in place another size, durable before the first byte is written.
//! 2. A file with several names is not written in place: the other names may be other files' at the
//!    source.
//! 3. In place, users who may not read the source lose access to the file before it is written.
//! 4. The result counts only if the source did not change meanwhile.
//! 5. What an earlier run has written, and was killed before it was durable, is made durable before the
//!    contents are compared: what is equal is not written again. Where that is not possible, the file is
//!    written anew.

use super::attributes;
use super::copier::{CHUNK_BYTES, Copier, add};
use super::file::{Source, refuse_source, stream};
use super::options::Reflink;
use super::temporary::Temporary;
use super::{mirror, source, zeros};
use crate::failure::{Asked, Failure, Result};
use crate::mounts::Place;
use crate::pipeline::Pipeline;
use std::ops::Range;
use tokio::sync::SemaphorePermit;
use weir_base::PAGE_SIZE;
use weir_pagecache::{File, Segment};
use weir_vfs::{
    Access, AclKind, Attr, Caller, Capabilities, Error, FileId, FileKind, RenameFlags, SetAttr,
};

/// Smaller files are written anew.
const LEAST_BYTES: u64 = 1 << 20;
/// Most chunks of both files that are read ahead.
const DEPTH: usize = 4;

/// Updates the file at `to`; `None` if it has to be written anew.
pub(crate) async fn update(
    copier: &Copier,
    source: &Source<'_>,
    to: &Place,
) -> Result<Option<FileId>> {
    let Some(mirror) = &copier.options.mirror else { return Ok(None) };
    let Some(there) = to.attr.as_ref().filter(|there| there.kind == FileKind::Regular) else {
        return Ok(None);
    };
    if mirror::has_other_names(&source.attr, there) {
        return Ok(None);
    }
    if !mirror.compares_content && mirror::is_equal(&source.attr, there) {
        keep(copier, source, to, there.id).await?;
        return Ok(Some(there.id));
    }
    let is_equal_in_size = source.attr.size == there.size;
    let is_big = source.attr.size.min(there.size) >= LEAST_BYTES;
    if !(is_equal_in_size && mirror.compares_content || is_big && !mirror.whole_files) {
        return Ok(None);
    }
    let may_write = is_big && !mirror.whole_files;
    if !make_durable(to, there.id).await.asked(|| format!("write {}", to.shown))? {
        return Ok(None);
    }
    let old = match to.fs.open(&Caller::Own, there.id, Access::READ).await {
        Ok(old) => old,
        // A new file may still take its name.
        Err(Error::AccessDenied | Error::NotFound | Error::Stale) => return Ok(None),
        Err(error) => return Err(error).asked(|| format!("read {}", to.shown)),
    };
    let before = old.getattr().await.asked(|| format!("read {}", to.shown))?;
    let is_same = match (source.whole(), source.file()) {
        (Some(bytes), _) => Compared::from(is_content(bytes, &old, to).await?),
        (None, Some(file)) => {
            let read = || format!("read {}", source.place.shown);
            if source.attr.allocated == 0
                && stream(source.place, &source.attr).await.asked(read)?.is_some()
            {
                return Ok(None);
            }
            let mut writer = Writer { copier, source, to, before: &before, old: &old, begun: None };
            match compare(&mut writer, file, may_write).await {
                Ok(Compared::Updated) => return writer.end().await.map(Some),
                Ok(other) => {
                    writer.give_up(false).await;
                    other
                }
                Err(failure) => return Err(writer.fail(failure).await),
            }
        }
        (None, None) => Compared::Differs,
    };
    match is_same {
        Compared::Same => {
            source.unchanged().await?;
            keep(copier, source, to, there.id).await?;
            Ok(Some(there.id))
        }
        Compared::Differs | Compared::Updated => Ok(None),
    }
}

/// Makes durable what an earlier run may have written to a file: what is equal is not written again. A run
/// wrote nothing to a file that cannot be written. Returns false if the file may hold volatile data.
async fn make_durable(to: &Place, id: FileId) -> weir_vfs::Result<bool> {
    let opened = to.fs.store().open(&Caller::Own, id, Access::READ | Access::WRITE).await;
    let file = match opened {
        Err(
            Error::AccessDenied
            | Error::NotPermitted
            | Error::NotFound
            | Error::ReadOnly
            | Error::Stale
            | Error::TextBusy,
        ) => return Ok(true),
        // Another client allows no writes now, but an earlier run could write.
        Err(Error::Busy) => return Ok(false),
        opened => opened?,
    };
    let durable = async {
        file.sync(true).await?;
        weir_client::commit(&*file).await
    };
    match durable.await {
        Ok(()) => Ok(true),
        // A server may check the permission at COMMIT again.
        Err(Error::AccessDenied | Error::NotPermitted | Error::Stale) => Ok(false),
        Err(error) => Err(error),
    }
}

/// The file at the destination has the data of its source: it gets its attributes.
async fn keep(copier: &Copier, source: &Source<'_>, to: &Place, id: FileId) -> Result<()> {
    let set = attributes::set_of_file(copier, source.like(), to, id).await;
    set.asked(|| format!("set the attributes of {}", to.shown))?;
    add(&copier.tally.up_to_date, 1);
    copier.progress.copied(source.attr.size);
    Ok(())
}

/// What a comparison found.
enum Compared {
    Same,
    /// The file has to be written anew.
    Differs,
    /// What differs was written.
    Updated,
}

impl From<bool> for Compared {
    fn from(is_same: bool) -> Self {
        if is_same { Self::Same } else { Self::Differs }
    }
}

/// Whether a file has this content.
async fn is_content(bytes: &[u8], file: &File, to: &Place) -> Result<bool> {
    if file.size() != bytes.len() as u64 {
        return Ok(false);
    }
    let there = Chunk::read(file, 0..bytes.len() as u64).await;
    let there = there.asked(|| format!("read {}", to.shown))?;
    Ok(there.bytes == bytes)
}

/// A range of a file in memory.
struct Chunk {
    bytes: Vec<u8>,
    /// The end of the hole that the range is in.
    hole_end: Option<u64>,
    data_bytes: u64,
}

impl Chunk {
    /// Reads a range that is within the file, unless the file is truncated meanwhile.
    async fn read(file: &File, range: Range<u64>) -> weir_vfs::Result<Self> {
        let len = (range.end - range.start) as usize;
        let mut chunk = Self { bytes: Vec::new(), hole_end: None, data_bytes: 0 };
        let mut at = range.start;
        while at < range.end {
            let flags = weir_vfs::IoFlags::empty();
            let found = file.read_segments_async(at, (range.end - at) as usize, flags).await?;
            let before = at;
            for segment in &found.segments {
                match segment {
                    Segment::Hole { start, end } => {
                        if *start <= range.start && *end >= range.end {
                            chunk.hole_end = Some(*end);
                            return Ok(chunk);
                        }
                        at = at.max((*end).min(range.end));
                    }
                    Segment::Data { start, pages } => {
                        let end = (start + pages.len() as u64).min(range.end);
                        if end <= at {
                            continue;
                        }
                        chunk.bytes.resize(len, 0);
                        let mut slices = Vec::new();
                        pages.slices((at - start) as usize, &mut slices);
                        for slice in slices {
                            let into = (at - range.start) as usize;
                            let n = slice.len().min((end - at) as usize);
                            chunk.bytes[into..into + n].copy_from_slice(&slice[..n]);
                            at += n as u64;
                            chunk.data_bytes += n as u64;
                        }
                    }
                }
            }
            if at == before {
                // It was truncated.
                return Err(Error::Stale);
            }
        }
        chunk.bytes.resize(len, 0);
        Ok(chunk)
    }

    /// The bytes of a chunk of this length.
    fn filled(mut self, len: usize) -> Vec<u8> {
        self.bytes.resize(len, 0);
        self.bytes
    }
}

/// A range of both files.
struct Both<'a> {
    range: Range<u64>,
    source: weir_vfs::Result<Chunk>,
    /// `None` past the end of the old file.
    old: weir_vfs::Result<Option<Chunk>>,
    _permit: SemaphorePermit<'a>,
}

/// Compares the files, and writes what differs if `may_write`.
async fn compare(writer: &mut Writer<'_>, file: &File, may_write: bool) -> Result<Compared> {
    let (copier, from, to) = (writer.copier, &writer.source.place.shown, &writer.to.shown);
    let size = writer.source.attr.size;
    let old_size = writer.before.size;
    let asked = || format!("read {from}");
    let (mut at, mut next) = (0, 0);
    let mut reads = Pipeline::new();
    loop {
        while next < size && reads.len() < DEPTH {
            // Each chunk is in memory twice, or in pinned pages. Only the first one waits, as in
            // `data::copy`.
            let permit = match copier.window.try_acquire_many(2) {
                Ok(permit) => permit,
                Err(_) if !reads.is_empty() => break,
                Err(_) => {
                    let permit = copier.window.acquire_many(2).await;
                    permit.map_err(|_| Error::Interrupted).asked(asked)?
                }
            };
            let range = next..(next + CHUNK_BYTES).min(size);
            next = range.end;
            let old = writer.old;
            reads.push(async move {
                let old_range = range.start..range.end.min(old_size);
                let read_old = async {
                    match old_range.is_empty() {
                        true => Ok(None),
                        false => Chunk::read(old, old_range).await.map(Some),
                    }
                };
                let (source, old) = futures_util::join!(Chunk::read(file, range.clone()), read_old);
                Both { range, source, old, _permit: permit }
            });
        }
        let Some(both) = reads.next().await else { break };
        let Both { range, source: new, old, _permit } = both;
        if range.end <= at {
            continue;
        }
        let new = match new {
            Err(Error::Stale) => return Err(source::changed(from)),
            new => new.asked(asked)?,
        };
        let old = old.asked(|| format!("read {to}"))?;
        add(&copier.tally.read_bytes, new.data_bytes);
        reads.beside(copier.rate.admit(new.data_bytes)).await;
        let old_hole = old.as_ref().map_or(Some(u64::MAX), |old| old.hole_end);
        if let (Some(a), Some(b)) = (new.hole_end, old_hole) {
            // Whole chunks, as those read ahead are.
            let end = a.min(b).min(size);
            let end =
                if end < size { (end / CHUNK_BYTES * CHUNK_BYTES).max(range.end) } else { end };
            add(&copier.tally.hole_bytes, end - range.start);
            add(&copier.tally.matched_bytes, end - range.start);
            copier.progress.copied(end - range.start);
            at = end;
            next = next.max(at);
            continue;
        }
        let len = (range.end - range.start) as usize;
        let old = old.map_or_else(|| vec![0; len], |old| old.filled(len));
        let new = new.filled(len);
        let mut differing = 0;
        for run in differences(&new, &old) {
            if !may_write {
                return Ok(Compared::Differs);
            }
            differing += (run.end - run.start) as u64;
            let written =
                reads.beside(writer.write(range.start + run.start as u64, &new[run])).await?;
            if !written {
                return Ok(Compared::Differs);
            }
        }
        add(&copier.tally.matched_bytes, len as u64 - differing);
        copier.progress.copied(len as u64);
        at = range.end;
    }
    if file.size() != size {
        return Err(source::changed(from));
    }
    if writer.begun.is_none() && size == old_size {
        return Ok(Compared::Same);
    }
    if !may_write || !writer.begin().await? {
        return Ok(Compared::Differs);
    }
    Ok(Compared::Updated)
}

/// The ranges in which two buffers of one length differ, in pages.
fn differences(new: &[u8], old: &[u8]) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    let pages = new.chunks(PAGE_SIZE).zip(old.chunks(PAGE_SIZE)).enumerate();
    for (n, (new, old)) in pages {
        if new == old {
            continue;
        }
        let start = n * PAGE_SIZE;
        match runs.last_mut() {
            Some(last) if last.end == start => last.end = start + new.len(),
            _ => runs.push(start..start + new.len()),
        }
    }
    runs
}

/// Writes what differs.
struct Writer<'a> {
    copier: &'a Copier,
    source: &'a Source<'a>,
    to: &'a Place,
    /// The attributes of the old file.
    before: &'a Attr,
    old: &'a File,
    begun: Option<Begun<'a>>,
}

/// A file that is being updated.
struct Begun<'a> {
    file: File,
    /// The clone that takes the old file's name; `None` in place.
    clone: Option<Temporary<'a>>,
}

impl<'a> Writer<'a> {
    fn asked(&self) -> String {
        format!("write {}", self.to.shown)
    }

    /// Writes a range. Returns false if the file has to be written anew.
    async fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<bool> {
        if !self.begin().await? {
            return Ok(false);
        }
        let Some(begun) = &self.begun else { return Ok(false) };
        let mut at = offset;
        let end = offset + bytes.len() as u64;
        for (start, run) in zeros::data_runs(offset, bytes) {
            self.clear(&begun.file, at..start).await?;
            self.put(&begun.file, start, run).await?;
            at = start + run.len() as u64;
        }
        self.clear(&begun.file, at..end).await?;
        Ok(true)
    }

    /// Makes a range of zeros a hole.
    async fn clear(&self, file: &File, range: Range<u64>) -> Result<()> {
        // Past the end of the old file there is nothing.
        let end = range.end.min(self.before.size);
        if range.start >= end {
            return Ok(());
        }
        let len = end - range.start;
        match file.punch_hole_async(range.start, len).await {
            Err(Error::NotSupported) => {
                let mut at = range.start;
                while at < end {
                    let piece = zeros::some(end - at);
                    self.put(file, at, piece).await?;
                    at += piece.len() as u64;
                }
                Ok(())
            }
            punched => {
                add(&self.copier.tally.zero_bytes, len);
                punched.asked(|| self.asked())
            }
        }
    }

    async fn put(&self, file: &File, mut offset: u64, mut bytes: &[u8]) -> Result<()> {
        let flags = self.copier.options.flags;
        add(&self.copier.tally.written_bytes, bytes.len() as u64);
        while !bytes.is_empty() {
            let n = file.write_at_async(bytes, offset, flags).await.asked(|| self.asked())?;
            if n == 0 {
                return Err(Error::NoSpace).asked(|| self.asked());
            }
            offset += n as u64;
            bytes = &bytes[n..];
        }
        Ok(())
    }

    /// Makes the file ready to be written, once. Returns false if it has to be written anew.
    async fn begin(&mut self) -> Result<bool> {
        if self.begun.is_some() {
            return Ok(true);
        }
        self.begun = match self.cloned().await? {
            Some(begun) => Some(begun),
            None => self.in_place().await?,
        };
        Ok(self.begun.is_some())
    }

    /// A temporary file that shares the old one's data, where the store can make one.
    async fn cloned(&self) -> Result<Option<Begun<'a>>> {
        let (copier, to) = (self.copier, self.to);
        let is_able = self.old.capabilities().contains(Capabilities::CLONE);
        if !is_able || copier.options.reflink == Reflink::Never {
            return Ok(None);
        }
        // In place, no file has to be made.
        let Ok(temporary) = Temporary::once(copier, to).await else { return Ok(None) };
        let clone = async {
            let access = Access::READ | Access::WRITE;
            let file = to.fs.open(&Caller::Own, temporary.id(), access).await?;
            file.clone_range_async(self.old, 0, 0, 0).await?;
            match file.size() == self.before.size {
                true => Ok(file),
                false => Err(Error::Stale),
            }
        };
        match clone.await {
            Ok(file) => {
                add(&copier.tally.cloned_bytes, self.before.size);
                Ok(Some(Begun { file, clone: Some(temporary) }))
            }
            Err(_) => {
                temporary.abandon(true).await;
                Ok(None)
            }
        }
    }

    /// Takes the old file's rights away from other users, unless they have the same to the source.
    /// Returns false if that is not possible.
    async fn protect(&self) -> bool {
        if self.has_same_rights().await {
            return true;
        }
        let (to, like) = (self.to, &self.source.attr);
        let own = SetAttr { uid: Some(like.uid), gid: Some(like.gid), ..SetAttr::default() };
        // A new file would have this user as its owner as well.
        let _ = to.fs.setattr(&Caller::Own, self.before.id, &own).await;
        let mode = SetAttr { mode: Some(0o600), ..SetAttr::default() };
        to.fs.setattr(&Caller::Own, self.before.id, &mode).await.is_ok()
    }

    /// Whether the same users have access to the old file and to the source.
    async fn has_same_rights(&self) -> bool {
        let (like, to) = (self.source.like(), self.to);
        let rights = |attr: &Attr| (attr.mode, attr.uid, attr.gid);
        if rights(like.attr) != rights(self.before) {
            return false;
        }
        let list = like.list(AclKind::Access).await;
        let there = to.fs.get_acl(self.before.id.acl(AclKind::Access)).await;
        match (list, there) {
            (Ok(list), Ok(there)) => list == there,
            (Ok(None) | Err(Error::NotSupported), Ok(None) | Err(Error::NotSupported)) => true,
            _ => false,
        }
    }

    /// The old file itself, marked as incomplete.
    async fn in_place(&self) -> Result<Option<Begun<'a>>> {
        let (copier, to) = (self.copier, self.to);
        if self.before.nlink > 1 {
            return Ok(None);
        }
        let access = Access::READ | Access::WRITE;
        let file = match to.fs.open(&Caller::Own, self.before.id, access).await {
            Ok(file) => file,
            // A program that runs stays as it is, under no name.
            Err(Error::AccessDenied | Error::NotPermitted | Error::TextBusy) => return Ok(None),
            Err(error) => return Err(error).asked(|| self.asked()),
        };
        self.source.unchanged().await?;
        // Reading may have changed what the check compares.
        let source = Source::open(self.source.place, self.source.attr.id).await?;
        refuse_source(&source, to, &file, self.before.id).await?;
        if !self.protect().await {
            return Ok(None);
        }
        copier.in_place.lock().insert(to.shown.clone());
        let marked = self.source.attr.size.max(self.before.size).saturating_add(1);
        let mark = async {
            file.truncate_async(marked).await?;
            file.sync_async(false).await
        };
        match mark.await {
            Ok(()) => Ok(Some(Begun { file, clone: None })),
            // The largest file that the store can hold, say.
            Err(Error::TooBig | Error::NoSpace | Error::Quota) => {
                file.truncate_async(self.before.size).await.asked(|| self.asked())?;
                copier.in_place.lock().remove(&to.shown);
                Ok(None)
            }
            Err(error) => Err(error).asked(|| self.asked()),
        }
    }

    /// Everything is written: the file becomes the mirror of its source.
    async fn end(self) -> Result<FileId> {
        let (copier, source, to) = (self.copier, self.source, self.to);
        let write = || format!("write {}", to.shown);
        let Some(begun) = self.begun else { return Err(Error::Invalid).asked(write) };
        let Begun { file, clone } = begun;
        let (size, id) = (source.attr.size, file.id());
        let done = async {
            if clone.is_none() {
                // The data is durable before the size says that it is complete.
                file.sync_async(true).await.asked(write)?;
                source.unchanged().await?;
            }
            file.truncate_async(size).await.asked(write)?;
            file.sync_async(true).await.asked(write)?;
            attributes::set_of_file(copier, source.like(), to, id).await.asked(write)?;
            file.sync_async(false).await.asked(write)?;
            if let Some(temporary) = &clone {
                source.unchanged().await?;
                let name = to.name.as_deref().ok_or(Error::IsDirectory).asked(write)?;
                temporary.publish(name, RenameFlags::Replace).await.asked(write)?;
            }
            Ok(())
        };
        match (done.await, clone) {
            (Ok(()), clone) => {
                if let Some(temporary) = clone {
                    temporary.forget();
                    copier.note_changed(&to.fs, to.dir);
                }
                copier.in_place.lock().remove(&to.shown);
                add(&copier.tally.size_bytes, size);
                add(&copier.tally.files, 1);
                Ok(id)
            }
            (Err(failure), clone) => Err(abandon(copier, to, clone, failure).await),
        }
    }

    /// Nothing is to be written after all.
    async fn give_up(self, is_incomplete: bool) {
        if let Some(Begun { clone: Some(temporary), .. }) = self.begun {
            temporary.abandon(true).await;
        } else if !is_incomplete {
            self.copier.in_place.lock().remove(&self.to.shown);
        }
    }

    async fn fail(self, failure: Failure) -> Failure {
        match self.begun {
            Some(begun) => abandon(self.copier, self.to, begun.clone, failure).await,
            None => failure,
        }
    }
}

/// After a failure: removes the clone, or reports the file as incomplete.
async fn abandon(
    copier: &Copier,
    to: &Place,
    clone: Option<Temporary<'_>>,
    failure: Failure,
) -> Failure {
    match clone {
        Some(temporary) => {
            temporary.abandon(true).await;
            failure
        }
        None => {
            copier.in_place.lock().remove(&to.shown);
            let incomplete = format!("{} is incomplete until it is synchronized again", to.shown);
            failure.advice(incomplete)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_runs_of_pages() {
        let old = vec![1; 5 * PAGE_SIZE + 10];
        let mut new = old.clone();
        assert!(differences(&new, &old).is_empty());
        for at in [0, PAGE_SIZE, 3 * PAGE_SIZE + 7, 5 * PAGE_SIZE + 9] {
            new[at] = 2;
        }
        let end = 5 * PAGE_SIZE;
        let expected = [0..2 * PAGE_SIZE, 3 * PAGE_SIZE..4 * PAGE_SIZE, end..end + 10];
        assert_eq!(differences(&new, &old), expected);
    }
}
