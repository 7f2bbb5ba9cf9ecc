//! Where a path leads.
//!
//! 1. A path is resolved as by Linux on a mount of the export, with the export's root as the directory
//!    that it starts from, whether or not it begins with a slash: symbolic links are followed, at most
//!    [`MOST_LINKS`] of them; `..` is the directory that holds the one reached; and a slash at the end
//!    demands a directory.
//! 2. A path does not leave the export: an absolute target of a symbolic link, which means another file
//!    on each machine, and `..` at the root fail with EXDEV, as with `RESOLVE_BENEATH` of openat2(2).
//! 3. Components in a row are looked up in one request, where the version permits it.

use crate::fs::NfsFs;
use std::collections::VecDeque;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use weir_vfs::{Attr, Caller, EntryName, Error, FileId, FileKind, FileSystem, Result};

/// Most symbolic links followed to one file, as in Linux.
const MOST_LINKS: usize = 40;

/// What happens to a symbolic link at the end of a path.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Links {
    /// It is followed.
    Follow,
    /// It is followed if a slash comes after it.
    Stay,
    /// It is never followed: the name is to be created, removed or renamed.
    Name,
}

/// The end of a path.
pub(super) struct Found {
    /// The directories that lead to it, from the root of the export.
    dirs: Vec<(Vec<u8>, FileId)>,
    /// Its name in the last of them; `None` if the path ends with `.`, `..` or at the root, and means
    /// that directory itself.
    name: Option<Vec<u8>>,
    /// The file with that name.
    attr: Option<Attr>,
    /// Whether it has to be a directory.
    pub(super) slash: bool,
}

impl Found {
    fn dir(&self) -> FileId {
        // The root is never removed from the list.
        self.dirs.last().map_or(FileId { ino: 0, generation: 0 }, |(_, id)| *id)
    }

    /// The file that exists there.
    ///
    /// # Errors [`Error::NotFound`]
    pub(super) async fn existing(&self, nfs: &NfsFs) -> Result<Attr> {
        match (&self.attr, &self.name) {
            (Some(attr), _) => Ok(attr.clone()),
            (None, Some(_)) => Err(Error::NotFound),
            (None, None) => nfs.getattr(self.dir()).await,
        }
    }

    /// The file with the name at the end of the path, if there is one.
    pub(super) fn attr(&self) -> Option<&Attr> {
        self.attr.as_ref()
    }

    /// The name at the end of the path.
    ///
    /// # Errors
    /// `nameless`, if there is none.
    pub(super) fn entry(&self, nameless: Error) -> Result<EntryName<'_>> {
        let name = self.name.as_deref().ok_or(nameless)?;
        Ok(self.dir().entry(name))
    }

    /// A name for a new file that is no directory.
    ///
    /// # Errors
    /// It exists, or a slash comes after it.
    pub(super) fn vacant(&self) -> Result<EntryName<'_>> {
        match (self.attr.is_some(), self.slash) {
            (true, _) => Err(Error::Exists),
            (false, true) => Err(Error::NotFound),
            (false, false) => self.entry(Error::Exists),
        }
    }

    /// The path from the export's root, without links.
    pub(super) fn real_path(&self) -> PathBuf {
        let mut path = PathBuf::from("/");
        for name in self.dirs.iter().skip(1).map(|(name, _)| name).chain(&self.name) {
            path.push(OsString::from_vec(name.clone()));
        }
        path
    }
}

/// Resolves a path. The last component need not exist.
pub(super) async fn resolve(nfs: &NfsFs, path: &Path, links: Links) -> Result<Found> {
    let path = path.as_os_str().as_bytes();
    if path.is_empty() {
        return Err(Error::NotFound);
    }
    let mut slash = path.ends_with(b"/");
    let mut ahead: VecDeque<Vec<u8>> = components(path).collect();
    let mut dirs = vec![(Vec::new(), nfs.root())];
    let mut followed = 0;
    'walk: loop {
        match ahead.front().map(Vec::as_slice) {
            None => return Ok(Found { dirs, name: None, attr: None, slash }),
            Some(b".") => {
                ahead.pop_front();
                continue;
            }
            Some(b"..") if dirs.len() == 1 => return Err(Error::CrossDevice),
            Some(b"..") => {
                ahead.pop_front();
                dirs.pop();
                continue;
            }
            Some(_) => {}
        }
        let run: Vec<Vec<u8>> =
            ahead.iter().take_while(|name| **name != b"." && **name != b"..").cloned().collect();
        let dir = dirs.last().map_or(nfs.root(), |(_, id)| *id);
        let (found, failure) = nfs.lookup_path(dir, &run).await?;
        let is_complete = found.len() == run.len();
        for (name, attr) in run.into_iter().zip(found) {
            ahead.pop_front();
            let is_last = ahead.is_empty();
            let is_followed = !is_last || links == Links::Follow || slash && links == Links::Stay;
            match attr.kind {
                FileKind::Symlink if is_followed => {
                    followed += 1;
                    if followed > MOST_LINKS {
                        return Err(Error::Loop);
                    }
                    let target = nfs.readlink(&Caller::Own, attr.id).await?;
                    slash |= is_last && target.ends_with(b"/");
                    enter(&target, &mut ahead)?;
                    continue 'walk;
                }
                FileKind::Directory if !is_last => dirs.push((name, attr.id)),
                FileKind::Directory => {
                    return Ok(Found { dirs, name: Some(name), attr: Some(attr), slash });
                }
                _ if is_last && (!slash || links == Links::Name) => {
                    return Ok(Found { dirs, name: Some(name), attr: Some(attr), slash });
                }
                _ => return Err(Error::NotDirectory),
            }
        }
        if is_complete {
            continue;
        }
        match failure {
            Some(Error::NotFound) if ahead.len() == 1 => {
                return Ok(Found { dirs, name: ahead.pop_front(), attr: None, slash });
            }
            failure => return Err(failure.unwrap_or(Error::Io)),
        }
    }
}

/// Continues a path with the target of a symbolic link.
fn enter(target: &[u8], ahead: &mut VecDeque<Vec<u8>>) -> Result<()> {
    match target.first() {
        None => Err(Error::NotFound),
        Some(b'/') => Err(Error::CrossDevice),
        Some(_) => {
            for name in components(target).rev() {
                ahead.push_front(name);
            }
            Ok(())
        }
    }
}

fn components(path: &[u8]) -> impl DoubleEndedIterator<Item = Vec<u8>> {
    path.split(|&byte| byte == b'/').filter(|name| !name.is_empty()).map(<[u8]>::to_vec)
}
