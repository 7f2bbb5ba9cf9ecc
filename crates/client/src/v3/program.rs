//! Programs other than NFS itself (MOUNT, NLM, NFSACL), and the port mapper that knows their ports.

use super::V3;
use crate::error::{Error, Refusal, Result};
use crate::protocol::broken;
use crate::transport::{Connection, Counters, Expect, Locate, Peer, Request};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use weir_rpc::net::{self, ClientLimits, PortMapper};
use weir_rpc::{OpaqueAuth, ProgramId, rpcbind};
use weir_xdr::{Decode, Decoder, Encode};

/// Program, version, procedure.
pub(super) type Which = (u32, u32, u32);

/// Limits for a port mapper.
const MAPPER: ClientLimits =
    ClientLimits { deadline: Duration::from_secs(10), ..ClientLimits::SMALL };
/// Room for results.
const MAX_BYTES: usize = 4096;

/// Calls a procedure with small results.
pub(super) async fn call<T: Decode>(
    connection: &Connection,
    cred: &OpaqueAuth,
    which: Which,
    name: &'static str,
    args: &impl Encode,
) -> Result<T> {
    call_for(connection, cred, which, (name, MAX_BYTES), args).await
}

/// Calls a procedure with results of at most so many bytes.
pub(super) async fn call_for<T: Decode>(
    connection: &Connection,
    cred: &OpaqueAuth,
    which: Which,
    (name, max_bytes): (&'static str, usize),
    args: &impl Encode,
) -> Result<T> {
    let expect = Expect::Results { max_bytes };
    let mut request = Request::new(which, cred, name, expect);
    request.encoder().put(args);
    let reply = connection.peer().first(connection.call(request)).await?;
    let mut d = Decoder::new(reply.body);
    d.get().map_err(|error| broken(connection.server(), name, error.into()))
}

/// Asks the server's port mapper for the TCP port of a program.
async fn find(peer: &Peer, id: ProgramId) -> std::result::Result<u16, net::Error> {
    let mut last = net::Error::NotRegistered(id);
    for mapper in at_port(peer, rpcbind::PORT).addrs_to_try() {
        let asked = async {
            let mut mapper = PortMapper::connect(mapper, peer.source(), MAPPER).await?;
            mapper.port_of(id).await?.ok_or(net::Error::NotRegistered(id))
        };
        match asked.await {
            // It is not at this address.
            Err(error @ (net::Error::Socket(_) | net::Error::TimedOut(_))) => last = error,
            outcome => return outcome,
        }
    }
    Err(last)
}

impl V3 {
    /// Connects to a program of the server at the port that the mapper reports, and looks the port
    /// up again after every lost connection.
    pub(super) async fn connect_to_program(
        &self,
        id: ProgramId,
        name: &'static str,
        counters: &Arc<Counters>,
    ) -> Result<Connection> {
        let found = find(&self.peer, id).await;
        if matches!(found, Ok(_) | Err(net::Error::NotRegistered(_))) {
            self.has_mapper.store(true, Relaxed);
        }
        let port = found.map_err(|error| self.not_found(error, name))?;
        let mut peer = at_port(&self.peer, port);
        let server = self.peer.clone();
        peer.locate = Some(Locate(Arc::new(move || {
            let server = server.clone();
            Box::pin(async move { Ok(find(&server, id).await?) })
        })));
        Connection::open(peer, self.patience, Arc::clone(counters), None).await
    }

    /// The error of `operation` if the program's port is unknown.
    fn not_found(&self, error: net::Error, operation: &'static str) -> Error {
        let mapper = || at_port(&self.peer, rpcbind::PORT).name;
        match error {
            net::Error::NotRegistered(_) => Error::Refused {
                server: Arc::clone(&self.server),
                operation,
                refusal: Refusal::ProgramUnavailable,
            },
            net::Error::TimedOut(_) => Error::NoAnswer { server: mapper() },
            error => Error::Connect { server: mapper(), source: Arc::new(error.into()) },
        }
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
    // Another program: it has not answered yet.
    let mut peer = Peer { heard: Arc::default(), ..peer.clone() };
    peer.addrs.iter_mut().for_each(|addr| addr.set_port(port));
    let host = peer.name.rsplit_once(':').map_or(&*peer.name, |(host, _)| host);
    peer.name = format!("{host}:{port}").into();
    peer
}
