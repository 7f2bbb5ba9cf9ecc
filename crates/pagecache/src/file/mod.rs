//! An open file.
//!
//! 1. What belongs to the open file alone lies here: read-ahead, advice, and which writeback error
//!    it has been told of. Pages and size belong to the mapping, which all open files share.
//! 2. An error of writeback, or of the store's sync, is told once to every file that was open when it
//!    happened, and to files opened later until one has been told (I9, `writeback/errseq.rs`).

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
use crate::stats::Stats;
use std::ops::Range;
use std::sync::Arc;
use weir_base::sync::Mutex;
use weir_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use weir_base::{PAGE_SIZE, pages_spanning};
use weir_vfs::{Access, Advice, Attr, Capabilities, Error, Extent, FileId, Result};

/// The mounted store that a file was opened through. An open file keeps it.
pub(crate) trait Mount: Send + Sync {
    /// Counts one open file less.
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
    /// Advised to leave no trace: operations are uncached.
    pub(crate) noreuse: AtomicBool,
    /// The page in the middle of which its last uncached read ended.
    pub(crate) half_read: AtomicU64,
    /// How many errors of the file it has been told of, the last one included.
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
    /// Tells of a writeback error that this file has not been told of.
    pub(crate) fn unseen_error(&self) -> Result<()> {
        self.mapping.state.lock().errors.tell(&self.seen_error)
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

    /// Which file it is.
    pub fn id(&self) -> FileId {
        self.open.mapping.id
    }

    /// Size in bytes.
    pub fn size(&self) -> u64 {
        self.open.mapping.size()
    }

    /// What it is open for.
    pub fn access(&self) -> Access {
        self.open.access
    }

    /// Whether the file's last name was removed through this cache: a program that keeps it open
    /// without need keeps its space.
    pub fn is_unlinked(&self) -> bool {
        self.open.mapping.unlinked.load(Ordering::Relaxed)
    }

    /// Attributes, dirty data included; also after the last name is gone.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn getattr(&self) -> Result<Attr> {
        self.open.mapping.getattr().await
    }

    /// Writes back and makes durable (with attributes, unless `data_only`).
    ///
    /// # Errors
    /// Data that was written is lost, through any open file: the error of its write to the store,
    /// told to each open file once; those of the store's sync, told likewise.
    pub async fn sync_async(&self, data_only: bool) -> Result<()> {
        self.sync_range_async(0..u64::MAX, data_only).await
    }

    /// The same for bytes of a range: what is dirty elsewhere need not be written back for it.
    ///
    /// # Errors
    /// Those of [`sync_async`](Self::sync_async).
    pub async fn sync_range_async(&self, range: Range<u64>, data_only: bool) -> Result<()> {
        let mapping = &self.open.mapping;
        let written = mapping
            .write_back(pages_spanning(range.start, range.end.saturating_sub(range.start)))
            .await;
        let synced = match written {
            Ok(()) => {
                mapping.settle().await;
                let file = mapping.file();
                mapping.make_durable(file.sync(data_only)).await
            }
            lost => lost,
        };
        self.open.unseen_error()?;
        synced
    }

    /// Writes back, makes durable and closes. A file that is dropped instead is written back later,
    /// and not at all if its store is gone by then.
    ///
    /// # Errors
    /// Those of [`sync_async`](Self::sync_async); the file is closed all the same.
    pub async fn close(self) -> Result<()> {
        match self.access().contains(Access::WRITE) {
            true => self.sync_async(false).await,
            false => Ok(()),
        }
    }

    /// [`sync_async`](Self::sync_async), for threads.
    ///
    /// # Errors
    /// Those of [`sync_async`](Self::sync_async).
    pub fn sync(&self, data_only: bool) -> Result<()> {
        crate::block_on(self.sync_async(data_only))
    }

    /// Sets the size: truncates, or extends with a hole.
    ///
    /// # Errors
    /// [`Error::TooBig`]; [`Error::BadFile`] if not open for writing; those of the store, and then
    /// nothing has happened.
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

    /// Turns a range into a hole; the size stays.
    ///
    /// # Errors
    /// [`Error::NotSupported`] if the store knows no holes; as for
    /// [`truncate_async`](Self::truncate_async).
    pub async fn punch_hole_async(&self, offset: u64, len: u64) -> Result<()> {
        self.for_writing()?;
        self.open.mapping.punch_hole(offset, len).await
    }

