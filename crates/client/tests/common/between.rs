//! A proxy that counts the operations of NFSv4 and cuts connections where a test wants; and one
//! that changes replies.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use weir_nfs::nlm;
use weir_nfs::v4::attr::MODE_UMASK;
use weir_nfs::v4::op::open::{CreateHow, How};
use weir_nfs::v4::{Bitmap, CompoundHeader, CompoundResHeader, Op, OpCode, OpRes, PROGRAM};
use weir_rpc::CallHeader;
use weir_xdr::{Decoder, Encoder};

/// The proxy.
#[derive(Clone)]
pub(crate) struct Between {
    pub(crate) addr: SocketAddr,
    seen: Arc<Seen>,
}

#[derive(Default)]
struct Seen {
    counts: Mutex<HashMap<u32, usize>>,
    compounds: AtomicUsize,
    /// The next call with this program and procedure, or operation of NFSv4, is lost, with its
    /// connection.
    cut: Mutex<Option<(u32, u32)>>,
    is_cut: Notify,
    go_on: Notify,
    /// The server behind it has no current stateid.
    no_current_stateid: AtomicBool,
}

impl Between {
    pub(crate) async fn to(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let between = Self { addr: listener.local_addr().unwrap(), seen: Arc::default() };
        let seen = Arc::clone(&between.seen);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                // Without a server, close the client's connection.
                if let Ok(server) = TcpStream::connect(server).await {
                    tokio::spawn(Arc::clone(&seen).pass(client, server));
                }
            }
        });
        between
    }

    /// From now on the server takes the current stateid for one that it does not know.
    pub(crate) fn refuse_current_stateid(&self) {
        self.seen.no_current_stateid.store(true, Relaxed);
    }

    /// How often an operation was sent since the last call of this.
    pub(crate) fn take_count(&self, op: OpCode) -> usize {
        self.seen.counts.lock().unwrap().remove(&(op as u32)).unwrap_or_default()
    }

    /// How many compounds came since this was asked.
    pub(crate) fn take_compounds(&self) -> usize {
        self.seen.compounds.swap(0, Relaxed)
    }

    /// Drops the next call with an operation from now on, with its connection; ends when it has arrived.
    /// Nothing passes until [`go_on`](Self::go_on).
    pub(crate) fn cut_at(&self, op: OpCode) -> impl Future<Output = ()> + use<> {
        self.cut_at_call(PROGRAM, op as u32)
    }

    /// The same for a program and procedure, or an operation of NFSv4.
    pub(crate) fn cut_at_call(&self, program: u32, what: u32) -> impl Future<Output = ()> + use<> {
        *self.seen.cut.lock().unwrap() = Some((program, what));
        let seen = Arc::clone(&self.seen);
        async move { seen.is_cut.notified().await }
    }

    pub(crate) fn go_on(&self) {
        self.seen.go_on.notify_one();
    }
}

impl Seen {
    async fn pass(self: Arc<Self>, client: TcpStream, server: TcpStream) {
        let (mut from_client, mut to_client) = client.into_split();
        let (mut from_server, mut to_server) = server.into_split();
        let forth = async {
            while let Some(mut call) = record(&mut from_client).await {
                if self.is_last(&call) {
                    break;
                }
                if self.no_current_stateid.load(Relaxed) {
                    replace_current_stateid(&mut call);
                }
                pass_on(&mut to_server, &call).await;
            }
            if self.cut.lock().unwrap().take_if(|op| *op == CUT).is_some() {
                self.is_cut.notify_one();
                self.go_on.notified().await;
            }
        };
        let back = tokio::io::copy(&mut from_server, &mut to_client);
        tokio::select! { () = forth => {}, _ = back => {} }
    }

