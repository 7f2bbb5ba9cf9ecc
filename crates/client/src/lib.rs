//! An NFS client in user space: a mounted export is a [`weir_vfs::FileSystem`], over NFSv4.2, 4.1,
//! 4.0 or 3, whichever is the newest that both sides know.
//!
//! ```no_run
//! use weir_client::{MountOptions, NfsFs};
//! use weir_vfs::{Caller, FileSystem};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let url = "nfs://filer/images?vers=4.2".parse()?;
//! let nfs = NfsFs::mount(&url, &MountOptions::default()).await?;
//! for entry in nfs.readdir(&Caller::Own, nfs.root(), 0, 100, true).await?.entries {
//!     let size = entry.attr.map_or(0, |attr| attr.size);
//!     println!("{size:>12} {}", String::from_utf8_lossy(&entry.name));
//! }
//! nfs.unmount().await;
//! # Ok(())
//! # }
//! ```
//!
//! Programs without an executor use [`NfsFs::mount_blocking`], and `pollster` or the like for the
//! rest: the futures here only wait for an answer. Over a `weir_pagecache` the files are cached,
//! and holes stay holes.
//!
//! How it is made, from the wire up:
//!
//! - `transport`: TCP connections that are made anew when they break, records, calls and replies;
//!   data of READ and READ_PLUS goes from the socket to the buffer that asked for it;
//! - `v4`, `v3`: the versions of the protocol, each a `protocol::Protocol`; `mount` chooses;
//! - `read`, `write`: one operation as many calls; writes are kept until they are committed;
//! - `fs`, `file`: the traits of [`weir_vfs`].
//!
//! What it promises is in docs/SEMANTICS.md, each promise with the test that proves it.

#![forbid(unsafe_code)]

mod attributes;
pub mod check;
mod error;
mod file;
mod fs;
mod handles;
mod locks;
mod mount;
mod options;
mod protocol;
mod read;
mod transport;
mod unlinked;
mod url;
mod v3;
mod v4;
mod verifiers;
mod write;

pub use error::{Error, Refusal, Result, Violation};
pub use fs::{NfsFs, WireStats};
pub use options::{MountOptions, Version};
pub use url::NfsUrl;
