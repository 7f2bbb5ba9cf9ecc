//! From a path to a filehandle: MOUNT (RFC 1813 appendix I), found through the port mapper.

use super::V3;
use crate::error::{Error, Refusal, Result};
use crate::mount::Terms;
use crate::protocol::{Handle, Node, Protocol, broken};
use crate::transport::{Connection, Expect, Peer, Request};
use std::sync::Arc;
use weir_nfs::mount::{self, Call, Mnt, Umnt};
use weir_rpc::rpcbind::{self, Mapping};
use weir_xdr::{Decode, Decoder, Encode};

/// Room for the answer to MNT or to the port mapper.
const MAX_BYTES: usize = 1024;

/// What was mounted, and the connection to the service that did it if it is not the server's own.
pub(super) struct Asked {
    path: mount::DirPath,
    pub(super) service: Option<Connection>,
}

impl V3 {
    /// Mounts the directory at `path`: the longest part of it that the server exports, and the
    /// rest by name.
    pub(crate) async fn root(&self, terms: &Terms, path: &[Vec<u8>]) -> Result<Node> {
        let mut refused = None;
        for exported in (0..=path.len()).rev() {
            let (mount_path, rest) = path.split_at(exported);
            let handle = match self.mnt(terms, mount_path).await {
                Ok(handle) => handle,
                Err(error @ Error::Status { .. }) => {
                    // The first answer is about what was asked for.
                    refused.get_or_insert(error);
                    continue;
                }
                Err(error) => return Err(error),
            };
            let attr = self.getattr(&self.own, &handle).await?;
            let mut node = Node { handle, attr };
            for name in rest {
                node = self.lookup(&self.own, &node.handle, name).await?;
            }
            self.learn(&node.handle).await?;
            return Ok(node);
        }
        Err(refused.unwrap_or_else(|| weir_vfs::Error::NotFound.into()))
    }

    async fn mnt(&self, terms: &Terms, path: &[Vec<u8>]) -> Result<Handle> {
        let text = [&b"/"[..], &path.join(&b'/')].concat();
        let args = Mnt { path: text.as_slice().into() };
        let mut service = match terms.options.mountport {
            // Many servers have both programs on one port.
            None => None,
            Some(port) => Some(self.connect(terms, port).await?),
        };
        let mut answer = self.ask(service.as_ref(), &args).await;
        if service.is_none()
            && let Err(Error::Refused { refusal: Refusal::ProgramUnavailable, .. }) = answer
        {
            let mapper = self.connect(terms, rpcbind::PORT).await?;
            let port = self.port_of(&mapper, mount::PROGRAM, mount::VERSION).await?;
            service = Some(self.connect(terms, port).await?);
            answer = self.ask(service.as_ref(), &args).await;
        }
        match answer? {
            Ok(mounted) => {
                // The first that is mounted is the only one.
                let _ = self.mounted.set(Asked { path: args.path, service });
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

    /// Takes this mount off the server's list (RFC 1813 appendix I section 5.3).
    pub(super) async fn umnt(&self) -> Result<()> {
        let Some(Asked { path, service }) = self.mounted.get() else { return Ok(()) };
        self.ask(service.as_ref(), &Umnt { path: path.clone() }).await.map(drop)
    }

    async fn ask<A: Call>(&self, service: Option<&Connection>, args: &A) -> Result<A::Res> {
        let connection = service.unwrap_or(&self.connections[0]);
        let call = (mount::PROGRAM, mount::VERSION, A::PROCEDURE as u32);
        self.rpc(connection, call, A::PROCEDURE.name(), args).await
    }

    /// The port of a program, by the port mapper.
    async fn port_of(&self, mapper: &Connection, program: u32, version: u32) -> Result<u16> {
        let call = (rpcbind::PROGRAM, rpcbind::VERSION, rpcbind::Procedure::GetPort as u32);
        let args = Mapping { program, version, protocol: rpcbind::TCP, port: 0 };
        let port: u32 = self.rpc(mapper, call, "GETPORT", &args).await?;
        match u16::try_from(port) {
            Ok(port) if port != 0 => Ok(port),
            _ => Err(Error::Refused {
                server: Arc::clone(&self.server),
                operation: "GETPORT",
                refusal: Refusal::ProgramUnavailable,
            }),
        }
    }

    async fn rpc<T: Decode>(
        &self,
        connection: &Connection,
        call: (u32, u32, u32),
        name: &'static str,
        args: &impl Encode,
    ) -> Result<T> {
        let expect = Expect::Results { max_bytes: MAX_BYTES };
        let mut request = Request::new(call, &self.own, name, expect);
        request.encoder().put(args);
        let reply = connection.call(request).await?;
        let mut d = Decoder::new(reply.body);
        d.get().map_err(|error| broken(&self.server, name, error.into()))
    }

    async fn connect(&self, terms: &Terms, port: u16) -> Result<Connection> {
        let mut peer: Peer = terms.peer.clone();
        peer.addrs.iter_mut().for_each(|addr| addr.set_port(port));
        let host = peer.name.rsplit_once(':').map_or(&*peer.name, |(host, _)| host);
        peer.name = format!("{host}:{port}").into();
        Connection::open(peer, terms.patience, Arc::clone(&terms.counters), None).await
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
