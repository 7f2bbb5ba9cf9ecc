//! A connection for sequential calls with small replies.
//!
//! 1. If a call did not end with a complete reply to it, a later reply could be taken for another
//!    call's: the connection accepts no more calls ([`Error::Unusable`]).

use super::connect::{Source, connect};
use super::error::Error;
use super::record_stream::RecordStream;
use crate::{CallHeader, OpaqueAuth, ProgramId, ReplyHeader, finish_record, start_record};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::timeout;
use weir_xdr::{Decode, Decoder, Encode};

/// Limits on the cost of a peer.
#[derive(Clone, Copy, Debug)]
pub struct ClientLimits {
    /// Time limit of connecting, and of each call.
    pub deadline: Duration,
    /// Longest reply, in bytes, header included.
    pub reply_bytes: usize,
}

impl ClientLimits {
    /// Five seconds and 4 KiB.
    pub const SMALL: Self = Self { deadline: Duration::from_secs(5), reply_bytes: 4096 };
}

/// A connection to an RPC program.
pub struct RpcClient {
    records: RecordStream,
    limits: ClientLimits,
    next_xid: u32,
    cred: OpaqueAuth,
    usable: bool,
}

impl RpcClient {
    /// Connects.
    ///
    /// # Errors
    /// [`Error::Socket`] or [`Error::TimedOut`].
    pub async fn connect(
        to: SocketAddr,
        source: Source,
        limits: ClientLimits,
    ) -> Result<Self, Error> {
        let connecting = timeout(limits.deadline, connect(to, source));
        let stream = connecting.await.map_err(|_| Error::TimedOut(limits.deadline))??;
        Ok(Self::over(stream, limits))
    }

    /// Uses an existing connection.
    pub fn over(stream: TcpStream, limits: ClientLimits) -> Self {
        let records = RecordStream::new(stream, limits.reply_bytes);
        // Servers may identify resent calls by address and transaction: those of an earlier
        // connection from the same port must differ.
        let next_xid = getrandom::u32().unwrap_or(1);
        Self { records, limits, next_xid, cred: OpaqueAuth::NONE, usable: true }
    }

    /// Sets the credential of later calls; without it they use `AUTH_NONE`.
    pub fn with_cred(self, cred: OpaqueAuth) -> Self {
        Self { cred, ..self }
    }

    /// Calls a procedure and decodes its results.
    ///
    /// # Errors
    /// After [`Error::Refused`] and [`Error::Results`] the connection stays usable; after other
    /// errors it accepts no more calls.
    pub async fn call<R: Decode>(
        &mut self,
        id: ProgramId,
        procedure: u32,
        args: &(impl Encode + Sync),
    ) -> Result<R, Error> {
        // The connection also becomes unusable if the future is dropped half-way.
        if !std::mem::replace(&mut self.usable, false) {
            return Err(Error::Unusable);
        }
        let deadline = self.limits.deadline;
        let exchange = timeout(deadline, self.exchange(id, procedure, args));
        let (header, mut results) = exchange.await.map_err(|_| Error::TimedOut(deadline))??;
        self.usable = true;
        if !header.is_success() {
            return Err(Error::Refused(header.body));
        }
        results.get().map_err(Error::Results)
    }

    /// Sends a call and receives the reply: its header, and the decoder for the rest.
    async fn exchange(
        &mut self,
        ProgramId { program, version }: ProgramId,
        procedure: u32,
        args: &(impl Encode + Sync),
    ) -> Result<(ReplyHeader, Decoder), Error> {
        let xid = self.next_xid;
        self.next_xid = xid.wrapping_add(1);
        let call = {
            let (cred, verf) = (self.cred.clone(), OpaqueAuth::NONE);
            let mut e = start_record();
            e.put(&CallHeader { xid, program, version, procedure, cred, verf });
            e.put(args);
            finish_record(e)
        };
        self.records.send(&call).await?;
        let mut d = Decoder::new(self.records.next().await?);
        let header: ReplyHeader = d.get().map_err(|_| Error::NotAReply)?;
        if header.xid != xid {
            return Err(Error::OtherTransaction { called: xid, replied: header.xid });
        }
        Ok((header, d))
    }
}

/// Whether a program answers its null procedure at `to`.
pub async fn answers(to: SocketAddr, source: Source, id: ProgramId, limits: ClientLimits) -> bool {
    let null = async { RpcClient::connect(to, source, limits).await?.call(id, 0, &()).await };
    matches!(null.await, Ok::<(), Error>(()))
}
