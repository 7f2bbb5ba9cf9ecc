//! Page frames: one mapping of memory, and a few words of metadata for each frame.
//!
//! 1. The arena is the budget (I7): every cached byte lies in it, and frames in use, in flight,
//!    pinned or waiting for their epoch are simply not free. The budget can be any part of the
//!    address space mapped at start; frames above it have no memory once free.
//! 2. A frame has one owner while it is not published (a [`Frames`]); bytes are written only then,
//!    or past its high-water mark under its mapping's lock. Bytes below the mark are never written
//!    again until the frame was free in between.
//! 3. A published frame has one reference for its slot, dropped when the epoch of its removal from
//!    the slot has passed, and one for each pin. At zero it is free. There is no other rule: the
//!    thread that drops the last reference frees it.
//! 4. The reference counts of two adjacent frames share a word, 32 bits each, so that lending a
//!    long run is one atomic addition for every two frames. No count reaches 2^32, as a pin costs
//!    its holder memory; so no carry crosses from one to the other.
//!
//! The flags of all frames lie side by side, two bytes each, since a hit has to look at them: 32 KiB
//! for 64 MiB of pages stay in the processor's caches when the rest of the metadata would not.
//!
//! What guards each flag of a published frame. All accesses are relaxed atomics; the guard says which
//! other state a flag agrees with. "State" is the lock of the mapping that the frame belongs to.
//!
//! | flag | set under | cleared under | read without a lock by |
//! | --- | --- | --- | --- |
//! | `DIRTY` | state (agrees with `State::dirty`) | state | reclaim; it looks again under state |
//! | `WRITEBACK` | state (agrees with `State::writeback`) | state | reclaim, likewise |
//! | `UNCACHED` | before publication | no lock (a) | fast reads |
//! | `REFERENCED` | no lock, by cached reads (b) | the queues' lock, by reclaim | fast reads |
//! | `READAHEAD` | before publication | no lock, by the read that starts the next read-ahead | fast reads |
//! | `QUEUE`, `PARKED` | the queues' lock | the queues' lock | no thread |
//!
//! (a) A cached access claims the page, a prune (under state) drops it: the one whose `fetch_and`
//! clears the flag decides. (b) A replacement frame takes it over, under the queues' lock.
//!
//! A free frame has no flags; the allocator's lock orders clearing them before its next use.
//! The index's slot is stored with release ordering after a frame's first flags, mark and bytes.
//!
//! Soundness: frame bytes are reached through raw pointers into the one mapping, which lives as
//! long as the arena. Shared slices cover bytes below the mark only, which no thread writes (2).

use crate::memory::frame_bitmap::FrameBitmap;
use crate::memory::frame_no::FrameNo;
use crate::memory::region;
use crossbeam_utils::CachePadded;
use std::ptr::NonNull;
use std::sync::Arc;
use weir_base::PAGE_SIZE;
use weir_base::sync::Mutex;
use weir_base::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicU64, Ordering};

/// Flags of a frame.
pub(crate) mod flag {
    /// Its bytes are newer than the store's.
    pub(crate) const DIRTY: u16 = 1;
    /// A write to the store is reading it.
    pub(crate) const WRITEBACK: u16 = 2;
    /// An uncached operation brought it in, and no cached access has claimed it.
    pub(crate) const UNCACHED: u16 = 4;
    /// It was used since reclaim's last look.
    pub(crate) const REFERENCED: u16 = 8;
    /// The read that reaches it starts the next read-ahead.
    pub(crate) const READAHEAD: u16 = 16;
    /// Which queue of reclaim it is in; see `reclaim/s3fifo.rs`.
    pub(crate) const QUEUE: u16 = 0x60;
    /// Shift of [`QUEUE`].
    pub(crate) const QUEUE_SHIFT: u32 = 5;
    /// Out of its queue's list until it is clean; see `reclaim/s3fifo.rs`.
    pub(crate) const PARKED: u16 = 0x80;
}

