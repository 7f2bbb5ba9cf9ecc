//! What is exported, to whom, and as whom its clients act.
//!
//! - [`network`]: networks of clients. `table`: all exports, as they are for one request.
//! - `pseudo`: the directories above them. `ids`: the numbers that filehandles carry.
//! - `rights`: who may read and write which file, remembered for a moment.
//! - `streams`: which reads and writes pass without staying in the cache.

mod ids;
pub mod network;
mod pseudo;
mod rights;
mod streams;
mod table;

pub use network::{Network, NetworkError};
pub use table::{Exports, ExportsError, HandleError, PathError, Table, check_path, clash};

use crate::handle::Node;
use crate::metrics::ExportCounts;
use crate::storage::durability::Durability;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use streams::Streams;
use weir_pagecache::{CachedFs, File};
use weir_rpc::{AuthFlavor, AuthStatus, OpaqueAuth};
use weir_vfs::{Caller, Cred, IoFlags};

/// Whose identities are not taken as they come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Squash {
    /// User and group 0 become anonymous.
    #[default]
    Root,
    /// Everybody becomes anonymous.
    All,
    /// Nobody is changed.
    Nobody,
}

/// What clients of a network may do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ClientAccess {
    /// Nothing.
    None,
    /// Read.
    ReadOnly,
    /// All that the export lets anybody do.
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
    /// Who may use it: of the networks that hold a client, the narrowest decides; none does for
    /// nobody. Without networks, everybody may.
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
    /// The path under which clients mount it: see [`check_path`].
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

/// A caller as it proved itself, before an export's squashing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// User, groups; `None` for AUTH_NONE.
    pub cred: Option<Cred>,
}

impl Identity {
    /// Reads a credential.
    ///
    /// # Errors
    /// It is malformed or of a flavor that is not supported.
    pub fn of(auth: &OpaqueAuth) -> std::result::Result<Self, AuthStatus> {
        match auth.flavor {
            AuthFlavor::NONE => Ok(Self { cred: None }),
            AuthFlavor::SYS => {
                let sys = auth.auth_sys()?;
                let cred = Cred { uid: sys.uid, gid: sys.gid, groups: sys.gids.0 };
                Ok(Self { cred: Some(cred) })
            }
            _ => Err(AuthStatus::TooWeak),
        }
    }
}

/// An export that is being served.
#[derive(Debug)]
pub(crate) struct Served {
    /// Its number in filehandles.
    pub(crate) id: u16,
    pub(crate) export: Export,
    /// What is read and written.
    pub(crate) counts: Arc<ExportCounts>,
    streams: Streams,
}

/// What a caller may do in an export, and as whom.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Admitted {
    pub(crate) caller: Caller,
    pub(crate) read_only: bool,
}

impl Served {
    pub(crate) fn new(id: u16, export: Export) -> Self {
        Self { id, export, counts: Arc::default(), streams: Streams::default() }
    }

    pub(crate) fn fs(&self) -> &CachedFs {
        &self.export.fs
    }

    /// The root directory.
    pub(crate) fn root(&self) -> Node {
        Node { export: self.id, id: self.fs().root() }
    }

    /// As whom a caller at `peer` acts here; `None` if it may not.
    pub(crate) fn admit(&self, identity: &Identity, peer: IpAddr) -> Option<Admitted> {
        let options = &self.export.options;
        let (mut read_only, mut squash) = (options.read_only, options.squash);
        if !options.clients.is_empty() {
            let rule = options.clients.iter().filter(|rule| rule.network.contains(peer));
            let rule = rule.max_by_key(|rule| rule.network.narrowness())?;
            match rule.access {
                ClientAccess::None => return None,
                ClientAccess::ReadOnly => read_only = true,
                ClientAccess::ReadWrite => {}
            }
            squash = rule.squash.unwrap_or(squash);
        }
        Some(Admitted { caller: self.caller(identity, squash), read_only })
    }

    fn caller(&self, identity: &Identity, squash: Squash) -> Caller {
        let ExportOptions { anon_uid, anon_gid, .. } = self.export.options;
        let mut cred = match &identity.cred {
            Some(cred) if squash != Squash::All => cred.clone(),
            _ => Cred { uid: anon_uid, gid: anon_gid, groups: Vec::new() },
        };
        if squash == Squash::Root {
            if cred.uid == 0 {
                cred.uid = anon_uid;
            }
            for gid in std::iter::once(&mut cred.gid).chain(&mut cred.groups) {
                if *gid == 0 {
                    *gid = anon_gid;
                }
            }
        }
        Caller::As(cred)
    }

    /// How a read of `len` bytes at `offset` is done, for a client at `peer`.
    pub(crate) fn read_flags(&self, peer: IpAddr, file: &File, offset: u64, len: usize) -> IoFlags {
        self.flags(|streams, longest| {
            streams.read(peer, file.id(), offset, len as u64, file.size()) > longest
        })
    }

    /// How a write of `len` bytes at `offset` is done, for a client at `peer`.
    pub(crate) fn write_flags(
        &self,
        peer: IpAddr,
        file: &File,
        offset: u64,
        len: usize,
    ) -> IoFlags {
        self.flags(|streams, longest| {
            streams.written(peer, file.id(), offset, len as u64) > longest
        })
    }

    fn flags(&self, passes: impl FnOnce(&Streams, u64) -> bool) -> IoFlags {
        let uncached = match self.export.options.cache {
            CachePolicy::Cached => false,
            CachePolicy::Uncached => true,
            CachePolicy::Auto { stream_bytes } => passes(&self.streams, stream_bytes),
        };
        if uncached { IoFlags::UNCACHED } else { IoFlags::empty() }
    }
}
