//! Benchmarks: the speed of the page cache and of NFS on this machine, compared with others in the
//! same run.
//!
//! Each benchmark is a module with `Options`, a function `run`, and a `Report` that serializes and
//! prints as tables: [`cached`] and [`uncached`] compare the page cache with the kernel's;
//! [`serve`] compares NFS servers; [`mount`] compares mounts; [`readplus`] measures the benefit of
//! READ_PLUS; [`tree`] copies trees of small files; [`run`] runs commands beside a hot neighbour.
//! Targets and reference figures are in `data/`.
//!
//! A run measures processor time and signals of the whole process, so a process makes one run at a
//! time. [`interrupt::stop`] ends it early: it then removes what it created (servers, mounts,
//! namespaces). An [`Observer`] receives its progress.
//!
//! Servers, clients and the kernel's streams run in processes of their own: this program again,
//! called as `PROGRAM bench helper NAME SETTINGS`. A program that uses [`serve`], [`readplus`],
//! [`run`], [`tree`] or [`uncached`] passes these two arguments to [`helper`].

#![deny(unsafe_code)]
#![allow(clippy::single_range_in_vec_init, reason = "a list of byte ranges may have one")]

mod cache;
pub mod cached;
mod host;
pub mod interrupt;
mod kernel_mount;
mod limit;
mod measure;
pub mod mount;
mod observer;
mod peers;
mod process;
pub mod readplus;
mod report;
pub mod run;
mod scratch;
pub mod serve;
mod svg;
mod targets;
pub mod tree;
pub mod uncached;
mod versions;

pub use observer::Observer;
pub use peers::Wanted;
pub use report::Target;
pub use versions::version;

use weir_tools::failure::{Failure, Result};

/// Runs a helper process of a benchmark; the two arguments are those that it was started with.
///
/// # Errors
/// There is no helper with this name, or its work failed.
pub fn helper(name: &str, settings: &str) -> Result<()> {
    match name {
        host::NAME => host::run(&process::settings(settings)?),
        readplus::reader::NAME => readplus::reader::run(&process::settings(settings)?),
        run::NAME => run::help(&process::settings(settings)?),
        tree::client::NAME => tree::client::run(&process::settings(settings)?),
        uncached::kernel::NAME => uncached::kernel::run(&process::settings(settings)?),
        _ => Err(Failure::new(format!("help as {name}"), "there is no such helper")),
    }
}
