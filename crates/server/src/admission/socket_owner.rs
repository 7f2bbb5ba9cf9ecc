//! Which user owns a socket of this network namespace.
//!
//! Of a TCP connection, the kernel is asked for that one socket (sock_diag(7)); where it does not answer such
//! questions, its list of all sockets is read (proc(5), `/proc/net/tcp`). Which of the two works is found out
//! once; a failure that may pass, such as a want of descriptors, decides nothing. Asking waits for nothing; a
//! list may be long, so one at a time is read, by a thread that may wait.
//!
//! A socket that its program has closed, and one in TIME_WAIT, belongs to no user any more, and the
//! kernel shows user 0 for it: it has no inode then, so a socket without one has no owner here.

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

/// The way that works here, once that is known.
static WAYS: Ways = Ways { known: OnceLock::new() };

/// Held by a task that reads a list of sockets.
static LISTING: Semaphore = Semaphore::const_new(1);

/// The user that owns the socket bound to `peer` and connected to `local`; `None` where no such
/// socket is open in this network namespace, or the kernel does not say.
pub(super) async fn find(peer: SocketAddr, local: SocketAddr) -> Option<u32> {
    let [peer, local] = [peer, local].map(canonical);
    let found = match WAYS.known.get() {
        Some(None) => return None,
        Some(Some(Way::Ask)) => ask(peer, local),
        Some(Some(Way::List)) | None => {
            read_listed(move || match WAYS.choose(Way::works) {
                Some(way) => way.find(peer, local),
                None => Ok(None),
            })
            .await
        }
    };
    owner(peer, found)
}

/// The user that owns the sockets which datagrams from `sender` are sent by; of several, one that is not
/// the superuser. `None` where none is open in this network namespace, or the kernel does not say.
pub(super) async fn find_sender(sender: SocketAddr) -> Option<u32> {
    let sender = canonical(sender);
    owner(sender, read_listed(move || list_senders(sender)).await)
}

fn owner(of: SocketAddr, found: io::Result<Option<u32>>) -> Option<u32> {
    found.unwrap_or_else(|error| {
        debug!("{of}: the owner of its socket cannot be found: {error}");
        None
    })
}

async fn read_listed(
    read: impl FnOnce() -> io::Result<Option<u32>> + Send + 'static,
) -> io::Result<Option<u32>> {
    // The semaphore is never closed.
    let turn = LISTING.acquire().await.map_err(io::Error::other)?;
    let read = move || {
        // A dropped call's list is read to its end.
        let _turn = turn;
        read()
    };
    spawn_blocking(read).await?
}

/// Which way works.
struct Ways {
    /// `None`: no way.
    known: OnceLock<Option<Way>>,
}

impl Ways {
    /// The way to take now: the first one that works, which is remembered unless an earlier one may
    /// work another time.
    fn choose(&self, works: impl Fn(Way) -> io::Result<bool>) -> Option<Way> {
        if let Some(known) = self.known.get() {
            return *known;
        }
        let mut may_pass = false;
        let found = [Way::Ask, Way::List].into_iter().find(|&way| {
            works(way).unwrap_or_else(|error| {
                may_pass |= is_passing(&error);
                false
            })
        });
        if may_pass {
            return found;
        }
        if found.is_none() {
            warn!("this kernel does not tell which user owns a connection of this machine");
        }
        *self.known.get_or_init(|| found)
    }
}

/// Whether the same may succeed another time: not what says that the kernel does not offer it, or not to
/// this process.
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
enum Way {
    Ask,
    List,
}

impl Way {
    /// Tries it on a connection of this process.
    fn works(self) -> io::Result<bool> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let client = TcpStream::connect(listener.local_addr()?)?;
        let found = self.find(client.local_addr()?, client.peer_addr()?)?;
        Ok(found.is_some())
    }

    fn find(self, peer: SocketAddr, local: SocketAddr) -> io::Result<Option<u32>> {
        match self {
            Self::Ask => ask(peer, local),
            Self::List => list(peer, local),
        }
    }
}

/// Room for one answer, which is below 200 bytes.
const ANSWER_BYTES: usize = 4096;

/// Bytes that a socket of this process, bound to `local` and connected to `peer`, was given to send and its
/// peer has not acknowledged; `None` where the kernel does not say.
pub(crate) fn unacknowledged_bytes(local: SocketAddr, peer: SocketAddr) -> Option<u64> {
    let [local, peer] = [local, peer].map(canonical);
    let found = ask_for(local, peer).unwrap_or_else(|error| {
        debug!("{peer}: the kernel does not say what it has not sent: {error}");
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
            // Whichever socket that is.
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
    // The kernel answers while it takes the request, so nothing is waited for.
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
    // A socket of IPv6 may talk to an address of IPv4, and is listed with the others of IPv6.
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
    // Programs may share a port.
    let other = find_listed(LISTS, |listed| sends(listed) && listed.uid != 0)?;
    let found = if other.is_some() { other } else { find_listed(LISTS, sends)? };
    Ok(found.map(|listed| listed.uid))
}

/// The first line of these lists that `is_it`.
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

/// A line of `/proc/net/tcp`, or of `/proc/net/udp`.
#[derive(Debug, PartialEq, Eq)]
struct Listed {
    /// The socket's own address, and the other end's.
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

/// An address as the kernel lists it: words of 32 bits in the machine's own byte order, as hexadecimal
/// digits, then the port.
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
    fn both_ways_find_this_process_and_nothing_where_nothing_is() {
        let own = rustix::process::geteuid().as_raw();
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(address) else { continue };
            let client = TcpStream::connect(listener.local_addr().expect("bound")).expect("there");
            let [peer, local] = [client.local_addr(), client.peer_addr()].map(|a| a.expect("one"));
            let ways: Vec<_> =
                [Way::Ask, Way::List].into_iter().filter(|w| w.works().unwrap_or(false)).collect();
            for way in ways {
                assert_eq!(way.find(peer, local).ok(), Some(Some(own)), "{way:?} {address}");
                let other = SocketAddr::new(local.ip(), 1);
                assert_eq!(way.find(peer, other).ok(), Some(None), "{way:?} {address}");
            }
        }
    }

    #[test]
    fn a_failure_that_may_pass_decides_nothing() {
        let fails = |error: Errno| move |_| -> io::Result<bool> { Err(error.into()) };
        let ways = Ways { known: OnceLock::new() };
        for passing in [Errno::MFILE, Errno::NOBUFS, Errno::ADDRNOTAVAIL] {
            assert_eq!(ways.choose(fails(passing)), None);
        }
        let list_alone = |error: Errno| {
            move |way| match way {
                Way::Ask => Err(error.into()),
                Way::List => Ok(true),
            }
        };
        assert_eq!(ways.choose(list_alone(Errno::NFILE)), Some(Way::List), "for now");
        assert_eq!(ways.choose(|_| Ok(true)), Some(Way::Ask));
        assert_eq!(ways.choose(fails(Errno::MFILE)), Some(Way::Ask), "it is not tried again");

        let ways = Ways { known: OnceLock::new() };
        assert_eq!(ways.choose(list_alone(Errno::PROTONOSUPPORT)), Some(Way::List));
        assert_eq!(ways.choose(|_| Ok(true)), Some(Way::List), "asking never works here");
        let ways = Ways { known: OnceLock::new() };
        assert_eq!(ways.choose(|_| Ok(false)), None);
        assert_eq!(ways.choose(|_| Ok(true)), None);
    }

    #[tokio::test]
    async fn who_sends_datagrams_is_found_at_any_address_of_the_machine() {
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
    fn lines_of_the_kernels_list() {
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
