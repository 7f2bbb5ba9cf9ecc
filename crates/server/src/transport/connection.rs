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

use super::call::{Begun, CallFuture, begin};
use super::drain::{Drain, Progress, expected_rate};
use super::polling::Polling;
use super::socket::Socket;
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

/// Slices in one writev: what Linux takes (IOV_MAX).
const MAX_SLICES: usize = 1024;

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum End {
    #[error("closed by the peer")]
    Closed,
    #[error("closed by the server")]
    Stopped,
    #[error("the peer sent nothing more of a record that it began")]
    StalledRecord,
    #[error("the peer has sent nothing for long")]
    Idle,
    #[error("the peer took its replies too slowly")]
    SlowReader,
    #[error("{0}")]
    Record(#[from] RecordError),
    #[error("the peer sent what is not an RPC message")]
    NotRpc,
    #[error("{0}")]
    Io(#[from] io::Error),
}

pub(super) struct Connection {
    transport: Arc<Transport>,
    socket: Socket,
    peer: Arc<Peer>,
    shares: Arc<AddressShares>,
    input: BytesMut,
    records: RecordReader,
    /// Pays for the large record that is arriving.
    memory: Option<Taken>,
    output: VecDeque<Outgoing>,
    /// Bytes of the front of `output` that are sent.
    sent: usize,
    /// Bytes of all replies that are sent.
    written: u64,
    drain: Drain,
    waiting: Arc<AtomicUsize>,
    stop: CancellationToken,
    stopping: bool,
    /// Since when a record has been arriving.
    reading_since: Option<Instant>,
    /// When bytes arrived last.
    arrived: Instant,
    /// Ends when the peer may have been silent for too long.
    idle_look: Pin<Box<Sleep>>,
    polling: Polling,
}

/// How long a large record may make no progress while others wait for the memory that it holds.
const IDLE_WITH_MEMORY: Duration = Duration::from_secs(2);
/// The connection, and the task that runs it.
const HOLDERS_WHEN_IDLE: usize = 2;
/// The size of call that is worth looking for.
const LOOK_BYTES: usize = 4 << 10;
/// How often that is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);

impl Connection {
    pub(super) fn new(
        transport: Arc<Transport>,
        stream: TcpStream,
        peer: Arc<Peer>,
        shares: Arc<AddressShares>,
    ) -> Self {
        let records = RecordReader::new(transport.limits.record_bytes);
        // A token of its own, so that connections do not meet at the lock of one.
        let stop = transport.stop.child_token();
        let idle_look = Box::pin(tokio::time::sleep(transport.limits.idle));
        let drain = Drain::new(transport.limits.stall);
        Self {
            transport,
            socket: Socket::Registered(stream),
            peer,
            shares,
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
        // Records that have arrived already make nothing readable: serve on until none is left,
        // or until what is queued must go out first.
        loop {
            let all_served = self.serve()?;
            self.peer.take_posted(&mut self.output);
            self.flush()?;
            if all_served || !self.may_serve() {
                break;
            }
        }
        // Who is called without a pause never comes to wait, which is where else this is heard.
        self.stopping |= self.stop.is_cancelled();
        if !self.peer.is_open() {
            return Err(End::Stopped);
        }
        if self.stopping && self.output.is_empty() && self.waiting.load(Ordering::Acquire) == 0 {
            return Err(End::Stopped);
        }
        if self.look()? {
            // Others on this thread get their turn, too.
            tokio::task::consume_budget().await;
            return Ok(());
        }
        self.wait().await
    }

    /// Looks for the next call for a moment, if it is likely to come. Says whether it did.
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

    /// Executes the calls that have arrived whole, as far as the bounds allow. Says whether that
    /// was all of them.
    fn serve(&mut self) -> Result<bool, End> {
        while self.may_serve() {
            let Some(record) = self.records.next_record(&mut self.input)? else { return Ok(true) };
            self.reading_since = None;
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
            Begun::Nothing => {}
            Begun::Refused(reply) => self.output.push_back(reply),
            Begun::Call(mut call) => match (&mut call).now_or_never() {
                Some(reply) => self.output.push_back(reply),
                None => self.spawn(call),
            },
        }
        Ok(())
    }

    fn spawn(&self, future: CallFuture) {
        let waiting = Waiting::one(&self.waiting);
        let peer = self.peer.clone();
        tokio::spawn(async move {
            let reply = future.await;
            // Not waiting any more before the reply is posted, so that the connection sees both.
            drop(waiting);
            peer.post(reply);
        });
    }

    /// Sends what is ready, as far as the socket takes it.
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

    /// Waits for something to do: bytes to read, room to write, a reply, the end.
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
                // Who else holds the peer (the server calls its client back over it) needs it still, and so
                // does a session whose backchannel it serves. The kernel finds out whether the other end is gone.
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
                    Some(unread) => Progress::Acknowledged(self.written.saturating_sub(unread)),
                    None => Progress::Written(self.written),
                };
                let rate = expected_rate(limits, &self.shares);
                if self.drain.look(Instant::now(), taken, rate) {
                    return Err(End::SlowReader);
                }
            }
        }
        Ok(())
    }

    /// Reads what has arrived: at least as much room as the record needs, and some for the next.
    fn fill(&mut self) -> Result<(), End> {
        let wanted = self.records.wanted_bytes().max(SMALL_BYTES);
        self.input.reserve(wanted.saturating_sub(self.input.len()).max(1));
        match self.socket.try_read_buf(&mut self.input) {
            Ok(0) => Err(End::Closed),
            Ok(_) => {
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
            debug!("{}: {} replies were not sent", self.peer.addr(), self.output.len());
        }
    }
}

/// Counts a call that waits for as long as it lives.
struct Waiting(Arc<AtomicUsize>);

impl Waiting {
    fn one(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::AcqRel);
        Self(count.clone())
    }
}

impl Drop for Waiting {
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
