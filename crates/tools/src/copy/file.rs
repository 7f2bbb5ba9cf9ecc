//! One regular file: written under a temporary name, synced, renamed.
//!
//! 1. Only data from a source that did not change meanwhile is published.
//! 2. A file is overwritten in place only on request, and only after a check that it is not the
//!    source.
//! 3. Two sources are not written in place to one file that has several names: the second one fails.

use super::attributes::{self, Like};
use super::copier::{Copier, Overwritten, add};
use super::look::{look_again, publish};
use super::temporary::{Refused, Temporary};
use super::{data, mirror, small, source, update};
use crate::failure::{Asked, Failure, Result};
use crate::mounts::Place;
use crate::text::kind_name;
use rustix::fs::{AtFlags, StatxFlags, statx};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use weir_pagecache::File;
use weir_stores::local::stream::stream_of;
use weir_vfs::{
    Access, Acl, Attr, Caller, Error, FileId, FileKind, RenameFlags, SetAttr, SetTime, WholeRead,
};

/// A source, and its attributes before it is read.
pub(crate) struct Source<'a> {
    pub(crate) place: &'a Place,
    content: Content,
    pub(crate) attr: Attr,
    /// Names of its extended attributes, if they are known already.
    xattrs: Option<Vec<Vec<u8>>>,
    /// Its access list, likewise.
    access_list: Option<weir_vfs::Result<Option<Acl>>>,
}

/// The content of a source.
enum Content {
    /// To be read.
    Open(File),
    /// Read whole, and found unchanged after that.
    Whole(Vec<u8>),
}

impl Source<'_> {
    pub(crate) async fn open(place: &Place, id: FileId) -> Result<Source<'_>> {
        let asked = || format!("read {}", place.shown);
        let file = place.fs.open(&Caller::Own, id, Access::READ).await.asked(asked)?;
        let attr = source::look(&file).await.asked(asked)?;
        Ok(Source { place, content: Content::Open(file), attr, xattrs: None, access_list: None })
    }

    /// Reads a small file whole, or opens it.
    async fn read_or_open<'a>(
        copier: &Copier,
        place: &'a Place,
        listed: &Attr,
    ) -> Result<Source<'a>> {
        let asked = || format!("read {}", place.shown);
        let read = small::read(copier, place, listed.id, listed.size).await.asked(asked)?;
        match read {
            Some(WholeRead { before, data, xattrs, access_list, .. }) => {
                let content = Content::Whole(data);
                Ok(Source { place, content, attr: before, xattrs, access_list })
            }
            None => Source::open(place, listed.id).await,
        }
    }

    pub(crate) fn like(&self) -> Like<'_> {
        let access_list = self.access_list.as_ref();
        Like { place: self.place, attr: &self.attr, xattrs: self.xattrs.as_deref(), access_list }
    }

    /// The open file, unless it was read whole.
    pub(crate) fn file(&self) -> Option<&File> {
        match &self.content {
            Content::Open(file) => Some(file),
            Content::Whole(_) => None,
        }
    }

    /// The content, if it was read whole.
    pub(crate) fn whole(&self) -> Option<&[u8]> {
        match &self.content {
            Content::Open(_) => None,
            Content::Whole(data) => Some(data),
        }
    }

    /// Fails if the source has changed since it was opened.
    pub(crate) async fn unchanged(&self) -> Result<()> {
        match self.file() {
            Some(file) => source::unchanged(file, &self.attr, &self.place.shown).await,
            None => Ok(()),
        }
    }

    async fn is_unchanged(&self) -> bool {
        match self.file() {
            Some(file) => {
                let now = file.getattr().await;
                now.is_ok_and(|now| source::is_unchanged(&self.attr, &now))
            }
            None => true,
        }
    }

    /// Records the effect of the copy on the page cache, if requested.
    fn report(&self, copier: &Copier, to: &Place, copy: &File) {
        if let Some(file) = self.file() {
            copier.report(self.place, to, file, copy);
        }
    }
}

