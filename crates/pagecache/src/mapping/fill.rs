//! Fills: reads of the store in flight, and what they publish.
//!
//! 1. A fill that fails publishes nothing (I9).
//! 2. A page is published only as far as the store said what is there; a short read leaves the
//!    rest empty. Past the store's end of file and before ours, nothing was ever written: a hole.
//!    That is so only as far as the store's file never was that long; see `mapping/early_eof.rs`.
//! 3. A hole page uses no frame (I8). What the store tells of a hole beyond the request is
//!    believed only if nothing was changed since the read began, and nothing written back either: a
//!    page may have been written, and dropped, since the store looked.
//! 4. A fill ends even if everybody who wanted it has left.
//! 5. One that was in flight when a change of the file as a whole began publishes nothing:
//!    it may have read before that change or after.
//!
//! Soundness: the buffer handed to the store writes into frames that are not published; they
//! belong to the fill until the store has given the buffer back.

use crate::cache_policy::CachePolicy;
use crate::mapping::index::{self, Found, Slot};
use crate::mapping::invalidate_lock::InvalidateLock;
use crate::mapping::{Edit, MAX_FILE_BYTES, Mapping};
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

/// Known holes up to this many pages are read through rather than around: 64 KiB.
const READ_THROUGH_PAGES: u64 = 16;

/// Pages brought in at a time: 1 MiB. Each piece of a read-ahead has a mark.
pub(crate) const PIECE: u64 = 256;

/// A read of the store in flight.
pub(crate) struct Fill {
    pub(crate) number: u64,
    pages: Range<u64>,
    /// The mapping's sequence when it began.
    sequence: u64,
    /// The store's file was at least so long then, in bytes.
    pub(crate) stored_size: u64,
    /// How often the store was asked.
    pub(crate) asked: AtomicU32,
    /// The number of the next write to the store then, unless one was in flight.
    next_write: Option<u64>,
    policy: CachePolicy,
    /// The first page that was not asked for, if the fill reads ahead: the first one with data from
    /// there on is marked.
    mark: Option<u64>,
    outcome: Mutex<Outcome>,
}

#[derive(Default)]
struct Outcome {
    result: Option<Result<()>>,
    /// Pages of an uncached fill that a cached read waits for.
    claimed: RangeSet,
    /// What it brings is not wanted any more.
    disowned: bool,
}

/// What a fill is for.
#[derive(Clone, Copy, Default)]
pub(crate) struct Purpose {
    /// That of the operation that wants it.
    pub(crate) policy: CachePolicy,
    /// From this page on it reads ahead; reading the first of those is to start the next read-ahead.
    pub(crate) mark: Option<u64>,
}

impl Fill {
    /// The pages that it reads.
    pub(crate) fn pages(&self) -> Range<u64> {
        self.pages.clone()
    }

    /// How it ended, once it has.
    pub(crate) fn result(&self) -> Option<Result<()>> {
        self.outcome.lock().result
    }

    /// The store says that the file ends before where it is known to have ended, within the pages
    /// asked for.
    pub(crate) fn ends_early(&self, layout: &Layout) -> bool {
        let page = PAGE_SIZE as u64;
        let asked = self.pages.end.saturating_mul(page).min(self.stored_size);
        layout.eof && layout.end(self.pages.start * page) < asked
    }

    /// Has it publish nothing: the store was changed while it read.
    pub(crate) fn disown(&self) {
        self.outcome.lock().disowned = true;
    }

    /// Whether it publishes nothing.
    pub(crate) fn is_disowned(&self) -> bool {
        self.outcome.lock().disowned
    }

    /// Says that a cached read wants a page of it to stay.
    pub(crate) fn claim(&self, page: u64) {
        if self.policy.is_uncached() {
            self.outcome.lock().claimed.insert(page..page + 1);
        }
    }
}

impl Mapping {
    /// Begins to read the empty pages from `first` on, and through short holes between them, into
    /// `frames`. `None` if the first one is
    /// not empty any more, or is past the end, or the file is being changed as a whole.
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
            let mut edit = self.edit(&state);
            let number = state.next_fill;
            let (mut page, mut last) = (first, first);
            while page < end {
                match edit.slot(page) {
                    Slot::Empty => {
                        edit.set(page, Slot::InFlight(number));
                        last = page + 1;
                    }
                    // Read through: a read of the store for each piece of data between short holes
                    // would cost more than their frames do.
                    Slot::Hole if last > first && page - last < READ_THROUGH_PAGES => {}
                    _ => break,
                }
                page += 1;
            }
            edit.finish(&mut state);
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

    /// Asks the store for what a fill is to bring, in `frames`.
    pub(crate) fn ask_store(self: &Arc<Self>, fill: &Arc<Fill>, frames: Frames) {
        self.count(Count::Fills, 1);
        fill.asked.fetch_add(1, Ordering::Relaxed);
        let start = fill.pages.start * PAGE_SIZE as u64;
        // The last page that a file can have ends one byte behind its largest size.
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

    /// Begins fills for what is missing of a range, in frames that `alloc` gives, as far as it
    /// does. Returns up to which page everything is there or on its way.
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
            // Another caller may have begun to read the page.
            let after = self.start_fill(page, frames, purpose).map_or(page + 1, |f| f.pages().end);
            page = self.missing_from(after, end);
        }
        pages.end
    }

    /// The first page behind `page` that is neither there nor on its way, or `end`.
    pub(crate) fn missing_after(&self, page: u64, end: u64) -> u64 {
        self.missing_from(page + 1, end.max(page + 1))
    }

    /// The first page from `page` on that is neither there nor on its way, or `end`.
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

    /// Publishes what a fill brought.
    pub(crate) fn end_fill(&self, fill: &Fill, mut frames: Frames, result: Result<Layout>) {
        let mut state = self.state.lock();
        state.fills.retain(|f| f.number != fill.number);
        let mut edit = self.edit(&state);
        let result = match result {
            Ok(_) if fill.is_disowned() => Ok(()),
            Ok(layout) => {
                let claimed = std::mem::take(&mut fill.outcome.lock().claimed);
                let unwritten = fill.next_write == Some(state.next_write);
                let published = self.publish(fill, &mut frames, &layout, &claimed, &mut edit);
                if published.is_ok() && unwritten {
                    self.remember_hole(fill, &layout, &mut edit);
                }
                published
            }
            Err(error) => Err(error),
        };
        // What was not published is empty again.
        for page in fill.pages.clone() {
            if edit.slot(page) == Slot::InFlight(fill.number) {
                edit.evict(page);
            }
        }
        edit.finish(&mut state);
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
            // A read that brings nothing and is not at the end would be asked for ever again.
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
            // Zero all of the page that is not data; if that is all of it, it is a hole.
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
                // Each piece of a long read-ahead has its mark, should the one before be a hole.
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

    /// Marks what the layout tells of a hole past the request.
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

    /// Has what is in flight publish nothing: the store is about to be changed.
    pub(crate) fn disown_fills(&self, _held: &InvalidateLock) {
        for fill in &self.state.lock().fills {
            fill.disown();
        }
    }

    /// The fill of this number, while it is in flight.
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

/// Frames of a fill, as the store sees them.
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
                // SAFETY: inside of a run of frames that belong to the fill alone while the
                // buffer lives; runs do not overlap, and `&mut self` keeps slices apart.
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
