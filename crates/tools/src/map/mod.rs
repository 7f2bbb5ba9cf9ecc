//! Maps of files: which parts are data, holes, cached. [`Map`] has the result; [`text`] and [`svg`]
//! draw it.

use crate::failure::{Asked, Result};
use crate::kernel_cache::Cached;
use futures_util::future::try_join_all;
use serde::Serialize;
use std::ops::Range;
use weir_base::PAGE_SIZE;
use weir_pagecache::File;
use weir_vfs::{Error, Extent, SegmentKind};

pub mod svg;
pub mod text;

/// Most extents that are listed; the pictures include all.
const MOST_EXTENTS: usize = 1 << 20;

/// The parts of a file.
#[derive(Serialize)]
pub struct Map {
    /// Where the file is, for people.
    #[serde(skip)]
    pub path: String,
    /// Its size.
    pub size_bytes: u64,
    /// Bytes that its store has allocated.
    pub allocated_bytes: u64,
    /// Bytes of data.
    pub data_bytes: u64,
    /// Runs of data.
    pub data_extents: u64,
    /// Bytes of holes.
    pub hole_bytes: u64,
    /// Runs of holes.
    pub hole_extents: u64,
    /// Whose cache was examined; `None` if unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache: Option<&'static str>,
    /// Bytes of the file in that cache.
    pub cached_bytes: u64,
    /// The runs of data and holes, in order: the first 2^20 of them.
    pub extents: Vec<Part>,
    /// There are more extents than are listed.
    pub extents_cut_off: bool,
    /// What is cached, in order.
    pub cached: Vec<Range<u64>>,
    /// There are more cached ranges than are listed; `cached_bytes` counts all.
    pub cached_cut_off: bool,
    /// The same for a picture.
    #[serde(skip)]
    pub cells: Cells,
}

/// A run of data, or a hole.
#[derive(Serialize)]
pub struct Part {
    /// `data` or `hole`.
    pub kind: &'static str,
    /// Its first byte.
    pub start: u64,
    /// Offset after the last byte.
    pub end: u64,
}

/// A file divided into cells of equal size, with the amount of data and of cached bytes in each.
pub struct Cells {
    /// Bytes of a cell: whole pages.
    pub cell_bytes: u64,
    /// Bytes of the file.
    size: u64,
    cells: Vec<Cell>,
}

/// Bytes of one cell.
#[derive(Clone, Copy, Default)]
pub struct Cell {
    data: u64,
    cached: u64,
    size: u64,
}

impl Cell {
    /// The share that is data, 0 to 1.
    pub fn data(&self) -> f64 {
        self.data as f64 / self.size.max(1) as f64
    }

    /// The share that is cached, 0 to 1.
    pub fn cached(&self) -> f64 {
        self.cached as f64 / self.size.max(1) as f64
    }
}

impl Cells {
    /// At most `most` cells for `size` bytes.
    pub fn new(size: u64, most: usize) -> Self {
        let page = PAGE_SIZE as u64;
        let cell_bytes = size.div_ceil(most.max(1) as u64).next_multiple_of(page).max(page);
        let count = size.div_ceil(cell_bytes);
        let cell =
            |at: u64| Cell { size: cell_bytes.min(size - at * cell_bytes), ..Cell::default() };
        Self { cell_bytes, size, cells: (0..count).map(cell).collect() }
    }

    /// The cells' ranges of the file.
    pub fn ranges(&self) -> impl Iterator<Item = Range<u64>> {
        let bytes = |at: usize| at as u64 * self.cell_bytes;
        self.cells.iter().enumerate().map(move |(at, cell)| bytes(at)..bytes(at) + cell.size)
    }

    /// Adds a range to one of the counts of the cells that it touches.
    fn add(&mut self, range: Range<u64>, count: impl Fn(&mut Cell) -> &mut u64) {
        let mut at = range.start;
        let end = range.end.min(self.size);
        while at < end {
            let cell = at / self.cell_bytes;
            let until = ((cell + 1) * self.cell_bytes).min(end);
            if let Some(cell) = self.cells.get_mut(cell as usize) {
                *count(cell) += until - at;
            }
            at = until;
        }
    }

    /// Rows of `width` cells, each with its start offset.
    pub fn rows(&self, width: usize) -> impl Iterator<Item = (u64, &[Cell])> {
        let row_bytes = self.cell_bytes * width as u64;
        self.cells
            .chunks(width)
            .enumerate()
            .map(move |(row, cells)| (row as u64 * row_bytes, cells))
    }
}

impl Map {
    /// Examines a file, for a picture of at most `cells` cells.
    pub async fn of(path: String, file: &File, allocated: u64, cells: usize) -> Result<Self> {
        let size = file.size();
        let mut map = Self::empty(path, size, allocated, cells);
        let mut run: Option<(SegmentKind, Range<u64>)> = None;
        let mut survey = Survey { file, size, at: 0, window: 0 };
        while let Some(found) = survey.next().await.asked(|| format!("map {}", map.path))? {
            for extent in found {
                match &mut run {
                    Some((kind, range)) if *kind == extent.kind => range.end = extent.end,
                    _ => map.extend(run.replace((extent.kind, extent.start..extent.end))),
                }
            }
        }
        map.extend(run);
        Ok(map)
    }

    fn empty(path: String, size: u64, allocated_bytes: u64, cells: usize) -> Self {
        Self {
            path,
            size_bytes: size,
            allocated_bytes,
            data_bytes: 0,
            data_extents: 0,
            hole_bytes: 0,
            hole_extents: 0,
            cache: None,
            cached_bytes: 0,
            extents: Vec::new(),
            extents_cut_off: false,
            cached: Vec::new(),
            cached_cut_off: false,
            cells: Cells::new(size, cells),
        }
    }

