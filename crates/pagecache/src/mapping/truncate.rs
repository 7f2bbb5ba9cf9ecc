//! Changes of a whole file: truncate, hole punch, zeroing, allocate, clone, copy by the store.
//!
//! 1. Each runs alone: no fill, writeback or write of the file begins meanwhile, and none is in
//!    flight to the store except fills, which no longer publish: they may have read before or after
//!    the change. So the store never gets a write concurrently with another operation on the same
//!    range, nothing stale is published afterwards, and nothing new before (I5).
//! 2. The store is changed first, then slots and size in one write section of the sequence counter.
//!    Until then readers see the old file. If the store fails, size and dirty pages stay; the clean
//!    pages of the range are read again, as the store may have made a part of the change.
//! 3. Once started, a change completes even if the caller goes away.
//! 4. Frames for the pages at the edges are allocated beforehand, with no lock held.
//! 5. Only [`Mapping::truncate`] makes a file shorter. Operations that extend it compare its size
//!    under the exclusion, so that a write that was acknowledged meanwhile stays.
//! 6. A clone or copy needs the dirty pages of both files in the store. Writes that come in between are
//!    excluded from the second attempt on, so that writers who never pause do not delay it for ever.

use crate::cache_policy::CachePolicy;
use crate::mapping::edit::Edit;
use crate::mapping::index::{Replacement, Slot};
use crate::mapping::invalidate_lock::InvalidateLock;
use crate::mapping::{MAX_FILE_BYTES, Mapping};
use crate::memory::arena::{Frames, flag};
use crate::tasks::finish;
use std::ops::Range;
use std::sync::Arc;
use std::time::SystemTime;
use tracing::debug;
use weir_base::PAGE_SIZE;
use weir_vfs::{Capabilities, Error, Extent, KeptAttributes, OpenFile, Result, SegmentKind};

const PAGE: u64 = PAGE_SIZE as u64;

/// How a store moves data from one file to another.
#[derive(Clone, Copy)]
pub(crate) enum Transfer {
    /// The files share it.
    Clone,
    /// It is copied, as much of it as the store copies at a time.
    Copy,
}

/// A change of the store that was noted as begun; its drop notes the end. (Changes of attributes: `AttributeChange`.)
struct Noted<'a>(&'a Mapping);

impl Drop for Noted<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.overlay.end();
        state.overlay.resizing();
        state.durability.changed();
    }
}

impl Mapping {
    /// Sets the size.
    pub(crate) async fn truncate(self: &Arc<Self>, size: u64) -> Result<()> {
        if size > self.max_size() {
            return Err(Error::TooBig);
        }
        let mapping = self.clone();
        let work = async move {
            let frames = mapping.edge_frames(1).await;
            let invalidate_lock = mapping.lock_invalidate().await;
            let file = mapping.file();
            // What is in front of both ends stays as it is.
            let changed = size.min(mapping.size())..u64::MAX;
            mapping.in_store(&invalidate_lock, changed, file.set_size(size)).await?;
            mapping.resized(&invalidate_lock, size, size, frames);
            Ok(())
        };
        finish(&self.lane().tasks, work).await
    }

    /// Turns a range into a hole; the size does not change.
    pub(crate) async fn punch_hole(self: &Arc<Self>, offset: u64, len: u64) -> Result<()> {
        let end = offset.checked_add(len).filter(|&e| e <= MAX_FILE_BYTES).ok_or(Error::TooBig)?;
        let mapping = self.clone();
        let work = async move {
            let frames = mapping.edge_frames(2).await;
            let invalidate_lock = mapping.lock_invalidate().await;
            let file = mapping.file();
            // Pages that were never written back may define the file's length. The store has to
            // know that length before they are dropped.
            let size = mapping.size();
            let grown = end >= size && !mapping.state.lock().dirty.is_empty();
            let change = async {
                if grown {
                    grow(&*file, size).await?;
                }
                file.punch_hole(offset, len).await
            };
            mapping.in_store(&invalidate_lock, offset..end, change).await?;
            mapping.punched(&invalidate_lock, offset..end, frames);
            Ok(())
        };
        finish(&self.lane().tasks, work).await
    }