    /// Makes a range zeros that take no data, on space that is reserved if `reserve`; extends the file
    /// to the range's end, and never makes it shorter, also if others write to it at the same time.
    ///
    /// # Errors
    /// [`Error::NotSupported`] if the store knows no holes, or cannot reserve; as for
    /// [`truncate_async`](Self::truncate_async).
    pub async fn zero_range_async(&self, offset: u64, len: u64, reserve: bool) -> Result<()> {
        self.for_writing()?;
        self.open.mapping.zero_range(offset, len, reserve).await
    }

    /// Reserves space for a range, extending the file to its end.
    ///
    /// # Errors
    /// [`Error::NotSupported`] if the store cannot; as for
    /// [`truncate_async`](Self::truncate_async).
    pub async fn allocate_async(&self, offset: u64, len: u64) -> Result<()> {
        self.for_writing()?;
        self.open.mapping.allocate(offset, len).await
    }

    /// Shares `len` bytes (0: to the end) at `offset` of `from` at `to_offset` of this file.
    ///
    /// # Errors
    /// [`Error::CrossDevice`] between stores; [`Error::Invalid`] past the end of `from`; as for
    /// [`truncate_async`](Self::truncate_async).
    pub async fn clone_range_async(
        &self,
        from: &File,
        offset: u64,
        len: u64,
        to_offset: u64,
    ) -> Result<()> {
        self.for_writing()?;
        if !Arc::ptr_eq(&self.open.mapping.dirty.store, &from.open.mapping.dirty.store) {
            return Err(Error::CrossDevice);
        }
        let cloned =
            self.open.mapping.clone_range(&from.open.mapping, offset, len, to_offset).await;
        if cloned.is_err() {
            // It may be that of writing a file back first, which is told once.
            self.open.unseen_error()?;
            from.open.unseen_error()?;
        }
        cloned
    }

    fn for_writing(&self) -> Result<()> {
        if self.open.access.contains(Access::WRITE) { Ok(()) } else { Err(Error::BadFile) }
    }

    /// Takes advice, as posix_fadvise(2) does. Starts work, and waits for none.
    ///
    /// For this open file, in any range:
    /// * `Normal`: read-ahead as its reads suggest. Takes all that follows back.
    /// * `Sequential`: the largest window from the first read on.
    /// * `Random`: no read-ahead.
    /// * `NoReuse`: its operations are uncached (nothing, if the store knows no such operations).
    ///
    /// For the range, `len` 0 meaning to the end:
    /// * `WillNeed`: what is missing is brought in, up to a half of the budget.
    /// * `DontNeed`: clean whole pages go at once; dirty ones begin their way to the store, and stay.
    ///
    /// # Errors
    /// None at present.
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
                let policy = CachePolicy::uncached_if(open.noreuse.load(Ordering::Relaxed));
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
                // Whole pages only, as posix_fadvise(2) has it.
                let last = if end >= self.size() { u64::MAX } else { end / PAGE_SIZE as u64 };
                mapping.drop_clean(offset.div_ceil(PAGE_SIZE as u64)..last);
                mapping.flush_soon();
            }
        }
        Ok(())
    }

    /// Data or hole at `offset` (SEEK), dirty pages included, from `offset` on.
    ///
    /// # Errors
    /// [`Error::NoSuchRange`] at or past the end; those of the store.
    pub async fn extent_at_async(&self, offset: u64) -> Result<Extent> {
        self.open.mapping.extent_at(offset).await
    }

    /// Which parts of the file are resident as data, in bytes, for pictures (`weir map`) and proofs.
    pub fn resident(&self) -> Vec<Range<u64>> {
        let mapping = &self.open.mapping;
        let state = mapping.state.lock();
        let mut ranges: Vec<Range<u64>> = Vec::new();
        mapping.edit(&state).visit(&mut |page, _| {
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

    /// What happened to this file's pages since its mapping was made.
    pub fn stats(&self) -> Stats {
        self.open.mapping.counters.sum()
    }

    /// How often written data of this file was lost, or may have been, since its mapping was made:
    /// see [`CachedFs::write_errors`](crate::CachedFs::write_errors).
    pub fn write_errors(&self) -> u64 {
        self.open.mapping.state.lock().errors.count()
    }

    /// How often written data of any file of the same store was lost, or may have been: the count that
    /// [`CachedFs::write_errors`](crate::CachedFs::write_errors) gives, which outlives mappings.
    pub fn store_write_errors(&self) -> u64 {
        self.open.mapping.dirty.store.errors.load(Ordering::SeqCst)
    }
}
