//! A mounted file system: carries out the kernel's requests through the page cache.
//!
//! - `names`, `directories`, `attributes`, `files`, `locks`: the operations.
//! - `nodes`: the kernel's numbers for files. `tmpfiles`: files without a name. `lock_owners`: whose locks a node
//!   has. `callers`: in whose name operations run. `kernel_pages`: what the kernel keeps.
//!
//! 1. Every reply tells the state after the operation; what a reply hands over (a use of a node, an
//!    open file) is taken back if the kernel does not want the reply any more.
//! 2. `close-to-open`: OPEN compares the file's change attribute with the one that the kernel saw, and
//!    makes the kernel drop its attributes and pages if it differs; closing a file writes its data to
//!    the store.

mod attributes;
mod callers;
mod directories;
mod dispatch;
mod file_system;
mod files;
mod handles;
mod kernel_pages;
mod lock_owners;
mod locks;
mod names;
mod nodes;
mod stand_ins;
mod tmpfiles;

pub(crate) use file_system::Mounted;
pub use file_system::{Keeper, Observer, Settings};
