//! Finds the files that a manifest names.

use crate::beyond::may_be_mount_point;
use crate::failure::{Asked, Failure, Result};
use crate::location::Location;
use crate::mounts::{Links, Mounts, Place};
use crate::text::shown;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use weir_client::NfsUrl;
use weir_vfs::{Attr, Caller, Error, FileKind};

/// Finds files by name, and remembers the directories on the way to the last one.
pub(super) struct Finder<'a> {
    mounts: &'a mut Mounts,
    /// The directory that all names are relative to, if one was given.
    root: Option<&'a Location>,
    /// The directory that the last name was relative to.
    base: Option<(Location, Place)>,
    /// The directories below it.
    way: Vec<(Vec<u8>, Place)>,
    last_url: Option<NfsUrl>,
}

impl<'a> Finder<'a> {
    pub(super) fn new(mounts: &'a mut Mounts, root: Option<&'a Location>) -> Self {
        Self { mounts, root, base: None, way: Vec::new(), last_url: None }
    }

    /// The file of this name; `None` if it does not exist. Symbolic links are followed.
    pub(super) async fn find(&mut self, name: &[u8]) -> Result<Option<(Place, Attr)>> {
        let place = match (self.root, self.located(name)?) {
            (None, location @ Location::Nfs(_)) => self.find_url(location).await,
            (_, location) => self.find_below(name, &location).await,
        };
        Ok(place?.and_then(|place| place.attr.clone().map(|attr| (place, attr))))
    }

    /// What a name stands for.
    fn located(&self, name: &[u8]) -> Result<Location> {
        match self.root {
            Some(root) => below(root, name),
            None => Location::parse(OsString::from_vec(name.to_vec()))
                .map_err(|error| Failure::new(format!("find {}", shown(name)), error.to_string())),
        }
    }

    /// Goes to the directory that names are relative to.
    pub(super) async fn enter(&mut self, base: &Location) -> Result<()> {
        if self.base.as_ref().is_some_and(|(last, _)| last == base) {
            return Ok(());
        }
        self.way.clear();
        let place = self.mounts.place(base, Links::Follow).await?;
        if place.existing("find")?.kind != FileKind::Directory {
            return Err(Error::NotDirectory).asked(|| format!("find files in {base}"));
        }
        self.base = Some((base.clone(), place));
        Ok(())
    }

    /// A server's file, below a directory that earlier names share.
    async fn find_url(&mut self, location: Location) -> Result<Option<Place>> {
        if let Location::Nfs(url) = &location {
            let last = self.last_url.replace(url.clone());
            if let Some(last) = last {
                self.mounts.share(&[&Location::Nfs(last), &location]).await;
            }
        }
        let found = self.mounts.place(&location, Links::Follow).await;
        absent(found)
    }

    /// A file below the root, or of this machine.
    async fn find_below(&mut self, name: &[u8], location: &Location) -> Result<Option<Place>> {
        let base = match self.root {
            Some(root) => root.clone(),
            None if name.starts_with(b"/") => Location::Local("/".into()),
            None => Location::Local(".".into()),
        };
        self.enter(&base).await?;
        let mut walked = self.walk(name).await;
        if walked.as_ref().is_err_and(|error| *error == Error::Stale) {
            // A directory was replaced meanwhile.
            self.way.clear();
            walked = self.walk(name).await;
        }
        match walked.asked(|| format!("find {location}"))? {
            Walked::Here(place) => Ok(Some(*place)),
            Walked::Nothing => Ok(None),
            Walked::Link => absent(self.mounts.place(location, Links::Follow).await),
        }
    }

    /// Looks up the components of a name, the directories once for all files in them.
    async fn walk(&mut self, name: &[u8]) -> weir_vfs::Result<Walked> {
        let Some((_, base)) = &self.base else { return Err(Error::NotFound) };
        let mut parts: Vec<&[u8]> = parts(name).collect();
        let Some(last) = parts.pop() else { return Ok(Walked::Link) };
        let known = self.way.iter().zip(&parts).take_while(|((name, _), part)| name == *part);
        let known = known.count();
        self.way.truncate(known);
        for part in &parts[known..] {
            let above = self.way.last().map_or(base, |(_, place)| place);
            let place = match child(above, part).await {
                Err(error) if may_be_mount_point(error) => return Ok(Walked::Link),
                Err(error) => return Err(error),
                Ok(place) => place,
            };
            let place = match place {
                None => return Ok(Walked::Nothing),
                Some(place) => place,
            };
            match place.attr.as_ref().map(|attr| attr.kind) {
                Some(FileKind::Directory) if *part != b".." => {
                    self.way.push((part.to_vec(), place));
                }
                Some(FileKind::Directory | FileKind::Symlink) => return Ok(Walked::Link),
                _ => return Err(Error::NotDirectory),
            }
        }
        let above = self.way.last().map_or(base, |(_, place)| place);
        Ok(match child(above, last).await {
            Err(error) if may_be_mount_point(error) => Walked::Link,
            Err(error) => return Err(error),
            Ok(None) => Walked::Nothing,
            Ok(Some(place)) if place.attr.as_ref().is_some_and(|a| a.kind == FileKind::Symlink) => {
                Walked::Link
            }
            Ok(Some(place)) => Walked::Here(Box::new(place)),
        })
    }
}

/// The location of a file below `root`.
///
/// # Errors
/// The name is absolute, or leads out of `root`.
pub fn below(root: &Location, name: &[u8]) -> Result<Location> {
    let refused = |failed: &str| {
        let failure = Failure::new(format!("find {}", shown(name)), failed);
        Err(failure.advice("leave out --root for names that are not relative to one directory"))
    };
    if name.starts_with(b"/") || name.starts_with(b"nfs://") {
        return refused("the name is not relative to the directory of --root");
    }
    if parts(name).any(|part| part == b"..") {
        return refused("the name leads out of the directory of --root");
    }
    Ok(root.below(&parts(name).map(<[u8]>::to_vec).collect::<Vec<_>>()))
}

/// Where the components of a name lead.
enum Walked {
    Here(Box<Place>),
    Nothing,
    /// Through a symbolic link or a parent directory, which takes a full search.
    Link,
}

fn parts(name: &[u8]) -> impl Iterator<Item = &[u8]> {
    name.split(|&byte| byte == b'/').filter(|part| !part.is_empty() && *part != b".")
}

async fn child(above: &Place, name: &[u8]) -> weir_vfs::Result<Option<Place>> {
    let Some(dir) = &above.attr else { return Ok(None) };
    if name == b".." {
        return Ok(Some(above.clone()));
    }
    match above.fs.lookup(&Caller::Own, dir.id.entry(name)).await {
        Ok(attr) => Ok(Some(above.child(dir.id, name, Some(attr)))),
        Err(Error::NotFound) => Ok(None),
        Err(error) => Err(error),
    }
}

/// `None` if a place does not exist.
fn absent(found: Result<Place>) -> Result<Option<Place>> {
    match found {
        Ok(place) => Ok(place.attr.is_some().then_some(place)),
        Err(failure) if failure.is_of(Error::NotFound) => Ok(None),
        Err(failure) => Err(failure),
    }
}
