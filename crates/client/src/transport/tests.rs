//! The transport with scripted peers: the right bytes for everything that a server may send, and a
//! named error for everything else.

mod standstill;
use super::*;
use crate::error::{Error, Violation};
use proptest::prelude::*;
use std::io::IoSlice;
use std::net::SocketAddr;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use weir_rpc::{AcceptStatus, OpaqueAuth, ReplyHeader};
use weir_vfs::{Layout, ReadOp, SegmentKind};
use weir_xdr::Encoder;

const PATIENCE: Patience = Patience { timeo: Duration::from_millis(200), retrans: 1, hard: true };
/// For tests in which no call may time out.
const ENDLESS: Patience = Patience { timeo: Duration::from_secs(3600), ..PATIENCE };

/// A segment as a server sends it.
#[derive(Clone, Debug)]
enum Sent {
    Data(u64, Vec<u8>),
    Hole(u64, u64),
}

/// The reply to a compound of SEQUENCE, PUTFH and READ_PLUS, without its RPC header.
fn read_plus_results(eof: bool, segments: &[Sent]) -> Vec<u8> {
    let mut e = Encoder::new();
    for word in [0, 0, 3, 53, 0] {
        e.u32(word);
    }
    e.fixed(&[7; 36]);
    for word in [22, 0, 68, 0, u32::from(eof), segments.len() as u32] {
        e.u32(word);
    }
    for segment in segments {
        match segment {
            Sent::Data(offset, bytes) => {
                e.u32(0);
                e.u64(*offset);
                e.opaque(bytes);
            }
            Sent::Hole(offset, len) => {
                e.u32(1);
                e.u64(*offset);
                e.u64(*len);
            }
        }
    }
    e.finish().to_bytes().to_vec()
}

async fn read_call(socket: &mut TcpStream) -> Option<u32> {
    let mut marker = [0; 4];
    socket.read_exact(&mut marker).await.ok()?;
    let len = (u32::from_be_bytes(marker) & 0x7fff_ffff) as usize;
    let mut call = vec![0; len];
    socket.read_exact(&mut call).await.ok()?;
    Some(u32::from_be_bytes(*call.first_chunk()?))
}

fn reply(xid: u32, results: &[u8]) -> Vec<u8> {
    let mut e = Encoder::new();
    e.put(&ReplyHeader::accepted(xid, AcceptStatus::Success));
    e.raw(results);
    e.finish().to_bytes().to_vec()
}

/// A message as a record, split into fragments of `fragment` bytes.
fn record(message: &[u8], fragment: usize) -> Vec<u8> {
    let mut out = Vec::new();
    let pieces: Vec<_> = message.chunks(fragment.max(1)).collect();
    for (i, piece) in pieces.iter().enumerate() {
        let last = if i + 1 == pieces.len() { 1 << 31 } else { 0 };
        out.extend_from_slice(&(last | piece.len() as u32).to_be_bytes());
        out.extend_from_slice(piece);
    }
    out
}

fn peer_at(name: &str, addr: SocketAddr) -> Peer {
    Peer {
        name: name.into(),
        addrs: vec![addr],
        answered: Arc::default(),
        resvport: false,
        locate: None,
        heard: Arc::default(),
    }
}

async fn connect(listener: &TcpListener) -> Connection {
    let addr = listener.local_addr().unwrap();
    let peer = peer_at("peer", addr);
    Connection::open(peer, ENDLESS, Arc::default(), None).await.unwrap()
}

/// Reads `len` bytes at `offset` from a peer that answers with `stream`, which gets the xid.
async fn read_from(
    offset: u64,
    len: usize,
    answer: impl Fn(u32) -> Vec<u8> + Send + 'static,
) -> (Vec<u8>, crate::Result<Reply>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let connection = connect(&listener).await;
    let server = tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        while let Some(xid) = read_call(&mut socket).await {
            if socket.write_all(&answer(xid)).await.is_err() {
                return;
            }
        }
    });
    let (tx, rx) = mpsc::channel();
    let op = ReadOp::new(offset, Box::new(vec![0xEE; len]), move |mut buffer, _| {
        let mut slices = Vec::new();
        buffer.slices(0, len, &mut slices);
        tx.send(slices.iter().flat_map(|s| s.to_vec()).collect::<Vec<u8>>()).unwrap();
    });
    let read = Arc::new(ReadInFlight::new(op));
    let target = ReadTarget { read, base: offset, offset, len };
    let expect = Expect::Read(target, ResultForm::Compound);
    let request = Request::new((100_003, 4, 1), &OpaqueAuth::NONE, "READ_PLUS", expect);
    let result = connection.call(request).await;
    drop(connection);
    server.abort();
    (rx.recv().unwrap(), result)
}

