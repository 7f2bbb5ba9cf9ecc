//! Being built.
#![forbid(unsafe_code)]

mod changes;
pub mod export;
mod gather;
pub mod handle;
pub mod program;
pub mod state;
mod transport;
pub mod v3;

pub use program::{Call, Program, ProgramId, Programs, Refusal};
pub use transport::{Limits, Peer, Reserved};
