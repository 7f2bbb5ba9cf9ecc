//! What is exported, to whom, and as whom its clients act.
//!
//! - [`network`]: networks of clients. `table`: all exports, as they are for one request.
//! - `options`: an export, and who may use it how. `served`: one that is being served.
//! - `directory_change`: the locks under which directories are changed.
//! - `pseudo`: the directories above them. `ids`: the numbers that filehandles carry.
//! - `rights`: who may read and write which file, remembered for a moment.
//! - `streams`: which reads and writes pass without staying in the cache.

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
pub(crate) use served::{Admitted, Served};
pub use table::{Exports, ExportsError, HandleError, PathError, Table, check_path, clash};