/// A frame's metadata besides its flags.
#[derive(Default)]
pub(crate) struct Rest {
    /// The end of the bytes that were ever published.
    mark: AtomicU32,
    /// Number of the frame's mapping in the cache's registry.
    pub(crate) mapping: AtomicU32,
    /// Time of insertion, on reclaim's clock.
    pub(crate) stamp: AtomicU32,
    /// Page number within the mapping.
    pub(crate) page: AtomicU64,
    /// Neighbours in a queue of reclaim; under its lock.
    prev: AtomicU32,
    next: AtomicU32,
}

/// A frame's metadata.
#[derive(Clone, Copy)]
pub(crate) struct Meta<'a> {
    flags: &'a AtomicU16,
    rest: &'a Rest,
}

impl std::ops::Deref for Meta<'_> {
    type Target = Rest;

    fn deref(&self) -> &Rest {
        self.rest
    }
}

impl Meta<'_> {
    pub(crate) fn flags(&self) -> u16 {
        self.flags.load(Ordering::Relaxed)
    }

    pub(crate) fn has(&self, flags: u16) -> bool {
        self.flags() & flags != 0
    }

    pub(crate) fn set(&self, flags: u16) {
        self.flags.fetch_or(flags, Ordering::Relaxed);
    }

    /// Clears flags; returns those of them that were set.
    pub(crate) fn clear(&self, flags: u16) -> u16 {
        self.flags.fetch_and(!flags, Ordering::Relaxed) & flags
    }
}

impl Rest {
    /// The end of the bytes that were ever published, 0 to [`PAGE_SIZE`].
    pub(crate) fn mark(&self) -> usize {
        self.mark.load(Ordering::Relaxed) as usize
    }

    /// Moves the high-water mark; the mapping's lock is held, or the frame is not published.
    pub(crate) fn set_mark(&self, mark: usize) {
        debug_assert!(mark <= PAGE_SIZE);
        self.mark.store(mark as u32, Ordering::Relaxed);
    }

    /// The previous frame in its queue.
    pub(crate) fn prev(&self) -> FrameNo {
        FrameNo(self.prev.load(Ordering::Relaxed))
    }

    pub(crate) fn set_prev(&self, frame: FrameNo) {
        self.prev.store(frame.0, Ordering::Relaxed);
    }

    /// The next frame in its queue.
    pub(crate) fn next(&self) -> FrameNo {
        FrameNo(self.next.load(Ordering::Relaxed))
    }

    pub(crate) fn set_next(&self, frame: FrameNo) {
        self.next.store(frame.0, Ordering::Relaxed);
    }
}

/// Most frames that [`Arena::unpin`] frees under one hold of the list's lock.
const FREE_BATCH: usize = 512;
/// One reference to both frames of a word.
const BOTH: u64 = (1 << 32) | 1;

/// One reference to a frame, at its position in the word.
#[inline]
const fn one(frame: FrameNo) -> u64 {
    1 << (32 * (frame.0 & 1))
}

/// The number of references to a frame in its word.
#[inline]
const fn count_in(word: u64, frame: FrameNo) -> u32 {
    (word >> (32 * (frame.0 & 1))) as u32
}

/// The frames.
pub(crate) struct Arena {
    base: NonNull<u8>,
    flags: Box<[AtomicU16]>,
    rest: Box<[Rest]>,
    /// References by slots and pins; frames `2 * i` and `2 * i + 1` share word `i`.
    refs: Box<[AtomicU64]>,
    /// Number of frames that may be used.
    limit: AtomicU32,
    /// On lines of its own, as readers need the fields above.
    free: CachePadded<Free>,
}

struct Free {
    list: Mutex<FrameBitmap>,
    /// Held while the limit must not change. The frames above it that were in use when the memory of the
    /// others was returned; `None` if it has not been returned since the limit was set.
    resizing: Mutex<Option<Vec<FrameNo>>>,
    /// A copy of the list's count, for readers without its lock.
    used: AtomicU32,
    /// Counts returns of frames.
    returns: AtomicU32,
    /// A copy of [`FrameBitmap::is_behind`], likewise.
    behind: AtomicBool,
}

