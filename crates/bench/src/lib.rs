//! Benchmarks: how fast the page cache and NFS are here, beside others, in the same run.
//!
//! Each benchmark is a module with `Options`, a function `run`, and a `Report` that serializes and
//! prints as tables: [`cached`] and [`uncached`] measure the page cache beside the kernel's; [`serve`]
//! puts NFS servers side by side; [`readplus`] measures what READ_PLUS is worth. Targets and reference
//! figures are in `data/`.
//!
//! A run measures processor time and signals of the whole process, so a process makes one run at a
//! time. [`interrupt::stop`] ends it early: what it made (servers, mounts, namespaces) is taken down on
//! the way out. An [`Observer`] hears how it goes.
//!
//! Servers, clients and the kernel's streams run in processes of their own, which are this program again,
//! called as `PROGRAM bench helper NAME SETTINGS`: a program that uses [`serve`], [`readplus`] or
//! [`uncached`] passes these two arguments to [`helper`].

#![deny(unsafe_code)]
#![allow(clippy::single_range_in_vec_init, reason = "a list of byte ranges may have one")]

mod cache;
pub mod cached;
mod host;
pub mod interrupt;
mod measure;
mod observer;
mod peers;
mod process;
pub mod readplus;
mod report;
mod scratch;
pub mod serve;
mod svg;
mod targets;
pub mod uncached;
mod versions;

pub use observer::Observer;
pub use peers::Wanted;
pub use report::Target;
pub use versions::version;

use weir_tools::failure::{Failure, Result};

/// Does what a process that a benchmark started is for; the two arguments are those that it was
/// started with.
///
/// # Errors
/// There is no helper of this name, or its work failed.
pub fn helper(name: &str, settings: &str) -> Result<()> {
    match name {
        host::NAME => host::run(&process::settings(settings)?),
        readplus::reader::NAME => readplus::reader::run(&process::settings(settings)?),
        uncached::kernel::NAME => uncached::kernel::run(&process::settings(settings)?),
        _ => Err(Failure::new(format!("help as {name}"), "there is no such helper")),
    }
}