    /// Replaces a range by zeros that use no data, over reserved space if `reserve`; extends the
    /// file to the end of the range, and never shrinks it.
    pub(crate) async fn zero_range(
        self: &Arc<Self>,
        offset: u64,
        len: u64,
        reserve: bool,
    ) -> Result<()> {
        let max_size = self.max_size();
        let end = offset.checked_add(len).filter(|&e| e <= max_size).ok_or(Error::TooBig)?;
        if len == 0 {
            return Ok(());
        }
        let mapping = self.clone();
        let work = async move {
            let frames = mapping.edge_frames(2).await;
            let invalidate_lock = mapping.lock_invalidate().await;
            let file = mapping.file();
            let size = mapping.size();
            if offset < size && !mapping.store.capabilities().contains(Capabilities::HOLES) {
                // It would grow in vain.
                return Err(Error::NotSupported);
            }
            // Space first: without it nothing is changed. Past the end it reads as zeros.
            let change = async {
                if reserve {
                    file.allocate(offset, len).await?;
                } else {
                    grow(&*file, size.max(end)).await?;
                }
                if offset >= size {
                    return Ok(());
                }
                let old = end.min(size) - offset;
                if let Err(error) = file.punch_hole(offset, old).await {
                    ungrow(&*file, size, end).await;
                    return Err(error);
                }
                if reserve && let Err(error) = file.allocate(offset, old).await {
                    // The zeros are in place; only the reserved space for later data is lost.
                    debug!("space of zeros could not be reserved again: {error}");
                }
                Ok(())
            };
            mapping.in_store(&invalidate_lock, offset..end, change).await?;
            mapping.punched(&invalidate_lock, offset..end, frames);
            let none = Frames::none(&mapping.memory.arena);
            mapping.resized(&invalidate_lock, end, size.max(end), none);
            Ok(())
        };
        finish(&self.lane().tasks, work).await
    }

    /// Reserves space for a range; extends the file to its end.
    pub(crate) async fn allocate(self: &Arc<Self>, offset: u64, len: u64) -> Result<()> {
        let max_size = self.max_size();
        let end = offset.checked_add(len).filter(|&e| e <= max_size).ok_or(Error::TooBig)?;
        let mapping = self.clone();
        let work = async move {
            let invalidate_lock = mapping.lock_invalidate().await;
            let file = mapping.file();
            // No data changes.
            mapping.in_store(&invalidate_lock, 0..0, file.allocate(offset, len)).await?;
            let size = mapping.size().max(end);
            let none = Frames::none(&mapping.memory.arena);
            mapping.resized(&invalidate_lock, end, size, none);
            Ok(())
        };
        finish(&self.lane().tasks, work).await
    }