// SAFETY: the memory behind `base` is written by a frame's owner alone and read below the mark
// (invariant 2); everything else is synchronised by its own type.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

impl Arena {
    /// Maps addresses for `reserved` frames, of which `limit` may be used.
    pub(crate) fn new(limit: u32, reserved: u32) -> std::io::Result<Self> {
        debug_assert!(limit <= reserved);
        let base = region::map(reserved as usize * PAGE_SIZE)?;
        Ok(Self {
            base,
            // SAFETY: a table of integers.
            flags: unsafe { region::zeroed_table(reserved as usize) },
            // SAFETY: as above.
            rest: unsafe { region::zeroed_table(reserved as usize) },
            // SAFETY: as above.
            refs: unsafe { region::zeroed_table(reserved.div_ceil(2) as usize) },
            limit: AtomicU32::new(limit),
            free: CachePadded::new(Free {
                list: Mutex::new(FrameBitmap::new(reserved, limit)),
                resizing: Mutex::new(None),
                used: AtomicU32::new(0),
                returns: AtomicU32::new(0),
                behind: AtomicBool::new(false),
            }),
        })
    }

    /// Number of frames that may be used.
    #[inline]
    pub(crate) fn frames(&self) -> u32 {
        self.limit.load(Ordering::Relaxed)
    }

    /// Largest possible number of frames.
    pub(crate) fn reserved(&self) -> u32 {
        self.flags.len() as u32
    }

    /// Number of used frames; above the limit while a lower one is being reached.
    pub(crate) fn used_frames(&self) -> u32 {
        self.free.used.load(Ordering::Relaxed)
    }

    /// Whether the frame is not free.
    #[cfg(all(test, loom))]
    pub(crate) fn is_used(&self, frame: FrameNo) -> bool {
        !self.free.list.lock().is_free(frame)
    }

    /// Counts returns of frames: it advances as long as operations make progress.
    pub(crate) fn returns(&self) -> u32 {
        self.free.returns.load(Ordering::Relaxed)
    }

    /// Number of frames available now.
    pub(crate) fn free_frames(&self) -> u32 {
        self.frames().saturating_sub(self.used_frames())
    }

