//! Room for what is known of files besides their pages: mappings, and the trees of their indexes.
//!
//! 1. It keeps to a share of its own beside the budget. The files that were closed the longest ago go
//!    first, with their pages. Then holes are forgotten, as the store can be asked for them again.
//!    Where that is not it, pages lie so far apart that their trees take more room than they do: some
//!    go, and writers wait for dirty ones to be written.
//! 2. Files that somebody has open cost what they cost. Trees pay for it only down to a part of the
//!    share, else a cache with many open files would know nothing of any of them.
//! 3. A call does a bounded piece of work, since somebody waits for it; the next goes on there.

use crate::cache::Shared;
use crate::mapping::Mapping;
use crate::mapping::index::{self, Found};
use crate::reclaim::s3fifo::{Effort, Reach};
use std::ops::ControlFlow;
use std::sync::Arc;
use weir_base::sync::Mutex;
use weir_base::sync::atomic::{AtomicUsize, Ordering};

/// Files let go of, or pages dropped, in one go at most.
const BATCH: usize = 64;
/// Places in trees looked at in one go at most.
const LOOKS: usize = 1024;

/// What is in use.
#[derive(Default)]
pub(crate) struct Room {
    /// By mappings without their trees, in bytes.
    pub(crate) files: AtomicUsize,
    /// By trees, in bytes.
    pub(crate) trees: AtomicUsize,
    /// Where to go on with forgetting; held by who makes room.
    next: Mutex<Place>,
}

/// A page of the mapping of this number.
#[derive(Default)]
struct Place {
    mapping: u32,
    page: u64,
}

impl Room {
    /// All that is in use, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.files.load(Ordering::Relaxed) + self.trees.load(Ordering::Relaxed)
    }
}

impl Shared {
    /// Whether there is too little room, and trees are to blame, or a part of them.
    pub(crate) fn trees_are_large(&self) -> bool {
        let share = self.limits().index_bytes;
        self.room.trees.load(Ordering::Relaxed) > share / 4 && self.room.bytes() > share
    }

    /// Makes room, if there is too little. No lock is held.
    pub(crate) fn make_room(&self) {
        let crowded = || self.room.bytes() > self.limits().index_bytes;
        if !crowded() {
            return;
        }
        let Some(mut next) = self.room.next.try_lock() else { return };
        let stores = self.stores();
        let mut let_go = false;
        for _ in 0..BATCH {
            // What is let go of of a store that hangs would only wait for that store.
            let able = stores.iter().filter(|fs| !fs.dirty.lane.is_behind());
            let oldest = able.filter_map(|fs| Some((fs.oldest_idle()?, fs)));
            let Some((_, fs)) = oldest.min_by_key(|&(tick, _)| tick) else { break };
            if !crowded() {
                break;
            }
            let_go |= fs.let_one_go();
        }
        if !let_go && self.trees_are_large() {
            let before = self.room.trees.load(Ordering::Relaxed);
            self.forget_holes(&mut next);
            if self.room.trees.load(Ordering::Relaxed) >= before {
                self.reclaim(BATCH, Reach::All, Effort::Foreground);
            }
        }
        for fs in stores.into_iter().filter_map(Arc::into_inner) {
            // The last use of a store, which may block.
            let tasks = fs.dirty.lane.tasks.clone();
            tasks.spawn(async move { drop(fs) });
        }
        self.collect();
    }

    /// Forgets holes of mappings in turn.
    fn forget_holes(&self, next: &mut Place) {
        let made = self.mappings_made();
        let mut looks = LOOKS;
        for _ in 0..made {
            if let Some(mapping) = self.mapping(next.mapping)
                && let ControlFlow::Break(page) = mapping.forget_holes(next.page, &mut looks)
            {
                next.page = page;
                return;
            }
            *next = Place { mapping: (next.mapping + 1) % made, page: 0 };
            looks = looks.saturating_sub(1);
            if looks == 0 {
                return;
            }
        }
    }
}

impl Mapping {
    /// Forgets what is known of holes from `page` on, until it has looked at so many places: then
    /// breaks with the page to go on with. Where ours is longer than the store's file, a fill finds
    /// the hole by that.
    fn forget_holes(&self, mut page: u64, looks: &mut usize) -> ControlFlow<u64> {
        let mut state = self.state.lock();
        if state.exclusive {
            return ControlFlow::Continue(());
        }
        let mut edit = self.edit();
        while *looks > 0 && page < u64::MAX {
            *looks -= 1;
            let (end, holes) = match edit.lookup(page) {
                Found::Empty(end) => (end, false),
                Found::Hole(end) => (end, true),
                Found::Leaf(leaf) => (leaf.end(page), leaf.holds_no_page()),
            };
            if holes {
                edit.replace(page..end, index::Fill::Empty);
            }
            page = end;
        }
        edit.finish(&mut state);
        if page < u64::MAX { ControlFlow::Break(page) } else { ControlFlow::Continue(()) }
    }
}
