//! The flusher: writes dirty pages without a caller's request.
//!
//! 1. It writes files that have been dirty for a while, all files when too much is dirty or memory
//!    is short, and pages of uncached writes when 256 KiB have gathered, or after 20 ms (I11).
//! 2. The cost of a round depends on the work due, not on the number of dirty files. So each dirty
//!    file has a time of its next look, and each event that gives the flusher work with it moves
//!    that time forward; a separate set has the files with pages that no thread has begun to write,
//!    for when all are to be written.
//! 3. A look at a clean file removes it from the list; until then the list keeps the file alive.
//! 4. Each store has its own list and flusher (`writeback/lane.rs`).
//!
//! States of a file, and the functions that change them:
//!
//! ```text
//!                 list_dirty (first dirty page, or changed times)
//!      unlisted -----------------------------------------------> listed, due after AGE
//!         ^                                                          |     ^
//!         |                       hurry, gather, note_progress:      |     | flush: begins writes, due
//!         |                       due earlier (look_at)              v     | again after AGE, or at retry_at
//!         +---------------------------------------------------- flush (the flusher's look)
//!            file is clean: leaves the list, and settles times
//! ```
//!
//! Pages that have been dirty for `AGE` are written in one sweep of the file, in order: as many as may be in flight at
//! each look, and more as soon as those have ended. Pages that are dirtied behind it wait for the next sweep.
//!
//! A listed file is also in `unbegun` while it has pages of which no write has begun
//! (`note_unbegun` enters it, `flush` removes it). States of the flusher's thread:
//!
//! ```text
//!      no thread --(start: first listed or idle file)--> sleeping <--> round
//!          ^                                                            |
//!          +--(ends: both lists empty for LINGER, or store unmounted)---+
//! ```
//!
//! Lock order: a mapping's state, then the list.

use crate::memory::Memory;
use crate::stats::Count;
use crate::writeback::lane::{IdleFiles, Lane};
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};
use weir_base::sync::atomic::Ordering;
use weir_vfs::Result;

/// How long pages stay dirty if nothing requires an earlier write.
pub(crate) const AGE: Duration = Duration::from_secs(5);
/// How often the flusher looks at the time.
const TICK: Duration = Duration::from_millis(500);
/// How often it looks at idle files.
const IDLE_TICK: Duration = Duration::from_millis(250);
/// How long its thread stays without work.
const LINGER: Duration = Duration::from_secs(2);

/// A file with dirty pages, as the flusher sees it.
pub(crate) trait DirtyFile: Send + Sync {
    /// The flusher's look at the file: begins the writes that are due, and leaves the list if the
    /// file is clean. If `pressed`, all dirty pages are due.
    fn flush(self: Arc<Self>, pressed: bool, now: Instant);

    /// Writes back the pages that are dirty now, and waits until the store has them.
    fn write_all_back(self: Arc<Self>) -> Pin<Box<dyn Future<Output = Result<()>> + Send>>;
}

/// Writes back the pages of files that are dirty now, and waits until the store has them.
///
/// # Errors
/// That of a write that failed permanently meanwhile.
pub(crate) async fn flush_files(files: Vec<Arc<dyn DirtyFile>>) -> Result<()> {
    let mut result = Ok(());
    for file in files {
        result = result.and(file.write_all_back().await);
    }
    result
}

/// Files that may have dirty pages.
#[derive(Default)]
pub(crate) struct DirtyFiles {
    next: u64,
    /// By number, the longest dirty first.
    files: BTreeMap<u64, Arc<dyn DirtyFile>>,
    /// When to look at each file.
    due: BTreeSet<(Instant, u64)>,
    /// Files with pages that no thread has begun to write.
    unbegun: BTreeSet<u64>,
}

/// A file's place in the list.
pub(crate) struct Listed {
    number: u64,
    pub(crate) due: Instant,
    pub(crate) unbegun: bool,
}

impl DirtyFiles {
    pub(crate) fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Every file that may have dirty pages, the longest dirty first.
    pub(crate) fn all(&self) -> Vec<Arc<dyn DirtyFile>> {
        self.files.values().cloned().collect()
    }

    /// Adds a file at the end.
    pub(crate) fn enter(&mut self, mapping: Arc<dyn DirtyFile>, due: Instant) -> Listed {
        let number = self.next;
        self.next += 1;
        self.files.insert(number, mapping);
        self.due.insert((due, number));
        Listed { number, due, unbegun: false }
    }

    pub(crate) fn leave(&mut self, listed: &Listed) {
        self.files.remove(&listed.number);
        self.due.remove(&(listed.due, listed.number));
        self.unbegun.remove(&listed.number);
    }

    pub(crate) fn set_due(&mut self, listed: &mut Listed, due: Instant) {
        self.due.remove(&(listed.due, listed.number));
        self.due.insert((due, listed.number));
        listed.due = due;
    }

    pub(crate) fn set_unbegun(&mut self, listed: &mut Listed, unbegun: bool) {
        listed.unbegun = unbegun;
        if unbegun {
            self.unbegun.insert(listed.number);
        } else {
            self.unbegun.remove(&listed.number);
        }
    }
}

/// The flusher between two rounds.
pub(super) struct Round {
    look_at_idle: Instant,
    /// When there was something to do last.
    busy: Instant,
}

