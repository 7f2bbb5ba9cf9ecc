//! The files of a tree as they were at one time, to remove these and no others later.
//!
//! 1. A file counts as known only where it was: one that another program has moved within the tree since may have
//!    been copied neither there nor here.

use crate::failure::Result;
use crate::mounts::Place;
use crate::walk::Walk;
use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use weir_vfs::{Attr, FileId, FileKind};

/// The state of each file of a tree, as a hash of 64 bits.
pub struct Known {
    states: HashSet<u64>,
    hasher: RandomState,
    /// The topmost file and its file system. Its place may be named in another way later.
    top: (FileId, u64),
}

impl Known {
    /// Lists a tree.
    ///
    /// # Errors
    /// A directory cannot be listed.
    pub async fn of(place: Place, attr: Attr) -> Result<Self> {
        let top = (attr.id, attr.fsid);
        let mut known = Self { states: HashSet::new(), hasher: RandomState::new(), top };
        let mut walk = Walk::new(place, attr, false);
        while let Some(visited) = walk.next() {
            let (place, attr) = (&visited.place, &visited.attr);
            // The removal of another name changes the time of a file with several.
            known.states.insert(known.state(place, attr, attr.nlink == 1));
            if let Some(failure) = walk.enter(&visited, None).await.into_iter().next() {
                return Err(failure);
            }
        }
        Ok(known)
    }

    /// Whether a file with these attributes was at this place in the tree, and has not changed since. Directories
    /// may have other entries by now.
    pub fn has(&self, place: &Place, attr: &Attr) -> bool {
        [true, false].iter().any(|&timed| self.states.contains(&self.state(place, attr, timed)))
    }

    /// The hash of a file's state, with the time of its last change if `timed`.
    fn state(&self, place: &Place, attr: &Attr, timed: bool) -> u64 {
        let is_directory = attr.kind == FileKind::Directory;
        let content = (!is_directory).then_some((attr.size, attr.mtime));
        let changed = (!is_directory && timed).then_some(attr.ctime);
        let is_top = (attr.id, attr.fsid) == self.top;
        let within = (!is_top).then_some((place.dir, &place.name));
        self.hasher.hash_one((attr.id, attr.fsid, within, is_directory, content, changed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::location::Location;
    use crate::mounts::{Links, Mounts};
    use crate::remove::{Event, remove_known};
    use std::fs;
    use std::os::unix::fs::MetadataExt;
    use weir_client::MountOptions;

    /// What another program does to a tree between its copy and its removal.
    #[tokio::test(flavor = "multi_thread")]
    async fn what_is_new_or_changed_is_not_removed() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().join("tree");
        fs::create_dir_all(top.join("kept/below")).unwrap();
        fs::create_dir(top.join("gone")).unwrap();
        for name in ["gone/a", "gone/b", "changed", "replaced", "linked"] {
            fs::write(top.join(name), name).unwrap();
        }
        fs::hard_link(top.join("linked"), top.join("gone/linked")).unwrap();
        let location = Location::parse(top.clone().into()).unwrap();
        let mut mounts = Mounts::new(None, MountOptions::default()).unwrap();
        let place = mounts.place(&location, Links::Stay).await.unwrap();
        let attr = place.existing("find").unwrap().clone();
        let known = Known::of(place.clone(), attr.clone()).await.unwrap();
        fs::write(top.join("changed"), "longer than before").unwrap();
        fs::write(top.join("new"), "new").unwrap();
        fs::rename(top.join("new"), top.join("replaced")).unwrap();
        fs::write(top.join("kept/below/new"), "new").unwrap();
        let mut failed = 0;
        let all = remove_known(
            place,
            attr,
            |place, attr| known.has(place, attr),
            |event| {
                failed += usize::from(matches!(event, Event::Failed(_)));
            },
        );
        assert!(!all.await);
        assert_eq!(failed, 3);
        assert!(!top.join("gone").exists() && !top.join("linked").exists());
        for name in ["changed", "replaced", "kept/below/new"] {
            assert!(fs::metadata(top.join(name)).unwrap().size() > 0, "{name}");
        }
    }

    /// The copy may have listed `to` before, and `from` after another program moved something from one to the other.
    #[tokio::test(flavor = "multi_thread")]
    async fn what_was_moved_within_the_tree_is_not_removed() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().join("tree");
        fs::create_dir_all(top.join("from/directory")).unwrap();
        fs::create_dir(top.join("to")).unwrap();
        for name in ["from/directory/file", "from/linked"] {
            fs::write(top.join(name), name).unwrap();
        }
        fs::hard_link(top.join("from/linked"), dir.path().join("outside")).unwrap();
        let location = Location::parse(top.clone().into()).unwrap();
        let mut mounts = Mounts::new(None, MountOptions::default()).unwrap();
        let place = mounts.place(&location, Links::Stay).await.unwrap();
        let attr = place.existing("find").unwrap().clone();
        let known = Known::of(place.clone(), attr.clone()).await.unwrap();
        fs::rename(top.join("from/directory"), top.join("to/directory")).unwrap();
        fs::rename(top.join("from/linked"), top.join("to/linked")).unwrap();
        let mut failed = 0;
        let is_known = |place: &Place, attr: &Attr| known.has(place, attr);
        let count = |event: Event<'_>| failed += usize::from(matches!(event, Event::Failed(_)));
        assert!(!remove_known(place, attr, is_known, count).await);
        assert_eq!(failed, 2);
        assert!(!top.join("from").exists());
        assert!(top.join("to/directory/file").exists() && top.join("to/linked").exists());
    }
}
