//! Telling the machine's port mapper (rpcbind) where programs are served, for clients that ask it:
//! `showmount`, `rpcinfo`, `mount` without ports.
//!
//! 1. What the mapper says of these programs is replaced; it is taken back by [`withdraw`].
//! 2. The mapper is another program and may be slow: no exchange takes longer than `PATIENCE`.

use crate::program::ProgramId;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use weir_rpc::rpcbind::{self, Mapping, Procedure, TCP};
use weir_rpc::{CallHeader, OpaqueAuth, ReplyHeader, finish_record, start_record};
use weir_xdr::Decoder;

/// How long the mapper may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// The longest answer that is read, in bytes: a boolean behind a header.
const MAX_REPLY_BYTES: u32 = 1024;

/// Where this machine's port mapper listens.
pub const LOCAL_RPCBIND: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), rpcbind::PORT);

/// Why programs are not registered.
#[derive(Debug, thiserror::Error)]
pub enum RegisterError {
    /// The mapper cannot be reached, or does not answer.
    #[error("cannot register with rpcbind at {mapper}: {source}; is rpcbind running?")]
    Unreachable {
        /// Where it was looked for.
        mapper: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// The mapper does not want to.
    #[error(
        "rpcbind at {mapper} refuses to register program {program} version {version}; \
             does another server own it (rpcinfo -p)?"
    )]
    Refused {
        /// Which mapper.
        mapper: SocketAddr,
        /// Program.
        program: u32,
        /// Version.
        version: u32,
    },
}

/// Registers programs as served at a TCP port.
///
/// # Errors
/// Some are not registered.
pub async fn register(
    mapper: SocketAddr,
    programs: &[ProgramId],
    port: u16,
) -> Result<(), RegisterError> {
    let unreachable = |source| RegisterError::Unreachable { mapper, source };
    let mut client = Client::connect(mapper).await.map_err(unreachable)?;
    for &ProgramId { program, version } in programs {
        let mapping = Mapping { program, version, protocol: TCP, port: port.into() };
        client.call(Procedure::Unset, mapping).await.map_err(unreachable)?;
        if !client.call(Procedure::Set, mapping).await.map_err(unreachable)? {
            return Err(RegisterError::Refused { mapper, program, version });
        }
    }
    Ok(())
}

/// Takes back what [`register`] did.
///
/// # Errors
/// The mapper cannot be reached.
pub async fn withdraw(mapper: SocketAddr, programs: &[ProgramId]) -> Result<(), RegisterError> {
    let unreachable = |source| RegisterError::Unreachable { mapper, source };
    let mut client = Client::connect(mapper).await.map_err(unreachable)?;
    for &ProgramId { program, version } in programs {
        let mapping = Mapping { program, version, protocol: TCP, port: 0 };
        client.call(Procedure::Unset, mapping).await.map_err(unreachable)?;
    }
    Ok(())
}

/// A connection to the mapper.
struct Client {
    stream: TcpStream,
    xid: u32,
}

impl Client {
    async fn connect(mapper: SocketAddr) -> io::Result<Self> {
        let stream = timeout(PATIENCE, TcpStream::connect(mapper)).await??;
        Ok(Self { stream, xid: 0 })
    }

    async fn call(&mut self, procedure: Procedure, mapping: Mapping) -> io::Result<bool> {
        timeout(PATIENCE, self.exchange(procedure, mapping)).await?
    }

    async fn exchange(&mut self, procedure: Procedure, mapping: Mapping) -> io::Result<bool> {
        self.xid += 1;
        let mut e = start_record();
        e.put(&CallHeader {
            xid: self.xid,
            program: rpcbind::PROGRAM,
            version: rpcbind::VERSION,
            procedure: procedure as u32,
            cred: OpaqueAuth::NONE,
            verf: OpaqueAuth::NONE,
        });
        e.put(&mapping);
        self.stream.write_all(&finish_record(e).to_bytes()).await?;
        let len = self.stream.read_u32().await? & 0x7fff_ffff;
        if len > MAX_REPLY_BYTES {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "an over-long reply"));
        }
        let mut record = vec![0; len as usize];
        self.stream.read_exact(&mut record).await?;
        let mut d = Decoder::new(record.into());
        let answer = d.get::<ReplyHeader>().and_then(|header| {
            if header.xid == self.xid && header.is_success() { d.get() } else { Ok(false) }
        });
        answer.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::{Call, Program, Programs, Refusal};
    use crate::transport::{Limits, Transport};
    use async_trait::async_trait;
    use parking_lot::Mutex;
    use std::sync::Arc;
    use tokio::net::TcpListener;
    use tokio_util::sync::CancellationToken;
    use weir_xdr::Encoder;

    /// A mapper that takes a program once, until it is unset; and never program 13.
    #[derive(Default)]
    struct Mapper {
        mappings: Mutex<Vec<Mapping>>,
    }

    #[async_trait]
    impl Program for Mapper {
        fn id(&self) -> ProgramId {
            ProgramId { program: rpcbind::PROGRAM, version: rpcbind::VERSION }
        }

        async fn call(
            self: Arc<Self>,
            mut call: Call,
            mut reply: Encoder,
        ) -> Result<Encoder, Refusal> {
            let new: Mapping = call.args.get()?;
            let mut mappings = self.mappings.lock();
            let same = |m: &Mapping| (m.program, m.version) == (new.program, new.version);
            let known = mappings.iter().any(same);
            let done = match call.header.procedure {
                1 if known || new.program == 13 => false,
                1 => {
                    mappings.push(new);
                    true
                }
                2 => {
                    mappings.retain(|m| !same(m));
                    known
                }
                _ => return Err(Refusal::NoSuchProcedure),
            };
            reply.put(&done);
            Ok(reply)
        }
    }

    #[tokio::test]
    async fn programs_are_registered_again_and_taken_back() {
        let mapper = Arc::new(Mapper::default());
        let mut programs = Programs::default();
        programs.add(mapper.clone());
        let stop = CancellationToken::new();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        tokio::spawn(Arc::new(Transport::new(Limits::default(), programs, stop)).serve(listener));

        let ours = [3, 4].map(|version| ProgramId { program: 100_003, version });
        for port in [2049, 3049] {
            register(addr, &ours, port).await.unwrap();
            let mappings = mapper.mappings.lock().clone();
            let expected = [3, 4].map(|version| Mapping {
                program: 100_003,
                version,
                protocol: TCP,
                port: port.into(),
            });
            assert_eq!(mappings, expected);
        }
        withdraw(addr, &ours).await.unwrap();
        assert_eq!(*mapper.mappings.lock(), []);
        let refused = register(addr, &[ProgramId { program: 13, version: 1 }], 1).await;
        assert!(matches!(refused, Err(RegisterError::Refused { program: 13, .. })));
    }

    #[tokio::test]
    async fn no_mapper_is_an_error() {
        let unused = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        let error = register(unused, &[], 1).await.unwrap_err();
        assert!(error.to_string().contains("is rpcbind running?"), "{error}");
    }
}
