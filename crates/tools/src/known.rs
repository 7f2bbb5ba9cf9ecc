//! The files of a tree as they were at one time, to remove these and no others later.

use crate::failure::Result;
use crate::mounts::Place;
use crate::walk::Walk;
use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use weir_vfs::{Attr, FileKind};

/// The state of each file of a tree, as a hash of 64 bits.
pub struct Known {
    states: HashSet<u64>,
    hasher: RandomState,
}

impl Known {
    /// Lists a tree.
    ///
    /// # Errors
    /// A directory cannot be listed.
    pub async fn of(place: Place, attr: Attr) -> Result<Self> {
        let mut known = Self { states: HashSet::new(), hasher: RandomState::new() };
        let mut walk = Walk::new(place, attr, false);
        while let Some(visited) = walk.next() {
            let attr = &visited.attr;
            // The removal of another name changes the time of a file with several.
            known.states.insert(known.state(attr, attr.nlink == 1));
            if let Some(failure) = walk.enter(&visited, None).await.into_iter().next() {
                return Err(failure);
            }
        }
        Ok(known)
    }

    /// Whether a file with these attributes was in the tree, and has not changed since. Directories may
    /// have other entries by now.
    pub fn has(&self, attr: &Attr) -> bool {
        [true, false].iter().any(|&timed| self.states.contains(&self.state(attr, timed)))
    }

    /// The hash of a file's state, with the time of its last change if `timed`.
    fn state(&self, attr: &Attr, timed: bool) -> u64 {
        let is_directory = attr.kind == FileKind::Directory;
        let content = (!is_directory).then_some((attr.size, attr.mtime));
        let changed = (!is_directory && timed).then_some(attr.ctime);
        self.hasher.hash_one((attr.id, attr.fsid, is_directory, content, changed))
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
            |attr| known.has(attr),
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
}
