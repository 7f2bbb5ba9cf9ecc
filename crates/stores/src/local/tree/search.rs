//! The search for files that are not where they were last seen: through the whole tree, in steps of
//! some entries, by one thread.
//!
//! 1. Callers that ask for a file during its search are told to retry ([`Error::WouldBlock`]); only
//!    a search that began after the request, and went through the whole tree, reports the file as
//!    gone. A search that could not look everywhere, for lack of descriptors for example, reports
//!    none as gone.
//! 2. A walk holds one batch of names for each level above its position, and descriptors of the
//!    lowest [`OPEN_LEVELS`] levels only.
//! 3. The calling thread examines at most `search_entries` entries; a thread of the search
//!    continues.

use crate::local::tree::nodes::{Link, Seen};
use crate::local::tree::{Tree, stat};
use rustix::fs::{FileType, Mode, OFlags, Statx};
use std::collections::HashMap;
use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Weak};
use weir_vfs::{Error, FileId, FileKind, Result};

/// Names of a directory read at a time.
const BATCH: usize = 1024;
/// Levels of the tree that a walk holds open.
const OPEN_LEVELS: usize = 128;
/// Most files searched for at a time.
const MAX_WANTED: usize = 65_536;

/// The files searched for.
#[derive(Default)]
pub(in crate::local) struct Search {
    /// By inode number; and whether the current walk covers the whole tree for the file.
    wanted: HashMap<u64, Vec<Wanted>>,
    len: usize,
    /// A thread is walking.
    walking: bool,
}

#[derive(Clone, Copy)]
struct Wanted {
    id: FileId,
    since_begin: bool,
}

impl Search {
    fn add(&mut self, id: FileId) {
        let of_inode = self.wanted.entry(id.ino).or_default();
        if self.len < MAX_WANTED && of_inode.iter().all(|wanted| wanted.id != id) {
            of_inode.push(Wanted { id, since_begin: false });
            self.len += 1;
        }
    }

    fn found(&mut self, id: FileId) {
        if let Some(of_inode) = self.wanted.get_mut(&id.ino) {
            of_inode.retain(|wanted| wanted.id != id);
            if of_inode.is_empty() {
                self.wanted.remove(&id.ino);
            }
        }
        self.len = self.wanted.values().map(Vec::len).sum();
    }

    fn begin(&mut self) {
        self.wanted.values_mut().flatten().for_each(|wanted| wanted.since_begin = true);
    }

    /// Takes out the files that a complete walk did not find.
    fn end(&mut self) -> Vec<FileId> {
        let mut gone = Vec::new();
        self.wanted.retain(|_, of_inode| {
            gone.extend(
                of_inode.iter().filter(|wanted| wanted.since_begin).map(|wanted| wanted.id),
            );
            of_inode.retain(|wanted| !wanted.since_begin);
            !of_inode.is_empty()
        });
        self.len -= gone.len();
        gone
    }
}

/// A directory on the path to a walk's position.
struct Level {
    id: FileId,
    /// Its entry, if the table does not have it.
    seen: Option<Seen>,
    dir: Option<Arc<OwnedFd>>,
    /// Names to examine, and whether their inode number is wanted.
    batch: Vec<(CString, bool)>,
    position: u64,
    read_to_end: bool,
}

impl Level {
    fn new(id: FileId, dir: Arc<OwnedFd>, seen: Option<Seen>) -> Self {
        let dir = Some(dir);
        Self { id, seen, dir, batch: Vec::new(), position: 0, read_to_end: false }
    }
}

/// A walk through the tree, depth first.
struct Walk {
    levels: Vec<Level>,
    /// The walk could not look everywhere.
    missed: bool,
}

impl Walk {
    /// Continues for about this many entries; returns whether the walk has ended, or found all.
    fn step(&mut self, tree: &Tree, entries: usize) -> bool {
        let mut left = entries;
        while left > 0 {
            if tree.search.lock().len == 0 {
                return true;
            }
            let Some(level) = self.levels.last_mut() else { return true };
            let Some(dir) = level.dir.clone() else {
                self.levels.pop();
                continue;
            };
            match level.batch.pop() {
                Some((name, hit)) => self.look(tree, &dir, name, hit),
                None if level.read_to_end => self.ascend(&dir),
                None => {
                    let (count, missed) = level.fill(tree, &dir);
                    left = left.saturating_sub(count);
                    self.missed |= missed;
                }
            }
        }
        false
    }

    fn look(&mut self, tree: &Tree, dir: &OwnedFd, name: CString, hit: bool) {
        let Some(above) = self.levels.last().map(|level| level.id) else { return };
        let found = match tree.stat_name(dir.as_fd(), &name) {
            Ok(found) => found,
            Err(error) => {
                // It may have been renamed to a place that the walk has passed.
                self.missed |= hit || is_passing(error);
                return;
            }
        };
        // A walk of the whole tree does not enter all its directories.
        let (id, seen) = match tree.examine(above, dir.as_fd(), name.to_bytes(), &found) {
            Ok(identified) => identified,
            Err(error) => {
                self.missed |= is_passing(error);
                return;
            }
        };
        if hit
            && tree.search.lock().wanted.get(&id.ino).is_some_and(|w| w.iter().any(|w| w.id == id))
        {
            // The directories above, too: without them the file's place is useless.
            let way = self.levels.iter().filter_map(|level| level.seen.clone());
            tree.nodes.remember(way.chain(seen.clone()));
            tree.search.lock().found(id);
        }
        if crate::local::attr::kind_of(&found) != FileKind::Directory {
            return;
        }
        match tree.open_one(dir.as_fd(), &name, crate::local::tree::DIR_FLAGS) {
            Ok(below) => {
                self.levels.push(Level::new(id, Arc::new(below), seen));
                if let Some(far) = self.levels.len().checked_sub(OPEN_LEVELS)
                    && let Some(level) = self.levels.get_mut(far)
                {
                    level.dir = None;
                }
            }
            Err(error) => self.missed |= is_passing(std::io::Error::from(error).into()),
        }
    }

