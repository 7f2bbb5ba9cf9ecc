//! One TCP connection and its pending calls.
//!
//! ```text
//!          submit                 sent                reply received
//!  (new) ---------> unsent ----------------> waiting ----------------> (answered)
//!                     ^                         |
//!                     +-------------------------+
//!                       connection lost: `requeue`
//! ```
//!
//! 1. A call completes once: with its reply, or with an error when its time limit (soft) or the
//!    connection's owner is gone. A hard call survives any number of connections.
//! 2. A resent call has the same bytes and the same xid, and comes from the same port if possible,
//!    so that the server's replay cache recognises it; its reply is marked as one to a resent call.
//! 3. Calls are sent in the order of submission, again after a reconnect.
//! 4. A reply is matched only to a pending call; others are skipped.
//! 5. The message of an expired call is dropped in any state: the payload of a WRITE then returns
//!    to its owner. That runs the owner's code, so it never happens under the table's lock.
//! 6. A call's time starts when it was sent completely. Until then it starts when the connection
//!    last sent bytes, so that a slow network with much to send is not mistaken for a dead one.
//! 7. Time in which this process stood still (Ctrl-Z, a frozen container) does not count: replies that arrived
//!    meanwhile have not been read ([`Shared::leave_out_standstill`]).

use super::connect::{abort, connect};
use super::payload::{self, Expect, ReadTarget, ResultForm};
use super::peer::{Counters, Patience, Peer};
use super::record::{Failure, IN_PLACE_BYTES, RecordStream};
use crate::backoff::Backoff;
use crate::error::{Error, Refusal, Result, Violation};
use crate::options::MAX_TRANSFER;
use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;
use tokio::net::{TcpStream, tcp::ReadHalf, tcp::WriteHalf};
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, sleep};
use weir_base::sync::Mutex;
use weir_rpc::{
    AcceptStatus, CallHeader, Denial, MAX_AUTH_BYTES, MessageType, OpaqueAuth, ReplyBody,
    ReplyHeader, finish_record, start_record,
};
use weir_vfs::Layout;
use weir_xdr::{Bytes, Decoder, Encoder, Message, padding};

/// A call that is being written.
pub(crate) struct Request {
    encoder: Encoder,
    operation: &'static str,
    expect: Expect,
    /// The xid, if the caller chooses it.
    xid: Option<u32>,
}

/// Offset of the xid: after the fragment header.
const XID_AT: usize = 4;

impl Request {
    /// Starts a call; the arguments are written through [`encoder`](Self::encoder).
    pub(crate) fn new(
        (program, version, procedure): (u32, u32, u32),
        cred: &OpaqueAuth,
        operation: &'static str,
        expect: Expect,
    ) -> Self {
        let mut encoder = start_record();
        let (cred, verf) = (cred.clone(), OpaqueAuth::NONE);
        encoder.put(&CallHeader { xid: 0, program, version, procedure, cred, verf });
        Self { encoder, operation, expect, xid: None }
    }

    /// Sends the call with an xid of the caller's choice, which no pending call may have.
    pub(crate) fn set_xid(&mut self, xid: u32) {
        self.xid = Some(xid);
    }

    /// The encoder for the arguments.
    pub(crate) fn encoder(&mut self) -> &mut Encoder {
        &mut self.encoder
    }
}

/// A reply.
#[derive(Debug)]
pub(crate) struct Reply {
    /// The results; for a read, the part before its payload.
    pub(crate) body: Bytes,
    /// The layout of a successful read, or the protocol violation in its results.
    pub(crate) read: Option<std::result::Result<Layout, Violation>>,
    /// The call was sent on an earlier connection, too: the server may have executed it already,
    /// and this may be its answer to the resent call.
    pub(crate) resent: bool,
}

/// Answers calls that the server makes on this connection.
pub(crate) type CallbackService = dyn Fn(Bytes) -> Option<Message> + Send + Sync;

/// A connection that is re-established whenever it breaks.
pub(crate) struct Connection {
    shared: Arc<Shared>,
    task: tokio::task::AbortHandle,
}

