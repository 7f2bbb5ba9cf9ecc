//! Calls over TCP: one [`Connection`] per socket, made anew when it breaks, with every call that
//! had no answer sent again under the same xid.

mod answer;
mod connect;
mod connection;
mod payload;
mod record;

pub(crate) use answer::answer;
pub(crate) use connection::{
    CallbackService, Connection, Counters, Locate, Patience, Peer, Reply, Request,
};
pub(crate) use payload::{Expect, ReadTarget, ResultForm};

#[cfg(test)]
mod tests;