    /// Has the store move `len` bytes (0: to the end) at `offset` of `from` to this file at `to`.
    /// Returns how many bytes it moved.
    pub(crate) async fn transfer(
        self: &Arc<Self>,
        from: &Arc<Self>,
        how: Transfer,
        (offset, len, to): (u64, u64, u64),
    ) -> Result<u64> {
        let (mapping, from) = (self.clone(), from.clone());
        let work = async move {
            let same = Arc::ptr_eq(&mapping, &from);
            // Files of different stores may have the same identity.
            let order = |of: &Arc<Self>| (of.id, Arc::as_ptr(of) as usize);
            let is_first = order(&mapping) <= order(&from);
            let mut held = None;
            loop {
                // Both files' dirty pages have to be in the store; writes may follow in between (6).
                from.write_back(0..u64::MAX).await?;
                mapping.write_back(0..u64::MAX).await?;
                // In a fixed order, so that two of them in opposite directions do not deadlock.
                let (a, b) = if is_first { (&mapping, &from) } else { (&from, &mapping) };
                let first = a.lock_invalidate().await;
                let second = if same { None } else { Some(b.lock_invalidate().await) };
                if !mapping.state.lock().is_clean() || !from.state.lock().is_clean() {
                    drop((first, second));
                    held.get_or_insert_with(|| (mapping.hold_writers(), from.hold_writers()));
                    continue;
                }
                let source_size = from.size();
                let len = if len == 0 { source_size.saturating_sub(offset) } else { len };
                let inside = offset.checked_add(len).is_some_and(|end| end <= source_size);
                let end = to.checked_add(len).filter(|&e| e <= MAX_FILE_BYTES);
                let (true, Some(end)) = (inside, end) else { return Err(Error::Invalid) };
                if end > mapping.max_size() {
                    return Err(Error::TooBig);
                }
                if len == 0 {
                    // For the store, this would mean "to the end", which may be another one by now.
                    return Ok(0);
                }
                let (file, source) = (mapping.file(), from.file());
                let invalidate_lock = second.as_ref().filter(|_| !is_first).unwrap_or(&first);
                let change = async {
                    match how {
                        Transfer::Clone => {
                            file.clone_range(&*source, offset, len, to).await.map(|()| len)
                        }
                        Transfer::Copy => file.copy_range(&*source, offset, len, to).await,
                    }
                };
                let moved = mapping.in_store(invalidate_lock, to..end, change).await;
                let changed = match (moved, how) {
                    (Ok(moved), _) => to..to + moved.min(len),
                    (Err(_), Transfer::Clone) => to..to,
                    // The store may have copied a part.
                    (Err(_), Transfer::Copy) => to..end.min(mapping.size()),
                };
                // An empty range past the end would make the file longer.
                if !changed.is_empty() {
                    mapping.cloned(invalidate_lock, changed);
                }
                return moved.map(|moved| moved.min(len));
            }
        };
        finish(&self.lane().tasks, work).await
    }

    /// Up to `n` frames for the pages at the edges of a change.
    async fn edge_frames(self: &Arc<Self>, n: usize) -> Frames {
        self.memory.alloc(n, n, CachePolicy::Cached).await
    }

    /// Runs a change of the store, noted as ours; fills in flight no longer publish. If it fails, it may have
    /// changed some of the bytes in `range`.
    async fn in_store<T>(
        &self,
        invalidate_lock: &InvalidateLock,
        range: Range<u64>,
        change: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        self.disown_fills(invalidate_lock);
        {
            let mut state = self.state.lock();
            state.overlay.begin();
            state.overlay.resizing();
        }
        // Also if the store panics, or the caller goes away.
        let _noted = Noted(self);
        let changed = change.await;
        if let Err(error) = &changed
            && !matches!(error, Error::NotSupported | Error::CrossDevice)
            && !range.is_empty()
        {
            let mut state = self.state.lock();
            self.drop_unproven(&mut state, range.start / PAGE..range.end.div_ceil(PAGE));
            state.overlay.pages_dropped();
        }
        changed
    }

    /// The store's file has at least `stored` bytes: the mapping's size becomes `size`.
    fn resized(
        self: &Arc<Self>,
        _held: &InvalidateLock,
        stored: u64,
        size: u64,
        mut frames: Frames,
    ) {
        let mut state = self.state.lock();
        let old = self.size();
        let mut edit = self.edit(&mut state);
        let seqcount = self.write_seqcount(&edit);
        if size < old {
            let kept = size.div_ceil(PAGE);
            edit.replace(kept..u64::MAX, Replacement::Empty);
            self.forget_dirty(edit.state, kept..u64::MAX);
            if !size.is_multiple_of(PAGE) {
                let cut = (size % PAGE) as usize;
                self.cut_page(&mut edit, size / PAGE, cut..PAGE_SIZE, cut, &mut frames, 0);
            }
        } else {
            self.raise_mark(&edit, old, size);
            edit.replace(old.div_ceil(PAGE)..size.div_ceil(PAGE), Replacement::HoleWhereEmpty);
        }
        seqcount.set_size(size);
        drop(seqcount);
        let known = edit.state.stored_size.max(stored);
        edit.state.stored_size = if size < old { size } else { known };
        self.modified(edit);
    }

