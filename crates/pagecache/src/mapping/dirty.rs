//! A mapping's place in the flusher's list: what enters it, and what the flusher does with the
//! file.
//!
//! Lock order: a mapping's state, then the list.

use crate::mapping::writeback::{Ask, BATCH_PAGES, MAX_IN_FLIGHT};
use crate::mapping::{Mapping, State};
use crate::ranges::RangeSet;
use crate::writeback::flusher::{AGE, DirtyFile};
use crate::writeback::lane::Lane;
use crate::writeback::throttle::Writeback;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};
use weir_base::sync::atomic::Ordering;
use weir_vfs::{Error, Result};

/// How long a few pages of uncached writes wait for others.
pub(crate) const GATHER: Duration = Duration::from_millis(20);

impl State {
    /// The number of dirty pages that are written when the file's pages are due: all but the one in the middle of
    /// which the last uncached write ended.
    pub(crate) fn waiting(&self) -> u64 {
        let half = self.half_written.is_some_and(|page| self.dirty.contains(page));
        self.dirty.len() - u64::from(half)
    }

    /// Nothing is urgent once no page waits.
    pub(crate) fn relax(&mut self) {
        if self.waiting() == 0 {
            self.urgent_at = None;
        }
    }
}

impl Mapping {
    /// The lane of its store.
    pub(crate) fn lane(&self) -> &Arc<Lane> {
        &self.dirty.store.lane
    }

    /// The cache's writeback.
    pub(crate) fn writeback(&self) -> &Writeback {
        &self.dirty.store.cache
    }

    /// Notes that a write of the file to its store, or a sync of it, has failed permanently.
    pub(crate) fn note_error(&self, state: &mut State, error: Error) {
        self.dirty.store.errors.fetch_add(1, Ordering::SeqCst);
        state.errors.note(error);
    }

    /// Asks the flusher to write all dirty pages now, old or not.
    pub(crate) fn flush_soon(&self) {
        let mut state = self.state.lock();
        if !state.dirty.is_empty() {
            self.hurry(&mut state);
            drop(state);
            self.lane().kick();
        }
    }

    /// On close of an open file that wrote uncached: writes its half-written page, too.
    pub(crate) fn flush_half_written(&self) {
        let mut state = self.state.lock();
        if state.half_written.take().is_some() {
            self.hurry(&mut state);
            drop(state);
            self.lane().kick();
        }
    }

    /// Enters the file in the flusher's list: it has dirty pages, or times to set in the store.
    pub(crate) fn list_dirty(self: &Arc<Self>, state: &mut State) {
        if state.listed.is_none() {
            let due = Instant::now() + AGE;
            let lane = self.lane();
            let mut list = lane.files.lock();
            state.listed = Some(list.enter(self.clone(), due));
            lane.start();
        }
        self.note_unbegun(state);
    }

    /// Makes all dirty pages due now, old or not. The caller kicks the flusher afterwards.
    pub(crate) fn hurry(&self, state: &mut State) {
        if state.waiting() > 0 {
            let now = self.memory.now();
            // What is due already stays so: a writeback of it goes on (`start_writeback`).
            if state.urgent_at.is_none_or(|at| at > now) {
                state.urgent_at = Some(now);
            }
            self.look_at(state, None);
        }
    }

    /// Makes all dirty pages due soon: what is written until then goes to the store with them. Returns whether
    /// the flusher has to learn of it.
    fn gather(&self, state: &mut State) -> bool {
        if state.urgent_at.is_some() {
            return false;
        }
        let at = self.memory.now() + GATHER;
        state.urgent_at = Some(at);
        self.look_at(state, Some(at));
        true
    }

    /// An uncached write has ended: makes its pages due. Returns whether to wake the flusher.
    pub(crate) fn note_uncached(&self, state: &mut State) -> bool {
        match state.waiting() {
            0 => {
                state.relax();
                false
            }
            BATCH_PAGES.. => {
                self.hurry(state);
                state.writeback.len() < MAX_IN_FLIGHT
            }
            _ => self.gather(state),
        }
    }

