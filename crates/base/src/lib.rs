//! Shared by all Weir crates: page arithmetic, a clock that tests can advance, a hash with stable
//! values, counters, the lease of a client, and the synchronisation shim that lets loom and shuttle
//! replace the primitives.

#![forbid(unsafe_code)]

pub mod clock;
pub mod counters;
mod hash;
mod lease;
pub mod page;
pub mod sync;

pub use clock::{Clock, ManualClock, RunningClock, SystemClock};
pub use hash::{number_elsewhere, stable_hash};
pub use lease::Lease;
pub use page::{PAGE_SHIFT, PAGE_SIZE, PageIndex, pages_spanning};
