//! Copies and maps of big and sparse files, local or over NFS, for Rust programs.
//!
//! A [`Location`](location::Location) is a local path or an `nfs://` URL. [`Mounts`](mounts::Mounts)
//! opens the stores of locations, all under one page cache, and finds
//! [`Place`](mounts::Place)s in them. [`copy`] copies places to places; [`checksum`] writes and checks
//! manifests; [`remove`] removes trees; [`map`] shows which parts of a file are data, holes, or
//! cached. Nothing here prints: a copy reports to a [`Progress`](copy::Progress), and a map is a value
//! that can be drawn as text or SVG.
//!
//! ```
//! use std::sync::Arc;
//! use weir_client::MountOptions;
//! use weir_tools::copy::{Copier, Options};
//! use weir_tools::location::Location;
//! use weir_tools::map::Map;
//! use weir_tools::mounts::{Links, Mounts};
//! use weir_vfs::{Access, Caller};
//!
//! # let scratch = tempfile::tempdir()?;
//! # let (from, to) = (scratch.path().join("disk.img"), scratch.path().join("copy.img"));
//! # std::fs::File::create(&from)?.set_len(1 << 30)?;
//! # tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(async {
//! // Either path may be a URL as well: nfs://filer/images/disk.img?vers=4.2
//! let (from, to) = (Location::parse(from.into())?, Location::parse(to.into())?);
//! let mut mounts = Mounts::new(None, MountOptions::default())?;
//! let source = mounts.place(&from, Links::Follow).await?;
//! let target = mounts.place(&to, Links::Follow).await?;
//!
//! let copier = Arc::new(Copier::new(Options::default(), mounts.budget_bytes(), ()));
//! copier.copy(vec![(source, target)]).await;
//! assert!(!copier.failed());
//!
//! let copied = mounts.place(&to, Links::Follow).await?;
//! let attr = copied.existing("map")?;
//! let file = copied.fs.open(&Caller::Own, attr.id, Access::READ).await?;
//! let map = Map::of(to.to_string(), &file, attr.allocated, 80).await?;
//! assert_eq!((map.data_bytes, map.hole_bytes), (0, 1 << 30));
//! mounts.flush_and_unmount().await?;
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```

#![deny(unsafe_code)]
#![allow(clippy::single_range_in_vec_init, reason = "a list of byte ranges may have one")]

pub mod beyond;
mod chain;
pub mod checksum;
pub mod copy;
pub mod failure;
pub mod glob;
pub mod kernel_cache;
pub mod known;
mod listing;
pub mod local_files;
pub mod location;
pub mod map;
pub mod memory;
pub mod mode;
pub mod mounts;
pub mod opens;
pub mod origin;
mod pipeline;
pub mod remove;
pub mod rename;
pub mod size;
pub mod sync;
pub mod text;
pub mod walk;