    #[inline]
    pub(crate) fn meta(&self, frame: FrameNo) -> Meta<'_> {
        Meta { flags: &self.flags[frame.index()], rest: &self.rest[frame.index()] }
    }

    /// The frame's flags.
    #[inline]
    pub(crate) fn flags(&self, frame: FrameNo) -> u16 {
        self.flags[frame.index()].load(Ordering::Relaxed)
    }

    /// Where the frame's bytes begin.
    #[inline]
    pub(crate) fn ptr(&self, frame: FrameNo) -> *mut u8 {
        debug_assert!(frame.0 < self.reserved());
        // SAFETY: within the mapping, as frames are numbered below its length in pages.
        unsafe { self.base.as_ptr().add(frame.index() * PAGE_SIZE) }
    }

    /// The first `len` bytes from byte `from` of the run of frames that begins at `frame`.
    ///
    /// # Safety
    /// The caller keeps the frames from being freed (a pin, or an epoch guard) while it uses them, and all
    /// of the bytes are below their frames' marks.
    #[inline]
    pub(crate) unsafe fn bytes(&self, frame: FrameNo, from: usize, len: usize) -> &[u8] {
        // SAFETY: within the mapping, guaranteed by the caller; no thread writes below the marks.
        unsafe { std::slice::from_raw_parts(self.ptr(frame).add(from), len) }
    }

    /// Prefetches `len` bytes from byte `from` of a frame.
    #[inline]
    pub(crate) fn prefetch(&self, frame: FrameNo, from: usize, len: usize) {
        #[cfg(all(target_arch = "x86_64", not(any(loom, shuttle, miri))))]
        for at in (from..from + len).step_by(64) {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            // SAFETY: a hint; it faults nowhere and changes nothing.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(self.ptr(frame).wrapping_add(at).cast()) };
        }
        #[cfg(not(all(target_arch = "x86_64", not(any(loom, shuttle, miri)))))]
        let _ = (frame, from, len);
    }

    /// Takes up to `want` frames if at least `min` are free.
    pub(crate) fn take(self: &Arc<Self>, want: usize, min: usize) -> Option<Frames> {
        let mut list = self.free.list.lock();
        let count = want.min(list.available() as usize);
        if count < min.max(1) {
            return None;
        }
        let mut frames = Vec::with_capacity(count);
        list.take(count, &mut frames);
        self.free.used.store(list.used(), Ordering::Relaxed);
        self.free.behind.store(list.is_behind(), Ordering::Relaxed);
        drop(list);
        Some(Frames { arena: self.clone(), frames })
    }

    /// The word with a frame's references.
    #[inline]
    fn refs(&self, frame: FrameNo) -> &AtomicU64 {
        &self.refs[frame.index() / 2]
    }

    /// Adds a reference. The caller holds one already, or found the frame in a slot while inside
    /// an epoch or under the mapping's lock.
    #[inline]
    pub(crate) fn pin(&self, frame: FrameNo) {
        self.refs(frame).fetch_add(one(frame), Ordering::Relaxed);
    }

    /// Adds a reference to each frame of a run, under the same conditions.
    #[inline]
    pub(crate) fn pin_run(&self, first: FrameNo, count: u32) {
        let end = first.0 + count;
        let (inner_start, inner_end) = (first.0.next_multiple_of(2), end & !1);
        if first.0 < inner_start && first.0 < end {
            self.pin(first);
        }
        if inner_start < inner_end {
            for word in &self.refs[inner_start as usize / 2..inner_end as usize / 2] {
                word.fetch_add(BOTH, Ordering::Relaxed);
            }
        }
        if inner_end < end && inner_end >= inner_start {
            self.pin(FrameNo(inner_end));
        }
    }

    /// Whether the frame may have references besides its slot's.
    pub(crate) fn is_pinned(&self, frame: FrameNo) -> bool {
        count_in(self.refs(frame).load(Ordering::Acquire), frame) > 1
    }

    /// Drops one reference per entry; frees the frames that have none left. Returns how many.
    pub(crate) fn unpin(&self, frames: impl Iterator<Item = FrameNo>) -> usize {
        let (mut freed, mut before) = (Vec::new(), 0);
        for frame in frames {
            self.drop_reference(frame, &mut freed);
            // All threads share the list's lock, and a file's frames may be many.
            if freed.len() == FREE_BATCH {
                self.give_back(&freed);
                before += freed.len();
                freed.clear();
            }
        }
        self.give_back(&freed);
        before + freed.len()
    }

    /// Undoes [`pin_run`](Self::pin_run). Returns how many frames it freed.
    pub(crate) fn unpin_runs(&self, runs: impl Iterator<Item = (FrameNo, u32)>) -> usize {
        let mut freed = Vec::new();
        for (first, count) in runs {
            let end = first.plus(count);
            let mut frame = first;
            while frame < end {
                if frame.0 & 1 == 1 || frame.plus(1) == end {
                    self.drop_reference(frame, &mut freed);
                    frame = frame.plus(1);
                    continue;
                }
                // Releases our reads of them, and acquires those of others.
                let was = self.refs(frame).fetch_sub(BOTH, Ordering::AcqRel);
                for frame in [frame, frame.plus(1)] {
                    debug_assert!(count_in(was, frame) > 0, "frame {frame} has no reference");
                    if count_in(was, frame) == 1 {
                        freed.push(frame);
                    }
                }
                frame = frame.plus(2);
            }
        }
        self.give_back(&freed);
        freed.len()
    }

    fn drop_reference(&self, frame: FrameNo, freed: &mut Vec<FrameNo>) {
        // Releases our reads of it, and acquires those of others.
        let was = self.refs(frame).fetch_sub(one(frame), Ordering::AcqRel);
        debug_assert!(count_in(was, frame) > 0, "frame {frame} has no reference");
        if count_in(was, frame) == 1 {
            freed.push(frame);
        }
    }

    /// Frees frames without references, and releases the memory of those above the limit.
    fn give_back(&self, frames: &[FrameNo]) {
        if frames.is_empty() {
            return;
        }
        let mut above = Vec::new();
        let mut list = self.free.list.lock();
        for &frame in frames {
            self.flags[frame.index()].store(0, Ordering::Relaxed);
            if frame.0 >= list.limit() {
                above.push(frame);
            } else {
                list.put(frame);
            }
        }
        if !above.is_empty() {
            drop(list);
            above.sort_unstable();
            self.release(&above);
            list = self.free.list.lock();
            above.iter().for_each(|&frame| list.put(frame));
        }
        self.free.used.store(list.used(), Ordering::Relaxed);
        self.free.returns.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the memory of frames, in ascending order, to the system. They have no references,
    /// and are not handed out meanwhile.
    fn release(&self, frames: &[FrameNo]) {
        for (first, count) in runs(frames) {
            // SAFETY: neighbouring frames without references.
            unsafe { region::release(self.ptr(first), count * PAGE_SIZE) };
        }
    }

    /// Whether so few frames have memory before their first use that
    /// [`commit_ahead`](Self::commit_ahead) should give it to more.
    #[inline]
    pub(crate) fn is_behind(&self) -> bool {
        self.free.behind.load(Ordering::Relaxed)
    }

    /// Gives memory to some frames before their first use, which then need not wait for it. Returns
    /// whether there were any.
    pub(crate) fn commit_ahead(&self) -> bool {
        // If the limit moved below these frames meanwhile, they would keep their memory.
        let _resizing = self.free.resizing.lock();
        let next = self.free.list.lock().ahead();
        if let Some(next) = &next {
            // SAFETY: frames below the limit, so whole pages of the mapping.
            unsafe { region::commit(self.ptr(FrameNo(next.start)), next.len() * PAGE_SIZE) };
        }
        let mut list = self.free.list.lock();
        list.committed(next.as_ref().map_or(0, |next| next.end));
        self.free.behind.store(list.is_behind(), Ordering::Relaxed);
        next.is_some()
    }

    /// Sets the number of frames that may be used: at least 1, at most
    /// [`reserved`](Self::reserved). If more are in use, none is handed out until enough were
    /// returned.
    pub(crate) fn set_limit(&self, limit: u32) {
        let mut left = self.free.resizing.lock();
        *left = None;
        let mut list = self.free.list.lock();
        list.set_limit(limit.clamp(1, self.reserved()));
        self.limit.store(list.limit(), Ordering::Relaxed);
    }

    /// Keeps the limit from changing, and memory from being returned, while the result exists.
    #[cfg(all(test, not(any(loom, shuttle))))]
    pub(crate) fn hold_limit(&self) -> impl Sized + '_ {
        self.free.resizing.lock()
    }

    /// Returns the memory of free frames above the limit to the system; returns the frames above it
    /// that are in use.
    pub(crate) fn release_above(&self) -> Vec<FrameNo> {
        // Free frames above the limit stay free, and without memory, as long as it does not move: once all
        // were looked at, only the used ones are left, and these lose their memory when they are freed.
        let mut left = self.free.resizing.lock();
        let used = match left.take() {
            Some(used) => self.still_used(&used),
            None => self.release_free_above(),
        };
        if used.is_empty() {
            self.free.list.lock().released_above();
        } else {
            *left = Some(used.clone());
        }
        used
    }

    /// Those of the frames that are in use.
    fn still_used(&self, frames: &[FrameNo]) -> Vec<FrameNo> {
        let mut used = Vec::new();
        for part in frames.chunks(RELEASE) {
            let list = self.free.list.lock();
            used.extend(part.iter().copied().filter(|&frame| !list.is_free(frame)));
        }
        used
    }

    /// Looks at all frames above the limit, which does not move meanwhile.
    fn release_free_above(&self) -> Vec<FrameNo> {
        let above = self.free.list.lock().above();
        let mut used = Vec::new();
        for start in above.clone().step_by(RELEASE) {
            let part = start..(start + RELEASE as u32).min(above.end);
            let list = self.free.list.lock();
            let (free, busy): (Vec<_>, Vec<_>) = part.map(FrameNo).partition(|&f| list.is_free(f));
            drop(list);
            used.extend(busy);
            self.release(&free);
        }
        used
    }
}

