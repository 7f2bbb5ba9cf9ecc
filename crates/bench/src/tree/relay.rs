//! A relay between a client and a server: it delays everything in both directions, and counts calls.
//!
//! Threads sleep in it rather than tasks, because a delay is shorter than a tick of the runtime's
//! clock. Each connection has two pairs of threads, which end with it.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};
use weir_tools::failure::{Asked, Result};

/// Bytes per read.
const CHUNK_BYTES: usize = 256 << 10;
/// Most chunks on their way in one direction.
const CHUNKS: usize = 64;

/// A relay that runs until it is dropped.
pub(super) struct Relay {
    /// Where clients connect to.
    pub(super) address: SocketAddr,
    calls: Arc<AtomicU64>,
    ended: Arc<AtomicBool>,
}

impl Relay {
    /// Starts a relay to `server`; `delay` is that of a round trip.
    pub(super) fn start(server: SocketAddr, delay: Duration) -> Result<Self> {
        let asked = || "start a relay".to_owned();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).asked(asked)?;
        let address = listener.local_addr().asked(asked)?;
        let (calls, ended) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
        let (counted, stop) = (Arc::clone(&calls), Arc::clone(&ended));
        let accept = move || {
            for client in listener.incoming() {
                if stop.load(Relaxed) {
                    return;
                }
                // If it fails, the client finds its connection closed.
                let _ = client.and_then(|client| connect(&client, server, delay / 2, &counted));
            }
        };
        std::thread::Builder::new().name("relay".into()).spawn(accept).asked(asked)?;
        Ok(Self { address, calls, ended })
    }

    /// Calls so far.
    pub(super) fn calls(&self) -> u64 {
        self.calls.load(Relaxed)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.ended.store(true, Relaxed);
        // Wakes the thread that accepts.
        let _ = TcpStream::connect(self.address);
    }
}

fn connect(
    client: &TcpStream,
    server: SocketAddr,
    delay: Duration,
    calls: &Arc<AtomicU64>,
) -> std::io::Result<()> {
    let server = TcpStream::connect(server)?;
    for socket in [client, &server] {
        socket.set_nodelay(true)?;
    }
    let counter = Counter { calls: Some(Arc::clone(calls)), ..Counter::default() };
    pass(client.try_clone()?, server.try_clone()?, delay, counter)?;
    pass(server, client.try_clone()?, delay, Counter::default())
}

/// Passes on what comes from one socket, each chunk `delay` after its arrival.
fn pass(
    mut from: TcpStream,
    mut to: TcpStream,
    delay: Duration,
    mut counter: Counter,
) -> std::io::Result<()> {
    let (send, receive) = sync_channel::<(Instant, Vec<u8>)>(CHUNKS);
    let thread = || std::thread::Builder::new().name("relay".into());
    thread().spawn(move || {
        let mut buffer = vec![0; CHUNK_BYTES];
        while let Ok(len @ 1..) = from.read(&mut buffer) {
            counter.take(&buffer[..len]);
            if send.send((Instant::now() + delay, buffer[..len].to_vec())).is_err() {
                break;
            }
        }
        // The other thread ends when it has passed on the rest.
        drop(send);
    })?;
    thread().spawn(move || {
        for (due, chunk) in receive {
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            if to.write_all(&chunk).is_err() {
                break;
            }
        }
        // Either end may be gone.
        let _ = to.shutdown(Shutdown::Both);
    })?;
    Ok(())
}

/// Counts the calls in a stream of records (RFC 5531 section 11).
#[derive(Default)]
struct Counter {
    calls: Option<Arc<AtomicU64>>,
    /// The first bytes of the fragment: its length, the transaction, the type of the message.
    head: Vec<u8>,
    /// Bytes of the fragment that follow its head.
    rest: usize,
    /// The record began with an earlier fragment.
    is_continued: bool,
}

/// Bytes of a fragment's header, and of it with the first fields of a message.
const HEADER_BYTES: usize = 4;
const HEAD_BYTES: usize = 12;
/// The type of a message that is a call.
const CALL: [u8; 4] = [0; 4];

impl Counter {
    fn take(&mut self, mut bytes: &[u8]) {
        let Some(calls) = self.calls.clone() else { return };
        while !bytes.is_empty() {
            if self.rest > 0 {
                let now = self.rest.min(bytes.len());
                (self.rest, bytes) = (self.rest - now, &bytes[now..]);
                continue;
            }
            let wanted = match self.head.len() {
                0..HEADER_BYTES => HEADER_BYTES,
                _ => HEAD_BYTES.min(HEADER_BYTES + self.fragment().1),
            };
            let now = (wanted - self.head.len()).min(bytes.len());
            self.head.extend_from_slice(&bytes[..now]);
            bytes = &bytes[now..];
            if self.head.len() < HEADER_BYTES {
                return;
            }
            let (is_last, len) = self.fragment();
            if self.head.len() < HEAD_BYTES.min(HEADER_BYTES + len) {
                continue;
            }
            if !self.is_continued && self.head.get(8..HEAD_BYTES) == Some(&CALL[..]) {
                calls.fetch_add(1, Relaxed);
            }
            self.rest = HEADER_BYTES + len - self.head.len();
            self.is_continued = !is_last;
            self.head.clear();
        }
    }

    /// Whether the fragment is the last of its record, and its length.
    fn fragment(&self) -> (bool, usize) {
        let header = self.head.first_chunk().map_or(0, |header| u32::from_be_bytes(*header));
        (header >> 31 == 1, (header & 0x7FFF_FFFF) as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fragment(is_last: bool, body: &[u8]) -> Vec<u8> {
        let header = body.len() as u32 | u32::from(is_last) << 31;
        [&header.to_be_bytes(), body].concat()
    }

    #[test]
    fn calls_are_counted_however_they_are_cut() {
        let (call, reply) = ([0, 0, 0, 7, 0, 0, 0, 0, 5, 5], [0, 0, 0, 8, 0, 0, 0, 1, 5]);
        let stream = [
            fragment(true, &call),
            fragment(true, &reply),
            fragment(false, &call),
            fragment(true, &call),
            fragment(true, b"abc"),
            fragment(true, &call),
        ]
        .concat();
        for step in 1..stream.len() {
            let calls = Arc::<AtomicU64>::default();
            let mut counter = Counter { calls: Some(Arc::clone(&calls)), ..Counter::default() };
            stream.chunks(step).for_each(|chunk| counter.take(chunk));
            assert_eq!(calls.load(Relaxed), 3, "in steps of {step}");
        }
    }

    #[test]
    fn a_round_trip_takes_the_delay() {
        let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let delay = Duration::from_millis(20);
        let relay = Relay::start(server.local_addr().unwrap(), delay).unwrap();
        let begun = Instant::now();
        let mut client = TcpStream::connect(relay.address).unwrap();
        client.write_all(&fragment(true, &[0; 8])).unwrap();
        let (mut peer, _) = server.accept().unwrap();
        let mut came = [0; 12];
        peer.read_exact(&mut came).unwrap();
        peer.write_all(b"x").unwrap();
        client.read_exact(&mut came[..1]).unwrap();
        assert!(begun.elapsed() >= delay);
        assert_eq!((came[0], relay.calls()), (b'x', 1));
    }
}
