//! The identity of a file: its inode number, and a generation that distinguishes it from earlier
//! users of that number.
//!
//! The generation is derived from what the kernel and the file system keep. If they keep nothing, it
//! is a number that the table of nodes assigns and remembers.

use crate::local::attr::birth_of;
use crate::local::sys::{self, Generation};
use crate::local::tree::nodes::{Link, Seen};
use crate::local::tree::{Tree, c_name, seen};
use rustix::fs::Statx;
use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::Relaxed;
use weir_base::stable_hash;
use weir_vfs::{Error, FileId, Result};

impl Tree {
    /// Determines the identity of what was found as `name` in directory `dir`, and what to enter in
    /// the table before it is handed out.
    pub(in crate::local) fn identify(
        &self,
        dir_id: FileId,
        dir: BorrowedFd<'_>,
        name: &[u8],
        stat: &Statx,
    ) -> Result<(FileId, Option<Seen>)> {
        match self.examine(dir_id, dir, name, stat)? {
            // Entered at once: another caller must not give it another number meanwhile.
            (_, Some(seen)) if seen.numbered => Ok((self.nodes.number(seen, |_| true), None)),
            identified => Ok(identified),
        }
    }

    /// The same without entering anything: if the file needs a number and has none, the one returned
    /// is valid only if the table still has none when the file is entered.
    pub(in crate::local) fn examine(
        &self,
        dir_id: FileId,
        dir: BorrowedFd<'_>,
        name: &[u8],
        stat: &Statx,
    ) -> Result<(FileId, Option<Seen>)> {
        self.check_device(stat)?;
        let born = birth_of(stat);
        let ino = stat.stx_ino;
        let known = self.nodes.recognise(ino, born, dir_id.ino, name);
        let (generation, numbered) = match known {
            Some((generation, _)) if born != 0 => (generation, false),
            // Without a creation time, a reused inode looks the same.
            _ => match (kernel_generation(dir, &c_name(name)?, stat)?, known) {
                (Some(generation), _) => (generation, false),
                (None, Some((generation, _))) => (generation, true),
                (None, None) => (self.new_number(), true),
            },
        };
        let id = FileId { ino, generation };
        if known == Some((generation, true)) {
            return Ok((id, None));
        }
        Ok((id, Some(Seen { numbered, ..seen(id, dir_id.ino, name, stat) })))
    }

    /// A generation for a file if neither kernel nor file system keeps one.
    fn new_number(&self) -> u64 {
        self.number(self.next_number.fetch_add(1, Relaxed))
    }

    /// The generation that the next such file gets, at least.
    pub(in crate::local) fn next_number(&self) -> u64 {
        self.number(self.next_number.load(Relaxed))
    }

    fn number(&self, lower: u32) -> u64 {
        u64::from(self.run) << 32 | u64::from(lower)
    }

    /// Enters a held file whose creation began when `since` was the
    /// [next number](Self::next_number): it is never an old one, but a listing may have found it
    /// already.
    pub(in crate::local) fn enter_new(
        &self,
        dir_id: FileId,
        file: BorrowedFd<'_>,
        name: &[u8],
        stat: &Statx,
        since: u64,
    ) -> FileId {
        let kernels = kernel_generation(file, c"", stat).ok().flatten();
        let generation = kernels.unwrap_or_else(|| self.new_number());
        let id = FileId { ino: stat.stx_ino, generation };
        let seen = seen(id, dir_id.ino, name, stat);
        if kernels.is_some() {
            self.remember([seen]);
            return id;
        }
        // An older number is that of an earlier file with this inode number.
        self.nodes.number(seen, |known| (since..=self.number(u32::MAX)).contains(&known))
    }

    /// Whether what was found at a place is the identified file.
    pub(in crate::local) fn is(&self, id: FileId, stat: &Statx, place: &Link) -> bool {
        if let Some(same) = self.is_recognised(id, stat) {
            return same;
        }
        match (self.dir_by_ino(place.dir), c_name(&place.name)) {
            (Ok(dir), Ok(name)) => self.is_at(id, dir.as_fd(), &name, stat),
            _ => false,
        }
    }

    /// The same for a held file.
    pub(super) fn is_pinned(&self, id: FileId, file: &OwnedFd, stat: &Statx) -> bool {
        stat.stx_nlink != 0 && self.is_at(id, file.as_fd(), c"", stat)
    }

