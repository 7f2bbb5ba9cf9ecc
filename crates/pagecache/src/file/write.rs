//! Writing, top to bottom: [`write`](File::write_at) -> `throttle` -> `write_step` (prepare new
//! frames, then `commit`) -> writeback in the background.
//!
//! 1. New bytes go into new frames, without a lock; the commit exchanges the slots in one write
//!    section of the sequence counter
//!    ([`WriteSeqcount`](crate::mapping::seqcount::WriteSeqcount)). So writers copy in
//!    parallel, and a reader sees all of a step or none of it (I5). A step is at least 1 MiB unless
//!    the budget is tiny; a longer call has several steps.
//! 2. Under the lock, the commit copies the part of a page that a write does not change, from the
//!    page's current version. If that is not resident, the writer first brings it in, with no lock
//!    held.
//! 3. No reader sees bytes past the high-water mark of the last page: an append fills them in
//!    place.
//! 4. A page that an uncached write brings in is marked; one that was present keeps its state (I4).
//!    The flusher writes the marked pages when there are 256 KiB of them, or 20 ms after the first
//!    (`mapping/dirty.rs`); the caller waits only while [`UNCACHED_UNWRITTEN`] of them are
//!    unwritten (I11). If the write ends within the last page, that page waits for the next uncached
//!    write or the file's close.

use crate::cache_policy::CachePolicy;
use crate::file::read::pages_of;
use crate::file::{File, Open};
use crate::mapping::edit::Edit;
use crate::mapping::index::{Replacement, Slot};
use crate::mapping::snapshot::{Snapshot, Stop};
use crate::mapping::{Mapping, State};
use crate::memory::arena::{Frames, flag};
use crate::memory::frame_no::FrameNo;
use crate::stats::Count;
use std::ops::Range;
use std::sync::Arc;
use std::time::SystemTime;
use weir_base::PAGE_SIZE;
use weir_base::sync::atomic::Ordering;
use weir_vfs::{Access, Error, IoFlags, Result};

/// Unwritten pages of a file at which its uncached writers wait: 16 MiB, or the size of the reserve
/// if that is less.
const UNCACHED_UNWRITTEN: u64 = 4096;

/// A copy of a page that a write will change in part. The writer keeps it so that it can proceed
/// even if memory is so short that the page is evicted again before the commit.
struct Base {
    page: u64,
    /// The copy is current as long as this is the mapping's sequence.
    sequence: u64,
    bytes: Vec<u8>,
}

/// The input of one step.
#[derive(Clone, Copy)]
struct Step<'a> {
    buf: &'a [u8],
    offset: u64,
    /// The offset has to be the end of file.
    append: bool,
    /// The first page is filled in place.
    in_place: bool,
    policy: CachePolicy,
}

impl Step<'_> {
    fn end(&self) -> u64 {
        self.offset + self.buf.len() as u64
    }

    fn pages(&self) -> Range<u64> {
        pages_of(self.offset, self.buf.len())
    }

    /// Pages that need a new frame.
    fn new_pages(&self) -> Range<u64> {
        let pages = self.pages();
        pages.start + u64::from(self.in_place)..pages.end
    }

    /// The bytes of a page that the step writes.
    fn part_of(&self, page: u64) -> Range<usize> {
        let start = page * PAGE_SIZE as u64;
        let end = self.end().min(start + PAGE_SIZE as u64);
        (self.offset.max(start) - start) as usize..(end - start) as usize
    }
}

/// The last page of a file, when an append fills it in place.
struct Tail {
    frame: FrameNo,
    /// The first byte to fill in.
    head: usize,
}

/// Result of an attempt to commit a step.
enum Commit {
    /// Committed: the number of bytes.
    Done(usize),
    /// The end of file has moved: prepare the step again.
    Moved,
    /// This page has to be resident first.
    Needs(u64, Stop),
    /// A change of the whole file is in progress, or waits for writeback.
    Excluded,
}

