//! Reads records (RFC 5531 section 11) from a socket, value by value, so that payload goes directly
//! from the socket to its destination.
//!
//! 1. At most [`STAGING_BYTES`] are buffered, even if the server announces a longer record.
//! 2. An error inside a record ([`Failure::Record`]) leaves the stream at a known position: the
//!    rest of the reply is skipped and the connection continues. An error of the stream
//!    ([`Failure::Stream`]) ends the connection.
//! 3. Payload that was received together with a header is copied from the staging buffer; the rest
//!    is received in place, in one call with the header that follows it.

use super::read_in_flight::ReadInFlight;
use crate::error::Violation;
use std::io::{self, IoSliceMut};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use tokio::io::AsyncReadExt;
use tokio::net::tcp::ReadHalf;
use weir_rpc::{FragmentHeader, RECORD_HEADER_BYTES};
use weir_vfs::ReadOp;

/// Most bytes received ahead of their use.
pub(super) const STAGING_BYTES: usize = 64 << 10;
/// Received ahead while large payloads are expected: room for the headers between two of them, so
/// that hardly any payload is copied through the staging buffer.
const BULK_STAGING_BYTES: usize = 512;
/// Smaller data segments go through the staging buffer together with their neighbours, rather than
/// by a system call for each.
pub(super) const IN_PLACE_BYTES: usize = 32 << 10;
/// Slices in one receive call; the kernel accepts 1024.
const MAX_SLICES: usize = 1023;

/// Why a value could not be read.
#[derive(Debug)]
pub(super) enum Failure {
    /// The record is invalid.
    Record(Violation),
    /// The connection is unusable.
    Stream(io::Error),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Stream(error)
    }
}

impl From<Violation> for Failure {
    fn from(violation: Violation) -> Self {
        Self::Record(violation)
    }
}

impl From<weir_xdr::Error> for Failure {
    fn from(error: weir_xdr::Error) -> Self {
        Self::Record(error.into())
    }
}

/// The receiving half of a connection.
pub(super) struct RecordStream<'a> {
    socket: ReadHalf<'a>,
    received: &'a AtomicU64,
    staging: Box<[u8]>,
    /// Received but not consumed: `staging[head..tail]`.
    head: usize,
    tail: usize,
    /// Number of large reads in flight on the connection.
    bulk: &'a AtomicUsize,
    /// The record has segments too small for a receive call each.
    small_segments: bool,
    fragment_left: usize,
    last_fragment: bool,
    /// Bytes that the current record may still have.
    record_left: usize,
}

impl<'a> RecordStream<'a> {
    /// A stream of records; `received` counts its bytes, `bulk` the large reads in flight.
    pub(super) fn new(
        socket: ReadHalf<'a>,
        received: &'a AtomicU64,
        bulk: &'a AtomicUsize,
    ) -> Self {
        Self {
            socket,
            received,
            staging: vec![0; STAGING_BYTES].into(),
            head: 0,
            tail: 0,
            bulk,
            small_segments: false,
            fragment_left: 0,
            last_fragment: true,
            record_left: 0,
        }
    }

    /// Announces segments of this size in the record, so that small ones are received together.
    pub(super) fn expect_segments(&mut self, len: usize) {
        self.small_segments = len < IN_PLACE_BYTES;
    }

    /// Most bytes to receive ahead of their use.
    fn window(&self) -> usize {
        match self.bulk.load(Relaxed) > 0 && !self.small_segments {
            true => BULK_STAGING_BYTES,
            false => STAGING_BYTES,
        }
    }

    /// Waits for the next record, of at most `max_bytes`.
    pub(super) async fn begin(&mut self, max_bytes: usize) -> io::Result<()> {
        self.record_left = max_bytes;
        self.small_segments = false;
        self.next_fragment().await
    }

