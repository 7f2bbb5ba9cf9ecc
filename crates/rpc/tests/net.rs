//! Peers that follow the protocol, break it, or stay silent; each on its own socket.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use weir_rpc::net::{
    ClientLimits, Error, PortMapper, RpcClient, ServiceLimits, Source, answers, connect, serve,
};
use weir_rpc::{
    AcceptStatus, AuthStatus, Denial, OpaqueAuth, ProgramId, RecordError, ReplyBody, ReplyHeader,
    VersionRange, answer, rpcbind,
};
use weir_xdr::{Bytes, Encoder};

const ID: ProgramId = ProgramId { program: 100_021, version: 4 };
const LIMITS: ClientLimits = ClientLimits { deadline: Duration::from_secs(30), reply_bytes: 64 };
/// For peers that never complete a call.
const SHORT: ClientLimits = ClientLimits { deadline: Duration::from_millis(100), ..LIMITS };

async fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    (listener, addr)
}

/// A peer that sends `reply`, derived from each call's transaction, and with `closes` closes the
/// connection after the first.
async fn peer(reply: impl Fn(u32) -> Vec<u8> + Send + 'static, closes: bool) -> SocketAddr {
    let (listener, addr) = listen().await;
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            while let Ok(len) = stream.read_u32().await {
                let mut call = vec![0; (len & 0x7fff_ffff) as usize];
                stream.read_exact(&mut call).await.unwrap();
                let xid = u32::from_be_bytes(*call.first_chunk().unwrap());
                stream.write_all(&reply(xid)).await.unwrap();
                if closes {
                    break;
                }
            }
        }
    });
    addr
}

/// What follows a fragment header: a reply with the result 7.
fn success(xid: u32) -> Bytes {
    let mut e = Encoder::new();
    e.put(&ReplyHeader::accepted(xid, AcceptStatus::Success));
    e.u32(7);
    e.finish().to_bytes()
}

/// A record in fragments of these lengths, with the rest in another.
fn in_fragments(mut record: &[u8], lengths: &[usize]) -> Vec<u8> {
    let mut stream = Vec::new();
    for &len in lengths {
        let (fragment, rest) = record.split_at(len);
        stream.extend_from_slice(&(len as u32).to_be_bytes());
        stream.extend_from_slice(fragment);
        record = rest;
    }
    stream.extend_from_slice(&(1 << 31 | record.len() as u32).to_be_bytes());
    [&stream, record].concat()
}

/// Calls a peer that never completes the call; the time limit is that of the call alone.
async fn times_out(addr: SocketAddr) -> bool {
    let mut client = RpcClient::over(connect(addr, Source::ANY).await.unwrap(), SHORT);
    matches!(client.call::<u32>(ID, 1, &5_u32).await, Err(Error::TimedOut(_)))
}

async fn call(addr: SocketAddr, limits: ClientLimits) -> (Result<u32, Error>, RpcClient) {
    let mut client = RpcClient::connect(addr, Source::ANY, limits).await.unwrap();
    (client.call(ID, 1, &5_u32).await, client)
}

/// The error of a call, which is the last on its connection.
async fn failure(reply: impl Fn(u32) -> Vec<u8> + Send + 'static, closes: bool) -> Error {
    let (result, mut client) = call(peer(reply, closes).await, LIMITS).await;
    let again = client.call::<()>(ID, 0, &()).await;
    assert!(matches!(again, Err(Error::Unusable)), "{again:?}");
    result.unwrap_err()
}

#[tokio::test]
async fn a_reply_may_come_in_fragments_and_empty_ones() {
    let lengths: [&[usize]; 6] = [&[], &[6], &[28], &[0, 4, 0, 0, 9, 0], &[1; 20], &[0; 500]];
    for lengths in lengths {
        let addr = peer(|xid| in_fragments(&success(xid), lengths), false).await;
        let (result, mut client) = call(addr, LIMITS).await;
        assert_eq!(result.unwrap(), 7, "{lengths:?}");
        assert_eq!(client.call::<u32>(ID, 1, &()).await.unwrap(), 7);
    }
}