/// What a write does about an error that was not yet reported to its open file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Unseen {
    /// It fails with the error.
    Report,
    /// It ends, and leaves the error to the next call.
    Stop,
    /// It goes on, and leaves the error to the next call.
    Leave,
}

impl File {
    /// Writes `buf` at `offset` (with `APPEND`: at the end of file), and returns the number of
    /// bytes written; waits if necessary. Writes less only with `NOWAIT` or after an error.
    ///
    /// # Errors [`Error::BadFile`] if not open for writing; a writeback error that was not yet reported
    /// to this open file; [`Error::TooBig`]; [`Error::WouldBlock`] with `NOWAIT`;
    /// [`Error::NotSupported`] and [`Error::Invalid`] for flags; those of the store, where the call
    /// needs it.
    pub fn write_at(&self, buf: &[u8], offset: u64, flags: IoFlags) -> Result<usize> {
        crate::block_on(self.write_at_async(buf, offset, flags))
    }

    /// [`write_at`](Self::write_at) for tasks. A cancelled call has written a prefix.
    ///
    /// # Errors
    /// Those of [`write_at`](Self::write_at).
    pub async fn write_at_async(&self, buf: &[u8], offset: u64, flags: IoFlags) -> Result<usize> {
        self.write(buf, offset, flags, Unseen::Report).await
    }

    /// [`write_at_async`](Self::write_at_async) of what a program has stored in a shared mapping of the
    /// file: no program looks at the outcome, and the data would be lost.
    ///
    /// # Errors
    /// Those of [`write_at_async`](Self::write_at_async), except for an earlier error of writeback:
    /// the next call that can report it does.
    pub async fn write_mapped_async(
        &self,
        buf: &[u8],
        offset: u64,
        flags: IoFlags,
    ) -> Result<usize> {
        self.write(buf, offset, flags, Unseen::Leave).await
    }

    async fn write(
        &self,
        buf: &[u8],
        offset: u64,
        flags: IoFlags,
        unseen: Unseen,
    ) -> Result<usize> {
        let open = &*self.open;
        if !open.access.contains(Access::WRITE) {
            return Err(Error::BadFile);
        }
        let policy = open.check_flags(flags)?;
        let errors = match unseen {
            Unseen::Report | Unseen::Stop => open.unseen_error()?,
            Unseen::Leave => self.write_errors(),
        };
        let append = flags.contains(IoFlags::APPEND);
        let max_size = open.mapping.max_size();
        if !append && offset.checked_add(buf.len() as u64).is_none_or(|e| e > max_size) {
            return Err(Error::TooBig);
        }
        let limits = open.mapping.memory.limits();
        // A call of several steps takes smaller steps rather than evict pages of other users.
        let long = policy.is_uncached() && buf.len() > limits.step * PAGE_SIZE;
        let step = if long { limits.step.min(limits.piece) } else { limits.step };
        let (mut done, mut unseen) = (0, unseen);
        while done < buf.len() {
            let at = (!append).then_some(offset + done as u64);
            match open.write_step(&buf[done..], at, flags, policy, step, unseen).await {
                Ok(n) => {
                    done += n;
                    if unseen == Unseen::Report {
                        // What is written is what this call reports.
                        unseen = Unseen::Stop;
                    }
                }
                // The kernel does not look at how much of a mapped write was done.
                Err(error) if done == 0 || unseen == Unseen::Leave => return Err(error),
                Err(_) => break,
            }
        }
        if flags.intersects(IoFlags::DSYNC | IoFlags::SYNC) && done > 0 {
            self.sync_since_async(errors, 0..u64::MAX, !flags.contains(IoFlags::SYNC)).await?;
        }
        Ok(done)
    }
}

