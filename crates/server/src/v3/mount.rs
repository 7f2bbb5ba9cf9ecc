//! MOUNT (RFC 1813 appendix I): the handle of an export's root, or of a directory beneath it.
//!
//! 1. A path is walked as the caller, below an export's own path, and follows no links.
//! 2. Who has mounted what is remembered for DUMP's sake alone, and not for long: at most
//!    [`MAX_MOUNTS`] are, the oldest go first.

use crate::export::{Export, Exports, Identity};
use crate::handle::Node;
use crate::program::{Call, Program, ProgramId, Refusal};
use async_trait::async_trait;
use hashlink::LinkedHashSet;
use parking_lot::Mutex;
use std::net::IpAddr;
use std::sync::Arc;
use tracing::info;
use weir_nfs::mount::{self, DirPath, Error, Exported, MntOk, MntRes, Mounted, Procedure};
use weir_nfs::v3::op::readdir::Chain;
use weir_rpc::AuthFlavor;
use weir_vfs::{Attr, FileKind};
use weir_xdr::{Encoder, Opaque};

/// Most mounts that are remembered.
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
        let identity = Identity::of(&call.header.cred).map_err(|_| Error::Access)?;
        let (number, export, below) = self.find(&path)?;
        let attr = walk(export, &identity, below).await?;
        if attr.kind != FileKind::Directory {
            return Err(Error::NotDir);
        }
        let peer = call.peer.addr().ip();
        info!("{peer} mounts {}", String::from_utf8_lossy(&path).escape_debug());
        self.remember(peer, path);
        let node = Node { export: number, id: attr.id };
        Ok(MntOk {
            handle: Opaque::copy_from(&self.exports.seal(node)),
            flavors: vec![AuthFlavor::SYS, AuthFlavor::NONE].into(),
        })
    }

    /// The export that a path lies in, and what of the path is left.
    fn find<'a>(&'a self, path: &'a [u8]) -> Result<(u16, &'a Export, &'a [u8]), Error> {
        if path.first() != Some(&b'/') {
            return Err(Error::Inval);
        }
        (0..)
            .zip(self.exports.all())
            .filter_map(|(number, export)| {
                let below = path.strip_prefix(export.path.trim_end_matches('/').as_bytes())?;
                let whole = below.is_empty() || below.starts_with(b"/");
                whole.then_some((number, export, below))
            })
            .min_by_key(|(_, _, below)| below.len())
            .ok_or(Error::NoEnt)
    }

    fn remember(&self, peer: IpAddr, path: DirPath) {
        let mut mounts = self.mounts.lock();
        mounts.replace((peer, path));
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

    fn exported(&self) -> Chain<Exported> {
        let exported = self
            .exports
            .all()
            .iter()
            .map(|export| Exported { path: export.path.as_str().into(), groups: Chain::default() });
        Chain(exported.collect())
    }
}

/// The file at the end of a path, `.` and empty components left out.
async fn walk(export: &Export, identity: &Identity, path: &[u8]) -> Result<Attr, Error> {
    let caller = export.caller(identity);
    let mut at = export.fs.getattr(export.fs.root()).await.map_err(of_vfs)?;
    for name in path.split(|&b| b == b'/').filter(|name| !name.is_empty() && name != b".") {
        at = export.fs.lookup(&caller, at.id, name).await.map_err(of_vfs)?;
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
        ProgramId { program: mount::PROGRAM, version: mount::VERSION }
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
