//! State shared by all open files of one file.
//!
//! 1. Extents are kept only while no write is in flight, and under a change attribute that is old
//!    enough to prove something, or while the kernel reports changes by others; every write of
//!    ours, every report, and every change of the attribute discards them.
//! 2. We look for changes by others before the first of several overlapping changes of ours, and at
//!    each look while none is in progress (`foreign`); the kernel's reports are counted with them
//!    (`watch`).

use crate::local::attr::change_of;
use crate::local::changes::directories::nanos_now;
use crate::local::changes::foreign::Seen;
use crate::local::changes::watch::Count;
use crate::local::data::extents::Known;
use crate::local::data::io::Io;
use crate::local::sys;
use parking_lot::Mutex;
use rustix::fs::StatxFlags;
use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering::{AcqRel, Acquire};
use std::sync::{Arc, Weak};
use weir_vfs::FileId;

/// State shared by all opens of a file.
#[derive(Debug)]
pub(in crate::local) struct Inode {
    pub(in crate::local) id: FileId,
    pub(in crate::local) state: Mutex<State>,
    /// Changes by others detected so far.
    foreign: Arc<Count>,
    table: Weak<Inodes>,
}

/// The part under the lock.
#[derive(Debug, Default)]
pub(in crate::local) struct State {
    pub(in crate::local) known: Known,
    /// The change attribute, and the count of changes by others, for which `known` is valid.
    pub(in crate::local) known_at: (u64, u64),
    pub(in crate::local) writes_in_flight: usize,
    seen: Seen,
    /// Number of open files, and the kernel's name for the file if it reports changes.
    files: usize,
    pub(in crate::local) mark: Option<Box<[u8]>>,
    /// For coarse stamps: the last stamp, and our changes seen under it.
    stamp: u64,
    changes: u64,
    changes_at_stamp: u64,
}

/// The files that are open.
#[derive(Debug, Default)]
pub(in crate::local) struct Inodes {
    open: Mutex<HashMap<FileId, Weak<Inode>>>,
}

impl Inodes {
    pub(in crate::local) fn get_or_insert(self: &Arc<Self>, id: FileId) -> Arc<Inode> {
        let mut open = self.open.lock();
        if let Some(inode) = open.get(&id).and_then(Weak::upgrade) {
            return inode;
        }
        let table = Arc::downgrade(self);
        let inode = Arc::new(Inode { id, state: Mutex::default(), foreign: Arc::default(), table });
        open.insert(id, Arc::downgrade(&inode));
        inode
    }

    pub(in crate::local) fn get(&self, id: FileId) -> Option<Arc<Inode>> {
        self.open.lock().get(&id).and_then(Weak::upgrade)
    }
}

impl Drop for Inode {
    fn drop(&mut self) {
        if let Some(table) = self.table.upgrade() {
            let mut open = table.open.lock();
            // A new inode may have replaced it already.
            if open.get(&self.id).is_some_and(|inode| inode.strong_count() == 0) {
                open.remove(&self.id);
            }
        }
    }
}

impl Inode {
    /// Runs a change of the file through this store.
    pub(in crate::local) fn changing<T>(
        &self,
        io: &Io,
        file: BorrowedFd<'_>,
        change: impl FnOnce() -> T,
    ) -> T {
        self.begin_change(io, file);
        let result = change();
        self.end_change();
        result
    }

    pub(in crate::local) fn begin_change(&self, io: &Io, file: BorrowedFd<'_>) {
        let mut state = self.state.lock();
        state.writes_in_flight += 1;
        state.known.forget();
        if state.writes_in_flight == 1
            && let Ok(stat) = sys::stat_fd(file, StatxFlags::CTIME)
        {
            let stamp = change_of(&stat);
            if state.seen.before_own(stamp, nanos_now(), io.stamps.clock_is_ours) {
                self.foreign.fetch_add(1, AcqRel);
            }
        }
    }

    /// The file's attributes were read, with this `stamp`.
    pub(in crate::local) fn looked(&self, io: &Io, stamp: u64) {
        let mut state = self.state.lock();
        let watched = state.mark.is_some();
        if state.writes_in_flight == 0
            && state.seen.look(stamp, nanos_now(), io.stamps.clock_is_ours, watched)
        {
            self.foreign.fetch_add(1, AcqRel);
        }
    }

    /// The count of changes by others.
    pub(in crate::local) fn foreign(&self, io: &Io) -> u64 {
        if let Some(watch) = &io.watch {
            watch.drain();
        }
        self.foreign.load(Acquire)
    }

    pub(in crate::local) fn opened(&self, io: &Io, file: BorrowedFd<'_>) {
        let mut state = self.state.lock();
        state.files += 1;
        if state.files == 1
            && let Some(watch) = &io.watch
        {
            state.mark = watch.mark(file, Arc::downgrade(&self.foreign));
        }
    }

    pub(in crate::local) fn closed(&self, io: &Io, file: BorrowedFd<'_>) {
        let mut state = self.state.lock();
        state.files -= 1;
        if state.files == 0
            && let (Some(watch), Some(key)) = (&io.watch, state.mark.take())
        {
            watch.unmark(file, &key);
        }
    }

    pub(in crate::local) fn end_change(&self) {
        let mut state = self.state.lock();
        state.writes_in_flight -= 1;
        state.changes += 1;
        state.known.forget();
        if state.writes_in_flight == 0 {
            state.seen.after_own(nanos_now());
        }
    }

    /// The change attribute for a coarse time stamp: one more for each change of ours under it.
    pub(in crate::local) fn refine(&self, stamp: u64) -> u64 {
        let mut state = self.state.lock();
        if state.stamp != stamp {
            state.stamp = stamp;
            state.changes_at_stamp = state.changes;
        }
        stamp.wrapping_add(state.changes - state.changes_at_stamp)
    }
}
