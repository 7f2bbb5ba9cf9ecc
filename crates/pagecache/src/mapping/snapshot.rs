//! The resident pages of a range at one moment, read without a lock.
//!
//! 1. A snapshot is taken between two reads of the mapping's sequence number; if a change intervened,
//!    it is taken again.
//! 2. The size is read in between as well, so it matches the slots.
//! 3. The frames stay valid while the epoch's guard lives.

use super::{FrameList, HOLE, Mapping, State};
use crate::mapping::index::{Found, LEAF_SLOTS, Leaf, Slot};
use crate::memory::epoch::Guard;
use crate::memory::frame_no::FrameNo;
use weir_base::sync::atomic::{Ordering, fence};
use weir_base::{PAGE_SIZE, pages_spanning};

/// Why a walk over slots stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// It reached the end of the request or of the file.
    Complete,
    /// At a page that is not present.
    Missing,
    /// At a page that this fill will publish.
    InFlight(u64),
    /// At a page with one of the flags to stop at.
    Marked,
}

/// Slots of consecutive pages at one moment.
#[derive(Clone, Copy)]
pub(crate) struct Snapshot {
    pub(crate) sequence: u64,
    pub(crate) size: u64,
    /// Bytes from the request's offset on that the pages cover, clipped at the end of file.
    pub(crate) len: usize,
    pub(crate) stop: Stop,
}

/// A page with a frame, at one moment.
pub(crate) struct PageNow<'g> {
    pub(crate) frame: FrameNo,
    pub(crate) flags: u16,
    leaf: &'g Leaf,
    index: usize,
}

impl PageNow<'_> {
    /// The next page's frame, if it is in the same leaf.
    #[inline]
    pub(crate) fn next(&self) -> Option<FrameNo> {
        match self.leaf.slot(self.index + 1) {
            Slot::Frame(frame) if self.index + 1 < LEAF_SLOTS => Some(frame),
            _ => None,
        }
    }
}

impl Mapping {
    /// Collects the slots of the resident prefix of a range, without a lock. `None` if a write
    /// intervened.
    #[inline]
    pub(crate) fn snapshot(
        &self,
        guard: &Guard,
        offset: u64,
        len: usize,
        stop_at: u16,
        frames: &mut FrameList,
    ) -> Option<Snapshot> {
        for _ in 0..4 {
            let sequence = self.sequence.load(Ordering::Acquire);
            if sequence & 1 == 1 {
                std::hint::spin_loop();
                continue;
            }
            // The size is read within the read section, so it matches the slots.
            let size = self.size.load(Ordering::Relaxed);
            frames.clear();
            let (len, stop) = self.walk(guard, offset, len, size, stop_at, frames);
            fence(Ordering::Acquire);
            if self.sequence.load(Ordering::Relaxed) == sequence {
                return Some(Snapshot { sequence, size, len, stop });
            }
        }
        None
    }

    /// The page with the `len` bytes at `offset`, which lie within one page, if it is resident, all
    /// of them are below the end of file, and it has none of the flags `stop_at`. Also a snapshot
    /// without a lock.
    #[inline]
    pub(crate) fn page_now<'g>(
        &self,
        guard: &'g Guard,
        offset: u64,
        len: usize,
        stop_at: u16,
    ) -> Option<PageNow<'g>> {
        let sequence = self.sequence.load(Ordering::Acquire);
        // The size is read within the read section, so it matches the slot.
        let size = self.size.load(Ordering::Relaxed);
        let page = offset / PAGE_SIZE as u64;
        let Found::Leaf(leaf) = self.index.lookup(page, guard) else { return None };
        let index = page as usize & (LEAF_SLOTS - 1);
        let Slot::Frame(frame) = leaf.slot(index) else { return None };
        let flags = self.memory.arena.flags(frame);
        fence(Ordering::Acquire);
        let steady = sequence & 1 == 0 && self.sequence.load(Ordering::Relaxed) == sequence;
        let whole = size >= len as u64 && offset <= size - len as u64;
        (steady && whole && flags & stop_at == 0).then_some(PageNow { frame, flags, leaf, index })
    }

    /// [`snapshot`](Self::snapshot) with the lock held.
    pub(crate) fn snapshot_locked(
        &self,
        _locked: &State,
        guard: &Guard,
        offset: u64,
        len: usize,
        stop_at: u16,
        frames: &mut FrameList,
    ) -> Snapshot {
        let size = self.size();
        frames.clear();
        let (len, stop) = self.walk(guard, offset, len, size, stop_at, frames);
        Snapshot { sequence: self.sequence(), size, len, stop }
    }

    #[inline]
    fn walk(
        &self,
        guard: &Guard,
        offset: u64,
        len: usize,
        size: u64,
        stop_at: u16,
        frames: &mut FrameList,
    ) -> (usize, Stop) {
        if offset >= size {
            return (0, Stop::Complete);
        }
        let len = (len as u64).min(size - offset);
        let pages = pages_spanning(offset, len);
        let mut page = pages.start;
        let mut stop = Stop::Complete;
        'walk: while page < pages.end {
            match self.index.lookup(page, guard) {
                Found::Empty(_) => {
                    stop = Stop::Missing;
                    break;
                }
                Found::Hole(until) => {
                    let until = until.min(pages.end);
                    frames.resize(frames.len() + (until - page) as usize, HOLE);
                    page = until;
                }
                Found::Leaf(leaf) => {
                    let leaf_end = leaf.end(page).min(pages.end);
                    while page < leaf_end {
                        match leaf.slot(page as usize & (LEAF_SLOTS - 1)) {
                            Slot::Frame(frame) => {
                                if stop_at != 0 && self.memory.arena.flags(frame) & stop_at != 0 {
                                    stop = Stop::Marked;
                                    break 'walk;
                                }
                                frames.push(frame);
                            }
                            Slot::Hole => frames.push(HOLE),
                            Slot::Empty => {
                                stop = Stop::Missing;
                                break 'walk;
                            }
                            Slot::InFlight(fill) => {
                                stop = Stop::InFlight(fill);
                                break 'walk;
                            }
                        }
                        page += 1;
                    }
                }
            }
        }
        if page == pages.end {
            return (len as usize, stop);
        }
        // Up to the page at which the walk stopped; 0 if that is the first.
        ((page * PAGE_SIZE as u64).saturating_sub(offset).min(len) as usize, stop)
    }
}
