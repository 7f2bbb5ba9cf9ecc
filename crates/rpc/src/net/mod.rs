//! RPC over sockets, for messages that are few and small: calls to port mappers, lock managers and
//! status monitors, and services that are called by them. NFS itself moves data, and has transports
//! of its own in the server and the client.
//!
//! 1. A peer may be slow, broken or hostile. Each step ends at a deadline, and a record over the
//!    caller's limit is refused at the fragment header that exceeds it.
//! 2. A record has any number of fragments, some of them perhaps empty (RFC 5531 section 11).

mod client;
mod connect;
mod error;
mod port_mapper;
mod record_stream;
mod service;

pub use client::{ClientLimits, RpcClient, answers};
pub use connect::{Source, connect};
pub use error::Error;
pub use port_mapper::PortMapper;
pub use service::{ServiceLimits, serve};