fn run<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

const OFFSET: u64 = 10_000;

/// Contiguous segments from [`OFFSET`] on: whether data, and how long.
fn segments() -> impl Strategy<Value = Vec<(bool, usize)>> {
    let len = prop_oneof![1..100usize, 3000..6000usize, 30_000..80_000usize];
    proptest::collection::vec((any::<bool>(), len), 1..12)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    /// Any segments that RFC 7862 section 15.10 allows: many, adjacent ones of one kind, a first
    /// hole that begins before the range, a last one that ends after it; in any fragments.
    #[test]
    fn any_layout_yields_its_bytes(
        segments in segments(),
        before in 0..5000u64,
        after in 0..5000u64,
        fragment in prop_oneof![Just(usize::MAX), 1..5000usize, 30_000..50_000usize],
        eof: bool,
    ) {
        let len: usize = segments.iter().map(|(_, len)| len).sum();
        let (mut sent, mut want, mut layout) = (Vec::new(), Vec::new(), Layout::default());
        layout.eof = eof;
        let mut at = OFFSET;
        for (i, &(data, len)) in segments.iter().enumerate() {
            let end = at + len as u64;
            if data {
                let bytes: Vec<u8> = (at..end).map(|n| (n % 251) as u8).collect();
                want.extend_from_slice(&bytes);
                sent.push(Sent::Data(at, bytes));
                layout.push(SegmentKind::Data, at, end);
            } else {
                // The buffer keeps what was in it.
                want.resize(want.len() + len, 0xEE);
                let start = if i == 0 { at - before } else { at };
                let end = if i + 1 == segments.len() { end + after } else { end };
                sent.push(Sent::Hole(start, end - start));
                layout.push(SegmentKind::Hole, at, end);
            }
            at = end;
        }
        let results = read_plus_results(eof, &sent);
        let answer = move |xid| record(&reply(xid, &results), fragment);
        let (bytes, reply) = run(read_from(OFFSET, len, answer));
        prop_assert_eq!(reply.unwrap().read.unwrap().unwrap(), layout);
        prop_assert!(bytes == want);
    }

    /// For any bytes after a well-formed header, the call ends: with a reply, or an error that
    /// names the fault.
    #[test]
    fn any_bytes_end_the_call(results in proptest::collection::vec(any::<u8>(), 0..300), cut in 0..20usize) {
        let mut results = results;
        let good = read_plus_results(false, &[Sent::Hole(OFFSET, 10)]);
        let keep = good.len() * cut / 20;
        results.splice(0..0, good[..keep].iter().copied());
        let answer = move |xid| record(&reply(xid, &results), usize::MAX);
        let (bytes, _) = run(read_from(OFFSET, 100, answer));
        prop_assert_eq!(bytes.len(), 100);
    }
}

#[test]
fn wrong_segments_are_named_and_store_nothing_outside() {
    use Sent::{Data, Hole};
    let at = OFFSET;
    let cases = [
        (vec![], Violation::NoProgress),
        (vec![Hole(at, 0)], Violation::NoProgress),
        (vec![Data(at - 4, vec![1; 8])], Violation::NotContiguous),
        (vec![Data(at + 4, vec![1; 8])], Violation::NotContiguous),
        (vec![Data(at, vec![1; 101])], Violation::MoreThanAsked),
        (vec![Hole(at, 50), Data(at + 49, vec![1; 8])], Violation::NotContiguous),
        (vec![Hole(at, 50), Hole(at + 40, 50)], Violation::NotContiguous),
        (vec![Hole(at, 50), Hole(at, 100)], Violation::NotContiguous),
        (vec![Hole(at, 50), Data(at + 60, vec![1; 8])], Violation::NotContiguous),
        (vec![Hole(at, 90), Data(at + 90, vec![1; 11])], Violation::MoreThanAsked),
        (vec![Hole(at, 100), Data(at + 100, vec![1; 1])], Violation::OutsideRequest),
        (vec![Hole(at - 20, 10)], Violation::NotContiguous),
        (vec![Hole(at, u64::MAX)], Violation::EndOverflows),
    ];
    for (segments, violation) in cases {
        let results = read_plus_results(false, &segments);
        let answer = move |xid| record(&reply(xid, &results), usize::MAX);
        let (_, result) = run(read_from(OFFSET, 100, answer));
        assert_eq!(result.unwrap().read, Some(Err(violation)), "{segments:?}");
    }
}