    /// Counts a call's operations; returns whether to cut here.
    fn is_last(&self, call: &[u8]) -> bool {
        let mut cut = self.cut.lock().unwrap();
        let Some(ops) = ops_of(call) else {
            let header = CallHeader::decode(&mut Decoder::new(call.to_vec().into()));
            let which = header.ok().map(|header| (header.program, header.procedure));
            let here = which.is_some() && *cut == which;
            if here {
                *cut = Some(CUT);
            }
            return here;
        };
        self.compounds.fetch_add(1, Relaxed);
        let mut counts = self.counts.lock().unwrap();
        ops.iter().for_each(|op| *counts.entry(*op).or_default() += 1);
        let here = cut.is_some_and(|(program, op)| program == PROGRAM && ops.contains(&op));
        if here {
            *cut = Some(CUT);
        }
        here
    }
}

/// Marks an operation at which a connection was cut.
const CUT: (u32, u32) = (u32::MAX, u32::MAX);

/// In a reply: transaction, kind, acceptance, an empty verifier of two words, status.
const REPLY_HEADER: usize = 24;

/// The operations of a compound.
fn ops_of(call: &[u8]) -> Option<Vec<u32>> {
    let mut d = Decoder::new(call.to_vec().into());
    let header = CallHeader::decode(&mut d).ok()?;
    if (header.program, header.procedure) != (PROGRAM, 1) {
        return None;
    }
    let compound: CompoundHeader = d.get().ok()?;
    (0..compound.operations).map(|_| Some(Op::decode_next(&mut d).ok()?.code() as u32)).collect()
}

/// Replaces the current stateid by an unknown one.
fn replace_current_stateid(call: &mut [u8]) {
    const CURRENT: [u8; 16] = [0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    if ops_of(call).is_none() {
        return;
    }
    let mut d = Decoder::new(call.to_vec().into());
    CallHeader::decode(&mut d).unwrap();
    let compound: CompoundHeader = d.get().unwrap();
    for _ in 0..compound.operations {
        let from = call.len() - d.remaining();
        let op = Op::decode_next(&mut d).unwrap().code();
        let to = call.len() - d.remaining();
        let args = &mut call[from..to];
        let uses = matches!(op, OpCode::Write | OpCode::Setattr | OpCode::Close);
        if uses && let Some(at) = args.windows(16).position(|bytes| bytes == CURRENT) {
            args[at + 4..at + 16].fill(0x77);
        }
    }
}

/// A proxy that replaces the last word of `times` replies: of those to calls with this program and
/// procedure, or, for NFSv4, that end with this operation.
pub(crate) async fn falsified(
    server: SocketAddr,
    what: (u32, u32),
    word: u32,
    times: usize,
) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let left = Arc::new(AtomicUsize::new(times));
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let server = TcpStream::connect(server).await.unwrap();
            let (mut from_client, mut to_client) = client.into_split();
            let (mut from_server, mut to_server) = server.into_split();
            let xids: Arc<Mutex<HashSet<[u8; 4]>>> = Arc::default();
            let asked = Arc::clone(&xids);
            tokio::spawn(async move {
                while let Some(call) = record(&mut from_client).await {
                    let mut d = Decoder::new(call.clone().into());
                    let header = CallHeader::decode(&mut d).unwrap();
                    let last = ops_of(&call).and_then(|ops| ops.last().copied());
                    if what == (header.program, last.unwrap_or(header.procedure)) {
                        asked.lock().unwrap().insert(*call.first_chunk().unwrap());
                    }
                    pass_on(&mut to_server, &call).await;
                }
            });
            let left = Arc::clone(&left);
            tokio::spawn(async move {
                while let Some(mut reply) = record(&mut from_server).await {
                    let meant = xids.lock().unwrap().remove(reply.first_chunk().unwrap());
                    let more = |n: usize| n.checked_sub(1);
                    if meant && left.fetch_update(Relaxed, Relaxed, more).is_ok() {
                        *reply.last_chunk_mut().unwrap() = word.to_be_bytes();
                    }
                    pass_on(&mut to_client, &reply).await;
                }
            });
        }
    });
    addr
}

