//! The file of a database, with space to spare: a server starts, and writes its records, although others have filled
//! the disk.
//!
//! redb's files are sparse, and it cuts them short when it closes them. So whenever the length changes, the blocks up
//! to the end, and [`SPARE`] beyond it, are reserved (fallocate(2)), as far as the file system can.

use redb::backends::FileBackend;
use redb::{BackendError, DatabaseError, StorageBackend};
use rustix::fs::FallocateFlags;
use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Bound;
use std::path::Path;

/// More than a transaction of a few records writes to new places.
const SPARE: u64 = 256 << 10;

/// A database's file.
#[derive(Debug)]
pub(super) struct DatabaseFile {
    file: File,
    inner: FileBackend,
}

impl DatabaseFile {
    /// Opens or creates it.
    pub(super) fn open(path: &Path) -> Result<Self, DatabaseError> {
        let file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        let inner = FileBackend::new(file.try_clone()?)?;
        let opened = Self { file, inner };
        opened.reserve(opened.inner.len()?);
        Ok(opened)
    }

    fn reserve(&self, len: u64) {
        let end = (len + SPARE).next_multiple_of(SPARE);
        if let Err(error) = rustix::fs::fallocate(&self.file, FallocateFlags::KEEP_SIZE, 0, end) {
            tracing::debug!("no space is reserved for the state database: {error}");
        }
    }
}

impl StorageBackend for DatabaseFile {
    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.inner.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.inner.set_len(len)?;
        self.reserve(len);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.inner.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.inner.write(offset, data)
    }

    fn close(&self) -> io::Result<()> {
        self.inner.close()
    }

    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.inner.try_lock_range(start, end)
    }

    fn try_lock_shared_range(
        &self,
        start: Bound<u64>,
        end: Bound<u64>,
    ) -> Result<bool, BackendError> {
        self.inner.try_lock_shared_range(start, end)
    }

    fn lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.inner.lock_range(start, end)
    }

    fn lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.inner.lock_shared_range(start, end)
    }

    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.inner.unlock_range(start, end)
    }

    fn query_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.inner.query_lock_range(start, end)
    }
}