/// Writes a stream to `to`, which is replaced when all of it is there, or overwritten if the options ask for that.
/// `from_shown` names the stream in messages.
pub(crate) async fn copy_stream(
    copier: &Copier,
    (from_shown, stream): (&str, std::fs::File),
    to: &Place,
) -> Result<()> {
    refuse_special(to)?;
    let write = || format!("write {}", to.shown);
    if let Some(there) = &to.attr
        && copier.options.in_place
        && there.kind == FileKind::Regular
    {
        return stream_in_place(copier, (from_shown, stream), to, there.id).await;
    }
    let name = to.name.as_deref().ok_or(Error::IsDirectory).asked(write)?;
    let temporary = match Temporary::once(copier, to).await {
        Ok(temporary) => temporary,
        Err(error) => return Err(no_temporary(Refused::Store(error), to)),
    };
    let done = async {
        let id = temporary.id();
        let file = to.fs.open(&Caller::Own, id, Access::READ | Access::WRITE).await.asked(write)?;
        let target = data::Target { file: &file, shown: &to.shown };
        let size = data::copy_stream(copier, from_shown, target, stream).await?;
        add(&copier.tally.size_bytes, size);
        attributes::set_without_source(copier, to, id).await.asked(write)?;
        file.sync_async(false).await.asked(write)?;
        publish(copier, None, to, (&temporary, name)).await
    };
    match done.await {
        // A stream is newer than what is there.
        Ok(_) => {
            temporary.forget();
            copier.note_changed(&to.fs, to.dir);
            add(&copier.tally.files, 1);
            copier.progress.made(from_shown, &to.shown);
            Ok(())
        }
        Err(failure) => {
            temporary.abandon(true).await;
            Err(failure)
        }
    }
}

/// Overwrites the file `id` with a stream.
async fn stream_in_place(
    copier: &Copier,
    (from_shown, stream): (&str, std::fs::File),
    to: &Place,
    id: FileId,
) -> Result<()> {
    let write = || format!("write {}", to.shown);
    let file = to.fs.open(&Caller::Own, id, Access::READ | Access::WRITE).await.asked(write)?;
    let there = file.getattr().await.asked(write)?;
    let from = stream.metadata().asked(|| format!("read {from_shown}"))?;
    if from.is_file() {
        let read = || format!("read {from_shown}");
        let is_alike = source::is_shown_as(&there, from.ino())
            && from.len() == there.size
            && from.modified().is_ok_and(|time| time == there.mtime);
        // As in `refuse_source`: a layer in between may show other numbers, but not other changes.
        let before = change_times(&stream).asked(read)?;
        touch(to, id).await.asked(write)?;
        if is_alike || change_times(&stream).asked(read)? != before {
            let asked = format!("copy {from_shown} to {}", to.shown);
            return Err(Failure::new(asked, "they are the same file"));
        }
    }
    copier.in_place.lock().insert(to.shown.clone());
    let done = async {
        file.truncate_async(0).await.asked(write)?;
        let target = data::Target { file: &file, shown: &to.shown };
        let size = data::copy_stream(copier, from_shown, target, stream).await?;
        add(&copier.tally.size_bytes, size);
        file.sync_async(false).await.asked(write)
    };
    let done = done.await;
    // If interrupted before this, the file stays on the list.
    copier.in_place.lock().remove(&to.shown);
    done.map_err(|failure| failure.advice(incomplete(to)))?;
    add(&copier.tally.files, 1);
    copier.progress.made(from_shown, &to.shown);
    Ok(())
}

/// When the content and the attributes of a stream's file changed, also if the kernel's knowledge of them is old.
fn change_times(stream: &std::fs::File) -> std::io::Result<[(i64, u32); 2]> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC;
    let now = statx(stream, "", flags, StatxFlags::BASIC_STATS)?;
    Ok([now.stx_mtime, now.stx_ctime].map(|time| (time.tv_sec, time.tv_nsec)))
}

/// Sets both times of a file to now, as a user may who may write to it.
async fn touch(to: &Place, id: FileId) -> weir_vfs::Result<()> {
    let now = Some(SetTime::Now);
    let set = SetAttr { atime: now, mtime: now, ..SetAttr::default() };
    to.fs.setattr(&Caller::Own, id, &set).await.map(drop)
}

/// What a failed copy in place leaves.
fn incomplete(to: &Place) -> String {
    format!("{} was written in place and is incomplete now", to.shown)
}

/// Copies a file as [`copy`] does, again if a store has evicted the file or a directory meanwhile.
pub(crate) async fn copy_found_again(
    copier: &Copier,
    from: &Place,
    listed: &Attr,
    to: &Place,
) -> Result<Option<FileId>> {
    match copy(copier, from, listed, to).await {
        Err(failure) if failure.is_of(Error::Stale) => {
            let is_same = from.find_again(listed.id).await;
            if to.find_directory_again().await || is_same {
                return copy(copier, from, listed, to).await;
            }
            Err(failure)
        }
        done => done,
    }
}

