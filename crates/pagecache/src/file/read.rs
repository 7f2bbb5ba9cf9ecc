//! Reading, top to bottom: [`read`](File::read_at) -> `read_resident` (the fast path; `read_page`
//! for a read within one page) -> `read_filling` (join fills in flight, read ahead, fill, publish)
//! -> `copy` -> `prune`.
//!
//! 1. The hit path takes no lock, does not wait or allocate, makes no system call, starts no
//!    read-ahead, and writes no cache line that another thread also writes (I6). A flag on a page,
//!    which sends the page's first reader to the slow path, starts the next read-ahead.
//! 2. A read copies a snapshot (I5): slots and size of one moment, and no bytes past that size. A
//!    read of several steps (1 MiB each), or one that has to fill pages in between, restarts if the
//!    file was written meanwhile; after `RESTARTS` of these it returns what it has.
//! 3. A cancelled read blocks no other operation. It prunes the pages that it has used; its fill goes on, and
//!    publishes the others: with their mark, if the read was uncached.

use crate::cache_policy::CachePolicy;
use crate::file::pruner::Pruner;
use crate::file::readahead::{Bounds, Plan};
use crate::file::{File, Open};
use crate::mapping::fill::Purpose;
use crate::mapping::snapshot::{PageNow, Snapshot, Stop};
use crate::mapping::{FrameList, HOLE, Mapping, stops_of};
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
/// How often a read restarts because of concurrent writes before it returns less.
const RESTARTS: u32 = 8;

impl File {
    /// Reads into `buf` from `offset` on, and returns the number of bytes read; waits if necessary.
    ///
    /// Returns 0 at or past the end of file, and less than asked at the end of file, with `NOWAIT`,
    /// or when writers keep changing the range.
    ///
    /// # Errors
    /// [`Error::BadFile`] if not open for reading; [`Error::WouldBlock`] with `NOWAIT`;
    /// [`Error::NotSupported`] and [`Error::Invalid`] for flags; those of the store.
    pub fn read_at(&self, buf: &mut [u8], offset: u64, flags: IoFlags) -> Result<usize> {
        match self.read_now(buf, offset, flags)? {
            Some(done) => Ok(done),
            None => self.read_waiting(buf, offset, flags),
        }
    }

    /// Separate from the fast path, to keep that path's code small.
    #[cold]
    #[inline(never)]
    fn read_waiting(&self, buf: &mut [u8], offset: u64, flags: IoFlags) -> Result<usize> {
        crate::block_on(self.read_filling(buf, offset, flags))
    }

    /// [`read_at`](Self::read_at) for tasks. What a cancelled call has asked the store for still comes into the
    /// cache: if the call is uncached, until memory is short or the file is closed for the last time.
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

    /// The fast path alone: copies the resident prefix; `None` when the fast path does not apply, or
    /// [`read_at`](Self::read_at) without flags fails.
    pub fn read_resident(&self, buf: &mut [u8], offset: u64) -> Option<usize> {
        let policy = self.open.check_read(IoFlags::empty()).ok()?;
        self.open.mapping.read_resident(buf, offset, policy).map(|copied| copied.len)
    }

    /// The whole read, if no page of it is missing.
    #[inline]
    fn read_now(&self, buf: &mut [u8], offset: u64, flags: IoFlags) -> Result<Option<usize>> {
        let policy = self.open.check_read(flags)?;
        if buf.is_empty() {
            return Ok(Some(0));
        }
        // Shorter than asked, and not at the end of file: the slow path does the whole read from
        // one snapshot.
        let copied = self.open.mapping.read_resident(buf, offset, policy);
        Ok(copied.filter(|copied| copied.is_whole).map(|copied| copied.len))
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
                    let state = mapping.state.lock();
                    mapping.snapshot_locked(&state, &guard, at, want, flag::READAHEAD, &mut frames)
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
    /// Checks the flags of a read, and returns the policy for its pages.
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

    /// Checks the flags of any operation (I10), and returns the policy for its pages.
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

    /// The policy of operations without a flag of their own: uncached after `NoReuse` advice, or if
    /// the file is marked as uncached.
    #[inline]
    pub(crate) fn default_policy(&self) -> CachePolicy {
        let noreuse = self.noreuse.load(Ordering::Relaxed);
        CachePolicy::uncached_if(noreuse || self.mapping.uncached.load(Ordering::Relaxed))
    }

    /// Brings in the page at which a snapshot stopped, together with the other missing pages of the
    /// bytes `asked` and with read-ahead. Returns when the caller can look for the page again.
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
            if !policy.is_uncached() {
                fill.claim(page);
            }
            mapping.count(Count::FillJoins, 1);
            // If the fill fails, the next iteration finds the page empty and starts a fill itself.
            let _ = mapping.join(&fill).await;
            return Ok(());
        }
        let last = asked.end.min(snapshot.size).div_ceil(PAGE_SIZE as u64).max(page + 1);
        let bounds = self.readahead_bounds(snapshot.size, policy);
        let mut plan = self.readahead.lock().miss(asked, page, bounds);
        // Read-ahead that directly follows the request goes into the same fill.
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

