//! Making TCP connections, and ending those that broke.
//!
//! 1. A connection that replaces a broken one comes from the same port where that can be had: the
//!    reply caches of NFSv3 and 4.0 servers tell a repeated call by its xid and where it comes from.

use super::peer::{Locate, Peer};
use socket2::{Domain, Protocol, Socket, TcpKeepalive, Type};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

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
        match timeout(CONNECT_TIMEOUT, connect_to(addr, peer.resvport, port)).await {
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

async fn connect_to(addr: SocketAddr, resvport: bool, port: Option<u16>) -> io::Result<TcpStream> {
    if let Some(port) = port {
        let socket = new_socket(addr)?;
        if socket.bind(&SocketAddr::new(any(addr), port).into()).is_ok() {
            match TcpSocket::from_std_stream(socket.into()).connect(addr).await {
                Err(error) if is_taken(&error) => {}
                outcome => return outcome,
            }
        }
    }
    if resvport {
        // Some reserved ports may be in use or wait for old connections; try a few.
        for _ in 0..8 {
            let socket = new_socket(addr)?;
            if bind_reserved(&socket, addr).is_err() {
                break;
            }
            match TcpSocket::from_std_stream(socket.into()).connect(addr).await {
                Err(error) if is_taken(&error) => {}
                outcome => return outcome,
            }
        }
    }
    TcpSocket::from_std_stream(new_socket(addr)?.into()).connect(addr).await
}

fn is_taken(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::AddrInUse | io::ErrorKind::AddrNotAvailable)
}

fn new_socket(addr: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    socket.set_tcp_nodelay(true)?;
    // The port can be bound again while the end of this connection is remembered.
    socket.set_reuse_address(true)?;
    let idle = Duration::from_secs(30);
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(idle).with_interval(idle / 3))?;
    Ok(socket)
}

/// Every address of this machine, of the same family.
fn any(addr: SocketAddr) -> IpAddr {
    match addr {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    }
}

/// Binds a free port of those that only privileged programs may use.
fn bind_reserved(socket: &Socket, addr: SocketAddr) -> io::Result<()> {
    // One that another connection is using is no good here.
    socket.set_reuse_address(false)?;
    let start = getrandom::u32().unwrap_or(0);
    let mut last = io::Error::from(io::ErrorKind::AddrInUse);
    for i in 0..RESERVED_PORTS {
        let port = 1023 - (start.wrapping_add(i) % RESERVED_PORTS) as u16;
        match socket.bind(&SocketAddr::new(any(addr), port).into()) {
            Ok(()) => return socket.set_reuse_address(true),
            Err(e) if e.kind() == io::ErrorKind::AddrInUse => last = e,
            Err(e) => return Err(e),
        }
    }
    Err(last)
}

/// Ports 665 to 1023, as Linux's client uses.
const RESERVED_PORTS: u32 = 359;
