//! Where a connection comes from, as far as the server can verify.

use super::socket_owner;
use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6, UdpSocket};
use std::sync::OnceLock;

/// The first port that any user may bind, unless the machine is configured otherwise.
const FIRST_UNPRIVILEGED: u16 = 1024;

/// Which machine a connection comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Locality {
    /// This machine, with the user that owns the peer's socket, if known.
    Here(Option<u32>),
    /// Another machine, or another network namespace.
    Elsewhere,
}

/// Where a connection comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    locality: Locality,
    privileged: bool,
}

impl Origin {
    pub(super) const fn new(locality: Locality, privileged: bool) -> Self {
        Self { locality, privileged }
    }

    /// The origin of a connection from `peer` to `local`. Call this while the connection is new: it
    /// looks up the peer's socket, which must still be open.
    pub(crate) async fn of(peer: SocketAddr, local: SocketAddr) -> Self {
        let owner = socket_owner::find(peer, local).await;
        Self::seen([peer, local], owner, first_unprivileged_here())
    }

    /// The origin of a connection from `port` of another machine.
    pub(crate) fn elsewhere(port: u16) -> Self {
        Self::at(Locality::Elsewhere, port, FIRST_UNPRIVILEGED)
    }

    /// The origin of a datagram with source address `from`.
    pub(crate) async fn of_datagram(from: SocketAddr) -> Self {
        let locality = if is_own_address(from) {
            Locality::Here(socket_owner::find_sender(from).await)
        } else {
            Locality::Elsewhere
        };
        Self::at(locality, from.port(), first_unprivileged_here())
    }

    /// The origin of a connection, given the owner of the peer's socket, if known, and the first
    /// port that unprivileged users of this machine may bind.
    fn seen([peer, local]: [SocketAddr; 2], owner: Option<u32>, first_here: u16) -> Self {
        // A local program may have closed its socket before the lookup, and may have bound any of
        // this machine's addresses.
        let may_be_users = || (first_here..FIRST_UNPRIVILEGED).contains(&peer.port());
        let locality = match owner {
            Some(owner) => Locality::Here(Some(owner)),
            None if is_same_machine(peer, local) => Locality::Here(None),
            None if may_be_users() && is_own_address(peer) => Locality::Here(None),
            None => Locality::Elsewhere,
        };
        Self::at(locality, peer.port(), first_here)
    }

    fn at(locality: Locality, port: u16, first_here: u16) -> Self {
        let bound = match locality {
            Locality::Here(_) => first_here,
            Locality::Elsewhere => FIRST_UNPRIVILEGED,
        };
        Self::new(locality, port < bound)
    }

    pub(super) fn locality(&self) -> Locality {
        self.locality
    }

    /// The local user for which alone the peer may speak: the owner of its socket. `None` for the
    /// superuser's sockets, privileged ports and other machines.
    pub(crate) fn only_user(&self) -> Option<u32> {
        match self.locality {
            Locality::Here(Some(owner)) if owner != 0 && !self.privileged => Some(owner),
            _ => None,
        }
    }

    /// Whether the peer may speak for its machine as a whole. On this machine, the superuser and
    /// the server's own user may, and a socket with unknown owner at a privileged port. For another
    /// machine, the caller must check the port ([`is_privileged`](Self::is_privileged)).
    pub(crate) fn speaks_for_machine(&self) -> bool {
        match self.locality {
            Locality::Here(Some(owner)) => {
                owner == 0 || owner == rustix::process::geteuid().as_raw()
            }
            Locality::Here(None) => self.privileged,
            Locality::Elsewhere => true,
        }
    }

    /// Whether only a superuser may bind the peer's port.
    pub(crate) fn is_privileged(&self) -> bool {
        self.privileged
    }
}

impl std::fmt::Display for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.locality {
            Locality::Here(Some(owner)) => write!(f, "a local socket of user {owner}"),
            Locality::Here(None) => f.write_str("a local socket whose owner is not known"),
            Locality::Elsewhere if self.privileged => f.write_str("a privileged port"),
            Locality::Elsewhere => f.write_str("an unprivileged port"),
        }
    }
}

fn is_same_machine(peer: SocketAddr, local: SocketAddr) -> bool {
    let [peer, local] = [peer, local].map(|addr| addr.ip().to_canonical());
    peer.is_loopback() || peer == local
}

/// Whether an address may belong to this machine. Only a machine's own addresses can be bound.
fn is_own_address(address: SocketAddr) -> bool {
    let any_port = match (address.ip().to_canonical(), address) {
        // A link-local address can only be bound with its scope.
        (IpAddr::V6(ip), SocketAddr::V6(v6)) => SocketAddrV6::new(ip, 0, 0, v6.scope_id()).into(),
        (ip, _) => SocketAddr::new(ip, 0),
    };
    UdpSocket::bind(any_port).map_or_else(|error| !is_foreign(&error), |_| true)
}

/// Whether bind failed because the address is not this machine's. Other errors, such as a lack of
/// file descriptors, say nothing about the address.
fn is_foreign(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::AddrNotAvailable
}

