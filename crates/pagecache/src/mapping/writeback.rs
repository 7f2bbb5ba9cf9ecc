//! Writeback: how dirty pages get to the store.
//!
//! 1. A page is marked as under writeback, and pinned, from the store's write request to its
//!    answer; meanwhile neither reclaim nor pruning drops it (I3). A write to it uses a new frame,
//!    and does not wait.
//! 2. A page has at most one write in flight; a newer version waits for it.
//! 3. If a write fails with an error that may be transient, its pages stay dirty. The flusher
//!    retries with increasing delays, for as long as [`Config::write_patience`](crate::Config)
//!    says, counted for each page from its first failure (`writeback/failing.rs`), or from an
//!    earlier one of another page if no write of the file has succeeded since
//!    (`writeback/outage.rs`); a sync waits for that.
//! 4. After that, or at once after a permanent error (no space, file too large, ...), the pages are
//!    dropped, as in Linux, and every open file gets the error once (I9): a read sees the store's
//!    data. So nothing blocks other writers forever, and nothing overwrites, much later, the data
//!    of other programs. A page that was written again meanwhile stays, and is tried by itself.
//! 5. Writes are clipped at the end of file.
//! 6. Nothing here needs memory for pages.
//!
//! `writeback/flusher.rs` says when, and `mapping/writeback_wait.rs` waits for it.

use crate::mapping::index::{Replacement, Slot};
use crate::mapping::{Mapping, State};
use crate::memory::Memory;
use crate::memory::arena::{Arena, flag, runs};
use crate::memory::frame_no::FrameNo;
use crate::ranges::RangeSet;
use crate::stats::Count;
use crate::writeback::errseq::may_pass;
use crate::writeback::outage::Outage;
use std::io::IoSlice;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use weir_base::PAGE_SIZE;
use weir_base::sync::atomic::Ordering;
use weir_vfs::{Caller, Capabilities, Error, Result, SetAttr, SetTime, Source, WriteOp};

/// Most pages in one write to the store: 1 MiB.
const WRITE_PAGES: u64 = 256;
/// Most writes of one file in flight.
pub(crate) const MAX_IN_FLIGHT: usize = 8;
/// So many pages of uncached writes are written at once: 256 KiB.
pub(crate) const BATCH_PAGES: u64 = 64;
/// First and longest delay after a failure.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));

/// How many pages of a write that has ended are dirty again, were pruned, and were dropped as lost.
#[derive(Default)]
struct Settled {
    again: u64,
    pruned: usize,
    dropped: u64,
}

/// Frames that the store writes from.
struct DirtyPages {
    memory: Arc<Memory>,
    frames: Vec<FrameNo>,
    len: usize,
}

// SAFETY: the frames are pinned until `self` is dropped, and `memory` keeps their arena, in which frames
// never move; bytes of a published page below the length are not written to.
unsafe impl Source for DirtyPages {
    fn len(&self) -> usize {
        self.len
    }

    fn slices<'a>(&'a self, from: usize, to: usize, out: &mut Vec<IoSlice<'a>>) {
        assert!(from <= to && to <= self.len);
        // SAFETY: pinned until `self` is dropped, and clipped at the end of file, below which
        // everything is below the marks.
        unsafe { io_slices(&self.memory.arena, &self.frames, from, to, out) };
    }
}

impl Drop for DirtyPages {
    fn drop(&mut self) {
        self.memory.unpin(self.frames.iter().copied());
    }
}

/// Which reasons not to write now an attempt respects.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ask {
    /// The flusher, for uncached writes alone: skips files whose writes fail, and the page in the
    /// middle of which such a write ended.
    Urgent,
    /// The flusher, or a retry of a sync: skips files whose writes fail.
    Background,
    /// A caller waits for the writes.
    Now,
}

impl State {
    /// Pages were written or dropped: they no longer count as failing.
    pub(crate) fn no_longer_failing(&mut self, pages: Range<u64>) {
        self.failing.remove(pages);
        if self.failing.is_empty() {
            self.retry_at = None;
            self.failures = 0;
        }
    }
}

