//! Which filehandle a [`FileId`] stands for.
//!
//! 1. An id is made of the file's number and a hash of its file system and handle, so it is the
//!    same after a restart and another after the number was used again.
//! 2. The table is bounded: past [`MAX_HANDLES`] the files seen longest ago are forgotten (looking
//!    them up again brings them back). The root is never forgotten.

use crate::protocol::Handle;
use std::collections::{HashMap, VecDeque};
use weir_base::stable_hash;
use weir_base::sync::Mutex;
use weir_vfs::{Error, FileId, Result};

/// Files remembered; about 200 bytes each.
const MAX_HANDLES: usize = 1 << 20;

/// Filehandles by id.
pub(crate) struct Handles {
    root: (FileId, Handle),
    table: Mutex<Table>,
    max: usize,
}

#[derive(Default)]
struct Table {
    by_id: HashMap<FileId, Handle>,
    oldest_first: VecDeque<FileId>,
}

impl Handles {
    pub(crate) fn new(root: FileId, handle: Handle) -> Self {
        Self { root: (root, handle), table: Mutex::default(), max: MAX_HANDLES }
    }

    pub(crate) fn root(&self) -> &(FileId, Handle) {
        &self.root
    }

    /// The handle of a file that was seen.
    ///
    /// # Errors
    /// [`Error::Stale`] when it never was, or is forgotten.
    pub(crate) fn get(&self, id: FileId) -> Result<Handle> {
        if id == self.root.0 {
            return Ok(self.root.1.clone());
        }
        self.table.lock().by_id.get(&id).cloned().ok_or(Error::Stale)
    }

    /// Remembers a file.
    pub(crate) fn remember(&self, id: FileId, handle: &Handle) {
        let table = &mut *self.table.lock();
        if table.by_id.contains_key(&id) {
            return;
        }
        table.by_id.insert(id, handle.clone());
        table.oldest_first.push_back(id);
        if table.oldest_first.len() > self.max
            && let Some(oldest) = table.oldest_first.pop_front()
        {
            table.by_id.remove(&oldest);
        }
    }
}

/// The id of the file with number `ino` and this handle.
pub(crate) fn file_id(ino: u64, fsid: u64, handle: &Handle) -> FileId {
    FileId { ino, generation: stable_hash(fsid.to_be_bytes().iter().chain(handle.0.iter())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handle(n: u64) -> Handle {
        Handle(n.to_be_bytes().to_vec().into())
    }

    #[test]
    fn the_oldest_are_forgotten_but_not_the_root() {
        let root = file_id(1, 7, &handle(1));
        let mut handles = Handles::new(root, handle(1));
        handles.max = 3;
        let ids: Vec<_> = (2..7).map(|n| file_id(n, 7, &handle(n))).collect();
        for (n, id) in (2..7).zip(&ids) {
            handles.remember(*id, &handle(n));
            handles.remember(*id, &handle(n));
        }
        assert_eq!(handles.get(ids[1]), Err(Error::Stale));
        assert_eq!(handles.get(ids[2]), Ok(handle(4)));
        assert_eq!(handles.get(root), Ok(handle(1)));
    }
}
