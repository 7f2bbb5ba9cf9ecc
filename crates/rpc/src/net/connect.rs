//! Opening TCP connections, from a given port if possible.

use socket2::{Domain, Protocol, Socket, TcpKeepalive, Type};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;
use tokio::net::{TcpSocket, TcpStream};

/// The local end of a connection.
#[derive(Clone, Copy, Debug, Default)]
pub struct Source {
    /// The address of this machine; `None`: any.
    pub address: Option<IpAddr>,
    /// The port to try first.
    pub port: Option<u16>,
    /// Try the ports reserved to privileged programs first.
    pub reserved: bool,
}

impl Source {
    /// Any address and port.
    pub const ANY: Self = Self { address: None, port: None, reserved: false };
    /// A reserved port, if one is available.
    pub const RESERVED: Self = Self { reserved: true, ..Self::ANY };

    /// An address of this machine, and any port.
    pub const fn address(address: IpAddr) -> Self {
        Self { address: Some(address), ..Self::ANY }
    }
}

/// Ports 665 to 1023, as Linux's client uses.
const RESERVED_PORTS: u32 = 359;
/// Reserved ports to try: some may still be tied to an earlier connection to the same peer.
const ATTEMPTS: usize = 8;

/// Connects. If the source's port is not available, the connection uses another one.
///
/// # Errors
/// The peer cannot be reached, or the address is not one of this machine's.
pub async fn connect(to: SocketAddr, source: Source) -> io::Result<TcpStream> {
    let local = source.address.unwrap_or(match to {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    });
    if let Some(port) = source.port {
        let socket = new_socket(to)?;
        if socket.bind(&SocketAddr::new(local, port).into()).is_ok() {
            match connect_socket(socket, to).await {
                Err(error) if is_taken(&error) => {}
                outcome => return outcome,
            }
        }
    }
    if source.reserved {
        for _ in 0..ATTEMPTS {
            let socket = new_socket(to)?;
            if bind_reserved(&socket, local).is_err() {
                break;
            }
            match connect_socket(socket, to).await {
                Err(error) if is_taken(&error) => {}
                outcome => return outcome,
            }
        }
    }
    let socket = new_socket(to)?;
    if source.address.is_some() {
        bind_unshared(&socket, SocketAddr::new(local, 0))?;
    }
    connect_socket(socket, to).await
}

fn is_taken(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::AddrInUse | io::ErrorKind::AddrNotAvailable)
}

async fn connect_socket(socket: Socket, to: SocketAddr) -> io::Result<TcpStream> {
    TcpSocket::from_std_stream(socket.into()).connect(to).await
}

fn new_socket(to: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    socket.set_tcp_nodelay(true)?;
    // Allow binding the port again while this connection is in TIME_WAIT.
    socket.set_reuse_address(true)?;
    let idle = Duration::from_secs(30);
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(idle).with_interval(idle / 3))?;
    Ok(socket)
}

/// Binds an address that no other socket of this machine uses.
fn bind_unshared(socket: &Socket, local: SocketAddr) -> io::Result<()> {
    socket.set_reuse_address(false)?;
    socket.bind(&local.into())?;
    socket.set_reuse_address(true)
}

/// Binds a free port of the reserved range.
fn bind_reserved(socket: &Socket, local: IpAddr) -> io::Result<()> {
    let start = getrandom::u32().unwrap_or(0);
    let mut last = io::Error::from(io::ErrorKind::AddrInUse);
    for i in 0..RESERVED_PORTS {
        let port = 1023 - (start.wrapping_add(i) % RESERVED_PORTS) as u16;
        match bind_unshared(socket, SocketAddr::new(local, port)) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => last = error,
            outcome => return outcome,
        }
    }
    Err(last)
}
