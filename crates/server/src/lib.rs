//! Being built.
#![forbid(unsafe_code)]

pub mod program;
mod state;
mod transport;

pub use program::{Call, Program, ProgramId, Programs, Refusal};
pub use transport::{Limits, Peer, Reserved};
