//! Records on a TCP connection.
//!
//! 1. In addition to the earlier fragments of a record, at most the largest record and one fragment
//!    header are received ahead of their use: together less than twice the limit.

use super::error::Error;
use crate::{RECORD_HEADER_BYTES, RecordReader};
use bytes::{BufMut, BytesMut};
use std::io;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use weir_xdr::{Bytes, Message};

/// Room for an ordinary record.
const ORDINARY_BYTES: usize = 512;

pub(super) struct RecordStream {
    stream: TcpStream,
    reader: RecordReader,
    input: BytesMut,
    max_bytes: usize,
}

impl RecordStream {
    /// A stream that rejects records of more than `max_bytes`.
    pub(super) fn new(stream: TcpStream, max_bytes: usize) -> Self {
        Self { stream, reader: RecordReader::new(max_bytes), input: BytesMut::new(), max_bytes }
    }

    /// Waits for the first bytes of a record; `false`: the peer closed the connection instead.
    pub(super) async fn begins(&mut self) -> io::Result<bool> {
        Ok(!self.input.is_empty() || self.fill().await?)
    }

    /// Receives the next record.
    pub(super) async fn next(&mut self) -> Result<Bytes, Error> {
        loop {
            if let Some(record) = self.reader.next_record(&mut self.input)? {
                return Ok(record);
            }
            if !self.fill().await? {
                return Err(Error::Closed);
            }
        }
    }

    /// Sends a record.
    pub(super) async fn send(&mut self, record: &Message) -> io::Result<()> {
        self.stream.write_all(&record.to_bytes()).await
    }

    /// Receives available bytes; `false`: the stream has ended. The reader waits for more, so it
    /// holds less than a record and its header.
    async fn fill(&mut self) -> io::Result<bool> {
        let room = self.max_bytes.saturating_add(RECORD_HEADER_BYTES) - self.input.len();
        self.input.reserve(room.min(ORDINARY_BYTES));
        Ok(self.stream.read_buf(&mut (&mut self.input).limit(room)).await? > 0)
    }
}
