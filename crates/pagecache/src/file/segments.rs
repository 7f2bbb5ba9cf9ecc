//! Reads without a copy: segments of pinned pages and of holes.
//!
//! 1. Segments are a snapshot like every read (I5): contiguous, in order, from the request's
//!    offset, clipped at the end of file of that moment. Data and holes are of the same moment, so
//!    no hole is false.
//! 2. Lent pages are pinned by reference count. They cannot change, hold back no epoch, and count
//!    against the budget until dropped (I7). Pages that an uncached operation brought in are pruned
//!    when they are returned.
//! 3. Only a trailing hole may extend past the request: to the hole's end, as far as the cache
//!    knows it, or to the end of file.
//!
//! Soundness: [`Pages`] holds a pin on each of its frames, and its bytes were below their marks
//! when they were collected, so shared slices of them stay valid and unchanged.

use crate::cache_policy::CachePolicy;
use crate::file::File;
use crate::mapping::snapshot::{Snapshot, Stop};
use crate::mapping::{FrameList, HOLE, Mapping, stops_of};
use crate::memory::arena::{Arena, flag, runs as frame_runs};
use crate::memory::epoch::Guard;
use crate::memory::frame_no::FrameNo;
use crate::ranges::RangeSet;
use crate::stats::Count;
use smallvec::SmallVec;
use std::io::IoSlice;
use std::ops::Range;
use std::sync::Arc;
use weir_base::PAGE_SIZE;
use weir_base::sync::atomic::Ordering;
use weir_vfs::{Error, IoFlags, Result};

/// The result of a read: contiguous, in order, beginning at the request's offset.
#[derive(Default)]
pub struct Segments {
    /// The segments; none at or past the end of file.
    pub segments: Vec<Segment>,
    /// The read reached the end of the file.
    pub eof: bool,
}

impl Segments {
    /// Offset after the last segment, or `offset` if there are none.
    pub fn end(&self, offset: u64) -> u64 {
        match self.segments.last() {
            Some(Segment::Data { start, pages }) => start + pages.len() as u64,
            Some(Segment::Hole { end, .. }) => *end,
            None => offset,
        }
    }
}

/// An element of [`Segments`].
pub enum Segment {
    /// Bytes at `start`, in pinned frames.
    Data {
        /// Offset of the first byte in the file.
        start: u64,
        /// The bytes.
        pages: Pages,
    },
    /// A hole, `start..end`; the last one may extend past the request.
    Hole {
        /// Offset of the first byte in the file.
        start: u64,
        /// Offset after the last byte.
        end: u64,
    },
}

/// Pinned, immutable bytes; count against the budget until dropped. `Send`.
pub struct Pages {
    mapping: Arc<Mapping>,
    /// Runs of adjacent frames: (first, count).
    runs: SmallVec<[(FrameNo, u32); 4]>,
    /// Offset of the first byte in the first frame.
    skip: usize,
    len: usize,
    /// The first page, if an uncached operation borrowed the pages: the last drop prunes them.
    prune: Option<u64>,
}

impl Pages {
    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends slices that together form the bytes `from..len()`.
    ///
    /// # Panics
    /// `from` is past the end.
    pub fn slices<'a>(&'a self, from: usize, out: &mut Vec<IoSlice<'a>>) {
        assert!(from <= self.len);
        let arena: &'a Arena = &self.mapping.memory.arena;
        let (mut from, mut left) = (from + self.skip, self.len - from);
        for &(frame, count) in &self.runs {
            let run = count as usize * PAGE_SIZE;
            if from < run && left > 0 {
                let len = (run - from).min(left);
                // SAFETY: pinned by `self`, adjacent, and below their marks (see the header).
                out.push(IoSlice::new(unsafe { arena.bytes(frame, from, len) }));
                left -= len;
                from = 0;
            } else {
                from -= run.min(from);
            }
        }
    }

    /// Keeps the first `len` bytes. The frames after them stay pinned until all are dropped.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        self.mapping.memory.unpin_runs(self.runs.iter().copied());
        if let Some(first) = self.prune {
            let count: u32 = self.runs.iter().map(|&(_, count)| count).sum();
            let mut pages = RangeSet::default();
            pages.insert(first..first + u64::from(count));
            self.mapping.prune(&pages);
        }
    }
}

impl std::fmt::Debug for Pages {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pages({} bytes)", self.len)
    }
}

/// Most bytes lent at once.
const LEND_BYTES: usize = 16 << 20;

impl File {
    /// Lends pages instead of copying. Clipped at the end of file, except that a trailing hole is
    /// reported up to its own end where known. Returns less if memory does not suffice for all.
    ///
    /// # Errors
    /// Those of [`read_at`](Self::read_at).
    pub fn read_segments(&self, offset: u64, len: usize, flags: IoFlags) -> Result<Segments> {
        crate::block_on(self.read_segments_async(offset, len, flags))
    }

    /// Lends resident pages without waiting; `None` if any page of the range is missing.
    pub fn read_segments_resident(&self, offset: u64, len: usize) -> Option<Segments> {
        let mapping = &self.open.mapping;
        let policy = self.open.check_read(IoFlags::empty()).ok()?;
        if !mapping.fast || !mapping.memory.fast_read.load(Ordering::Relaxed) {
            mapping.memory.stats.add(Count::FallbackOff, 1);
            return None;
        }
        mapping.lend_resident(offset, len.min(LEND_BYTES), policy)
    }

