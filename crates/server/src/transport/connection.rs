//! One connection: calls in, replies out, on one task.
//!
//! ```text
//!   readable -> fill -> serve: for each whole record, poll its call once
//!                                 | ready            | has to wait
//!                                 v                  v
//!                              replies          a task of its own -> Peer::post
//!                                 |                                     |
//!                                 +----------> flush: one writev <------+
//! ```

use super::call::{CallFuture, RecordAction, begin};
use super::drain::{Drain, DrainProgress, expected_rate};
use super::polling::Polling;
use super::socket::Socket;
use super::traffic::Traffic;
use super::{SMALL_BYTES, Transport};
use crate::admission::{AddressShares, Taken, unacknowledged_bytes};
use crate::peer::{Outgoing, Peer};
use bytes::BytesMut;
use futures_util::FutureExt;
use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep};
use tokio_util::sync::CancellationToken;
use tracing::debug;
use weir_rpc::{RecordError, RecordReader};
use weir_xdr::Bytes;

/// Maximum slices in one writev: Linux's IOV_MAX.
const MAX_SLICES: usize = 1024;

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum End {
    #[error("closed by the peer")]
    Closed,
    #[error("closed by the server")]
    Stopped,
    #[error("the peer did not complete a record in time")]
    StalledRecord,
    #[error("idle for too long")]
    Idle,
    #[error("the peer read its replies too slowly")]
    SlowReader,
    #[error("{0}")]
    Record(#[from] RecordError),
    #[error("the peer sent a record that is not an RPC message")]
    NotRpc,
    #[error("{0}")]
    Io(#[from] io::Error),
}

pub(super) struct Connection {
    transport: Arc<Transport>,
    socket: Socket,
    peer: Arc<Peer>,
    shares: Arc<AddressShares>,
    /// Its part of its address's share of the connections: also for calls that outlive it.
    place: Arc<Taken>,
    traffic: Traffic,
    input: BytesMut,
    records: RecordReader,
    /// The share of the call budget that the arriving large record holds.
    memory: Option<Taken>,
    output: VecDeque<Outgoing>,
    /// Bytes sent of the message at the front of `output`.
    sent: usize,
    /// Bytes written to the socket in all.
    written: u64,
    drain: Drain,
    waiting: Arc<AtomicUsize>,
    stop: CancellationToken,
    stopping: bool,
    /// When the arriving record began.
    reading_since: Option<Instant>,
    /// When bytes last arrived.
    arrived: Instant,
    /// Completes when the peer may have reached the idle limit.
    idle_look: Pin<Box<Sleep>>,
    polling: Polling,
}

/// How long a large record may make no progress while others wait for the budget that it holds.
const IDLE_WITH_MEMORY: Duration = Duration::from_secs(2);
/// References to the peer that do not count as use: the connection's and its task's.
const HOLDERS_WHEN_IDLE: usize = 2;
/// Bytes read at a time while polling for a call.
const LOOK_BYTES: usize = 4 << 10;
/// How often the connection checks for [`IDLE_WITH_MEMORY`].
const LOOK_EVERY: Duration = Duration::from_secs(1);

impl Connection {
    pub(super) fn new(
        transport: Arc<Transport>,
        stream: TcpStream,
        peer: Arc<Peer>,
        (shares, place): (Arc<AddressShares>, Arc<Taken>),
        traffic: Traffic,
    ) -> Self {
        let records = RecordReader::new(transport.limits.record_bytes);
        // A child token, so that connections do not contend for one token's lock.
        let stop = transport.stop.child_token();
        let idle_look = Box::pin(tokio::time::sleep(transport.limits.idle));
        let drain = Drain::new(transport.limits.stall);
        Self {
            transport,
            socket: Socket::Registered(stream),
            peer,
            shares,
            place,
            traffic,
            input: BytesMut::new(),
            records,
            memory: None,
            output: VecDeque::new(),
            sent: 0,
            written: 0,
            drain,
            waiting: Arc::default(),
            stop,
            stopping: false,
            reading_since: None,
            arrived: Instant::now(),
            idle_look,
            polling: Polling::default(),
        }
    }

    /// Serves the connection to its end.
    pub(super) async fn run(mut self) -> End {
        loop {
            match self.step().await {
                Ok(()) => {}
                Err(end) => return end,
            }
        }
    }

    async fn step(&mut self) -> Result<(), End> {
        // Records in the buffer do not make the socket readable again: serve until none is left, or
        // until the output must be sent first.
        loop {
            let all_served = self.serve()?;
            self.peer.take_posted(&mut self.output);
            self.flush()?;
            if all_served || !self.may_serve() {
                break;
            }
        }
        // A connection with constant calls never reaches `wait`, which otherwise notices the stop
        // signal.
        self.stopping |= self.stop.is_cancelled();
        if !self.peer.is_open() {
            return Err(End::Stopped);
        }
        if self.stopping && self.output.is_empty() && self.waiting.load(Ordering::Acquire) == 0 {
            return Err(End::Stopped);
        }
        if self.look()? {
            // Yield to other tasks on this thread now and then.
            tokio::task::consume_budget().await;
            return Ok(());
        }
        self.wait().await
    }

    /// Polls for the next call for a moment, if one is likely to come soon. Returns whether one
    /// did.
    fn look(&mut self) -> Result<bool, End> {
        let idle = self.output.is_empty() && self.waiting.load(Ordering::Acquire) == 0;
        if self.stopping || !idle || !self.input.is_empty() {
            return Ok(false);
        }
        let mut call = [0; LOOK_BYTES];
        match self.polling.look(|| self.socket.look(&mut call)) {
            Some(Ok(0)) => Err(End::Closed),
            Some(Ok(n)) => {
                self.input.extend_from_slice(&call[..n]);
                self.traffic.received(n);
                self.arrived = Instant::now();
                if self.polling.is_steady() {
                    self.socket.free()?;
                }
                Ok(true)
            }
            Some(Err(error)) if error.kind() != io::ErrorKind::Interrupted => Err(error.into()),
            Some(Err(_)) | None => Ok(false),
        }
    }

    /// Executes the complete calls in the buffer, as far as the bounds allow. Returns whether that
    /// was all of them.
    fn serve(&mut self) -> Result<bool, End> {
        while self.may_serve() {
            let Some(record) = self.records.next_record(&mut self.input)? else { return Ok(true) };
            self.reading_since = None;
            self.traffic.called();
            self.polling.called();
            let mut memory = self.memory.take();
            if let Some(memory) = &mut memory {
                memory.shrink(record.len());
            }
            self.handle(record, memory)?;
        }
        Ok(false)
    }

    fn may_serve(&self) -> bool {
        let waiting = self.waiting.load(Ordering::Acquire);
        let in_flight = self.transport.limits.in_flight;
        !self.stopping
            && self.output.len() < in_flight
            && waiting < in_flight
            && self.peer.replies().may_serve(self.output.is_empty() && waiting == 0)
    }

    fn handle(&mut self, record: Bytes, memory: Option<Taken>) -> Result<(), End> {
        match begin(&self.transport.programs, &self.peer, record, memory)? {
            RecordAction::Nothing => {}
            RecordAction::Refused(reply) => self.output.push_back(reply),
            RecordAction::Call(mut call) => match (&mut call).now_or_never() {
                Some(reply) => self.output.push_back(reply),
                None => self.spawn(call),
            },
        }
        Ok(())
    }

    fn spawn(&self, future: CallFuture) {
        let waiting = WaitingCall::one(&self.waiting);
        let (peer, place) = (self.peer.clone(), self.place.clone());
        tokio::spawn(async move {
            let reply = future.await;
            // Decremented before the reply is posted, so that the connection, which the post wakes,
            // sees both.
            drop(waiting);
            peer.post(reply);
            drop(place);
        });
    }

    /// Sends ready messages until the socket accepts no more.
    fn flush(&mut self) -> Result<(), End> {
        while !self.output.is_empty() {
            let mut slices = Vec::with_capacity(64);
            let mut skip = self.sent;
            for Outgoing { message, .. } in &self.output {
                message.slices(skip, &mut slices);
                skip = 0;
                if slices.len() >= MAX_SLICES {
                    break;
                }
            }
            slices.truncate(MAX_SLICES);
            match self.socket.try_write_vectored(&slices) {
                Ok(0) => return Err(End::Closed),
                Ok(n) => self.advance(n),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.output.iter_mut().for_each(Outgoing::waits);
                    break;
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn advance(&mut self, n: usize) {
        self.sent += n;
        self.written += n as u64;
        self.traffic.sent(n);
        while let Some(front) = self.output.front() {
            let len = front.message.len();
            if self.sent < len {
                break;
            }
            self.sent -= len;
            self.output.pop_front();
        }
        if self.output.is_empty() {
            self.polling.replied();
        }
    }

    /// Waits for an event: bytes to read, room to write, a posted reply, a deadline or the stop
    /// signal.
    async fn wait(&mut self) -> Result<(), End> {
        let may_read = self.may_serve();
        if may_read && self.input.is_empty() {
            self.input = BytesMut::new();
        }
        let between = self.records.is_between_records(&self.input);
        let large = self.records.pending_bytes() > SMALL_BYTES;
        let pays = may_read && large && self.memory.is_none();
        let now = Instant::now;
        self.reading_since =
            (may_read && !pays && !between).then(|| self.reading_since.unwrap_or_else(now));
        self.drain.set_waiting(!self.output.is_empty(), now);
        let deadline = self.reading_since.map(|since| since + self.transport.limits.stall);
        let look = self.drain.next_look();
        let holds_memory = self.reading_since.is_some() && self.memory.is_some();

        let limits = &self.transport.limits;
        let most = limits.record_bytes.min(limits.call_bytes);
        let price = self.records.whole_bytes().unwrap_or(most).min(most);
        let (budget, idle) = (self.shares.call_bytes.clone(), limits.idle);
        let socket = self.socket.registered()?;
        tokio::select! {
            biased;
            () = self.peer.posted.notified() => {
                if !self.peer.is_open() {
                    return Err(End::Stopped);
                }
            }
            () = self.stop.cancelled(), if !self.stopping => self.stopping = true,
            ready = socket.writable(), if !self.output.is_empty() => ready?,
            paid = budget.take(price), if pays => {
                self.memory = Some(paid);
                self.fill()?;
            }
            ready = socket.readable(), if may_read && !pays => {
                ready?;
                self.fill()?;
            }
            () = tokio::time::sleep(LOOK_EVERY), if holds_memory => {
                if !budget.allows(most) && self.arrived.elapsed() > IDLE_WITH_MEMORY {
                    return Err(End::StalledRecord);
                }
            }
            () = until(deadline) => return Err(End::StalledRecord),
            () = &mut self.idle_look => {
                // The connection is in use while others hold the peer (the server sends callbacks
                // over it), or while it serves a session's backchannel. Keepalive detects a peer
                // that is gone.
                let is_used = !between
                    || !self.output.is_empty()
                    || self.waiting.load(Ordering::Acquire) > 0
                    || Arc::strong_count(&self.peer) > HOLDERS_WHEN_IDLE
                    || self.transport.programs.need(&self.peer);
                if !is_used && self.arrived.elapsed() >= idle {
                    return Err(End::Idle);
                }
                let since = if is_used { Instant::now() } else { self.arrived };
                self.idle_look.as_mut().reset(since + idle);
            }
            () = until(look) => {
                let unread = unacknowledged_bytes(self.peer.local_addr(), self.peer.addr());
                let taken = match unread {
                    Some(unread) => DrainProgress::Acknowledged(self.written.saturating_sub(unread)),
                    None => DrainProgress::Written(self.written),
                };
                let rate = expected_rate(limits, &self.shares);
                if self.drain.look(Instant::now(), taken, rate) {
                    return Err(End::SlowReader);
                }
            }
        }
        Ok(())
    }

    /// Reads what has arrived into room for the rest of the record, or for small records.
    fn fill(&mut self) -> Result<(), End> {
        let wanted = self.records.wanted_bytes().max(SMALL_BYTES);
        self.input.reserve(wanted.saturating_sub(self.input.len()).max(1));
        match self.socket.try_read_buf(&mut self.input) {
            Ok(0) => Err(End::Closed),
            Ok(n) => {
                self.traffic.received(n);
                self.polling.arrived();
                self.arrived = Instant::now();
                Ok(())
            }
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(()),
                _ => Err(error.into()),
            },
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if !self.output.is_empty() {
            debug!("{}: closed with {} unsent replies", self.peer.addr(), self.output.len());
        }
    }
}

/// Counts a waiting call while it lives.
struct WaitingCall(Arc<AtomicUsize>);

impl WaitingCall {
    fn one(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::AcqRel);
        Self(count.clone())
    }
}

impl Drop for WaitingCall {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}
