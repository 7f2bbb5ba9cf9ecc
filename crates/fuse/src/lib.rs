//! A file system behind the page cache, mounted for every program of the machine (FUSE).
//!
//! ```text
//!   programs --system calls--> kernel --requests--> Session --> Mounted --> weir_pagecache --> store
//!                                 ^                    |
//!                                 `---- replies -------'   data from the page frames, without a copy here
//! ```
//!
//! [`Mountpoint`] attaches a connection to a directory, [`Session`] serves a
//! [`CachedFs`](weir_pagecache::CachedFs) on it.
//!
//! The protocol is spoken here rather than by a library, because none of those for Rust offers what
//! this crate promises: FUSE_INTERRUPT, without which a process that waits for a dead server
//! cannot be killed; replies from several pieces of memory, so that data goes from a page frame to the
//! program in one copy; and requests in progress without a thread each.
//!
//! The source of the protocol is `linux/fuse.h` and `Documentation/filesystems/fuse` of Linux.

#![deny(unsafe_code)]

pub mod guard;
mod mounted;
mod mountpoint;
pub mod namespace;
mod session;
mod wire;

pub use mounted::{Keeper, Observer, Settings};
pub use mountpoint::{MountError, MountOptions, Mountpoint, passed_connection};
pub use session::counters::{Counters, RequestCounts};
pub use session::{HiddenNames, Moved, Session};
