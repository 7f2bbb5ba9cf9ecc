//! Real sockets against a small program.

mod slow;

use super::*;
use crate::program::{Call, Program, ProgramId, Refusal};
use async_trait::async_trait;
use std::sync::atomic::AtomicUsize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Semaphore;
use weir_rpc::{CallHeader, OpaqueAuth, ReplyHeader, finish_record, start_record};
use weir_xdr::{Bytes, Decoder, Encoder};

const ECHO: ProgramId = ProgramId { program: 77, version: 1 };

/// Procedures: 0 does nothing, 1 echoes an opaque, 2 waits for the gate, 3 panics, 4 replies with
/// the given number of bytes, 5 calls the caller back, 6 replies with the given number of bytes
/// without reserving them, 7 reserves them once the gate has opened.
struct Echo {
    /// Has a permit for each call that may pass.
    gate: Semaphore,
    /// Bytes that procedure 6 produced.
    made: AtomicUsize,
}

impl Echo {
    async fn pass_the_gate(&self) {
        self.gate.acquire().await.unwrap().forget();
    }
}

#[async_trait]
impl Program for Echo {
    fn id(&self) -> ProgramId {
        ECHO
    }

    async fn call(self: Arc<Self>, mut call: Call, mut reply: Encoder) -> Result<Encoder, Refusal> {
        match call.header.procedure {
            0 => {}
            1 => reply.opaque(&call.args.opaque(1 << 20)?),
            2 => self.pass_the_gate().await,
            3 => panic!("as asked"),
            4 => {
                let len = call.args.u32()? as usize;
                call.reply_memory.reserve(len).await.map_err(|_| Refusal::SystemError)?;
                reply.payload(Arc::new(Bytes::from(vec![7; len])));
            }
            5 => {
                let header = CallHeader { program: 78, ..call.header };
                let record = call.peer.call(header, &5u32).await.ok_or(Refusal::SystemError)?;
                reply.opaque(&record);
            }
            6 | 7 => {
                if call.header.procedure == 7 {
                    self.pass_the_gate().await;
                    let len = 1 << 20;
                    call.reply_memory.reserve(len).await.map_err(|_| Refusal::SystemError)?;
                }
                let bytes = vec![7; call.args.u32()? as usize];
                self.made.fetch_add(bytes.len(), Ordering::Relaxed);
                reply.opaque(&bytes);
            }
            _ => return Err(Refusal::NoSuchProcedure),
        }
        Ok(reply)
    }
}

struct Client(TcpStream);

impl Client {
    async fn send(&mut self, xid: u32, id: ProgramId, procedure: u32, args: &[u8]) {
        assert!(self.try_send(xid, id, procedure, args).await, "the connection has ended");
    }

    /// Whether the connection accepted the call.
    async fn try_send(&mut self, xid: u32, id: ProgramId, procedure: u32, args: &[u8]) -> bool {
        let mut e = start_record();
        let (program, version) = (id.program, id.version);
        let (cred, verf) = (OpaqueAuth::NONE, OpaqueAuth::NONE);
        e.put(&CallHeader { xid, program, version, procedure, cred, verf });
        e.raw(args);
        self.0.write_all(&finish_record(e).to_bytes()).await.is_ok()
    }

    /// The next record, or `None` when the connection is closed.
    async fn record(&mut self) -> Option<Bytes> {
        let len = self.0.read_u32().await.ok()? & 0x7fff_ffff;
        let mut record = vec![0; len as usize];
        self.0.read_exact(&mut record).await.ok()?;
        Some(record.into())
    }

    async fn reply(&mut self) -> (ReplyHeader, Bytes) {
        let mut d = Decoder::new(self.record().await.unwrap());
        (d.get().unwrap(), d.into_rest())
    }

    async fn ends(mut self) -> bool {
        self.record().await.is_none()
    }
}

struct Fixture {
    echo: Arc<Echo>,
    transport: Arc<Transport>,
    addr: std::net::SocketAddr,
    stop: CancellationToken,
    done: tokio::task::JoinHandle<()>,
}

impl Fixture {
    async fn new(limits: TransportLimits) -> Self {
        let echo = Arc::new(Echo { gate: Semaphore::new(0), made: AtomicUsize::new(0) });
        let mut programs = Programs::default();
        programs.add(echo.clone());
        let stop = CancellationToken::new();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let transport =
            Arc::new(Transport::new(limits, 16, programs, Arc::default(), stop.clone()));
        let done = tokio::spawn(transport.clone().serve(vec![listener]));
        Self { echo, transport, addr, stop, done }
    }

    /// Lets `calls` calls through the gate.
    fn open_the_gate(&self, calls: usize) {
        self.echo.gate.add_permits(calls);
    }

