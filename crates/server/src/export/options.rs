//! The configuration of an export.

use super::network::Network;
use std::path::PathBuf;
use weir_pagecache::CachedFs;

/// Which identities the server maps to the anonymous user.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Squash {
    /// User and group 0 become anonymous.
    #[default]
    Root,
    /// All users become anonymous.
    All,
    /// No identity is changed.
    Nobody,
}

/// The access of clients in a network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ClientAccess {
    /// Nothing.
    None,
    /// Read.
    ReadOnly,
    /// Read and write, unless the export is read-only.
    #[default]
    ReadWrite,
}

/// The access and identity mapping of clients in a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ClientRule {
    /// The clients.
    pub network: Network,
    /// Their access.
    pub access: ClientAccess,
    /// Their identity mapping; `None`: that of the export.
    pub squash: Option<Squash>,
}

/// Whether data stays in the cache after it was read or written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CachePolicy {
    /// It stays, as far as the budget allows.
    #[default]
    Cached,
    /// It is dropped after use.
    Uncached,
    /// It stays, except for streams longer than this.
    Auto {
        /// Length of the longest stream that stays, in bytes.
        stream_bytes: u64,
    },
}

/// What a reply to a change of names or attributes promises.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Durability {
    /// The change survives a power failure.
    #[default]
    Sync,
    /// The change was made, and survives the end of the server's process. A power failure may undo
    /// changes of the last seconds.
    Relaxed,
}

/// How clients may use an export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportOptions {
    /// Clients may change nothing.
    pub read_only: bool,
    /// The identity mapping.
    pub squash: Squash,
    /// The anonymous user.
    pub anon_uid: u32,
    /// The anonymous group.
    pub anon_gid: u32,
    /// Rules by network. Of the networks that contain a client, the narrowest decides; a client in
    /// none of them is refused. Without rules, all clients are admitted.
    pub clients: Vec<ClientRule>,
    /// Which data stays in the cache.
    pub cache: CachePolicy,
    /// What a reply to a change of names or attributes promises.
    pub durability: Durability,
}

impl Default for ExportOptions {
    fn default() -> Self {
        Self {
            read_only: false,
            squash: Squash::Root,
            anon_uid: 65534,
            anon_gid: 65534,
            clients: Vec::new(),
            cache: CachePolicy::Cached,
            durability: Durability::Sync,
        }
    }
}

/// A tree that clients may mount.
#[derive(Clone)]
pub struct Export {
    /// The path that clients mount: see [`check_path`](super::check_path).
    pub path: String,
    /// The exported directory. NFSv3 clients may also mount this path. If it changes, earlier
    /// filehandles become stale.
    pub source: PathBuf,
    /// The files.
    pub fs: CachedFs,
    /// The options.
    pub options: ExportOptions,
}

impl std::fmt::Debug for Export {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Export").field("path", &self.path).finish_non_exhaustive()
    }
}
