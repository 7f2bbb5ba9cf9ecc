//! The flusher: when dirty pages are written without anybody asking for it.
//!
//! 1. It writes files that have been dirty for a while, all files when too much is dirty or memory is
//!    short, and at once what uncached writes left (I11).
//! 2. A round costs in proportion to what there is to do, not to how many files are dirty. So each
//!    dirty file has a time at which it is looked at in any case, and whatever gives the flusher
//!    something to do with it before that moves the time forward; and the files with pages that
//!    nobody has begun to write are known, for when all are to be written.
//! 3. A file is taken off the list when it is clean, at a look; until then the list keeps it.
//! 4. Each store has a list and a flusher of its own (`writeback/lane.rs`).
//!
//! Lock order: a mapping's state, then the list.

use crate::cache::Shared;
use crate::fs::FsShared;
use crate::mapping::writeback::Ask;
use crate::mapping::{Mapping, State};
use crate::ranges::RangeSet;
use crate::stats::Count;
use crate::writeback::lane::Lane;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};
use weir_base::sync::atomic::Ordering;

/// How long pages stay dirty before they are written without need.
const AGE: Duration = Duration::from_secs(5);
/// How often the flusher looks at the time.
const TICK: Duration = Duration::from_millis(500);
/// How often it looks at files that nobody has open.
const IDLE_TICK: Duration = Duration::from_millis(250);
/// How long its thread stays with nothing to do.
const LINGER: Duration = Duration::from_secs(2);

/// Files that may have something dirty.
#[derive(Default)]
pub(crate) struct DirtyFiles {
    next: u64,
    /// By number, the longest dirty first.
    files: BTreeMap<u64, Arc<Mapping>>,
    /// When to look at each.
    due: BTreeSet<(Instant, u64)>,
    /// Those with pages that nobody has begun to write.
    unbegun: BTreeSet<u64>,
}

/// A file's place in the list.
pub(crate) struct Listed {
    number: u64,
    due: Instant,
    unbegun: bool,
}

impl DirtyFiles {
    pub(crate) fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Every file that may have dirty pages, the longest dirty first.
    pub(crate) fn all(&self) -> Vec<Arc<Mapping>> {
        self.files.values().cloned().collect()
    }

    /// Puts a file last.
    fn enter(&mut self, mapping: Arc<Mapping>, due: Instant) -> Listed {
        let number = self.next;
        self.next += 1;
        self.files.insert(number, mapping);
        self.due.insert((due, number));
        Listed { number, due, unbegun: false }
    }

    fn leave(&mut self, listed: &Listed) {
        self.files.remove(&listed.number);
        self.due.remove(&(listed.due, listed.number));
        self.unbegun.remove(&listed.number);
    }

    fn set_due(&mut self, listed: &mut Listed, due: Instant) {
        self.due.remove(&(listed.due, listed.number));
        self.due.insert((due, listed.number));
        listed.due = due;
    }

    fn set_unbegun(&mut self, listed: &mut Listed, unbegun: bool) {
        listed.unbegun = unbegun;
        if unbegun {
            self.unbegun.insert(listed.number);
        } else {
            self.unbegun.remove(&listed.number);
        }
    }
}

impl Mapping {
    /// Asks the flusher to write what is dirty now, whatever its age.
    pub(crate) fn flush_soon(&self) {
        let mut state = self.state.lock();
        if !state.dirty.is_empty() {
            self.hurry(&mut state);
            drop(state);
            self.lane().kick();
        }
    }

    /// The open file that wrote uncached is closed: what it left half-written goes, too.
    pub(crate) fn flush_half_written(&self) {
        let mut state = self.state.lock();
        if state.half_written.take().is_some() {
            self.hurry(&mut state);
            drop(state);
            self.lane().kick();
        }
    }

    /// Puts the file in the flusher's list: something is dirty, or its times are to be settled. The
    /// lock is held.
    pub(crate) fn list_dirty(self: &Arc<Self>, state: &mut State) {
        if state.listed.is_none() {
            let due = self.shared.now() + AGE;
            let lane = self.lane();
            let mut list = lane.files.lock();
            state.listed = Some(list.enter(self.clone(), due));
            lane.start();
        }
        self.note_unbegun(state);
    }

    /// What is dirty is to be written now, whatever its age. The lock is held, and the flusher
    /// kicked afterwards.
    pub(crate) fn hurry(&self, state: &mut State) {
        state.urgent = true;
        self.look_at(state, None);
    }

    /// Something has become clean, or can be written again. The lock is held, and the flusher kicked
    /// afterwards.
    pub(crate) fn note_progress(&self, state: &mut State) {
        if !state.dirty.is_empty() {
            self.lane().urgent.fetch_add(1, Ordering::SeqCst);
        }
        match state.retry_at {
            Some(retry_at) if !state.is_clean() => self.look_at(state, Some(retry_at)),
            _ => {
                self.note_unbegun(state);
                if state.urgent || state.is_clean() {
                    self.look_at(state, None);
                }
            }
        }
    }

