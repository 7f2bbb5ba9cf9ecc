//! Removal of files and trees, with many calls in flight.
//!
//! ```text
//!   Unlink(file) ------------------------------> removed, or stays
//!   List(directory) -> Listed -> List or Unlink, for each entry
//!                                    '--- last entry is removed ---> Rmdir(directory) -> removed
//! ```
//!
//! 1. A directory is removed after the last of its entries. If an entry stays, so does the directory,
//!    which is not reported by itself.
//! 2. Nothing is removed from a directory that is no longer at its place: another program may have moved it out of the
//!    tree since its name was listed. It is looked up beside its listing, which takes no further time.
//! 3. Files go before further directories are listed: what is in memory is the content of the directories
//!    on one way down, and of a few that are being listed.

use crate::failure::{Asked, Failure, Result};
use crate::mounts::Place;
use futures_util::StreamExt;
use futures_util::future::join;
use futures_util::stream::FuturesUnordered;
use std::collections::HashMap;
use weir_vfs::{Attr, Caller, Error, FileId, FileKind};

/// What happened to a file.
pub enum Event<'a> {
    /// It was removed.
    Removed(&'a Place),
    /// It could not be removed.
    Failed(Failure),
}

/// Removes a file or tree, with many calls in flight. Calls `report` for each file that it has removed, or
/// cannot remove; returns whether none is left.
pub async fn remove(place: Place, attr: Attr, report: impl FnMut(Event<'_>)) -> bool {
    remove_known(place, attr, |_, _| true, report).await
}

/// Removes those files of a tree that are `known` by their places and their attributes as listed now; others stay
/// and are reported, and so do the directories above them. Otherwise like [`remove`].
pub async fn remove_known(
    place: Place,
    attr: Attr,
    known: impl Fn(&Place, &Attr) -> bool,
    report: impl FnMut(Event<'_>),
) -> bool {
    let mut removal = Removal {
        report,
        known,
        calls: Vec::new(),
        lists: Vec::new(),
        listed: 0,
        directories: HashMap::new(),
        next: 0,
        all: true,
    };
    removal.found(place, &attr, None);
    let mut steps = FuturesUnordered::new();
    loop {
        while steps.len() < AT_ONCE
            && let Some(step) = removal.next_step()
        {
            steps.push(step.run());
        }
        match steps.next().await {
            Some(outcome) => removal.take(outcome),
            None => return removal.all,
        }
    }
}

/// Calls in flight at a time.
const AT_ONCE: usize = 64;
/// Directories that are listed at a time, since a listing is held in memory whole.
const LISTED_AT_ONCE: usize = 4;

/// The number of a directory whose content is being removed.
type DirNumber = usize;

/// A tree that is being removed.
struct Removal<K, R> {
    report: R,
    /// Whether a file at this place with these attributes may go.
    known: K,
    /// Names to remove; they go first.
    calls: Vec<Step>,
    /// Directories to list, those found last first.
    lists: Vec<Step>,
    /// Directories that are being listed.
    listed: usize,
    /// Directories whose entries are being removed.
    directories: HashMap<DirNumber, Directory>,
    next: DirNumber,
    /// Whether everything so far was removed.
    all: bool,
}

struct Directory {
    place: Place,
    above: Option<DirNumber>,
    /// Entries that are not removed yet.
    entries: usize,
    /// An entry stays, and so does the directory.
    kept: bool,
}

/// One call, or the listing of a directory.
enum Step {
    List {
        place: Place,
        id: FileId,
        above: Option<DirNumber>,
    },
    Unlink {
        place: Place,
        above: Option<DirNumber>,
    },
    /// Removes a directory whose entries are gone.
    Rmdir {
        place: Place,
        above: Option<DirNumber>,
    },
}

/// The result of a step.
enum Outcome {
    Listed {
        place: Place,
        above: Option<DirNumber>,
        children: Vec<(Place, Attr)>,
    },
    /// Of a directory that cannot be listed; it is removed if it is empty.
    Unlisted {
        place: Place,
        above: Option<DirNumber>,
        failure: Option<Failure>,
    },
    Removed {
        place: Place,
        above: Option<DirNumber>,
        failure: Option<Failure>,
    },
}

impl Step {
    async fn run(self) -> Outcome {
        let (place, above, removed) = match self {
            Self::List { place, id, above } => return list(place, id, above).await,
            Self::Unlink { place, above } => {
                let name = place.name.as_deref().unwrap_or_default();
                let removed = place.fs.unlink(&Caller::Own, place.dir.entry(name)).await;
                (place, above, removed)
            }
            Self::Rmdir { place, above } => {
                let removed = rmdir(&place).await;
                (place, above, removed)
            }
        };
        let failure = match removed {
            // Another process removed it meanwhile.
            Ok(()) | Err(Error::NotFound) => None,
            Err(error) => Some(Failure::of(format!("remove {}", place.shown), error)),
        };
        Outcome::Removed { place, above, failure }
    }
}

/// Lists a directory, unless it is no longer there.
async fn list(place: Place, id: FileId, above: Option<DirNumber>) -> Outcome {
    let failure = match join(is_there(&place, id), place.children(id)).await {
        (Ok(true), Ok(children)) => return Outcome::Listed { place, above, children },
        (Ok(true), Err(failure)) => {
            let gone = matches!(rmdir(&place).await, Ok(()) | Err(Error::NotFound));
            (!gone).then_some(failure)
        }
        (Ok(false), _) => None,
        (Err(failure), _) => Some(failure),
    };
    Outcome::Unlisted { place, above, failure }
}

/// Whether the directory `id` is still at its place; false if nothing is there.
///
/// # Errors
/// Another file is there.
pub(crate) async fn is_there(place: &Place, id: FileId) -> Result<bool> {
    let found = match &place.name {
        Some(name) => {
            let at = place.dir.entry(name);
            place.with_directory(|| place.fs.lookup(&Caller::Own, at)).await
        }
        // A store's root stays where it is.
        None => place.found_again(id, || place.fs.getattr(id)).await,
    };
    let asked = || format!("remove {}", place.shown);
    match found {
        Ok(attr) if attr.id == id => Ok(true),
        Ok(_) => {
            let failure = Failure::new(asked(), "another file has its name now");
            Err(failure.advice("it stays as it is"))
        }
        Err(Error::NotFound) => Ok(false),
        Err(error) => Err(error).asked(asked),
    }
}

async fn rmdir(place: &Place) -> weir_vfs::Result<()> {
    let name = place.name.as_deref().unwrap_or_default();
    place.fs.rmdir(&Caller::Own, place.dir.entry(name)).await
}

impl<K: Fn(&Place, &Attr) -> bool, R: FnMut(Event<'_>)> Removal<K, R> {
    fn found(&mut self, place: Place, attr: &Attr, above: Option<DirNumber>) {
        if !(self.known)(&place, attr) {
            let failure =
                Failure::new(format!("remove {}", place.shown), "it was changed meanwhile");
            self.removed(&place, above, Some(failure.advice("it stays as it is")));
            return;
        }
        match attr.kind {
            FileKind::Directory => self.lists.push(Step::List { place, id: attr.id, above }),
            _ => self.calls.push(Step::Unlink { place, above }),
        }
    }

    fn next_step(&mut self) -> Option<Step> {
        if let Some(call) = self.calls.pop() {
            return Some(call);
        }
        if self.listed == LISTED_AT_ONCE {
            return None;
        }
        let list = self.lists.pop()?;
        self.listed += 1;
        Some(list)
    }

    fn take(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Listed { place, above, children } => {
                self.listed -= 1;
                if children.is_empty() {
                    self.calls.push(Step::Rmdir { place, above });
                    return;
                }
                let number = self.next;
                self.next += 1;
                let directory = Directory { place, above, entries: children.len(), kept: false };
                self.directories.insert(number, directory);
                for (place, attr) in children {
                    self.found(Place { attr: None, ..place }, &attr, Some(number));
                }
            }
            Outcome::Unlisted { place, above, failure } => {
                self.listed -= 1;
                self.removed(&place, above, failure);
            }
            Outcome::Removed { place, above, failure } => self.removed(&place, above, failure),
        }
    }

    fn removed(&mut self, place: &Place, above: Option<DirNumber>, failure: Option<Failure>) {
        let kept = failure.is_some();
        self.all &= !kept;
        (self.report)(failure.map_or(Event::Removed(place), Event::Failed));
        self.done(above, kept);
    }

    /// An entry of a directory is removed, or stays. A directory that stays is an entry that stays.
    fn done(&mut self, mut above: Option<DirNumber>, kept: bool) {
        while let Some(number) = above
            && let Some(directory) = self.directories.get_mut(&number)
        {
            directory.entries -= 1;
            directory.kept |= kept;
            if directory.entries > 0 {
                return;
            }
            let Some(Directory { place, above: next, kept, .. }) = self.directories.remove(&number)
            else {
                return;
            };
            if !kept {
                self.calls.push(Step::Rmdir { place, above: next });
                return;
            }
            above = next;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::origin::Origin;
    use std::sync::Arc;
    use weir_pagecache::{Cache, Config};
    use weir_stores::memory::MemoryFs;
    use weir_stores::testing::Moving;
    use weir_vfs::{CreateMode, FileSystem, SetAttr};

    const ME: &Caller = &Caller::Own;

    #[tokio::test]
    async fn a_directory_that_is_moved_out_of_the_tree_keeps_its_files() {
        for replaces in [false, true] {
            let (store, set) = (MemoryFs::new(), SetAttr::default());
            let make = async |dir: FileId, name: &[u8]| {
                store.mkdir(ME, dir.entry(name).with(&set)).await.unwrap().id
            };
            let (top, kept) = (make(store.root(), b"top").await, make(store.root(), b"kept").await);
            let (a, b) = (make(top, b"a").await, make(top, b"b").await);
            for dir in [a, b] {
                let new = dir.entry(b"f").with(&set);
                store.create(ME, new, CreateMode::MustBeNew).await.unwrap();
            }
            let moving =
                Moving::new(store.clone(), top.entry(b"b"), kept.entry(b"b"), (vec![top], 0));
            let moving = moving.replacing(replaces);
            let cache = Cache::new(Config { budget_bytes: 16 << 20, ..Config::default() }).unwrap();
            let fs = cache.mount(Arc::new(moving));
            let (dir, name) = (fs.root(), Some(b"top".to_vec()));
            let attr = fs.lookup(ME, dir.entry(b"top")).await.unwrap();
            let origin = Origin::default();
            let place = Place { fs, dir, name, attr: None, shown: "top".into(), origin };
            let mut failures = Vec::new();
            let report = |event: Event<'_>| {
                if let Event::Failed(failure) = event {
                    failures.push(failure.to_string());
                }
            };
            assert_eq!(remove(place, attr, report).await, !replaces, "{failures:?}");
            assert!(store.lookup(ME, b.entry(b"f")).await.is_ok(), "the only copy is lost");
            assert!(store.lookup(ME, a.entry(b"f")).await.is_err());
            assert_eq!(store.lookup(ME, dir.entry(b"top")).await.is_ok(), replaces);
            assert_eq!(failures.len(), usize::from(replaces), "{failures:?}");
            assert!(
                failures.iter().all(|said| said.contains("top/b: another file")),
                "{failures:?}"
            );
        }
    }
}
