//! NFSv4.1 and 4.2 (RFC 8881, RFC 7862), and 4.0 (RFC 7530) as far as this client needs it.
//!
//! - [`client`]: what the requests of a mount share;
//! - [`ops`]: the operations of a file system, each as a compound; [`namespace`]: those that change
//!   names; [`io`]: those on open files; [`requests`]: parts of their compounds;
//! - [`state`]: opens, locks and delegations, and how they are reclaimed after a restart of the server;
//! - [`session`]: client id, session and slots; `session::compound` sends a compound until it is answered,
//!   and `session::resume` the rest of one that the server put off (DELAY) half-way;
//! - [`open_names`]: the names that minor version 0 opens files by;
//! - [`attr`]: attributes to and from the neutral ones.

pub(crate) mod attr;
pub(crate) mod client;
mod io;
mod namespace;
mod open_names;
mod ops;
mod raw;
mod requests;
mod session;
mod state;
