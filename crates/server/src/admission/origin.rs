//! Where a connection comes from, as far as the server can tell by itself.

use super::socket_owner;
use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6, UdpSocket};
use std::sync::OnceLock;

/// Ports that only a superuser binds, where a machine has no other bound.
const FIRST_UNPRIVILEGED: u16 = 1024;

/// Which machine a connection comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Locality {
    /// This one; the user that owns the other end's socket, where that can be told.
    Here(Option<u32>),
    /// Another one, or another network namespace.
    Elsewhere,
}

/// Where a connection comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    place: Locality,
    privileged: bool,
}

impl Origin {
    pub(super) const fn new(place: Locality, privileged: bool) -> Self {
        Self { place, privileged }
    }

    /// The origin of a connection from `peer` to `local`. Looks the socket up, so this is to be
    /// asked while the connection is new.
    pub(crate) async fn of(peer: SocketAddr, local: SocketAddr) -> Self {
        let owner = socket_owner::find(peer, local).await;
        Self::seen([peer, local], owner, first_unprivileged_here())
    }

    /// The origin of a connection from this port of another machine.
    pub(crate) fn elsewhere(port: u16) -> Self {
        Self::at(Locality::Elsewhere, port, FIRST_UNPRIVILEGED)
    }

    /// The origin of a datagram that says that it is `from` there.
    pub(crate) async fn of_datagram(from: SocketAddr) -> Self {
        let place = if is_own_address(from) {
            Locality::Here(socket_owner::find_sender(from).await)
        } else {
            Locality::Elsewhere
        };
        Self::at(place, from.port(), first_unprivileged_here())
    }

    /// The same, knowing who owns the other end's socket, if that can be told, and the first port
    /// that users of this machine may bind.
    fn seen([peer, local]: [SocketAddr; 2], owner: Option<u32>, first_here: u16) -> Self {
        // A program may have closed its socket before it is looked up, and have bound any of this
        // machine's addresses.
        let may_be_users = || (first_here..FIRST_UNPRIVILEGED).contains(&peer.port());
        let place = match owner {
            Some(owner) => Locality::Here(Some(owner)),
            None if is_same_machine(peer, local) => Locality::Here(None),
            None if may_be_users() && is_own_address(peer) => Locality::Here(None),
            None => Locality::Elsewhere,
        };
        Self::at(place, peer.port(), first_here)
    }

    fn at(place: Locality, port: u16, first_here: u16) -> Self {
        let bound = match place {
            Locality::Here(_) => first_here,
            Locality::Elsewhere => FIRST_UNPRIVILEGED,
        };
        Self::new(place, port < bound)
    }

    pub(super) fn place(&self) -> Locality {
        self.place
    }

    /// The user of this machine whose socket the other end's is, if that is all that the other end may
    /// speak for: not the superuser's, nor at a port that only a superuser binds.
    pub(crate) fn only_user(&self) -> Option<u32> {
        match self.place {
            Locality::Here(Some(owner)) if owner != 0 && !self.privileged => Some(owner),
            _ => None,
        }
    }

    /// Whether the other end may speak for this machine as a whole, as the superuser and the server's own
    /// user may. Of another machine, its ports alone say that.
    pub(crate) fn speaks_for_machine(&self) -> bool {
        match self.place {
            Locality::Here(Some(owner)) => {
                owner == 0 || owner == rustix::process::geteuid().as_raw()
            }
            Locality::Here(None) => self.privileged,
            Locality::Elsewhere => true,
        }
    }

    /// The other end's port is one that only a superuser binds.
    pub(crate) fn is_privileged(&self) -> bool {
        self.privileged
    }
}

impl std::fmt::Display for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.place {
            Locality::Here(Some(owner)) => write!(f, "a socket of user {owner} of this machine"),
            Locality::Here(None) => {
                f.write_str("a socket of this machine whose owner is not known")
            }
            Locality::Elsewhere if self.privileged => f.write_str("a privileged port"),
            Locality::Elsewhere => f.write_str("a port that any user binds"),
        }
    }
}