    /// The store has punched a hole: updates the pages.
    fn punched(self: &Arc<Self>, _held: &InvalidateLock, hole: Range<u64>, mut frames: Frames) {
        let mut state = self.state.lock();
        let size = self.size();
        let mut edit = self.edit(&mut state);
        let seqcount = self.write_seqcount(&edit);
        let end = hole.end.min(size);
        if hole.start < end {
            // Whole pages; the file's last page counts as whole if the hole covers it up to the end
            // of file.
            let last = if end == size { size.div_ceil(PAGE) } else { end / PAGE };
            let whole = hole.start.div_ceil(PAGE)..last;
            if last == size.div_ceil(PAGE) && !edit.state.dirty.is_empty() {
                // `punch_hole` has extended the store's file to this size.
                edit.state.stored_size = edit.state.stored_size.max(size);
            }
            if !whole.is_empty() {
                edit.replace(whole.clone(), Replacement::Hole);
                self.forget_dirty(edit.state, whole.clone());
            }
            let mut spare = 0;
            for page in [hole.start / PAGE, (end - 1) / PAGE] {
                if whole.contains(&page) || (spare == 1 && page == hole.start / PAGE) {
                    continue;
                }
                let from = (hole.start.max(page * PAGE) - page * PAGE) as usize;
                let to = (end.min((page + 1) * PAGE) - page * PAGE) as usize;
                let mark = (size - page * PAGE).min(PAGE) as usize;
                self.cut_page(&mut edit, page, from..to, mark, &mut frames, spare);
                spare += 1;
            }
        }
        drop(seqcount);
        self.modified(edit);
    }

    /// The store has new content in a range: drops the old pages.
    fn cloned(self: &Arc<Self>, _held: &InvalidateLock, range: Range<u64>) {
        let mut state = self.state.lock();
        let size = self.size();
        let mut edit = self.edit(&mut state);
        let seqcount = self.write_seqcount(&edit);
        edit.replace(range.start / PAGE..range.end.div_ceil(PAGE), Replacement::Empty);
        self.raise_mark(&edit, size, size.max(range.end));
        seqcount.set_size(size.max(range.end));
        drop(seqcount);
        edit.state.stored_size = edit.state.stored_size.max(range.end);
        self.modified(edit);
    }

    /// Zeroes part of a page, in frame number `spare` of `frames`; a fill of that page in flight no
    /// longer publishes it.
    fn cut_page(
        &self,
        edit: &mut Edit<'_>,
        page: u64,
        zero: Range<usize>,
        mark: usize,
        frames: &mut Frames,
        spare: usize,
    ) {
        match edit.slot(page) {
            Slot::Frame(old) => {
                let arena = &self.memory.arena;
                // SAFETY: the frame is in its slot while we hold the lock, and filling bytes past
                // the mark needs that lock, too.
                let bytes = unsafe { arena.bytes(old, 0, PAGE_SIZE) };
                frames.write(spare, 0, bytes);
                frames.zero(spare, zero.start, zero.end);
                let flags = arena.meta(old).flags() & (flag::DIRTY | flag::UNCACHED);
                let frame = frames.publish(spare, flags, mark);
                edit.put(page, frame);
            }
            Slot::InFlight(_) => edit.evict(page),
            Slot::Hole | Slot::Empty => {}
        }
    }

    fn modified(self: &Arc<Self>, edit: Edit<'_>) {
        let state = edit.finish();
        state.overlay.modified(SystemTime::now());
        self.list_dirty(state);
        self.lane().kick();
    }

