//! Making TCP connections, and ending those that broke.
//!
//! 1. A connection that replaces a broken one comes from the same port where that can be had: the
//!    reply caches of NFSv3 and 4.0 servers tell a repeated call by its xid and where it comes from.

use super::peer::{Locate, Peer};
use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::timeout;
use weir_rpc::net::{self, Source};

/// For one address of several.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Connects to the first address that answers, from `port` if there is one and it can be had.
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

/// Ends a broken connection without waiting for the peer, so that its port can be used again.
pub(super) fn abort(socket: TcpStream) {
    // One that cannot be reset ends like any other, and the next takes another port.
    let _ = socket.set_zero_linger();
    drop(socket);
}
