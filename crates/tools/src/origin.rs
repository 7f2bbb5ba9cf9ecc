//! Where a place comes from: the location where a walk began, and the directories below it.

use crate::chain::Chain;
use crate::location::Location;
use crate::mounts::Place;
use std::sync::Arc;
use weir_vfs::{Attr, Caller, Error, FileId};

/// How the directory of a [`Place`] was found.
#[derive(Clone, Default)]
pub struct Origin {
    /// The location of the topmost place.
    top: Option<Arc<Location>>,
    /// The directories from that of the place up to the topmost place.
    above: Chain<Directory>,
}

/// A directory, and where it was found.
struct Directory {
    dir: FileId,
    /// `None` for a store's root.
    name: Option<Vec<u8>>,
    id: FileId,
}

impl Origin {
    /// The origin of a location itself.
    pub(crate) fn to(location: &Location) -> Self {
        Self { top: Some(Arc::new(location.clone())), above: Chain::default() }
    }
}

/// A directory, for the places in it.
pub(crate) struct Inside<'a> {
    directory: &'a Place,
    id: FileId,
    origin: Origin,
}

impl Inside<'_> {
    /// The place called `name` in the directory.
    pub(crate) fn child(&self, name: &[u8], attr: Option<Attr>) -> Place {
        Place {
            fs: self.directory.fs.clone(),
            dir: self.id,
            name: Some(name.to_vec()),
            attr,
            shown: self.directory.shown_below(name),
            origin: self.origin.clone(),
        }
    }
}

/// A name in a directory, and the file that was found there.
type Sought<'a> = (FileId, &'a [u8], FileId);

impl Place {
    /// The directory here, whose identity is `id`.
    pub(crate) fn inside(&self, id: FileId) -> Inside<'_> {
        let here = Directory { dir: self.dir, name: self.name.clone(), id };
        let origin = Origin { top: self.origin.top.clone(), above: self.origin.above.with(here) };
        Inside { directory: self, id, origin }
    }

    /// The place called `name` in the directory at this place, whose identity is `id`.
    pub fn child(&self, id: FileId, name: &[u8], attr: Option<Attr>) -> Self {
        self.inside(id).child(name, attr)
    }

    /// The exact bytes of the path or URL of the file here; as shown, if the walk did not begin at a location.
    pub fn bytes(&self) -> Vec<u8> {
        self.location().map_or_else(|| self.shown.clone().into_bytes(), |at| at.bytes())
    }

    /// The location of the file here, if the walk began at one.
    pub(crate) fn location(&self) -> Option<Location> {
        let mut names = Vec::new();
        let mut name = &self.name;
        for directory in self.origin.above.iter() {
            names.push(name.clone()?);
            name = &directory.name;
        }
        names.reverse();
        self.origin.top.as_ref().map(|top| top.below(&names))
    }

    /// Runs `work` on the file here, whose identity is `id`. If the store has evicted the identity,
    /// as the NFS client does with long unused files when it knows a million others, looks the file
    /// up again by name, and the directories above it if necessary, once.
    pub async fn found_again<T, F>(&self, id: FileId, work: impl Fn() -> F) -> weir_vfs::Result<T>
    where
        F: Future<Output = weir_vfs::Result<T>>,
    {
        let outcome = work().await;
        match outcome {
            Err(Error::Stale) if self.find_again(id).await => work().await,
            outcome => outcome,
        }
    }

    /// The target of the symbolic link here, whose identity is `id`.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn link_target(&self, id: FileId) -> weir_vfs::Result<Vec<u8>> {
        self.found_again(id, || self.fs.readlink(&Caller::Own, id)).await
    }

    /// Runs `work` on the file here, whose identity is `id`, and its copy `copy` at `to`. Looks both up again as
    /// [`found_again`](Self::found_again) does.
    pub(crate) async fn both_found_again<T, F>(
        &self,
        id: FileId,
        (to, copy): (&Self, FileId),
        work: impl Fn() -> F,
    ) -> weir_vfs::Result<T>
    where
        F: Future<Output = weir_vfs::Result<T>>,
    {
        to.found_again(copy, || self.found_again(id, &work)).await
    }

    /// Runs `work` on a name in the directory of this place. Looks the directory up again as
    /// [`found_again`](Self::found_again) does.
    pub async fn with_directory<T, F>(&self, work: impl Fn() -> F) -> weir_vfs::Result<T>
    where
        F: Future<Output = weir_vfs::Result<T>>,
    {
        let outcome = work().await;
        match outcome {
            Err(Error::Stale) if self.find_directory_again().await => work().await,
            outcome => outcome,
        }
    }

    /// Looks up the file here, whose identity is `id`, again. Returns whether it is still the same.
    pub(crate) async fn find_again(&self, id: FileId) -> bool {
        match &self.name {
            Some(name) => self.look_up(Some((self.dir, name, id))).await,
            None => false,
        }
    }

    /// The same for the directory of this place.
    pub(crate) async fn find_directory_again(&self) -> bool {
        self.look_up(None).await
    }

    /// Looks up `last`, or the directory of this place: from the innermost directory that the store
    /// still knows. Stores never evict their root.
    async fn look_up(&self, last: Option<Sought<'_>>) -> bool {
        let mut above = self.origin.above.iter();
        let mut up = || above.next().and_then(|d| Some((d.dir, d.name.as_deref()?, d.id)));
        let Some(first) = last.or_else(&mut up) else { return false };
        let mut ahead = vec![first];
        while let Some(&(dir, name, id)) = ahead.last() {
            match self.fs.lookup(&Caller::Own, dir.entry(name)).await {
                Ok(found) if found.id == id => drop(ahead.pop()),
                Err(Error::Stale) => match up() {
                    Some(directory) => ahead.push(directory),
                    None => return false,
                },
                _ => return false,
            }
        }
        true
    }
}
