//! The listening sockets: those that systemd passes, or the server's own.

use crate::config::Bind;
use socket2::{Domain, Socket, Type};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;
use weir_tools::failure::{Asked, Failure, Result};

/// The port of NFS.
pub(super) const NFS_PORT: u16 = 2049;
/// Ports to try next if it is not available and no port was given.
const OTHER_PORTS: std::ops::Range<u16> = 2050..2150;
/// How long a server waits for its configured port.
const PATIENCE: Duration = Duration::from_secs(5);
/// Between two attempts.
const RETRY: Duration = Duration::from_millis(50);

/// The sockets to serve: those that systemd passed, or else sockets at the configured addresses.
pub(super) fn listeners(asked: &[Bind]) -> Result<Vec<TcpListener>> {
    let handed = handed_over()?;
    if !handed.is_empty() {
        return Ok(handed);
    }
    if asked.is_empty() {
        return Ok(vec![listen(Bind::default(), false)?]);
    }
    // `[::]` includes IPv4, unless `0.0.0.0` is configured as well.
    let with_v4 = asked.iter().any(|bind| bind.ip().is_ipv4());
    asked.iter().map(|bind| listen(*bind, with_v4 && bind.ip().is_ipv6())).collect()
}

/// The sockets that systemd passed to this process, if any (sd_listen_fds(3)).
fn handed_over() -> Result<Vec<TcpListener>> {
    let mut handed = listenfd::ListenFd::from_env();
    let taken = (0..handed.len()).map(|at| {
        let socket = handed.take_tcp_listener(at);
        socket.asked(|| format!("use socket {at} of those that were handed over"))
    });
    Ok(taken.collect::<Result<Vec<_>>>()?.into_iter().flatten().collect())
}

/// Listens at the configured port, or else at the default port or the next free one.
fn listen(bind: Bind, only_v6: bool) -> Result<TcpListener> {
    let listen = |port| listen_at(SocketAddr::new(bind.ip(), port), only_v6);
    let asked = |port| move || format!("listen on {}", SocketAddr::new(bind.ip(), port));
    if let Some(port) = bind.port {
        let listening = patiently(|| listen(port), std::thread::sleep);
        return listening.map_err(|error| refused(asked(port)(), &error));
    }
    match listen(NFS_PORT) {
        Err(error) if port_is_taken(&error) => {}
        result => return result.asked(asked(NFS_PORT)),
    }
    OTHER_PORTS.map(listen).find_map(Result::ok).ok_or_else(|| {
        let failed = format!("neither that port nor {OTHER_PORTS:?} is available");
        Failure::new(asked(NFS_PORT)(), failed).advice("choose a port with --bind")
    })
}

/// Repeats `listen` while the port is in use, for [`PATIENCE`] at most: a server that was killed holds it until its
/// last system call has ended.
fn patiently<T>(
    listen: impl Fn() -> io::Result<T>,
    mut sleep: impl FnMut(Duration),
) -> io::Result<T> {
    let mut left = PATIENCE;
    loop {
        match listen() {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && left > Duration::ZERO => {
                if left == PATIENCE {
                    tracing::warn!("the port is in use; waiting for {PATIENCE:?}");
                }
                sleep(RETRY);
                left = left.saturating_sub(RETRY);
            }
            listening => return listening,
        }
    }
}

/// Listens at an address; with `only_v6`, for IPv6 only.
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
            failure.advice("another server uses that port; stop it, or choose another with --bind")
        }
        io::ErrorKind::PermissionDenied => {
            failure.advice("ports below 1024 need root; choose another with --bind")
        }
        io::ErrorKind::AddrNotAvailable => {
            failure.advice("this machine has no such address; use 0.0.0.0 for all its addresses")
        }
        _ => failure,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn serve_waits_for_a_port_that_a_killed_server_still_holds() {
        let held = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = held.local_addr().unwrap();
        let (mut held, mut slept) = (Some(held), 0);
        let listening = patiently(
            || listen_at(address, false),
            |_| {
                slept += 1;
                held.take_if(|_| slept == 3);
            },
        );
        assert_eq!((listening.unwrap().local_addr().unwrap(), slept), (address, 3));

        let held = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = held.local_addr().unwrap();
        let mut slept = Duration::ZERO;
        let refused = patiently(|| listen_at(address, false), |time| slept += time);
        assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::AddrInUse);
        assert_eq!(slept, PATIENCE);
    }
}
