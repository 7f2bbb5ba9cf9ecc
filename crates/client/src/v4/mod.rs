//! NFSv4.1 and 4.2 (RFC 8881, RFC 7862), and the parts of 4.0 (RFC 7530) that this client needs.
//!
//! - [`client`]: state shared by the requests of a mount;
//! - [`ops`]: the operations of a file system, each as a compound; [`namespace`]: those that change
//!   names; [`io`]: those on open files; [`copy`]: copies within the server; [`requests`]: parts of
//!   their compounds;
//! - [`state`]: opens, locks and delegations, and their reclaim after a server restart;
//! - [`session`]: client id, session and slots; `session::compound` sends a compound until it is
//!   answered, `session::resume` the rest of one that the server delayed (DELAY) half-way;
//! - [`root`]: the way from the server's root to a mount's;
//! - [`whole`]: small files, written and read in one compound;
//! - [`open_names`]: the names by which minor version 0 opens files;
//! - [`attr`]: attributes to and from the neutral ones; [`acl`]: whether a list is more than a mode.

mod acl;
pub(crate) mod attr;
pub(crate) mod client;
mod copy;
mod io;
mod namespace;
mod open_names;
mod ops;
mod raw;
mod requests;
mod root;
mod session;
mod state;
mod whole;
