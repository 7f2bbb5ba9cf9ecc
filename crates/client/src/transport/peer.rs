//! The server of a connection, the time limits of its calls, and traffic counters.

use crate::error::{Error, Result};
use futures_util::future::BoxFuture;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tokio::time::sleep;
use weir_base::sync::Mutex;
use weir_rpc::net::Source;

/// A server, and how to connect to it.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    /// Host and port, for messages.
    pub(crate) name: Arc<str>,
    /// Its addresses, in order of preference.
    pub(crate) addrs: Vec<SocketAddr>,
    /// Of them, the one that accepted the last connection, to any of the server's ports.
    pub(crate) answered: Arc<Mutex<Option<IpAddr>>>,
    /// Bind a port below 1024 if permitted.
    pub(crate) resvport: bool,
    /// Looks up the port, if it may change when the server restarts.
    pub(crate) locate: Option<Locate>,
    /// Whether the server has ever answered a call, on any connection.
    pub(crate) heard: Arc<AtomicBool>,
}

/// Looks up the current port of a server.
#[derive(Clone)]
pub(crate) struct Locate(
    pub(crate) Arc<dyn Fn() -> BoxFuture<'static, io::Result<u16>> + Send + Sync>,
);

impl std::fmt::Debug for Locate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Locate")
    }
}

impl Peer {
    /// The server's port.
    pub(crate) fn port(&self) -> u16 {
        self.addrs.first().map_or(0, SocketAddr::port)
    }

    /// Its addresses in the order to try them: the one that answered last comes first.
    pub(crate) fn addrs_to_try(&self) -> Vec<SocketAddr> {
        let answered = *self.answered.lock();
        let mut addrs = self.addrs.clone();
        addrs.sort_by_key(|addr| answered.is_some_and(|ip| addr.ip() != ip));
        addrs
    }

    /// Notes that an address accepted a connection.
    pub(super) fn note_answer(&self, addr: SocketAddr) {
        *self.answered.lock() = Some(addr.ip());
    }

    /// The local address for connections to it.
    pub(crate) fn source(&self) -> Source {
        Source { reserved: self.resvport, ..Source::ANY }
    }

    /// Waits for `first`, the result of the first exchange, as long as a working server may take.
    /// Later calls wait for a server that is down.
    pub(crate) async fn first<T>(&self, first: impl Future<Output = Result<T>>) -> Result<T> {
        let silence = async {
            // In steps, so that time in which this process stands still counts as one of them.
            for _ in 0..FIRST_PATIENCE.as_secs() {
                sleep(Duration::from_secs(1)).await;
            }
            if self.heard.load(Relaxed) {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            outcome = first => outcome,
            () = silence => Err(Error::NoAnswer { server: Arc::clone(&self.name) }),
        }
    }
}

/// Longest time for a server's very first answer, connecting included.
const FIRST_PATIENCE: Duration = Duration::from_secs(10);

/// Time limits of a call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// Time until the connection is re-established.
    pub(crate) timeo: Duration,
    /// Number of further periods until a soft call fails.
    pub(crate) retrans: u32,
    /// Whether calls never fail.
    pub(crate) hard: bool,
}

impl Patience {
    /// How long a soft call waits for its reply.
    pub(crate) fn limit(&self) -> Duration {
        self.timeo * (self.retrans + 1)
    }
}

/// Traffic counters.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    /// Bytes sent.
    pub(crate) sent: AtomicU64,
    /// Bytes received.
    pub(crate) received: AtomicU64,
    /// Connections made after the first.
    pub(crate) reconnects: AtomicU64,
}
