//! Fills: reads of the store in flight, and the pages that they publish.
//!
//! 1. A failed fill publishes nothing (I9).
//! 2. A fill publishes only pages that the store's answer covers; after a short read the rest stays
//!    empty. What lies past the store's end of file and before ours was never written: a hole. This
//!    requires that the store's file never was longer; see `mapping/early_eof.rs`.
//! 3. A hole page uses no frame (I8). The fill records a hole beyond the request only if nothing
//!    was changed or written back since the read began: otherwise a page may have been written, and
//!    dropped again, after the store's look.
//! 4. A fill completes even if every caller that waited for it is gone.
//! 5. A fill in flight when a change of the whole file begins publishes nothing: it may have read
//!    before or after that change.
//!
//! Soundness: the buffer handed to the store writes into frames that are not published; they
//! belong to the fill until the store has given the buffer back.

use crate::cache_policy::CachePolicy;
use crate::mapping::edit::Edit;
use crate::mapping::index::{self, Found, Slot};
use crate::mapping::{MAX_FILE_BYTES, Mapping};
use crate::memory::arena::{Arena, Frames, flag};
use crate::memory::frame_no::FrameNo;
use crate::ranges::RangeSet;
use crate::stats::Count;
use std::io::IoSliceMut;
use std::ops::Range;
use std::sync::Arc;
use weir_base::PAGE_SIZE;
use weir_base::sync::Mutex;
use weir_base::sync::atomic::{AtomicU32, Ordering};
use weir_vfs::{Buffer, Error, Layout, ReadOp, Result, SegmentKind};

/// Fills read through known holes of up to this many pages (64 KiB).
const READ_THROUGH_PAGES: u64 = 16;

/// Most pages of one fill: 1 MiB. Each piece of a read-ahead has a mark.
pub(crate) const PIECE: u64 = 256;

/// A read of the store in flight.
pub(crate) struct Fill {
    pub(crate) number: u64,
    pages: Range<u64>,
    /// The mapping's sequence when the fill began.
    sequence: u64,
    /// A lower bound of the length of the store's file at that time, in bytes.
    pub(crate) stored_size: u64,
    /// How often the fill has asked the store.
    pub(crate) asked: AtomicU32,
    /// The number of the next write to the store at that time, unless a write was in flight.
    next_write: Option<u64>,
    policy: CachePolicy,
    /// The first page of read-ahead, if any: the first page with data from there on is marked.
    mark: Option<u64>,
    outcome: Mutex<Outcome>,
}

#[derive(Default)]
struct Outcome {
    result: Option<Result<()>>,
    /// Pages of an uncached fill that a cached read waits for.
    claimed: RangeSet,
    /// The fill publishes nothing.
    disowned: bool,
}

/// The purpose of a fill.
#[derive(Clone, Copy, Default)]
pub(crate) struct Purpose {
    /// The policy of the operation that needs the pages.
    pub(crate) policy: CachePolicy,
    /// The first page of read-ahead; the read that reaches it starts the next read-ahead.
    pub(crate) mark: Option<u64>,
}

impl Fill {
    /// The pages that it reads.
    pub(crate) fn pages(&self) -> Range<u64> {
        self.pages.clone()
    }

    /// The result, once the fill has ended.
    pub(crate) fn result(&self) -> Option<Result<()>> {
        self.outcome.lock().result
    }

    /// Whether the store reports an end of file before the known one, within the pages asked for.
    pub(crate) fn ends_early(&self, layout: &Layout) -> bool {
        let page = PAGE_SIZE as u64;
        let asked = self.pages.end.saturating_mul(page).min(self.stored_size);
        layout.eof && layout.end(self.pages.start * page) < asked
    }

    /// Keeps the fill from publishing: the store was changed while it read.
    pub(crate) fn disown(&self) {
        self.outcome.lock().disowned = true;
    }

    /// Whether it publishes nothing.
    pub(crate) fn is_disowned(&self) -> bool {
        self.outcome.lock().disowned
    }

    /// A cached read waits for this page of the fill: it is to stay.
    pub(crate) fn claim(&self, page: u64) {
        if self.policy.is_uncached() {
            self.outcome.lock().claimed.insert(page..page + 1);
        }
    }
}