impl Mapping {
    /// Submits writes of dirty pages of `pages`, as many as may be in flight, and adds them to
    /// `begun`. Returns the first page that it did not look at, or `None` at the end.
    pub(crate) fn start_writeback(
        self: &Arc<Self>,
        pages: Range<u64>,
        ask: Ask,
        begun: &mut RangeSet,
    ) -> Option<u64> {
        let mut cursor = pages.start;
        let mut urgent_at = None;
        loop {
            let op = {
                let mut state = self.state.lock();
                // Once all urgent pages are begun, those that come meanwhile gather.
                let asked_at = *urgent_at.get_or_insert(state.urgent_at);
                if ask == Ask::Urgent && state.urgent_at != asked_at {
                    return Some(cursor);
                }
                if ask != Ask::Now && state.retry_at.is_some_and(|t| t > self.memory.now()) {
                    return Some(cursor);
                }
                let run = state.dirty.first_from(cursor).filter(|r| r.start < pages.end)?;
                if state.invalidating || state.writeback.len() >= MAX_IN_FLIGHT {
                    return Some(cursor);
                }
                let mut run = run.start..run.end.min(run.start + WRITE_PAGES).min(pages.end);
                if let Some(busy) = state.writeback_of(&run) {
                    if busy.start <= run.start {
                        cursor = busy.end;
                        continue;
                    }
                    run.end = busy.start;
                }
                if ask == Ask::Urgent
                    && let Some(half) = state.half_written.filter(|half| run.contains(half))
                {
                    if half == run.start {
                        cursor = half + 1;
                        continue;
                    }
                    run.end = half;
                }
                cursor = run.end;
                state.dirty.remove(run.clone());
                state.relax();
                begun.insert(run.clone());
                let number = state.next_write;
                state.next_write += 1;
                state.writeback.insert(number, run.clone());
                state.overlay.begin();
                let edit = self.edit(&mut state);
                let arena = &self.memory.arena;
                let mut frames = Vec::with_capacity((run.end - run.start) as usize);
                let mut uncached = true;
                for page in run.clone() {
                    let Some(frame) = edit.frame_at(page) else {
                        unreachable!("dirty page {page} has no frame")
                    };
                    arena.pin(frame);
                    let meta = arena.meta(frame);
                    meta.clear(flag::DIRTY);
                    meta.set(flag::WRITEBACK);
                    uncached &= meta.has(flag::UNCACHED);
                    frames.push(frame);
                }
                drop(edit);
                let start = run.start * PAGE_SIZE as u64;
                let len = (run.end * PAGE_SIZE as u64).min(self.size()) - start;
                let memory = self.memory.clone();
                let source = DirtyPages { memory, frames: frames.clone(), len: len as usize };
                let mapping = self.clone();
                WriteOp::new(start, Box::new(source), move |source, result| {
                    mapping.end_writeback(number, &run, &frames, source, result);
                })
                .uncached(uncached)
            };
            self.file().submit_write(op);
        }
    }

    fn end_writeback(
        self: &Arc<Self>,
        number: u64,
        run: &Range<u64>,
        frames: &[FrameNo],
        source: Box<dyn Source>,
        result: Result<()>,
    ) {
        let end = run.start * PAGE_SIZE as u64 + source.len() as u64;
        // Drops the pins, so that the pages can be pruned below.
        drop(source);
        let memory = &self.memory;
        let arena = &memory.arena;
        let pages = run.end - run.start;
        let mut state = self.state.lock();
        state.writeback.remove(&number);
        state.overlay.end();
        let now = memory.now();
        let mut lost = RangeSet::default();
        if let Err(error) = result {
            if may_pass(error) {
                Outage::write_failed(&mut state.outage, now, self.writeback().patience);
            }
            for page in run.clone().filter(|&page| !self.is_to_try_again(&state, page, error, now))
            {
                lost.insert(page..page + 1);
            }
        }
        let Settled { again, pruned, dropped } =
            self.settle_pages(&mut state, (run, frames), result, &lost, now);
        self.note_pruned(pruned);
        memory.queues.lock().cleaned(arena, frames.iter().copied());
        match result {
            Ok(()) => {
                state.stored_size = state.stored_size.max(end);
                state.durability.changed();
                state.no_longer_failing(run.clone());
                state.outage = None;
                self.count(Count::WritebackOps, 1);
                self.count(Count::WritebackPages, pages);
            }
            Err(error) => {
                self.count(Count::WritebackErrors, 1);
                self.count(Count::WritebackLostPages, dropped);
                if lost.len() < pages {
                    let wait = (RETRY.0 * (1 << state.failures.min(10))).min(RETRY.1);
                    state.failures += 1;
                    state.retry_at = Some(now + wait);
                    tracing::debug!("write to file {} failed: {error}", self.id.ino);
                }
                if !lost.is_empty() {
                    self.note_loss(&mut state, &lost, dropped, error);
                }
            }
        }
        state.relax();
        if state.waiting() > 0 && state.writeback.is_empty() {
            state.dirty_since = Some(memory.now());
        }
        self.dirty.sub(pages - again);
        self.note_progress(&mut state);
        drop(state);
        memory.collect();
        self.changed.notify();
        self.writeback().cleaned.notify();
        memory.waiters.notify();
        self.lane().kick();
    }