/// Most frames examined under one hold of the lock when memory is returned.
const RELEASE: usize = 16384;

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with this length; nothing refers to it any more.
        unsafe { region::unmap(self.base, self.flags.len() * PAGE_SIZE) };
    }
}

/// Frames that are not published: the owner may write them.
pub(crate) struct Frames {
    arena: Arc<Arena>,
    frames: Vec<FrameNo>,
}

impl Frames {
    /// No frames.
    pub(crate) fn none(arena: &Arc<Arena>) -> Self {
        Self { arena: arena.clone(), frames: Vec::new() }
    }

    pub(crate) fn len(&self) -> usize {
        self.frames.len()
    }

    /// Returns all but the first `len`.
    pub(crate) fn truncate(&mut self, len: usize) {
        if len < self.frames.len() {
            let rest = self.frames.split_off(len);
            self.arena.give_back(&rest);
        }
    }

    /// Copies `bytes` to byte `at` of frame number `index`.
    ///
    /// # Panics
    /// They do not fit.
    pub(crate) fn write(&mut self, index: usize, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= PAGE_SIZE);
        let to = self.arena.ptr(self.frames[index]);
        // SAFETY: within the frame, which is ours alone.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.add(at), bytes.len()) };
    }

    /// Writes zeros to bytes `from..to` of frame number `index`.
    ///
    /// # Panics
    /// They are outside of the frame.
    pub(crate) fn zero(&mut self, index: usize, from: usize, to: usize) {
        assert!(from <= to && to <= PAGE_SIZE);
        let start = self.arena.ptr(self.frames[index]);
        // SAFETY: within the frame, which is ours alone.
        unsafe { std::ptr::write_bytes(start.add(from), 0, to - from) };
    }

    /// Takes frame number `index` out for publication, with one reference, for the slot. Drop
    /// returns every frame that was not taken out.
    pub(crate) fn publish(&mut self, index: usize, flags: u16, mark: usize) -> FrameNo {
        let frame = std::mem::replace(&mut self.frames[index], FrameNo::NONE);
        let meta = self.arena.meta(frame);
        meta.flags.store(flags, Ordering::Relaxed);
        meta.set_mark(mark);
        let was = self.arena.refs(frame).fetch_add(one(frame), Ordering::Release);
        debug_assert_eq!(count_in(was, frame), 0, "frame {frame} is in use");
        frame
    }

    /// The frames as runs of adjacent ones.
    pub(crate) fn runs(&self) -> impl Iterator<Item = (FrameNo, usize)> + '_ {
        runs(&self.frames)
    }
}

impl Drop for Frames {
    fn drop(&mut self) {
        self.frames.retain(|&f| f != FrameNo::NONE);
        self.arena.give_back(&self.frames);
    }
}

/// Joins adjacent frames: (first, count).
pub(crate) fn runs(frames: &[FrameNo]) -> impl Iterator<Item = (FrameNo, usize)> + '_ {
    frames.chunk_by(|a, b| a.plus(1) == *b).map(|run| (run[0], run.len()))
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
