//! TCP: listening, connections, and the bounds on what peers can make the server hold.
//!
//! 1. An idle connection has no buffer. A small record takes one of [`SMALL_BYTES`]; a large one
//!    first takes its size (the largest record's, until its last fragment says its size) out of a budget
//!    that all connections share, of which each address has a share.
//! 2. A record that does not arrive whole in time ends its connection, as do replies that the peer
//!    takes more slowly than a minimum rate, which is higher while others wait for the memory that they
//!    hold ([`drain`]). A large record that makes no progress does
//!    so within seconds if others wait for the memory that it holds.
//! 3. At most [`Limits::in_flight`] calls of a connection wait at a time, and its replies take about
//!    [`Limits::reply_bytes`]; at either bound its next calls wait in the socket. The replies of all
//!    connections together take [`Limits::all_reply_bytes`], of which each address has a share.
//! 4. At most [`Limits::connections`] connections are open, of which each address has a share; the
//!    next one is closed at once, and the log says so. One that has been silent for long is closed unless it
//!    serves a backchannel, and one whose other end is gone.

mod accept_errors;
mod call;
mod connection;
mod drain;
mod local;
mod polling;
mod socket;
#[cfg(test)]
mod tests;

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

/// The size of read that needs no share of the budget, in bytes.
const SMALL_BYTES: usize = 16 << 10;

/// What peers can make the server hold.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Connections. An address may have as many as it leaves free.
    pub connections: usize,
    /// Largest record, in bytes.
    pub record_bytes: usize,
    /// Calls of one connection that wait for something at a time.
    pub in_flight: usize,
    /// Bytes of large calls, of all connections together. An address may hold as much as it leaves free.
    pub call_bytes: usize,
    /// Bytes of replies of one connection, from before they are made until they are sent. Results that are small
    /// or that no operation reserves may take an eighth of this on top.
    pub reply_bytes: usize,
    /// Bytes of replies of all connections together. An address may hold as much as it leaves free.
    pub all_reply_bytes: usize,
    /// Bytes per second that a peer takes at least of the replies that wait for it, on average over
    /// [`stall`](Self::stall), while the memory that they hold is short: each connection, or those of an address
    /// together if it is short for that address alone.
    pub min_drain_rate: u64,
    /// The same while there is enough memory, and the least that is ever expected.
    pub least_drain_rate: u64,
    /// How long a begun record may take to arrive, and over how long the rate is taken at which a peer takes its
    /// replies.
    pub stall: Duration,
    /// How long a connection may be silent that is not in use. One that the server calls its client back over is.
    pub idle: Duration,
    /// How long calls may go on after the server was told to stop.
    pub drain: Duration,
}

impl Default for Limits {
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
    limits: Limits,
    programs: Programs,
    admission: Arc<Admission>,
    addresses: Arc<Addresses>,
    next_id: AtomicU64,
    stop: CancellationToken,
}

impl Transport {
    /// Serves `programs`, for which peers may introduce `clients`.
    pub(crate) fn new(
        limits: Limits,
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
        Self { limits, programs, admission, addresses, next_id, stop }
    }

    /// What peers hold, by their addresses.
    pub(crate) fn addresses(&self) -> &Arc<Addresses> {
        &self.addresses
    }

    /// Accepts connections until told to stop, then waits for calls being executed.
    pub(crate) async fn serve(self: Arc<Self>, listeners: Vec<TcpListener>) {
        let tasks = TaskTracker::new();
        join_all(listeners.into_iter().map(|listener| self.accept(listener, &tasks))).await;
        // Without a listener, calls come through local connections.
        self.stop.cancelled().await;
        tasks.close();
        if tokio::time::timeout(self.limits.drain, tasks.wait()).await.is_err() {
            info!("{} connections had calls under way after {:?}", tasks.len(), self.limits.drain);
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
                            warn!("cannot accept a connection: {error} ({more} times more before)")
                        }
                        None => debug!("cannot accept a connection: {error}"),
                    }
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
    }

    /// Serves a connection if its address may have another one.
    fn admit(self: Arc<Self>, tasks: &TaskTracker, stream: TcpStream, addr: SocketAddr) {
        let shares = self.addresses.shares_of(addr.ip());
        match shares.connections.try_take(1) {
            Some(place) => self.start(tasks, stream, addr, (shares, place)),
            None if shares.was_refused.swap(true, Ordering::Relaxed) => {
                debug!("{addr}: refused: its address has as many connections as it may have");
            }
            None => {
                let (open, limit) = (self.addresses.connections.used(), self.limits.connections);
                warn!(
                    "refusing a connection from {addr}: {open} of {limit} are open, and {} has its share",
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
        (shares, place): (Arc<AddressShares>, Taken),
    ) {
        let gone = self.limits.stall * 2;
        if let Err(error) = notice_gone(&stream, gone) {
            debug!("{addr}: cannot have the kernel look whether it is there: {error}");
        }
        if let Err(error) = stream.set_nodelay(true) {
            debug!("{addr}: cannot set TCP_NODELAY: {error}");
        }
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        // It has one as long as it is connected; if it is not any more, nothing will be done with it.
        let local = stream.local_addr().unwrap_or(addr);
        tasks.spawn(async move {
            debug!("{addr}: connected");
            let origin = Origin::of(addr, local).await;
            let (bytes, admission) = (self.limits.reply_bytes, self.admission.clone());
            let from = From { addr, local, origin, address: shares.clone() };
            let peer = Arc::new(Peer::new(id, from, bytes, admission));
            let transport = self.clone();
            let end = Connection::new(self, stream, peer.clone(), shares).run().await;
            peer.close();
            transport.programs.disconnected(&peer);
            drop((peer, place));
            debug!("{addr}: {end}");
        });
    }
}

/// Has the kernel end a connection whose other end has not answered for `gone`, also if nothing is sent.
fn notice_gone(stream: &TcpStream, gone: Duration) -> io::Result<()> {
    let socket = SockRef::from(stream);
    let looks = TcpKeepalive::new().with_time(gone / 2).with_interval(gone / 8).with_retries(4);
    socket.set_tcp_keepalive(&looks)?;
    socket.set_tcp_user_timeout(Some(gone))
}