    /// The same for a name in a directory, or for the descriptor itself.
    pub(super) fn is_at(&self, id: FileId, dir: BorrowedFd<'_>, name: &CStr, stat: &Statx) -> bool {
        if let Some(same) = self.is_recognised(id, stat) {
            return same;
        }
        match kernel_generation(dir, name, stat) {
            Ok(Some(generation)) => generation == id.generation,
            Ok(None) => match self.nodes.by_ino(id.ino) {
                Some(known) => known == id,
                // A number from an earlier run whose log was lost; numbers of this run are in the
                // table until their file is gone.
                None => !self.nodes.is_complete() && (id.generation >> 32) as u32 != self.run,
            },
            Err(_) => false,
        }
    }

    /// The same without reading the file's generation, if inode and creation time suffice.
    fn is_recognised(&self, id: FileId, stat: &Statx) -> Option<bool> {
        if stat.stx_ino != id.ino || self.check_device(stat).is_err() {
            return Some(false);
        }
        let born = birth_of(stat);
        let (generation, _) = self.nodes.recognise(id.ino, born, 0, b"").filter(|_| born != 0)?;
        Some(generation == id.generation)
    }
}

/// A generation derived from what distinguishes a file from earlier users of its inode: the
/// kernel's generation, and the creation time. Where handles can be built, the lower half is their
/// generation. `None` if there is neither.
pub(super) fn kernel_generation(dir: impl AsFd, name: &CStr, stat: &Statx) -> Result<Option<u64>> {
    let born = birth_of(stat);
    let mixed = |raw: u64| {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&born.to_le_bytes());
        bytes[8..].copy_from_slice(&raw.to_le_bytes());
        stable_hash(&bytes) | 1
    };
    match sys::inode_generation(dir.as_fd(), name, stat.stx_ino) {
        Ok(Some(Generation::Number(_, number))) => {
            let upper = stable_hash(&born.to_le_bytes()) | 1;
            Ok(Some(upper << 32 | u64::from(number)))
        }
        Ok(Some(Generation::Hash(hash))) => Ok(Some(mixed(hash))),
        Ok(None) if born != 0 => Ok(Some(mixed(0))),
        Ok(None) => Ok(None),
        // By now the name refers to another file, as the retry will find out.
        Err(_) => Err(Error::WouldBlock),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::local::tree::PATH_FLAGS;
    use crate::local::tree::nodes::Nodes;
    use std::path::Path;

    #[test]
    fn a_file_whose_entry_a_late_listing_replaced_is_found_and_a_removed_one_is_stale() {
        let (dir, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::fs::write(dir.path().join("y"), "new").unwrap();
        let nodes = |root| Nodes::open(state.path(), root, 100);
        let tree = Tree::open(dir.path(), nodes, 16, 100).unwrap();
        let root = tree.root_id;
        let found = tree.stat_name(tree.root(), c"y").unwrap();
        let (y, seen_y) = tree.identify(root, tree.root(), b"y", &found).unwrap();
        tree.remember(seen_y);
        assert!(tree.nodes.is_complete());
        // The file that had its inode number before.
        let removed = FileId { generation: y.generation ^ 2, ..y };
        assert_eq!(tree.getattr(removed).err(), Some(Error::Stale));
        tree.remember([Seen { born: 1, ..seen(removed, root.ino, b"x", &found) }]);
        assert_eq!(tree.nodes.place(y), None);
        assert_eq!(tree.getattr(y).unwrap().id, y);
        assert_eq!(tree.nodes.by_ino(y.ino), Some(y));
        assert_eq!(tree.getattr(removed).err(), Some(Error::Stale));
    }

    /// On procfs, which keeps neither birth times nor generations.
    #[test]
    fn a_file_without_a_generation_has_one_identity() {
        let nodes = |_| Ok(Nodes::in_memory(100));
        let tree = Tree::open(Path::new("/proc/sys/kernel"), nodes, 16, 100).unwrap();
        let (root, name) = (tree.root_id, b"ostype");
        let found = tree.stat_name(tree.root(), c"ostype").unwrap();
        let look = || tree.identify(root, tree.root(), name, &found).unwrap().0;
        let (walked, seen) = tree.examine(root, tree.root(), name, &found).unwrap();
        let since = tree.next_number();
        let id = look();
        assert_ne!(walked, id);
        tree.remember(seen);
        assert_eq!((look(), tree.getattr(id).unwrap().id), (id, id));
        assert_eq!(tree.nodes.place(walked), None);
        // As if it had been created after `since`, and then as if it were another file.
        let file = tree.open_one(tree.root(), c"ostype", PATH_FLAGS).unwrap();
        let enter = |since| tree.enter_new(root, file.as_fd(), name, &found, since);
        assert_eq!(enter(since), id);
        let new = enter(tree.next_number());
        assert_ne!(new, id);
        assert_eq!((look(), tree.nodes.place(id)), (new, None));
    }
}
