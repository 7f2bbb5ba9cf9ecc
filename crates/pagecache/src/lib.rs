//! A page cache in user space. (Contract; being built.)
#![allow(clippy::unimplemented, missing_docs, unused_variables)]

use std::io::IoSlice;
use std::sync::Arc;
use weir_vfs::{
    Access, Advice, Attr, Caller, Created, DirPage, Extent, FileId, FileSystem, FsStat, IoFlags,
    RenameFlags, Result, SetAttr, XattrMode,
};

/// How a cache is set up.
#[derive(Clone, Debug)]
pub struct Config {
    /// Hard limit on page frames in use, in flight and pinned, in bytes.
    pub budget_bytes: u64,
    /// Whether cached reads may take the fast path (a run-time switch, too).
    pub fast_read: bool,
    /// Largest read-ahead window in bytes; 0 turns read-ahead off.
    pub readahead_bytes: u64,
}

/// One page cache with one budget; cheap to clone.
#[derive(Clone)]
pub struct Cache {}

impl Cache {
    pub fn new(config: Config) -> std::io::Result<Self> {
        unimplemented!()
    }
    /// Puts a store under this cache.
    pub fn mount(&self, store: Arc<dyn FileSystem>) -> CachedFs {
        unimplemented!()
    }
    pub fn stats(&self) -> Stats {
        unimplemented!()
    }
    pub fn set_fast_read(&self, on: bool) {}
    /// Writes back every dirty page of every file and waits.
    pub async fn flush(&self) -> Result<()> {
        unimplemented!()
    }
}

/// Counters of a cache, or of one file. (Fields to come; `Debug`, and named pairs for JSON.)
#[derive(Clone, Debug, Default)]
pub struct Stats {}

/// A store seen through the cache: the same names, attributes that include what is not written
/// back yet, and files whose data is cached. Cheap to clone. The namespace operations mirror
/// `vfs::FileSystem`, as inherent async methods.
#[derive(Clone)]
pub struct CachedFs {}

impl CachedFs {
    pub fn cache(&self) -> &Cache {
        unimplemented!()
    }
    /// The store itself.
    pub fn store(&self) -> &Arc<dyn FileSystem> {
        unimplemented!()
    }
    pub fn root(&self) -> FileId {
        unimplemented!()
    }
    pub async fn statfs(&self) -> Result<FsStat> {
        unimplemented!()
    }
    pub async fn getattr(&self, id: FileId) -> Result<Attr> {
        unimplemented!()
    }
    /// A size change goes through the cache; times are set after dirty data was written back.
    pub async fn setattr(&self, caller: &Caller, id: FileId, set: &SetAttr) -> Result<Attr> {
        unimplemented!()
    }
    pub async fn access(&self, caller: &Caller, id: FileId, mask: u32) -> Result<u32> {
        unimplemented!()
    }
    pub async fn lookup(&self, caller: &Caller, dir: FileId, name: &[u8]) -> Result<Attr> {
        unimplemented!()
    }
    pub async fn parent(&self, dir: FileId) -> Result<Attr> {
        unimplemented!()
    }
    pub async fn readdir(
        &self,
        caller: &Caller,
        dir: FileId,
        cookie: u64,
        max_entries: usize,
        with_attr: bool,
    ) -> Result<DirPage> {
        unimplemented!()
    }
    pub async fn readlink(&self, caller: &Caller, id: FileId) -> Result<Vec<u8>> {
        unimplemented!()
    }
    pub async fn create(
        &self,
        caller: &Caller,
        dir: FileId,
        name: &[u8],
        set: &SetAttr,
        exclusive: bool,
    ) -> Result<Created> {
        unimplemented!()
    }
    pub async fn mkdir(
        &self,
        caller: &Caller,
        dir: FileId,
        name: &[u8],
        set: &SetAttr,
    ) -> Result<Attr> {
        unimplemented!()
    }
    pub async fn symlink(
        &self,
        caller: &Caller,
        dir: FileId,
        name: &[u8],
        target: &[u8],
        set: &SetAttr,
    ) -> Result<Attr> {
        unimplemented!()
    }
    pub async fn mknod(
        &self,
        caller: &Caller,
        dir: FileId,
        name: &[u8],
        kind: weir_vfs::FileKind,
        rdev: (u32, u32),
        set: &SetAttr,
    ) -> Result<Attr> {
        unimplemented!()
    }
    pub async fn link(
        &self,
        caller: &Caller,
        id: FileId,
        dir: FileId,
        name: &[u8],
    ) -> Result<Attr> {
        unimplemented!()
    }
    pub async fn unlink(&self, caller: &Caller, dir: FileId, name: &[u8]) -> Result<()> {
        unimplemented!()
    }
    pub async fn rmdir(&self, caller: &Caller, dir: FileId, name: &[u8]) -> Result<()> {
        unimplemented!()
    }
    pub async fn rename(
        &self,
        caller: &Caller,
        from_dir: FileId,
        from: &[u8],
        to_dir: FileId,
        to: &[u8],
        flags: RenameFlags,
    ) -> Result<()> {
        unimplemented!()
    }
    pub async fn sync_node(&self, id: FileId) -> Result<()> {
        unimplemented!()
    }
    pub async fn get_xattr(&self, caller: &Caller, id: FileId, name: &[u8]) -> Result<Vec<u8>> {
        unimplemented!()
    }
    pub async fn set_xattr(
        &self,
        caller: &Caller,
        id: FileId,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        unimplemented!()
    }
    pub async fn list_xattrs(&self, caller: &Caller, id: FileId) -> Result<Vec<Vec<u8>>> {
        unimplemented!()
    }
    pub async fn remove_xattr(&self, caller: &Caller, id: FileId, name: &[u8]) -> Result<()> {
        unimplemented!()
    }
    /// Opens a regular file through the cache. All opens of one file share its pages. Cheap when
    /// the file's mapping is alive (recently closed mappings are kept), as NFSv3 opens per call.
    pub async fn open(&self, caller: &Caller, id: FileId, access: Access) -> Result<File> {
        unimplemented!()
    }
}