impl Round {
    pub(super) fn new(memory: &Memory) -> Self {
        Self { look_at_idle: memory.now(), busy: memory.now() }
    }
}

impl Lane {
    /// The flusher of the lane's store, until it has had no work for a while.
    pub(crate) fn flush_loop(&self, memory: &Memory) {
        let mut round = Round::new(memory);
        loop {
            self.flusher.sleep(self.until_due(memory.now()).min(TICK));
            if self.flush_round(memory, &mut round) {
                return;
            }
        }
    }

    /// The time until a file is due; at most [`AGE`].
    fn until_due(&self, now: Instant) -> Duration {
        let list = self.files.lock();
        list.due.first().map_or(AGE, |&(due, _)| due.saturating_duration_since(now))
    }

    /// One look at what is to be written or closed. Says whether the flusher ends.
    pub(super) fn flush_round(&self, memory: &Memory, round: &mut Round) -> bool {
        let idle = self.idle.upgrade();
        let stopping = idle.is_none();
        let pressed = stopping
            || self.writeback.pages() > memory.limits().dirty_background
            || memory.waiters.any()
            || memory.background.is_resizing()
            || memory.index_is_large();
        let now = memory.now();
        for mapping in self.to_look_at(memory, stopping, pressed, now) {
            mapping.flush(pressed, now);
        }
        if memory.waiters.any() {
            memory.waiters.freed.notify();
        }
        let mut closed = Vec::new();
        if now >= round.look_at_idle
            && let Some(idle) = &idle
        {
            round.look_at_idle = now + IDLE_TICK;
            closed = idle.clone().close_idle(now);
        }
        let ends = closed.is_empty() && self.ends(idle.as_deref(), &mut round.busy, now);
        // The last close of a file may take long; it must keep neither file system nor cache
        // alive.
        drop(idle);
        drop(closed);
        ends
    }

    /// Whether the thread ends, because it has had no work since `busy` for long enough. Then
    /// [`start`](Self::start) starts another.
    fn ends(&self, idle: Option<&dyn IdleFiles>, busy: &mut Instant, now: Instant) -> bool {
        let mut ends = |has_idle: bool| {
            // A thread that gives the flusher work holds this lock, or that of the list of idle
            // files, which is held here as well.
            let list = self.files.lock();
            if !list.is_empty() || has_idle {
                *busy = now;
                return false;
            }
            // The last look at a clean file has removed it: until then the list kept the file, and
            // the file the store.
            let ends = idle.is_none() || now - *busy >= LINGER;
            if ends {
                self.running.store(false, Ordering::SeqCst);
            }
            ends
        };
        match idle {
            Some(idle) => idle.with_list(&mut ends),
            None => ends(false),
        }
    }

    /// Files of a round: those that are due, with `pressed` those that can be written, or `all`.
    fn to_look_at(
        &self,
        memory: &Memory,
        all: bool,
        pressed: bool,
        now: Instant,
    ) -> Vec<Arc<dyn DirtyFile>> {
        let list = self.files.lock();
        if all {
            return list.all();
        }
        let mut numbers: Vec<u64> = list
            .due
            .iter()
            .take_while(|&&(due, _)| due <= now)
            .map(|&(_, number)| number)
            .collect();
        if pressed {
            numbers.extend(&list.unbegun);
        }
        // The longest dirty first, without duplicates.
        numbers.sort_unstable();
        numbers.dedup();
        memory.stats.add(Count::FlushLooks, numbers.len() as u64);
        numbers.iter().filter_map(|number| list.files.get(number).cloned()).collect()
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::testing::Rig;
    use weir_vfs::IoFlags;

    #[test]
    fn a_round_looks_at_each_file_that_is_due_or_can_be_written_once() {
        let rig = Rig::without_threads();
        let files = ["f", "g"].map(|name| rig.create(name));
        for file in &files {
            file.write_at(&[1], 0, IoFlags::empty()).unwrap();
        }
        let [first, second] = files.each_ref().map(|file| &file.open.mapping);
        let (lane, memory) = (first.lane(), &first.memory);
        let looks = |all, pressed, now| lane.to_look_at(memory, all, pressed, now).len();
        let due = |n: u64| memory.now() + Duration::from_secs(100 * n);
        let [soon, late] = [due(1), due(2)];
        for (mapping, at) in [(first, soon), (second, late)] {
            let listed = &mut mapping.state.lock().listed;
            lane.files.lock().set_due(listed.as_mut().unwrap(), at);
        }
        assert_eq!(lane.files.lock().due.len(), 2, "the earlier times are gone");
        let before = soon - Duration::from_nanos(1);
        assert_eq!([before, soon, late].map(|now| looks(false, false, now)), [0, 1, 2]);
        assert_eq!((looks(false, true, before), looks(false, true, late)), (2, 2));
        let listed = first.state.lock().listed.take().unwrap();
        lane.files.lock().set_unbegun(second.state.lock().listed.as_mut().unwrap(), false);
        assert_eq!((looks(false, true, before), looks(true, false, before)), (1, 2));
        lane.files.lock().leave(&listed);
        let list = lane.files.lock();
        assert_eq!((list.files.len(), list.due.len(), list.unbegun.len()), (1, 1, 0));
        drop(list);
        assert_eq!((looks(false, true, late), looks(true, false, late)), (1, 1));
    }
}