    fn extend(&mut self, run: Option<(SegmentKind, Range<u64>)>) {
        let Some((kind, range)) = run else { return };
        let len = range.end - range.start;
        let kind = match kind {
            SegmentKind::Data => {
                self.data_bytes += len;
                self.data_extents += 1;
                self.cells.add(range.clone(), |cell| &mut cell.data);
                "data"
            }
            SegmentKind::Hole => {
                self.hole_bytes += len;
                self.hole_extents += 1;
                "hole"
            }
        };
        match self.extents.len() < MOST_EXTENTS {
            true => self.extents.push(Part { kind, start: range.start, end: range.end }),
            false => self.extents_cut_off = true,
        }
    }

    /// Adds the content of `whose` cache, as counted for each cell of this map.
    pub fn counted(&mut self, whose: &'static str, cached: Cached) {
        self.cache = Some(whose);
        self.cached_bytes = cached.bytes;
        for (cell, bytes) in self.cells.cells.iter_mut().zip(cached.parts) {
            cell.cached = bytes.min(cell.size);
        }
        self.cached_cut_off = cached.is_cut_off;
        self.cached = cached.ranges;
    }

    /// Adds the content of `whose` cache.
    pub fn cached(&mut self, whose: &'static str, ranges: Vec<Range<u64>>) {
        self.cache = Some(whose);
        for range in &ranges {
            self.cached_bytes += range.end.min(self.size_bytes).saturating_sub(range.start);
            self.cells.add(range.clone(), |cell| &mut cell.cached);
        }
        self.cached = ranges;
    }
}

/// Extents requested one by one, before requests run concurrently.
const ALONE: usize = 256;
/// Windows of a file requested concurrently: each request takes a round trip to a server.
const WINDOWS: u64 = 32;
/// The longest window: with only short extents it has 16,384 of them.
const MOST_WINDOW: u64 = 64 << 20;

/// Iterates over the extents of a file.
struct Survey<'a> {
    file: &'a File,
    size: u64,
    /// The end of the known extents.
    at: u64,
    /// The length of a window; 0 at first.
    window: u64,
}

impl Survey<'_> {
    /// The next extents, in order and without gaps; `None` at the end.
    async fn next(&mut self) -> weir_vfs::Result<Option<Vec<Extent>>> {
        let before = self.at;
        let found = if self.window == 0 {
            vec![self.walk(before..self.size, ALONE).await?]
        } else {
            let starts = (0..WINDOWS).map_while(|n| before.checked_add(n * self.window));
            let windows = starts.take_while(|&start| start < self.size).map(|start| {
                let end = start.saturating_add(self.window).min(self.size);
                self.walk(start..end, usize::MAX)
            });
            try_join_all(windows).await?
        };
        let count: usize = found.iter().map(Vec::len).sum();
        let mut extents = Vec::with_capacity(count);
        for extent in found.into_iter().flatten() {
            // An extent that reaches beyond its window also appears in the next windows.
            let end = extent.end.min(self.size);
            if extent.start <= self.at && end > self.at {
                extents.push(Extent { start: self.at, end, ..extent });
                self.at = end;
            }
        }
        // So that each window has about 64 extents like those found here.
        let mean = (self.at - before) / (extents.len() as u64).max(1);
        let page = PAGE_SIZE as u64;
        self.window = mean.saturating_mul(64).clamp(page, MOST_WINDOW).next_multiple_of(page);
        // If there are none, the file was truncated meanwhile.
        Ok((!extents.is_empty()).then_some(extents))
    }

    /// The extents from the start of a range on, until they cover it or there are `most`.
    async fn walk(&self, range: Range<u64>, most: usize) -> weir_vfs::Result<Vec<Extent>> {
        let mut found = Vec::new();
        let mut at = range.start;
        while at < range.end && found.len() < most {
            match self.file.extent_at_async(at).await {
                Ok(extent) if extent.end > at => {
                    at = extent.end;
                    found.push(extent);
                }
                Ok(_) | Err(Error::NoSuchRange) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }
}

#[cfg(test)]
impl Map {
    /// A map of a fictitious file: data in these ranges, holes elsewhere.
    pub fn invented(size: u64, data: &[Range<u64>], cells: usize) -> Self {
        let mut map = Self::empty("disk.img".into(), size, 0, cells);
        let mut at = 0;
        for range in data {
            if range.start > at {
                map.extend(Some((SegmentKind::Hole, at..range.start)));
            }
            map.extend(Some((SegmentKind::Data, range.clone())));
            at = range.end;
        }
        if size > at {
            map.extend(Some((SegmentKind::Hole, at..size)));
        }
        map.allocated_bytes = map.data_bytes;
        map
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_whole_pages_and_cover_the_file() {
        let cells = Cells::new(10_000, 80);
        assert_eq!((cells.cell_bytes, cells.cells.len()), (4096, 3));
        assert_eq!(cells.cells[2].size, 10_000 - 8192);
        assert!(Cells::new(0, 80).cells.is_empty());
        let cells = Cells::new(1 << 40, 80);
        assert!(cells.cells.len() <= 80 && cells.cells.len() as u64 * cells.cell_bytes >= 1 << 40);
    }

    #[test]
    fn ranges_are_spread_over_their_cells() {
        let mut map = Map::invented(16384, &[2048..12288], 4);
        let shares: Vec<_> = map.cells.cells.iter().map(Cell::data).collect();
        assert_eq!(shares, [0.5, 1.0, 1.0, 0.0]);
        map.cached("Weir's", vec![8192..9216]);
        assert_eq!(map.cells.cells[2].cached(), 0.25);
        assert_eq!((map.hole_extents, map.hole_bytes, map.cached_bytes), (2, 6144, 1024));
    }
}