#[test]
fn wrong_xids_absurd_lengths_and_cut_off_replies_do_not_reach_the_caller() {
    let good = read_plus_results(true, &[Sent::Data(OFFSET, vec![5; 100])]);
    let attempts = std::sync::atomic::AtomicUsize::new(0);
    let answer = move |xid: u32| {
        use std::sync::atomic::Ordering::Relaxed;
        match attempts.fetch_add(1, Relaxed) {
            // To an unknown xid: skipped; the call is resent when its time is up.
            0 => record(&reply(xid ^ 1, &good), usize::MAX),
            // A record longer than any reply: the connection is closed.
            1 => vec![0xff; 64],
            // A reply that ends in the middle.
            2 => record(&reply(xid, &good), usize::MAX)[..120].to_vec(),
            _ => record(&reply(xid, &good), usize::MAX),
        }
    };
    // The server answers each new connection's first call, so it has to accept several.
    run(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let peer = peer_at("peer", listener.local_addr().unwrap());
        let connection = Connection::open(peer, PATIENCE, Arc::default(), None).await.unwrap();
        let server = tokio::spawn(async move {
            loop {
                let (mut socket, _) = listener.accept().await.unwrap();
                let Some(xid) = read_call(&mut socket).await else { continue };
                // The client may have given up this connection.
                let _ = socket.write_all(&answer(xid)).await;
                // Held open, so that only the client can end it.
                let _rest = socket.read(&mut [0; 1]).await;
            }
        });
        let op = ReadOp::new(OFFSET, Box::new(vec![0; 100]), |_, _| {});
        let read = Arc::new(ReadInFlight::new(op));
        let target = ReadTarget { read, base: OFFSET, offset: OFFSET, len: 100 };
        let expect = Expect::Read(target, ResultForm::Compound);
        let request = Request::new((100_003, 4, 1), &OpaqueAuth::NONE, "READ_PLUS", expect);
        let reply = connection.call(request).await.unwrap();
        assert_eq!(reply.read, Some(Ok(Layout::data(OFFSET, 100, true))));
        server.abort();
    });
}

#[test]
fn a_reply_longer_than_the_call_allows_is_refused() {
    run(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let connection = connect(&listener).await;
        let server = tokio::spawn(async move {
            let (mut socket, _) = listener.accept().await.unwrap();
            while let Some(xid) = read_call(&mut socket).await {
                socket.write_all(&record(&reply(xid, &[0; 2000]), usize::MAX)).await.unwrap();
            }
        });
        for (max_bytes, fits) in [(1000, false), (2000, true)] {
            let expect = Expect::Results { max_bytes };
            let request = Request::new((100_003, 4, 1), &OpaqueAuth::NONE, "GETATTR", expect);
            match connection.call(request).await {
                Ok(reply) => assert!(fits && reply.body.len() == 2000),
                Err(Error::Protocol { violation, .. }) => {
                    assert!(!fits && violation == Violation::TooLong);
                }
                Err(error) => panic!("{error}"),
            }
        }
        server.abort();
    });
}

#[test]
fn a_soft_call_to_a_silent_server_fails_in_time() {
    run(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let peer = peer_at("silent", addr);
        let patience = Patience { timeo: Duration::from_millis(40), retrans: 1, hard: false };
        let connection = Connection::open(peer, patience, Arc::default(), None).await.unwrap();
        let expect = Expect::Results { max_bytes: 100 };
        let request = Request::new((100_003, 4, 0), &OpaqueAuth::NONE, "NULL", expect);
        let error = connection.call(request).await.unwrap_err();
        assert_eq!(error.to_string(), "silent: no answer to NULL in time");
    });
}