#[tokio::test]
async fn a_long_reply_is_refused_at_its_header() {
    let too_long = |error| matches!(error, Error::Record(RecordError::TooLong { max_bytes: 64 }));
    // Only the header is sent: the client does not wait for more.
    for header in [0x8000_0041_u32, 0xffff_ffff, 0x7fff_ffff] {
        assert!(too_long(failure(move |_| header.to_be_bytes().to_vec(), false).await));
    }
    let long = |xid| [&success(xid)[..], &[0; 37]].concat();
    assert!(too_long(failure(move |xid| in_fragments(&long(xid), &[40]), false).await));
    let longest = |xid| [&success(xid)[..], &[0; 36]].concat();
    let addr = peer(move |xid| in_fragments(&longest(xid), &[40]), false).await;
    assert_eq!(call(addr, LIMITS).await.0.unwrap(), 7);
}

#[tokio::test]
async fn a_record_that_is_no_reply_fails_the_call() {
    let error = failure(|xid| in_fragments(&success(xid.wrapping_add(1)), &[]), false).await;
    assert!(matches!(error, Error::OtherTransaction { .. }), "{error}");
    for record in [&b""[..], b"abc", &[0; 60]] {
        let error = failure(|_| in_fragments(record, &[]), false).await;
        assert!(matches!(error, Error::NotAReply), "{error}");
    }
    let error = failure(|xid| in_fragments(&success(xid), &[])[..20].to_vec(), true).await;
    assert!(matches!(error, Error::Closed), "{error}");
    let error = failure(|_| Vec::new(), true).await;
    assert!(matches!(error, Error::Closed), "{error}");
}

#[tokio::test]
async fn a_refused_call_leaves_the_connection_usable() {
    let statuses = [
        ReplyBody::from(AcceptStatus::ProgUnavail),
        AcceptStatus::ProgMismatch(VersionRange { low: 1, high: 3 }).into(),
        ReplyBody::Denied(Denial::AuthError(AuthStatus::TooWeak)),
    ];
    for body in statuses {
        let refusal = body.clone();
        let reply = move |xid| {
            let mut e = Encoder::new();
            e.put(&ReplyHeader { xid, body: refusal.clone() });
            in_fragments(&e.finish().to_bytes(), &[])
        };
        let (result, mut client) = call(peer(reply, false).await, LIMITS).await;
        let refused = |result| matches!(result, Err(Error::Refused(refusal)) if refusal == body);
        assert!(refused(result) && refused(client.call(ID, 1, &()).await));
    }
    let addr = peer(|xid| in_fragments(&success(xid)[..26], &[]), false).await;
    let (result, mut client) = call(addr, LIMITS).await;
    assert!(matches!(result, Err(Error::Results(_))), "{result:?}");
    client.call::<()>(ID, 1, &()).await.unwrap();
}

#[tokio::test]
async fn an_endless_reply_fails_the_call() {
    assert!(times_out(peer(|_| Vec::new(), false).await).await);
    let addr = peer(|xid| in_fragments(&success(xid), &[])[..20].to_vec(), false).await;
    assert!(times_out(addr).await);

    let (listener, addr) = listen().await;
    let empty_fragments = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        while stream.write_all(&[0; 4096]).await.is_ok() {}
    });
    assert!(times_out(addr).await);
    empty_fragments.await.unwrap();
}

#[tokio::test]
async fn a_dropped_call_ends_the_connection() {
    let addr = peer(|_| Vec::new(), false).await;
    let mut client = RpcClient::connect(addr, Source::ANY, LIMITS).await.unwrap();
    {
        let call = client.call::<u32>(ID, 1, &());
        tokio::pin!(call);
        tokio::select! {
            biased;
            _ = &mut call => panic!("the peer does not answer"),
            () = std::future::ready(()) => {}
        }
    }
    assert!(matches!(client.call::<u32>(ID, 1, &()).await, Err(Error::Unusable)));
}