impl Open {
    /// Writes the start of `buf`, in one step of at most `max_pages` pages.
    async fn write_step(
        &self,
        buf: &[u8],
        at: Option<u64>,
        flags: IoFlags,
        policy: CachePolicy,
        max_pages: usize,
        unseen: Unseen,
    ) -> Result<usize> {
        let mapping = &self.mapping;
        let memory = &mapping.memory;
        let nowait = flags.contains(IoFlags::NOWAIT);
        self.throttle(nowait, policy, unseen).await?;
        let mut in_place = true;
        let mut bases: Vec<Base> = Vec::new();
        loop {
            let offset = at.unwrap_or_else(|| mapping.size());
            let head = offset as usize & (PAGE_SIZE - 1);
            let max_pages = max_pages.min(memory.limits().step);
            let len = buf.len().min(max_pages * PAGE_SIZE - head);
            if offset + len as u64 > mapping.max_size() {
                return Err(Error::TooBig);
            }
            // An append may fill the last page in place; that page needs no new frame.
            in_place &= head > 0 && offset >= mapping.size();
            let step = Step { buf: &buf[..len], offset, append: at.is_none(), in_place, policy };
            let pages = step.new_pages();
            let count = (pages.end - pages.start) as usize;
            let mut frames = match count {
                0 => Frames::none(&memory.arena),
                n if nowait => memory.try_alloc(n, n, policy).ok_or(Error::WouldBlock)?,
                n => memory.alloc(n, n, policy).await,
            };
            if frames.len() < count {
                // The budget has shrunk, and the step with it.
                continue;
            }
            for (index, page) in pages.enumerate() {
                let part = step.part_of(page);
                let from = (page * PAGE_SIZE as u64 + part.start as u64 - offset) as usize;
                frames.write(index, part.start, &buf[from..from + part.len()]);
            }
            let ticket = mapping.changed.ticket();
            match mapping.commit(step, frames, &bases) {
                Commit::Done(n) => return Ok(n),
                Commit::Moved => in_place = false,
                Commit::Excluded if nowait => return Err(Error::WouldBlock),
                Commit::Excluded => mapping.changed.wait(ticket).await,
                Commit::Needs(..) if nowait => return Err(Error::WouldBlock),
                Commit::Needs(page, stop) => {
                    let snapshot = Snapshot { sequence: 0, size: mapping.size(), len: 0, stop };
                    let needed = page * PAGE_SIZE as u64..(page + 1) * PAGE_SIZE as u64;
                    self.bring_in(page, &needed, policy, &snapshot).await?;
                    bases.retain(|base| base.page != page);
                    bases.extend(mapping.base(page));
                }
            }
        }
    }

    /// Waits while too many pages are dirty. Returns a writeback error that occurred meanwhile, unless it
    /// is to be left.
    async fn throttle(&self, nowait: bool, policy: CachePolicy, unseen: Unseen) -> Result<()> {
        let mapping = &self.mapping;
        let memory = &mapping.memory;
        let mut waited = false;
        loop {
            let ticket = mapping.writeback().cleaned.ticket();
            let dirty = mapping.writeback().pages();
            let limits = memory.limits();
            let (background, hard) = (limits.dirty_background, limits.dirty_hard);
            let mut full = mapping.dirty.is_over_its_share(&limits);
            if memory.index_is_large() {
                memory.shrink_metadata();
                full |= mapping.dirty.store.is_dirty() && memory.index_is_large();
            }
            // Between the limits, a writer waits once for progress of writeback.
            let pause = !waited && mapping.dirty.is_to_pause(&limits);
            let behind = policy.is_uncached() && {
                let mut state = mapping.state.lock();
                let unwritten = state.waiting()
                    + state.writeback.values().map(|r| r.end - r.start).sum::<u64>();
                let most = UNCACHED_UNWRITTEN.min(limits.reserve as u64);
                let full = unwritten >= most.min(hard / 2).max(1);
                // Pages of cached writes count as well; nothing else would have them written soon.
                if full {
                    mapping.hurry(&mut state);
                }
                full
            };
            if dirty > background {
                mapping.lane().kick();
            }
            if !full && !pause && !behind {
                return Ok(());
            }
            if nowait {
                if behind {
                    mapping.lane().kick();
                }
                return if full || behind { Err(Error::WouldBlock) } else { Ok(()) };
            }
            match unseen {
                Unseen::Report => drop(self.unseen_error()?),
                Unseen::Stop => {
                    let seen = self.seen_error.load(Ordering::Relaxed);
                    mapping.state.lock().errors.since(seen)?;
                }
                Unseen::Leave => {}
            }
            if !waited {
                memory.stats.add(Count::ThrottleWaits, 1);
                waited = true;
            }
            memory.kick_flushers();
            mapping.writeback().cleaned.wait(ticket).await;
        }
    }
}

