//! Exports: what is exported, to which clients, and with which identities.
//!
//! - [`network`]: networks of clients. `table`: all exports, as one request sees them.
//! - `options`: the configuration of an export. `served`: an export being served.
//! - `directory_change`: the locks that serialize changes of directories.
//! - `pseudo`: the pseudo file system above the exports. `ids`: the export numbers in filehandles.
//! - `rights`: which callers may read and write which files, cached briefly.
//! - `streams`: detects long streams, whose data does not stay in the cache.

pub(crate) mod directory_change;
mod ids;
pub mod network;
mod options;
mod pseudo;
mod rights;
mod served;
mod streams;
mod table;

pub use network::{Network, NetworkError};
pub use options::{
    CachePolicy, ClientAccess, ClientRule, Durability, Export, ExportOptions, Squash,
};
pub(crate) use rights::RightsCache;
pub(crate) use served::{Admitted, Served};
pub use table::{ExportTable, Exports, ExportsError, HandleError, PathError, check_path, clash};