impl Mapping {
    /// Starts a fill of the empty pages from `first` on, through short holes between them, in
    /// `frames`. `None` if the first page is not empty or past the end, or if a change of the whole
    /// file is in progress.
    pub(crate) fn start_fill(
        self: &Arc<Self>,
        first: u64,
        mut frames: Frames,
        purpose: Purpose,
    ) -> Option<Arc<Fill>> {
        let fill = {
            let mut state = self.state.lock();
            if state.invalidating {
                return None;
            }
            let end = self.size().div_ceil(PAGE_SIZE as u64).min(first + frames.len() as u64);
            let number = state.next_fill;
            let mut edit = self.edit(&mut state);
            let (mut page, mut last) = (first, first);
            while page < end {
                match edit.slot(page) {
                    Slot::Empty => {
                        edit.set(page, Slot::InFlight(number));
                        last = page + 1;
                    }
                    // Read through: one read of the store for each piece of data between short
                    // holes would cost more than frames for the holes.
                    Slot::Hole if last > first && page - last < READ_THROUGH_PAGES => {}
                    _ => break,
                }
                page += 1;
            }
            edit.finish();
            if last == first {
                return None;
            }
            state.next_fill += 1;
            let fill = Arc::new(Fill {
                number,
                pages: first..last,
                sequence: self.sequence(),
                stored_size: state.stored_size,
                asked: AtomicU32::new(0),
                next_write: state.writeback.is_empty().then_some(state.next_write),
                policy: purpose.policy,
                mark: purpose.mark,
                outcome: Mutex::default(),
            });
            state.fills.push(fill.clone());
            fill
        };
        let pages = fill.pages.end - first;
        frames.truncate(pages as usize);
        self.ask_store(&fill, frames);
        Some(fill)
    }

    /// Submits a fill's read of the store, into `frames`.
    pub(crate) fn ask_store(self: &Arc<Self>, fill: &Arc<Fill>, frames: Frames) {
        self.count(Count::Fills, 1);
        fill.asked.fetch_add(1, Ordering::Relaxed);
        let start = fill.pages.start * PAGE_SIZE as u64;
        // The last page of the largest possible file lacks its last byte.
        let most = MAX_FILE_BYTES.saturating_sub(start);
        let buffer = FrameBuffer {
            arena: self.memory.arena.clone(),
            runs: frames.runs().collect(),
            len: (frames.len() * PAGE_SIZE).min(usize::try_from(most).unwrap_or(usize::MAX)),
        };
        let mapping = self.clone();
        let ended = fill.clone();
        let op = ReadOp::new(start, Box::new(buffer), move |buffer, result| {
            // From here on the store cannot write to the frames.
            drop(buffer);
            match result {
                Ok(layout) if ended.ends_early(&layout) => mapping.look_at_size(ended, frames),
                result => mapping.end_fill(&ended, frames, result),
            }
        });
        self.file().submit_read(op.uncached(fill.policy.is_uncached()));
    }

    /// Starts fills for the missing pages of a range, in frames from `alloc`, until it returns
    /// none. Returns the end of the pages that are present or in flight.
    pub(crate) fn fill_missing(
        self: &Arc<Self>,
        pages: Range<u64>,
        purpose: Purpose,
        alloc: &mut dyn FnMut(usize) -> Option<Frames>,
    ) -> u64 {
        let end = pages.end.min(self.size().div_ceil(PAGE_SIZE as u64));
        let mut page = self.missing_from(pages.start, end);
        while page < end {
            let want = (end - page).min(PIECE) as usize;
            let want = want.min(self.memory.limits().step);
            let Some(frames) = alloc(want) else { return page };
            // Another caller may have started to fill the page.
            let after = self.start_fill(page, frames, purpose).map_or(page + 1, |f| f.pages().end);
            page = self.missing_from(after, end);
        }
        pages.end
    }

    /// The first page after `page` that is neither present nor in flight, or `end`.
    pub(crate) fn missing_after(&self, page: u64, end: u64) -> u64 {
        self.missing_from(page + 1, end.max(page + 1))
    }

    /// The first page from `page` on that is neither present nor in flight, or `end`.
    fn missing_from(&self, mut page: u64, end: u64) -> u64 {
        let guard = self.memory.epoch.enter();
        while page < end {
            page = match self.index.lookup(page, &guard) {
                Found::Empty(_) => return page,
                Found::Hole(until) => until.min(end),
                Found::Leaf(leaf) => {
                    let missing = leaf.skip(page, |slot| slot != Slot::Empty);
                    if missing < leaf.end(page) {
                        return missing.min(end);
                    }
                    missing
                }
            };
        }
        end
    }

    /// Publishes the pages of a fill.
    pub(crate) fn end_fill(&self, fill: &Fill, mut frames: Frames, result: Result<Layout>) {
        let mut state = self.state.lock();
        state.fills.retain(|f| f.number != fill.number);
        let mut edit = self.edit(&mut state);
        let result = match result {
            Ok(_) if fill.is_disowned() => Ok(()),
            Ok(layout) => {
                let claimed = std::mem::take(&mut fill.outcome.lock().claimed);
                let unwritten = fill.next_write == Some(edit.state.next_write);
                let published = self.publish(fill, &mut frames, &layout, &claimed, &mut edit);
                if published.is_ok() && unwritten {
                    self.remember_hole(fill, &layout, &mut edit);
                }
                published
            }
            Err(error) => Err(error),
        };
        // Slots of unpublished pages become empty again.
        for page in fill.pages.clone() {
            if edit.slot(page) == Slot::InFlight(fill.number) {
                edit.evict(page);
            }
        }
        edit.finish();
        if result.is_err() {
            self.count(Count::FillErrors, 1);
        }
        fill.outcome.lock().result = Some(result);
        drop(state);
        drop(frames);
        self.changed.notify();
        self.memory.waiters.notify();
    }