impl Mapping {
    /// A copy of a page, if it is resident.
    fn base(&self, page: u64) -> Option<Base> {
        let mut state = self.state.lock();
        let bytes = match self.edit(&mut state).slot(page) {
            // SAFETY: the frame is in its slot while we hold the lock, and filling bytes past the
            // mark needs that lock, too.
            Slot::Frame(frame) => unsafe { self.memory.arena.bytes(frame, 0, PAGE_SIZE) }.to_vec(),
            Slot::Hole => vec![0; PAGE_SIZE],
            Slot::Empty | Slot::InFlight(_) => return None,
        };
        Some(Base { page, sequence: self.sequence(), bytes })
    }

    /// Publishes prepared frames as the step's pages, from the first page on, or from the second if
    /// the first is filled in place.
    fn commit(self: &Arc<Self>, step: Step<'_>, mut frames: Frames, bases: &[Base]) -> Commit {
        let memory = &self.memory;
        let mut state = self.state.lock();
        if state.invalidating || state.holds_of_writers > 0 {
            return Commit::Excluded;
        }
        let size = self.size();
        if step.append && step.offset != size {
            return Commit::Moved;
        }
        let mut edit = self.edit(&mut state);
        let tail = if step.in_place { self.tail(&step, size, &edit) } else { None };
        if step.in_place && tail.is_none() {
            return Commit::Moved;
        }
        if let Err((page, stop)) = self.complete_edges(&step, size, &edit, bases, &mut frames) {
            return Commit::Needs(page, stop);
        }
        if let Some(tail) = &tail {
            self.fill_tail(&step, tail);
        }
        let new_size = size.max(step.end());
        // From here on readers retry, until the whole step is published.
        let seqcount = self.write_seqcount(&edit);
        if let Some(tail) = &tail {
            self.show_tail(&step, tail);
        }
        let entered = self.publish_pages(&step, new_size, frames, &mut edit);
        if new_size > size {
            // Pages between the old end and the write were never written.
            let between = size.div_ceil(PAGE_SIZE as u64)..step.pages().start;
            edit.replace(between, Replacement::HoleWhereEmpty);
            self.raise_mark(&edit, size, new_size);
            seqcount.set_size(new_size);
        }
        drop(seqcount);
        edit.finish();
        let wake = self.note_written(&step, &mut state);
        drop(state);
        memory.collect_some();
        self.count(Count::UncachedPages, entered);
        memory.stats.add(Count::WrittenBytes, step.buf.len() as u64);
        if wake {
            self.lane().kick();
        }
        // Once written back, these pages can be reclaimed for operations that wait for memory.
        memory.waiters.notify();
        Commit::Done(step.buf.len())
    }

    /// The frame that the step can fill in place: the step begins at or past the end of file, and
    /// readers see no byte of the page from there on.
    fn tail(&self, step: &Step<'_>, size: u64, edit: &Edit<'_>) -> Option<Tail> {
        let head = step.offset as usize & (PAGE_SIZE - 1);
        let frame = edit.frame_at(step.pages().start)?;
        let unseen = step.offset >= size && self.memory.arena.meta(frame).mark() <= head;
        unseen.then_some(Tail { frame, head })
    }

