//! An export being served: maps its callers' identities, and chooses how its files are read and
//! written.

use super::options::{CachePolicy, ClientAccess, Export, ExportOptions, Squash};
use super::streams::Streams;
use crate::admission::Identity;
use crate::handle::Node;
use crate::metrics::ExportCounts;
use std::net::IpAddr;
use std::sync::Arc;
use weir_pagecache::{CachedFs, File};
use weir_vfs::{Caller, Cred, IoFlags};

/// An export being served.
#[derive(Debug)]
pub(crate) struct Served {
    /// The export's number in filehandles.
    pub(crate) id: u16,
    pub(crate) export: Export,
    /// Counters of bytes read and written.
    pub(crate) counts: Arc<ExportCounts>,
    streams: Streams,
}

/// A caller's identity and access in an export.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Admitted {
    pub(crate) caller: Caller,
    pub(crate) read_only: bool,
}

impl Served {
    pub(crate) fn new(id: u16, export: Export) -> Self {
        Self::with_counts(id, export, Arc::default())
    }

    /// As [`new`](Self::new), with existing counters.
    pub(crate) fn with_counts(id: u16, export: Export, counts: Arc<ExportCounts>) -> Self {
        Self { id, export, counts, streams: Streams::default() }
    }

    pub(crate) fn fs(&self) -> &CachedFs {
        &self.export.fs
    }

    /// The root directory.
    pub(crate) fn root(&self) -> Node {
        Node { export: self.id, id: self.fs().root() }
    }

    /// The identity and access of a caller at `peer`; `None` if it is refused.
    pub(crate) fn admit(&self, identity: &Identity, peer: IpAddr) -> Option<Admitted> {
        let (read_only, squash) = self.access(peer)?;
        Some(Admitted { caller: self.caller(identity, squash), read_only })
    }

    /// Whether the export is for the machine at `peer`.
    pub(crate) fn is_for(&self, peer: IpAddr) -> bool {
        self.access(peer).is_some()
    }

    /// Whether the machine at `peer` may only read, and whose rights its users have; `None` if it is refused.
    fn access(&self, peer: IpAddr) -> Option<(bool, Squash)> {
        let ExportOptions { read_only, squash, ref clients, .. } = self.export.options;
        if clients.is_empty() {
            return Some((read_only, squash));
        }
        let rules = clients.iter().filter(|rule| rule.network.contains(peer));
        let rule = rules.max_by_key(|rule| rule.network.narrowness())?;
        let read_only = match rule.access {
            ClientAccess::None => return None,
            ClientAccess::ReadOnly => true,
            ClientAccess::ReadWrite => read_only,
        };
        Some((read_only, rule.squash.unwrap_or(squash)))
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

    /// The flags of a read of `len` bytes at `offset` for a client at `peer`.
    pub(crate) fn read_flags(&self, peer: IpAddr, file: &File, offset: u64, len: usize) -> IoFlags {
        self.flags(|streams, longest| {
            streams.read(peer, file.id(), offset, len as u64, file.size()) > longest
        })
    }

    /// The flags of a write of `len` bytes at `offset` for a client at `peer`.
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
