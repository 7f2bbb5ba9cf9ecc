//! The server that a connection goes to, how long to wait for it, and what was sent and received.

use crate::error::{Error, Result};
use futures_util::future::BoxFuture;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tokio::time::sleep;
use weir_rpc::net::Source;

/// A server, and how to connect to it.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    /// Host and port, for people.
    pub(crate) name: Arc<str>,
    /// Where it may be reached, in order of preference.
    pub(crate) addrs: Vec<SocketAddr>,
    /// Bind a port below 1024 where that is permitted.
    pub(crate) resvport: bool,
    /// Tells the port, if it may be another one when the server has restarted.
    pub(crate) locate: Option<Locate>,
    /// Whether anything there has ever answered a call, on whichever connection.
    pub(crate) heard: Arc<AtomicBool>,
}

/// Finds out at which port a server is now.
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
    /// The port that it is reached at.
    pub(crate) fn port(&self) -> u16 {
        self.addrs.first().map_or(0, SocketAddr::port)
    }

    /// Where connections to it come from.
    pub(crate) fn source(&self) -> Source {
        Source { reserved: self.resvport, ..Source::ANY }
    }

    /// Waits for `first`, the outcome of a first exchange, for as long as a server that is there
    /// takes for its first answer. From then on a server that is away is waited for.
    pub(crate) async fn first<T>(&self, first: impl Future<Output = Result<T>>) -> Result<T> {
        let silence = async {
            sleep(FIRST_PATIENCE).await;
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

/// How long a server may take for its very first answer, connecting included.
const FIRST_PATIENCE: Duration = Duration::from_secs(10);

/// How long to wait for an answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// Until the connection is made anew.
    pub(crate) timeo: Duration,
    /// A soft call fails after so many more.
    pub(crate) retrans: u32,
    /// Never fail.
    pub(crate) hard: bool,
}

/// What went over the wire.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    /// Bytes sent.
    pub(crate) sent: AtomicU64,
    /// Bytes received.
    pub(crate) received: AtomicU64,
    /// Connections made after the first.
    pub(crate) reconnects: AtomicU64,
}
