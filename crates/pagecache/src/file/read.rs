//! Reading, top to bottom: [`read`](File::read_at) -> `read_resident` (the fast path; `read_page` for
//! what lies in one page) -> `read_filling` (join fills in flight, read ahead, fill, publish) ->
//! `copy` -> `prune`.
//!
//! 1. The hit path takes no lock, waits for nothing, allocates nothing, writes no line that
//!    another thread also writes, makes no system call, starts no read-ahead (I6). A page asks for
//!    the next read-ahead by a flag that sends its first reader the filling way.
//! 2. What a read copies is a snapshot (I5): slots and size of one moment; bytes past that size are
//!    not copied. A read of more than one step (1 MiB), or one that has to fill in between, starts
//!    again if the file was written meanwhile; if it is written all the time, it ends short at
//!    what it has.
//! 3. A read that is dropped half-way leaves nothing stuck, and prunes what it brought in.

use crate::cache_policy::CachePolicy;
use crate::file::pruner::Pruner;
use crate::file::readahead::{Bounds, Plan};
use crate::file::{File, Open};
use crate::mapping::fill::Purpose;
use crate::mapping::{FrameList, HOLE, Mapping, PageNow, Snapshot, Stop, stops_of};
use crate::memory::arena::flag;
use crate::memory::budget::STEP_PAGES;
use crate::memory::epoch::Guard;
use crate::memory::frame_no::FrameNo;
use crate::stats::Count;
use std::ops::Range;
use weir_base::sync::atomic::Ordering;
use weir_base::{PAGE_SIZE, pages_spanning};
use weir_vfs::{Access, Capabilities, Error, IoFlags, Result};

/// Bytes handled under one snapshot.
const STEP_BYTES: usize = (STEP_PAGES - 1) * PAGE_SIZE;
/// How often a read starts again because of writers before it ends short.
const RESTARTS: u32 = 8;

impl File {
    /// Reads into `buf` from `offset` on, and returns how much; waits if need be.
    ///
    /// 0 means the end of the file. Fewer bytes than asked for are read at the end of file, when
    /// `NOWAIT` is given, or when writers keep changing the range.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] with `NOWAIT`; [`Error::NotSupported`] and [`Error::Invalid`] for
    /// flags; those of the store.
    pub fn read_at(&self, buf: &mut [u8], offset: u64, flags: IoFlags) -> Result<usize> {
        match self.read_now(buf, offset, flags)? {
            Some(done) => Ok(done),
            None => self.read_waiting(buf, offset, flags),
        }
    }

    /// Out of the way of the fast path, whose code is small without it.
    #[cold]
    #[inline(never)]
    fn read_waiting(&self, buf: &mut [u8], offset: u64, flags: IoFlags) -> Result<usize> {
        crate::block_on(self.read_filling(buf, offset, flags))
    }

    /// [`read_at`](Self::read_at) for tasks. A task that is dropped leaves nothing behind.
    ///
    /// # Errors
    /// Those of [`read_at`](Self::read_at).
    pub async fn read_at_async(
        &self,
        buf: &mut [u8],
        offset: u64,
        flags: IoFlags,
    ) -> Result<usize> {
        match self.read_now(buf, offset, flags)? {
            Some(done) => Ok(done),
            None => self.read_filling(buf, offset, flags).await,
        }
    }

    /// The fast path alone: copies the resident prefix, or `None` when it does not apply.
    pub fn read_resident(&self, buf: &mut [u8], offset: u64) -> Option<usize> {
        self.open.mapping.read_resident(buf, offset, CachePolicy::Cached)
    }

    /// All of the read, if it can be had at once.
    #[inline]
    fn read_now(&self, buf: &mut [u8], offset: u64, flags: IoFlags) -> Result<Option<usize>> {
        let policy = self.open.check_read(flags)?;
        if buf.is_empty() {
            return Ok(Some(0));
        }
        let mapping = &*self.open.mapping;
        let Some(done) = mapping.read_resident(buf, offset, policy) else { return Ok(None) };
        // Less than asked for, and not at the end: the filling way does all of it, from one
        // snapshot.
        let whole = done == buf.len() || offset + done as u64 == mapping.size();
        Ok(whole.then_some(done))
    }

