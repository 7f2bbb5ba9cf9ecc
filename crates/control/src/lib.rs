//! The control socket of a running `weir` process: `weir status`, `top`, `warm` and `evict` ask it.
//!
//! Each process listens at `PID.sock` in a directory that only its user can enter. A connection carries
//! one request and its replies, each a line of JSON.
//!
//! 1. Only the process's own user and root get answers: the directory's mode says so, and the
//!    credentials of the peer (unix(7), SO_PEERCRED) are checked as well.
//! 2. A request has at most 64 KiB, and at most 16 connections are served at a time.
//! 3. No request changes a file's contents. Warming and evicting change only what is in memory;
//!    evicting writes dirty pages to the store first.
//!
//! Layers, from the top:
//!
//! ```text
//! ask - finds the processes and asks them
//! listen - answers, in the process
//! tree - shows, warms and evicts files
//! process - what the process has to tell
//! protocol directory - requests and replies; where the sockets are
//! ```

#![forbid(unsafe_code)]

mod ask;
mod directory;
mod listen;
mod process;
mod protocol;
mod tree;

pub use ask::{Asked, Replies, ask, ask_within, has_ended, processes};
pub use directory::{DirectoryError, socket_dir};
pub use listen::Listener;
pub use process::Process;
pub use protocol::{
    Action, CacheStatus, Connection, Export, FileStatus, Limit, Operation, Reply, Request, Status,
};
