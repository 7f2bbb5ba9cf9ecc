//! Maps a [`FileId`] to its filehandle.
//!
//! 1. An id is made of the file's number and a hash of its file system and handle, so it is the
//!    same after a restart and another after the number was used again.
//! 2. Each table is bounded in bytes: past [`MAX_BYTES`] it evicts the least recently used files
//!    (another look-up enters them again). It never evicts the root, and open files are kept
//!    outside the tables, by [`OpenFiles`](crate::files::silly_rename::OpenFiles).
//! 3. Directories, and files with several names, have their own table: a program that walks a tree
//!    returns to them after any number of other files.

use crate::protocol::Handle;
use hashlink::LruCache;
use weir_base::sync::Mutex;
use weir_vfs::{Attr, Error, FileId, FileKind, Result};

/// Memory for the handles of one table: more than a million of Weir's or Linux's handles.
const MAX_BYTES: usize = 256 << 20;
/// Memory of a handle besides its bytes: its entry in the table, and its allocation.
const OVERHEAD_BYTES: usize = 160;

/// Filehandles by id.
pub(crate) struct Handles {
    root: (FileId, Handle),
    /// Directories, and files with several names.
    lasting: Mutex<Table>,
    others: Mutex<Table>,
    max_bytes: usize,
}

struct Table {
    by_id: LruCache<FileId, Handle>,
    bytes: usize,
}

impl Handles {
    pub(crate) fn new(root: FileId, handle: Handle) -> Self {
        let table = || Mutex::new(Table { by_id: LruCache::new_unbounded(), bytes: 0 });
        Self { root: (root, handle), lasting: table(), others: table(), max_bytes: MAX_BYTES }
    }

    pub(crate) fn root(&self) -> &(FileId, Handle) {
        &self.root
    }

    /// The handle of a file that the mount has seen.
    ///
    /// # Errors [`Error::Stale`] if it has not, or has evicted the handle.
    pub(crate) fn get(&self, id: FileId) -> Result<Handle> {
        if id == self.root.0 {
            return Ok(self.root.1.clone());
        }
        let in_table = |table: &Mutex<Table>| table.lock().by_id.get(&id).cloned();
        in_table(&self.others).or_else(|| in_table(&self.lasting)).ok_or(Error::Stale)
    }

    /// Enters a file's handle.
    pub(crate) fn remember(&self, attr: &Attr, handle: &Handle) {
        let id = attr.id;
        let is_lasting = attr.kind == FileKind::Directory || attr.nlink > 1;
        let table = if is_lasting { &self.lasting } else { &self.others };
        let table = &mut *table.lock();
        if table.by_id.get(&id).is_some() {
            return;
        }
        table.bytes += cost(handle);
        table.by_id.insert(id, handle.clone());
        while table.bytes > self.max_bytes
            && let Some((_, oldest)) = table.by_id.remove_lru()
        {
            table.bytes -= cost(&oldest);
        }
    }
}

fn cost(handle: &Handle) -> usize {
    handle.0.len() + OVERHEAD_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::file_id;
    use std::time::SystemTime;

    fn handle(n: u64) -> Handle {
        Handle(n.to_be_bytes().to_vec().into())
    }

    fn attr(n: u64, kind: FileKind, nlink: u32) -> Attr {
        let time = SystemTime::UNIX_EPOCH;
        Attr {
            id: file_id(n, 7, &handle(n)),
            kind,
            mode: 0o644,
            nlink,
            uid: 0,
            gid: 0,
            size: 0,
            allocated: 0,
            rdev: (0, 0),
            fsid: 7,
            atime: time,
            mtime: time,
            ctime: time,
            btime: None,
            change: 0,
        }
    }

    fn small() -> Handles {
        let mut handles = Handles::new(file_id(1, 7, &handle(1)), handle(1));
        handles.max_bytes = 3 * cost(&handle(1));
        handles
    }

    #[test]
    fn the_least_recently_used_are_forgotten_but_not_the_root() {
        let handles = small();
        let files: Vec<_> = (2..9).map(|n| attr(n, FileKind::Regular, 1)).collect();
        for (n, file) in (2..9).zip(&files) {
            handles.remember(file, &handle(n));
            handles.remember(file, &handle(n));
            // The first stays in use.
            assert_eq!(handles.get(files[0].id), Ok(handle(2)));
        }
        for forgotten in &files[1..5] {
            assert_eq!(handles.get(forgotten.id), Err(Error::Stale));
        }
        assert_eq!(handles.get(files[5].id), Ok(handle(7)));
        assert_eq!(handles.get(handles.root().0), Ok(handle(1)));
        assert_eq!(handles.others.lock().bytes, 3 * cost(&handle(1)));
    }

    #[test]
    fn directories_of_a_walk_outlast_any_number_of_files() {
        let handles = small();
        let lasting = [attr(2, FileKind::Directory, 2), attr(3, FileKind::Regular, 2)];
        handles.remember(&lasting[0], &handle(2));
        handles.remember(&lasting[1], &handle(3));
        for n in 4..100 {
            handles.remember(&attr(n, FileKind::Regular, 1), &handle(n));
        }
        assert_eq!(lasting.map(|a| handles.get(a.id)), [Ok(handle(2)), Ok(handle(3))]);
        for n in 100..200 {
            handles.remember(&attr(n, FileKind::Directory, 2), &handle(n));
            assert!(handles.lasting.lock().bytes <= handles.max_bytes);
        }
    }
}