/// Bytes arrive one by one, but the reply is never complete.
#[test]
fn a_soft_call_to_a_server_that_replies_byte_by_byte_fails_in_time() {
    run(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let peer = peer_at("slow", addr);
        let patience = Patience { timeo: Duration::from_millis(100), retrans: 1, hard: false };
        let connection = Connection::open(peer, patience, Arc::default(), None).await.unwrap();
        let server = tokio::spawn(async move {
            loop {
                let (mut socket, _) = listener.accept().await.unwrap();
                let Some(xid) = read_call(&mut socket).await else { continue };
                for byte in record(&reply(xid, &[0; 100_000]), usize::MAX) {
                    if socket.write_all(&[byte]).await.is_err() {
                        break;
                    }
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
            }
        });
        let expect = Expect::Results { max_bytes: 100_000 };
        let request = Request::new((100_003, 4, 0), &OpaqueAuth::NONE, "GETATTR", expect);
        let called = tokio::time::timeout(Duration::from_secs(120), connection.call(request));
        let error = called.await.expect("it ends").unwrap_err();
        assert_eq!(error.to_string(), "slow: no answer to GETATTR in time");
        server.abort();
    });
}

/// The reply to the resent call begins, and stalls: its destination is returned nevertheless.
#[test]
fn a_soft_read_whose_resent_reply_stalls_ends() {
    run(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let peer = peer_at("stalling", listener.local_addr().unwrap());
        let patience = Patience { timeo: Duration::from_millis(400), retrans: 0, hard: false };
        let connection = Connection::open(peer, patience, Arc::default(), None).await.unwrap();
        let server = tokio::spawn(async move {
            let (mut first, _) = listener.accept().await.unwrap();
            read_call(&mut first).await.unwrap();
            // The call expires before the second connection has been silent for as long.
            tokio::time::sleep(Duration::from_millis(200)).await;
            drop(first);
            let mut stalled = Vec::new();
            loop {
                let (mut socket, _) = listener.accept().await.unwrap();
                if let Some(xid) = read_call(&mut socket).await {
                    let whole = read_plus_results(true, &[Sent::Data(OFFSET, vec![1; 4096])]);
                    let part = &record(&reply(xid, &whole), usize::MAX)[..200];
                    socket.write_all(part).await.unwrap();
                }
                stalled.push(socket);
            }
        });
        let (tx, rx) = tokio::sync::oneshot::channel();
        let op = ReadOp::new(OFFSET, Box::new(vec![0; 4096]), move |_, _| tx.send(()).unwrap());
        let read = Arc::new(ReadInFlight::new(op));
        let target = ReadTarget { read, base: OFFSET, offset: OFFSET, len: 4096 };
        let expect = Expect::Read(target, ResultForm::Compound);
        let request = Request::new((100_003, 4, 1), &OpaqueAuth::NONE, "READ_PLUS", expect);
        let error = connection.call(request).await.unwrap_err();
        assert_eq!(error.to_string(), "stalling: no answer to READ_PLUS in time");
        tokio::time::timeout(Duration::from_secs(120), rx).await.expect("it is returned").unwrap();
        server.abort();
    });
}

#[test]
fn a_soft_call_to_a_server_that_hangs_up_fails_in_time() {
    run(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let peer = peer_at("curt", addr);
        let patience = Patience { hard: false, ..PATIENCE };
        let connection = Connection::open(peer, patience, Arc::default(), None).await.unwrap();
        let expect = Expect::Results { max_bytes: 0 };
        let request = Request::new((100_003, 4, 0), &OpaqueAuth::NONE, "NULL", expect);
        let hang_up = async {
            loop {
                listener.accept().await.unwrap();
            }
        };
        let call = tokio::time::timeout(Duration::from_secs(120), connection.call(request));
        let answer = tokio::select! { answer = call => answer.unwrap(), () = hang_up => return };
        assert!(matches!(answer, Err(Error::TimedOut { .. })), "{answer:?}");
    });
}

