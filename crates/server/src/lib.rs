//! The NFS server: versions 3, 4.0, 4.1 and 4.2 over the page cache, on one TCP port.
//!
//! - [`server`]: configuration, start, stop.
//! - `transport`: connections, records, bounds. [`program`]: what plugs into them.
//! - [`export`], [`handle`]: what is exported, as whom, and how files are named to clients.
//! - [`state`]: clients, sessions, opens, locks, delegations, leases, grace; no I/O in it.
//! - `durability`: names and attributes on disk before the reply. `verifier`: data that is not.
//! - `recall`, `callback`: delegations are asked back; how clients are called.
//! - `v3`: NFSv3 and MOUNT; `nlm`, `nsm`: their locks, and who restarted. `v4`: compounds, and the operations in small families.

#![forbid(unsafe_code)]

mod admission;
mod callback;
mod changes;
mod copies;
mod durability;
mod exclusive;
pub mod export;
mod gather;
pub mod handle;
pub mod metrics;
mod nlm;
mod notices;
mod nsm;
mod outcall;
mod privileges;
pub mod program;
mod recall;
mod records;
pub mod registration;
pub mod server;
pub mod state;
mod transport;
pub mod v3;
mod v4;
mod verifier;
mod versions;

pub use admission::AdmissionOptions;
pub use durability::Durability;
pub use export::{Export, ExportOptions, Squash};
pub use program::{Call, Program, ProgramId, Programs, Refusal};
pub use recall::Recalls;
pub use server::{Server, ServerConfig, ServerError};
pub use transport::{Limits, Peer, Reserved};
pub use verifier::WriteVerifier;
pub use versions::Versions;
