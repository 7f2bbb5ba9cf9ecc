//! An open file.
//!
//! 1. The state of one open file: read-ahead, advice, and the last writeback error reported to it.
//!    Pages and size belong to the mapping, which all open files of the file share.
//! 2. An error of writeback, or of the store's sync, is reported by one write or sync of every file that
//!    was open when it happened, and by the closes of descriptors before that; and by files opened later
//!    until one open file got it (I9, `writeback/errseq.rs`).

pub(crate) mod pruner;
pub(crate) mod read;
pub(crate) mod readahead;
pub(crate) mod segments;
pub(crate) mod write;

use crate::cache_policy::CachePolicy;
use crate::file::pruner::NO_PAGE;
use crate::file::readahead::Readahead;
use crate::mapping::Mapping;
use crate::mapping::fill::Purpose;
use crate::mapping::truncate::Transfer;
use crate::stats::Stats;
use std::ops::Range;
use std::sync::Arc;
use weir_base::sync::Mutex;
use weir_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use weir_base::{PAGE_SIZE, pages_spanning};
use weir_vfs::{Access, Advice, Attr, Capabilities, Error, Extent, FileId, OpenFile, Result};

/// The mounted store through which a file was opened. An open file keeps it alive.
pub(crate) trait Mount: Send + Sync {
    /// Counts down the open files.
    fn close(&self, mapping: &Arc<Mapping>);
}

/// An open file: its own read-ahead state, advice and error cursor, over shared pages. Cheap to
/// clone; clones are the same open file.
#[derive(Clone)]
pub struct File {
    pub(crate) open: Arc<Open>,
}

pub(crate) struct Open {
    pub(crate) mapping: Arc<Mapping>,
    mount: Arc<dyn Mount>,
    pub(crate) access: Access,
    pub(crate) readahead: Mutex<Readahead>,
    /// `NoReuse` advice was given: operations are uncached.
    pub(crate) noreuse: AtomicBool,
    /// The page in the middle of which the last uncached read ended.
    pub(crate) half_read: AtomicU64,
    /// Number of the file's errors that were reported to this open file, up to the last one.
    seen_error: AtomicU64,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.prune_half_read();
        self.mapping.flush_half_written();
        if self.access.contains(Access::WRITE) {
            self.mapping.writers.fetch_sub(1, Ordering::SeqCst);
        }
        self.mount.close(&self.mapping);
    }
}

impl Open {
    /// Reports an error that was not yet reported to this open file. Without one, returns the number
    /// of the file's errors.
    pub(crate) fn unseen_error(&self) -> Result<u64> {
        let errors = &mut self.mapping.state.lock().errors;
        errors.tell(&self.seen_error)?;
        Ok(errors.count())
    }
}

impl File {
    /// An open file over a mapping whose count of opens already includes it.
    pub(crate) fn new(mount: Arc<dyn Mount>, mapping: Arc<Mapping>, access: Access) -> Self {
        let seen_error = mapping.state.lock().errors.cursor();
        if access.contains(Access::WRITE) {
            mapping.writers.fetch_add(1, Ordering::SeqCst);
        }
        Self {
            open: Arc::new(Open {
                mapping,
                mount,
                access,
                readahead: Mutex::default(),
                noreuse: AtomicBool::new(false),
                half_read: AtomicU64::new(NO_PAGE),
                seen_error: AtomicU64::new(seen_error),
            }),
        }
    }

    /// The file's identity.
    pub fn id(&self) -> FileId {
        self.open.mapping.id
    }

    /// Size in bytes.
    pub fn size(&self) -> u64 {
        self.open.mapping.size()
    }

    /// What the store supports.
    pub fn capabilities(&self) -> Capabilities {
        self.open.mapping.store.capabilities()
    }

    /// Whether the file is marked as uncached ([`UNCACHED_XATTR`](weir_vfs::UNCACHED_XATTR)), as its last open
    /// has found.
    pub fn is_marked_uncached(&self) -> bool {
        self.open.mapping.uncached.load(Ordering::Relaxed)
    }