/// Like a machine that is switched off.
#[test]
fn a_soft_call_to_a_server_that_takes_no_connection_fails_in_time() {
    run(async {
        let listener = tokio::net::TcpSocket::new_v4().unwrap();
        listener.bind(([127, 0, 0, 1], 0).into()).unwrap();
        let listener = listener.listen(1).unwrap();
        let addr = listener.local_addr().unwrap();
        let peer = peer_at("off", addr);
        let patience = Patience { hard: false, ..PATIENCE };
        let connection = Connection::open(peer, patience, Arc::default(), None).await.unwrap();
        drop(listener.accept().await.unwrap());
        // The backlog holds a few connections that are never accepted.
        let mut waiting = Vec::new();
        let fill = async {
            loop {
                waiting.push(TcpStream::connect(addr).await.unwrap());
            }
        };
        assert!(tokio::time::timeout(Duration::from_millis(300), fill).await.is_err());
        let expect = Expect::Results { max_bytes: 0 };
        let request = Request::new((100_003, 4, 0), &OpaqueAuth::NONE, "NULL", expect);
        let answer = tokio::time::timeout(Duration::from_secs(120), connection.call(request)).await;
        assert!(matches!(answer, Ok(Err(Error::TimedOut { .. }))), "{answer:?}");
    });
}

#[test]
fn reconnections_to_a_server_that_hangs_up_are_paced() {
    run(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let connection = connect(&listener).await;
        let expect = Expect::Results { max_bytes: 0 };
        let request = Request::new((100_003, 4, 0), &OpaqueAuth::NONE, "NULL", expect);
        let begun = Instant::now();
        let call = tokio::spawn(async move { connection.call(request).await });
        let mut calls = 0;
        while calls < 7 {
            let (mut socket, _) = listener.accept().await.unwrap();
            calls += usize::from(read_call(&mut socket).await.is_some());
        }
        // Pauses of 10 ms, 20, 40, 80, 160 and 320.
        assert!(begun.elapsed() >= Duration::from_millis(630), "{:?}", begun.elapsed());
        // It is answered in the end.
        let (mut socket, _) = listener.accept().await.unwrap();
        let xid = read_call(&mut socket).await.unwrap();
        socket.write_all(&record(&reply(xid, &[]), 100)).await.unwrap();
        call.await.unwrap().unwrap();
    });
}

/// The reply caches of version 3 identify a resent call by its xid and source address.
#[test]
fn a_retransmission_comes_from_the_same_port() {
    run(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let connection = connect(&listener).await;
        let expect = || Expect::Results { max_bytes: 0 };
        let null = || Request::new((100_003, 4, 0), &OpaqueAuth::NONE, "NULL", expect());
        let server = tokio::spawn(async move {
            let mut seen = Vec::new();
            // One reply is lost with its connection, the others arrive.
            let (mut socket, from) = listener.accept().await.unwrap();
            seen.push((read_call(&mut socket).await.unwrap(), from.port()));
            drop(socket);
            let (mut socket, from) = listener.accept().await.unwrap();
            while let Some(xid) = read_call(&mut socket).await {
                seen.push((xid, from.port()));
                socket.write_all(&record(&reply(xid, &[]), usize::MAX)).await.unwrap();
                if seen.len() == 3 {
                    break;
                }
            }
            seen
        });
        assert!(connection.call(null()).await.unwrap().resent);
        assert!(!connection.call(null()).await.unwrap().resent);
        let seen = server.await.unwrap();
        assert_eq!(seen[0], seen[1], "the same call from the same port");
        assert_ne!(seen[1].0, seen[2].0);
    });
}

/// A payload that reports its drop: the pages of a WRITE can be reused then.
struct Pages(Vec<u8>, mpsc::Sender<()>);

impl weir_xdr::Payload for Pages {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn slices<'a>(&'a self, from: usize, out: &mut Vec<IoSlice<'a>>) {
        out.push(IoSlice::new(&self.0[from..]));
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        let _ = self.1.send(());
    }
}