    async fn read_filling(&self, buf: &mut [u8], offset: u64, flags: IoFlags) -> Result<usize> {
        let open = &*self.open;
        let mapping = &open.mapping;
        let policy = open.check_read(flags)?;
        let nowait = flags.contains(IoFlags::NOWAIT);
        let mut pruner = Pruner::new(open, policy);
        let mut done = 0;
        let mut since = None;
        let mut restarts = 0;
        while done < buf.len() {
            let at = offset + done as u64;
            let want = (buf.len() - done).min(STEP_BYTES);
            let (snapshot, page) = {
                let guard = mapping.memory.epoch.enter();
                let mut frames = FrameList::new();
                let snapshot = {
                    let mut state = mapping.state.lock();
                    mapping.snapshot_locked(
                        &mut state,
                        &guard,
                        at,
                        want,
                        flag::READAHEAD,
                        &mut frames,
                    )
                };
                let changed = *since.get_or_insert(snapshot.sequence) != snapshot.sequence;
                if changed && done > 0 {
                    if restarts == RESTARTS {
                        break;
                    }
                    restarts += 1;
                    done = 0;
                    since = None;
                    continue;
                }
                since = Some(snapshot.sequence);
                mapping.copy(&frames, at, &mut buf[done..done + snapshot.len]);
                mapping.touch(&frames, policy);
                (snapshot, at + snapshot.len as u64)
            };
            pruner.used(at, snapshot.len);
            done += snapshot.len;
            if snapshot.stop == Stop::Complete {
                if snapshot.len < want || at + want as u64 >= snapshot.size {
                    break;
                }
                continue;
            }
            if snapshot.stop == Stop::Marked {
                open.read_ahead(page / PAGE_SIZE as u64, policy);
                continue;
            }
            if nowait {
                return if done > 0 { Ok(done) } else { Err(Error::WouldBlock) };
            }
            let asked = offset..offset + buf.len() as u64;
            open.bring_in(page / PAGE_SIZE as u64, &asked, policy, &snapshot).await?;
        }
        drop(pruner);
        Ok(done)
    }
}

impl Open {
    /// Checks the flags of a read, and says what becomes of its pages.
    #[inline]
    pub(crate) fn check_read(&self, flags: IoFlags) -> Result<CachePolicy> {
        if !self.access.contains(Access::READ) {
            return Err(Error::BadFile);
        }
        if flags.is_empty() {
            return Ok(self.default_policy());
        }
        self.check_flags(flags)
    }

    /// Checks flags of any operation (I10), and says what becomes of its pages.
    pub(crate) fn check_flags(&self, flags: IoFlags) -> Result<CachePolicy> {
        if !IoFlags::all().contains(flags) || flags.contains(IoFlags::APPEND | IoFlags::NOAPPEND) {
            return Err(Error::Invalid);
        }
        if flags.contains(IoFlags::ATOMIC) {
            return Err(Error::NotSupported);
        }
        if flags.contains(IoFlags::UNCACHED)
            && !self.mapping.store.capabilities().contains(Capabilities::UNCACHED)
        {
            return Err(Error::NotSupported);
        }
        let asked = CachePolicy::uncached_if(flags.contains(IoFlags::UNCACHED));
        Ok(asked.max(self.default_policy()))
    }

    /// The policy of operations without a flag of their own: uncached if the open file was advised
    /// so, or the file is marked.
    #[inline]
    fn default_policy(&self) -> CachePolicy {
        let noreuse = self.noreuse.load(Ordering::Relaxed);
        CachePolicy::uncached_if(noreuse || self.mapping.uncached.load(Ordering::Relaxed))
    }

    /// Brings in the page at which a snapshot stopped, and with it what else is missing of the bytes
    /// `asked`, and what read-ahead wants; returns when the page can be looked for again.
    pub(crate) async fn bring_in(
        &self,
        page: u64,
        asked: &Range<u64>,
        policy: CachePolicy,
        snapshot: &Snapshot,
    ) -> Result<()> {
        let mapping = &self.mapping;
        let memory = &mapping.memory;
        if let Stop::InFlight(number) = snapshot.stop {
            let Some(fill) = mapping.fill_in_flight(number) else { return Ok(()) };
            mapping.count(Count::FillJoins, 1);
            if !policy.is_uncached() {
                fill.claim(page);
            }
            // If it fails, the next round finds the page empty and asks itself.
            let _ = mapping.join(&fill).await;
            return Ok(());
        }
        let last = asked.end.min(snapshot.size).div_ceil(PAGE_SIZE as u64).max(page + 1);
        let bounds = self.readahead_bounds(snapshot.size, policy);
        let mut plan = self.readahead.lock().miss(asked, page, bounds);
        // What goes on right behind is read together with what was asked for.
        let behind = plan.first().is_some_and(|ahead| ahead.start == last);
        let together = page..if behind { plan.remove(0).end } else { last };
        let mark = behind.then_some(last);
        let want = (together.end - page) as usize;
        let frames = memory.alloc(want.min(memory.limits().step), 1, policy).await;
        let next = page + frames.len() as u64;
        let ticket = mapping.changed.ticket();
        let fill = mapping.start_fill(page, frames, Purpose { policy, mark });
        if next >= together.end || self.fill_ahead(next..together.end, mark, policy) {
            self.fill_planned(plan, policy);
        }
        match fill {
            Some(fill) => mapping.join(&fill).await,
            None => {
                if mapping.state.lock().invalidating {
                    mapping.changed.wait(ticket).await;
                }
                Ok(())
            }
        }
    }

