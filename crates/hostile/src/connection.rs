//! A client's connection: sends records, answers callbacks, and waits for replies.

use bytes::{Bytes, BytesMut};
use socket2::SockRef;
use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;
use weir_rpc::{MessageType, RecordReader, message_type};

/// How long a reply may take, in the test's time. A call may wait for a recall.
const PATIENCE: Duration = Duration::from_secs(300);
/// How long a reply may take besides, in real time. The test's time does not stand still while bytes are on
/// their way between two sockets, which takes long on a busy machine.
const REAL_PATIENCE: Duration = Duration::from_secs(30);
/// Longest reply.
const REPLY_BYTES: usize = 4 << 20;

/// A client's connection from one of this machine's addresses.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: TcpStream,
    input: BytesMut,
    records: RecordReader,
    /// Bytes with which callbacks are answered after the header; `None`: callbacks are not answered.
    pub(crate) callbacks: VecDeque<Option<Vec<u8>>>,
}

/// What arrived.
#[derive(Debug)]
pub(crate) enum Arrived {
    Reply(Bytes),
    /// The server has closed the connection.
    Closed,
    /// Nothing, for as long as the caller was willing to wait.
    Nothing,
}

impl Connection {
    /// Connects from 127.0.0.`host`.
    pub(crate) async fn open(host: u8, to: SocketAddr) -> io::Result<Self> {
        let socket = TcpSocket::new_v4()?;
        // No port stays in TIME_WAIT.
        SockRef::from(&socket).set_linger(Some(Duration::ZERO))?;
        socket.bind(SocketAddr::new(IpAddr::V4(Ipv4Addr::new(127, 0, 0, host)), 0))?;
        let stream = socket.connect(to).await?;
        stream.set_nodelay(true)?;
        let records = RecordReader::new(REPLY_BYTES);
        Ok(Self { stream, input: BytesMut::new(), records, callbacks: VecDeque::new() })
    }

    /// Sends bytes as they are. Returns false if the server has closed the connection.
    pub(crate) async fn send(&mut self, bytes: &[u8]) -> bool {
        matches!(timeout(PATIENCE, self.stream.write_all(bytes)).await, Ok(Ok(())))
    }

    /// Waits for a reply; meanwhile answers callbacks. With `None` a reply or the end must come.
    ///
    /// # Errors
    /// The server sent bytes that are no record.
    pub(crate) async fn reply(&mut self, wait: Option<Duration>) -> Result<Arrived, String> {
        let (mut wait, is_due, began) = (wait.unwrap_or(PATIENCE), wait.is_none(), Instant::now());
        loop {
            let record = self.records.next_record(&mut self.input);
            if let Some(record) = record.map_err(|error| format!("the server sent {error}"))? {
                match message_type(&record) {
                    Ok((_, MessageType::Reply)) => return Ok(Arrived::Reply(record)),
                    Ok((xid, MessageType::Call)) => self.answer(xid, &record).await,
                    Err(error) => return Err(format!("the server sent no message: {error}")),
                }
                continue;
            }
            let read = self.stream.read_buf(&mut self.input);
            match timeout(wait, read).await {
                Ok(Ok(0) | Err(_)) => return Ok(Arrived::Closed),
                Ok(Ok(_)) => {}
                Err(_) if is_due && began.elapsed() < REAL_PATIENCE => {
                    std::thread::sleep(Duration::from_millis(1));
                    wait = Duration::from_millis(1);
                }
                Err(_) => return Ok(Arrived::Nothing),
            }
        }
    }

    /// Answers a callback as the input says; as usual with the arguments that it came with, which
    /// begin like a result.
    async fn answer(&mut self, xid: u32, call: &Bytes) {
        let Some(Some(body)) = self.callbacks.pop_front() else { return };
        let mut reply = Vec::new();
        [0, xid, 1, 0, 0, 0, 0].into_iter().for_each(|word: u32| reply.extend(word.to_be_bytes()));
        reply.extend(if body.is_empty() { success(call) } else { body });
        let mark = (reply.len() as u32 - 4) | 1 << 31;
        reply[..4].copy_from_slice(&mark.to_be_bytes());
        self.send(&reply).await;
    }
}

/// The results of a callback that succeeds.
fn success(call: &Bytes) -> Vec<u8> {
    use weir_nfs::v4::cb::sequence::Sequenced;
    use weir_nfs::v4::cb::{CbOp, CbOpRes};
    use weir_nfs::v4::{CbCompoundHeader, CompoundResHeader};
    let mut d = weir_xdr::Decoder::new(call.clone());
    let Ok(header) = weir_rpc::CallHeader::decode(&mut d) else { return Vec::new() };
    let Ok(compound) = d.get::<CbCompoundHeader>() else { return Vec::new() };
    if header.procedure == 0 {
        return Vec::new();
    }
    let mut results = Vec::new();
    for _ in 0..compound.operations {
        results.push(match CbOp::decode_next(&mut d) {
            Ok(CbOp::Sequence(args)) => CbOpRes::Sequence(Ok(Sequenced {
                session: args.session,
                sequence_id: args.sequence_id,
                slot: args.slot,
                highest_slot: args.slot,
                target_highest_slot: args.slot,
            })),
            Ok(CbOp::Recall(_)) => CbOpRes::Recall(Ok(())),
            _ => break,
        });
    }
    let header =
        CompoundResHeader { status: Ok(()), tag: compound.tag, results: results.len() as u32 };
    let mut e = weir_xdr::Encoder::new();
    e.put(&header);
    results.iter().for_each(|result| e.put(result));
    e.finish().to_bytes().to_vec()
}