    /// Has the flusher look at the file at this time, or now, if it would not before.
    fn look_at(&self, state: &mut State, at: Option<Instant>) {
        let Some(listed) = &mut state.listed else { return };
        let at = at.unwrap_or_else(|| self.shared.now());
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

    /// The flusher's look at a file; `pressed` if all that is dirty is to be written.
    fn flush(self: &Arc<Self>, pressed: bool, now: Instant) {
        let mut state = self.state.lock();
        // Nobody else takes a file off the list.
        let Some(mut listed) = state.listed.take() else { return };
        if state.is_clean() {
            self.lane().files.lock().leave(&listed);
            drop(state);
            let settled = self.clone();
            self.lane().tasks.spawn(async move { settled.settle().await });
            return;
        }
        let since = state.dirty_since.unwrap_or(now);
        let failed = state.retry_at.filter(|&retry_at| retry_at > now);
        let ask = if pressed || now - since >= AGE || !state.failing.is_empty() {
            Some(Ask::Background)
        } else {
            state.urgent.then_some(Ask::Urgent)
        };
        // Whatever is not begun now is looked at again when something of the file ends; and in any
        // case after a while.
        let next = failed.unwrap_or(if now - since >= AGE { now + AGE } else { since + AGE });
        {
            let mut list = self.lane().files.lock();
            list.set_due(&mut listed, next);
            // What is in no hurry stays unbegun.
            let unbegun = ask != Some(Ask::Background) && !state.dirty.is_empty();
            list.set_unbegun(&mut listed, unbegun);
        }
        state.listed = Some(listed);
        drop(state);
        if let Some(ask) = ask {
            self.start_writeback(0..u64::MAX, ask, &mut RangeSet::default());
        }
    }
}

impl Lane {
    /// The flusher of the lane's store, until there has been nothing to do for a while.
    pub(crate) fn flush_loop(&self, shared: &Shared) {
        let mut look_at_idle = shared.now();
        let mut busy = shared.now();
        loop {
            self.flusher.sleep(TICK);
            // First: who counts here has put the file, or itself, where it is found below.
            let urgent = self.urgent.load(Ordering::SeqCst);
            let fs = self.fs.upgrade();
            let stopping = fs.is_none();
            let pressed = stopping
                || shared.dirty.pages() > shared.limits().dirty_background
                || shared.waiting.load(Ordering::SeqCst) > 0
                || shared.resizing.load(Ordering::SeqCst)
                || shared.trees_are_large();
            let now = shared.now();
            for mapping in self.to_look_at(shared, stopping, pressed, now) {
                mapping.flush(pressed, now);
            }
            self.urgent_seen.store(urgent, Ordering::SeqCst);
            if shared.waiting.load(Ordering::SeqCst) > 0 {
                shared.freed.notify();
            }
            let mut closed = Vec::new();
            if now >= look_at_idle
                && let Some(fs) = &fs
            {
                look_at_idle = now + IDLE_TICK;
                closed = fs.close_idle(now);
            }
            let ends = closed.is_empty() && self.ends(fs.as_deref(), &mut busy, now);
            // The last close of a file may be long, and keeps neither file system nor cache.
            drop(fs);
            drop(closed);
            if ends {
                return;
            }
        }
    }

    /// Whether the thread ends, as it has had nothing to do since `busy` for long enough. Then
    /// [`start`](Self::start) starts another.
    fn ends(&self, fs: Option<&FsShared>, busy: &mut Instant, now: Instant) -> bool {
        // Held to the end: whoever gives the flusher something to do holds one of the two.
        let table = fs.map(|fs| fs.table.lock());
        let list = self.files.lock();
        if !list.is_empty() || table.as_ref().is_some_and(|table| table.has_idle()) {
            *busy = now;
            return false;
        }
        // A clean file's last look has taken it off the list: that kept the store, and it the file.
        let ends = fs.is_none() || now - *busy >= LINGER;
        if ends {
            self.running.store(false, Ordering::SeqCst);
        }
        ends
    }

    /// Files of a round: those whose time has come, and those that can be written if `pressed`, or
    /// `all` of them.
    fn to_look_at(
        &self,
        shared: &Shared,
        all: bool,
        pressed: bool,
        now: Instant,
    ) -> Vec<Arc<Mapping>> {
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
        // The longest dirty first, and each once.
        numbers.sort_unstable();
        numbers.dedup();
        shared.stats.add(Count::FlushLooks, numbers.len() as u64);
        numbers.iter().filter_map(|number| list.files.get(number).cloned()).collect()
    }
}