/// Takes connections at an address, and answers no call. Returns the transactions of the calls with an operation of
/// NFSv4 so far.
pub(crate) async fn silent(addr: SocketAddr, op: OpCode) -> Arc<Mutex<HashSet<[u8; 4]>>> {
    let listener = TcpListener::bind(addr).await.unwrap();
    let xids: Arc<Mutex<HashSet<[u8; 4]>>> = Arc::default();
    let seen = Arc::clone(&xids);
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let seen = Arc::clone(&seen);
            tokio::spawn(async move {
                let (mut calls, _silent) = client.into_split();
                while let Some(call) = record(&mut calls).await {
                    if ops_of(&call).is_some_and(|ops| ops.contains(&(op as u32))) {
                        seen.lock().unwrap().insert(*call.first_chunk().unwrap());
                    }
                }
            });
        }
    });
    xids
}

/// Which creates do not take the umask (MODE_UMASK of RFC 8275).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unmasked {
    /// None does: the server ignores it, and does not name it among the attributes that it has set.
    Creates,
    /// Exclusive ones do not, as the server says.
    ExclusiveCreates,
}

/// A proxy that has the server behind it lack the umask of new files.
#[derive(Clone)]
pub(crate) struct Umaskless {
    pub(crate) addr: SocketAddr,
    offended: Arc<AtomicUsize>,
}

impl Umaskless {
    pub(crate) async fn to(server: SocketAddr, lacks: Unmasked) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let umaskless = Self { addr: listener.local_addr().unwrap(), offended: Arc::default() };
        let offended = Arc::clone(&umaskless.offended);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(server).await.unwrap();
                tokio::spawn(pass_without_umask(client, server, lacks, Arc::clone(&offended)));
            }
        });
        umaskless
    }

    /// How many creates had a umask although the server has said that it does not take it.
    pub(crate) fn offended(&self) -> usize {
        self.offended.load(Relaxed)
    }
}

async fn pass_without_umask(
    client: TcpStream,
    server: TcpStream,
    lacks: Unmasked,
    offended: Arc<AtomicUsize>,
) {
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let compounds: Mutex<HashSet<[u8; 4]>> = Mutex::default();
    let forth = async {
        while let Some(call) = record(&mut from_client).await {
            if ops_of(&call).is_some() {
                compounds.lock().unwrap().insert(*call.first_chunk().unwrap());
            }
            pass_on(&mut to_server, &without_umask(call, lacks, &offended)).await;
        }
    };
    let back = async {
        while let Some(reply) = record(&mut from_server).await {
            let is_meant = compounds.lock().unwrap().remove(reply.first_chunk().unwrap());
            let excludes = is_meant && lacks == Unmasked::ExclusiveCreates;
            let reply = if excludes { without_exclusive_umask(reply) } else { reply };
            pass_on(&mut to_client, &reply).await;
        }
    };
    tokio::select! { () = forth => {}, () = back => {} }
}

/// Removes the umask, and the mode with it, from the creates of a call that do not take it.
fn without_umask(call: Vec<u8>, lacks: Unmasked, offended: &AtomicUsize) -> Vec<u8> {
    if ops_of(&call).is_none() {
        return call;
    }
    let mut d = Decoder::new(call.clone().into());
    CallHeader::decode(&mut d).unwrap();
    let begin = call.len() - d.remaining();
    let compound: CompoundHeader = d.get().unwrap();
    let mut e = Encoder::new();
    e.raw(&call[..begin]);
    e.put(&compound);
    for _ in 0..compound.operations {
        let mut op = Op::decode_next(&mut d).unwrap();
        let attrs = match &mut op {
            Op::Create(args) if lacks == Unmasked::Creates => Some(&mut args.attrs),
            Op::Open(args) => match &mut args.how {
                How::Create(CreateHow::Exclusive41(how)) => Some(&mut how.attrs),
                How::Create(CreateHow::Guarded(attrs) | CreateHow::Unchecked(attrs)) => {
                    Some(attrs).filter(|_| lacks == Unmasked::Creates)
                }
                _ => None,
            },
            _ => None,
        };
        let attrs = attrs.and_then(|attrs| attrs.0.as_mut().ok());
        if attrs.is_some_and(|attrs| attrs.mode_umask.take().is_some())
            && lacks == Unmasked::ExclusiveCreates
        {
            offended.fetch_add(1, Relaxed);
        }
        e.put(&op);
    }
    e.finish().to_bytes().to_vec()
}

