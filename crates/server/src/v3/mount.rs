//! MOUNT (RFC 1813 appendix I): returns the filehandle of an export's root, or of a directory below
//! it.
//!
//! 1. The server resolves the path below the export with the caller's rights, and follows no
//!    symbolic links. A path may begin with the export's path or with its source directory.
//! 2. The list of mounts serves DUMP only. It holds the [`MAX_MOUNTS`] most recent mounts.

use crate::export::{Admitted, ClientAccess, ExportTable, Exports, Served};
use crate::handle::Node;
use crate::program::{Call, Program, ProgramId, Refusal};
use async_trait::async_trait;
use hashlink::LinkedHashSet;
use parking_lot::Mutex;
use std::net::IpAddr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use tracing::info;
use weir_nfs::mount::{self, DirPath, Error, Exported, MntOk, MntRes, Mounted, Procedure};
use weir_nfs::v3::op::readdir::Chain;
use weir_rpc::AuthFlavor;
use weir_vfs::{Attr, Caller, FileKind};
use weir_xdr::{Encoder, Opaque};

/// Maximum number of mounts listed.
const MAX_MOUNTS: usize = 4096;

/// MOUNT version 3.
pub struct Mount3 {
    exports: Arc<Exports>,
    mounts: Mutex<LinkedHashSet<(IpAddr, DirPath)>>,
}

impl Mount3 {
    /// Lets clients mount `exports`.
    pub fn new(exports: Arc<Exports>) -> Self {
        Self { exports, mounts: Mutex::default() }
    }

    async fn mount(&self, call: &Call, path: DirPath) -> MntRes {
        let identity = self.exports.identify(call).await.map_err(|_| Error::Access)?;
        let peer = call.peer.addr().ip();
        let table = self.exports.table();
        let mut found = Err(Error::NoEnt);
        for (export, below) in find(&table, &path)? {
            let Some(Admitted { caller, .. }) = export.admit(&identity, peer) else {
                info!("{peer} may not mount {}", String::from_utf8_lossy(&path).escape_debug());
                return Err(Error::Access);
            };
            found = walk(export, &caller, below).await.map(|attr| (export, attr));
            if !matches!(found, Err(Error::NoEnt)) {
                break;
            }
        }
        let (export, attr) = found?;
        if attr.kind != FileKind::Directory {
            return Err(Error::NotDir);
        }
        info!("{peer} mounts {}", String::from_utf8_lossy(&path).escape_debug());
        let mut flavors = vec![AuthFlavor::SYS];
        if call.peer.takes_auth_none() {
            flavors.push(AuthFlavor::NONE);
        }
        let node = Node { export: export.id, id: attr.id };
        self.remember(peer, &path);
        Ok(MntOk { handle: Opaque::copy_from(&self.exports.seal(node)), flavors: flavors.into() })
    }

    fn remember(&self, peer: IpAddr, path: &DirPath) {
        let mut mounts = self.mounts.lock();
        // Copied, because a slice would keep the whole request in memory.
        mounts.replace((peer, Opaque::copy_from(path)));
        if mounts.len() > MAX_MOUNTS {
            mounts.pop_front();
        }
    }

    fn dump(&self) -> Chain<Mounted> {
        let mounts = self.mounts.lock();
        let mounted = mounts.iter().map(|(host, path)| Mounted {
            host: host.to_canonical().to_string().as_str().into(),
            path: path.clone(),
        });
        Chain(mounted.collect())
    }

    /// The exports and the networks that may use them.
    fn exported(&self) -> Chain<Exported> {
        let table = self.exports.table();
        let exported = table.all().map(|served| {
            let rules = served.export.options.clients.iter();
            let may = rules.filter(|rule| rule.access != ClientAccess::None);
            let groups = may.map(|rule| rule.network.to_string().as_str().into());
            Exported { path: served.export.path.as_str().into(), groups: Chain(groups.collect()) }
        });
        Chain(exported.collect())
    }
}

