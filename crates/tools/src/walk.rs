//! Visits a tree from the top down, each directory's entries in the order of their names.

use crate::beyond::{self, Child};
use crate::failure::Failure;
use crate::mounts::{Mounts, Place};
use weir_vfs::{Attr, FileKind};

/// A file of a tree.
pub struct Visited {
    /// Where it is.
    pub place: Place,
    /// Its attributes, as listed.
    pub attr: Attr,
    /// The names from the top of the tree down to it; none for the top itself.
    pub names: Vec<Vec<u8>>,
}

/// A walk through a tree. Holds the entries of the directories on the way down to the next file.
pub struct Walk {
    ahead: Vec<Visited>,
    /// The file system that it stays on.
    fsid: Option<u64>,
}

impl Walk {
    /// A walk that begins with the file or directory at `place`, and does not leave its file system if
    /// `one_file_system`.
    pub fn new(place: Place, attr: Attr, one_file_system: bool) -> Self {
        let fsid = one_file_system.then_some(attr.fsid);
        Self { ahead: vec![Visited { place, attr, names: Vec::new() }], fsid }
    }

    /// Continues below a directory, which is listed now; `mounts` finds what is mounted in it. Has no effect for
    /// other files. Returns what fails: the walk continues beside that.
    pub async fn enter(
        &mut self,
        directory: &Visited,
        mounts: Option<&mut Mounts>,
    ) -> Vec<Failure> {
        let Visited { place, attr, names } = directory;
        let is_elsewhere = self.fsid.is_some_and(|fsid| fsid != attr.fsid);
        if attr.kind != FileKind::Directory || is_elsewhere {
            return Vec::new();
        }
        let (children, failures) = match beyond::children(place, attr.id, mounts).await {
            Ok(children) => children,
            Err(failure) => return vec![failure],
        };
        let below = |Child { name, place, attr }: Child| {
            let names = names.iter().cloned().chain([name]).collect();
            Visited { place, attr, names }
        };
        self.ahead.extend(children.into_iter().rev().map(below));
        failures
    }
}

impl Iterator for Walk {
    type Item = Visited;

    /// The next file. A directory's entries follow only after [`enter`](Walk::enter).
    fn next(&mut self) -> Option<Visited> {
        self.ahead.pop()
    }
}
