//! The sockets that clients connect to: those that systemd hands over, or our own.

use crate::config::Bind;
use socket2::{Domain, Socket, Type};
use std::io;
use std::net::{SocketAddr, TcpListener};
use weir_tools::failure::{Asked, Failure, Result};

/// The port of NFS.
pub(super) const NFS_PORT: u16 = 2049;
/// Ports tried after it, when it may not be had and none was asked for.
const OTHER_PORTS: std::ops::Range<u16> = 2050..2150;

/// The sockets to serve: those handed over, if there are any, else at the addresses asked for.
pub(super) fn listeners(asked: &[Bind]) -> Result<Vec<TcpListener>> {
    let handed = handed_over()?;
    if !handed.is_empty() {
        return Ok(handed);
    }
    if asked.is_empty() {
        return Ok(vec![listen(Bind::default(), false)?]);
    }
    // `[::]` stands for all of IPv4, too, unless `0.0.0.0` is asked for beside it.
    let with_v4 = asked.iter().any(|bind| bind.ip().is_ipv4());
    asked.iter().map(|bind| listen(*bind, with_v4 && bind.ip().is_ipv6())).collect()
}

/// The sockets that systemd listens on for this process, if it does (sd_listen_fds(3)).
fn handed_over() -> Result<Vec<TcpListener>> {
    let mut handed = listenfd::ListenFd::from_env();
    let taken = (0..handed.len()).map(|at| {
        let socket = handed.take_tcp_listener(at);
        socket.asked(|| format!("use socket {at} of those that were handed over"))
    });
    Ok(taken.collect::<Result<Vec<_>>>()?.into_iter().flatten().collect())
}

/// Listens at the port asked for, or at the usual one, or at the next one that is free.
fn listen(bind: Bind, only_v6: bool) -> Result<TcpListener> {
    let listen = |port| listen_at(SocketAddr::new(bind.ip(), port), only_v6);
    let asked = |port| move || format!("listen on {}", SocketAddr::new(bind.ip(), port));
    if let Some(port) = bind.port {
        return listen(port).map_err(|error| refused(asked(port)(), &error));
    }
    match listen(NFS_PORT) {
        Err(error) if port_is_taken(&error) => {}
        result => return result.asked(asked(NFS_PORT)),
    }
    OTHER_PORTS.map(listen).find_map(Result::ok).ok_or_else(|| {
        let failed = format!("neither that port nor {OTHER_PORTS:?} can be had");
        Failure::new(asked(NFS_PORT)(), failed).advice("choose a port with --bind")
    })
}

/// Listens at an address; with `only_v6`, not for IPv4 as well.
fn listen_at(address: SocketAddr, only_v6: bool) -> io::Result<TcpListener> {
    if !only_v6 {
        return TcpListener::bind(address);
    }
    const BACKLOG: i32 = 1024;
    let socket = Socket::new(Domain::IPV6, Type::STREAM, None)?;
    socket.set_only_v6(true)?;
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

fn port_is_taken(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::AddrInUse | io::ErrorKind::PermissionDenied)
}

fn refused(asked: String, error: &io::Error) -> Failure {
    let failure = Failure::new(asked, error.to_string());
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            failure.advice("another server has that port; stop it, or choose another with --bind")
        }
        io::ErrorKind::PermissionDenied => {
            failure.advice("ports below 1024 are root's; choose another with --bind")
        }
        io::ErrorKind::AddrNotAvailable => {
            failure.advice("this machine has no such address; 0.0.0.0 stands for all it has")
        }
        _ => failure,
    }
}