    /// Leaves a directory after its last entry.
    fn ascend(&mut self, dir: &OwnedFd) {
        self.levels.pop();
        let Some(level) = self.levels.last_mut() else { return };
        if level.dir.is_none() {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let above = rustix::fs::openat(dir, c"..", flags, Mode::empty());
            level.dir = above.ok().map(Arc::new).filter(|above| {
                stat(above.as_fd()).is_ok_and(|stat: Statx| stat.stx_ino == level.id.ino)
            });
            // Moved meanwhile: the walk may miss its entries; the next search will find them.
            self.missed |= level.dir.is_none();
        }
    }
}

impl Level {
    /// Reads the next names; returns their number, and whether there may be more that cannot be
    /// read now.
    fn fill(&mut self, tree: &Tree, dir: &OwnedFd) -> (usize, bool) {
        let mut count = 0;
        let (mut batch, mut position) = (Vec::new(), self.position);
        let read = tree.each_name(dir, self.position, |entry| {
            if count == BATCH {
                return false;
            }
            count += 1;
            position = entry.next;
            let hit = tree.search.lock().wanted.contains_key(&entry.ino);
            if hit || matches!(entry.kind, FileType::Directory | FileType::Unknown) {
                batch.push((entry.name.to_owned(), hit));
            }
            true
        });
        (self.batch, self.position) = (batch, position);
        // What cannot be read cannot be served either.
        let missed = read.as_ref().is_err_and(|error| is_passing(*error));
        self.read_to_end = read.unwrap_or(true);
        (count.max(1), missed)
    }
}

/// Whether an operation that failed with this error may work later.
fn is_passing(error: Error) -> bool {
    matches!(error, Error::TooManyOpen | Error::OutOfMemory | Error::WouldBlock)
}

impl Tree {
    /// Searches the tree for a file.
    ///
    /// # Errors
    /// [`Error::Stale`] if it is nowhere; [`Error::WouldBlock`] while the search continues.
    pub(in crate::local) fn search_for(&self, id: FileId) -> Result<(Link, Statx)> {
        {
            let mut search = self.search.lock();
            search.add(id);
            if std::mem::replace(&mut search.walking, true) {
                return Err(Error::WouldBlock);
            }
            search.begin();
        }
        let mut walk = self.walk();
        if walk.step(self, self.search_entries) {
            if !self.end_walk(&walk) {
                self.search_on(self.walk());
            }
        } else {
            self.search_on(walk);
        }
        if self.is_known_gone(id) {
            return Err(Error::Stale);
        }
        match self.nodes.place(id) {
            Some(place)
                if let Ok(found) = self.stat_place(&place)
                    && self.is(id, &found, &place) =>
            {
                Ok((place, found))
            }
            _ => Err(Error::WouldBlock),
        }
    }

    fn walk(&self) -> Walk {
        let levels = vec![Level::new(self.root_id, self.root.clone(), None)];
        Walk { levels, missed: false }
    }

    /// Notes the files that a complete walk did not find; returns whether no more are wanted. If
    /// the walk missed something, the next request for one of those files starts a new search.
    fn end_walk(&self, walk: &Walk) -> bool {
        let mut search = self.search.lock();
        let gone = search.end();
        search.begin();
        search.walking = search.len > 0;
        let done = !search.walking;
        drop(search);
        if !walk.missed {
            gone.into_iter().for_each(|id| self.note_gone(id));
        }
        done
    }

    /// Continues a walk on its own thread.
    fn search_on(&self, mut walk: Walk) {
        let weak = self.me.clone();
        let go_on = move || {
            loop {
                let Some(tree) = Weak::upgrade(&weak) else { return };
                if walk.step(&tree, tree.search_entries) {
                    if tree.end_walk(&walk) {
                        return;
                    }
                    walk = tree.walk();
                }
            }
        };
        let spawned = std::thread::Builder::new().name("weir-search".into()).spawn(go_on);
        if let Err(error) = spawned {
            // The next request starts anew.
            tracing::warn!(%error, "cannot search for files");
            self.search.lock().walking = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::local::tree::nodes::Nodes;

    #[test]
    fn an_incomplete_search_reports_no_file_as_gone() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("file"), b"").unwrap();
        let tree = Tree::open(dir.path(), |_| Ok(Nodes::in_memory(16)), 16, 100).unwrap();
        let id = FileId { ino: u64::MAX, generation: 1 };
        for missed in [true, false] {
            let mut search = tree.search.lock();
            search.add(id);
            search.begin();
            drop(search);
            let mut walk = tree.walk();
            walk.missed = missed;
            assert!(walk.step(&tree, 100));
            assert!(tree.end_walk(&walk));
            assert_eq!(tree.is_known_gone(id), !missed);
        }
    }
}
