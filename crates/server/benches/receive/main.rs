//! What calls cost a server by the way in which it waits for them, receives them and sends its replies: the transport
//! of a READ without its execution. Each way serves the same client on loopback, in rounds in alternation, and frames
//! records as the server does. Prints tables of the processor time of the server's threads for each call.
//!
//! `cargo bench -p weir-server --bench receive`; WEIR_ROUNDS is the number of rounds.

mod ring;

use bytes::BytesMut;
use rustix::time::{ClockId, clock_gettime};
use std::collections::{HashMap, VecDeque};
use std::io::{self, BufReader, IoSlice, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use weir_rpc::{RecordReader, finish_record, start_record};
use weir_xdr::{Bytes, Message};

const ROUNDS: usize = 25;
const ROUND: Duration = Duration::from_millis(200);
const FILE_BYTES: usize = 64 << 20;
/// Bytes of a call without its header, as of READ.
const CALL_BYTES: usize = 132;
/// Bytes of a reply beside the data.
const HEAD_BYTES: usize = 100;
/// Bytes received at a time, as by the server.
const RECEIVE_BYTES: usize = 16 << 10;
/// Maximum slices in one call to the kernel: Linux's IOV_MAX.
const MAX_SLICES: usize = 1024;

/// Serves all connections of a listener from the file, on threads of its own.
type Serve = fn(TcpListener, Bytes);

const WAYS: [(&str, Serve); 7] = [
    ("tokio, a thread for each processor", tokio_threads),
    ("tokio, one thread", tokio_thread),
    ("epoll, one thread", epoll),
    ("a blocking thread for each connection", blocking),
    ("io_uring, one thread", |listener, file| ring::serve(listener, file, ring::DEFAULT)),
    ("the same, deferred task work", |listener, file| ring::serve(listener, file, ring::DEFERRED)),
    ("the same, SENDMSG_ZC", |listener, file| ring::serve(listener, file, ring::ZERO_COPY)),
];

/// What the client does.
struct Load {
    connections: usize,
    /// Calls in flight on each connection.
    depth: usize,
    /// Bytes of data in each reply.
    block: usize,
}

const LOADS: [Load; 5] = [
    Load { connections: 1, depth: 1, block: 4 << 10 },
    Load { connections: 1, depth: 32, block: 4 << 10 },
    Load { connections: 8, depth: 1, block: 4 << 10 },
    Load { connections: 8, depth: 32, block: 4 << 10 },
    Load { connections: 1, depth: 4, block: 1 << 20 },
];

/// Receives with bytes, of all servers.
static RECEIVES: AtomicU64 = AtomicU64::new(0);

/// A connection's calls.
struct Calls {
    file: Bytes,
    input: BytesMut,
    records: RecordReader,
}

impl Calls {
    fn new(file: &Bytes) -> Self {
        let records = RecordReader::new(CALL_BYTES);
        Self { file: file.clone(), input: BytesMut::new(), records }
    }

    /// Replies to the complete calls among those received.
    fn answer(&mut self, replies: &mut Replies) {
        RECEIVES.fetch_add(1, Ordering::Relaxed);
        while let Some(call) = self.records.next_record(&mut self.input).expect("short records") {
            let word = |n: usize| u32::from_be_bytes(call[4 * n..][..4].try_into().expect("four"));
            let (xid, at, block) = (word(0), word(1) as usize, word(2) as usize);
            let mut reply = start_record();
            (0..HEAD_BYTES / 4 - 1).for_each(|_| reply.u32(xid));
            reply.payload(Arc::new(self.file.slice(at..at + block)));
            replies.waiting.push_back(finish_record(reply));
        }
        if self.input.is_empty() {
            self.input = BytesMut::new();
        }
    }
}

/// Replies that have not been sent.
#[derive(Default)]
struct Replies {
    waiting: VecDeque<Message>,
    /// Bytes sent of the first.
    sent: usize,
}

impl Replies {
    fn slices(&self) -> Vec<IoSlice<'_>> {
        let (mut slices, mut skip) = (Vec::with_capacity(64), self.sent);
        for message in &self.waiting {
            message.slices(std::mem::take(&mut skip), &mut slices);
            if slices.len() >= MAX_SLICES {
                break;
            }
        }
        slices.truncate(MAX_SLICES);
        slices
    }

    fn advance(&mut self, n: usize) {
        self.sent += n;
        while let Some(len) = self.waiting.front().map(Message::len)
            && len <= self.sent
        {
            self.sent -= len;
            self.waiting.pop_front();
        }
    }
}

