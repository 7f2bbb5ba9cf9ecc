//! What lies beyond a store: the targets of symbolic links in a tree, and the file systems mounted
//! in it.
//!
//! 1. The number of stores stays bounded, however many links there are: one for each file system of
//!    this machine on the way from its root, and a server's as in [`mounts`](crate::mounts).

use crate::copy::source::is_same;
use crate::failure::{Asked, Failure, Result};
use crate::location::Location;
use crate::mounts::{Links, Mounts, Place};
use crate::origin::Origin;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use weir_vfs::{Attr, Caller, Error, FileId, FileKind};

/// An entry of a directory.
pub struct Child {
    /// Its name there.
    pub name: Vec<u8>,
    /// Where the file is: for a mount point, the root of what is mounted there.
    pub place: Place,
    /// Its attributes.
    pub attr: Attr,
}

/// Whether a failed look-up may be that of a mount point, which local stores do not enter.
pub(crate) fn may_be_mount_point(error: Error) -> bool {
    matches!(error, Error::CrossDevice | Error::AccessDenied)
}

impl Mounts {
    /// The file that the symbolic link or mount point at `place` stands for. It is shown as `place` is.
    ///
    /// # Errors
    /// There is none, or it cannot be accessed.
    pub(crate) async fn beyond(&mut self, place: &Place) -> Result<(Place, Attr)> {
        let find = || format!("find {}", place.shown);
        let Some(location) = place.location() else {
            return Err(Failure::new(find(), "it leads out of the tree"));
        };
        let led = match &location {
            Location::Local(path) => match path.canonicalize() {
                Ok(real) => match self.real_place(&real).await {
                    Some(place) => place,
                    // The topmost directories may be closed to this process.
                    None => self.place(&location, Links::Follow).await?,
                },
                Err(error) => return Err(error).asked(find),
            },
            Location::Nfs(_) => self.place(&location, Links::Follow).await?,
        };
        let led = Place { shown: place.shown.clone(), origin: Origin::to(&location), ..led };
        let attr = led.existing("find")?.clone();
        Ok((led, attr))
    }

    /// Whether a symbolic link at `location`, or what a link would say, leads to the file at `to`, so that a link in
    /// the place of the file would lead to itself. If the file has several names, it is left under the others.
    pub async fn is_target(&mut self, location: &Location, to: &Place) -> bool {
        let is_file =
            |there: &&Attr| !matches!(there.kind, FileKind::Symlink | FileKind::Directory);
        let Some(there) = to.attr.as_ref().filter(is_file) else { return false };
        // It may lead nowhere.
        let Ok(led) = self.place(location, Links::Follow).await else { return false };
        let is_other_name = there.nlink > 1
            && Arc::ptr_eq(led.fs.store(), to.fs.store())
            && (led.dir, &led.name) != (to.dir, &to.name);
        led.attr.as_ref().is_some_and(|led| is_same(led, there)) && !is_other_name
    }

    /// The file at an absolute path without links, from the store nearest above it.
    async fn real_place(&mut self, real: &Path) -> Option<Place> {
        let nearest = real.ancestors().find(|above| self.has_local(above));
        let mut root: PathBuf = nearest.unwrap_or(Path::new("/")).into();
        let mut place = self.local_root(&root).await.ok()?;
        for name in real.strip_prefix(&root).ok()?.to_path_buf().iter() {
            root.push(name);
            let dir = place.attr.as_ref()?.id;
            place = match place.fs.lookup(&Caller::Own, dir.entry(name.as_bytes())).await {
                Ok(attr) => place.child(dir, name.as_bytes(), Some(attr)),
                Err(error) if may_be_mount_point(error) => self.local_root(&root).await.ok()?,
                Err(_) => return None,
            };
        }
        Some(place)
    }

    /// The entries of the directory at a place, sorted by name, with mount points as what is mounted
    /// there; and the failures of entries that cannot be looked up.
    ///
    /// # Errors
    /// The directory cannot be listed.
    pub async fn children(
        &mut self,
        place: &Place,
        id: FileId,
    ) -> Result<(Vec<Child>, Vec<Failure>)> {
        children(place, id, Some(self)).await
    }
}

/// The same; without `mounts`, mount points are failures.
pub(crate) async fn children(
    place: &Place,
    id: FileId,
    mut mounts: Option<&mut Mounts>,
) -> Result<(Vec<Child>, Vec<Failure>)> {
    let (mut children, mut failures) = (Vec::new(), Vec::new());
    for (child, attr) in place.entries(id).await? {
        let name = child.name.clone().unwrap_or_default();
        let found = match (attr, &mut mounts) {
            (Ok(attr), _) => Ok((child, attr)),
            (Err(error), Some(mounts)) if may_be_mount_point(error) => mounts.beyond(&child).await,
            (Err(error), _) => Err(error).asked(|| format!("find {}", child.shown)),
        };
        match found {
            Ok((place, attr)) => children.push(Child { name, place, attr }),
            Err(failure) => failures.push(failure),
        }
    }
    Ok((children, failures))
}