    /// A connection from this address of the loopback interface.
    async fn connect_from(&self, ip: &str) -> Client {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind((ip.parse::<std::net::IpAddr>().unwrap(), 0).into()).unwrap();
        Client(socket.connect(self.addr).await.unwrap())
    }

    async fn connect(&self) -> Client {
        Client(TcpStream::connect(self.addr).await.unwrap())
    }
}

fn opaque(bytes: &[u8]) -> Bytes {
    let mut e = Encoder::new();
    e.opaque(bytes);
    e.finish().to_bytes()
}

fn accepted(xid: u32, status: weir_rpc::AcceptStatus) -> ReplyHeader {
    ReplyHeader::accepted(xid, status)
}

use weir_rpc::AcceptStatus::{
    GarbageArgs, ProcUnavail, ProgMismatch, ProgUnavail, Success, SystemErr,
};

#[tokio::test]
async fn calls_are_answered_and_bad_ones_refused() {
    let f = Fixture::new(TransportLimits::default()).await;
    let mut c = f.connect().await;
    c.send(1, ECHO, 1, &opaque(b"hello")).await;
    assert_eq!(c.reply().await, (accepted(1, Success), opaque(b"hello")));
    c.send(2, ECHO, 9, b"").await;
    assert_eq!(c.reply().await.0, accepted(2, ProcUnavail));
    c.send(3, ECHO, 1, b"\0\0\0\x09").await;
    assert_eq!(c.reply().await.0, accepted(3, GarbageArgs));
    c.send(4, ProgramId { program: 1, version: 1 }, 0, b"").await;
    assert_eq!(c.reply().await.0, accepted(4, ProgUnavail));
    c.send(5, ProgramId { version: 2, ..ECHO }, 0, b"").await;
    let versions = weir_rpc::VersionRange { low: 1, high: 1 };
    assert_eq!(c.reply().await.0, accepted(5, ProgMismatch(versions)));
    c.send(6, ECHO, 3, b"").await;
    assert_eq!(c.reply().await.0, accepted(6, SystemErr));
}

#[tokio::test]
async fn a_waiting_call_does_not_block_the_next_one() {
    let f = Fixture::new(TransportLimits::default()).await;
    let mut c = f.connect().await;
    c.send(1, ECHO, 2, b"").await;
    c.send(2, ECHO, 0, b"").await;
    assert_eq!(c.reply().await.0.xid, 2);
    f.open_the_gate(1);
    assert_eq!(c.reply().await.0.xid, 1);
}

#[tokio::test]
async fn large_records_arrive_in_pieces() {
    let f = Fixture::new(TransportLimits::default()).await;
    let mut c = f.connect().await;
    let big = vec![3; 1 << 20];
    c.send(1, ECHO, 1, &opaque(&big)).await;
    assert_eq!(c.reply().await, (accepted(1, Success), opaque(&big)));
}

#[tokio::test]
async fn garbage_and_overlong_records_end_the_connection() {
    let f =
        Fixture::new(TransportLimits { record_bytes: 1000, ..TransportLimits::default() }).await;
    let mut c = f.connect().await;
    c.0.write_all(b"\x80\0\0\x08garbage!").await.unwrap();
    assert!(c.ends().await);
    let mut c = f.connect().await;
    c.0.write_all(b"\x80\0\x10\0").await.unwrap();
    assert!(c.ends().await);
    let mut c = f.connect().await;
    c.send(1, ECHO, 0, b"").await;
    assert_eq!(c.reply().await.0, accepted(1, Success));
}

