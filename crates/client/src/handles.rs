//! Which filehandle a [`FileId`] stands for.
//!
//! 1. An id is made of the file's number and a hash of its file system and handle, so it is the
//!    same after a restart and another after the number was used again.
//! 2. The table is bounded in bytes: past [`MAX_BYTES`] the files used longest ago are forgotten
//!    (looking them up again brings them back). The root is never forgotten, and open files are kept
//!    beside the table, by [`OpenFiles`](crate::unlinked::OpenFiles).

use crate::protocol::Handle;
use lru::LruCache;
use weir_base::stable_hash;
use weir_base::sync::Mutex;
use weir_vfs::{Error, FileId, Result};

/// Memory for handles: more than a million of Weir's or Linux's.
const MAX_BYTES: usize = 256 << 20;
/// What a handle costs besides its bytes: its entry in the table, and its allocation.
const OVERHEAD_BYTES: usize = 160;

/// Filehandles by id.
pub(crate) struct Handles {
    root: (FileId, Handle),
    table: Mutex<Table>,
    max_bytes: usize,
}

struct Table {
    by_id: LruCache<FileId, Handle>,
    bytes: usize,
}

impl Handles {
    pub(crate) fn new(root: FileId, handle: Handle) -> Self {
        let table = Table { by_id: LruCache::unbounded(), bytes: 0 };
        Self { root: (root, handle), table: Mutex::new(table), max_bytes: MAX_BYTES }
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
        if table.by_id.get(&id).is_some() {
            return;
        }
        table.bytes += cost(handle);
        table.by_id.put(id, handle.clone());
        while table.bytes > self.max_bytes
            && let Some((_, oldest)) = table.by_id.pop_lru()
        {
            table.bytes -= cost(&oldest);
        }
    }
}

fn cost(handle: &Handle) -> usize {
    handle.0.len() + OVERHEAD_BYTES
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
    fn the_least_recently_used_are_forgotten_but_not_the_root() {
        let root = file_id(1, 7, &handle(1));
        let mut handles = Handles::new(root, handle(1));
        handles.max_bytes = 3 * cost(&handle(1));
        let ids: Vec<_> = (2..9).map(|n| file_id(n, 7, &handle(n))).collect();
        for (n, id) in (2..9).zip(&ids) {
            handles.remember(*id, &handle(n));
            handles.remember(*id, &handle(n));
            // The first stays in use, as a directory that is walked does.
            assert_eq!(handles.get(ids[0]), Ok(handle(2)));
        }
        for forgotten in &ids[1..5] {
            assert_eq!(handles.get(*forgotten), Err(Error::Stale));
        }
        assert_eq!(handles.get(ids[5]), Ok(handle(7)));
        assert_eq!(handles.get(root), Ok(handle(1)));
        assert_eq!(handles.table.lock().bytes, 3 * cost(&handle(1)));
    }
}
