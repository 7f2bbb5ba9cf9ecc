//! Opening TCP connections, and closing broken ones.
//!
//! 1. A connection that replaces a broken one uses the same local port if possible: the reply
//!    caches of NFSv3 and 4.0 servers identify a resent call by its xid and source address.

use super::peer::{Locate, Peer};
use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::timeout;
use weir_rpc::net::{self, Source};

/// For one of several addresses.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Connects to the first address that answers, from local `port` if it is given and free.
pub(super) async fn connect(peer: &Peer, port: Option<u16>) -> io::Result<TcpStream> {
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    let at = match &peer.locate {
        Some(Locate(locate)) => Some(locate().await?),
        None => None,
    };
    for &addr in &peer.addrs {
        let addr = at.map_or(addr, |port| SocketAddr::new(addr.ip(), port));
        let source = Source { port, ..peer.source() };
        match timeout(CONNECT_TIMEOUT, net::connect(addr, source)).await {
            Ok(Ok(socket)) => return Ok(socket),
            Ok(Err(error)) => last = error,
            Err(_) => last = io::ErrorKind::TimedOut.into(),
        }
    }
    Err(last)
}

/// Closes a broken connection without waiting for the peer, so that its port can be reused.
pub(super) fn abort(socket: TcpStream) {
    // If the reset fails, the connection closes normally, and the next one uses another port.
    let _ = socket.set_zero_linger();
    drop(socket);
}