#[tokio::test]
async fn half_sent_records_end_their_connection_and_give_their_memory_back() {
    let record_bytes = 100_000;
    let limits = TransportLimits {
        record_bytes,
        call_bytes: record_bytes,
        stall: Duration::from_millis(200),
        ..TransportLimits::default()
    };
    let f = Fixture::new(limits).await;
    let mut stuck = f.connect().await;
    stuck.0.write_all(b"\x80\x01\x00\x00some").await.unwrap();
    // If this test is suspended, the server disconnects this peer as well.
    let served = async {
        loop {
            let mut next = f.connect().await;
            if next.try_send(1, ECHO, 1, &opaque(&[1; 50_000])).await
                && next.record().await.is_some()
            {
                break;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(60), served).await.unwrap();
    assert!(stuck.ends().await);
}

#[tokio::test]
async fn excess_connections_are_closed_and_the_others_served() {
    let f = Fixture::new(TransportLimits { connections: 1, ..TransportLimits::default() }).await;
    let mut first = f.connect().await;
    first.send(1, ECHO, 0, b"").await;
    first.reply().await;
    assert!(f.connect().await.ends().await);
    first.send(2, ECHO, 0, b"").await;
    assert_eq!(first.reply().await.0.xid, 2);
}

#[tokio::test]
async fn a_peer_that_does_not_read_blocks_only_itself() {
    let f = Fixture::new(TransportLimits { in_flight: 2, ..TransportLimits::default() }).await;
    let mut slow = f.connect().await;
    let megabyte = (1u32 << 20).to_be_bytes();
    for xid in 0..32 {
        slow.send(xid, ECHO, 4, &megabyte).await;
    }
    let mut other = f.connect().await;
    other.send(1, ECHO, 0, b"").await;
    assert_eq!(other.reply().await.0.xid, 1);
    for xid in 0..32 {
        let (header, rest) = slow.reply().await;
        assert_eq!((header.xid, rest.len()), (xid, 4 + (1 << 20)));
    }
}

#[tokio::test]
async fn callbacks_share_the_connection() {
    let f = Fixture::new(TransportLimits::default()).await;
    let mut c = f.connect().await;
    c.send(1, ECHO, 5, b"").await;
    let call = CallHeader::decode(&mut Decoder::new(c.record().await.unwrap())).unwrap();
    assert_eq!(call.program, 78);
    let mut e = start_record();
    e.put(&accepted(call.xid, Success));
    let record = finish_record(e).to_bytes();
    c.0.write_all(&record).await.unwrap();
    assert_eq!(c.reply().await, (accepted(1, Success), opaque(&record[4..])));
}

#[tokio::test]
async fn shutdown_waits_for_running_calls() {
    let f = Fixture::new(TransportLimits::default()).await;
    let mut c = f.connect().await;
    c.send(1, ECHO, 2, b"").await;
    c.send(2, ECHO, 0, b"").await;
    assert_eq!(c.reply().await.0.xid, 2);
    f.stop.cancel();
    f.open_the_gate(1);
    assert_eq!(c.reply().await.0.xid, 1);
    assert!(c.ends().await);
    f.done.await.unwrap();
}

/// The server polls for calls that come without a pause; it must still notice everything else that
/// happens to the connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_busy_caller_does_not_starve_others() {
    let f = Fixture::new(TransportLimits::default()).await;
    let mut busy = f.connect().await;
    let mut other = f.connect().await;
    let mut xid = 0;
    for pause in [0, 0, 1, 0, 20, 0] {
        tokio::time::sleep(Duration::from_millis(pause)).await;
        for _ in 0..200 {
            xid += 1;
            busy.send(xid, ECHO, 1, &opaque(b"again")).await;
            assert_eq!(busy.reply().await, (accepted(xid, Success), opaque(b"again")));
        }
        other.send(xid, ECHO, 0, b"").await;
        assert_eq!(other.reply().await.0.xid, xid);
        // A record in two parts, and a call that is answered later.
        let (mut e, args) = (start_record(), opaque(&[9; 300]));
        let (cred, verf) = (OpaqueAuth::NONE, OpaqueAuth::NONE);
        e.put(&CallHeader { xid, program: ECHO.program, version: 1, procedure: 1, cred, verf });
        e.raw(&args);
        let record = finish_record(e).to_bytes();
        busy.0.write_all(&record[..100]).await.unwrap();
        tokio::time::sleep(Duration::from_millis(5)).await;
        busy.0.write_all(&record[100..]).await.unwrap();
        assert_eq!(busy.reply().await, (accepted(xid, Success), args));
        busy.send(xid, ECHO, 2, b"").await;
        f.open_the_gate(1);
        assert_eq!(busy.reply().await.0.xid, xid);
    }
    let stop = f.stop.clone();
    let calls = tokio::spawn(async move {
        while busy.0.writable().await.is_ok() {
            xid += 1;
            let mut e = start_record();
            let (cred, verf) = (OpaqueAuth::NONE, OpaqueAuth::NONE);
            e.put(&CallHeader { xid, program: ECHO.program, version: 1, procedure: 0, cred, verf });
            let sent = busy.0.write_all(&finish_record(e).to_bytes()).await;
            if sent.is_err() || busy.record().await.is_none() {
                break;
            }
        }
    });
    tokio::time::sleep(Duration::from_millis(50)).await;
    stop.cancel();
    tokio::time::timeout(Duration::from_secs(60), calls).await.unwrap().unwrap();
    f.done.await.unwrap();
}

#[tokio::test]
async fn silent_connections_do_not_block_another() {
    let f = Fixture::new(TransportLimits::default()).await;
    let mut silent = Vec::new();
    for _ in 0..300 {
        silent.push(f.connect().await);
    }
    let mut c = f.connect().await;
    c.send(1, ECHO, 0, b"").await;
    assert_eq!(c.reply().await.0.xid, 1);
}
