//! Removal of a directory with everything in it.
//!
//! 1. Files are found by the directory that they are in, not by path, so that no symbolic link is ever
//!    followed, also if other programs rename directories meanwhile.
//! 2. Nothing is removed from a directory that is no longer where it was found: another program may have moved it out
//!    of the tree. It is looked up beside each request for entries, which takes no further time.

use super::resolve::{Links, resolve};
use super::{Asked, Export};
use futures_util::future::join;
use futures_util::stream::{self, StreamExt, TryStreamExt};
use std::io;
use std::path::Path;
use weir_vfs::{
    Caller, DirEntry, Error, FileId, FileKind, FileSystem, MetCookies, ReaddirRequest, Result,
};

/// Entries asked for in one request, which bounds the directories known at each level.
const ENTRIES: usize = 256;
/// Names removed at once.
const AT_ONCE: usize = 16;
/// How often a directory is read again from its start, because it is not empty at its end: other
/// programs add to it, or its files are open.
const AGAIN: u32 = 3;

/// A directory to remove.
struct Level {
    parent: FileId,
    name: Vec<u8>,
    dir: FileId,
    cookie: u64,
    met: MetCookies,
    eof: bool,
    again: u32,
}

impl Level {
    fn new(parent: FileId, name: Vec<u8>, dir: FileId) -> Self {
        let (cookie, met) = (0, MetCookies::default());
        Self { parent, name, dir, cookie, met, eof: false, again: 0 }
    }
}

impl Export {
    /// Removes a directory with everything in it; a symbolic link itself, not what it leads to. A
    /// failure leaves the rest in place; EBUSY if another program puts another directory where one of the tree was. The
    /// time limit is for each request.
    pub async fn remove_dir_all(&self, path: impl AsRef<Path>) -> io::Result<()> {
        let path = path.as_ref();
        let asked = Asked::new("remove directory", path);
        let found = self.call(asked, resolve(&self.nfs, path, Links::Name)).await?;
        let top = self.call(asked, async {
            let entry = found.entry(Error::Invalid)?;
            let attr = found.attr().ok_or(Error::NotFound)?;
            match attr.kind {
                FileKind::Directory => {
                    Ok(Some(Level::new(entry.dir, entry.name.to_vec(), attr.id)))
                }
                FileKind::Symlink if !found.slash => {
                    self.nfs.unlink(&Caller::Own, entry).await.map(|()| None)
                }
                _ => Err(Error::NotDirectory),
            }
        });
        let mut levels: Vec<Level> = top.await?.into_iter().collect();
        while let Some(level) = levels.last_mut() {
            if !level.eof {
                let below = self.call(asked, self.remove_some(level)).await?;
                levels.extend(below);
            } else if self.call(asked, self.remove_level(level)).await? {
                levels.pop();
            }
        }
        Ok(())
    }

    /// Removes the files among the next entries, and returns the directories.
    async fn remove_some(&self, level: &mut Level) -> Result<Vec<Level>> {
        let (dir, cookie) = (level.dir, level.cookie);
        let request = ReaddirRequest { dir, cookie, max_entries: ENTRIES, with_attr: true };
        let at = level.parent.entry(&level.name);
        let (found, page) =
            join(self.nfs.lookup(&Caller::Own, at), self.nfs.readdir(&Caller::Own, request)).await;
        match found {
            Ok(attr) if attr.id == dir => {}
            // Another directory has its name.
            Ok(_) => return Err(Error::Busy),
            Err(Error::NotFound) => {
                level.eof = true;
                return Ok(Vec::new());
            }
            Err(error) => return Err(error),
        }
        let page = page?;
        level.eof = page.eof;
        if let Some(last) = page.entries.last() {
            // What is removed now is listed no more, and a server that goes round would be asked forever.
            if !page.eof && level.met.again(last.cookie) {
                return Err(Error::Io);
            }
            level.cookie = last.cookie;
        }
        let below = stream::iter(page.entries)
            .map(|entry| self.remove_unless_directory(dir, entry))
            .buffer_unordered(AT_ONCE)
            .try_collect::<Vec<_>>()
            .await?;
        Ok(below.into_iter().flatten().collect())
    }

    async fn remove_unless_directory(&self, dir: FileId, entry: DirEntry) -> Result<Option<Level>> {
        let at = dir.entry(&entry.name);
        let attr = match entry.attr {
            Some(attr) => Ok(attr),
            None => self.nfs.lookup(&Caller::Own, at).await,
        };
        let removed = match attr {
            Ok(attr) if attr.kind == FileKind::Directory => {
                return Ok(Some(Level::new(dir, entry.name, attr.id)));
            }
            Ok(_) => self.nfs.unlink(&Caller::Own, at).await,
            Err(error) => Err(error),
        };
        match removed {
            Ok(()) | Err(Error::NotFound) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Removes a directory that was emptied; returns whether it is gone.
    async fn remove_level(&self, level: &mut Level) -> Result<bool> {
        match self.nfs.rmdir(&Caller::Own, level.parent.entry(&level.name)).await {
            Ok(()) | Err(Error::NotFound) => Ok(true),
            Err(Error::NotEmpty | Error::Exists) if level.again < AGAIN => {
                (level.cookie, level.met, level.eof) = (0, MetCookies::default(), false);
                level.again += 1;
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }
}