fn tokio_threads(listener: TcpListener, file: Bytes) {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    // Not this future but tasks do the work, so this thread only waits.
    thread::spawn(move || runtime.block_on(runtime.spawn(tokio_accept(listener, file))));
}

fn tokio_thread(listener: TcpListener, file: Bytes) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    thread::spawn(move || runtime.block_on(tokio_accept(listener, file)));
}

async fn tokio_accept(listener: TcpListener, file: Bytes) {
    listener.set_nonblocking(true).unwrap();
    let listener = tokio::net::TcpListener::from_std(listener).unwrap();
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        stream.set_nodelay(true).unwrap();
        let calls = Calls::new(&file);
        tokio::spawn(async move { tokio_serve(stream, calls).await.unwrap() });
    }
}

async fn tokio_serve(stream: tokio::net::TcpStream, mut calls: Calls) -> io::Result<()> {
    let mut replies = Replies::default();
    loop {
        stream.readable().await?;
        calls.input.reserve(RECEIVE_BYTES);
        match stream.try_read_buf(&mut calls.input) {
            Ok(0) => return Ok(()),
            Ok(_) => calls.answer(&mut replies),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            Err(e) => return Err(e),
        }
        while !replies.waiting.is_empty() {
            match stream.try_write_vectored(&replies.slices()) {
                Ok(n) => replies.advance(n),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => stream.writable().await?,
                Err(e) => return Err(e),
            }
        }
    }
}

fn blocking(listener: TcpListener, file: Bytes) {
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut connection = Blocking::new(stream.unwrap(), &file);
            thread::spawn(move || while connection.serve().unwrap() {});
        }
    });
}

fn epoll(listener: TcpListener, file: Bytes) {
    use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
    const LISTENER: u64 = 0;
    thread::spawn(move || {
        let epoll = epoll::create(CreateFlags::CLOEXEC).unwrap();
        epoll::add(&epoll, &listener, EventData::new_u64(LISTENER), EventFlags::IN).unwrap();
        let (mut connections, mut next) = (HashMap::new(), LISTENER);
        let mut events = Vec::with_capacity(64);
        loop {
            events.clear();
            epoll::wait(&epoll, rustix::buffer::spare_capacity(&mut events), None).unwrap();
            for event in &events {
                match event.data.u64() {
                    LISTENER => {
                        let (stream, _) = listener.accept().unwrap();
                        next += 1;
                        epoll::add(&epoll, &stream, EventData::new_u64(next), EventFlags::IN)
                            .unwrap();
                        connections.insert(next, Blocking::new(stream, &file));
                    }
                    // The socket blocks if the client does not read its replies. This one does.
                    number if connections.get_mut(&number).unwrap().serve().unwrap() => {}
                    number => drop(connections.remove(&number)),
                }
            }
        }
    });
}

struct Blocking {
    stream: TcpStream,
    calls: Calls,
    replies: Replies,
}

impl Blocking {
    fn new(stream: TcpStream, file: &Bytes) -> Self {
        stream.set_nodelay(true).unwrap();
        Self { stream, calls: Calls::new(file), replies: Replies::default() }
    }

    /// Receives once and answers what has arrived. Returns whether the connection is open.
    fn serve(&mut self) -> io::Result<bool> {
        // A connection without calls has no buffer.
        let mut received = [0; RECEIVE_BYTES];
        let n = self.stream.read(&mut received)?;
        self.calls.input.extend_from_slice(&received[..n]);
        self.calls.answer(&mut self.replies);
        while !self.replies.waiting.is_empty() {
            let n = self.stream.write_vectored(&self.replies.slices())?;
            self.replies.advance(n);
        }
        Ok(n > 0)
    }
}

/// Processor time of all threads of this process but this one, those that have ended included.
fn processor_time_of_others() -> Duration {
    let now = |clock| Duration::try_from(clock_gettime(clock)).unwrap();
    now(ClockId::ProcessCPUTime) - now(ClockId::ThreadCPUTime)
}

