//! Removal of files and trees, with many calls in flight.
//!
//! ```text
//!   Visit(file) ------------------------------> removed, or stays
//!   Visit(directory) -> Listed -> Visit(entry) for each
//!                                     '--- last entry is removed ---> Leave(directory) -> removed
//! ```
//!
//! 1. A directory is removed after the last of its entries. If an entry stays, so does the directory,
//!    which is not reported by itself.

use crate::failure::Failure;
use crate::mounts::Place;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use std::collections::HashMap;
use weir_vfs::{Attr, Caller, Error, FileKind};

/// Removes a file or tree, with many calls in flight. Calls `report` for each file that it cannot remove, and
/// removes all others; returns whether none is left.
pub async fn remove(place: Place, attr: Attr, report: impl FnMut(Failure)) -> bool {
    let mut removal =
        Removal { report, ahead: Vec::new(), directories: HashMap::new(), next: 0, all: true };
    removal.ahead.push(Step::Visit { place, attr, above: None });
    let mut steps = FuturesUnordered::new();
    loop {
        while steps.len() < AT_ONCE
            && let Some(step) = removal.ahead.pop()
        {
            steps.push(step.run());
        }
        match steps.next().await {
            Some(outcome) => removal.take(outcome),
            None => return removal.all,
        }
    }
}

/// Most calls in flight. The last step found runs first, so that the list of pending steps is no longer
/// than the directories on one path downwards together.
const AT_ONCE: usize = 64;

/// The number of a directory whose content is being removed.
type DirNumber = usize;

/// A tree that is being removed.
struct Removal<R> {
    report: R,
    ahead: Vec<Step>,
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
    /// Remove a file, or list a directory.
    Visit { place: Place, attr: Attr, above: Option<DirNumber> },
    /// Remove a directory whose entries are gone.
    Leave { place: Place, above: Option<DirNumber> },
}

/// The result of a step.
enum Outcome {
    Listed { place: Place, above: Option<DirNumber>, children: Vec<(Place, Attr)> },
    Removed { above: Option<DirNumber> },
    Stays { above: Option<DirNumber>, failure: Failure },
}

impl Step {
    async fn run(self) -> Outcome {
        let (place, above, removed) = match self {
            Self::Visit { place, attr, above } if attr.kind == FileKind::Directory => {
                match place.children(attr.id).await {
                    Ok(children) => return Outcome::Listed { place, above, children },
                    // An unreadable directory can still be removed if it is empty.
                    Err(failure) => match rmdir(&place).await {
                        Ok(()) | Err(Error::NotFound) => return Outcome::Removed { above },
                        Err(_) => return Outcome::Stays { above, failure },
                    },
                }
            }
            Self::Visit { place, above, .. } => {
                let name = place.name.as_deref().unwrap_or_default();
                let removed = place.fs.unlink(&Caller::Own, place.dir, name).await;
                (place, above, removed)
            }
            Self::Leave { place, above } => {
                let removed = rmdir(&place).await;
                (place, above, removed)
            }
        };
        match removed {
            // Another process removed it meanwhile.
            Ok(()) | Err(Error::NotFound) => Outcome::Removed { above },
            Err(error) => {
                let failure = Failure::of(format!("remove {}", place.shown), error);
                Outcome::Stays { above, failure }
            }
        }
    }
}

async fn rmdir(place: &Place) -> weir_vfs::Result<()> {
    let name = place.name.as_deref().unwrap_or_default();
    place.fs.rmdir(&Caller::Own, place.dir, name).await
}

impl<R: FnMut(Failure)> Removal<R> {
    fn take(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Listed { place, above, children } if children.is_empty() => {
                self.ahead.push(Step::Leave { place, above });
            }
            Outcome::Listed { place, above, children } => {
                let number = self.next;
                self.next += 1;
                let directory = Directory { place, above, entries: children.len(), kept: false };
                self.directories.insert(number, directory);
                let above = Some(number);
                let visit = |(place, attr)| Step::Visit { place, attr, above };
                self.ahead.extend(children.into_iter().map(visit));
            }
            Outcome::Removed { above } => self.done(above, false),
            Outcome::Stays { above, failure } => {
                (self.report)(failure);
                self.all = false;
                self.done(above, true);
            }
        }
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
                self.ahead.push(Step::Leave { place, above: next });
                return;
            }
            above = next;
        }
    }
}
