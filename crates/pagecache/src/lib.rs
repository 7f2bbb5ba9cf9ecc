//! A page cache in user space: cached reads without locks, uncached I/O per operation, holes that
//! stay holes.
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
//! Four ideas carry it:
//!
//! * **A published page does not change.** A write makes a new frame and swaps the slot; the old
//!   frame is used again when no reader can still see it (an epoch has passed, and no pin is left).
//!   So a reader that has looked up its frames copies them at leisure, a page under writeback may
//!   be written, and a page queued on a socket cannot tear.
//! * **A hit is a snapshot.** The reader enters an epoch, collects the slots of its range and the
//!   size between two looks at the mapping's sequence number, and copies. It takes no lock,
//!   allocates nothing and writes no line that another thread writes.
//! * **Uncached is a property of one operation** ([`IoFlags::UNCACHED`](weir_vfs::IoFlags)). It goes
//!   through the same pages as everybody's I/O, marks those that it brings in, and drops just
//!   these when it is done.
//! * **A hole is a mark, not a page of zeros**, however long it is.
//!
//! ```
//! use weir_pagecache::{Cache, Config, Segment};
//! use weir_stores::memory::MemoryFs;
//! use weir_vfs::{Access, Caller, IoFlags, SetAttr};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let cache = Cache::new(Config { budget_bytes: 64 << 20, ..Config::default() })?;
//! let fs = cache.mount(MemoryFs::new());
//! # pollster::block_on(async {
//! let made = fs.create(&Caller::Own, fs.root(), b"notes", &SetAttr::default(), true).await?;
//! let file = fs.open(&Caller::Own, made.attr.id, Access::READ | Access::WRITE).await?;
//!
//! file.write_at_async(b"at the end of a gibibyte of nothing", 1 << 30, IoFlags::empty()).await?;
//! let mut buf = [0; 10];
//! file.read_at_async(&mut buf, 1 << 30, IoFlags::empty()).await?;
//! assert_eq!(&buf, b"at the end");
//!
//! // Borrow instead of copying; the hole is reported as such, to its end.
//! let found = file.read_segments_async(4096, 4096, IoFlags::UNCACHED).await?;
//! assert!(matches!(found.segments[0], Segment::Hole { start: 4096, end } if end == 1 << 30));
//! # Ok::<(), weir_vfs::Error>(())
//! # })?;
//! # Ok(())
//! # }
//! ```
//!
//! An uncached stream leaves the cache as it was, and the counters prove it:
//!
//! ```
//! use weir_pagecache::{Cache, Config};
//! use weir_stores::memory::MemoryFs;
//! use weir_vfs::{Access, Advice, Caller, IoFlags, SetAttr};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let cache = Cache::new(Config { budget_bytes: 64 << 20, ..Config::default() })?;
//! let fs = cache.mount(MemoryFs::new());
//! let file = pollster::block_on(async {
//!     let made = fs.create(&Caller::Own, fs.root(), b"log", &SetAttr::default(), true).await?;
//!     fs.open(&Caller::Own, made.attr.id, Access::READ | Access::WRITE).await
//! })?;
//!
//! // Writeback begins at once; when it is done, the pages are gone.
//! file.write_at(&[7; 1 << 20], 0, IoFlags::UNCACHED)?;
//! file.sync(true)?;
//! assert!(file.resident().is_empty());
//!
//! // A stream is read ahead for, and takes its pages with it.
//! let mut buf = [0; 64 << 10];
//! for at in (0..1 << 20).step_by(buf.len()) {
//!     assert_eq!(file.read_at(&mut buf, at as u64, IoFlags::UNCACHED)?, buf.len());
//! }
//! let stats = file.stats();
//! assert!(stats.readahead_pages > 0 && stats.lost_pages == 0);
//! assert_eq!(stats.pruned_pages, stats.uncached_pages);
//!
//! // What is needed soon can be asked for; a cached read then takes no lock and waits for nothing.
//! file.advise(0, 256 << 10, Advice::WillNeed)?;
//! while file.read_resident(&mut buf, 0) != Some(buf.len()) {
//!     std::thread::yield_now();
//! }
//! # Ok(())
//! # }
//! ```
//!
//! The invariants I1 to I11 are stated at the top of the files that keep them, and listed with
//! their tests in `docs/SEMANTICS.md`; locks and epochs in `docs/LOCKING.md`.
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
pub use fs::{CachedFs, WeakFs};
pub use stats::Stats;

#[cfg(not(shuttle))]
use pollster::block_on;
#[cfg(shuttle)]
use shuttle::future::block_on;
