//! Writeback: how dirty pages come into the store.
//!
//! 1. A page is marked as under writeback, and pinned, from the moment that the store is asked to
//!    write it until the store has answered; meanwhile neither reclaim nor pruning drops it (I3).
//!    A write to it makes a new frame, and waits for nothing.
//! 2. A page has one write in flight at most; a newer version waits for it.
//! 3. A write that fails leaves its pages dirty, and is told once to every open file (I9). It is
//!    tried again later, less and less often, or when somebody syncs.
//! 4. Writes are clipped at the end of file.
//! 5. Nothing here needs memory for pages.
//!
//! `flusher.rs` says when.

use crate::arena::flag;
use crate::cache::Shared;
use crate::index::Slot;
use crate::mapping::{Mapping, State};
use crate::ranges::RangeSet;
use crate::segments::io_slices;
use crate::stats::Count;
use std::io::IoSlice;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use weir_base::PAGE_SIZE;
use weir_base::sync::atomic::Ordering;
use weir_vfs::{Caller, Capabilities, Error, Result, SetAttr, SetTime, Source, WriteOp};

/// Pages in one write to the store at most: 1 MiB.
const WRITE_PAGES: u64 = 256;
/// Writes of one file in flight at most.
const WINDOW: usize = 8;
/// While so many are, pages that uncached writes leave wait for company,
const BUSY: usize = 2;
/// until there are so many: 256 KiB.
const BATCH_PAGES: u64 = 64;
/// First and longest wait after a failure.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// Frames that the store writes from.
struct DirtyPages {
    shared: Arc<Shared>,
    frames: Vec<u32>,
    len: usize,
}

impl Source for DirtyPages {
    fn len(&self) -> usize {
        self.len
    }

    fn slices<'a>(&'a self, from: usize, to: usize, out: &mut Vec<IoSlice<'a>>) {
        assert!(from <= to && to <= self.len);
        // SAFETY: pinned until `self` is dropped, and clipped at the end of file, below which
        // everything is below the marks.
        unsafe { io_slices(&self.shared.arena, &self.frames, from, to, out) };
    }
}

impl Drop for DirtyPages {
    fn drop(&mut self) {
        self.shared.unpin(self.frames.iter().copied());
    }
}

/// Whether to respect that the file is being changed as a whole, or that writes failed lately.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ask {
    /// The flusher, for uncached writes alone: keep away from files that fail, and from the page
    /// in the middle of which such a write ended.
    Urgent,
    /// The flusher: keep away from files that fail.
    Background,
    /// Somebody waits for it.
    Now,
}

/// Whether the flusher is to be woken for what an uncached write left. A few pages are not worth it
/// while the store is busy with the file: the end of what it writes wakes the flusher, which then
/// takes all that has come together.
pub(crate) fn is_worth_waking(state: &State) -> bool {
    let in_flight = state.writeback.len();
    in_flight < BUSY || (in_flight < WINDOW && state.dirty.len() >= BATCH_PAGES)
}

