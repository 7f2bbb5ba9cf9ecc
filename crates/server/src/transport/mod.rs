//! TCP: listeners, connections, and the bounds on what peers can make the server hold.
//!
//! 1. An idle connection has no buffer. A small record takes a buffer of [`SMALL_BYTES`]. A large
//!    one first takes its size from a budget that all connections share; until its last fragment
//!    announces the size, it counts as the largest record. Each address has a share of the budget.
//! 2. A connection ends if a record does not arrive completely in time, or if the peer reads its
//!    replies more slowly than a minimum rate. That rate is higher while others wait for the memory
//!    that the replies hold ([`drain`]). While others wait for the budget that a large record
//!    holds, a record without progress ends its connection within seconds.
//! 3. At most [`TransportLimits::in_flight`] calls of a connection wait at a time, and its replies
//!    take about [`TransportLimits::reply_bytes`]. At either bound, further calls wait in the
//!    socket. The replies of all connections together take [`TransportLimits::all_reply_bytes`], of
//!    which each address has a share.
//! 4. At most [`TransportLimits::connections`] connections are open, or have calls in progress after their end, of
//!    which each address has a share. The server closes further connections at once and logs that. It closes a
//!    connection that has been idle for long, unless it serves a backchannel, and one whose peer is gone.

mod accept_errors;
mod call;
mod connection;
mod drain;
mod local;
mod polling;
mod socket;
#[cfg(test)]
mod tests;
mod traffic;

use crate::admission::{AddressShares, Addresses, Admission, Origin, SharedLimits, Taken};
use crate::peer::{From, Peer};
use crate::program::Programs;
use accept_errors::AcceptErrors;
use connection::Connection;
use futures_util::future::join_all;
pub use local::LocalConnection;
use socket2::{SockRef, TcpKeepalive};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, info, warn};
pub use traffic::ConnectionCounts;
pub(crate) use traffic::OpenConnections;

/// Largest read without a share of the call budget, in bytes.
const SMALL_BYTES: usize = 16 << 10;

/// Bounds on what peers can make the server hold.
#[derive(Clone, Debug)]
pub struct TransportLimits {
    /// Connections that are open, or have calls in progress. An address may have as many as it leaves free.
    pub connections: usize,
    /// Largest record, in bytes.
    pub record_bytes: usize,
    /// Calls of one connection that may wait at a time.
    pub in_flight: usize,
    /// Bytes of large calls of all connections together. An address may hold as much as it leaves
    /// free.
    pub call_bytes: usize,
    /// Bytes of replies of one connection, from before they are built until they are sent. Small
    /// results, and those for which no operation reserves memory, may take another eighth of this.
    pub reply_bytes: usize,
    /// Bytes of replies of all connections together. An address may hold as much as it leaves free.
    pub all_reply_bytes: usize,
    /// Minimum rate, in bytes per second, at which a peer must read waiting replies while reply
    /// memory is short, averaged over [`stall`](Self::stall). It applies to each connection if
    /// memory is short for all addresses, and to all connections of an address together if it is
    /// short for that address only.
    pub min_drain_rate: u64,
    /// The minimum rate while reply memory is not short. The required rate is never below this.
    pub least_drain_rate: u64,
    /// How long a record may take to arrive, and the time over which read rates are averaged.
    pub stall: Duration,
    /// How long a connection may be idle. A connection that serves a backchannel is not idle.
    pub idle: Duration,
    /// How long calls may continue after the server was told to stop.
    pub drain: Duration,
}

impl Default for TransportLimits {
    fn default() -> Self {
        Self {
            connections: 16 << 10,
            record_bytes: (1 << 20) + (64 << 10),
            in_flight: 64,
            call_bytes: 256 << 20,
            reply_bytes: 8 << 20,
            all_reply_bytes: 256 << 20,
            min_drain_rate: 16 << 10,
            least_drain_rate: 1 << 10,
            stall: Duration::from_secs(60),
            idle: Duration::from_secs(360),
            drain: Duration::from_secs(10),
        }
    }
}

/// What the connections of a server share.
#[derive(Debug)]
pub(crate) struct Transport {
    limits: TransportLimits,
    programs: Programs,
    admission: Arc<Admission>,
    addresses: Arc<Addresses>,
    open: Arc<OpenConnections>,
    next_id: AtomicU64,
    stop: CancellationToken,
}