#[tokio::test]
async fn a_connection_uses_the_given_source_address() {
    let (listener, addr) = listen().await;
    let other = "127.0.0.9".parse().unwrap();
    let from_address = connect(addr, Source::address(other)).await.unwrap();
    assert_eq!(from_address.local_addr().unwrap().ip(), other);
    assert_eq!(listener.accept().await.unwrap().1.ip(), other);
    let port = from_address.local_addr().unwrap().port();
    from_address.set_zero_linger().unwrap();
    drop(from_address);
    let again = Source { port: Some(port), ..Source::address(other) };
    let again = connect(addr, again).await.unwrap();
    assert_eq!(again.local_addr().unwrap(), SocketAddr::new(other, port));
    // The port is in use for this peer: another one will do.
    let beside = Source { port: Some(port), ..Source::address(other) };
    let beside = connect(addr, beside).await.unwrap();
    assert_ne!(beside.local_addr().unwrap().port(), port);
    connect(addr, Source::RESERVED).await.unwrap();
    assert!(connect(addr, Source::address("192.0.2.1".parse().unwrap())).await.is_err());
}

/// A service that adds one; procedure 0 is null.
async fn adding(limits: ServiceLimits) -> (SocketAddr, JoinHandle<()>) {
    let (listener, addr) = listen().await;
    let add = |call| {
        answer(call, ID, |header, d, e| {
            match header.procedure {
                0 => {}
                1 => e.u32(d.u32()?.wrapping_add(1)),
                _ => return Err(AcceptStatus::ProcUnavail),
            }
            Ok(())
        })
    };
    let serving = tokio::spawn(async move { match serve(listener, limits, add).await {} });
    (addr, serving)
}

const SERVICE: ServiceLimits = ServiceLimits {
    connections: 2,
    record_bytes: 64,
    idle: Duration::from_secs(30),
    deadline: Duration::from_secs(30),
};

#[tokio::test]
async fn a_service_answers_calls_one_after_another() {
    let (addr, serving) = adding(SERVICE).await;
    let mut client = RpcClient::connect(addr, Source::ANY, LIMITS).await.unwrap();
    for n in 0..100_u32 {
        assert_eq!(client.call::<u32>(ID, 1, &n).await.unwrap(), n + 1);
    }
    let garbage = client.call::<u32>(ID, 1, &()).await;
    assert!(
        matches!(garbage, Err(Error::Refused(body)) if body == AcceptStatus::GarbageArgs.into())
    );
    assert!(answers(addr, Source::ANY, ID, LIMITS).await);
    let other = ProgramId { version: 3, ..ID };
    assert!(!answers(addr, Source::ANY, other, LIMITS).await);

    // The end of the service closes its connections.
    serving.abort();
    assert!(serving.await.unwrap_err().is_cancelled());
    assert!(client.call::<u32>(ID, 1, &1_u32).await.is_err());
    assert!(!answers(addr, Source::ANY, ID, LIMITS).await);
}

#[tokio::test]
async fn a_service_closes_connections_that_break_the_rules() {
    let (addr, _serving) = adding(ServiceLimits { connections: 1, ..SERVICE }).await;
    let streams: [&[u8]; 6] = [
        // Too long: in one fragment, in two, and by far.
        b"\x80\0\0\x41",
        &in_fragments(&[0; 65], &[40])[..48],
        b"\x7f\xff\xff\xff",
        // Not calls: nothing, another message, a reply.
        b"\x80\0\0\0",
        b"\x80\0\0\x03abc",
        &in_fragments(&success(9), &[3]),
    ];
    for sent in streams {
        let mut stream = TcpStream::connect(addr).await.unwrap();
        stream.write_all(sent).await.unwrap();
        assert_eq!(stream.read(&mut [0; 16]).await.unwrap_or(0), 0, "{sent:x?}");
    }
    // Each has released its place.
    assert!(answers(addr, Source::ANY, ID, LIMITS).await);
}

#[tokio::test]
async fn a_service_closes_connections_that_are_silent_or_slow() {
    let short = Duration::from_millis(100);
    let limits = ServiceLimits { connections: 1, ..SERVICE };
    let silent = adding(ServiceLimits { idle: short, ..limits }).await.0;
    let slow = adding(ServiceLimits { deadline: short, ..limits }).await.0;
    for (addr, sent) in [(silent, &b""[..]), (slow, b"\x80"), (slow, b"\0\0\0\0\x80\0\0\x20abcd")] {
        let mut stream = TcpStream::connect(addr).await.unwrap();
        stream.write_all(sent).await.unwrap();
        assert_eq!(stream.read(&mut [0; 16]).await.unwrap_or(0), 0, "{sent:x?}");
    }
    let mut stream = TcpStream::connect(slow).await.unwrap();
    while stream.write_all(&[0; 4096]).await.is_ok() {}
    assert!(answers(slow, Source::ANY, ID, LIMITS).await);
}