/// Removes the umask from what a reply says of exclusive creates.
fn without_exclusive_umask(reply: Vec<u8>) -> Vec<u8> {
    let mut d = Decoder::new(reply[REPLY_HEADER..].to_vec().into());
    let compound: CompoundResHeader = d.get().unwrap();
    let mut e = Encoder::new();
    e.raw(&reply[..REPLY_HEADER]);
    e.put(&compound);
    for _ in 0..compound.results {
        let mut result = OpRes::decode_next(&mut d).unwrap();
        if let OpRes::Getattr(Ok(attrs)) = &mut result
            && let Some(set) = attrs.suppattr_exclcreat
        {
            attrs.suppattr_exclcreat = Some(set.difference(Bitmap::of(&[MODE_UMASK])));
        }
        e.put(&result);
    }
    e.finish().to_bytes().to_vec()
}

/// A proxy that loses a reply with its connection when a test wants it, and renumbers the xids of
/// each connection, so that the server's reply cache recognises no call. That a session's reply is not
/// cached it says as Linux does, in the operation after SEQUENCE.
#[derive(Clone)]
pub(crate) struct Losing {
    pub(crate) addr: SocketAddr,
    /// The reply to lose: to a call of this program and procedure, or operation of NFSv4.
    lose: Arc<Mutex<Option<(u32, u32)>>>,
    /// Taken by each new connection to pass, and by a test that lets none pass.
    gate: Arc<tokio::sync::Mutex<()>>,
    /// Replies that said that the reply is not cached.
    uncached: Arc<AtomicUsize>,
    /// The server behind it keeps no replies, although it is asked to.
    forgets: Arc<AtomicBool>,
}

impl Losing {
    pub(crate) async fn to(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let (lose, gate) = Default::default();
        let (uncached, forgets) = Default::default();
        let losing = Self { addr, lose, gate, uncached, forgets };
        let shared = losing.clone();
        tokio::spawn(async move {
            let mut number = 0;
            while let Ok((client, _)) = listener.accept().await {
                number += 1;
                let _open = shared.gate.lock().await;
                // Without a server, close the client's connection.
                let Ok(server) = TcpStream::connect(server).await else { continue };
                tokio::spawn(pass_or_lose(client, server, number, shared.clone()));
            }
        });
        losing
    }

    /// Loses the next such reply.
    pub(crate) fn lose(&self, program: u32, what: u32) {
        *self.lose.lock().unwrap() = Some((program, what));
    }

    /// Lets no new connection pass while the guard exists.
    pub(crate) async fn closed(&self) -> tokio::sync::OwnedMutexGuard<()> {
        Arc::clone(&self.gate).lock_owned().await
    }

    /// Whether the reply was lost.
    pub(crate) fn has_lost(&self) -> bool {
        self.lose.lock().unwrap().is_none()
    }

    /// From now on the server keeps no replies.
    pub(crate) fn forget_replies(&self) {
        self.forgets.store(true, Relaxed);
    }

    /// How many replies since the last call of this said that the reply is not cached.
    pub(crate) fn take_uncached(&self) -> usize {
        self.uncached.swap(0, Relaxed)
    }
}

async fn pass_or_lose(
    client: TcpStream,
    server: TcpStream,
    number: u8,
    Losing { lose, uncached, forgets, .. }: Losing,
) {
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let lost: Mutex<HashSet<[u8; 4]>> = Mutex::default();
    let calls: Mutex<HashMap<[u8; 4], Vec<u8>>> = Mutex::default();
    let forth = async {
        while let Some(mut call) = record(&mut from_client).await {
            let mut d = Decoder::new(call.clone().into());
            // What is no call is a reply to one of the server's, on the backchannel.
            let mut ops = Vec::new();
            if let Ok(header) = CallHeader::decode(&mut d) {
                ops = ops_of(&call).unwrap_or_else(|| vec![header.procedure]);
                ops.retain(|op| *lose.lock().unwrap() == Some((header.program, *op)));
            }
            if forgets.load(Relaxed) {
                ask_for_no_copy(&mut call);
            }
            call[0] ^= number;
            if !ops.is_empty() {
                lost.lock().unwrap().insert(*call.first_chunk().unwrap());
            }
            calls.lock().unwrap().insert(*call.first_chunk().unwrap(), call.clone());
            pass_on(&mut to_server, &call).await;
        }
    };
    let back = async {
        while let Some(mut reply) = record(&mut from_server).await {
            if lost.lock().unwrap().contains(reply.first_chunk().unwrap()) {
                *lose.lock().unwrap() = None;
                return;
            }
            let call = calls.lock().unwrap().remove(reply.first_chunk().unwrap());
            if let Some(other) = call.and_then(|call| uncached_as_of_linux(&call, &reply)) {
                uncached.fetch_add(1, Relaxed);
                reply = other;
            }
            reply[0] ^= number;
            pass_on(&mut to_client, &reply).await;
        }
    };
    tokio::select! { () = forth => {}, () = back => {} }
}

