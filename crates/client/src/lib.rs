//! The NFS client: an export as a [`weir_vfs::FileSystem`], over NFSv4.2, 4.1, 4.0 or 3.

#![forbid(unsafe_code)]

mod error;
mod file;
mod fs;
mod handles;
mod mount;
mod options;
mod protocol;
mod read;
mod transport;
mod unlinked;
mod url;
mod v3;
mod v4;
mod verifiers;
mod write;

pub use error::{Error, Refusal, Result, Violation};
pub use fs::{NfsFs, WireStats};
pub use options::{MountOptions, Version};
pub use url::NfsUrl;
