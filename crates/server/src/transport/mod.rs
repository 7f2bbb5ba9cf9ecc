//! TCP: listening, connections, and the bounds on what peers can make the server hold.
//!
//! 1. An idle connection has no buffer. A small record takes one of [`SMALL_BYTES`]; a large one
//!    first takes the largest record's size out of a budget that all connections share.
//! 2. A record that does not arrive whole in time ends its connection, as does a reply that the
//!    peer does not take. A large one that makes no progress does so within seconds if others wait
//!    for the memory that it holds.
//! 3. At most [`Limits::in_flight`] calls of a connection wait at a time, and at most
//!    [`Limits::reply_bytes`] of payload are queued for it; at either bound its next calls wait in
//!    the socket, and no other connection's do.
//! 4. At most [`Limits::connections`] connections are open; the next one is closed at once, and
//!    the log says so.

mod connection;
mod polling;
mod socket;
#[cfg(test)]
mod tests;

use crate::admission::{Admission, Origin};
use crate::peer::Peer;
use crate::program::Programs;
use connection::Connection;
use futures_util::future::join_all;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, info, warn};

/// The size of read that needs no share of the budget, in bytes.
const SMALL_BYTES: usize = 16 << 10;

/// What peers can make the server hold.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Connections.
    pub connections: usize,
    /// Largest record, in bytes.
    pub record_bytes: usize,
    /// Calls of one connection that wait for something at a time.
    pub in_flight: usize,
    /// Bytes of large calls, of all connections together.
    pub call_bytes: usize,
    /// Bytes of payload queued for one connection.
    pub reply_bytes: usize,
    /// How long a begun record may take to arrive, and a reply to be taken.
    pub stall: Duration,
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
            stall: Duration::from_secs(60),
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
    call_bytes: Arc<Semaphore>,
    next_id: AtomicU64,
    stop: CancellationToken,
}

impl Transport {
    pub(crate) fn new(
        limits: Limits,
        programs: Programs,
        admission: Arc<Admission>,
        stop: CancellationToken,
    ) -> Self {
        let call_bytes = Arc::new(Semaphore::new(limits.call_bytes.min(Semaphore::MAX_PERMITS)));
        Self { limits, programs, admission, call_bytes, next_id: AtomicU64::new(1), stop }
    }

    /// Accepts connections until told to stop, then waits for calls being executed.
    pub(crate) async fn serve(self: Arc<Self>, listeners: Vec<TcpListener>) {
        let tasks = TaskTracker::new();
        join_all(listeners.into_iter().map(|listener| self.accept(listener, &tasks))).await;
        tasks.close();
        if tokio::time::timeout(self.limits.drain, tasks.wait()).await.is_err() {
            info!("{} connections had calls under way after {:?}", tasks.len(), self.limits.drain);
        }
    }

    async fn accept(self: &Arc<Self>, listener: TcpListener, tasks: &TaskTracker) {
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = self.stop.cancelled() => return,
            };
            match accepted {
                Ok((stream, _)) if tasks.len() >= self.limits.connections => {
                    warn!(
                        "refusing a connection from {}: {} are open, which is the limit",
                        peer_name(&stream),
                        self.limits.connections
                    );
                }
                Ok((stream, addr)) => self.clone().start(tasks, stream, addr),
                Err(error) => {
                    warn!("cannot accept a connection: {error}");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
    }

    fn start(self: Arc<Self>, tasks: &TaskTracker, stream: TcpStream, addr: std::net::SocketAddr) {
        if let Err(error) = stream.set_nodelay(true) {
            debug!("{addr}: cannot set TCP_NODELAY: {error}");
        }
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        // It has one as long as it is connected; if it is not any more, nothing will be done with it.
        let local = stream.local_addr().unwrap_or(addr);
        tasks.spawn(async move {
            debug!("{addr}: connected");
            let origin = Origin::of(addr, local).await;
            let (reply_bytes, admission) = (self.limits.reply_bytes, self.admission.clone());
            let peer = Arc::new(Peer::new(id, [addr, local], origin, reply_bytes, admission));
            let transport = self.clone();
            let end = Connection::new(self, stream, peer.clone()).run().await;
            peer.close();
            transport.programs.disconnected(&peer);
            debug!("{addr}: {end}");
        });
    }
}

fn peer_name(stream: &TcpStream) -> String {
    stream.peer_addr().map_or_else(|_| "an unknown peer".into(), |addr| addr.to_string())
}