/// The first port that unprivileged users of this machine may bind (ip(7),
/// `ip_unprivileged_port_start`), at most 1024.
fn first_unprivileged_here() -> u16 {
    static FIRST: OnceLock<u16> = OnceLock::new();
    *FIRST.get_or_init(|| {
        let text = std::fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start");
        let first = text.ok().and_then(|text| text.trim().parse().ok());
        first.unwrap_or(FIRST_UNPRIVILEGED).min(FIRST_UNPRIVILEGED)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::Errno;
    use std::net::{TcpListener, TcpStream};

    #[tokio::test]
    async fn a_connection_of_this_process_belongs_to_its_user() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(address) else { continue };
            let here = listener.local_addr().expect("an address");
            let _client = TcpStream::connect(here).expect("connects");
            let (server, peer) = listener.accept().expect("is there");
            let origin = Origin::of(peer, server.local_addr().expect("an address")).await;
            let own = rustix::process::geteuid().as_raw();
            assert_eq!(origin, Origin::new(Locality::Here(Some(own)), false), "{address}");
        }
    }

    #[tokio::test]
    async fn a_closed_socket_has_no_owner() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let client = TcpStream::connect(listener.local_addr().expect("bound")).expect("connects");
        let (server, peer) = listener.accept().expect("is there");
        drop(client);
        // Not root: the kernel shows a socket without an owner as root's.
        let origin = Origin::of(peer, server.local_addr().expect("an address")).await;
        assert_eq!(origin, Origin::new(Locality::Here(None), false));
    }

    #[test]
    fn an_unprivileged_local_port_does_not_prove_the_superuser() {
        // Addresses of which neither is a loopback address nor equal to the other.
        let own = "[::ffff:127.0.0.1]:700".parse().expect("one");
        let [other, local] = ["192.0.2.7:700", "192.0.2.1:2049"].map(|a| a.parse().expect("one"));
        assert!(is_own_address("127.0.0.1:700".parse().expect("one")));
        for first_here in [0, 700] {
            let origin = Origin::seen([own, local], None, first_here);
            assert_eq!(origin, Origin::new(Locality::Here(None), false));
            let origin = Origin::seen([other, local], None, first_here);
            assert_eq!(origin, Origin::new(Locality::Elsewhere, true));
        }
    }

    #[test]
    fn only_the_kernel_decides_that_an_address_is_remote() {
        assert!(!is_own_address("192.0.2.7:700".parse().expect("one")));
        for (error, foreign) in [
            (Errno::ADDRNOTAVAIL, true),
            (Errno::MFILE, false),
            (Errno::NFILE, false),
            (Errno::NOBUFS, false),
            (Errno::INVAL, false),
        ] {
            assert_eq!(is_foreign(&error.into()), foreign, "{error}");
        }
        // A link-local address without a scope cannot be bound.
        assert!(is_own_address("[fe80::7]:700".parse().expect("one")));
        // With its scope, a link-local address of this machine is recognized (proc_net(5),
        // `if_inet6`).
        let own = std::fs::read_to_string("/proc/net/if_inet6").unwrap_or_default();
        for line in own.lines().filter(|line| line.starts_with("fe80")) {
            let mut words = line.split_whitespace();
            let hex = |word: Option<&str>| u128::from_str_radix(word.expect("there"), 16);
            let ip = hex(words.next()).expect("an address");
            let link = hex(words.next()).expect("a link") as u32;
            // The address cannot be bound during duplicate address detection (IFA_F_TENTATIVE).
            if hex(words.nth(2)).expect("flags") & 0x40 != 0 {
                continue;
            }
            let at = |ip: u128| SocketAddr::V6(SocketAddrV6::new(ip.into(), 700, 0, link));
            assert!(is_own_address(at(ip)), "{line}");
            assert!(!is_own_address(at(ip ^ 0xff00)), "{line}");
        }
    }

    #[test]
    fn only_the_superuser_may_speak_for_this_machine() {
        let own = rustix::process::geteuid().as_raw();
        let at = |owner, port, first_here| Origin::at(Locality::Here(owner), port, first_here);
        for (owner, first_here, speaks) in [
            (Some(0), 0, true),
            (Some(own), 0, true),
            (Some(own + 1), 0, false),
            (Some(own + 1), 1024, false),
            // The program has closed the socket: a port that users may not bind was the
            // superuser's.
            (None, 0, false),
            (None, 1024, true),
        ] {
            assert_eq!(at(owner, 700, first_here).speaks_for_machine(), speaks, "{owner:?}");
        }
        assert!(Origin::at(Locality::Elsewhere, 700, 0).speaks_for_machine());
        let only = |owner, port| at(owner, port, 1024).only_user();
        assert_eq!(
            [only(Some(7), 1024), only(Some(7), 700), only(Some(0), 1024)],
            [Some(7), None, None]
        );
    }

    #[tokio::test]
    async fn a_connection_from_another_machine_is_remote() {
        let [peer, local] = ["192.0.2.7:700", "192.0.2.1:2049"].map(|a| a.parse().expect("one"));
        assert_eq!(Origin::of(peer, local).await, Origin::new(Locality::Elsewhere, true));
        let peer = "192.0.2.7:1024".parse().expect("one");
        assert_eq!(Origin::of(peer, local).await, Origin::new(Locality::Elsewhere, false));
    }
}