/// The exports that may contain a path, with the rest of the path: first the one matched by its
/// export path, then the one matched by its source directory.
fn find<'a>(
    table: &'a ExportTable,
    path: &'a [u8],
) -> Result<impl Iterator<Item = (&'a Served, &'a [u8])>, Error> {
    // libnfs mounts the directory of `nfs://host/file` by an empty path.
    let path = if path.is_empty() { b"/" } else { path };
    if path.first() != Some(&b'/') {
        return Err(Error::Inval);
    }
    let below = |outer: &[u8]| {
        let below = path.strip_prefix(outer.strip_suffix(b"/").unwrap_or(outer))?;
        (below.is_empty() || below.starts_with(b"/")).then_some(below)
    };
    let by_path = table.all().find_map(|e| Some((e, below(e.export.path.as_bytes())?)));
    let sources = table.all().filter(|e| e.export.source.is_absolute());
    let sources = sources.filter_map(|e| Some((e, below(e.export.source.as_os_str().as_bytes())?)));
    let by_source = sources.min_by_key(|(_, below)| below.len());
    Ok(by_path.into_iter().chain(by_source))
}

/// Resolves a path; ignores `.` and empty components.
async fn walk(export: &Served, caller: &Caller, path: &[u8]) -> Result<Attr, Error> {
    let mut at = export.fs().getattr(export.fs().root()).await.map_err(of_vfs)?;
    for name in path.split(|&b| b == b'/').filter(|name| !name.is_empty() && name != b".") {
        at = export.fs().lookup(caller, at.id.entry(name)).await.map_err(of_vfs)?;
    }
    Ok(at)
}

fn of_vfs(error: weir_vfs::Error) -> Error {
    use weir_vfs::Error as E;
    match error {
        E::NotPermitted => Error::Perm,
        E::NotFound | E::Stale => Error::NoEnt,
        E::AccessDenied => Error::Access,
        E::NotDirectory | E::Loop => Error::NotDir,
        E::Invalid => Error::Inval,
        E::NameTooLong => Error::NameTooLong,
        E::NotSupported => Error::NotSupp,
        E::OutOfMemory | E::TooManyOpen | E::WouldBlock | E::TimedOut => Error::ServerFault,
        _ => Error::Io,
    }
}

impl std::fmt::Debug for Mount3 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mount3").field("exports", &self.exports).finish_non_exhaustive()
    }
}

#[async_trait]
impl Program for Mount3 {
    fn id(&self) -> ProgramId {
        mount::ID
    }

    async fn call(self: Arc<Self>, mut call: Call, mut reply: Encoder) -> Result<Encoder, Refusal> {
        let number = call.header.procedure;
        let peer = call.peer.addr().ip();
        match Procedure::from_number(number).ok_or(Refusal::NoSuchProcedure)? {
            Procedure::Null => {}
            Procedure::Mnt => {
                let args: mount::Mnt = call.args.get()?;
                reply.put(&self.mount(&call, args.path).await);
            }
            Procedure::Dump => reply.put(&self.dump()),
            Procedure::Umnt => {
                let args: mount::Umnt = call.args.get()?;
                self.mounts.lock().remove(&(peer, args.path));
            }
            Procedure::Umntall => self.mounts.lock().retain(|(host, _)| *host != peer),
            Procedure::Export => reply.put(&self.exported()),
        }
        Ok(reply)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::{Export, ExportOptions};
    use crate::handle::Handles;
    use bytes::Bytes;
    use std::net::Ipv4Addr;
    use weir_pagecache::{Cache, Config};
    use weir_stores::memory::MemoryFs;
    use weir_xdr::Decoder;

    #[test]
    fn a_mount_is_listed_without_keeping_its_request() {
        let cache = Cache::new(Config { budget_bytes: 16 << 20, ..Config::default() }).unwrap();
        let fs = cache.mount(MemoryFs::new());
        let options = ExportOptions::default();
        let export = Export { path: "/".into(), source: "/srv".into(), fs, options };
        let dir = tempfile::tempdir().unwrap();
        let exports = Exports::open(vec![export], Handles::new([7; 32]), dir.path()).unwrap();
        let mount = Mount3::new(Arc::new(exports));
        // The length of the path, the path, and bytes that belong to no argument.
        let record: Bytes = [&[0, 0, 0, 4][..], b"/a/b", &[0; 1 << 20]].concat().into();
        let path: DirPath = Decoder::new(record.clone()).get().unwrap();
        mount.remember(Ipv4Addr::LOCALHOST.into(), &path);
        drop(path);
        assert_eq!(&*mount.dump().0[0].path, b"/a/b");
        assert!(record.is_unique(), "a megabyte is kept");
    }
}