    /// Settles the pages of a write that has ended: a page that was written is clean, and pruned if
    /// it is uncached; one whose write failed is dirty again, or dropped if it is `lost`.
    fn settle_pages(
        self: &Arc<Self>,
        state: &mut State,
        (run, frames): (&Range<u64>, &[FrameNo]),
        result: Result<()>,
        lost: &RangeSet,
        now: Instant,
    ) -> Settled {
        let mut edit = self.edit(state);
        // For readers, all lost pages disappear at one moment.
        let seqcount = (!lost.is_empty()).then(|| self.write_seqcount(&edit));
        let mut settled = Settled::default();
        for (page, &frame) in run.clone().zip(frames) {
            // Another frame: the page was written again, and is dirty on its own account.
            if edit.slot(page) != Slot::Frame(frame) {
                // A sync that waits for this write also waits for the next.
                if result.is_err() && !lost.contains(page) && edit.state.dirty.contains(page) {
                    edit.state.failing.insert(page, now);
                }
                continue;
            }
            let meta = self.memory.arena.meta(frame);
            meta.clear(flag::WRITEBACK);
            match result {
                Ok(()) => settled.pruned += usize::from(self.prune_page(page, &mut edit)),
                Err(_) if !lost.contains(page) => {
                    meta.set(flag::DIRTY);
                    settled.again += edit.state.dirty.insert(page..page + 1);
                    edit.state.failing.insert(page, now);
                }
                // An append filled the page in place meanwhile.
                Err(_) if edit.state.dirty.contains(page) => {}
                Err(_) => {
                    edit.evict(page);
                    settled.dropped += 1;
                }
            }
        }
        if let Some(seqcount) = seqcount {
            let size = self.size_without(edit.state);
            if size < self.size() {
                edit.replace(size.div_ceil(PAGE_SIZE as u64)..u64::MAX, Replacement::Empty);
                seqcount.set_size(size);
                edit.state.overlay.resizing();
            }
        }
        edit.finish();
        settled
    }

    /// Whether to retry the write of a page that failed with this error.
    fn is_to_try_again(&self, state: &State, page: u64, error: Error, now: Instant) -> bool {
        let others = state.outage.as_ref().and_then(|outage| outage.since(page));
        let since = state.failing.since(page).into_iter().chain(others).min().unwrap_or(now);
        may_pass(error) && now - since < self.writeback().patience
    }

    /// The file's size without the lost pages: the store's size, or the end of the pages still to
    /// be written, if that is more.
    pub(crate) fn size_without(&self, state: &State) -> u64 {
        let dirty = state.dirty.end();
        let written = state.writeback.values().map(|run| run.end).max().unwrap_or(0);
        let unwritten = dirty.max(written).saturating_mul(PAGE_SIZE as u64);
        state.stored_size.max(unwritten).min(self.size())
    }

    /// Notes that `dropped` pages in `lost` were dropped since they cannot be written.
    fn note_loss(self: &Arc<Self>, state: &mut State, lost: &RangeSet, dropped: u64, error: Error) {
        lost.iter().for_each(|run| state.no_longer_failing(run));
        self.note_error(state, error);
        // Reads return different data from now on.
        state.overlay.modified(SystemTime::now());
        self.list_dirty(state);
        tracing::error!(
            "lost {dropped} pages that were written to file {}, from byte {} on: {error}",
            self.id.ino,
            lost.iter().next().map_or(0, |run| run.start * PAGE_SIZE as u64),
        );
    }

