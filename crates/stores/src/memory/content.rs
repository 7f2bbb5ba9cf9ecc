//! A sparse file's bytes in memory.
//!
//! 1. A page that is absent from the map is a hole; one that is present is data.
//! 2. Bytes of a present page at and past the size are zero, so growing a file exposes nothing.
//! 3. No page lies wholly at or past the size.

use super::locks::Locks;
use parking_lot::{RwLock, RwLockReadGuard};
use std::collections::BTreeMap;
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use weir_base::{PAGE_SIZE, pages_spanning};
use weir_vfs::{Error, Extent, Layout, Result, SegmentKind};

const PAGE: u64 = PAGE_SIZE as u64;

type Page = [u8; PAGE_SIZE];

/// The remaining room of a file system for data.
#[derive(Debug)]
pub(super) struct Space {
    free_bytes: AtomicU64,
}

impl Space {
    pub(super) fn new(free_bytes: u64) -> Self {
        Self { free_bytes: AtomicU64::new(free_bytes) }
    }

    pub(super) fn free_bytes(&self) -> u64 {
        self.free_bytes.load(Relaxed)
    }

    fn reserve(&self, bytes: u64) -> Result<()> {
        self.free_bytes
            .fetch_update(Relaxed, Relaxed, |free| free.checked_sub(bytes))
            .map(drop)
            .map_err(|_| Error::NoSpace)
    }

    fn release(&self, bytes: u64) {
        self.free_bytes.fetch_add(bytes, Relaxed);
    }
}

/// A regular file's content, which keeps its share of the room until its last user drops it.
#[derive(Debug)]
pub(super) struct Regular {
    content: RwLock<Content>,
    pub(super) space: Arc<Space>,
    pub(super) locks: Locks,
}

impl Regular {
    pub(super) fn new(space: Arc<Space>) -> Self {
        Self { content: RwLock::default(), space, locks: Locks::default() }
    }

    pub(super) fn read(&self) -> RwLockReadGuard<'_, Content> {
        self.content.read()
    }

    /// Runs a change that adds at most `growth` bytes of storage, or fails without effect if there
    /// is no room for them. `changed` runs before readers see the new content.
    pub(super) fn change(
        &self,
        growth: impl FnOnce(&Content) -> u64,
        change: impl FnOnce(&mut Content),
        changed: impl FnOnce(),
    ) -> Result<()> {
        let mut content = self.content.write();
        let reserved = growth(&content);
        self.space.reserve(reserved)?;
        let before = content.allocated() + reserved;
        change(&mut content);
        self.space.release(before - content.allocated());
        changed();
        Ok(())
    }
}

impl Drop for Regular {
    fn drop(&mut self) {
        self.space.release(self.content.get_mut().allocated());
    }
}

/// Pages and size of a file. Clones share their pages until one writes.
#[derive(Clone, Debug, Default)]
pub(super) struct Content {
    pages: BTreeMap<u64, Arc<Page>>,
    size: u64,
}

impl Content {
    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// Bytes of storage in use.
    pub(super) fn allocated(&self) -> u64 {
        self.pages.len() as u64 * PAGE
    }

    /// Additional storage, in bytes, that a write or allocation of `start..end` would need.
    pub(super) fn growth(&self, start: u64, end: u64) -> u64 {
        let span = pages_spanning(start, end - start);
        let present = self.pages.range(span.clone()).count() as u64;
        (span.end - span.start - present) * PAGE
    }

    /// Copies the data extents of `offset..offset + len` to their positions in `slices`, and
    /// returns the layout.
    pub(super) fn read(&self, offset: u64, len: usize, slices: Vec<IoSliceMut<'_>>) -> Layout {
        let end = offset.saturating_add(len as u64).min(self.size);
        let mut layout = Layout { extents: Vec::new(), eof: end == self.size };
        if offset >= end {
            layout.eof = offset >= self.size;
            return layout;
        }
        let mut out = Scatter::new(slices);
        let mut at = offset;
        for (&index, page) in self.pages.range(pages_spanning(offset, end - offset)) {
            let (from, to) = (at.max(index * PAGE), end.min((index + 1) * PAGE));
            layout.push(SegmentKind::Hole, at, from);
            out.skip((from - at) as usize);
            out.put(&page[(from - index * PAGE) as usize..(to - index * PAGE) as usize]);
            layout.push(SegmentKind::Data, from, to);
            at = to;
        }
        // By invariant 2 the rest of the last page is zero, and the buffer's rest must be, too.
        if end == self.size && at == end {
            out.zero(((PAGE - end % PAGE) % PAGE) as usize);
        }
        if at < end {
            let hole_end = self.data_from(end).unwrap_or(self.size);
            layout.push(SegmentKind::Hole, at, hole_end);
            layout.eof = hole_end == self.size;
        }
        layout
    }

