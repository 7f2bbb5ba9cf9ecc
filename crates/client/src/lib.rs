//! An NFS client in user space: files of an NFS server for Rust programs, without a mount, over
//! NFSv4.2, 4.1, 4.0 or 3, the newest that both sides support.
//!
//! ```text
//!   Export, File                            weir_pagecache
//!   std::fs's names, tokio's streams        a cache of pages
//!              |                                   |
//!              +-----------------+-----------------+
//!                                v
//!          NfsFs: a weir_vfs::FileSystem, operations on handles
//!                                |
//!          one connection or several; sessions, opens, locks, delegations
//! ```
//!
//! # Files by path
//!
//! An [`Export`] has the operations of `std::fs` as futures, [`File`]s with reads and writes at offsets,
//! and streams of directory entries; [`blocking`] has the same for programs without an executor.
//!
//! ```
//! use futures_util::TryStreamExt;
//! use tokio::io::{AsyncReadExt, AsyncSeekExt, AsyncWriteExt};
//! use weir_client::{Error, Export, PathError};
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let state = tempfile::tempdir()?;
//! # let served = weir_pagecache::Cache::new(weir_pagecache::Config { budget_bytes: 16 << 20, ..Default::default() })?
//! #     .mount(weir_stores::memory::MemoryFs::new());
//! # let options = weir_server::export::ExportOptions {
//! #     squash: weir_server::export::Squash::Nobody,
//! #     ..Default::default()
//! # };
//! # let export =
//! #     weir_server::export::Export { path: "/".into(), source: "".into(), fs: served, options };
//! # let server =
//! #     weir_server::Server::new(weir_server::ServerConfig::new(vec![export], state.path()))?;
//! # let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
//! # let address = listener.local_addr()?;
//! # let server = tokio::spawn(async move { server.serve(listener).await });
//! // As for mount.nfs: nfs://filer/images?vers=4.2,nconnect=4
//! # let url = format!("nfs://{address}/");
//! let export = Export::connect(&url).await?;
//! export.create_dir_all("2026/11").await?;
//! export.write("2026/11/notes", "one\ntwo\n").await?;
//!
//! // A file has reads and writes at offsets, of which any number may be in flight ...
//! let mut file = export.create("2026/11/disk").await?;
//! file.write_at(1 << 30, "at the end of a gibibyte of nothing").await?;
//! assert_eq!(file.read_at(1 << 30, 10).await?, "at the end");
//! assert_eq!(file.next_data(0).await?.unwrap().start, 1 << 30);
//! // ... and is a stream, too.
//! file.write_all(b"a header").await?;
//! file.sync_all().await?;
//! file.rewind().await?;
//! let mut header = [0; 8];
//! file.read_exact(&mut header).await?;
//!
//! let mut entries = export.walk("/").await?;
//! while let Some(entry) = entries.try_next().await? {
//!     println!("{:>12} {}", entry.metadata().len(), entry.path().display());
//! }
//!
//! // An error names what was asked, and the server, its operation and its status.
//! let error = export.read("2026/12/notes").await.unwrap_err();
//! assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
//! let failure = PathError::of(&error).unwrap();
//! assert!(matches!(failure.cause(), Error::Status { status, .. } if status == "NFS4ERR_NOENT"));
//!
//! // Returns the state that the server holds for this mount.
//! export.close().await;
//! # server.abort();
//! # Ok(())
//! # }
//! ```
//!
//! What holds of every operation:
//!
//! * **A change is durable when its future is done**: names and attributes as servers promise it, data
//!   because it was written stably or committed. Only what is written to a file's stream is collected
//!   first, until `flush` or `sync_all`.
//! * **A future may be dropped**, by [`Export::with_time_limit`] or `select!`: an open that succeeds later
//!   is closed, and slots of the session are free again as soon as the server has answered. What such an
//!   operation leaves behind is bounded.
//! * **Paths stay in the export**: symbolic links are followed as by Linux on a mount, except those that
//!   lead out of it (EXDEV).
//! * **Nothing is cached** above the wire, unless `actimeo=` asks for attributes to be; a delegation counts
//!   as the server's word. For a cache of data use `weir_pagecache` (below).
//!
//! `examples/usage.rs` and `examples/blocking.rs` of this crate are complete programs.
//!
//! # Operations on handles
//!
//! [`NfsFs`] is a mounted export as a [`weir_vfs::FileSystem`], as stores and the page cache use it.
//!
//! ```
//! use weir_client::{MountOptions, NfsFs};
//! use weir_vfs::{Caller, FileSystem, ReaddirRequest, SetAttr};
//! # use weir_pagecache::{Cache, Config};
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let state = tempfile::tempdir()?;
//! # let served = Cache::new(Config { budget_bytes: 16 << 20, ..Config::default() })?
//! #     .mount(weir_stores::memory::MemoryFs::new());
//! # let options = weir_server::export::ExportOptions {
//! #     squash: weir_server::export::Squash::Nobody,
//! #     ..Default::default()
//! # };
//! # let export =
//! #     weir_server::export::Export { path: "/".into(), source: "".into(), fs: served, options };
//! # let server =
//! #     weir_server::Server::new(weir_server::ServerConfig::new(vec![export], state.path()))?;
//! # let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
//! # let address = listener.local_addr()?;
//! # let server = tokio::spawn(async move { server.serve(listener).await });
//! // As for mount.nfs: nfs://filer/images?vers=4.2,nconnect=4
//! # let url = format!("nfs://{address}/");
//! let nfs = NfsFs::mount(&url.parse()?, &MountOptions::default()).await?;
//! println!("over NFSv{}", nfs.version());
//!
//! nfs.mkdir(&Caller::Own, nfs.root().entry(b"images").with(&SetAttr::default())).await?;
//! let request =
//!     ReaddirRequest { dir: nfs.root(), cookie: 0, max_entries: 100, with_attr: true };
//! for entry in nfs.readdir(&Caller::Own, request).await?.entries {
//!     let size = entry.attr.map_or(0, |attr| attr.size);
//!     println!("{size:>12} {}", String::from_utf8_lossy(&entry.name));
//! }
//!
//! // An error names the server, the operation and the status.
//! let missing = format!("{url}images/missing").parse()?;
//! let error = NfsFs::mount(&missing, &MountOptions::default()).await.err().unwrap();
//! assert!(error.to_string().ends_with("LOOKUP: NFS4ERR_NOENT"));
//!
//! // Returns the state that the server holds for this mount.
//! nfs.unmount().await;
//! # server.abort();
//! # Ok(())
//! # }
//! ```
//!
//! The futures only wait for a reply: requests run on threads of the mount's own, so any executor
//! will do, or none ([`NfsFs::mount_on`] uses the program's tokio runtime instead). Programs without
//! one have [`NfsFs::mount_blocking`] and [`block_on`]. Through
//! `weir_pagecache`, files are read and written by bytes, with read-ahead and writeback, by
//! blocking calls or by futures, and holes stay holes:
//!
//! ```
//! use weir_client::{MountOptions, NfsFs, block_on};
//! use weir_pagecache::{Cache, Config, Segment};
//! use weir_vfs::{Access, Caller, CreateMode, FileSystem, IoFlags, SetAttr};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let state = tempfile::tempdir()?;
//! # let served = Cache::new(Config { budget_bytes: 16 << 20, ..Config::default() })?
//! #     .mount(weir_stores::memory::MemoryFs::new());
//! # let options = weir_server::export::ExportOptions {
//! #     squash: weir_server::export::Squash::Nobody,
//! #     ..Default::default()
//! # };
//! # let export =
//! #     weir_server::export::Export { path: "/".into(), source: "".into(), fs: served, options };
//! # let server =
//! #     weir_server::Server::new(weir_server::ServerConfig::new(vec![export], state.path()))?;
//! # let runtime = tokio::runtime::Runtime::new()?;
//! # let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0"))?;
//! # let address = listener.local_addr()?;
//! # let server = runtime.spawn(async move { server.serve(listener).await });
//! # let url = format!("nfs://{address}/");
//! let nfs = NfsFs::mount_blocking(&url.parse()?, &MountOptions::default())?;
//! let cache = Cache::new(Config { budget_bytes: 64 << 20, ..Config::default() })?;
//! let fs = cache.mount(nfs.clone());
//! let file = block_on(async {
//!     let (name, set) = (fs.root().entry(b"disk"), SetAttr::default());
//!     let made = fs.create(&Caller::Own, name.with(&set), CreateMode::MustBeNew).await?;
//!     fs.open(&Caller::Own, made.attr.id, Access::READ | Access::WRITE).await
//! })?;
//!
//! file.write_at(b"at the end of a gibibyte of nothing", 1 << 30, IoFlags::empty())?;
//! // Durable at the server from here on.
//! file.sync(true)?;
//! let mut buffer = [0; 10];
//! file.read_at(&mut buffer, 1 << 30, IoFlags::empty())?;
//! assert_eq!(&buffer, b"at the end");
//!
//! // Over 4.2 a hole is one segment, and a few bytes on the wire.
//! let found = block_on(file.read_segments_async(0, 4096, IoFlags::UNCACHED))?;
//! assert!(matches!(found.segments[0], Segment::Hole { start: 0, .. }));
//! assert!(nfs.wire_stats().received_bytes < 1 << 20);
//!
//! file.write_at(b"and this", 0, IoFlags::empty())?;
//! // Closing makes it durable, too. After a drop, the cache would write it back at some time before
//! // the mount ends.
//! block_on(file.close())?;
//! // Writes back all dirty data, reports failures, and unmounts.
//! block_on(fs.unmount())?;
//! # server.abort();
//! # Ok(())
//! # }
//! ```
//!
//! Layers, from the top:
//!
//! ```text
//! blocking         - the next layer, for programs without an executor
//! export           - files by path
//! raw              - single calls, for conformance tests
//! fs               - the traits of `weir_vfs`
//! io locks         - operations on open files: one as many calls
//! files            - what a mount knows of its files: attributes, opens, own changes
//! mount            - from a URL to a conversation; chooses the version
//! v3 v4            - the versions, each a `protocol::Protocol`
//! exclusive_rename - renames that must not replace a file
//! retried          - non-idempotent requests whose reply was lost
//! protocol         - the operations that the versions have in common
//! transport        - TCP connections that are made anew when they break; records, calls, replies
//! options          - the URL and the mount options
//! detail           - the client's error beside the errno
//! backoff error    - pauses between attempts; what can go wrong
//! ```
//!
//! docs/SEMANTICS.md lists its promises, each with the test that proves it.

#![forbid(unsafe_code)]

mod backoff;
pub mod blocking;
mod detail;
mod error;
mod exclusive_rename;
mod export;
mod files;
mod fs;
mod io;
mod locks;
mod mount;
mod options;
mod protocol;
pub mod raw;
mod retried;
mod transport;
mod v3;
mod v4;

pub use crate::options::url::NfsUrl;
pub use crate::options::{IGNORED as IGNORED_OPTIONS, MountOptions, Version};
pub use error::{Error, Refusal, Result, Violation};
pub use export::{DirEntry, Export, File, Metadata, OpenOptions, PathError, ReadDir, Walk};
pub use fs::file::commit;
pub use fs::{Nearest, NfsFs, WireStats};
pub use mount::{Exported, exports};

pub use weir_vfs::{
    Attr, Extent, FileKind, FsStat, LockRange, RenameFlags, SegmentKind, SetAttr, SetTime,
};

/// Waits for a future on this thread, for programs without an executor. Must not be called on one.
pub fn block_on<F: Future>(future: F) -> F::Output {
    pollster::block_on(future)
}