    /// Once all pages are written, sets the store's modification time to that of the last write,
    /// unless the store sets it itself.
    pub(crate) async fn settle(self: &Arc<Self>) {
        let wanted = |mapping: &Self| {
            let state = mapping.state.lock();
            let gone = mapping.unlinked.load(Ordering::Relaxed);
            state.overlay.unsettled().filter(|_| state.is_clean() && !gone)
        };
        // Also while another call sets the time: this one ends after it.
        if wanted(self).is_none() {
            return;
        }
        if self.store.capabilities().contains(Capabilities::WRITE_TIMES) {
            let mut state = self.state.lock();
            if state.is_clean() {
                state.overlay.left_to_store();
            }
            return;
        }
        let mapping = self.clone();
        let work = async move {
            let exclusive = mapping.lock_invalidate().await;
            // Nothing is left to set if another call has done it.
            if wanted(&mapping).is_none() || mapping.others_came_first().await {
                return;
            }
            let Some(mtime) = wanted(&mapping) else { return };
            let mut begun = exclusive.begin_change();
            let generation = begun.generation;
            let set = SetAttr { mtime: Some(SetTime::To(mtime)), ..SetAttr::default() };
            let result = mapping.store.setattr(&Caller::Own, mapping.id, &set).await;
            let mut state = begun.end();
            if let Ok(attr) = result {
                state.overlay.settled(generation + 1, mtime, &attr);
            }
        };
        crate::tasks::finish(&self.lane().tasks, work).await;
    }

    /// Whether others have changed the file since the last look, as far as the store can tell: then
    /// the modification time is theirs, and must not be reset. The caller holds the invalidate
    /// lock.
    async fn others_came_first(&self) -> bool {
        if self.file().changes_by_others().is_none() {
            return false;
        }
        let Ok((attr, others)) = self.stored_attr().await else { return true };
        let mut state = self.state.lock();
        let moved = state.overlay.others_moved(others);
        if moved {
            self.count(Count::OutsideChanges, 1);
            if state.is_clean() && state.overlay.changed_outside(&attr, false, true) {
                self.invalidate(&mut state, attr.size);
            } else {
                // The file was written to since it was found clean. No later look reports the
                // change again.
                state.overlay.adopt_others(&attr);
                self.drop_unproven(&mut state, 0..u64::MAX);
            }
        }
        moved
    }
}

/// A piece of the frames that a store writes from, as [`IoSlice`]s.
///
/// # Safety
/// The frames are pinned for `'a`, and the bytes are below their marks.
unsafe fn io_slices<'a>(
    arena: &'a Arena,
    frames: &'a [FrameNo],
    from: usize,
    to: usize,
    out: &mut Vec<IoSlice<'a>>,
) {
    for (at, len) in frame_slices(arena, frames, from, to) {
        // SAFETY: guaranteed by the caller.
        out.push(IoSlice::new(unsafe { std::slice::from_raw_parts(at, len) }));
    }
}

