//! The flusher: when dirty pages are written without anybody asking for it.
//!
//! 1. It writes files that have been dirty for a while, all files when too much is dirty or memory is
//!    short, and at once what uncached writes left (I11).
//! 2. A round costs in proportion to what there is to do, not to how many files are dirty. So each
//!    dirty file has a time at which it is looked at in any case, and whatever gives the flusher
//!    something to do with it before that moves the time forward; and the files with pages that
//!    nobody has begun to write are known, for when all are to be written.
//! 3. A file is taken off the list when it is clean, at a look; until then the list keeps it.
//!
//! Lock order: a mapping's state, then the list.

use crate::cache::Shared;
use crate::mapping::ranges::RangeSet;
use crate::mapping::{Mapping, State};
use crate::stats::Count;
use crate::writeback::Ask;
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
            self.shared.flusher.kick();
        }
    }

    /// The open file that wrote uncached is closed: what it left half-written goes, too.
    pub(crate) fn flush_half_written(&self) {
        let mut state = self.state.lock();
        if state.half_written.take().is_some() {
            self.hurry(&mut state);
            drop(state);
            self.shared.flusher.kick();
        }
    }

    /// Puts the file in the flusher's list: something is dirty, or its times are to be settled. The
    /// lock is held.
    pub(crate) fn list_dirty(self: &Arc<Self>, state: &mut State) {
        if state.listed.is_none() {
            let due = self.shared.now() + AGE;
            state.listed = Some(self.shared.dirty_files.lock().enter(self.clone(), due));
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
            self.shared.urgent.fetch_add(1, Ordering::SeqCst);
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
            self.shared.dirty_files.lock().set_due(listed, at);
        }
    }

    fn note_unbegun(&self, state: &mut State) {
        if let Some(listed) = state.listed.as_mut().filter(|listed| !listed.unbegun)
            && !state.dirty.is_empty()
        {
            self.shared.dirty_files.lock().set_unbegun(listed, true);
        }
    }

    /// The flusher's look at a file; `pressed` if all that is dirty is to be written.
    fn flush(self: &Arc<Self>, pressed: bool, now: Instant) {
        let mut state = self.state.lock();
        // Nobody else takes a file off the list.
        let Some(mut listed) = state.listed.take() else { return };
        if state.is_clean() {
            self.shared.dirty_files.lock().leave(&listed);
            drop(state);
            let settled = self.clone();
            self.shared.tasks.spawn(async move { settled.settle().await });
            return;
        }
        let since = state.dirty_since.unwrap_or(now);
        let failed = state.retry_at.filter(|&retry_at| retry_at > now);
        let ask = if pressed || now - since >= AGE || state.failing_since.is_some() {
            Some(Ask::Background)
        } else {
            state.urgent.then_some(Ask::Urgent)
        };
        // Whatever is not begun now is looked at again when something of the file ends; and in any
        // case after a while.
        let next = failed.unwrap_or(if now - since >= AGE { now + AGE } else { since + AGE });
        {
            let mut list = self.shared.dirty_files.lock();
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

impl Shared {
    /// The flusher.
    pub(crate) fn flush_loop(&self) {
        let mut look_at_idle = self.now();
        loop {
            self.flusher.sleep(TICK);
            // First: who counts here has put the file, or itself, where it is found below.
            let urgent = self.urgent.load(Ordering::SeqCst);
            let stopping = self.stop.load(Ordering::SeqCst);
            let pressed = stopping
                || self.dirty.pages() > self.limits().dirty_background
                || self.waiting.load(Ordering::SeqCst) > 0
                || self.resizing.load(Ordering::SeqCst)
                || self.trees_are_large();
            let now = self.now();
            for mapping in self.to_look_at(stopping, pressed, now) {
                mapping.flush(pressed, now);
            }
            if now >= look_at_idle {
                look_at_idle = now + IDLE_TICK;
                for store in self.stores() {
                    store.close_idle(now);
                }
            }
            self.urgent_seen.store(urgent, Ordering::SeqCst);
            // The last round takes clean files off the list: they keep the cache, and it them.
            let done = self.dirty.pages() == 0 && self.dirty_files.lock().files.is_empty();
            if stopping && done {
                return;
            }
            if self.waiting.load(Ordering::SeqCst) > 0 {
                self.freed.notify();
            }
        }
    }

    /// Files of a round: those whose time has come, and those that can be written if `pressed`, or
    /// `all` of them.
    fn to_look_at(&self, all: bool, pressed: bool, now: Instant) -> Vec<Arc<Mapping>> {
        if all {
            return self.dirty_mappings();
        }
        let list = self.dirty_files.lock();
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
        self.stats.add(Count::FlushLooks, numbers.len() as u64);
        numbers.iter().filter_map(|number| list.files.get(number).cloned()).collect()
    }

    /// Every file that may have dirty pages, the longest dirty first.
    pub(crate) fn dirty_mappings(&self) -> Vec<Arc<Mapping>> {
        self.dirty_files.lock().files.values().cloned().collect()
    }
}