    /// Reads ahead from `page` on, whose flag asked for it; waits for nothing.
    pub(crate) fn read_ahead(&self, page: u64, policy: CachePolicy) {
        let mapping = &self.mapping;
        let memory = &mapping.memory;
        let marked = {
            let state = mapping.state.lock();
            mapping.edit(&state).frame_at(page)
        };
        if let Some(frame) = marked {
            // Should the frame have gone meanwhile, a later page asks in its stead.
            memory.arena.meta(frame).clear(flag::READAHEAD);
        }
        let bounds = self.readahead_bounds(mapping.size(), policy);
        let missing = mapping.missing_after(page, (page + 2 * bounds.window).min(bounds.end));
        let plan = self.readahead.lock().marked(page, missing, bounds);
        self.fill_planned(plan, policy);
    }

    fn fill_planned(&self, plan: Plan, policy: CachePolicy) {
        for pages in plan {
            let mark = Some(pages.start);
            if !self.fill_ahead(pages, mark, policy) {
                return;
            }
        }
    }

    /// What read-ahead has to keep within.
    fn readahead_bounds(&self, size: u64, policy: CachePolicy) -> Bounds {
        let memory = &self.mapping.memory;
        let total = if policy.is_uncached() {
            // Uncached streams live on the reserve of free frames, so that they evict no page of others.
            memory.limits().reserve as u64
        } else {
            u64::from(memory.arena.frames() / 4)
        };
        let window = memory.readahead_pages.min(u64::from(memory.arena.frames() / 8));
        Bounds { window, total, end: size.div_ceil(PAGE_SIZE as u64) }
    }

    /// Begins fills for what is missing of a range of read-ahead, and tells the stream if there is
    /// not the memory for all of it.
    fn fill_ahead(&self, pages: Range<u64>, mark: Option<u64>, policy: CachePolicy) -> bool {
        let memory = &self.mapping.memory;
        let reached =
            self.mapping.fill_missing(pages.clone(), Purpose { policy, mark }, &mut |want| {
                memory.alloc_spare(want, policy)
            });
        if reached < pages.end {
            self.readahead.lock().fell_short(reached);
        }
        reached >= pages.end
    }
}

impl Mapping {
    /// Copies the resident prefix of a range without a lock, without waiting, and without a
    /// trace in shared memory.
    #[inline]
    pub(crate) fn read_resident(
        &self,
        buf: &mut [u8],
        offset: u64,
        policy: CachePolicy,
    ) -> Option<usize> {
        let memory = &*self.memory;
        if !self.fast || !memory.fast_read.load(Ordering::Relaxed) {
            memory.stats.add(Count::FallbackOff, 1);
            return None;
        }
        let guard = memory.epoch.enter();
        let stop_at = stops_of(policy);
        let from = offset as usize & (PAGE_SIZE - 1);
        if buf.len() <= PAGE_SIZE - from
            && let Some(page) = self.page_now(&guard, offset, buf.len(), stop_at)
        {
            self.read_page(&page, buf, offset, policy);
            return Some(buf.len());
        }
        self.read_pages(&guard, buf, offset, policy)
    }

    /// The fast path for what lies in one page and is there: most reads, in far fewer steps than
    /// those that a list of frames takes.
    #[inline]
    fn read_page(&self, page: &PageNow<'_>, buf: &mut [u8], offset: u64, policy: CachePolicy) {
        let memory = &*self.memory;
        let from = offset as usize & (PAGE_SIZE - 1);
        if stream::goes_on(self, offset, buf.len()) {
            let ahead = from + stream::AHEAD;
            if ahead < PAGE_SIZE {
                memory.arena.prefetch(page.frame, ahead, buf.len());
            } else if let Some(next) = page.next() {
                memory.arena.prefetch(next, ahead - PAGE_SIZE, buf.len());
            }
        }
        // SAFETY: the epoch keeps the frame, and everything below the end of file is below its mark.
        buf.copy_from_slice(unsafe { memory.arena.bytes(page.frame, from, buf.len()) });
        if !policy.is_uncached()
            && page.flags & (flag::REFERENCED | flag::UNCACHED) != flag::REFERENCED
        {
            self.touch(&[page.frame], policy);
        }
        memory.stats.add_all([(Count::FastReads, 1), (Count::FastReadBytes, buf.len() as u64)]);
    }

