//! Programs beside NFS itself (MOUNT, NLM), and the port mapper that knows where they are.

use super::V3;
use crate::error::{Error, Refusal, Result};
use crate::protocol::broken;
use crate::transport::{Connection, Counters, Expect, Locate, Patience, Peer, Request};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use weir_rpc::OpaqueAuth;
use weir_rpc::rpcbind::{self, Mapping};
use weir_xdr::{Decode, Decoder, Encode};

/// Program, version, procedure.
pub(super) type Which = (u32, u32, u32);

/// How long a port mapper may take to answer one who connects again, and again.
const MAPPER_PATIENCE: Patience =
    Patience { timeo: Duration::from_secs(5), retrans: 0, hard: false };
/// Room for results.
const MAX_BYTES: usize = 4096;

/// Calls a procedure whose results are small.
pub(super) async fn call<T: Decode>(
    connection: &Connection,
    cred: &OpaqueAuth,
    which: Which,
    name: &'static str,
    args: &impl Encode,
) -> Result<T> {
    let expect = Expect::Results { max_bytes: MAX_BYTES };
    let mut request = Request::new(which, cred, name, expect);
    request.encoder().put(args);
    let reply = connection.peer().first(connection.call(request)).await?;
    let mut d = Decoder::new(reply.body);
    d.get().map_err(|error| broken(connection.server(), name, error.into()))
}

/// Asks a port mapper for the TCP port of a program; `None`: it knows of none.
pub(super) async fn port_of(
    mapper: &Connection,
    program: u32,
    version: u32,
) -> Result<Option<u16>> {
    let args = Mapping { program, version, protocol: rpcbind::TCP, port: 0 };
    let port: u32 = ask_mapper(mapper, rpcbind::Procedure::GetPort, "GETPORT", &args).await?;
    Ok(u16::try_from(port).ok().filter(|port| *port != 0))
}

/// Calls a procedure of a port mapper.
pub(super) async fn ask_mapper<T: Decode>(
    mapper: &Connection,
    procedure: rpcbind::Procedure,
    name: &'static str,
    args: &Mapping,
) -> Result<T> {
    let which = (rpcbind::PROGRAM, rpcbind::VERSION, procedure as u32);
    call(mapper, &OpaqueAuth::NONE, which, name, args).await
}

impl V3 {
    /// Connects to a program of the server whose port its mapper knows, and looks the port up again
    /// whenever the connection was lost.
    pub(super) async fn connect_to_program(
        &self,
        program: u32,
        version: u32,
        name: &'static str,
        counters: &Arc<Counters>,
    ) -> Result<Connection> {
        let mapper = self.connect_at(rpcbind::PORT, counters).await?;
        let found = port_of(&mapper, program, version).await?;
        let port = found.ok_or_else(|| Error::Refused {
            server: Arc::clone(&self.server),
            operation: name,
            refusal: Refusal::ProgramUnavailable,
        })?;
        let mut peer = at_port(&self.peer, port);
        let of_mapper = at_port(&self.peer, rpcbind::PORT);
        peer.locate = Some(Locate(Arc::new(move || {
            let (mapper, counters) = (of_mapper.clone(), Arc::default());
            Box::pin(async move {
                let mapper = Connection::open(mapper, MAPPER_PATIENCE, counters, None).await;
                let mapper = mapper.map_err(io::Error::other)?;
                let port = port_of(&mapper, program, version).await;
                port.map_err(io::Error::other)?
                    .ok_or_else(|| io::Error::other("the port mapper does not know it"))
            })
        })));
        Connection::open(peer, self.patience, Arc::clone(counters), None).await
    }

    /// Connects to another port of the server.
    pub(super) async fn connect_at(
        &self,
        port: u16,
        counters: &Arc<Counters>,
    ) -> Result<Connection> {
        let peer = at_port(&self.peer, port);
        Connection::open(peer, self.patience, Arc::clone(counters), None).await
    }
}

/// The same host at another port.
fn at_port(peer: &Peer, port: u16) -> Peer {
    // Another program: nothing was heard of it yet.
    let mut peer = Peer { heard: Arc::default(), ..peer.clone() };
    peer.addrs.iter_mut().for_each(|addr| addr.set_port(port));
    let host = peer.name.rsplit_once(':').map_or(&*peer.name, |(host, _)| host);
    peer.name = format!("{host}:{port}").into();
    peer
}
