//! A page cache in user space: cached reads without locks, uncached I/O per operation, holes that
//! stay holes.

mod arena;
mod cache;
mod cached_fs;
mod change;
mod epoch;
mod file;
mod fill;
mod index;
mod mapping;
mod ranges;
mod read;
mod readahead;
mod reclaim;
mod segments;
mod stats;
mod tasks;
mod times;
mod uncached;
mod wait;
mod write;
mod writeback;

pub use cache::{Cache, Config};
pub use cached_fs::CachedFs;
pub use file::File;
pub use segments::{Pages, Segment, Segments};
pub use stats::Stats;

use pollster::block_on;