/// Copies the regular file at `from`, with the attributes `listed`, to `to`; returns the copy. `None`: what is at `to`
/// stays.
async fn copy(copier: &Copier, from: &Place, listed: &Attr, to: &Place) -> Result<Option<FileId>> {
    refuse_special(to)?;
    let source = Source::read_or_open(copier, from, listed).await?;
    let Some(to) = look_again(copier, Some(&source.attr), to).await? else { return Ok(None) };
    let to = &*to;
    refuse_special(to)?;
    if let Some(there) = &to.attr
        && source::is_same(&source.attr, there)
        && there.fsid == source.attr.fsid
    {
        return Err(same_file(&source, to));
    }
    if let Some(id) = update::update(copier, &source, to).await? {
        return Ok(Some(id));
    }
    match &to.attr {
        Some(there) if copier.options.in_place && there.kind == FileKind::Regular => {
            in_place(copier, &source, to, there.id).await.map(Some)
        }
        _ => replace(copier, &source, to).await,
    }
}

/// Copies to a new file, and then renames it. `None`: what is there then stays.
async fn replace(copier: &Copier, source: &Source<'_>, to: &Place) -> Result<Option<FileId>> {
    let write = || format!("write {}", to.shown);
    let name = to.name.as_deref().ok_or(Error::IsDirectory).asked(write)?;
    // The request that writes a small file whole replaces what has appeared under its name.
    let may_replace = copier.options.publishes() == RenameFlags::Replace;
    if may_replace && let Some(id) = small::write(copier, source, to, name).await.asked(write)? {
        copier.note_changed(&to.fs, to.dir);
        add(&copier.tally.files, 1);
        return Ok(Some(id));
    }
    let temporary = match Temporary::begin(copier, to, &source.attr).await {
        Ok(temporary) => temporary,
        Err(refused) => return Err(no_temporary(refused, to)),
    };
    let done = async {
        let id = temporary.id();
        let file = to.fs.open(&Caller::Own, id, Access::READ | Access::WRITE).await.asked(write)?;
        fill(copier, source, to, &file, Some(&temporary)).await?;
        temporary.complete(&file).await.asked(write)?;
        attributes::set_of_file(copier, source.like(), to, id).await.asked(write)?;
        file.sync_async(false).await.asked(write)?;
        source.unchanged().await?;
        if !publish(copier, Some(&source.attr), to, (&temporary, name)).await? {
            return Ok(None);
        }
        source.report(copier, to, &file);
        Ok(Some(id))
    };
    match done.await {
        Ok(Some(id)) => {
            temporary.forget();
            copier.note_changed(&to.fs, to.dir);
            add(&copier.tally.files, 1);
            Ok(Some(id))
        }
        Ok(None) => {
            temporary.abandon(true).await;
            Ok(None)
        }
        Err(failure) => {
            temporary.abandon(!source.is_unchanged().await).await;
            Err(failure)
        }
    }
}

fn no_temporary(refused: Refused, to: &Place) -> Failure {
    let write = || format!("write {}", to.shown);
    match refused {
        Refused::Busy(part) => {
            Failure::new(write(), format!("another `weir cp --continue` writes to {part}"))
                .advice("let it finish; if there is none, remove that file")
        }
        Refused::Store(error) => {
            let denied = matches!(error, Error::AccessDenied | Error::NotPermitted);
            let failure = Failure::of(write(), error);
            match &to.attr {
                Some(_) if denied => failure.advice(
                    "you may not create files in its directory; --in-place overwrites the existing file",
                ),
                _ => failure,
            }
        }
    }
}

/// Whether an existing copy looks like the source, for `--continue`.
pub(crate) fn is_done(copier: &Copier, source: &Attr, to: &Place) -> bool {
    if let (Some(mirror), Some(there)) = (&copier.options.mirror, &to.attr) {
        return mirror::is_done(mirror, source, there);
    }
    // A file that is written in place has all of its size, and a time of its own, before it is complete.
    let has_time = |there: &Attr| !copier.options.in_place || there.mtime == source.mtime;
    let same = |there: &Attr| mirror::is_equal(source, there) && has_time(there);
    copier.options.resume_bytes.is_some() && to.attr.as_ref().is_some_and(same)
}

/// Refuses to copy a file over a device or pipe.
fn refuse_special(to: &Place) -> Result<()> {
    match to.attr.as_ref().map(|a| a.kind) {
        None | Some(FileKind::Regular | FileKind::Symlink) => Ok(()),
        Some(kind) => {
            let failed = format!("it is a {}", kind_name(kind));
            let failure = Failure::new(format!("write a file to {}", to.shown), failed);
            Err(match kind {
                FileKind::Directory => failure.advice("remove it, or choose another name"),
                _ => failure.advice("use `weir cat` with its output redirected there"),
            })
        }
    }
}

fn same_file(source: &Source<'_>, to: &Place) -> Failure {
    let asked = format!("copy {} to {}", source.place.shown, to.shown);
    Failure::new(asked, "they are the same file")
}