    /// [`read_segments`](Self::read_segments) for tasks.
    ///
    /// # Errors
    /// Those of [`read_at`](Self::read_at).
    pub async fn read_segments_async(
        &self,
        offset: u64,
        len: usize,
        flags: IoFlags,
    ) -> Result<Segments> {
        let open = &*self.open;
        let policy = open.check_read(flags)?;
        let mapping = &open.mapping;
        let len = len.min(LEND_BYTES);
        if mapping.fast
            && mapping.memory.fast_read.load(Ordering::Relaxed)
            && let Some(segments) = mapping.lend_resident(offset, len, policy)
        {
            return Ok(segments);
        }
        // The whole result is pinned at once; an uncached operation takes no more than its piece.
        let piece = mapping.memory.limits().piece * PAGE_SIZE;
        let len = if policy.is_uncached() { len.min(piece) } else { len };
        let nowait = flags.contains(IoFlags::NOWAIT);
        // How many more retries may find nothing new before the call returns a prefix.
        let mut most = 0;
        let mut rounds = 2 * len.div_ceil(PAGE_SIZE * mapping.memory.limits().step) + 4;
        loop {
            let (snapshot, page) = {
                let guard = mapping.memory.epoch.enter();
                let mut frames = FrameList::new();
                let state = mapping.state.lock();
                let snapshot = mapping.snapshot_locked(
                    &state,
                    &guard,
                    offset,
                    len,
                    flag::READAHEAD,
                    &mut frames,
                );
                let whole = snapshot.stop == Stop::Complete;
                let enough = snapshot.len > 0 && (nowait || rounds == 0);
                if whole || (enough && snapshot.stop != Stop::Marked) {
                    mapping.touch(&frames, policy);
                    let segments = mapping.lend(
                        &guard,
                        offset..offset.saturating_add(len as u64),
                        &frames,
                        &snapshot,
                        policy,
                    );
                    return Ok(segments);
                }
                let page = (offset + snapshot.len as u64) / PAGE_SIZE as u64;
                (snapshot, page)
            };
            if snapshot.len > most {
                most = snapshot.len;
            } else {
                rounds = rounds.saturating_sub(1);
            }
            if snapshot.stop == Stop::Marked {
                open.read_ahead(page, policy);
                continue;
            }
            if nowait {
                return Err(Error::WouldBlock);
            }
            let asked = offset..offset.saturating_add(len as u64);
            open.bring_in(page, &asked, policy, &snapshot).await?;
        }
    }
}

impl Mapping {
    fn lend_resident(
        self: &Arc<Self>,
        offset: u64,
        len: usize,
        policy: CachePolicy,
    ) -> Option<Segments> {
        let memory = &*self.memory;
        let guard = memory.epoch.enter();
        let mut frames = FrameList::new();
        let stop_at = stops_of(policy);
        let Some(snapshot) = self.snapshot(&guard, offset, len, stop_at, &mut frames) else {
            memory.stats.add(Count::FallbackWriter, 1);
            return None;
        };
        if snapshot.stop != Stop::Complete {
            memory.stats.add(self.fallback(&snapshot), 1);
            return None;
        }
        let segments = self.lend(
            &guard,
            offset..offset.saturating_add(len as u64),
            &frames,
            &snapshot,
            policy,
        );
        self.touch(&frames, policy);
        memory.stats.add_all([(Count::FastReads, 1), (Count::FastReadBytes, snapshot.len as u64)]);
        Some(segments)
    }

    /// Pins the pages of a snapshot. The caller is in its epoch.
    fn lend(
        self: &Arc<Self>,
        guard: &Guard,
        asked: Range<u64>,
        frames: &[FrameNo],
        snapshot: &Snapshot,
        policy: CachePolicy,
    ) -> Segments {
        let mut segments = Segments::default();
        let offset = asked.start;
        let end = offset + snapshot.len as u64;
        let mut start = offset;
        let mut rest = frames;
        while start < end {
            let hole = rest[0] == HOLE;
            let count = rest.iter().take_while(|&&f| (f == HOLE) == hole).count();
            let skip = start as usize & (PAGE_SIZE - 1);
            let len = (count * PAGE_SIZE - skip).min((end - start) as usize);
            if hole {
                segments.segments.push(Segment::Hole { start, end: start + len as u64 });
            } else {
                let mut runs: SmallVec<[(FrameNo, u32); 4]> = SmallVec::new();
                for (first, count) in frame_runs(&rest[..count]) {
                    self.memory.arena.pin_run(first, count as u32);
                    runs.push((first, count as u32));
                }
                let prune = policy.is_uncached().then_some(start / PAGE_SIZE as u64);
                let pages = Pages { mapping: self.clone(), runs, skip, len, prune };
                segments.segments.push(Segment::Data { start, pages });
            }
            rest = &rest[count..];
            start += len as u64;
        }
        segments.eof = snapshot.stop == Stop::Complete && asked.end >= snapshot.size;
        if let Some(Segment::Hole { end, .. }) = segments.segments.last_mut()
            && *end < snapshot.size
        {
            let last = snapshot.size.div_ceil(PAGE_SIZE as u64);
            let reach = self.index.hole_end(*end / PAGE_SIZE as u64, last, guard);
            let reach = (reach * PAGE_SIZE as u64).min(snapshot.size);
            // The walk came after the snapshot: its result counts only if no write came between.
            if self.sequence() == snapshot.sequence {
                *end = reach.max(*end);
                segments.eof |= *end == snapshot.size;
            }
        }
        segments
    }
}
