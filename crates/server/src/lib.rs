//! Being built.
#![forbid(unsafe_code)]

pub mod export;
pub mod handle;
pub mod program;
pub mod state;
mod transport;

pub use program::{Call, Program, ProgramId, Programs, Refusal};
pub use transport::{Limits, Peer, Reserved};