/// Overwrites the file `id`, which keeps its identity: its other names, its mode and owner.
async fn in_place(copier: &Copier, source: &Source<'_>, to: &Place, id: FileId) -> Result<FileId> {
    let write = || format!("write {}", to.shown);
    let file = to.fs.open(&Caller::Own, id, Access::READ | Access::WRITE).await.asked(write)?;
    let overwritten = overwritten(copier, source, to, &file, id).await?;
    // Another name of the source, copied to another name of the file, writes the same data.
    let _turn = overwritten.turn.lock().await;
    refuse_source(source, to, &file, id).await?;
    copier.in_place.lock().insert(to.shown.clone());
    let done = async {
        file.truncate_async(0).await.asked(write)?;
        fill(copier, source, to, &file, None).await?;
        // A copy with the size and the time of its source counts as complete.
        file.sync_async(true).await.asked(write)?;
        if copier.options.preserve {
            attributes::set_of_file(copier, source.like(), to, id).await.asked(write)?;
        }
        file.sync_async(false).await.asked(write)?;
        source.unchanged().await
    };
    let done = done.await;
    // If interrupted before this, the file stays on the list.
    copier.in_place.lock().remove(&to.shown);
    match done {
        Ok(()) => {
            source.report(copier, to, &file);
            add(&copier.tally.files, 1);
            Ok(id)
        }
        Err(failure) => Err(failure.advice(incomplete(to))),
    }
}

/// Notes that the open file `id` is overwritten; fails if this run overwrites it with another source: its names
/// are one file, which can have the data of one source only.
async fn overwritten(
    copier: &Copier,
    source: &Source<'_>,
    to: &Place,
    file: &File,
    id: FileId,
) -> Result<Arc<Overwritten>> {
    let write = || format!("write {}", to.shown);
    let there = file.getattr().await.asked(write)?;
    let overwritten = Overwritten {
        source: source::Identity::of(source.place, &source.attr),
        shown: source.place.shown.clone(),
        turn: tokio::sync::Mutex::default(),
    };
    let from = overwritten.source;
    let mut known = copier.overwritten.lock();
    let noted = known.entry((there.fsid, id)).or_insert_with(|| Arc::new(overwritten));
    if noted.source == from {
        return Ok(Arc::clone(noted));
    }
    let failed = format!("it is a hard link to a file that gets the data of {}", noted.shown);
    let failure = Failure::new(format!("write {} in place", to.shown), failed);
    Err(failure.advice("leave out --in-place, which replaces each name by a file of its own"))
}

/// Fails if the open file `id` is the source, under any path or server.
pub(crate) async fn refuse_source(
    source: &Source<'_>,
    to: &Place,
    file: &File,
    id: FileId,
) -> Result<()> {
    let write = || format!("write {}", to.shown);
    let there = file.getattr().await.asked(write)?;
    if source::is_same(&source.attr, &there) {
        return Err(same_file(source, to));
    }
    // Views of a file may show different numbers and times (a server in between generates them, a
    // client caches them), but not different changes: the source must not show this one.
    touch(to, id).await.asked(write)?;
    // Reopened, so that a client in between asks its server.
    let anew = Source::open(source.place, source.attr.id).await?;
    // Nothing was read in between, so any difference counts.
    let felt =
        source.attr.change != anew.attr.change || !source::is_unchanged(&source.attr, &anew.attr);
    if felt { Err(same_file(source, to)) } else { Ok(()) }
}

async fn fill(
    copier: &Copier,
    source: &Source<'_>,
    to: &Place,
    file: &File,
    temporary: Option<&Temporary<'_>>,
) -> Result<()> {
    let from = source.place;
    let (from_shown, to_shown) = (&from.shown[..], &to.shown[..]);
    let pair = match &source.content {
        Content::Open(open) => data::Pair { from: open, to: file, from_shown, to_shown, temporary },
        Content::Whole(bytes) => {
            let size = data::copy_bytes(copier, file, to_shown, bytes).await?;
            add(&copier.tally.size_bytes, size);
            return Ok(());
        }
    };
    let stream = match source.attr.allocated {
        0 => stream(source.place, &source.attr).await.asked(|| format!("read {}", from.shown))?,
        _ => None,
    };
    let size = match stream {
        Some(stream) => {
            let target = data::Target { file, shown: to_shown };
            data::copy_stream(copier, from_shown, target, stream).await?
        }
        None => match data::copy(copier, &pair, &source.attr).await? {
            size if size == source.attr.size => size,
            _ => return Err(source::changed(&from.shown)),
        },
    };
    add(&copier.tally.size_bytes, size);
    Ok(())
}

/// A file as a stream, if its size does not describe its content.
pub(crate) async fn stream(place: &Place, attr: &Attr) -> weir_vfs::Result<Option<std::fs::File>> {
    let file = place.fs.store().open(&Caller::Own, attr.id, Access::READ).await?;
    stream_of(&*file, attr)
}
