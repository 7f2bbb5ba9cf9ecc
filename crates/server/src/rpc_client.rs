//! Short exchanges with RPC programs elsewhere: port mappers, and the lock and status programs of
//! clients.
//!
//! 1. Whoever is called may be slow, broken or hostile: no step takes longer than [`PATIENCE`], and
//!    no more than [`MAX_REPLY_BYTES`] of an answer are read.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;
use weir_rpc::rpcbind::{self, Mapping, TCP};
use weir_rpc::{CallHeader, OpaqueAuth, ReplyHeader, finish_record, start_record};
use weir_xdr::{Decode, Decoder, Encode};

/// How long a connection, or an answer, may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);
/// The longest answer that is read, in bytes.
const MAX_REPLY_BYTES: u32 = 4096;

/// Program, version, procedure.
pub(crate) type Which = (u32, u32, u32);

/// A connection to a program.
pub(crate) struct Outcall {
    stream: TcpStream,
    xid: u32,
    cred: OpaqueAuth,
}

impl Outcall {
    /// Connects, from address `from` if it matters which of this machine's it is.
    pub(crate) async fn connect(to: SocketAddr, from: Option<IpAddr>) -> io::Result<Self> {
        let connecting = async {
            let socket = if to.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
            if let Some(from) = from {
                socket.bind(SocketAddr::new(from, 0))?;
            }
            socket.connect(to).await
        };
        let stream = timeout(PATIENCE, connecting).await??;
        stream.set_nodelay(true)?;
        Ok(Self::over(stream))
    }

    /// Calls over a connection that is there.
    pub(crate) fn over(stream: TcpStream) -> Self {
        Self { stream, xid: 0, cred: OpaqueAuth::NONE }
    }

    /// Connects to a program of a host, whose port mapper listens at `mapper`.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`]: the mapper knows of no such program.
    pub(crate) async fn to_program(
        mapper: SocketAddr,
        from: Option<IpAddr>,
        (program, version): (u32, u32),
        what: &str,
    ) -> io::Result<Self> {
        let port = port_of(mapper, from, program, version).await?.ok_or_else(|| {
            let why = format!("its port mapper knows of no {what}");
            io::Error::new(io::ErrorKind::NotFound, why)
        })?;
        Self::connect(SocketAddr::new(mapper.ip(), port), from).await
    }

    /// Calls as somebody.
    pub(crate) fn with_cred(self, cred: OpaqueAuth) -> Self {
        Self { cred, ..self }
    }

    /// Calls a procedure.
    pub(crate) async fn call<R: Decode>(
        &mut self,
        which: Which,
        args: &(impl Encode + Sync),
    ) -> io::Result<R> {
        timeout(PATIENCE, self.exchange(which, args)).await?
    }

    async fn exchange<R: Decode>(
        &mut self,
        (program, version, procedure): Which,
        args: &(impl Encode + Sync),
    ) -> io::Result<R> {
        self.xid += 1;
        let (xid, cred, verf) = (self.xid, self.cred.clone(), OpaqueAuth::NONE);
        let message = {
            let mut e = start_record();
            e.put(&CallHeader { xid, program, version, procedure, cred, verf });
            e.put(args);
            finish_record(e).to_bytes()
        };
        self.stream.write_all(&message).await?;
        let invalid = |why: &str| io::Error::new(io::ErrorKind::InvalidData, why.to_owned());
        let len = self.stream.read_u32().await? & 0x7fff_ffff;
        if len > MAX_REPLY_BYTES {
            return Err(invalid("an over-long answer"));
        }
        let mut record = vec![0; len as usize];
        self.stream.read_exact(&mut record).await?;
        let mut d = Decoder::new(record.into());
        let header: ReplyHeader = d.get().map_err(|_| invalid("no answer to a call"))?;
        if header.xid != xid {
            return Err(invalid("an answer to another call"));
        }
        if !header.is_success() {
            return Err(invalid("the call was refused"));
        }
        d.get().map_err(|_| invalid("a malformed answer"))
    }
}

/// Asks the port mapper at `mapper` for the TCP port of a program; `None`: it knows of none.
pub(crate) async fn port_of(
    mapper: SocketAddr,
    from: Option<IpAddr>,
    program: u32,
    version: u32,
) -> io::Result<Option<u16>> {
    let mut client = Outcall::connect(mapper, from).await?;
    let which = (rpcbind::PROGRAM, rpcbind::VERSION, rpcbind::Procedure::GetPort as u32);
    let asked = Mapping { program, version, protocol: TCP, port: 0 };
    let port: u32 = client.call(which, &asked).await?;
    Ok(u16::try_from(port).ok().filter(|port| *port != 0))
}