impl Connection {
    /// Connects, or returns why that fails. Runs on the current tokio runtime.
    pub(crate) async fn open(
        peer: Peer,
        patience: Patience,
        counters: Arc<Counters>,
        callbacks: Option<Arc<CallbackService>>,
    ) -> Result<Self> {
        let socket = connect(&peer, None).await.map_err(|source| Error::Connect {
            server: Arc::clone(&peer.name),
            source: Arc::new(source),
        })?;
        let shared = Arc::new(Shared {
            peer,
            patience,
            counters,
            callbacks,
            table: Mutex::default(),
            submitted: Notify::new(),
            bulk: AtomicUsize::new(0),
            answered: AtomicU64::new(0),
        });
        shared.table.lock().next_xid = getrandom::u32().unwrap_or(1);
        let task = tokio::spawn(Arc::clone(&shared).run(socket)).abort_handle();
        Ok(Self { shared, task })
    }

    /// Sends a call and waits for its reply.
    pub(crate) async fn call(&self, request: Request) -> Result<Reply> {
        let (done, answer) = oneshot::channel();
        self.shared.submit(request, done);
        answer.await.unwrap_or(Err(Error::Local(weir_vfs::Error::Io)))
    }

    /// The server's address.
    pub(crate) fn peer(&self) -> &Peer {
        &self.shared.peer
    }

    /// The server's name, for messages.
    pub(crate) fn server(&self) -> &Arc<str> {
        &self.shared.peer.name
    }

    /// Whether [`end`](Self::end) was called.
    pub(crate) fn has_ended(&self) -> bool {
        self.shared.table.lock().ended
    }

