//! The NFS server: versions 3, 4.0, 4.1 and 4.2 over the page cache, on one TCP port.
//!
//! - [`server`]: configuration, start, stop.
//! - `transport`: connections, records, bounds. [`program`]: what plugs into them.
//! - [`export`], [`handle`]: what is exported, as whom, and how files are named to clients.
//! - [`state`]: clients, sessions, opens, locks, delegations, leases, grace; no I/O in it.
//! - `storage`: what survives a restart, and names and attributes on disk before the reply.
//! - `delegation`, `callback`: delegations are recalled; how clients are called.
//! - `locks`: NFSv3's lock manager and status monitor; CB_NOTIFY_LOCK.
//! - `operation`: what the operations of all versions share.
//! - `v3`: NFSv3 and MOUNT. `v4`: compounds, and the operations in small families.

#![forbid(unsafe_code)]

mod admission;
mod callback;
mod delegation;
pub mod export;
pub mod handle;
mod locks;
pub mod metrics;
mod operation;
pub mod program;
pub mod registration;
pub mod server;
pub mod state;
mod storage;
mod transport;
pub mod v3;
mod v4;
mod versions;

pub use crate::delegation::recall::Recalls;
pub use crate::storage::durability::Durability;
pub use crate::storage::write_verifier::WriteVerifier;
pub use admission::AdmissionOptions;
pub use export::{Export, ExportOptions, Squash};
pub use program::{Call, Program, ProgramId, Programs, Refusal};
pub use server::{Server, ServerConfig, ServerError};
pub use transport::{Limits, Peer, Reserved};
pub use versions::Versions;
