//! A directory of the machine as a store.
//!
//! Metadata calls run on the calling thread (`calls`); data moves by io_uring or a pool of threads. The store
//! reaches nothing outside the directory (`tree`). A log preserves identities over restarts
//! (`tree::nodes`). Works as any user; root assumes its callers' identities, other users act as
//! themselves.

mod attr;
mod calls;
mod changes;
mod credentials;
mod data;
mod fs;
mod options;
mod probe;
mod rename;
mod sys;
mod tree;

pub use data::engine::IoEngine;
pub use data::stream;
pub use fs::LocalFs;
pub use options::{InPlace, LocalOptions};
pub use rename::rename_no_replace;