    async fn next_fragment(&mut self) -> io::Result<()> {
        // Fragments may be empty, so a server can send any number of them without a pause; other
        // tasks, and the one that watches the connection's time, have to get their turn.
        tokio::task::consume_budget().await;
        let mut header = [0; RECORD_HEADER_BYTES];
        for byte in &mut header {
            while self.head == self.tail {
                self.fill().await?;
            }
            *byte = self.staging[self.head];
            self.head += 1;
        }
        let header = FragmentHeader::from(header);
        if header.len > self.record_left {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                Violation::RecordTooLong.to_string(),
            ));
        }
        self.record_left -= header.len;
        self.fragment_left = header.len;
        self.last_fragment = header.last;
        Ok(())
    }

    /// Receives available bytes into the empty staging buffer.
    async fn fill(&mut self) -> io::Result<()> {
        (self.head, self.tail) = (0, 0);
        let window = self.window();
        // Unlike a try_read, this takes a short read for the end of what has arrived, without another system call.
        match self.socket.read(&mut self.staging[..window]).await? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            n => {
                self.tail = n;
                self.received.fetch_add(n as u64, Relaxed);
                Ok(())
            }
        }
    }

    /// Makes sure that the current fragment has bytes left, and returns their number.
    async fn in_fragment(&mut self) -> Result<usize, Failure> {
        while self.fragment_left == 0 {
            if self.last_fragment {
                return Err(Violation::Truncated.into());
            }
            self.next_fragment().await?;
        }
        Ok(self.fragment_left)
    }

    fn consume(&mut self, n: usize) {
        self.head += n;
        self.fragment_left -= n;
    }

    /// Fills `out` from the record.
    pub(super) async fn take(&mut self, out: &mut [u8]) -> Result<(), Failure> {
        let mut at = 0;
        while at < out.len() {
            let left = self.in_fragment().await?;
            if self.head == self.tail {
                self.fill().await?;
            }
            let n = left.min(self.tail - self.head).min(out.len() - at);
            out[at..at + n].copy_from_slice(&self.staging[self.head..self.head + n]);
            self.consume(n);
            at += n;
        }
        Ok(())
    }

    /// Takes an unsigned integer.
    pub(super) async fn u32(&mut self) -> Result<u32, Failure> {
        let mut bytes = [0; 4];
        self.take(&mut bytes).await?;
        Ok(u32::from_be_bytes(bytes))
    }

    /// Takes an unsigned hyper integer.
    pub(super) async fn u64(&mut self) -> Result<u64, Failure> {
        let mut bytes = [0; 8];
        self.take(&mut bytes).await?;
        Ok(u64::from_be_bytes(bytes))
    }

    /// Appends `n` bytes to `out`.
    pub(super) async fn take_to(&mut self, out: &mut Vec<u8>, n: usize) -> Result<(), Failure> {
        let at = out.len();
        out.resize(at + n, 0);
        self.take(&mut out[at..]).await
    }

    /// Appends the rest of the record, at most `max_bytes`, to `out`.
    pub(super) async fn take_rest(
        &mut self,
        out: &mut Vec<u8>,
        max_bytes: usize,
    ) -> Result<(), Failure> {
        loop {
            while self.fragment_left == 0 {
                if self.last_fragment {
                    return Ok(());
                }
                self.next_fragment().await?;
            }
            if self.head == self.tail {
                self.fill().await?;
            }
            let n = self.fragment_left.min(self.tail - self.head);
            if out.len() + n > max_bytes {
                return Err(Violation::TooLong.into());
            }
            out.extend_from_slice(&self.staging[self.head..self.head + n]);
            self.consume(n);
        }
    }

    /// Reads `n` bytes of payload to position `at` of the read's buffer.
    pub(super) async fn payload(
        &mut self,
        read: &ReadInFlight,
        mut at: usize,
        mut n: usize,
    ) -> Result<(), Failure> {
        while n > 0 {
            let now = self.in_fragment().await?.min(n);
            let staged = now.min(self.tail - self.head);
            let done = if staged > 0 {
                let bytes = &self.staging[self.head..self.head + staged];
                read.op().lock().buffer().copy_in(at, bytes);
                self.consume(staged);
                staged
            } else {
                self.receive_in_place(read, at, now).await?
            };
            at += done;
            n -= done;
        }
        Ok(())
    }

    /// Receives up to `n` bytes into the read's buffer at `at`, and further bytes into the staging
    /// buffer.
    async fn receive_in_place(
        &mut self,
        read: &ReadInFlight,
        at: usize,
        n: usize,
    ) -> io::Result<usize> {
        (self.head, self.tail) = (0, 0);
        loop {
            // Bound first, so that the lock is not held while waiting.
            let received = self.try_receive_in_place(&mut read.op().lock(), at, n);
            match received {
                Ok((0, _)) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok((total, room)) => {
                    self.received.fetch_add(total as u64, Relaxed);
                    let placed = total.min(room);
                    self.tail = total - placed;
                    self.fragment_left -= placed;
                    return Ok(placed);
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => self.socket.readable().await?,
                Err(e) => return Err(e),
            }
        }
    }

    /// Returns the number of bytes received, and how many of them went to the buffer.
    fn try_receive_in_place(
        &mut self,
        op: &mut ReadOp,
        at: usize,
        n: usize,
    ) -> io::Result<(usize, usize)> {
        let window = self.window();
        let mut slices = Vec::new();
        op.buffer().slices(at, at + n, &mut slices);
        if slices.len() > MAX_SLICES {
            slices.truncate(MAX_SLICES);
            let room = slices.iter().map(|s| s.len()).sum();
            return Ok((self.socket.try_read_vectored(&mut slices)?, room));
        }
        slices.push(IoSliceMut::new(&mut self.staging[..window]));
        Ok((self.socket.try_read_vectored(&mut slices)?, n))
    }

    /// Skips the rest of the record.
    pub(super) async fn skip_rest(&mut self) -> io::Result<()> {
        loop {
            while self.fragment_left == 0 {
                if self.last_fragment {
                    return Ok(());
                }
                self.next_fragment().await?;
            }
            if self.head == self.tail {
                self.fill().await?;
            }
            self.consume(self.fragment_left.min(self.tail - self.head));
        }
    }
}