/// A WRITE of `len` bytes, and the receiver that learns when its payload is dropped.
fn write_of(len: usize) -> (Request, mpsc::Receiver<()>) {
    let (dropped, is_dropped) = mpsc::channel();
    let expect = Expect::Results { max_bytes: 100 };
    let mut request = Request::new((100_003, 3, 7), &OpaqueAuth::NONE, "WRITE", expect);
    request.encoder().payload(Arc::new(Pages(vec![7; len], dropped)));
    (request, is_dropped)
}

#[test]
fn the_payload_of_a_soft_call_is_returned_at_its_timeout() {
    run(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let peer = peer_at("gone", listener.local_addr().unwrap());
        let patience = Patience { hard: false, ..PATIENCE };
        let connection = Connection::open(peer, patience, Arc::default(), None).await.unwrap();
        let (request, is_dropped) = write_of(100);
        let gone = async {
            let (mut socket, _) = listener.accept().await.unwrap();
            read_call(&mut socket).await.unwrap();
            // From here on connections are refused.
            drop(listener);
        };
        let call = tokio::time::timeout(Duration::from_secs(120), connection.call(request));
        let (answer, ()) = tokio::join!(call, gone);
        assert!(matches!(answer, Ok(Err(Error::TimedOut { .. }))), "{answer:?}");
        assert_eq!(is_dropped.try_recv(), Ok(()));
    });
}

#[test]
fn the_payload_of_a_soft_call_is_returned_from_a_blocked_connection() {
    run(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let peer = peer_at("stuck", listener.local_addr().unwrap());
        let patience = Patience { retrans: 0, hard: false, ..PATIENCE };
        let connection = Connection::open(peer, patience, Arc::default(), None).await.unwrap();
        // More than the buffers of a connection hold.
        let (request, is_dropped) = write_of(64 << 20);
        let server = tokio::spawn(async move {
            let (mut socket, _) = listener.accept().await.unwrap();
            socket.read_exact(&mut [0; 100]).await.unwrap();
            drop(socket);
            let mut held = Vec::new();
            loop {
                held.push(listener.accept().await.unwrap());
            }
        });
        let call = tokio::time::timeout(Duration::from_secs(120), connection.call(request));
        let answer = call.await;
        assert!(matches!(answer, Ok(Err(Error::TimedOut { .. }))), "{answer:?}");
        let back = async {
            while is_dropped.try_recv().is_err() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        assert!(tokio::time::timeout(Duration::from_secs(120), back).await.is_ok());
        server.abort();
    });
}

#[test]
fn the_payload_of_a_call_is_returned_when_the_connection_ends() {
    run(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let connection = connect(&listener).await;
        let (request, is_dropped) = write_of(100);
        // The call is polled first, so it waits to be sent.
        let (answer, ()) = tokio::join!(connection.call(request), async { connection.end() });
        assert!(answer.is_err());
        assert_eq!(is_dropped.try_recv(), Ok(()));
    });
}

/// A call is late and expires at the same time.
#[test]
fn a_dead_connection_is_replaced_even_without_retransmissions() {
    run(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let peer = peer_at("dead", listener.local_addr().unwrap());
        let patience = Patience { retrans: 0, hard: false, ..PATIENCE };
        let connection = Connection::open(peer, patience, Arc::default(), None).await.unwrap();
        let server = tokio::spawn(async move {
            let _silent = listener.accept().await.unwrap();
            loop {
                let (mut socket, _) = listener.accept().await.unwrap();
                while let Some(xid) = read_call(&mut socket).await {
                    let _ = socket.write_all(&record(&reply(xid, &[]), usize::MAX)).await;
                }
            }
        });
        let null = || {
            let expect = Expect::Results { max_bytes: 0 };
            Request::new((100_003, 4, 0), &OpaqueAuth::NONE, "NULL", expect)
        };
        let answered = async { while connection.call(null()).await.is_err() {} };
        assert!(tokio::time::timeout(Duration::from_secs(120), answered).await.is_ok());
        server.abort();
    });
}