fn is_same_machine(peer: SocketAddr, local: SocketAddr) -> bool {
    let [peer, local] = [peer, local].map(|addr| addr.ip().to_canonical());
    peer.is_loopback() || peer == local
}

/// Whether an address may be one of this machine's: only those are bound.
fn is_own_address(address: SocketAddr) -> bool {
    let any_port = match (address.ip().to_canonical(), address) {
        // A link-local address is bound on its link alone.
        (IpAddr::V6(ip), SocketAddr::V6(v6)) => SocketAddrV6::new(ip, 0, 0, v6.scope_id()).into(),
        (ip, _) => SocketAddr::new(ip, 0),
    };
    UdpSocket::bind(any_port).map_or_else(|error| !is_foreign(&error), |_| true)
}

/// Whether an address could not be bound because it is another machine's. Any other error (no file descriptor is
/// free, for one) says nothing of the address.
fn is_foreign(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::AddrNotAvailable
}

/// The first port that users of this machine may bind (ip(7), `ip_unprivileged_port_start`), 1024
/// at most.
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
    async fn a_connection_of_this_process_is_this_users() {
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
    async fn a_socket_that_was_closed_is_nobodys() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let client = TcpStream::connect(listener.local_addr().expect("bound")).expect("connects");
        let (server, peer) = listener.accept().expect("is there");
        drop(client);
        // Not root's, as which the kernel shows a socket without an owner.
        let origin = Origin::of(peer, server.local_addr().expect("an address")).await;
        assert_eq!(origin, Origin::new(Locality::Here(None), false));
    }

    #[test]
    fn a_port_that_users_may_bind_here_is_none_of_a_superusers_at_any_address_of_this_machine() {
        // As if neither were the other's, nor of the loopback network.
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
    fn only_the_kernels_word_makes_an_address_another_machines() {
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
        // Without its link, such an address is not bound anywhere.
        assert!(is_own_address("[fe80::7]:700".parse().expect("one")));
        // With it, those of the machine are known (proc_net(5), `if_inet6`).
        let own = std::fs::read_to_string("/proc/net/if_inet6").unwrap_or_default();
        for line in own.lines().filter(|line| line.starts_with("fe80")) {
            let mut words = line.split_whitespace();
            let hex = |word: Option<&str>| u128::from_str_radix(word.expect("there"), 16);
            let ip = hex(words.next()).expect("an address");
            let link = hex(words.next()).expect("a link") as u32;
            // While the kernel looks for another machine with the address, it cannot be bound (IFA_F_TENTATIVE).
            if hex(words.nth(2)).expect("flags") & 0x40 != 0 {
                continue;
            }
            let at = |ip: u128| SocketAddr::V6(SocketAddrV6::new(ip.into(), 700, 0, link));
            assert!(is_own_address(at(ip)), "{line}");
            assert!(!is_own_address(at(ip ^ 0xff00)), "{line}");
        }
    }

    #[test]
    fn this_machine_is_spoken_for_by_its_superuser_and_by_no_other_user() {
        let own = rustix::process::geteuid().as_raw();
        let at = |owner, port, first_here| Origin::at(Locality::Here(owner), port, first_here);
        for (owner, first_here, speaks) in [
            (Some(0), 0, true),
            (Some(own), 0, true),
            (Some(own + 1), 0, false),
            (Some(own + 1), 1024, false),
            // Its program has closed it: the port says whose it was, unless users may bind it.
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
    async fn a_connection_of_another_machine_is_elsewhere() {
        let [peer, local] = ["192.0.2.7:700", "192.0.2.1:2049"].map(|a| a.parse().expect("one"));
        assert_eq!(Origin::of(peer, local).await, Origin::new(Locality::Elsewhere, true));
        let peer = "192.0.2.7:1024".parse().expect("one");
        assert_eq!(Origin::of(peer, local).await, Origin::new(Locality::Elsewhere, false));
    }
}
