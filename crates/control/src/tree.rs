//! Shows, warms and evicts files.

use crate::process::{Out, Process};
use crate::protocol::{Action, FileStatus, Reply};
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};
use weir_base::PAGE_SIZE;
use weir_pagecache::{CachedFs, Residency, Segment};
use weir_vfs::{
    Access, Advice, Attr, Caller, Error, FileId, FileKind, IoFlags, MetCookies, ReaddirRequest,
    Result,
};

/// Bytes that are read at a time to warm a file.
const WARM_BYTES: usize = 1 << 20;
/// Entries of a directory that are listed at a time.
const PAGE_ENTRIES: usize = 256;

/// Replies with the files that have the most bytes in memory.
pub(crate) async fn files(process: &dyn Process, most: usize, out: &mut Out<'_>) -> io::Result<()> {
    // Several names may be those of one file system.
    let mut seen: Vec<FileId> = Vec::new();
    let mut all: Vec<(Residency, CachedFs)> = Vec::new();
    for (_, fs) in process.file_systems() {
        if !seen.contains(&fs.root()) {
            seen.push(fs.root());
            all.extend(fs.most_resident(most).into_iter().map(|file| (file, fs.clone())));
        }
    }
    all.sort_by_key(|(file, _)| std::cmp::Reverse(file.resident_bytes));
    for (file, fs) in all.into_iter().take(most) {
        let path = match fs.store().path_of(file.id).await {
            Ok(path) => path.into_os_string(),
            Err(_) => OsString::from(format!("inode {}", file.id.ino)),
        };
        out.reply(&Reply::File(status(path, &file, 0))).await?;
    }
    Ok(())
}

/// Does something with the files of a tree, and replies with each.
pub(crate) async fn tree(
    process: &dyn Process,
    action: Action,
    path: &Path,
    out: &mut Out<'_>,
) -> io::Result<()> {
    // The innermost directory has the file in its own cache.
    let file_systems = process.file_systems();
    let served = file_systems.iter().filter(|(dir, _)| path.starts_with(dir));
    let Some((dir, fs)) = served.max_by_key(|(dir, _)| dir.components().count()) else {
        return out.reply(&Reply::Elsewhere).await;
    };
    let top = match find(fs, path.strip_prefix(dir).unwrap_or(path)).await {
        Ok(top) => top,
        Err(error) => return out.reply(&failed(path, error)).await,
    };
    // What is ahead: the entries of the directories on the way down.
    let mut ahead = vec![(path.to_owned(), top)];
    while let Some((path, attr)) = ahead.pop() {
        let reply = match attr.kind {
            FileKind::Regular => match act(fs, action, attr.id).await {
                Ok((found, read)) => {
                    let nothing = Residency {
                        id: attr.id,
                        size: attr.size,
                        resident_bytes: 0,
                        dirty_bytes: 0,
                    };
                    Reply::File(status(path.into(), &found.unwrap_or(nothing), read))
                }
                Err(error) => failed(&path, error),
            },
            FileKind::Directory => match list(fs, attr.id, &path).await {
                Ok(entries) => {
                    ahead.extend(entries.into_iter().rev());
                    continue;
                }
                Err(error) => failed(&path, error),
            },
            _ => continue,
        };
        out.reply(&reply).await?;
    }
    Ok(())
}

fn failed(path: &Path, error: Error) -> Reply {
    Reply::Failed(format!("{}: {error}", path.display()))
}

fn status(path: OsString, file: &Residency, read_bytes: u64) -> FileStatus {
    FileStatus {
        path,
        size_bytes: file.size,
        resident_bytes: file.resident_bytes,
        dirty_bytes: file.dirty_bytes,
        read_bytes,
    }
}

/// Finds a file by its path below the root, without following symbolic links.
async fn find(fs: &CachedFs, below: &Path) -> Result<Attr> {
    let mut attr = fs.getattr(fs.root()).await?;
    for component in below.components() {
        let Component::Normal(name) = component else { return Err(Error::Invalid) };
        attr = fs.lookup(&Caller::Own, attr.id.entry(name.as_bytes())).await?;
    }
    Ok(attr)
}

/// The regular files and directories in a directory, by name.
async fn list(fs: &CachedFs, dir: FileId, path: &Path) -> Result<Vec<(PathBuf, Attr)>> {
    let (mut found, mut cookie, mut met) = (Vec::new(), 0, MetCookies::default());
    loop {
        let request = ReaddirRequest { dir, cookie, max_entries: PAGE_ENTRIES, with_attr: true };
        let page = fs.readdir(&Caller::Own, request).await?;
        let Some(last) = page.entries.last() else { break };
        cookie = last.cookie;
        if !page.eof && met.again(cookie) {
            // A server would be asked for ever.
            return Err(Error::Io);
        }
        for entry in page.entries {
            // What has vanished, or cannot be reached from here, is not in the cache either.
            let Some(attr) = entry.attr else { continue };
            if matches!(attr.kind, FileKind::Regular | FileKind::Directory) {
                found.push((path.join(OsString::from_vec(entry.name)), attr));
            }
        }
        if page.eof {
            break;
        }
    }
    found.sort_by(|(a, _), (b, _)| a.cmp(b));
    Ok(found)
}

/// Returns what the cache then holds of the file, and how many bytes were read to warm it.
async fn act(fs: &CachedFs, action: Action, id: FileId) -> Result<(Option<Residency>, u64)> {
    let mut read = 0;
    match action {
        Action::Show => {}
        Action::Warm => read = warm(fs, id).await?,
        Action::Evict => {
            // A file that the cache does not know has nothing in it.
            if fs.residency(id).is_some_and(|file| file.resident_bytes > 0) {
                let file = fs.open(&Caller::Own, id, Access::READ).await?;
                file.sync_async(true).await?;
                file.advise(0, 0, Advice::DontNeed)?;
            }
        }
    }
    Ok((fs.residency(id), read))
}

/// Reads a file, as a program would; returns how many bytes of whole pages have data.
async fn warm(fs: &CachedFs, id: FileId) -> Result<u64> {
    let file = fs.open(&Caller::Own, id, Access::READ).await?;
    file.advise(0, 0, Advice::Sequential)?;
    let (mut at, mut read) = (0, 0);
    loop {
        // Borrowed pages: nothing is copied, and a hole takes one step.
        let segments = file.read_segments_async(at, WARM_BYTES, IoFlags::empty()).await?;
        let end = segments.end(at);
        if end <= at {
            return Ok(read);
        }
        for segment in &segments.segments {
            if let Segment::Data { pages, .. } = segment {
                read += pages.len().next_multiple_of(PAGE_SIZE) as u64;
            }
        }
        at = end;
    }
}
