//! What is exported, to whom, and how its clients may use it.

use super::network::Network;
use std::path::PathBuf;
use weir_pagecache::CachedFs;

/// Whose identities are not taken as they come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Squash {
    /// User and group 0 become anonymous.
    #[default]
    Root,
    /// Everybody becomes anonymous.
    All,
    /// No identity is changed.
    Nobody,
}

/// What clients of a network may do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ClientAccess {
    /// Nothing.
    None,
    /// Read.
    ReadOnly,
    /// All that the export allows.
    #[default]
    ReadWrite,
}

/// What the clients of a network may do, and as whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ClientRule {
    /// Which clients.
    pub network: Network,
    /// What they may do.
    pub access: ClientAccess,
    /// Whose identities are changed; `None`: those of the export.
    pub squash: Option<Squash>,
}

/// Whether what is read and written stays in the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CachePolicy {
    /// It does, as far as the budget goes.
    #[default]
    Cached,
    /// It goes when it was used.
    Uncached,
    /// It does, but for streams of more than this many bytes.
    Auto {
        /// The longest stream that stays, in bytes.
        stream_bytes: u64,
    },
}

/// What a reply to a change of names or attributes promises.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Durability {
    /// The change survives a power failure.
    #[default]
    Sync,
    /// The change is made, and survives the server's own end. A power failure may undo what was
    /// answered in the seconds before it.
    Relaxed,
}

/// How clients may use an export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportOptions {
    /// Nothing may be changed.
    pub read_only: bool,
    /// Whose identities are changed.
    pub squash: Squash,
    /// The anonymous user.
    pub anon_uid: u32,
    /// The anonymous group.
    pub anon_gid: u32,
    /// Who may use it: of the networks that hold a client, the narrowest decides; if no
    /// network holds it, it may not. Without networks, everybody may.
    pub clients: Vec<ClientRule>,
    /// What stays in the cache.
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
    /// The path under which clients mount it: see [`check_path`](super::check_path).
    pub path: String,
    /// The directory behind it, which may be mounted by its own path in NFSv3, too. With another
    /// one, filehandles of before are stale.
    pub source: PathBuf,
    /// The files.
    pub fs: CachedFs,
    /// How they may be used.
    pub options: ExportOptions,
}

impl std::fmt::Debug for Export {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Export").field("path", &self.path).finish_non_exhaustive()
    }
}