impl Transport {
    /// A transport for `programs`, with a limit of `clients` NFSv4 clients.
    pub(crate) fn new(
        limits: TransportLimits,
        clients: usize,
        programs: Programs,
        admission: Arc<Admission>,
        stop: CancellationToken,
    ) -> Self {
        let shared = SharedLimits {
            reply_bytes: limits.all_reply_bytes,
            call_bytes: limits.call_bytes,
            connections: limits.connections,
            clients,
        };
        let addresses = Arc::new(Addresses::new(shared));
        let next_id = AtomicU64::new(1);
        let open = Arc::default();
        Self { limits, programs, admission, addresses, open, next_id, stop }
    }

    /// What each address holds.
    pub(crate) fn addresses(&self) -> &Arc<Addresses> {
        &self.addresses
    }

    /// The open connections.
    pub(crate) fn open_connections(&self) -> &Arc<OpenConnections> {
        &self.open
    }

    /// Accepts connections until told to stop, then waits for the calls being executed.
    pub(crate) async fn serve(self: Arc<Self>, listeners: Vec<TcpListener>) {
        let tasks = TaskTracker::new();
        join_all(listeners.into_iter().map(|listener| self.accept(listener, &tasks))).await;
        // Without listeners, calls come through local connections.
        self.stop.cancelled().await;
        tasks.close();
        if tokio::time::timeout(self.limits.drain, tasks.wait()).await.is_err() {
            info!(
                "{} connections still had calls in progress after {:?}",
                tasks.len(),
                self.limits.drain
            );
        }
    }

    async fn accept(self: &Arc<Self>, listener: TcpListener, tasks: &TaskTracker) {
        let mut errors = AcceptErrors::default();
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = self.stop.cancelled() => return,
            };
            match accepted {
                Ok((stream, addr)) => self.clone().admit(tasks, stream, addr),
                Err(error) => {
                    match errors.report(Instant::now()) {
                        Some(0) => warn!("cannot accept a connection: {error}"),
                        Some(more) => {
                            warn!(
                                "cannot accept a connection: {error} ({more} more since the last report)"
                            )
                        }
                        None => debug!("cannot accept a connection: {error}"),
                    }
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
    }

    /// Serves a connection if its address may open another one.
    fn admit(self: Arc<Self>, tasks: &TaskTracker, stream: TcpStream, addr: SocketAddr) {
        let shares = self.addresses.shares_of(addr.ip());
        match shares.connections.try_take(1) {
            Some(taken) => self.start(tasks, stream, addr, (shares, taken)),
            None if shares.was_refused.swap(true, Ordering::Relaxed) => {
                debug!("{addr}: refused: its address has used up its share of the connections");
            }
            None => {
                let (open, limit) = (self.addresses.connections.used(), self.limits.connections);
                warn!(
                    "refusing {addr}: {open} of {limit} connections are open or have calls in progress, and {} has used up its \
                     share",
                    addr.ip()
                );
            }
        }
    }

    fn start(
        self: Arc<Self>,
        tasks: &TaskTracker,
        stream: TcpStream,
        addr: SocketAddr,
        (shares, taken): (Arc<AddressShares>, Taken),
    ) {
        let gone = self.limits.stall * 2;
        if let Err(error) = notice_gone(&stream, gone) {
            debug!("{addr}: cannot enable keepalive: {error}");
        }
        if let Err(error) = stream.set_nodelay(true) {
            debug!("{addr}: cannot set TCP_NODELAY: {error}");
        }
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        // A connected socket has a local address; if it is no longer connected, the value does not
        // matter.
        let local = stream.local_addr().unwrap_or(addr);
        tasks.spawn(async move {
            debug!("{addr}: connected");
            let origin = Origin::of(addr, local).await;
            let (bytes, admission) = (self.limits.reply_bytes, self.admission.clone());
            let from = From { addr, local, origin, address: shares.clone() };
            let peer = Arc::new(Peer::new(id, from, bytes, admission));
            let transport = self.clone();
            let traffic = transport.open.enter(id, addr);
            let place = Arc::new(taken);
            let connection = Connection::new(self, stream, peer.clone(), (shares, place), traffic);
            let end = connection.run().await;
            peer.close();
            transport.programs.disconnected(&peer);
            drop(peer);
            debug!("{addr}: {end}");
        });
    }
}

/// Makes the kernel end a connection whose peer has not answered for `gone`, even if nothing is
/// sent.
fn notice_gone(stream: &TcpStream, gone: Duration) -> io::Result<()> {
    let socket = SockRef::from(stream);
    let looks = TcpKeepalive::new().with_time(gone / 2).with_interval(gone / 8).with_retries(4);
    socket.set_tcp_keepalive(&looks)?;
    socket.set_tcp_user_timeout(Some(gone))
}