impl Mapping {
    /// Asks the store to write dirty pages of `pages`, as many as the window has room for, and
    /// adds them to `begun`.
    pub(crate) fn start_writeback(
        self: &Arc<Self>,
        pages: Range<u64>,
        ask: Ask,
        begun: &mut RangeSet,
    ) {
        let mut cursor = pages.start;
        loop {
            let op = {
                let mut state = self.state.lock();
                if ask != Ask::Now && state.retry_at.is_some_and(|t| t > self.shared.now()) {
                    return;
                }
                let Some(run) = state.dirty.first_from(cursor).filter(|r| r.start < pages.end)
                else {
                    return;
                };
                if state.exclusive || state.writeback.len() >= WINDOW {
                    return;
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
                begun.insert(run.clone());
                let number = state.next_write;
                state.next_write += 1;
                state.writeback.insert(number, run.clone());
                state.times.begin();
                let edit = self.edit();
                let arena = &self.shared.arena;
                let mut frames = Vec::with_capacity((run.end - run.start) as usize);
                let mut lent = 0;
                for page in run.clone() {
                    let Some(frame) = edit.frame_at(page) else {
                        unreachable!("dirty page {page} has no frame")
                    };
                    arena.pin(frame);
                    let meta = arena.meta(frame);
                    meta.clear(flag::DIRTY);
                    meta.set(flag::WRITEBACK);
                    lent += usize::from(meta.has(flag::UNCACHED));
                    frames.push(frame);
                }
                drop(edit);
                let start = run.start * PAGE_SIZE as u64;
                let len = (run.end * PAGE_SIZE as u64).min(self.size()) - start;
                let shared = self.shared.clone();
                let source = DirtyPages { shared, frames: frames.clone(), len: len as usize };
                let mapping = self.clone();
                let uncached = lent == frames.len();
                self.shared.uncached_io.fetch_add(lent, Ordering::SeqCst);
                WriteOp::new(start, Box::new(source), move |source, result| {
                    mapping.end_writeback(number, &run, &frames, source, result);
                    mapping.shared.uncached_io.fetch_sub(lent, Ordering::SeqCst);
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
        frames: &[u32],
        source: Box<dyn Source>,
        result: Result<()>,
    ) {
        // Drops the pins, so that the pages below may be pruned.
        drop(source);
        let shared = &self.shared;
        let arena = &shared.arena;
        let pages = run.end - run.start;
        let mut state = self.state.lock();
        state.writeback.remove(&number);
        state.times.end();
        let mut edit = self.edit();
        let (mut again, mut pruned) = (0, 0);
        for (page, &frame) in run.clone().zip(frames) {
            // Another frame: written again meanwhile, and dirty on its own account.
            if edit.slot(page) != Slot::Frame(frame) {
                continue;
            }
            let meta = arena.meta(frame);
            meta.clear(flag::WRITEBACK);
            match result {
                Ok(()) => pruned += usize::from(self.prune_page(page, &mut edit)),
                Err(_) => {
                    meta.set(flag::DIRTY);
                    again += state.dirty.insert(page..page + 1);
                }
            }
        }
        edit.finish(&mut state);
        self.note_pruned(pruned);
        shared.queues.lock().cleaned(arena, frames.iter().copied());
        match result {
            Ok(()) => {
                state.failures = 0;
                state.retry_at = None;
                self.count(Count::WritebackOps, 1);
                self.count(Count::WritebackPages, pages);
            }
            Err(error) => {
                state.error = Some(error);
                state.error_sequence += 1;
                let wait = (RETRY.0 * (1 << state.failures.min(10))).min(RETRY.1);
                state.failures += 1;
                state.retry_at = Some(shared.now() + wait);
                self.count(Count::WritebackErrors, 1);
            }
        }
        let waits = u64::from(state.half_written.is_some_and(|page| state.dirty.contains(page)));
        if state.dirty.len() == waits {
            state.urgent = false;
        } else if state.writeback.is_empty() {
            state.dirty_since = Some(shared.now());
        }
        shared.dirty.fetch_sub(pages - again, Ordering::Relaxed);
        self.note_progress(&mut state);
        drop(state);
        shared.collect();
        self.changed.notify();
        shared.cleaned.notify();
        shared.notify_waiting();
        shared.flusher.kick();
    }

    /// Writes back what is dirty now in `pages`, and waits until the store has answered.
    ///
    /// # Errors
    /// That of the last write that failed meanwhile; the pages stay dirty.
    pub(crate) async fn write_back(self: &Arc<Self>, pages: Range<u64>) -> Result<()> {
        let (mut todo, mut writes, errors) = {
            let state = self.state.lock();
            let mut todo = RangeSet::default();
            for run in state.dirty.iter() {
                let (start, end) = (run.start.max(pages.start), run.end.min(pages.end));
                if start < end {
                    todo.insert(start..end);
                }
            }
            // What is under writeback already counts, too.
            let writes = state.next_write;
            (todo, writes, state.error_sequence)
        };
        while !todo.is_empty() {
            let ticket = self.changed.ticket();
            let mut begun = RangeSet::default();
            for run in todo.iter() {
                self.start_writeback(run, Ask::Now, &mut begun);
            }
            for run in begun.iter() {
                todo.remove(run);
            }
            let left = {
                let state = self.state.lock();
                if state.error_sequence != errors {
                    return Err(state.error.unwrap_or(Error::Io));
                }
                writes = state.next_write;
                // What somebody else has begun, or has dropped, is done with here, too.
                todo.intersection(&state.dirty)
            };
            todo = left;
            if !todo.is_empty() {
                self.changed.wait(ticket).await;
            }
        }
        loop {
            let ticket = self.changed.ticket();
            {
                let state = self.state.lock();
                if state.error_sequence != errors {
                    return Err(state.error.unwrap_or(Error::Io));
                }
                let pending = state
                    .writeback
                    .iter()
                    .any(|(&n, r)| n < writes && r.start < pages.end && pages.start < r.end);
                if !pending {
                    return Ok(());
                }
            }
            self.changed.wait(ticket).await;
        }
    }

    /// Sets the store's modification time to that of the last write, once everything is written,
    /// unless the store sets it itself.
    pub(crate) async fn settle(self: &Arc<Self>) {
        let wanted = |mapping: &Self| {
            let state = mapping.state.lock();
            let gone = mapping.unlinked.load(Ordering::Relaxed);
            state.times.pending().filter(|_| state.is_clean() && !gone)
        };
        if wanted(self).is_none() {
            return;
        }
        if self.store.capabilities().contains(Capabilities::WRITE_TIMES) {
            let mut state = self.state.lock();
            if state.is_clean() {
                state.times.left_to_store();
            }
            return;
        }
        let mapping = self.clone();
        let work = async move {
            let _exclusive = mapping.exclude().await;
            if mapping.others_came_first().await {
                return;
            }
            let Some(mtime) = wanted(&mapping) else { return };
            let generation = {
                let mut state = mapping.state.lock();
                state.times.begin();
                state.times.generation()
            };
            let set = SetAttr { mtime: Some(SetTime::To(mtime)), ..SetAttr::default() };
            let result = mapping.store.setattr(&Caller::Own, mapping.id, &set).await;
            let mut state = mapping.state.lock();
            state.times.end();
            if let Ok(attr) = result {
                state.times.settled(generation + 1, mtime, &attr);
            }
        };
        crate::tasks::finish(&self.shared.tasks, work).await;
    }

    /// Whether others have changed the file since the last look, as far as the store can tell: then
    /// its modification time is theirs, and not to be set back. We have the file to ourselves.
    async fn others_came_first(&self) -> bool {
        if self.file().changes_by_others().is_none() {
            return false;
        }
        let Ok((attr, others)) = self.stored_attr().await else { return true };
        let mut state = self.state.lock();
        let moved = state.times.others_moved(others);
        if moved && state.is_clean() && state.times.changed_outside(&attr, false, true) {
            self.count(Count::OutsideChanges, 1);
            self.invalidate(&mut state, attr.size);
        }
        moved
    }
}