/// Has SEQUENCE ask for no cached reply.
fn ask_for_no_copy(call: &mut [u8]) {
    let mut d = Decoder::new(call.to_vec().into());
    if CallHeader::decode(&mut d).is_ok()
        && ops_of(call).is_some_and(|ops| ops.first() == Some(&(OpCode::Sequence as u32)))
        && d.get::<CompoundHeader>().is_ok()
        && Op::decode_next(&mut d).is_ok()
    {
        // `sa_cachethis` is its last argument.
        let end = call.len() - d.remaining();
        call[end - 4..end].fill(0);
    }
}

/// If the reply says in its SEQUENCE that the call's reply is not cached: the reply that says it in the
/// operation after it.
fn uncached_as_of_linux(call: &[u8], reply: &[u8]) -> Option<Vec<u8>> {
    const UNCACHED: u32 = 10068;
    const HEADER_BYTES: usize = 24;
    let word = |at: usize| Some(u32::from_be_bytes(*reply.get(at..)?.first_chunk()?));
    // Status, an empty tag, and one result.
    let words = [UNCACHED, 0, 1, OpCode::Sequence as u32, UNCACHED];
    for (index, expected) in words.into_iter().enumerate() {
        (word(HEADER_BYTES + 4 * index)? == expected).then_some(())?;
    }
    let second = *ops_of(call)?.get(1)?;
    let mut d = Decoder::new(call.to_vec().into());
    CallHeader::decode(&mut d).ok()?;
    let _: CompoundHeader = d.get().ok()?;
    let Ok(Op::Sequence(args)) = Op::decode_next(&mut d) else { return None };
    let highest = args.highest_slot;
    let sequenced = [args.sequence_id, args.slot, highest, highest, 0, second, UNCACHED];
    let words = |words: &[u32]| -> Vec<u8> { words.iter().flat_map(|w| w.to_be_bytes()).collect() };
    let begin = words(&[UNCACHED, 0, 2, OpCode::Sequence as u32, 0]);
    Some([&reply[..HEADER_BYTES], &begin, &args.session, &words(&sequenced)].concat())
}

/// A proxy between a client and a server that is slow to execute an operation of version 4.1: it loses
/// the first call with it, with its connection, and puts the resent one off. Then it passes all.
#[derive(Clone)]
pub(crate) struct Executing {
    pub(crate) addr: SocketAddr,
    /// Slot and number of each call with the operation.
    sent: Arc<Mutex<Vec<(u32, u32)>>>,
}

impl Executing {
    pub(crate) async fn to(server: SocketAddr, op: OpCode) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let executing = Self { addr, sent: Arc::default() };
        let sent = Arc::clone(&executing.sent);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                // Without a server, close the client's connection.
                let Ok(server) = TcpStream::connect(server).await else { continue };
                tokio::spawn(pass_or_put_off(client, server, op, Arc::clone(&sent)));
            }
        });
        executing
    }

    pub(crate) fn sent(&self) -> Vec<(u32, u32)> {
        self.sent.lock().unwrap().clone()
    }
}