    /// Pages have become clean, or can be written again. The caller kicks the flusher afterwards.
    pub(crate) fn note_progress(&self, state: &mut State) {
        match state.retry_at {
            Some(retry_at) if !state.is_clean() => self.look_at(state, Some(retry_at)),
            _ => {
                self.note_unbegun(state);
                if state.is_clean() || state.sweep.is_some() {
                    self.look_at(state, None);
                } else if let Some(at) = state.urgent_at {
                    self.look_at(state, Some(at));
                }
            }
        }
    }

    /// Has the flusher look at the file no later than `at`, or now.
    fn look_at(&self, state: &mut State, at: Option<Instant>) {
        let Some(listed) = &mut state.listed else { return };
        let at = at.unwrap_or_else(Instant::now);
        if at < listed.due {
            self.lane().files.lock().set_due(listed, at);
        }
    }

    fn note_unbegun(&self, state: &mut State) {
        if let Some(listed) = state.listed.as_mut().filter(|listed| !listed.unbegun)
            && !state.dirty.is_empty()
        {
            self.lane().files.lock().set_unbegun(listed, true);
        }
    }
}

/// A task that settles the times, queued or running. Its end counts also if the store panics.
struct Settling(Arc<Mapping>);

impl Drop for Settling {
    fn drop(&mut self) {
        self.0.state.lock().settling -= 1;
    }
}

impl DirtyFile for Mapping {
    fn flush(self: Arc<Self>, pressed: bool, now: Instant) {
        let mut state = self.state.lock();
        // Only the flusher takes a file off the list.
        let Some(mut listed) = state.listed.take() else { return };
        if state.is_clean() {
            self.lane().files.lock().leave(&listed);
            // A task queued behind a store that hangs will also settle what is written until it
            // starts.
            let queued = std::mem::replace(&mut state.settle_queued, true);
            state.settling += usize::from(!queued);
            drop(state);
            if !queued {
                let settling = Settling(self.clone());
                self.lane().tasks.spawn(async move {
                    settling.0.state.lock().settle_queued = false;
                    settling.0.settle().await;
                });
            }
            return;
        }
        let since = state.dirty_since.unwrap_or(now);
        let failed = state.retry_at.filter(|&retry_at| retry_at > now);
        let is_old = now - since >= AGE;
        if is_old {
            state.sweep.get_or_insert(0);
        }
        let ask = if pressed || state.sweep.is_some() || !state.failing.is_empty() {
            Some(Ask::Background)
        } else {
            state.urgent_at.is_some_and(|at| at <= now).then_some(Ask::Urgent)
        };
        // Pages not written now are looked at again when a write of the file ends, or at `next` at
        // the latest.
        let next = failed.unwrap_or(if is_old { now + AGE } else { since + AGE });
        let gathers = state.urgent_at.filter(|&at| at > now);
        let next = gathers.map_or(next, |at| at.min(next));
        {
            let mut list = self.lane().files.lock();
            list.set_due(&mut listed, next);
            // With nothing due, the pages stay listed as unbegun.
            let unbegun = ask != Some(Ask::Background) && !state.dirty.is_empty();
            list.set_unbegun(&mut listed, unbegun);
        }
        state.listed = Some(listed);
        // All pages are due under pressure, to be tried again, or urgent.
        let all =
            pressed || !state.failing.is_empty() || state.urgent_at.is_some_and(|at| at <= now);
        let sweep = state.sweep.filter(|_| !all);
        drop(state);
        if let Some(ask) = ask {
            let from = sweep.unwrap_or(0);
            let stopped = self.start_writeback(from..u64::MAX, ask, &mut RangeSet::default());
            // Set before as well: writes that end meanwhile have the flusher look again.
            let mut state = self.state.lock();
            // If it is `None`, the file was clean meanwhile.
            if sweep.is_some() && state.sweep.is_some() {
                state.sweep = stopped;
                // Pages before `from` may be urgent, or due to pressure.
                if stopped.is_none() && from > 0 {
                    self.note_unbegun(&mut state);
                    if let Some(at) = state.urgent_at {
                        self.look_at(&mut state, Some(at));
                    }
                }
            }
        }
    }