    fn publish(
        &self,
        fill: &Fill,
        frames: &mut Frames,
        layout: &Layout,
        claimed: &RangeSet,
        edit: &mut Edit<'_>,
    ) -> Result<()> {
        let page_bytes = PAGE_SIZE as u64;
        let size = self.size();
        let start = fill.pages.start * page_bytes;
        let known = if layout.eof { u64::MAX } else { layout.end(start) };
        if known <= start {
            // A read without progress before the end of file would be repeated forever.
            return Err(Error::Io);
        }
        let (mut data_pages, mut hole_pages, mut ahead, mut kept) = (0, 0, 0, 0);
        let mut extents = layout.extents.as_slice();
        for (index, page) in fill.pages.clone().enumerate() {
            if edit.slot(page) != Slot::InFlight(fill.number) {
                continue;
            }
            let from = page * page_bytes;
            let to = (from + page_bytes).min(size);
            if from >= size || known < to {
                continue;
            }
            while extents.first().is_some_and(|e| e.end <= from) {
                extents = &extents[1..];
            }
            // Zero the rest of a page with data; a page without data is a hole.
            let mut at = from;
            let mut has_data = false;
            for extent in extents.iter().take_while(|e| e.start < to) {
                if extent.kind == SegmentKind::Data {
                    let data = extent.start.max(from)..extent.end.min(to);
                    frames.zero(index, (at - from) as usize, (data.start - from) as usize);
                    at = data.end;
                    has_data = true;
                }
            }
            if !has_data {
                edit.set(page, Slot::Hole);
                hole_pages += 1;
                continue;
            }
            frames.zero(index, (at - from) as usize, PAGE_SIZE);
            let mut flags = 0;
            if fill.policy.is_uncached() {
                if claimed.contains(page) {
                    kept += 1;
                } else {
                    flags |= flag::UNCACHED;
                }
            }
            if fill.mark.is_some_and(|mark| page >= mark) {
                // Each piece of a long read-ahead has a mark, in case the previous piece was a
                // hole.
                if ahead == 0 {
                    flags |= flag::READAHEAD;
                }
                ahead += 1;
            }
            let frame = frames.publish(index, flags, (to - from) as usize);
            edit.put(page, frame);
            data_pages += 1;
        }
        self.count(Count::FillPages, data_pages);
        self.count(Count::HolePages, hole_pages);
        self.count(Count::ReadaheadPages, ahead);
        if fill.policy.is_uncached() {
            self.marks_left.store(true, Ordering::Relaxed);
            self.count(Count::UncachedPages, data_pages);
            self.count(Count::ClaimedPages, kept);
        }
        Ok(())
    }

    /// Records the part of a hole past the request.
    fn remember_hole(&self, fill: &Fill, layout: &Layout, edit: &mut Edit<'_>) {
        let Some(last) = layout.extents.last() else { return };
        if last.kind != SegmentKind::Hole || self.sequence() != fill.sequence {
            return;
        }
        let size = self.size();
        let end = if last.end >= size {
            size.div_ceil(PAGE_SIZE as u64)
        } else {
            last.end / PAGE_SIZE as u64
        };
        if end > fill.pages.end {
            edit.replace(fill.pages.end..end, index::Replacement::HoleWhereEmpty);
        }
    }

    /// The fill with this number, while it is in flight.
    pub(crate) fn fill_in_flight(&self, number: u64) -> Option<Arc<Fill>> {
        self.state.lock().fills.iter().find(|f| f.number == number).cloned()
    }

    /// Waits until a fill has ended.
    pub(crate) async fn join(&self, fill: &Fill) -> Result<()> {
        loop {
            let ticket = self.changed.ticket();
            if let Some(result) = fill.result() {
                return result;
            }
            self.changed.wait(ticket).await;
        }
    }
}

/// A fill's frames, as the store's buffer.
struct FrameBuffer {
    arena: Arc<Arena>,
    runs: Vec<(FrameNo, usize)>,
    len: usize,
}

// SAFETY: the frames belong to the fill alone while the buffer lives, and the buffer keeps their arena,
// in which frames never move.
unsafe impl Buffer for FrameBuffer {
    fn len(&self) -> usize {
        self.len
    }

    fn slices<'a>(&'a mut self, from: usize, to: usize, out: &mut Vec<IoSliceMut<'a>>) {
        assert!(from <= to && to <= self.len);
        let mut at = 0;
        for &(frame, count) in &self.runs {
            let run = at..at + count * PAGE_SIZE;
            at = run.end;
            let (start, end) = (from.max(run.start), to.min(run.end));
            if start < end {
                // SAFETY: within a run of frames that belong to the fill alone while the buffer
                // lives; runs do not overlap, and `&mut self` keeps slices apart.
                out.push(IoSliceMut::new(unsafe {
                    std::slice::from_raw_parts_mut(
                        self.arena.ptr(frame).add(start - run.start),
                        end - start,
                    )
                }));
            }
        }
    }
}