async fn pass_or_put_off(
    client: TcpStream,
    server: TcpStream,
    op: OpCode,
    sent: Arc<Mutex<Vec<(u32, u32)>>>,
) {
    let (mut from_client, to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let to_client = tokio::sync::Mutex::new(to_client);
    let forth = async {
        while let Some(call) = record(&mut from_client).await {
            let Some(number) = sequence_of(&call, op) else {
                pass_on(&mut to_server, &call).await;
                continue;
            };
            let times = {
                let mut sent = sent.lock().unwrap();
                sent.push(number);
                sent.len()
            };
            match times {
                1 => return,
                2 => {
                    const DELAY: u32 = 10008;
                    // Accepted, without a verifier; no tag; one result, that of SEQUENCE.
                    let words = [1, 0, 0, 0, 0, DELAY, 0, 1, OpCode::Sequence as u32, DELAY];
                    let words = words.iter().flat_map(|word| word.to_be_bytes());
                    let reply: Vec<u8> = call[..4].iter().copied().chain(words).collect();
                    pass_on(&mut *to_client.lock().await, &reply).await;
                }
                _ => pass_on(&mut to_server, &call).await,
            }
        }
    };
    let back = async {
        while let Some(reply) = record(&mut from_server).await {
            pass_on(&mut *to_client.lock().await, &reply).await;
        }
    };
    tokio::select! { () = forth => {}, () = back => {} }
}

/// Slot and number of a compound with the operation.
fn sequence_of(call: &[u8], wanted: OpCode) -> Option<(u32, u32)> {
    if !ops_of(call)?.contains(&(wanted as u32)) {
        return None;
    }
    let mut d = Decoder::new(call.to_vec().into());
    CallHeader::decode(&mut d).ok()?;
    let _: CompoundHeader = d.get().ok()?;
    match Op::decode_next(&mut d).ok()? {
        Op::Sequence(args) => Some((args.slot, args.sequence_id)),
        _ => None,
    }
}

/// A proxy to a server that does not tell of shared locks when NLM tests for an exclusive one, as Linux's.
pub(crate) async fn silent_on_shared(server: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            // Without a server, close the client's connection.
            let Ok(server) = TcpStream::connect(server).await else { continue };
            let (mut from_client, mut to_client) = client.into_split();
            let (mut from_server, mut to_server) = server.into_split();
            let tests: Arc<Mutex<HashSet<[u8; 4]>>> = Arc::default();
            let asked = Arc::clone(&tests);
            tokio::spawn(async move {
                while let Some(call) = record(&mut from_client).await {
                    let header = CallHeader::decode(&mut Decoder::new(call.clone().into()));
                    let what = header.map(|header| (header.program, header.procedure));
                    if what.is_ok_and(|what| what == (nlm::PROGRAM, nlm::Procedure::Test as u32)) {
                        asked.lock().unwrap().insert(*call.first_chunk().unwrap());
                    }
                    pass_on(&mut to_server, &call).await;
                }
            });
            tokio::spawn(async move {
                while let Some(mut reply) = record(&mut from_server).await {
                    if tests.lock().unwrap().remove(reply.first_chunk().unwrap()) {
                        reply = without_shared(reply);
                    }
                    pass_on(&mut to_client, &reply).await;
                }
            });
        }
    });
    addr
}

fn without_shared(reply: Vec<u8>) -> Vec<u8> {
    let mut result: nlm::TestRes =
        Decoder::new(reply[REPLY_HEADER..].to_vec().into()).get().unwrap();
    if matches!(&result.reply, nlm::TestReply::Denied(holder) if !holder.exclusive) {
        result.reply = nlm::TestReply::Granted;
    }
    let mut e = Encoder::new();
    e.raw(&reply[..REPLY_HEADER]);
    e.put(&result);
    e.finish().to_bytes().to_vec()
}

async fn record(from: &mut OwnedReadHalf) -> Option<Vec<u8>> {
    let header = from.read_u32().await.ok()?;
    let mut record = vec![0; (header & 0x7FFF_FFFF) as usize];
    from.read_exact(&mut record).await.ok()?;
    Some(record)
}

async fn pass_on(to: &mut OwnedWriteHalf, record: &[u8]) {
    let header = (record.len() as u32 | 1 << 31).to_be_bytes();
    // The other end may be gone.
    let _ = to.write_all(&[&header, record].concat()).await;
}