    fn write_all_back(self: Arc<Self>) -> Pin<Box<dyn Future<Output = Result<()>> + Send>> {
        Box::pin(async move { self.write_or_lose(0..u64::MAX).await })
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::File;
    use crate::testing::{Panicking, Rig};
    use weir_stores::fault::{Call, Rule, What, When};
    use weir_stores::memory::MemoryFs;
    use weir_vfs::{FileSystemMethod, IoFlags};

    #[test]
    fn a_few_uncached_pages_wait_for_others() {
        let rig = Rig::without_threads();
        let file = rig.create("f");
        let mapping = file.open.mapping.clone();
        let urgent_at = || mapping.state.lock().urgent_at;
        let written = || file.stats().writeback_ops;
        let write = |len, at| file.write_at(&vec![1; len], at, IoFlags::UNCACHED).unwrap();

        let begun = mapping.memory.now();
        (0..10).for_each(|page| _ = write(4096, page * 4096));
        let due = urgent_at().unwrap();
        assert!(due >= begun + GATHER);
        mapping.clone().flush(false, due - Duration::from_nanos(1));
        assert_eq!((written(), urgent_at()), (0, Some(due)));
        mapping.clone().flush(false, due);
        assert_eq!((written(), urgent_at(), file.resident()), (1, None, vec![]));

        // Enough of them do not wait.
        let begun = mapping.memory.now();
        (0..BATCH_PAGES - 1).for_each(|page| _ = write(4096, page * 4096));
        assert!(urgent_at().unwrap() >= begun + GATHER);
        write(4096, (BATCH_PAGES - 1) * 4096);
        let due = urgent_at().unwrap();
        assert!(due <= mapping.memory.now());
        mapping.clone().flush(false, due);
        assert_eq!((written(), urgent_at()), (2, None));

        // Nothing is left of a decision about pages that are gone.
        write(8192, 0);
        pollster::block_on(file.truncate_async(0)).unwrap();
        assert_eq!(urgent_at(), None);
        mapping.clone().flush(false, mapping.memory.now());
        let begun = mapping.memory.now();
        write(8192, 0);
        let due = urgent_at().unwrap();
        assert!(due >= begun + GATHER && mapping.state.lock().listed.as_ref().unwrap().due <= due);
        mapping.clone().flush(false, due);
        assert_eq!(urgent_at(), None);

        // Part of a page waits for the rest of it, or for the close.
        write(100, 0);
        assert_eq!(urgent_at(), None);
        drop(file);
        assert!(urgent_at().unwrap() <= mapping.memory.now());
    }

    /// Dirties a page of a file; those of other numbers are not beside it.
    fn write_run(file: &File, run: u64) {
        file.write_at(&[1; 4096], run * 8192, IoFlags::empty()).unwrap();
    }

    /// A file with so many runs of dirty pages.
    fn scattered(runs: u64) -> (Rig, File) {
        let rig = Rig::without_threads();
        let file = rig.create("f");
        (0..runs).for_each(|run| write_run(&file, run));
        (rig, file)
    }

    #[test]
    fn old_scattered_pages_are_written_by_one_look_after_another() {
        const RUNS: u64 = 100;
        let (_rig, file) = scattered(RUNS);
        let mapping = file.open.mapping.clone();
        let due = || mapping.state.lock().listed.as_ref().map(|listed| listed.due);
        mapping.clone().flush(false, mapping.memory.now());
        assert_eq!(file.stats().writeback_ops, 0, "they are not old");
        let old = mapping.memory.now() + AGE;
        mapping.clone().flush(false, old);
        // Behind the flusher, so it waits until it is old.
        write_run(&file, 0);
        let mut looks = 1;
        while due().is_some_and(|due| due <= mapping.memory.now()) {
            mapping.clone().flush(false, mapping.memory.now());
            looks += 1;
        }
        assert_eq!(mapping.state.lock().dirty.iter().collect::<Vec<_>>(), [0..1]);
        assert_eq!(file.stats().writeback_ops, RUNS);
        assert!(looks <= 2 + RUNS, "{looks} looks");
        mapping.clone().flush(false, old + AGE);
        assert_eq!(file.stats().writeback_ops, RUNS + 1);
        assert!(mapping.state.lock().is_clean());
    }

    #[test]
    fn old_pages_whose_writes_failed_are_written_with_the_rest() {
        const RUNS: u64 = 40;
        let (rig, file) = scattered(RUNS);
        let mapping = file.open.mapping.clone();
        let (when, what) = (When::Nth(20), What::Fail(Error::Io));
        rig.store.add(Rule { call: Call::Write, when, what });
        let mut now = mapping.memory.now() + AGE;
        for _ in 0..2 * RUNS {
            mapping.clone().flush(false, now);
            let retry_at = mapping.state.lock().retry_at;
            if let Some(at) = retry_at {
                while mapping.memory.now() < at {
                    std::thread::yield_now();
                }
            }
            now = mapping.memory.now();
        }
        assert_eq!(rig.store.injected(), 1);
        assert_eq!(file.stats().writeback_ops, RUNS);
        assert!(mapping.state.lock().is_clean());
    }

    #[test]
    fn tasks_that_write_times_do_not_pile_up() {
        let rig = Rig::new();
        let file = rig.create("f");
        let mapping = &file.open.mapping;
        let go_on = rig.hang_tasks();
        for _ in 0..100 {
            file.write_at(&[1; 4096], 0, IoFlags::empty()).unwrap();
            pollster::block_on(mapping.write_back(0..u64::MAX)).unwrap();
            mapping.clone().flush(false, Instant::now());
        }
        let alive = || mapping.lane().tasks.alive();
        // The flusher may be about to add it.
        while alive() < 2 {
            std::thread::yield_now();
        }
        assert_eq!(alive(), 2, "the one that hangs, and one behind it");
        drop(go_on);
        // The task also settles what was written after it was queued.
        while mapping.state.lock().overlay.pending().is_some() {
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_task_that_panics_while_it_writes_times_has_ended() {
        let store = Panicking::over(MemoryFs::new());
        let rig = Rig::without_threads_over(store.clone());
        let file = rig.create("f");
        let mapping = &file.open.mapping;
        file.write_at(&[1; 4096], 0, IoFlags::empty()).unwrap();
        pollster::block_on(mapping.write_back(0..u64::MAX)).unwrap();
        mapping.clone().flush(false, Instant::now());
        assert_eq!(mapping.state.lock().settling, 1);
        store.panic_at(FileSystemMethod::Setattr);
        mapping.lane().tasks.run_ready();
        assert_eq!(mapping.state.lock().settling, 0);
    }

    #[test]
    fn a_look_of_the_flusher_comes_earlier_and_never_later() {
        let rig = Rig::without_threads();
        let file = rig.create("f");
        let mapping = file.open.mapping.clone();
        let urgent_at = || mapping.state.lock().urgent_at.unwrap();
        let look = || {
            let state = mapping.state.lock();
            state.listed.as_ref().map(|listed| (listed.due, listed.unbegun)).unwrap()
        };
        // Gathering begins with the first write, and the flusher looks again when it ends.
        file.write_at(&[1; 4096], 0, IoFlags::UNCACHED).unwrap();
        let gathered = urgent_at();
        file.write_at(&[1; 4096], 4096, IoFlags::UNCACHED).unwrap();
        assert_eq!((urgent_at(), look()), (gathered, (gathered, true)));
        mapping.clone().flush(false, gathered - Duration::from_nanos(1));
        assert_eq!(look(), (gathered, true), "nothing has begun");
        // A retry moves it to its own time, which is before the pages are old.
        let retry_at = gathered + Duration::from_secs(1);
        mapping.state.lock().retry_at = Some(retry_at);
        mapping.note_progress(&mut mapping.state.lock());
        assert_eq!(look().0, gathered, "not later");
        mapping.state.lock().urgent_at = None;
        mapping.clone().flush(false, gathered);
        assert_eq!(look(), (retry_at, true));
        mapping.state.lock().retry_at = None;
        // All at once.
        mapping.flush_soon();
        assert!(look().0 <= Instant::now());
        let asked = urgent_at();
        mapping.flush_soon();
        assert_eq!(urgent_at(), asked, "it goes on");
        mapping.clone().flush(true, asked);
        assert!(mapping.state.lock().is_clean() && !look().1);
    }
}