#[tokio::test]
async fn connections_over_the_limit_wait() {
    let (addr, _serving) = adding(SERVICE).await;
    let mut clients = Vec::new();
    for _ in 0..2 {
        let mut client = RpcClient::connect(addr, Source::ANY, LIMITS).await.unwrap();
        client.call::<()>(ID, 0, &()).await.unwrap();
        clients.push(client);
    }
    assert!(!answers(addr, Source::ANY, ID, SHORT).await);
    let mut waiting = RpcClient::connect(addr, Source::ANY, LIMITS).await.unwrap();
    let waiting = tokio::spawn(async move { waiting.call::<()>(ID, 0, &()).await });
    clients.pop();
    waiting.await.unwrap().unwrap();
}

#[tokio::test]
async fn programs_are_registered_found_and_unregistered() {
    let table: Arc<Mutex<Vec<rpcbind::Mapping>>> = Arc::default();
    let (program, other) = (adding(SERVICE).await.0, ProgramId { version: 3, ..ID });
    let (listener, mapper) = listen().await;
    let mappings = Arc::clone(&table);
    let id = ProgramId { program: rpcbind::PROGRAM, version: rpcbind::VERSION };
    let map = move |call| {
        answer(call, id, |header, d, e| {
            let asked: rpcbind::Mapping = d.get()?;
            let mut table = mappings.lock().unwrap();
            let same =
                |m: &rpcbind::Mapping| (m.program, m.version) == (asked.program, asked.version);
            match header.procedure {
                1 => {
                    let known = table.iter().any(|m| same(m) && m.protocol == asked.protocol);
                    table.extend((!known).then_some(asked));
                    e.put(&!known);
                }
                2 => e.put(&(table.extract_if(.., |m| same(m)).count() > 0)),
                3 => e.u32(table.iter().find(|m| same(m)).map_or(0, |m| m.port)),
                _ => return Err(AcceptStatus::ProcUnavail),
            }
            Ok(())
        })
    };
    tokio::spawn(serve(listener, SERVICE, map));

    let mut client = PortMapper::connect(mapper, Source::RESERVED, LIMITS).await.unwrap();
    assert_eq!(client.port_of(ID).await.unwrap(), None);
    assert!(!client.unset(ID).await.unwrap());
    assert!(client.set(ID, rpcbind::TCP, program.port()).await.unwrap());
    assert!(!client.set(ID, rpcbind::TCP, 9).await.unwrap());
    assert!(client.set(ID, rpcbind::UDP, 9).await.unwrap());
    assert_eq!(client.port_of(ID).await.unwrap(), Some(program.port()));
    let mut found = PortMapper::find(mapper, Source::ANY, ID, LIMITS).await.unwrap();
    found = found.with_cred(OpaqueAuth::NONE);
    assert_eq!(found.call::<u32>(ID, 1, &1_u32).await.unwrap(), 2);
    let absent = PortMapper::find(mapper, Source::ANY, other, LIMITS).await.err().unwrap();
    assert!(matches!(absent, Error::NotRegistered(id) if id == other));
    drop(found);
    assert!(client.unset(ID).await.unwrap());
    assert_eq!(client.port_of(ID).await.unwrap(), None);

    // An invalid port counts as none.
    let wrong = rpcbind::Mapping { program: 1, version: 1, protocol: rpcbind::TCP, port: 1 << 16 };
    table.lock().unwrap().push(wrong);
    let wrong = ProgramId { program: 1, version: 1 };
    assert_eq!(client.port_of(wrong).await.unwrap(), None);
}

#[test]
fn errors_become_io_errors() {
    let kind = |error: Error| io::Error::from(error).kind();
    assert_eq!(kind(io::Error::from(io::ErrorKind::BrokenPipe).into()), io::ErrorKind::BrokenPipe);
    assert_eq!(kind(Error::TimedOut(LIMITS.deadline)), io::ErrorKind::TimedOut);
    assert_eq!(kind(Error::NotRegistered(ID)), io::ErrorKind::NotFound);
    assert_eq!(kind(Error::NotAReply), io::ErrorKind::InvalidData);
}
