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

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::File;
    use crate::mapping::writeback::Ask;
    use crate::testing::Rig;
    use weir_stores::fault::{Call, What};
    use weir_vfs::{Advice, Extent, IoFlags};

    const PAGE: u64 = PAGE_SIZE as u64;

    /// A file in the store of which nothing is cached, in a cache without threads of its own.
    fn cold(pages: u64) -> (Rig, File) {
        let rig = Rig::without_threads();
        let file = rig.create("f");
        file.write_at(&vec![1; (pages * PAGE) as usize], 0, IoFlags::empty()).unwrap();
        file.sync(true).unwrap();
        drop_clean(&file);
        (rig, file)
    }

    fn drop_clean(file: &File) {
        file.advise(0, 0, Advice::DontNeed).unwrap();
        assert_eq!(file.resident(), []);
    }

    fn start_fill(file: &File, page: u64, pages: usize) -> Option<Arc<Fill>> {
        let mapping = &file.open.mapping;
        let frames = mapping.memory.try_alloc(pages, pages, CachePolicy::Cached).unwrap();
        mapping.start_fill(page, frames, Purpose::default())
    }

    fn read(file: &File, page: u64) -> Result<[u8; PAGE_SIZE]> {
        let mut bytes = [9; PAGE_SIZE];
        let n = file.read_at(&mut bytes, page * PAGE, IoFlags::empty())?;
        assert_eq!(n, PAGE_SIZE);
        Ok(bytes)
    }

    #[test]
    fn each_fill_publishes_its_own_pages_and_leaves_newer_ones() {
        let (rig, file) = cold(6);
        rig.always(Call::Read, What::Hold);
        let first = start_fill(&file, 0, 3).unwrap();
        let second = start_fill(&file, 3, 3).unwrap();
        assert_ne!(first.number, second.number);
        assert_eq!(file.open.mapping.fill_in_flight(second.number).unwrap().pages(), 3..6);
        assert!(start_fill(&file, 2, 1).is_none(), "in flight");
        file.write_at(&[2; PAGE_SIZE], PAGE, IoFlags::empty()).unwrap();
        rig.store.clear();
        rig.store.release();
        assert_eq!(rig.fs.cache().dirty_bytes(), PAGE);
        assert_eq!([0, 1, 2].map(|page| read(&file, page).unwrap()[0]), [1, 2, 1]);
        file.sync(true).unwrap();
        drop_clean(&file);
        assert_eq!(read(&file, 1), Ok([2; PAGE_SIZE]), "the written page was dirty");
    }

    #[test]
    fn pages_past_the_stores_end_are_zeros_that_were_never_written() {
        let (rig, file) = cold(1);
        file.truncate(100).unwrap();
        file.sync(true).unwrap();
        drop_clean(&file);
        // The store learns of the length with the write.
        rig.always(Call::Write, What::Hold);
        file.write_at(&[2; PAGE_SIZE], 4 * PAGE, IoFlags::empty()).unwrap();
        let page = read(&file, 0).unwrap();
        assert_eq!((&page[..100], &page[100..]), (&[1; 100][..], &[0; PAGE_SIZE - 100][..]));
        assert_eq!(read(&file, 2), Ok([0; PAGE_SIZE]));
    }

    #[test]
    fn a_page_of_which_the_store_returns_a_part_is_not_published() {
        let (rig, file) = cold(3);
        rig.always(Call::Read, What::Short(PAGE_SIZE + 100));
        let fill = start_fill(&file, 0, 3).unwrap();
        assert_eq!((fill.result(), file.resident()), (Some(Ok(())), vec![0..PAGE]));
        rig.store.clear();
        assert_eq!(read(&file, 1), Ok([1; PAGE_SIZE]));
    }

    #[test]
    fn bytes_of_a_page_that_the_store_has_as_holes_are_zeros() {
        let (rig, file) = cold(2);
        let mapping = &file.open.mapping;
        let mut frames = mapping.memory.try_alloc(2, 2, CachePolicy::Cached).unwrap();
        // What an earlier use of the frames has left.
        (0..2).for_each(|index| frames.write(index, 0, &[7; PAGE_SIZE]));
        rig.always(Call::Read, What::Hold);
        let fill = start_fill(&file, 0, 2).unwrap();
        let layout =
            layout(&[(false, 100), (true, 200), (false, 4196), (true, 4296), (false, 8192)]);
        mapping.end_fill(&fill, frames, Ok(layout));
        let data = |page| {
            let bytes = read(&file, page).unwrap();
            (0..PAGE_SIZE).filter(|&at| bytes[at] != 0).collect::<Vec<_>>()
        };
        assert_eq!((data(0), data(1)), ((100..200).collect(), (100..200).collect()));
    }

    /// Extents from 0 on: whether each is data, and its end.
    fn layout(extents: &[(bool, u64)]) -> Layout {
        let mut start = 0;
        let extents = extents.iter().map(|&(is_data, end)| {
            let kind = if is_data { SegmentKind::Data } else { SegmentKind::Hole };
            Extent { kind, start: std::mem::replace(&mut start, end), end }
        });
        Layout { extents: extents.collect(), eof: false }
    }

    /// The slots after a fill of the first page of 8 whose answer is `extents`, if `meanwhile` happens.
    fn slots(extents: &[(bool, u64)], meanwhile: impl FnOnce(&Rig, &File)) -> Vec<Slot> {
        let (rig, file) = cold(8);
        rig.always(Call::Read, What::Hold);
        let fill = start_fill(&file, 0, 1).unwrap();
        meanwhile(&rig, &file);
        let mapping = &file.open.mapping;
        let frames = mapping.memory.try_alloc(1, 1, CachePolicy::Cached).unwrap();
        mapping.end_fill(&fill, frames, Ok(layout(extents)));
        let guard = mapping.memory.epoch.enter();
        (0..9).map(|page| mapping.index.get(page, &guard)).collect()
    }

    #[test]
    fn a_hole_beyond_the_request_is_known_for_whole_pages_up_to_the_end() {
        let holes = |extents: &[(bool, u64)]| {
            let slots = slots(extents, |_, _| ());
            (0..9).filter(|&page| slots[page] == Slot::Hole).collect::<Vec<_>>()
        };
        assert_eq!(holes(&[(false, 4 * PAGE)]), [0, 1, 2, 3]);
        assert_eq!(holes(&[(false, 4 * PAGE + 4095)]), [0, 1, 2, 3], "data in the rest of page 4");
        assert_eq!(holes(&[(false, 8 * PAGE)]), [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(holes(&[(false, u64::MAX)]), [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(holes(&[(true, 4 * PAGE)]), [] as [usize; 0], "data");
    }

    #[test]
    fn a_hole_beyond_the_request_replaces_no_page() {
        let slots = slots(&[(false, 8 * PAGE)], |_, file| {
            // No change of the index's holes, and no write to the store.
            assert!(start_fill(file, 3, 1).is_some());
        });
        assert!(matches!(slots[3], Slot::InFlight(_)));
        assert_eq!((slots[2], slots[4]), (Slot::Hole, Slot::Hole));
    }

    #[test]
    fn a_hole_beyond_the_request_is_forgotten_after_a_write_to_the_store_or_a_change() {
        let hole = [(false, 8 * PAGE)];
        let is_known = |slots: &[Slot]| slots[6] == Slot::Hole;
        assert!(is_known(&slots(&hole, |_, _| ())));
        let write = |file: &File, page: u64| {
            file.write_at(&[2; PAGE_SIZE], page * PAGE, IoFlags::empty()).unwrap();
        };
        let begin = |file: &File| {
            let begun = &mut RangeSet::default();
            file.open.mapping.start_writeback(0..u64::MAX, Ask::Now, begun);
        };
        assert!(!is_known(&slots(&hole, |_, file| {
            write(file, 6);
            begin(file);
            file.open.mapping.drop_clean(6..7);
        })));
        // Another program has written there.
        assert!(!is_known(&slots(&hole, |_, file| {
            let mapping = &file.open.mapping;
            mapping.invalidate(&mut mapping.state.lock(), 8 * PAGE);
        })));
    }

    #[test]
    fn a_hole_that_the_store_found_during_a_write_is_forgotten() {
        let (rig, file) = cold(8);
        rig.always(Call::Write, What::Hold);
        file.write_at(&[2; PAGE_SIZE], 6 * PAGE, IoFlags::empty()).unwrap();
        let mapping = &file.open.mapping;
        mapping.start_writeback(0..u64::MAX, Ask::Now, &mut RangeSet::default());
        rig.always(Call::Read, What::Hold);
        let fill = start_fill(&file, 0, 1).unwrap();
        // The store has answered before the write, and the page is dropped before the answer arrives.
        assert!(rig.store.release_one());
        mapping.drop_clean(6..7);
        let frames = mapping.memory.try_alloc(1, 1, CachePolicy::Cached).unwrap();
        mapping.end_fill(&fill, frames, Ok(layout(&[(false, 8 * PAGE)])));
        rig.store.clear();
        assert_eq!(read(&file, 6), Ok([2; PAGE_SIZE]));
    }

    #[test]
    fn an_answer_without_progress_is_an_error() {
        let (rig, file) = cold(1);
        rig.always(Call::Read, What::Hold);
        let fill = start_fill(&file, 0, 1).unwrap();
        let mapping = &file.open.mapping;
        let frames = mapping.memory.try_alloc(1, 1, CachePolicy::Cached).unwrap();
        mapping.end_fill(&fill, frames, Ok(Layout::default()));
        assert_eq!(fill.result(), Some(Err(Error::Io)));
        assert!(start_fill(&file, 0, 1).is_some(), "its pages are empty again");
    }

    #[test]
    fn the_end_of_a_fill_wakes_those_who_wait_for_its_memory() {
        let (rig, file) = cold(1);
        rig.always(Call::Read, What::Hold);
        let fill = start_fill(&file, 0, 1).unwrap();
        let waiters = &file.open.mapping.memory.waiters;
        let _waiting = waiters.enter(CachePolicy::Cached);
        let moved = waiters.moved();
        rig.store.release();
        assert!(fill.result().is_some());
        assert_ne!(waiters.moved(), moved);
    }
}
