//! RPC over sockets, for few and small messages: calls to port mappers, lock managers and status
//! monitors, and services that they call. NFS itself moves data, and has its own transports in the
//! server and the client.
//!
//! 1. A peer may be slow, broken or hostile. Each step has a deadline, and a record over the
//!    caller's limit is rejected at the fragment header that exceeds it.
//! 2. A record may have any number of fragments, including empty ones (RFC 5531 section 11).

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