    /// The access that it is open for.
    pub fn access(&self) -> Access {
        self.open.access
    }

    /// The store's open file, for what does not concern the pages, such as locks. It is there after
    /// the last name was removed, too, and may be open for more than this one.
    pub fn stored(&self) -> Arc<dyn OpenFile> {
        self.open.mapping.file()
    }

    /// Whether the file's last name was removed through this cache. A program that keeps such a
    /// file open keeps its space allocated.
    pub fn is_unlinked(&self) -> bool {
        self.open.mapping.unlinked.load(Ordering::Relaxed)
    }

    /// Attributes, dirty data included; works after the last name was removed, too.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn getattr(&self) -> Result<Attr> {
        self.open.mapping.getattr().await
    }

    /// Writes back and makes durable (with attributes, unless `data_only`).
    ///
    /// # Errors
    /// Written data of the file was lost (through any open file): the error of its write to the
    /// store; or the store's sync failed. Each open file gets each error once.
    pub async fn sync_async(&self, data_only: bool) -> Result<()> {
        self.sync_range_async(0..u64::MAX, data_only).await
    }

    /// [`sync_async`](Self::sync_async) for a range of bytes; dirty pages elsewhere may stay dirty.
    ///
    /// # Errors
    /// Those of [`sync_async`](Self::sync_async).
    pub async fn sync_range_async(&self, range: Range<u64>, data_only: bool) -> Result<()> {
        self.sync_since_async(self.write_errors(), range, data_only).await
    }

    /// [`sync_range_async`](Self::sync_range_async) for data that was written when
    /// [`write_errors`](Self::write_errors) was `since` or later. Every error since then counts, also
    /// one that this open file got already: the data that was lost may be the caller's.
    ///
    /// # Errors
    /// Those of [`sync_async`](Self::sync_async).
    pub async fn sync_since_async(
        &self,
        since: u64,
        range: Range<u64>,
        data_only: bool,
    ) -> Result<()> {
        let pages = pages_spanning(range.start, range.end.saturating_sub(range.start));
        let synced = self.open.mapping.write_and_sync(pages, since, data_only).await;
        // This open file gets the error by this call, also if it got it from another one before.
        self.open.unseen_error()?;
        synced
    }

    /// Writes dirty data to the store, where other programs see it. Does not make it durable.
    ///
    /// # Errors
    /// Written data of the file was lost; each open file gets each error once.
    pub async fn write_back_async(&self) -> Result<()> {
        let written = self.open.mapping.write_back(0..u64::MAX).await;
        // This open file gets the error by this call.
        self.open.unseen_error()?;
        written
    }

    /// [`write_back_async`](Self::write_back_async) for close(2) of one of the
    /// descriptors of this open file. Makes the data durable if `durable`.
    ///
    /// # Errors
    /// Those of [`sync_async`](Self::sync_async). The close of each other descriptor gets the error,
    /// too, and so does the next write or sync: a program may have inherited the descriptor that is
    /// closed first, and not look at the outcome.
    pub async fn close_descriptor_async(&self, durable: bool) -> Result<()> {
        let mapping = &self.open.mapping;
        let written = match durable {
            true => mapping.write_and_sync(0..u64::MAX, self.write_errors(), true).await,
            false => mapping.write_back(0..u64::MAX).await,
        };
        let seen = self.open.seen_error.load(Ordering::Relaxed);
        mapping.state.lock().errors.show(seen)?;
        written
    }

    /// Writes back, makes durable and closes. After a drop instead, the flusher writes the data
    /// back later, unless the store is gone by then.
    ///
    /// # Errors Those of [`sync_async`](Self::sync_async); the file is closed nevertheless.
    pub async fn close(self) -> Result<()> {
        match self.access().contains(Access::WRITE) {
            true => self.sync_async(false).await,
            false => Ok(()),
        }
    }

    /// [`sync_async`](Self::sync_async), for threads. It waits for a sync of the file that another
    /// call has begun, so do not hold such a call's future unpolled on this thread meanwhile.
    ///
    /// # Errors
    /// Those of [`sync_async`](Self::sync_async).
    pub fn sync(&self, data_only: bool) -> Result<()> {
        crate::block_on(self.sync_async(data_only))
    }

    /// Sets the size: truncates, or extends with a hole.
    ///
    /// # Errors
    /// [`Error::TooBig`]; [`Error::BadFile`] if not open for writing; those of the store, which
    /// leave the file unchanged.
    pub async fn truncate_async(&self, size: u64) -> Result<()> {
        self.for_writing()?;
        self.open.mapping.truncate(size).await
    }

    /// [`truncate_async`](Self::truncate_async), for threads.
    ///
    /// # Errors
    /// Those of [`truncate_async`](Self::truncate_async).
    pub fn truncate(&self, size: u64) -> Result<()> {
        crate::block_on(self.truncate_async(size))
    }

    /// Turns a range into a hole; the size does not change.
    ///
    /// # Errors
    /// [`Error::NotSupported`] if the store does not support holes; those of
    /// [`truncate_async`](Self::truncate_async).
    pub async fn punch_hole_async(&self, offset: u64, len: u64) -> Result<()> {
        self.for_writing()?;
        self.open.mapping.punch_hole(offset, len).await
    }

    /// Replaces a range by zeros that use no data, over reserved space if `reserve`. Extends the
    /// file to the end of the range; never shortens it, even if other callers write at the same
    /// time.
    ///
    /// # Errors [`Error::NotSupported`] if the store supports no holes, or no reservation; those of
    /// [`truncate_async`](Self::truncate_async).
    pub async fn zero_range_async(&self, offset: u64, len: u64, reserve: bool) -> Result<()> {
        self.for_writing()?;
        self.open.mapping.zero_range(offset, len, reserve).await
    }

    /// Reserves space for a range, and extends the file to its end.
    ///
    /// # Errors [`Error::NotSupported`] if the store cannot; those of
    /// [`truncate_async`](Self::truncate_async).
    pub async fn allocate_async(&self, offset: u64, len: u64) -> Result<()> {
        self.for_writing()?;
        self.open.mapping.allocate(offset, len).await
    }

    /// Shares `len` bytes (0: to the end) at `offset` of `from` with this file at `to_offset`.
    ///
    /// # Errors
    /// [`Error::CrossDevice`] between stores that do not share; [`Error::Invalid`] past the end of
    /// `from`; those of [`truncate_async`](Self::truncate_async).
    pub async fn clone_range_async(
        &self,
        from: &File,
        offset: u64,
        len: u64,
        to_offset: u64,
    ) -> Result<()> {
        self.transfer(from, Transfer::Clone, (offset, len, to_offset)).await.map(drop)
    }

    /// Has the store copy at most `len` bytes at `offset` of `from` to this file at `to_offset`, and
    /// make them durable. Returns how many: the store may copy fewer at a time.
    ///
    /// # Errors
    /// Those of [`clone_range_async`](Self::clone_range_async); the range's content is undefined
    /// then.
    pub async fn copy_range_async(
        &self,
        from: &File,
        offset: u64,
        len: u64,
        to_offset: u64,
    ) -> Result<u64> {
        self.transfer(from, Transfer::Copy, (offset, len, to_offset)).await
    }

    async fn transfer(&self, from: &File, how: Transfer, range: (u64, u64, u64)) -> Result<u64> {
        self.for_writing()?;
        let done = self.open.mapping.transfer(&from.open.mapping, how, range).await;
        if done.is_err() {
            // The error may be that of writeback before it, which is reported only once.
            self.open.unseen_error()?;
            from.open.unseen_error()?;
        }
        done
    }

    fn for_writing(&self) -> Result<()> {
        if self.open.access.contains(Access::WRITE) { Ok(()) } else { Err(Error::BadFile) }
    }

    /// Applies advice as posix_fadvise(2) does. Starts work and does not wait for it.
    ///
    /// For this open file, in every range:
    /// * `Normal`: read-ahead according to its reads; cancels the other three.
    /// * `Sequential`: the largest window from the first read on.
    /// * `Random`: no read-ahead.
    /// * `NoReuse`: its operations are uncached (no effect if the store does not support them).
    ///
    /// For the range (`len` 0: to the end):
    /// * `WillNeed`: brings in missing pages, up to half of the budget. Where operations are uncached, the first use
    ///   drops them, or the file's last close.
    /// * `DontNeed`: drops clean whole pages; starts writeback of dirty ones, which stay.
    ///
    /// # Errors None at present.
    pub fn advise(&self, offset: u64, len: u64, advice: Advice) -> Result<()> {
        let open = &self.open;
        let mapping = &open.mapping;
        let memory = &mapping.memory;
        let end = if len == 0 { u64::MAX } else { offset.saturating_add(len) };
        match advice {
            Advice::Normal | Advice::Sequential | Advice::Random => {
                if advice == Advice::Normal {
                    open.noreuse.store(false, Ordering::Relaxed);
                }
                open.readahead.lock().advise(advice);
            }
            Advice::NoReuse => {
                let able = mapping.store.capabilities().contains(Capabilities::UNCACHED);
                open.noreuse.store(able, Ordering::Relaxed);
            }
            Advice::WillNeed => {
                let pages = pages_spanning(offset, end.min(self.size()).saturating_sub(offset));
                let policy = open.default_policy();
                let mut left = memory.arena.frames() as usize / 2;
                mapping.fill_missing(pages, Purpose { policy, mark: None }, &mut |want| {
                    let want = want.min(left);
                    left -= want;
                    match policy {
                        _ if want == 0 => None,
                        CachePolicy::Uncached => memory.alloc_spare(want, policy),
                        CachePolicy::Cached => memory.try_alloc(want, 1, policy),
                    }
                });
            }
            Advice::DontNeed => {
                // Whole pages only, as in posix_fadvise(2).
                let last = if end >= self.size() { u64::MAX } else { end / PAGE_SIZE as u64 };
                mapping.drop_clean(offset.div_ceil(PAGE_SIZE as u64)..last);
                mapping.flush_soon();
            }
        }
        Ok(())
    }

    /// The data or hole at `offset` (SEEK), dirty pages included; the extent begins at `offset`.
    ///
    /// # Errors
    /// [`Error::NoSuchRange`] at or past the end; those of the store.
    pub async fn extent_at_async(&self, offset: u64) -> Result<Extent> {
        self.open.mapping.extent_at(offset).await
    }

    /// Ranges of the file that are resident as data, in bytes, for `weir map` and for tests.
    pub fn resident(&self) -> Vec<Range<u64>> {
        let mapping = &self.open.mapping;
        let mut state = mapping.state.lock();
        let mut ranges: Vec<Range<u64>> = Vec::new();
        mapping.edit(&mut state).visit(0..u64::MAX, &mut |page, _| {
            let start = page * PAGE_SIZE as u64;
            let end = start + PAGE_SIZE as u64;
            match ranges.last_mut() {
                Some(last) if last.end == start => last.end = end,
                _ => ranges.push(start..end),
            }
        });
        drop(state);
        ranges
    }

    /// Counters of this file since its mapping was created.
    pub fn stats(&self) -> Stats {
        self.open.mapping.counters.sum()
    }

    /// How often written data of this file was or may have been lost since its mapping was created;
    /// see [`CachedFs::write_errors`](crate::CachedFs::write_errors).
    pub fn write_errors(&self) -> u64 {
        self.open.mapping.state.lock().errors.count()
    }

    /// A number that grows whenever written data of any file of the store was or may have been lost, as
    /// [`CachedFs::write_errors`](crate::CachedFs::write_errors) does, and outlives mappings. It begins at random for
    /// each mount of a store: two equal numbers say that nothing was lost in between, also if the store was unmounted
    /// meanwhile, or if they are of two runs of the program.
    pub fn loss_epoch(&self) -> u64 {
        let store = &self.open.mapping.dirty.store;
        store.first_epoch.wrapping_add(store.errors.load(Ordering::SeqCst))
    }
}