/// The bytes `from..to` of a list of frames, adjacent frames joined, as (address, length).
fn frame_slices<'a>(
    arena: &'a Arena,
    frames: &'a [FrameNo],
    from: usize,
    to: usize,
) -> impl Iterator<Item = (*const u8, usize)> + 'a {
    let mut at = 0;
    runs(frames).filter_map(move |(frame, count)| {
        let run = at..at + count * PAGE_SIZE;
        at = run.end;
        let (start, end) = (from.max(run.start), to.min(run.end));
        // Wrapping: the caller decides whether the bytes may be accessed.
        (start < end)
            .then(|| (arena.ptr(frame).cast_const().wrapping_add(start - run.start), end - start))
    })
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::File;
    use crate::testing::{Rig, poll_once};
    use std::pin::pin;
    use weir_stores::fault::{Call, Fault, Rule, What, When};
    use weir_stores::memory::MemoryFs;
    use weir_vfs::IoFlags;

    #[test]
    fn a_sync_waits_for_times_that_another_thread_sets() {
        let rig = Rig::without_threads();
        let file = rig.create("f");
        let mapping = &file.open.mapping;
        file.write_at(b"x", 0, IoFlags::empty()).unwrap();
        pollster::block_on(mapping.write_back(0..u64::MAX)).unwrap();
        rig.always(Call::Setattr, What::Hold);
        // As the thread of the tasks does.
        let mut other = pin!(mapping.settle());
        assert!(poll_once(other.as_mut()).is_pending());
        assert_eq!(rig.store.held(), 1);
        let mut sync = pin!(mapping.write_and_sync(0..u64::MAX, 0, false));
        assert!(poll_once(sync.as_mut()).is_pending(), "the store does not have the time yet");
        rig.store.release();
        assert!(poll_once(other.as_mut()).is_ready());
        assert_eq!(poll_once(sync.as_mut()), std::task::Poll::Ready(Ok(())));
        assert_eq!(rig.store.injected(), 1, "set once");
    }

    fn begin(file: &File) -> Vec<Range<u64>> {
        let mapping = &file.open.mapping;
        mapping.start_writeback(0..u64::MAX, Ask::Now, &mut RangeSet::default());
        mapping.state.lock().writeback.values().cloned().collect()
    }

    #[test]
    fn pages_under_writeback_stay_and_have_one_write() {
        let rig = Rig::without_threads();
        let file = rig.create("f");
        rig.always(Call::Write, What::Hold);
        file.write_at(&[1; 4096], 2 * 4096, IoFlags::empty()).unwrap();
        assert_eq!(begin(&file), [2..3]);
        file.open.mapping.drop_clean(0..u64::MAX);
        assert_eq!(file.resident(), [2 * 4096..3 * 4096]);
        file.write_at(&[2; 4 * 4096], 0, IoFlags::empty()).unwrap();
        assert_eq!(begin(&file), [2..3, 0..2, 3..4]);
        rig.store.clear();
        rig.store.release();
        file.sync(true).unwrap();
    }

    #[test]
    fn no_write_begins_during_a_change() {
        let rig = Rig::without_threads();
        let file = rig.create("f");
        rig.always(Call::PunchHole, What::Hold);
        rig.always(Call::Write, What::Hold);
        file.write_at(&[1; 4096], 0, IoFlags::empty()).unwrap();
        let mut punch = pin!(file.punch_hole_async(4096, 4096));
        assert!(poll_once(punch.as_mut()).is_pending());
        assert_eq!(begin(&file), []);
        rig.store.clear();
        rig.store.release();
        assert_eq!(pollster::block_on(punch), Ok(()));
    }

    #[test]
    fn a_loss_leaves_what_is_being_written_and_what_was_appended() {
        let disk = Fault::over(MemoryFs::new(), 1);
        let (when, what) = (When::Nth(0), What::Fail(Error::NoSpace));
        disk.add(Rule { call: Call::Write, when, what });
        let rig = Rig::without_threads_over(disk);
        let file = rig.create("f");
        rig.always(Call::Write, What::Hold);
        file.write_at(&[1; 100], 0, IoFlags::empty()).unwrap();
        assert_eq!(begin(&file), [0..1]);
        // In the frame that is being written.
        file.write_at(&[1; 100], 100, IoFlags::empty()).unwrap();
        assert!(rig.store.release_one());
        assert_eq!((file.write_errors(), file.size()), (1, 200));
        rig.store.clear();
        rig.store.release();
        assert_eq!([0; 2].map(|_| file.sync(true)), [Err(Error::NoSpace), Ok(())]);
        assert_eq!(pollster::block_on(rig.fs.store().getattr(file.id())).unwrap().size, 200);

        let first = When::Touching(0..4096);
        rig.store.add(Rule { call: Call::Write, when: first, what });
        rig.always(Call::Write, What::Hold);
        file.write_at(&[1; 4096], 5 * 4096, IoFlags::empty()).unwrap();
        assert_eq!(begin(&file), [5..6]);
        file.write_at(&[1; 4096], 0, IoFlags::empty()).unwrap();
        assert_eq!(begin(&file), [5..6]);
        assert_eq!((file.write_errors(), file.size()), (2, 6 * 4096));
        rig.store.release();
    }
}