    /// Writes bytes at `offset`, and extends the file if necessary.
    pub(super) fn write(&mut self, offset: u64, slices: &[IoSlice<'_>]) {
        let mut at = offset;
        for slice in slices {
            let mut bytes: &[u8] = slice;
            while !bytes.is_empty() {
                let within = (at % PAGE) as usize;
                let (now, later) = bytes.split_at(bytes.len().min(PAGE_SIZE - within));
                let page = self.page_mut(at / PAGE);
                page[within..within + now.len()].copy_from_slice(now);
                at += now.len() as u64;
                bytes = later;
            }
        }
        self.size = self.size.max(at);
    }

    /// Truncates, or extends with a hole.
    pub(super) fn set_size(&mut self, size: u64) {
        if size < self.size {
            self.pages.split_off(&size.div_ceil(PAGE));
            let within = (size % PAGE) as usize;
            if let Some(page) = self.pages.get_mut(&(size / PAGE)) {
                Arc::make_mut(page)[within..].fill(0);
            }
        }
        self.size = size;
    }

    /// Turns `start..end` into a hole: removes whole pages, zeroes partial ones.
    pub(super) fn punch(&mut self, start: u64, end: u64) {
        // Past the end of the file there is only a hole already.
        let end = if end >= self.size { self.size.next_multiple_of(PAGE) } else { end };
        if start >= end {
            return;
        }
        let (first, last) = (start.div_ceil(PAGE), end / PAGE);
        for index in [start / PAGE, end / PAGE] {
            let (from, to) = (start.max(index * PAGE), end.min((index + 1) * PAGE));
            let partial = from < to && to - from < PAGE;
            if let Some(page) = self.pages.get_mut(&index).filter(|_| partial) {
                Arc::make_mut(page)[(from - index * PAGE) as usize..(to - index * PAGE) as usize]
                    .fill(0);
            }
        }
        if first < last {
            let mut tail = self.pages.split_off(&first);
            self.pages.append(&mut tail.split_off(&last));
        }
    }

    /// Makes every page of `start..end` present, and extends the file to `end`.
    pub(super) fn allocate(&mut self, start: u64, end: u64) {
        for index in pages_spanning(start, end - start) {
            self.page_mut(index);
        }
        self.size = self.size.max(end);
    }

    /// Shares the pages of `from` in `start..end`, page-aligned except for an `end` at the end of
    /// `from`, with this file at `to`.
    pub(super) fn share(&mut self, from: &Content, start: u64, end: u64, to: u64) {
        let to_end = to + (end - start);
        let within = (end % PAGE) as usize;
        // A partial last page may replace a whole one only if no data follows here.
        let whole_end = if within != 0 && to_end < self.size { end - within as u64 } else { end };
        let span = pages_spanning(start, whole_end - start);
        for (source, target) in span.zip(to / PAGE..) {
            match from.pages.get(&source) {
                Some(page) => self.pages.insert(target, page.clone()),
                None => self.pages.remove(&target),
            };
        }
        if whole_end < end {
            let mut part = vec![0; within];
            if let Some(page) = from.pages.get(&(end / PAGE)) {
                part.copy_from_slice(&page[..within]);
            }
            self.write(to + (whole_end - start), &[IoSlice::new(&part)]);
        }
        self.size = self.size.max(to_end);
    }

    /// The extent that contains `offset`; `None` at or past the end.
    pub(super) fn extent_at(&self, offset: u64) -> Option<Extent> {
        if offset >= self.size {
            return None;
        }
        let index = offset / PAGE;
        let (kind, end) = if self.pages.contains_key(&index) {
            let run = self.pages.range(index..).zip(index..).take_while(|((i, _), at)| *i == at);
            (SegmentKind::Data, (index + run.count() as u64) * PAGE)
        } else {
            (SegmentKind::Hole, self.data_from(offset).unwrap_or(self.size))
        };
        Some(Extent { kind, start: offset, end: end.min(self.size) })
    }

    /// The start of the next data at or after `offset`.
    fn data_from(&self, offset: u64) -> Option<u64> {
        let (&index, _) = self.pages.range(offset / PAGE..).next()?;
        Some(offset.max(index * PAGE))
    }

    fn page_mut(&mut self, index: u64) -> &mut Page {
        Arc::make_mut(self.pages.entry(index).or_insert_with(|| Arc::new([0; PAGE_SIZE])))
    }
}

/// Writes front to back over several slices.
struct Scatter<'a> {
    rest: std::vec::IntoIter<IoSliceMut<'a>>,
    now: IoSliceMut<'a>,
}

impl<'a> Scatter<'a> {
    fn new(slices: Vec<IoSliceMut<'a>>) -> Self {
        Self { rest: slices.into_iter(), now: IoSliceMut::new(&mut []) }
    }

    fn put(&mut self, mut bytes: &[u8]) {
        self.each(bytes.len(), |part| {
            let (now, later) = bytes.split_at(part.len());
            part.copy_from_slice(now);
            bytes = later;
        });
    }

    fn zero(&mut self, len: usize) {
        self.each(len, |part| part.fill(0));
    }

    fn skip(&mut self, len: usize) {
        self.each(len, |_| {});
    }

    /// Calls `with` with the next `len` bytes (or fewer, if there are no more), and advances.
    fn each(&mut self, mut len: usize, mut with: impl FnMut(&mut [u8])) {
        while len > 0 {
            if self.now.is_empty() {
                let Some(next) = self.rest.next() else { return };
                self.now = next;
                continue;
            }
            let part = len.min(self.now.len());
            with(&mut self.now[..part]);
            self.now.advance(part);
            len -= part;
        }
    }
}