    /// Ends the connection; pending and later calls fail.
    pub(crate) fn end(&self) {
        self.task.abort();
        let dropped = {
            let mut table = self.shared.table.lock();
            table.ended = true;
            (std::mem::take(&mut table.calls), std::mem::take(&mut table.unsent))
        };
        drop(dropped);
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Shared {
    peer: Peer,
    patience: Patience,
    counters: Arc<Counters>,
    callbacks: Option<Arc<CallbackService>>,
    table: Mutex<Table>,
    submitted: Notify,
    /// Number of reads in flight that are large enough to be received in place.
    bulk: AtomicUsize,
    /// Number of calls that the server has answered.
    answered: AtomicU64,
}

#[derive(Default)]
struct Table {
    calls: HashMap<u32, Call>,
    unsent: VecDeque<Outgoing>,
    /// When the connection was established or last sent bytes.
    progress: Option<Instant>,
    /// The call whose reply is being received.
    receiving: Option<u32>,
    /// When the calls' times were last checked.
    checked: Option<Instant>,
    next_xid: u32,
    next_order: u64,
    /// The owner has ended the connection.
    ended: bool,
}

impl Table {
    /// An xid that no pending call has.
    fn new_xid(&mut self) -> u32 {
        let mut xid = self.next_xid;
        while self.calls.contains_key(&xid) {
            xid = xid.wrapping_add(1);
        }
        self.next_xid = xid.wrapping_add(1);
        xid
    }
}

/// A message to send.
#[derive(Clone)]
struct Outgoing {
    message: Arc<Message>,
    /// The xid of a call; `None` for the reply to a callback.
    xid: Option<u32>,
}

struct Call {
    message: Arc<Message>,
    operation: &'static str,
    expect: Expect,
    order: u64,
    submitted: Instant,
    /// When the call was first sent completely.
    first_sent: Option<Instant>,
    /// When the call was sent completely on this connection.
    sent: Option<Instant>,
    /// The call was, or may have been, sent on an earlier connection.
    resent: bool,
    done: oneshot::Sender<Result<Reply>>,
}

impl Call {
    /// How long the call has waited for the server: since `sent`, or else since the connection last
    /// sent bytes.
    fn waited(&self, sent: Option<Instant>, progress: Option<Instant>) -> Duration {
        let since =
            sent.unwrap_or_else(|| progress.map_or(self.submitted, |p| p.max(self.submitted)));
        since.elapsed()
    }

    /// Whether the server has not answered in time.
    fn is_late(&self, patience: &Patience, progress: Option<Instant>) -> bool {
        self.waited(self.sent, progress) > patience.timeo
    }

    /// Whether the call fails.
    fn has_expired(&self, patience: &Patience, progress: Option<Instant>) -> bool {
        !patience.hard && self.waited(self.first_sent, progress) > patience.limit()
    }

    fn is_bulk(&self) -> bool {
        matches!(&self.expect, Expect::Read(target, _) if target.len >= IN_PLACE_BYTES)
    }
}

/// Longest record from a server: the largest payload and room for its headers.
const MAX_RECORD_BYTES: usize = MAX_TRANSFER as usize + (1 << 20);
/// Room for a reply's RPC header, and for the results before the payload of a read.
const ORDINARY_HEADER_BYTES: usize = 32;
const ORDINARY_HEAD_BYTES: usize = 128;
/// Cap on the time for which replies are read before calls are late.
const READING: Duration = Duration::from_secs(1);
/// Maximum number of messages passed to the kernel in one call.
const BATCH: usize = 32;
/// Maximum number of slices in one call; the kernel accepts 1024.
const MAX_SLICES: usize = 1024;
/// Maximum number of queued replies to callbacks; further callbacks are not answered.
const MAX_QUEUED: usize = 1024;

impl Shared {
    fn submit(&self, request: Request, done: oneshot::Sender<Result<Reply>>) {
        let Request { mut encoder, operation, expect, xid } = request;
        let now = Instant::now();
        let mut table = self.table.lock();
        if table.ended {
            return;
        }
        let xid = match xid {
            Some(xid) if !table.calls.contains_key(&xid) => xid,
            _ => table.new_xid(),
        };
        table.next_order += 1;
        encoder.patch_u32(XID_AT, xid);
        let message = Arc::new(finish_record(encoder));
        let order = table.next_order;
        let call = Call {
            message: Arc::clone(&message),
            operation,
            expect,
            order,
            submitted: now,
            first_sent: None,
            sent: None,
            resent: false,
            done,
        };
        self.bulk.fetch_add(call.is_bulk().into(), Relaxed);
        table.calls.insert(xid, call);
        table.unsent.push_back(Outgoing { message, xid: Some(xid) });
        drop(table);
        self.submitted.notify_one();
    }

    /// Serves calls as long as the connection's owner exists.
    async fn run(self: Arc<Self>, first: TcpStream) {
        let mut socket = first;
        let mut backoff = Backoff::endless();
        self.table.lock().checked = Some(Instant::now());
        loop {
            let answered = self.answered.load(Relaxed);
            let (reading, writing) = socket.split();
            let broken = tokio::select! {
                Err(error) = self.receive(reading) => error,
                Err(error) = self.send(&writing) => error,
                () = self.watch() => io::ErrorKind::TimedOut.into(),
            };
            tracing::warn!("{}: connection lost ({broken}); reconnecting", self.peer.name);
            let port = socket.local_addr().ok().map(|local| local.port());
            abort(socket);
            self.requeue();
            if self.answered.load(Relaxed) != answered {
                backoff = Backoff::endless();
            }
            let again = async {
                // Retry a server that accepts connections but answers no call after a pause.
                if self.answered.load(Relaxed) == answered {
                    backoff.wait().await;
                }
                self.reconnect(port).await
            };
            socket = tokio::select! {
                socket = again => socket,
                never = self.expire_in_time() => match never {},
            };
        }
    }

    /// Reconnects, from local `port` if it is free.
    async fn reconnect(&self, port: Option<u16>) -> TcpStream {
        let mut backoff = Backoff::to_connect();
        let mut said = false;
        loop {
            match connect(&self.peer, port).await {
                Ok(socket) => {
                    self.counters.reconnects.fetch_add(1, Relaxed);
                    // Time spent without a connection does not count as the server's silence.
                    self.table.lock().progress = Some(Instant::now());
                    if said {
                        tracing::warn!("{}: server is back", self.peer.name);
                    }
                    return socket;
                }
                Err(error) if !said => {
                    tracing::warn!("{}: server not responding ({error})", self.peer.name);
                    said = true;
                }
                Err(_) => {}
            }
            backoff.wait().await;
        }
    }

    /// Requeues every call without a reply, in the order of submission.
    fn requeue(&self) {
        let mut guard = self.table.lock();
        let table = &mut *guard;
        // A call that still waits to be sent cannot have reached the server; one that was being
        // sent may have.
        let unsent: HashSet<u32> =
            table.unsent.iter().filter_map(|outgoing| outgoing.xid).collect();
        let mut calls: Vec<(&u32, &mut Call)> = table.calls.iter_mut().collect();
        calls.sort_unstable_by_key(|(_, call)| call.order);
        let again = calls.into_iter().map(|(&xid, call)| {
            if !unsent.contains(&xid) {
                call.resent = true;
                call.first_sent.get_or_insert_with(Instant::now);
            }
            call.sent = None;
            Outgoing { message: Arc::clone(&call.message), xid: Some(xid) }
        });
        let before = std::mem::replace(&mut table.unsent, again.collect());
        table.receiving = None;
        drop(guard);
        drop(before);
        self.submitted.notify_one();
    }

    /// Returns when a call has waited so long that the connection is presumed dead.
    async fn watch(&self) {
        let quarter = self.patience.timeo / 4;
        // Since the last check, while there was no connection, as much was planned.
        self.leave_out_standstill(quarter);
        loop {
            sleep(quarter).await;
            self.leave_out_standstill(quarter);
            let patience = &self.patience;
            let late = |call: &Call, progress| call.is_late(patience, progress);
            let due = |call: &Call, at| late(call, at) || call.has_expired(patience, at);
            if self.call_that(due).is_none() {
                continue;
            }
            // The reply may have come while this process stood still for less than that.
            let reading = quarter.min(READING);
            sleep(reading).await;
            self.leave_out_standstill(reading);
            // Before calls expire: with `retrans=0` a call becomes late and expires at the same
            // time.
            let late = self.call_that(late);
            let is_in_use = self.expire();
            if let Some(operation) = late {
                tracing::warn!("{}: no answer to {operation}", self.peer.name);
                return;
            }
            if is_in_use {
                return;
            }
        }
    }

    async fn expire_in_time(&self) -> std::convert::Infallible {
        let quarter = self.patience.timeo / 4;
        loop {
            self.leave_out_standstill(quarter);
            self.expire();
            sleep(quarter).await;
        }
    }

    /// Leaves the time out of the calls' waits that has passed beyond `planned` since the last check: none of this
    /// process's tasks that wait for the time or for the server ran.
    fn leave_out_standstill(&self, planned: Duration) {
        let now = Instant::now();
        let table = &mut *self.table.lock();
        let passed = table.checked.replace(now).map_or(Duration::ZERO, |checked| now - checked);
        let stood = passed.saturating_sub(planned);
        let later = |at: &mut Instant| *at = (*at + stood).min(now);
        table.progress.iter_mut().for_each(later);
        for call in table.calls.values_mut() {
            later(&mut call.submitted);
            call.sent.iter_mut().chain(&mut call.first_sent).for_each(later);
        }
    }

    /// The operation of a call of which this is true, if there is one.
    fn call_that(&self, is: impl Fn(&Call, Option<Instant>) -> bool) -> Option<&'static str> {
        let table = self.table.lock();
        let mut calls = table.calls.values();
        calls.find(|call| is(call, table.progress)).map(|call| call.operation)
    }

    /// Fails expired soft calls. Returns whether the connection was sending one of them, or receiving its
    /// reply: it refers to that call's message or destination until it is re-established.
    fn expire(&self) -> bool {
        let (expired, unsent, being_received) = {
            let table = &mut *self.table.lock();
            let progress = table.progress;
            let has_expired = |call: &mut Call| call.has_expired(&self.patience, progress);
            let expired: HashMap<u32, Call> =
                table.calls.extract_if(|_, call| has_expired(call)).collect();
            let is_expired = |xid: Option<u32>| xid.is_some_and(|xid| expired.contains_key(&xid));
            let unsent = match expired.is_empty() {
                true => VecDeque::new(),
                false => {
                    let all = std::mem::take(&mut table.unsent).into_iter();
                    let (unsent, kept) = all.partition(|outgoing| is_expired(outgoing.xid));
                    table.unsent = kept;
                    unsent
                }
            };
            let being_received = is_expired(table.receiving);
            (expired, unsent, being_received)
        };
        let being_sent = expired.values().filter(|call| call.sent.is_none()).count() > unsent.len();
        drop(unsent);
        for call in expired.into_values() {
            let error =
                Error::TimedOut { server: Arc::clone(&self.peer.name), operation: call.operation };
            self.answer(call, Err(error));
        }
        being_sent || being_received
    }

    fn answer(&self, call: Call, result: Result<Reply>) {
        self.bulk.fetch_sub(call.is_bulk().into(), Relaxed);
        let Call { expect, message, done, .. } = call;
        // The reply returns the buffers to the caller, so drop our reference first.
        drop((expect, message));
        // The receiver is gone if the caller dropped the operation.
        let _ = done.send(result);
    }

    async fn send(&self, socket: &WriteHalf<'_>) -> io::Result<std::convert::Infallible> {
        let mut batch: VecDeque<Outgoing> = VecDeque::new();
        let mut skip = 0;
        loop {
            {
                let mut table = self.table.lock();
                while batch.len() < BATCH
                    && let Some(outgoing) = table.unsent.pop_front()
                {
                    batch.push_back(outgoing);
                }
            }
            if batch.is_empty() {
                self.submitted.notified().await;
                // Other ready tasks may be about to submit calls: send them all in one system call.
                if self.table.lock().calls.len() > 1 {
                    tokio::task::yield_now().await;
                }
                continue;
            }
            let sent = {
                let mut slices = Vec::new();
                for (index, outgoing) in batch.iter().enumerate() {
                    outgoing.message.slices(if index == 0 { skip } else { 0 }, &mut slices);
                    if slices.len() >= MAX_SLICES {
                        slices.truncate(MAX_SLICES);
                        break;
                    }
                }
                socket.try_write_vectored(&slices)
            };
            match sent {
                Ok(n) => {
                    self.counters.sent.fetch_add(n as u64, Relaxed);
                    skip += n;
                    let now = Instant::now();
                    let mut whole = 0;
                    let mut table = self.table.lock();
                    table.progress = Some(now);
                    while let Some(outgoing) = batch.get(whole)
                        && skip >= outgoing.message.len()
                    {
                        skip -= outgoing.message.len();
                        // An expired call no longer waits.
                        if let Some(call) = outgoing.xid.and_then(|xid| table.calls.get_mut(&xid)) {
                            call.sent = Some(now);
                            call.first_sent.get_or_insert(now);
                        }
                        whole += 1;
                    }
                    drop(table);
                    batch.drain(..whole);
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => socket.writable().await?,
                Err(e) => return Err(e),
            }
        }
    }

    async fn receive(&self, socket: ReadHalf<'_>) -> io::Result<std::convert::Infallible> {
        let mut stream = RecordStream::new(socket, &self.counters.received, &self.bulk);
        loop {
            stream.begin(MAX_RECORD_BYTES).await?;
            match self.receive_message(&mut stream).await {
                Ok(()) => {}
                // Neither a reply to a call nor a valid callback: a server that sends one may send
                // any number of them.
                Err(Failure::Record(violation)) => {
                    let message = format!("unreadable message: {violation}");
                    return Err(io::Error::new(io::ErrorKind::InvalidData, message));
                }
                Err(Failure::Stream(error)) => return Err(error),
            }
            stream.skip_rest().await?;
        }
    }

    async fn receive_message(
        &self,
        stream: &mut RecordStream<'_>,
    ) -> std::result::Result<(), Failure> {
        let mut header = Vec::with_capacity(ORDINARY_HEADER_BYTES);
        stream.take_to(&mut header, 8).await?;
        let mut d = Decoder::new(Bytes::copy_from_slice(&header));
        let (xid, kind) = (d.u32()?, d.get::<MessageType>()?);
        if kind == MessageType::Call {
            stream.take_rest(&mut header, MAX_CALLBACK_BYTES).await?;
            self.serve(header.into());
            return Ok(());
        }
        // The call stays in the table until its reply is complete, so that it is resent, or fails,
        // if the rest never arrives.
        let Some((operation, expect)) = self.begin_reply(xid) else {
            tracing::debug!("{}: reply to an unknown xid", self.peer.name);
            return Ok(());
        };
        let result = match self.receive_reply(stream, header, operation, &expect).await {
            Ok(result) => result,
            Err(Failure::Record(violation)) => {
                Err(Error::Protocol { server: Arc::clone(&self.peer.name), operation, violation })
            }
            Err(broken) => return Err(broken),
        };
        drop(expect);
        let call = {
            let mut table = self.table.lock();
            table.receiving = None;
            table.calls.remove(&xid)
        };
        if let Some(call) = call {
            self.answered.fetch_add(1, Relaxed);
            self.peer.heard.store(true, Relaxed);
            let resent = call.resent;
            self.answer(call, result.map(|reply| Reply { resent, ..reply }));
        }
        Ok(())
    }

    /// The operation of a pending call whose reply begins, and what to expect.
    fn begin_reply(&self, xid: u32) -> Option<(&'static str, Expect)> {
        let mut table = self.table.lock();
        let call = table.calls.get(&xid)?;
        let expected = (call.operation, call.expect.clone());
        table.receiving = Some(xid);
        Some(expected)
    }

    async fn receive_reply(
        &self,
        stream: &mut RecordStream<'_>,
        mut header: Vec<u8>,
        operation: &'static str,
        expect: &Expect,
    ) -> std::result::Result<Result<Reply>, Failure> {
        stream.take_to(&mut header, 4).await?;
        if header.last_chunk() == Some(&[0; 4]) {
            // Accepted: a verifier, then the status.
            stream.take_to(&mut header, 8).await?;
            let verf_bytes = header.last_chunk().map_or(0, |len| u32::from_be_bytes(*len)) as usize;
            if verf_bytes > MAX_AUTH_BYTES {
                return Err(Violation::TooLong.into());
            }
            stream.take_to(&mut header, verf_bytes + padding(verf_bytes) + 4).await?;
        }
        if header.get(8..12) != Some(&[0; 4]) || header.last_chunk() != Some(&[0; 4]) {
            stream.take_rest(&mut header, MAX_AUTH_BYTES + 64).await?;
        }
        let server = || Arc::clone(&self.peer.name);
        let reply: ReplyHeader = Decoder::new(header.into()).get()?;
        if let Some(refusal) = refusal(&reply.body) {
            return Ok(Err(Error::Refused { server: server(), operation, refusal }));
        }
        match expect {
            Expect::Results { max_bytes } => {
                let mut body = Vec::new();
                stream.take_rest(&mut body, *max_bytes).await?;
                Ok(Ok(Reply { body: body.into(), read: None, resent: false }))
            }
            Expect::Read(target, form) => receive_read(stream, target, *form).await.map(Ok),
        }
    }

    /// Answers a callback.
    fn serve(&self, call: Bytes) {
        let Some(answer) = self.callbacks.as_ref().and_then(|serve| serve(call)) else { return };
        let mut table = self.table.lock();
        if table.unsent.len() < MAX_QUEUED {
            table.unsent.push_back(Outgoing { message: Arc::new(answer), xid: None });
            drop(table);
            self.submitted.notify_one();
        }
    }
}

/// Longest callback accepted.
const MAX_CALLBACK_BYTES: usize = 64 << 10;

async fn receive_read(
    stream: &mut RecordStream<'_>,
    target: &ReadTarget,
    form: ResultForm,
) -> std::result::Result<Reply, Failure> {
    let mut head = Vec::with_capacity(ORDINARY_HEAD_BYTES);
    let read = match payload::receive(stream, target, form, &mut head).await {
        Ok(layout) => layout.map(Ok),
        Err(Failure::Record(violation)) => Some(Err(violation)),
        Err(broken) => return Err(broken),
    };
    Ok(Reply { body: head.into(), read, resent: false })
}

fn refusal(body: &ReplyBody) -> Option<Refusal> {
    match body {
        ReplyBody::Accepted(accepted) => match accepted.status {
            AcceptStatus::Success => None,
            AcceptStatus::ProgUnavail => Some(Refusal::ProgramUnavailable),
            AcceptStatus::ProgMismatch(v) => Some(Refusal::VersionMismatch(v.low, v.high)),
            AcceptStatus::ProcUnavail => Some(Refusal::ProcedureUnavailable),
            AcceptStatus::GarbageArgs => Some(Refusal::GarbageArguments),
            AcceptStatus::SystemErr => Some(Refusal::SystemError),
        },
        ReplyBody::Denied(Denial::RpcMismatch(_)) => Some(Refusal::RpcMismatch),
        ReplyBody::Denied(Denial::AuthError(status)) => Some(Refusal::Auth(*status as u32)),
    }
}
