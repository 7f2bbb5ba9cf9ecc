//! Which user owns a socket of this network namespace.
//!
//! For a TCP connection, the server queries the kernel for that one socket (sock_diag(7)). Where
//! the kernel does not answer such queries, it reads the list of all sockets (proc(5),
//! `/proc/net/tcp`). It finds out once which of the two works; a transient failure, such as a lack
//! of descriptors, does not decide that. A query does not block. A list may be long, so the server
//! reads one list at a time, on a thread that may block.
//!
//! The kernel reports user 0 for a socket in TIME_WAIT and for one that its program has closed.
//! Such a socket has no inode, so this module treats a socket without an inode as having no owner.

use netlink_packet_core::{NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_packet_sock_diag::SockDiagMessage;
use netlink_packet_sock_diag::constants::{AF_INET, AF_INET6, IPPROTO_TCP};
use netlink_packet_sock_diag::inet::{
    ExtensionFlags, InetRequest, InetResponseHeader, SocketId, StateFlags,
};
use netlink_sys::protocols::NETLINK_SOCK_DIAG;
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::OnceLock;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tracing::{debug, warn};

/// The method that works on this machine, once that is known.
static METHOD: WorkingMethod = WorkingMethod { known: OnceLock::new() };

/// Held by the task that reads a list of sockets.
static LISTING: Semaphore = Semaphore::const_new(1);

/// The user that owns the socket bound to `peer` and connected to `local`. `None` if no such socket
/// is open in this network namespace, or the kernel does not report its owner.
pub(super) async fn find(peer: SocketAddr, local: SocketAddr) -> Option<u32> {
    let [peer, local] = [peer, local].map(canonical);
    let found = match METHOD.known.get() {
        Some(None) => return None,
        Some(Some(Method::SockDiag)) => ask(peer, local),
        Some(Some(Method::ProcNet)) | None => {
            read_listed(move || match METHOD.choose(Method::works) {
                Some(method) => method.find(peer, local),
                None => Ok(None),
            })
            .await
        }
    };
    owner(peer, found)
}

/// The user that owns the sockets from which datagrams of `sender` may come; of several users, one
/// other than the superuser. `None` if no such socket is open in this network namespace, or the
/// kernel does not report its owner.
pub(super) async fn find_sender(sender: SocketAddr) -> Option<u32> {
    let sender = canonical(sender);
    owner(sender, read_listed(move || list_senders(sender)).await)
}

fn owner(of: SocketAddr, found: io::Result<Option<u32>>) -> Option<u32> {
    found.unwrap_or_else(|error| {
        debug!("{of}: cannot find the owner of its socket: {error}");
        None
    })
}

async fn read_listed(
    read: impl FnOnce() -> io::Result<Option<u32>> + Send + 'static,
) -> io::Result<Option<u32>> {
    // The semaphore is never closed.
    let turn = LISTING.acquire().await.map_err(io::Error::other)?;
    let read = move || {
        // If the caller is dropped, the thread still reads its list to the end, and holds the
        // permit until then.
        let _turn = turn;
        read()
    };
    spawn_blocking(read).await?
}

/// Which method works.
struct WorkingMethod {
    /// Holds `None` if no method works.
    known: OnceLock<Option<Method>>,
}

impl WorkingMethod {
    /// The method to use now: the first one that works. The result is stored unless an earlier
    /// method failed with a transient error.
    fn choose(&self, works: impl Fn(Method) -> io::Result<bool>) -> Option<Method> {
        if let Some(known) = self.known.get() {
            return *known;
        }
        let mut may_pass = false;
        let found = [Method::SockDiag, Method::ProcNet].into_iter().find(|&method| {
            works(method).unwrap_or_else(|error| {
                may_pass |= is_passing(&error);
                false
            })
        });
        if may_pass {
            return found;
        }
        if found.is_none() {
            warn!("this kernel does not report which user owns a local connection");
        }
        *self.known.get_or_init(|| found)
    }
}

/// Whether the same query may succeed later: all errors except those that say that the kernel does
/// not support it, or does not permit it to this process.
fn is_passing(error: &io::Error) -> bool {
    const LASTING: [Errno; 9] = [
        Errno::PROTONOSUPPORT,
        Errno::AFNOSUPPORT,
        Errno::OPNOTSUPP,
        Errno::NOSYS,
        Errno::INVAL,
        Errno::PERM,
        Errno::ACCESS,
        Errno::NOENT,
        // No protocol listens at the kernel's end of a netlink socket.
        Errno::CONNREFUSED,
    ];
    Errno::from_io_error(error).is_some_and(|error| !LASTING.contains(&error))
}

fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Method {
    /// A query for the one socket.
    SockDiag,
    /// The list of all sockets.
    ProcNet,
}

impl Method {
    /// Tests the method on a connection of this process.
    fn works(self) -> io::Result<bool> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let client = TcpStream::connect(listener.local_addr()?)?;
        let found = self.find(client.local_addr()?, client.peer_addr()?)?;
        Ok(found.is_some())
    }

    fn find(self, peer: SocketAddr, local: SocketAddr) -> io::Result<Option<u32>> {
        match self {
            Self::SockDiag => ask(peer, local),
            Self::ProcNet => list(peer, local),
        }
    }
}

