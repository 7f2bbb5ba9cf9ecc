//! Calls over TCP: one [`Connection`] per socket, which reconnects when it breaks and resends every
//! call without a reply under the same xid.

mod connect;
mod connection;
mod payload;
mod peer;
mod read_in_flight;
mod record;

pub(crate) use connection::{CallbackService, Connection, Reply, Request};
pub(crate) use payload::{Expect, ReadTarget, ResultForm};
pub(crate) use peer::{Counters, Locate, Patience, Peer};
pub(crate) use read_in_flight::ReadInFlight;

#[cfg(test)]
mod tests;