#[test]
fn a_server_that_floods_empty_fragments_does_not_keep_the_clients_thread() {
    use std::io::Write;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let peer = peer_at("flood", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        while let Ok((mut socket, _)) = listener.accept() {
            std::thread::spawn(move || while socket.write_all(&[0; 64 << 10]).is_ok() {});
        }
    });
    let (done, is_done) = mpsc::channel();
    std::thread::spawn(move || {
        let answer = run(async {
            let patience = Patience { hard: false, ..PATIENCE };
            let connection = Connection::open(peer, patience, Arc::default(), None).await.unwrap();
            let expect = Expect::Results { max_bytes: 0 };
            let request = Request::new((100_003, 4, 0), &OpaqueAuth::NONE, "NULL", expect);
            connection.call(request).await
        });
        done.send(answer).unwrap();
    });
    let answer = is_done.recv_timeout(Duration::from_secs(120)).expect("it ends");
    assert!(matches!(answer, Err(Error::TimedOut { .. })), "{answer:?}");
}

#[test]
fn a_record_without_an_xid_ends_the_connection() {
    run(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let peer = peer_at("babbler", listener.local_addr().unwrap());
        let connection = Connection::open(peer, ENDLESS, Arc::default(), None).await.unwrap();
        let server = tokio::spawn(async move {
            let (mut first, _) = listener.accept().await.unwrap();
            read_call(&mut first).await.unwrap();
            first.write_all(&record(&[1, 2, 3], usize::MAX)).await.unwrap();
            let (mut socket, _) = listener.accept().await.unwrap();
            while let Some(xid) = read_call(&mut socket).await {
                socket.write_all(&record(&reply(xid, &[]), usize::MAX)).await.unwrap();
            }
        });
        let expect = Expect::Results { max_bytes: 0 };
        let request = Request::new((100_003, 4, 0), &OpaqueAuth::NONE, "NULL", expect);
        let answer = tokio::time::timeout(Duration::from_secs(120), connection.call(request)).await;
        assert!(answer.expect("it is sent again").unwrap().resent);
        server.abort();
    });
}

/// Time in the queue is not the server's silence: a server that receives a lot slowly is alive.
#[test]
fn time_in_the_send_queue_does_not_count_towards_the_timeout() {
    run(async {
        let listener = tokio::net::TcpSocket::new_v4().unwrap();
        listener.set_recv_buffer_size(4096).unwrap();
        listener.bind(([127, 0, 0, 1], 0).into()).unwrap();
        let listener = listener.listen(4).unwrap();
        let addr = listener.local_addr().unwrap();
        let patience = Patience { timeo: Duration::from_secs(20), retrans: 0, hard: false };
        let counters: Arc<Counters> = Arc::default();
        let opened = Connection::open(peer_at("slow", addr), patience, counters.clone(), None);
        let connection = Arc::new(opened.await.unwrap());
        let server = tokio::spawn(async move {
            let (mut socket, _) = listener.accept().await.unwrap();
            while let Some(xid) = read_slowly(&mut socket).await {
                socket.write_all(&record(&reply(xid, &[]), usize::MAX)).await.unwrap();
            }
        });
        let calls = (0..8).map(|_| {
            let connection = Arc::clone(&connection);
            tokio::spawn(async move {
                let expect = Expect::Results { max_bytes: 0 };
                let program = (100_003, 3, 7);
                let mut request = Request::new(program, &OpaqueAuth::NONE, "WRITE", expect);
                request.encoder().fixed(&[0; 4 << 20]);
                connection.call(request).await
            })
        });
        for call in calls.collect::<Vec<_>>() {
            assert!(call.await.unwrap().is_ok());
        }
        assert_eq!(counters.reconnects.load(std::sync::atomic::Ordering::Relaxed), 0);
        server.abort();
    });
}

/// Like [`read_call`], with pauses longer in total than a call may take. The bytes of a completely
/// sent call that remain in the socket's buffers take only part of that time, so a busy machine may
/// be late.
async fn read_slowly(socket: &mut TcpStream) -> Option<u32> {
    let mut marker = [0; 4];
    socket.read_exact(&mut marker).await.ok()?;
    let len = (u32::from_be_bytes(marker) & 0x7fff_ffff) as usize;
    let mut call = vec![0; len];
    for piece in call.chunks_mut(512 << 10) {
        socket.read_exact(piece).await.ok()?;
        tokio::time::sleep(Duration::from_millis(400)).await;
    }
    Some(u32::from_be_bytes(*call.first_chunk()?))
}
