//! A page cache in user space: cached reads without locks, uncached I/O per operation, and holes
//! that stay holes.
//!
//! ```text
//!             File::read_at           File::read_segments          File::write_at
//!                  |                          |                          |
//!         copies out of frames         lends pinned frames       fills new frames, then
//!                  |                          |                swaps them in, all at once
//!                  v                          v                          v
//!   Mapping   +---------------------------------------------------------------------------+
//!   one per   | sequence | size |  index: page -> Empty | Frame | Hole | InFlight         |
//!   file      +---------------------------------------------------------------------------+
//!                  ^                          |                          |
//!          publish |                          | frame number             | dirty pages, in runs
//!                  |                          v                          v
//!               Fill               Arena: page frames; its         Writeback: pins frames
//!         reads the store          size is the budget              and writes the store
//!                  |                          ^                          |
//!                  |                   Reclaim: S3-FIFO                  |
//!                  v                                                     v
//!             OpenFile::submit_read        (a store)        OpenFile::submit_write
//! ```
//!
//! Four ideas:
//!
//! * **A published page does not change.** A write fills a new frame and exchanges the slot; the
//!   old frame is reused once no reader can see it (its epoch has passed, and no pin is left). So a
//!   reader that has looked up its frames copies them without hurry, a page under writeback may be
//!   written, and a page queued on a socket cannot tear.
//! * **A hit is a snapshot.** The reader enters an epoch, collects the slots of its range and the
//!   size between two looks at the mapping's sequence number, and copies. It takes no lock,
//!   allocates nothing and writes no line that another thread writes.
//! * **Uncached is a property of one operation** ([`IoFlags::UNCACHED`](weir_vfs::IoFlags)). It
//!   uses the same pages as all other I/O, marks those that it brings in, and drops exactly these
//!   when it completes.
//! * **A hole is a marker, not a page of zeros**, however long it is.
//!
//! ```
//! use weir_pagecache::{Cache, Config, Segment};
//! use weir_stores::memory::MemoryFs;
//! use weir_vfs::{Access, Caller, CreateMode, IoFlags, SetAttr};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let cache = Cache::new(Config { budget_bytes: 64 << 20, ..Config::default() })?;
//! let fs = cache.mount(MemoryFs::new());
//! # pollster::block_on(async {
//! let (name, set) = (fs.root().entry(b"notes"), SetAttr::default());
//! let made = fs.create(&Caller::Own, name.with(&set), CreateMode::MustBeNew).await?;
//! let file = fs.open(&Caller::Own, made.attr.id, Access::READ | Access::WRITE).await?;
//!
//! file.write_at_async(b"at the end of a gibibyte of nothing", 1 << 30, IoFlags::empty()).await?;
//! let mut buf = [0; 10];
//! file.read_at_async(&mut buf, 1 << 30, IoFlags::empty()).await?;
//! assert_eq!(&buf, b"at the end");
//!
//! // Borrow instead of copying; a hole is reported as a hole, to its end.
//! let found = file.read_segments_async(4096, 4096, IoFlags::UNCACHED).await?;
//! assert!(matches!(found.segments[0], Segment::Hole { start: 4096, end } if end == 1 << 30));
//! # Ok::<(), weir_vfs::Error>(())
//! # })?;
//! # Ok(())
//! # }
//! ```
//!
//! An uncached stream leaves the cache unchanged, as the counters show:
//!
//! ```
//! use weir_pagecache::{Cache, Config};
//! use weir_stores::memory::MemoryFs;
//! use weir_vfs::{Access, Advice, Caller, CreateMode, IoFlags, SetAttr};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let cache = Cache::new(Config { budget_bytes: 64 << 20, ..Config::default() })?;
//! let fs = cache.mount(MemoryFs::new());
//! let file = pollster::block_on(async {
//!     let (name, set) = (fs.root().entry(b"log"), SetAttr::default());
//!     let made = fs.create(&Caller::Own, name.with(&set), CreateMode::MustBeNew).await?;
//!     fs.open(&Caller::Own, made.attr.id, Access::READ | Access::WRITE).await
//! })?;
//!
//! // Writeback begins at once; when it completes, the pages are dropped.
//! file.write_at(&[7; 1 << 20], 0, IoFlags::UNCACHED)?;
//! file.sync(true)?;
//! assert!(file.resident().is_empty());
//!
//! // A stream is read ahead, and drops its pages as it goes.
//! let mut buf = [0; 64 << 10];
//! for at in (0..1 << 20).step_by(buf.len()) {
//!     assert_eq!(file.read_at(&mut buf, at as u64, IoFlags::UNCACHED)?, buf.len());
//! }
//! let stats = file.stats();
//! assert!(stats.readahead_pages > 0 && stats.lost_pages == 0);
//! assert_eq!(stats.pruned_pages, stats.uncached_pages);
//!
//! // Advice brings in pages early; a cached read then takes no lock and does not wait.
//! file.advise(0, 256 << 10, Advice::WillNeed)?;
//! while file.read_resident(&mut buf, 0) != Some(buf.len()) {
//!     std::thread::yield_now();
//! }
//! # Ok(())
//! # }
//! ```
//!
//! The invariants I1 to I11 are stated at the top of the files that keep them, and listed with
//! their tests in `docs/SEMANTICS.md`. `docs/LOCKING.md` describes locks and epochs.
//!
//! Layers, from the top:
//!
//! ```text
//! fs - a store seen through a cache: names, attributes, open and idle files, unmount
//! cache file - the cache's budget and threads; an open file: read, write, segments, read-ahead
//! mapping - a file's pages: index, fills, writeback, truncate, attributes
//! writeback - when dirty pages are written, and how many there may be
//! memory reclaim - frames, their allocator, epochs, eviction
//! cache_policy tasks thread wait stats ranges - what all use
//! ```
//!
//! A call upwards goes through a trait of the lower layer: memory management calls a mapping as
//! `FrameOwner`, a mounted store as `Shrinkable` and writeback as `Flushers`; a flusher calls a
//! mapping as `DirtyFile` and a mounted store as `IdleFiles`; an open file calls its mounted store as
//! `Mount`.
//!
//! # Model checking
//!
//! Synchronisation comes in through `weir_base::sync`, so the shipped code can be checked:
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test -p weir-pagecache --target-dir target/loom --lib model
//! RUSTFLAGS="--cfg shuttle" cargo test -p weir-pagecache --target-dir target/shuttle --lib model
//! cargo +nightly miri test -p weir-pagecache --lib
//! ```

#![cfg_attr(
    test,
    allow(clippy::single_range_in_vec_init, reason = "resident pages are a list of ranges")
)]

mod cache;
mod cache_policy;
mod file;
mod fs;
mod mapping;
mod memory;
#[cfg(all(test, any(loom, shuttle)))]
mod model;
mod ranges;
mod reclaim;
mod stats;
mod tasks;
#[cfg(all(test, not(any(loom, shuttle))))]
mod testing;
mod thread;
mod wait;
mod writeback;

pub use cache::{Cache, Config};
pub use file::File;
pub use file::segments::{Pages, Segment, Segments};
pub use fs::residency::Residency;
pub use fs::{CachedFs, WeakFs};
pub use stats::Stats;
pub use thread::Background;

#[cfg(not(shuttle))]
use pollster::block_on;
#[cfg(shuttle)]
use shuttle::future::block_on;
