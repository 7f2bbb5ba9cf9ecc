//! The NFS server: versions 3, 4.0, 4.1 and 4.2 over the page cache, on one TCP port.
//!
//! Layers, from the top:
//!
//! ```text
//! server                         - configuration, start, stop
//! report registration transport  - counters as text; the port mapper; connections, records, bounds
//! v3 v4 locks                    - NFSv3 and MOUNT; NFSv4; NLM, NSM, CB_NOTIFY_LOCK
//! services                       - services shared by the programs of all versions
//! delegation                     - recalls delegations before conflicting accesses
//! callback operation storage     - callbacks; parts of operations; state that survives a restart
//! export                         - exports, their clients, identity mapping
//! program                        - the interface between transport and programs
//! peer                           - a connection, as programs see it
//! replies                        - memory of replies, from before they are built until they are sent
//! state admission metrics        - clients, opens, locks, leases, without I/O; admission; counters
//! handle versions name_service   - filehandles; the offered protocol versions; look-ups of users
//! ```

#![forbid(unsafe_code)]

mod admission;
mod callback;
mod delegation;
#[cfg(test)]
mod every_fault;
pub mod export;
pub mod handle;
#[cfg(test)]
mod kernel_rights;
mod locks;
mod metrics;
mod name_service;
mod operation;
mod peer;
pub mod program;
pub mod registration;
mod replies;
pub mod report;
pub mod server;
mod services;
mod state;
mod storage;
mod transport;
pub mod v3;
mod v4;
mod versions;

pub use crate::delegation::recall::Recalls;
pub use crate::storage::recovery::OpenRecords;
pub use crate::storage::write_verifier::WriteVerifier;
pub use admission::{AdmissionOptions, Identity, directory_descriptors};
pub use export::{Durability, Export, ExportOptions, Squash};
pub use locks::host_network::HostNetwork;
pub use peer::Peer;
pub use program::{Call, Program, ProgramId, Programs, Refusal};
pub use replies::ReplyMemory;
pub use server::{Server, ServerConfig, ServerError};
pub use state::Limits as StateLimits;
#[doc(hidden)]
pub use state::{LoadedFile, StateLoad};
pub use transport::{LocalConnection, TransportLimits};
pub use versions::Versions;