    /// Completes the prepared frames at the step's edges from the current pages of the file. Fails
    /// with the page that has to be resident first.
    fn complete_edges(
        &self,
        step: &Step<'_>,
        size: u64,
        edit: &Edit<'_>,
        bases: &[Base],
        frames: &mut Frames,
    ) -> std::result::Result<(), (u64, Stop)> {
        for (index, page) in step.new_pages().enumerate() {
            let start = page * PAGE_SIZE as u64;
            let part = step.part_of(page);
            if part.len() == PAGE_SIZE {
                continue;
            }
            // The write covers the old page up to the end of file, so it needs none of its bytes.
            let covered = part.start == 0 && start + part.end as u64 >= size;
            let old = if covered { Slot::Hole } else { edit.slot(page) };
            let bytes = match old {
                // SAFETY: the frame is in its slot while we hold the lock. Bytes past the mark are
                // zero, and only a commit (this one) could fill them.
                Slot::Frame(frame) => Some(unsafe { self.memory.arena.bytes(frame, 0, PAGE_SIZE) }),
                Slot::Empty | Slot::InFlight(_) if start < size => {
                    let sequence = self.sequence();
                    let aside = bases.iter().find(|b| b.page == page && b.sequence == sequence);
                    let stop = match old {
                        Slot::InFlight(fill) => Stop::InFlight(fill),
                        _ => Stop::Missing,
                    };
                    Some(&*aside.ok_or((page, stop))?.bytes)
                }
                _ => None,
            };
            match bytes {
                Some(bytes) => {
                    frames.write(index, 0, &bytes[..part.start]);
                    frames.write(index, part.end, &bytes[part.end..]);
                }
                None => {
                    frames.zero(index, 0, part.start);
                    frames.zero(index, part.end, PAGE_SIZE);
                }
            }
        }
        Ok(())
    }

    /// Copies the step's first bytes into the last page, past the bytes that readers can see.
    fn fill_tail(&self, step: &Step<'_>, tail: &Tail) {
        let len = step.buf.len().min(PAGE_SIZE - tail.head);
        // SAFETY: past the mark, so no reader looks at these bytes, and within the frame; the caller of
        // `commit` holds the lock, so no other thread writes them.
        unsafe {
            let to = self.memory.arena.ptr(tail.frame).add(tail.head);
            std::ptr::copy_nonoverlapping(step.buf.as_ptr(), to, len);
        }
    }

    /// Makes the filled bytes visible.
    fn show_tail(&self, step: &Step<'_>, tail: &Tail) {
        let meta = self.memory.arena.meta(tail.frame);
        meta.set_mark((tail.head + step.buf.len()).min(PAGE_SIZE));
        meta.set(flag::DIRTY);
        if !step.policy.is_uncached() {
            meta.clear(flag::UNCACHED);
        }
        self.memory.stats.add(Count::AppendsInPlace, 1);
    }

    /// Puts the step's frames into their slots. Returns how many pages an uncached write brought
    /// in.
    fn publish_pages(
        &self,
        step: &Step<'_>,
        new_size: u64,
        mut frames: Frames,
        edit: &mut Edit<'_>,
    ) -> u64 {
        let mut entered = 0;
        for (index, page) in step.new_pages().enumerate() {
            let mark = (new_size - page * PAGE_SIZE as u64).min(PAGE_SIZE as u64) as usize;
            let mut flags = flag::DIRTY;
            if step.policy.is_uncached() {
                let marked = match edit.frame_at(page) {
                    Some(old) => self.memory.arena.meta(old).has(flag::UNCACHED),
                    None => {
                        entered += 1;
                        true
                    }
                };
                if marked {
                    flags |= flag::UNCACHED;
                }
            }
            let frame = frames.publish(index, flags, mark);
            edit.put(page, frame);
        }
        entered
    }

    /// Marks the step's pages as dirty for the flusher. Returns whether to wake the flusher now.
    fn note_written(self: &Arc<Self>, step: &Step<'_>, state: &mut State) -> bool {
        self.mark_dirty(state, step.pages());
        state.overlay.modified(SystemTime::now());
        self.list_dirty(state);
        if !step.policy.is_uncached() {
            return false;
        }
        let ends_inside = !step.end().is_multiple_of(PAGE_SIZE as u64);
        let half = ends_inside.then_some(step.end() / PAGE_SIZE as u64);
        state.half_written = half;
        self.note_uncached(state)
    }
}
