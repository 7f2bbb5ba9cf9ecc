//! How the server reaches programs of hosts with NLM locks: their lock managers and status monitors.

use async_trait::async_trait;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use weir_rpc::net::{self, ClientLimits, PortMapper, RpcClient, Source};
use weir_rpc::{OpaqueAuth, ProgramId};
use weir_xdr::{Bytes, Decode, Decoder, Encode, Encoder};

/// Calls programs of hosts in the place of connections to them, for a server whose clients use
/// [`Server::connect`](crate::Server::connect).
#[async_trait]
pub trait HostNetwork: Send + Sync {
    /// Calls a procedure with encoded arguments. Returns the encoded results; `None` if no answer
    /// came, and the host may have executed the call.
    async fn call(&self, host: IpAddr, id: ProgramId, procedure: u32, args: Bytes)
    -> Option<Bytes>;
}

/// The way to hosts' programs.
#[derive(Clone)]
pub(crate) struct HostAccess {
    /// The port of hosts' port mappers.
    pub(crate) mapper_port: u16,
    /// Takes the place of connections.
    pub(crate) network: Option<Arc<dyn HostNetwork>>,
}

impl HostAccess {
    /// Reaches a program of a host.
    ///
    /// # Errors
    /// Those of [`PortMapper::find`].
    pub(crate) async fn find(
        &self,
        host: IpAddr,
        source: Source,
        id: ProgramId,
        limits: ClientLimits,
    ) -> Result<HostProgram, net::Error> {
        if let Some(network) = &self.network {
            return Ok(HostProgram::Local(network.clone(), host));
        }
        let mapper = SocketAddr::new(host, self.mapper_port);
        PortMapper::find(mapper, source, id, limits).await.map(HostProgram::Connected)
    }
}

/// A program of a host.
pub(crate) enum HostProgram {
    Connected(RpcClient),
    Local(Arc<dyn HostNetwork>, IpAddr),
}

impl HostProgram {
    /// Sets the credential of later calls.
    pub(crate) fn with_cred(self, cred: OpaqueAuth) -> Self {
        match self {
            Self::Connected(client) => Self::Connected(client.with_cred(cred)),
            local @ Self::Local(..) => local,
        }
    }

    /// Calls a procedure.
    ///
    /// # Errors
    /// Those of [`RpcClient::call`].
    pub(crate) async fn call<R: Decode>(
        &mut self,
        id: ProgramId,
        procedure: u32,
        args: &(impl Encode + Sync),
    ) -> Result<R, net::Error> {
        match self {
            Self::Connected(client) => client.call(id, procedure, args).await,
            Self::Local(network, host) => {
                let mut e = Encoder::new();
                e.put(args);
                let called = network.call(*host, id, procedure, e.finish().to_bytes());
                let results = called.await.ok_or(net::Error::Closed)?;
                Decoder::new(results).get().map_err(net::Error::Results)
            }
        }
    }
}