/// Buffer size for one answer. Answers are shorter than 200 bytes.
const ANSWER_BYTES: usize = 4096;

/// Bytes that this process has written to its socket, bound to `local` and connected to `peer`, and
/// that the peer has not acknowledged. `None` if the kernel does not report it.
pub(crate) fn unacknowledged_bytes(local: SocketAddr, peer: SocketAddr) -> Option<u64> {
    let [local, peer] = [local, peer].map(canonical);
    let found = ask_for(local, peer).unwrap_or_else(|error| {
        debug!("{peer}: cannot query the unacknowledged bytes: {error}");
        None
    });
    found.map(|socket| u64::from(socket.send_queue))
}

fn ask(peer: SocketAddr, local: SocketAddr) -> io::Result<Option<u32>> {
    let found = ask_for(peer, local)?;
    Ok(found.filter(|socket| socket.inode != 0).map(|socket| socket.uid))
}

/// The socket of this network namespace that is bound to `peer` and connected to `local`.
fn ask_for(peer: SocketAddr, local: SocketAddr) -> io::Result<Option<InetResponseHeader>> {
    let request = InetRequest {
        family: if peer.is_ipv4() { AF_INET } else { AF_INET6 },
        protocol: IPPROTO_TCP,
        extensions: ExtensionFlags::empty(),
        states: StateFlags::all(),
        socket_id: SocketId {
            source_port: peer.port(),
            destination_port: local.port(),
            source_address: peer.ip(),
            destination_address: local.ip(),
            interface_id: 0,
            // INET_DIAG_NOCOOKIE: any socket with these addresses.
            cookie: [0xff; 8],
        },
    };
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST;
    let mut message =
        NetlinkMessage::new(header, NetlinkPayload::from(SockDiagMessage::InetRequest(request)));
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    let socket = netlink_sys::Socket::new(NETLINK_SOCK_DIAG)?;
    socket.connect(&netlink_sys::SocketAddr::new(0, 0))?;
    // The kernel queues the answer during send, so recv does not wait.
    socket.send(&bytes, 0)?;
    let mut answer = Vec::with_capacity(ANSWER_BYTES);
    socket.recv(&mut answer, 0)?;
    let answer = NetlinkMessage::<SockDiagMessage>::deserialize(&answer)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()))?;
    match answer.payload {
        NetlinkPayload::InnerMessage(SockDiagMessage::InetResponse(found)) => {
            Ok(Some(found.header))
        }
        NetlinkPayload::Error(error) if error.to_io().kind() == io::ErrorKind::NotFound => Ok(None),
        NetlinkPayload::Error(error) => Err(error.to_io()),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

fn list(peer: SocketAddr, local: SocketAddr) -> io::Result<Option<u32>> {
    // An IPv6 socket may be connected to an IPv4 address; the kernel lists it with the IPv6
    // sockets.
    let lists: &[&str] = match peer {
        SocketAddr::V4(_) => &["/proc/net/tcp", "/proc/net/tcp6"],
        SocketAddr::V6(_) => &["/proc/net/tcp6"],
    };
    let found = find_listed(lists, |listed| listed.ends == [peer, local])?;
    Ok(found.filter(|listed| listed.inode != 0).map(|listed| listed.uid))
}

fn list_senders(sender: SocketAddr) -> io::Result<Option<u32>> {
    const LISTS: &[&str] = &["/proc/net/udp", "/proc/net/udp6"];
    let sends = |listed: &Listed| {
        let [own, _] = listed.ends;
        let ip = own.ip();
        own.port() == sender.port()
            && (ip == sender.ip() || ip.is_unspecified())
            && listed.inode != 0
    };
    // Several programs may share a port.
    let other = find_listed(LISTS, |listed| sends(listed) && listed.uid != 0)?;
    let found = if other.is_some() { other } else { find_listed(LISTS, sends)? };
    Ok(found.map(|listed| listed.uid))
}

/// The first line of these lists for which `is_it` holds.
fn find_listed(lists: &[&str], is_it: impl Fn(&Listed) -> bool) -> io::Result<Option<Listed>> {
    for path in lists {
        let file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        for line in BufReader::new(file).lines().skip(1) {
            if let Some(listed) = Listed::read(&line?)
                && is_it(&listed)
            {
                return Ok(Some(listed));
            }
        }
    }
    Ok(None)
}

/// A line of `/proc/net/tcp` or `/proc/net/udp`.
#[derive(Debug, PartialEq, Eq)]
struct Listed {
    /// The local address and the peer's.
    ends: [SocketAddr; 2],
    uid: u32,
    inode: u64,
}

impl Listed {
    fn read(line: &str) -> Option<Self> {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let ends = [address(words.get(1)?)?, address(words.get(2)?)?];
        Some(Self { ends, uid: words.get(7)?.parse().ok()?, inode: words.get(9)?.parse().ok()? })
    }
}

/// Parses an address as the kernel lists it: the IP address as 32-bit words in native byte order,
/// in hexadecimal, then a colon and the port.
fn address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let word = |at: usize| u32::from_str_radix(ip.get(8 * at..8 * at + 8)?, 16).ok();
    let ip = match ip.len() {
        8 => IpAddr::from(word(0)?.to_ne_bytes()),
        32 => {
            let mut bytes = [0; 16];
            for (at, part) in bytes.chunks_exact_mut(4).enumerate() {
                part.copy_from_slice(&word(at)?.to_ne_bytes());
            }
            IpAddr::from(Ipv6Addr::from(bytes))
        }
        _ => return None,
    };
    Some(canonical(SocketAddr::new(ip, u16::from_str_radix(port, 16).ok()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_lookups_find_the_owner_of_a_socket() {
        let own = rustix::process::geteuid().as_raw();
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(address) else { continue };
            let client = TcpStream::connect(listener.local_addr().expect("bound")).expect("there");
            let [peer, local] = [client.local_addr(), client.peer_addr()].map(|a| a.expect("one"));
            let methods: Vec<_> = [Method::SockDiag, Method::ProcNet]
                .into_iter()
                .filter(|w| w.works().unwrap_or(false))
                .collect();
            for method in methods {
                assert_eq!(method.find(peer, local).ok(), Some(Some(own)), "{method:?} {address}");
                let other = SocketAddr::new(local.ip(), 1);
                assert_eq!(method.find(peer, other).ok(), Some(None), "{method:?} {address}");
            }
        }
    }

    #[test]
    fn a_transient_lookup_failure_is_retried() {
        let fails = |error: Errno| move |_| -> io::Result<bool> { Err(error.into()) };
        let methods = WorkingMethod { known: OnceLock::new() };
        for passing in [Errno::MFILE, Errno::NOBUFS, Errno::ADDRNOTAVAIL] {
            assert_eq!(methods.choose(fails(passing)), None);
        }
        let list_alone = |error: Errno| {
            move |method| match method {
                Method::SockDiag => Err(error.into()),
                Method::ProcNet => Ok(true),
            }
        };
        assert_eq!(methods.choose(list_alone(Errno::NFILE)), Some(Method::ProcNet), "for now");
        assert_eq!(methods.choose(|_| Ok(true)), Some(Method::SockDiag));
        assert_eq!(
            methods.choose(fails(Errno::MFILE)),
            Some(Method::SockDiag),
            "it is not tried again"
        );

        let methods = WorkingMethod { known: OnceLock::new() };
        assert_eq!(methods.choose(list_alone(Errno::PROTONOSUPPORT)), Some(Method::ProcNet));
        assert_eq!(methods.choose(|_| Ok(true)), Some(Method::ProcNet), "asking never works here");
        let methods = WorkingMethod { known: OnceLock::new() };
        assert_eq!(methods.choose(|_| Ok(false)), None);
        assert_eq!(methods.choose(|_| Ok(true)), None);
    }

    #[tokio::test]
    async fn the_sender_of_a_datagram_is_found_at_any_local_address() {
        let own = rustix::process::geteuid().as_raw();
        let sender = std::net::UdpSocket::bind("127.0.0.1:0").expect("a port");
        let port = sender.local_addr().expect("bound").port();
        assert_eq!(find_sender(SocketAddr::from(([127, 0, 0, 1], port))).await, Some(own));
        assert_eq!(find_sender(SocketAddr::from(([127, 0, 0, 2], port))).await, None);
        drop(sender);
        assert_eq!(find_sender(SocketAddr::from(([127, 0, 0, 1], port))).await, None);
        let anywhere = std::net::UdpSocket::bind("0.0.0.0:0").expect("a port");
        let port = anywhere.local_addr().expect("bound").port();
        assert_eq!(find_sender(SocketAddr::from(([127, 0, 0, 2], port))).await, Some(own));
    }

    #[cfg(target_endian = "little")]
    #[test]
    fn lines_of_proc_net_tcp_are_parsed() {
        let line = "   1: 0100007F:CF08 0100007F:0801 01 00000000:00000000 02:000A8E7B 00000000  \
                    1000        0 123456 2 0000000000000000 20 4 30 10 -1";
        let listed = Listed::read(line).expect("a socket");
        let ends = ["127.0.0.1:53000", "127.0.0.1:2049"].map(|a| a.parse().expect("one"));
        assert_eq!(listed, Listed { ends, uid: 1000, inode: 123_456 });
        let mapped = address("0000000000000000FFFF00000100007F:0801");
        assert_eq!(mapped, "127.0.0.1:2049".parse().ok());
        assert_eq!(address("0000000000000000:0801"), None);
        assert_eq!(Listed::read("  sl  local_address rem_address   st"), None);
    }
}