    /// The fast path for any other read.
    #[inline(never)]
    fn read_pages(
        &self,
        guard: &Guard,
        buf: &mut [u8],
        offset: u64,
        policy: CachePolicy,
    ) -> Option<usize> {
        let memory = &*self.memory;
        let mut frames = FrameList::new();
        let want = buf.len().min(STEP_BYTES);
        let stop_at = stops_of(policy);
        let Some(snapshot) = self.snapshot(guard, offset, want, stop_at, &mut frames) else {
            memory.stats.add(Count::FallbackWriter, 1);
            return None;
        };
        if snapshot.len == 0 {
            memory.stats.add(self.fallback(&snapshot), 1);
            return None;
        }
        self.copy(&frames, offset, &mut buf[..snapshot.len]);
        self.touch(&frames, policy);
        memory.stats.add_all([(Count::FastReads, 1), (Count::FastReadBytes, snapshot.len as u64)]);
        Some(snapshot.len)
    }

    /// Why a snapshot has nothing.
    pub(crate) fn fallback(&self, snapshot: &Snapshot) -> Count {
        match snapshot.stop {
            Stop::Complete => Count::FallbackEof,
            Stop::Marked => Count::FallbackMarked,
            Stop::Missing | Stop::InFlight(_) => Count::FallbackMissing,
        }
    }

    /// Copies `buf.len()` bytes at `offset` out of the frames of a snapshot. The caller is in the
    /// epoch in which it was taken.
    #[inline]
    pub(crate) fn copy(&self, frames: &[FrameNo], offset: u64, buf: &mut [u8]) {
        let mut from = offset as usize & (PAGE_SIZE - 1);
        let mut at = 0;
        let mut index = 0;
        while at < buf.len() {
            let first = frames[index];
            // Neighbouring frames are copied in one go.
            let mut run = 1;
            let needed = (from + buf.len() - at).div_ceil(PAGE_SIZE);
            if first == HOLE {
                while run < needed && frames[index + run] == HOLE {
                    run += 1;
                }
            } else {
                while run < needed && frames[index + run] == first.plus(run as u32) {
                    run += 1;
                }
            }
            let len = (run * PAGE_SIZE - from).min(buf.len() - at);
            let to = &mut buf[at..at + len];
            if first == HOLE {
                to.fill(0);
            } else {
                // SAFETY: the epoch keeps the frames, and a snapshot ends at the end of file,
                // below which everything is below the marks.
                to.copy_from_slice(unsafe { self.memory.arena.bytes(first, from, len) });
            }
            at += len;
            index += run;
            from = 0;
        }
    }

    /// Notes that pages were used: cached reads leave a reference and claim what uncached
    /// operations brought in; uncached ones leave no trace (I1).
    #[inline]
    pub(crate) fn touch(&self, frames: &[FrameNo], policy: CachePolicy) {
        if policy.is_uncached() {
            return;
        }
        let memory = &*self.memory;
        for &frame in frames {
            if frame == HOLE {
                continue;
            }
            let flags = memory.arena.flags(frame);
            if flags & (flag::REFERENCED | flag::UNCACHED) == flag::REFERENCED {
                continue;
            }
            let meta = memory.arena.meta(frame);
            if flags & flag::UNCACHED != 0 && meta.clear(flag::UNCACHED) != 0 {
                self.count(Count::ClaimedPages, 1);
            }
            let age = memory
                .clock
                .load(Ordering::Relaxed)
                .wrapping_sub(meta.stamp.load(Ordering::Relaxed));
            if age >= memory.limits().correlated {
                meta.set(flag::REFERENCED);
            }
        }
    }
}

/// Small reads that go on where the thread's last one ended: the processor's own prefetchers stop at
/// the end of a page, and are late in the next one.
mod stream {
    use super::Mapping;
    use std::cell::Cell;

    /// How far ahead of a read its like is asked for, in bytes: less comes too late, more of it is
    /// gone again by the time that it is read.
    pub(crate) const AHEAD: usize = 2048;
    /// Larger reads keep the processor's prefetchers busy by themselves.
    const MOST: usize = 1024;

    thread_local! {
        /// Where the last small read of this thread ended; of no more consequence than a prefetch.
        static END: Cell<usize> = const { Cell::new(0) };
    }

    /// Whether this read begins where the thread's last one ended.
    #[inline]
    pub(crate) fn goes_on(mapping: &Mapping, offset: u64, len: usize) -> bool {
        if len > MOST {
            return false;
        }
        let start = std::ptr::from_ref(mapping).addr().wrapping_add(offset as usize);
        END.with(|end| end.replace(start + len) == start)
    }
}

/// Pages of `len` bytes at `offset`, as a range.
pub(crate) fn pages_of(offset: u64, len: usize) -> Range<u64> {
    pages_spanning(offset, len as u64)
}