    /// The data or hole at `offset`, dirty pages included.
    pub(crate) async fn extent_at(self: &Arc<Self>, offset: u64) -> Result<Extent> {
        loop {
            let ticket = self.changed.ticket();
            let size = self.size();
            if offset >= size {
                return Err(Error::NoSuchRange);
            }
            let found = self.extent_within(offset, size).await;
            // During a change of the whole file, the store is ahead of the mapping.
            let ahead = self.state.lock().invalidating;
            if !ahead && self.size() >= size {
                return found;
            }
            if ahead {
                self.changed.wait(ticket).await;
            }
        }
    }

    async fn extent_within(self: &Arc<Self>, offset: u64, size: u64) -> Result<Extent> {
        let mut found: Option<Extent> = None;
        let mut at = offset;
        while at < size {
            let next = self.next_extent(at, size).await?;
            match &mut found {
                None => found = Some(next),
                Some(extent) if extent.kind == next.kind => extent.end = next.end,
                Some(_) => break,
            }
            at = next.end;
        }
        found.ok_or(Error::NoSuchRange)
    }

    /// The extent at `at`, or part of it.
    async fn next_extent(self: &Arc<Self>, at: u64, size: u64) -> Result<Extent> {
        let page = at / PAGE;
        // Read before the store is asked: pages written back in between then count as data either
        // way.
        let unwritten = {
            let state = self.state.lock();
            let dirty = state.dirty.first_from(page);
            let in_flight = state
                .writeback
                .values()
                .filter(|r| r.end > page)
                .map(|r| r.start.max(page)..r.end)
                .min_by_key(|r| r.start);
            match (dirty, in_flight) {
                (Some(a), Some(b)) if b.start < a.start => Some(b),
                (Some(a), _) => Some(a),
                (None, b) => b,
            }
        };
        if let Some(run) = unwritten.as_ref().filter(|r| r.start == page) {
            let end = (run.end * PAGE).min(size);
            return Ok(Extent { kind: SegmentKind::Data, start: at, end });
        }
        let limit = unwritten.map_or(size, |r| (r.start * PAGE).min(size));
        match self.file().extent_at(at).await {
            Ok(extent) => Ok(Extent {
                kind: extent.kind,
                start: at,
                end: extent.end.min(if extent.kind == SegmentKind::Hole { limit } else { size }),
            }),
            // Past the end of the store's file, and not dirty.
            Err(Error::NoSuchRange) => {
                let stored = self.state.lock().stored_size;
                let (kind, end) = match at < stored {
                    // Another program has cut it off, as a read will find: it has written no zeros there.
                    true => (SegmentKind::Data, stored.min(size)),
                    // Never written.
                    false => (SegmentKind::Hole, limit),
                };
                Ok(Extent { kind, start: at, end })
            }
            Err(error) => Err(error),
        }
    }

    /// Drops all pages, dirty ones too: the file no longer exists.
    pub(crate) fn discard(&self) {
        let mut state = self.state.lock();
        self.forget_dirty(&mut state, 0..u64::MAX);
        let size = self.size();
        self.invalidate(&mut state, size);
    }
}

/// Makes a store's file at least `size` long; another program may have appended to it, after the store has kept
/// attributes of it.
async fn grow(file: &dyn OpenFile, size: u64) -> Result<()> {
    file.forget_attributes(KeptAttributes::All);
    if file.getattr().await?.size < size { file.set_size(size).await } else { Ok(()) }
}

/// Undoes an extension of a store's file from `size` to `end`, if its size is still `end`.
async fn ungrow(file: &dyn OpenFile, size: u64, end: u64) {
    file.forget_attributes(KeptAttributes::All);
    let grown = end > size && file.getattr().await.is_ok_and(|attr| attr.size == end);
    if grown && let Err(error) = file.set_size(size).await {
        debug!("a file that grew for a change that failed stays as long: {error}");
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