    /// Reads ahead from `page` on, whose flag triggered this; does not wait.
    pub(crate) fn read_ahead(&self, page: u64, policy: CachePolicy) {
        let mapping = &self.mapping;
        let memory = &mapping.memory;
        let marked = {
            let mut state = mapping.state.lock();
            mapping.edit(&mut state).frame_at(page)
        };
        if let Some(frame) = marked {
            // If the frame is gone by now, a later page triggers the next read-ahead.
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

    /// The limits for read-ahead.
    fn readahead_bounds(&self, size: u64, policy: CachePolicy) -> Bounds {
        let memory = &self.mapping.memory;
        let total = if policy.is_uncached() {
            // Uncached streams use the reserve of free frames, and so evict no pages of other
            // users.
            memory.limits().reserve as u64
        } else {
            u64::from(memory.arena.frames() / 4)
        };
        let window = memory.readahead_pages.min(u64::from(memory.arena.frames() / 8));
        Bounds { window, total, end: size.div_ceil(PAGE_SIZE as u64) }
    }

    /// Starts fills for the missing pages of a read-ahead range, and tells the stream if memory did
    /// not suffice.
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

/// What the fast path has copied: bytes of one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Copied {
    pub(crate) len: usize,
    /// All that was asked for, or up to the end of file.
    pub(crate) is_whole: bool,
}

impl Mapping {
    /// Copies the resident prefix of a range without a lock or a wait, and without writing shared
    /// memory.
    #[inline]
    pub(crate) fn read_resident(
        &self,
        buf: &mut [u8],
        offset: u64,
        policy: CachePolicy,
    ) -> Option<Copied> {
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
            return Some(Copied { len: buf.len(), is_whole: true });
        }
        self.read_pages(&guard, buf, offset, policy)
    }

    /// The fast path for a read within one resident page: the common case, in far fewer steps than
    /// a list of frames takes.
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

    /// The fast path for all other reads.
    #[inline(never)]
    fn read_pages(
        &self,
        guard: &Guard,
        buf: &mut [u8],
        offset: u64,
        policy: CachePolicy,
    ) -> Option<Copied> {
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
        // The size of the same moment as the bytes: the file may have got another end since.
        let is_whole = snapshot.len == buf.len() || offset + snapshot.len as u64 == snapshot.size;
        Some(Copied { len: snapshot.len, is_whole })
    }

    /// The reason why a snapshot is empty.
    pub(crate) fn fallback(&self, snapshot: &Snapshot) -> Count {
        match snapshot.stop {
            Stop::Complete => Count::FallbackEof,
            Stop::Marked => Count::FallbackMarked,
            Stop::Missing | Stop::InFlight(_) => Count::FallbackMissing,
        }
    }

    /// Copies `buf.len()` bytes at `offset` from the frames of a snapshot. The caller is in the
    /// epoch in which the snapshot was taken.
    #[inline]
    pub(crate) fn copy(&self, frames: &[FrameNo], offset: u64, buf: &mut [u8]) {
        let mut from = offset as usize & (PAGE_SIZE - 1);
        let mut at = 0;
        let mut index = 0;
        while at < buf.len() {
            let first = frames[index];
            // Adjacent frames are copied at once.
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

    /// Notes the use of pages: cached reads set the reference bit and claim pages that uncached
    /// operations brought in; uncached reads leave no trace (I1).
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

/// Small reads that continue where the thread's last one ended: the processor's hardware
/// prefetchers stop at the end of a page, and start late in the next one.
mod stream {
    use super::Mapping;
    use std::cell::Cell;

    /// How far ahead of a small read to prefetch, in bytes. Less arrives too late; with more, part
    /// of it is evicted again before its use.
    pub(crate) const AHEAD: usize = 2048;
    /// For larger reads the hardware prefetchers suffice.
    const MOST: usize = 1024;

    thread_local! {
        /// Where the last small read of this thread ended. Only a hint for prefetching.
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

/// The pages that `len` bytes at `offset` touch.
pub(crate) fn pages_of(offset: u64, len: usize) -> Range<u64> {
    pages_spanning(offset, len as u64)
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::testing::Rig;
    use weir_vfs::Advice;

    #[test]
    fn i5_the_end_of_file_that_ends_a_read_is_of_the_same_moment_as_its_bytes() {
        let rig = Rig::without_threads();
        let file = rig.create("f");
        file.write_at(&[1; 2 * PAGE_SIZE], 0, IoFlags::empty()).unwrap();
        file.sync(true).unwrap();
        file.advise(PAGE_SIZE as u64, 0, Advice::DontNeed).unwrap();
        let copy = || {
            let mut buf = [0; 2 * PAGE_SIZE];
            file.open.mapping.read_resident(&mut buf, 0, CachePolicy::Cached)
        };
        let copied = copy();
        // The file ends by now where the read of before has stopped.
        file.truncate(PAGE_SIZE as u64).unwrap();
        assert_eq!(copied, Some(Copied { len: PAGE_SIZE, is_whole: false }));
        assert_eq!(copy(), Some(Copied { len: PAGE_SIZE, is_whole: true }));
    }
}