/// Of one round: the server's microseconds for each call, calls per second, calls for each receive.
type Sample = [f64; 3];

/// A connection of the client.
struct Caller {
    stream: BufReader<TcpStream>,
    reply: Vec<u8>,
    block: usize,
    next: usize,
}

impl Caller {
    fn new(address: SocketAddr, block: usize) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        let reply = vec![0; 4 + HEAD_BYTES + block];
        Self { stream: BufReader::with_capacity(256 << 10, stream), reply, block, next: 0 }
    }

    fn send(&mut self, count: usize) {
        let mut calls = Vec::with_capacity(count * (4 + CALL_BYTES));
        for _ in 0..count {
            self.next += 7919;
            let at = self.next % (FILE_BYTES / self.block) * self.block;
            let words =
                [1 << 31 | CALL_BYTES as u32, self.next as u32, at as u32, self.block as u32];
            words.iter().for_each(|word| calls.extend(word.to_be_bytes()));
            calls.resize(calls.len() + CALL_BYTES - 12, 0);
        }
        self.stream.get_mut().write_all(&calls).unwrap();
    }

    /// Waits for at most `most` replies, but only for the first; returns how many came.
    fn receive(&mut self, most: usize) -> usize {
        let mut arrived = 0;
        while arrived == 0 || (arrived < most && self.stream.buffer().len() >= self.reply.len()) {
            self.stream.read_exact(&mut self.reply).unwrap();
            let mark = (1 << 31) | (self.reply.len() - 4) as u32;
            assert_eq!(self.reply[..4], mark.to_be_bytes(), "a reply of another length");
            arrived += 1;
        }
        arrived
    }
}

fn measure(address: SocketAddr, load: &Load) -> Sample {
    let mut callers: Vec<_> =
        (0..load.connections).map(|_| Caller::new(address, load.block)).collect();
    let (before, begun) = (processor_time_of_others(), Instant::now());
    let receives = RECEIVES.load(Ordering::Relaxed);
    let mut calls = callers.len() * load.depth;
    callers.iter_mut().for_each(|caller| caller.send(load.depth));
    while begun.elapsed() < ROUND {
        for caller in &mut callers {
            let arrived = caller.receive(load.depth);
            caller.send(arrived);
            calls += arrived;
        }
    }
    for caller in &mut callers {
        let mut left = load.depth;
        while left > 0 {
            left -= caller.receive(left);
        }
    }
    let (elapsed, server) = (begun.elapsed(), processor_time_of_others() - before);
    let receives = RECEIVES.load(Ordering::Relaxed) - receives;
    let calls = calls as f64;
    [server.as_secs_f64() * 1e6 / calls, calls / elapsed.as_secs_f64(), calls / receives as f64]
}

/// The lower quartile, the median and the upper quartile.
fn quartiles(values: impl Iterator<Item = f64>) -> [f64; 3] {
    let mut values: Vec<_> = values.collect();
    values.sort_by(f64::total_cmp);
    [1, 2, 3].map(|n| values[n * values.len() / 4])
}

fn main() {
    let rounds = std::env::var("WEIR_ROUNDS").map_or(ROUNDS, |n| n.parse().unwrap());
    let file = Bytes::from(vec![7; FILE_BYTES]);
    let addresses = WAYS.map(|(_, serve)| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        serve(listener, file.clone());
        address
    });
    for load in &LOADS {
        let mut samples = [const { Vec::new() }; WAYS.len()];
        for _ in 0..rounds {
            for (address, samples) in addresses.iter().zip(&mut samples) {
                samples.push(measure(*address, load));
            }
        }
        let Load { connections, depth, block } = load;
        println!(
            "\nconnections: {connections}, calls in flight on each: {depth}, bytes: {block}\n"
        );
        println!("| | us: quartile | median | quartile | calls/s | calls for each receive |");
        println!("| --- | ---: | ---: | ---: | ---: | ---: |");
        for ((way, _), samples) in WAYS.iter().zip(&samples) {
            let of = |n: usize| quartiles(samples.iter().map(|sample: &Sample| sample[n]));
            let ([low, median, high], rate, together) = (of(0), of(1)[1], of(2)[1]);
            println!("| {way} | {low:.2} | {median:.2} | {high:.2} | {rate:.0} | {together:.1} |");
        }
    }
}
