//! From a path to a filehandle: MOUNT (RFC 1813 appendix I), found through the port mapper.

use super::{V3, program};
use crate::error::{Error, Refusal, Result};
use crate::protocol::{Handle, Node, Protocol, ProtocolConfig, Reach, Root};
use crate::transport::Connection;
use std::sync::Arc;
use weir_nfs::mount::{self, Call, Mnt, Umnt};
use weir_vfs::FileKind;

/// Room for results with one handle or none.
const SMALL_BYTES: usize = 4096;
/// Room for a list of exports.
const EXPORTS_BYTES: usize = 1 << 20;

/// The mounted path, and the connection to the MOUNT service if it is not the NFS server's.
pub(super) struct MountRequest {
    path: mount::DirPath,
    pub(super) service: Option<Connection>,
}

impl V3 {
    /// Mounts the directory at `path`, as far as `reach` says: the longest prefix that the server
    /// exports through MOUNT, the rest by LOOKUP.
    pub(crate) async fn root(
        &self,
        config: &ProtocolConfig,
        path: &[Vec<u8>],
        reach: Reach,
    ) -> Result<Root> {
        let mut refused = None;
        for exported in (0..=path.len()).rev() {
            let (mount_path, rest) = path.split_at(exported);
            let handle = match self.mnt(config, mount_path).await {
                Ok(handle) => handle,
                Err(error @ Error::Status { .. }) => {
                    // The first error is about the requested path.
                    refused.get_or_insert(error);
                    continue;
                }
                Err(error) => return Err(error),
            };
            let attr = self.getattr(&self.own, &handle).await?;
            let mut root = Root { node: Node { handle, attr }, depth: exported };
            if reach == Reach::LastDirectory && root.node.attr.kind != FileKind::Directory {
                refused.get_or_insert(weir_vfs::Error::NotDirectory.into());
                continue;
            }
            for name in rest {
                match self.lookup(&self.own, &root.node.handle, name).await {
                    Ok(node) if reach == Reach::End || node.attr.kind == FileKind::Directory => {
                        root = Root { node, depth: root.depth + 1 };
                    }
                    Err(error) if reach == Reach::End || !error.is_no_directory() => {
                        return Err(error);
                    }
                    _ => break,
                }
            }
            self.learn(&root.node.handle).await?;
            return Ok(root);
        }
        Err(refused.unwrap_or_else(|| weir_vfs::Error::NotFound.into()))
    }

    async fn mnt(&self, config: &ProtocolConfig, path: &[Vec<u8>]) -> Result<Handle> {
        let text = [&b"/"[..], &path.join(&b'/')].concat();
        let args = Mnt { path: text.as_slice().into() };
        let (answer, service) = self.ask_mount(config, &args, SMALL_BYTES).await?;
        match answer {
            Ok(mounted) => {
                // Only the first root counts.
                let _ = self.mounted.set(MountRequest { path: args.path, service });
                Ok(Handle(mounted.handle.0))
            }
            Err(error) => Err(Error::Status {
                server: Arc::clone(&self.server),
                operation: "MNT",
                status: format!("{error:?} for {}", String::from_utf8_lossy(&text)),
                error: neutral(error),
            }),
        }
    }

    /// What the server exports (RFC 1813 appendix I section 5.5).
    pub(crate) async fn exports(&self, config: &ProtocolConfig) -> Result<Vec<mount::Exported>> {
        let asked = self.ask_mount(config, &mount::Export {}, EXPORTS_BYTES).await;
        asked.map(|(exported, _)| exported.0)
    }

    /// Finds the MOUNT service, and asks it. Returns the connection to it as well, if it is not the NFS
    /// server's.
    async fn ask_mount<A: Call>(
        &self,
        config: &ProtocolConfig,
        args: &A,
        max_bytes: usize,
    ) -> Result<(A::Res, Option<Connection>)> {
        let mut service = match config.options.mountport {
            // Many servers have both programs on one port.
            None => None,
            Some(port) => Some(self.connect_at(port, &config.counters).await?),
        };
        let mut answer = self.ask(service.as_ref(), args, max_bytes).await;
        if service.is_none()
            && let Err(Error::Refused { refusal: Refusal::ProgramUnavailable, .. }) = answer
        {
            let name = A::PROCEDURE.name();
            service = Some(self.connect_to_program(mount::ID, name, &config.counters).await?);
            answer = self.ask(service.as_ref(), args, max_bytes).await;
        }
        Ok((answer?, service))
    }

    /// Removes this mount from the server's list (RFC 1813 appendix I section 5.3).
    pub(super) async fn umnt(&self) -> Result<()> {
        let Some(MountRequest { path, service }) = self.mounted.get() else { return Ok(()) };
        let args = Umnt { path: path.clone() };
        self.ask(service.as_ref(), &args, SMALL_BYTES).await.map(drop)
    }

    async fn ask<A: Call>(
        &self,
        service: Option<&Connection>,
        args: &A,
        max_bytes: usize,
    ) -> Result<A::Res> {
        let connection = service.unwrap_or(&self.connections[0]);
        let which = (mount::PROGRAM, mount::VERSION, A::PROCEDURE as u32);
        let expected = (A::PROCEDURE.name(), max_bytes);
        program::call_for(connection, &self.own, which, expected, args).await
    }
}

fn neutral(error: mount::Error) -> weir_vfs::Error {
    match error {
        mount::Error::Perm => weir_vfs::Error::NotPermitted,
        mount::Error::NoEnt => weir_vfs::Error::NotFound,
        mount::Error::Access => weir_vfs::Error::AccessDenied,
        mount::Error::NotDir => weir_vfs::Error::NotDirectory,
        mount::Error::Inval => weir_vfs::Error::Invalid,
        mount::Error::NameTooLong => weir_vfs::Error::NameTooLong,
        mount::Error::NotSupp => weir_vfs::Error::NotSupported,
        mount::Error::Io | mount::Error::ServerFault => weir_vfs::Error::Io,
    }
}