/// An open file: its own read-ahead state, advice and error cursor, over shared pages.
#[derive(Clone)]
pub struct File {}

impl File {
    pub fn id(&self) -> FileId {
        unimplemented!()
    }
    pub fn size(&self) -> u64 {
        unimplemented!()
    }
    /// Attributes, dirty data included; also after the last name is gone.
    pub async fn getattr(&self) -> Result<Attr> {
        unimplemented!()
    }
    /// The fast path alone: copies the resident prefix, or `None` when it does not apply.
    pub fn read_resident(&self, buf: &mut [u8], offset: u64) -> Option<usize> {
        unimplemented!()
    }
    pub fn read_at(&self, buf: &mut [u8], offset: u64, flags: IoFlags) -> Result<usize> {
        unimplemented!()
    }
    pub async fn read_at_async(
        &self,
        buf: &mut [u8],
        offset: u64,
        flags: IoFlags,
    ) -> Result<usize> {
        unimplemented!()
    }
    /// Lends pages instead of copying. Clipped at the end of file, except that a trailing hole is
    /// reported to its own end where known.
    pub fn read_segments(&self, offset: u64, len: usize, flags: IoFlags) -> Result<Segments> {
        unimplemented!()
    }
    /// Without waiting: `None` when something of the range is not resident.
    pub fn read_segments_resident(&self, offset: u64, len: usize) -> Option<Segments> {
        unimplemented!()
    }
    pub async fn read_segments_async(
        &self,
        offset: u64,
        len: usize,
        flags: IoFlags,
    ) -> Result<Segments> {
        unimplemented!()
    }
    pub fn write_at(&self, buf: &[u8], offset: u64, flags: IoFlags) -> Result<usize> {
        unimplemented!()
    }
    pub async fn write_at_async(&self, buf: &[u8], offset: u64, flags: IoFlags) -> Result<usize> {
        unimplemented!()
    }
    /// Writes back and makes durable; reports a writeback error once per open file.
    pub async fn sync_async(&self, data_only: bool) -> Result<()> {
        unimplemented!()
    }
    pub fn sync(&self, data_only: bool) -> Result<()> {
        unimplemented!()
    }
    pub async fn truncate_async(&self, size: u64) -> Result<()> {
        unimplemented!()
    }
    pub fn truncate(&self, size: u64) -> Result<()> {
        unimplemented!()
    }
    pub async fn punch_hole_async(&self, offset: u64, len: u64) -> Result<()> {
        unimplemented!()
    }
    pub async fn allocate_async(&self, offset: u64, len: u64) -> Result<()> {
        unimplemented!()
    }
    pub async fn clone_range_async(
        &self,
        from: &File,
        offset: u64,
        len: u64,
        to_offset: u64,
    ) -> Result<()> {
        unimplemented!()
    }
    pub fn advise(&self, offset: u64, len: u64, advice: Advice) -> Result<()> {
        unimplemented!()
    }
    /// Data or hole at `offset` (SEEK), dirty pages included; `NoSuchRange` at or past the end.
    pub async fn extent_at_async(&self, offset: u64) -> Result<Extent> {
        unimplemented!()
    }
    /// Which parts of the file are resident, for pictures (`weir map`) and proofs.
    pub fn resident(&self) -> Vec<std::ops::Range<u64>> {
        unimplemented!()
    }
    pub fn stats(&self) -> Stats {
        unimplemented!()
    }
}

/// What a read found: contiguous, in order, beginning at the request's offset.
#[derive(Default)]
pub struct Segments {
    pub segments: Vec<Segment>,
    /// The read reached the end of the file.
    pub eof: bool,
}

/// A part of a [`Segments`].
pub enum Segment {
    /// Bytes at `start`, in pinned frames.
    Data { start: u64, pages: Pages },
    /// A hole, `start..end`; the last one may reach past the request.
    Hole { start: u64, end: u64 },
}

/// Pinned, immutable bytes; count against the budget until dropped. `Send`.
pub struct Pages {}

impl Pages {
    pub fn len(&self) -> usize {
        unimplemented!()
    }
    /// Appends slices that together are bytes `from..len()`.
    pub fn slices<'a>(&'a self, from: usize, out: &mut Vec<IoSlice<'a>>) {
        unimplemented!()
    }
    /// Keeps the first `len` bytes.
    pub fn truncate(&mut self, len: usize) {
        unimplemented!()
    }
}
