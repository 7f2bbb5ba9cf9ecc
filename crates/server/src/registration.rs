//! Registers programs with the machine's port mapper (rpcbind), for clients that ask it:
//! `showmount`, `rpcinfo`, and `mount` without ports.
//!
//! 1. A registration replaces what the mapper has for these programs; [`withdraw`] removes it.
//! 2. Exception: a lock manager or status monitor that answers on another port of this machine
//!    keeps its registration, because the machine's own NFS mounts may need it.

use crate::program::ProgramId;
use std::net::SocketAddr;
use tracing::warn;
use weir_nfs::{nlm, nsm};
use weir_rpc::net::{self, ClientLimits, PortMapper, Source, answers};
use weir_rpc::rpcbind::{self, TCP, UDP};

/// The address of this machine's port mapper.
pub const LOCAL_RPCBIND: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), rpcbind::PORT);

/// Limits for calls to the mapper and to programs that it names.
const LIMITS: ClientLimits = ClientLimits::SMALL;

/// Why programs are not registered.
#[derive(Debug, thiserror::Error)]
pub enum RegisterError {
    /// The mapper cannot be reached or does not answer.
    #[error("cannot register with rpcbind at {mapper}: {source}; is rpcbind running?")]
    Unreachable {
        /// The mapper's address.
        mapper: SocketAddr,
        /// Why.
        source: net::Error,
    },
    /// The mapper refuses the registration.
    #[error(
        "rpcbind at {mapper} refuses to register program {program} version {version}; \
             does another server own it (rpcinfo -p)?"
    )]
    Refused {
        /// The mapper's address.
        mapper: SocketAddr,
        /// Program.
        program: u32,
        /// Version.
        version: u32,
    },
}

/// Registers programs at a port. Returns the programs that are now registered.
///
/// # Errors
/// A program could not be registered, other than one left to the machine's own NFS mounts.
pub async fn register(
    mapper: SocketAddr,
    programs: &[ProgramId],
    port: u16,
) -> Result<Vec<ProgramId>, RegisterError> {
    let unreachable = |source| RegisterError::Unreachable { mapper, source };
    let mut client = PortMapper::connect(mapper, Source::ANY, LIMITS).await.map_err(unreachable)?;
    let mut registered = Vec::new();
    for &id in programs {
        let ProgramId { program, version } = id;
        if matches!(program, nlm::PROGRAM | nsm::PROGRAM)
            && let Some(other) = known_port(&mut client, id).await.map_err(unreachable)?
            && other != port
            && answers(SocketAddr::new(mapper.ip(), other), Source::ANY, id, LIMITS).await
        {
            warn!(
                "{} of this machine is served at port {other} by another program, perhaps for its \
                 own NFS mounts, and stays there: clients with vers=3 should mount with nolock",
                if program == nlm::PROGRAM { "the lock manager" } else { "the status monitor" }
            );
            continue;
        }
        client.unset(id).await.map_err(unreachable)?;
        for &protocol in protocols_of(program) {
            if !client.set(id, protocol, port).await.map_err(unreachable)? {
                return Err(RegisterError::Refused { mapper, program, version });
            }
        }
        registered.push(id);
    }
    Ok(registered)
}

/// The port that the mapper has for a program. A mapper that refuses the query counts as having
/// none: it may still accept registrations.
async fn known_port(client: &mut PortMapper, id: ProgramId) -> Result<Option<u16>, net::Error> {
    match client.port_of(id).await {
        Err(net::Error::Refused(_) | net::Error::Results(_)) => Ok(None),
        port => port,
    }
}

/// Removes the registrations of these programs.
///
/// # Errors
/// The mapper cannot be reached.
pub async fn withdraw(mapper: SocketAddr, programs: &[ProgramId]) -> Result<(), RegisterError> {
    let unreachable = |source| RegisterError::Unreachable { mapper, source };
    let mut client = PortMapper::connect(mapper, Source::ANY, LIMITS).await.map_err(unreachable)?;
    for &id in programs {
        client.unset(id).await.map_err(unreachable)?;
    }
    Ok(())
}

/// The protocols of a program. Status monitors send restart notices by UDP; all other programs are
/// served over TCP only.
fn protocols_of(program: u32) -> &'static [u32] {
    if program == nsm::PROGRAM { &[TCP, UDP] } else { &[TCP] }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::{Call, Program, Programs, Refusal};
    use crate::transport::{Transport, TransportLimits};
    use async_trait::async_trait;
    use parking_lot::Mutex;
    use std::sync::Arc;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;
    use tokio_util::sync::CancellationToken;
    use weir_rpc::rpcbind::Mapping;
    use weir_xdr::Encoder;

    /// A mapper that accepts a program once until it is unset, and never program 13.
    #[derive(Default)]
    struct Mapper {
        mappings: Mutex<Vec<Mapping>>,
        telling: Mutex<Telling>,
    }

    /// How the mapper answers a query for a port.
    #[derive(Clone, Copy, Debug, Default)]
    enum Telling {
        #[default]
        Tells,
        Refuses,
        AnswersMalformed,
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
            let whole = mappings.iter().any(|m| same(m) && m.protocol == new.protocol);
            let done = match call.header.procedure {
                1 if whole || new.program == 13 => false,
                1 => {
                    mappings.push(new);
                    true
                }
                2 => {
                    mappings.retain(|m| !same(m));
                    known
                }
                3 => {
                    match *self.telling.lock() {
                        Telling::Tells => {}
                        Telling::Refuses => return Err(Refusal::NoSuchProcedure),
                        Telling::AnswersMalformed => return Ok(reply),
                    }
                    let port = mappings.iter().find(|m| same(m)).map_or(0, |m| m.port);
                    reply.put(&port);
                    return Ok(reply);
                }
                _ => return Err(Refusal::NoSuchProcedure),
            };
            reply.put(&done);
            Ok(reply)
        }
    }

    async fn serve(program: Arc<dyn Program>) -> SocketAddr {
        let mut programs = Programs::default();
        programs.add(program);
        let stop = CancellationToken::new();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        tokio::spawn(
            Arc::new(Transport::new(
                TransportLimits::default(),
                16,
                programs,
                Arc::default(),
                stop,
            ))
            .serve(vec![listener]),
        );
        addr
    }

    async fn mapper() -> (Arc<Mapper>, SocketAddr) {
        let mapper = Arc::new(Mapper::default());
        let addr = serve(mapper.clone()).await;
        (mapper, addr)
    }

    #[tokio::test]
    async fn programs_are_registered_anew_and_unregistered_at_the_end() {
        let (mapper, addr) = mapper().await;
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
    async fn another_programs_status_monitor_stays_registered() {
        let (mapper, addr) = mapper().await;
        let ours = [nsm::ID];
        // Nothing answers on the port that a crashed server left registered.
        let unused = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
        register(addr, &ours, unused).await.unwrap();
        assert_eq!(register(addr, &ours, 2049).await.unwrap(), ours);
        let mapped = |port: u16| {
            [TCP, UDP].map(|protocol| Mapping {
                program: nsm::PROGRAM,
                version: nsm::VERSION,
                protocol,
                port: port.into(),
            })
        };
        assert_eq!(*mapper.mappings.lock(), mapped(2049));

        // A program that answers keeps its registration.
        struct Monitor;
        #[async_trait]
        impl Program for Monitor {
            fn id(&self) -> ProgramId {
                nsm::ID
            }
            async fn call(self: Arc<Self>, _: Call, reply: Encoder) -> Result<Encoder, Refusal> {
                Ok(reply)
            }
        }
        let theirs = serve(Arc::new(Monitor)).await.port();
        register(addr, &ours, theirs).await.unwrap();
        assert_eq!(register(addr, &ours, 2049).await.unwrap(), []);
        assert_eq!(*mapper.mappings.lock(), mapped(theirs));
    }

    #[tokio::test]
    async fn a_port_mapper_that_refuses_queries_still_accepts_registrations() {
        let (mapper, addr) = mapper().await;
        let ours = [nlm::ID, nsm::ID];
        for telling in [Telling::Refuses, Telling::AnswersMalformed] {
            *mapper.telling.lock() = telling;
            assert_eq!(register(addr, &ours, 2049).await.unwrap(), ours, "{telling:?}");
        }
    }

    #[tokio::test]
    async fn a_port_mapper_may_answer_in_fragments() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let answering = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            // UNSET and SET, each one fragment: a 4-byte record mark before the xid.
            for _ in 0..2 {
                let mut call = [0; 4 + 40 + 16];
                stream.read_exact(&mut call).await.unwrap();
                let reply = [&call[4..8], &[0, 0, 0, 1], &[0; 19], &[1]].concat();
                for (fragment, mark) in [(&reply[..6], 0), (&reply[6..], 0x80)] {
                    stream.write_all(&[mark, 0, 0, fragment.len() as u8]).await.unwrap();
                    stream.write_all(fragment).await.unwrap();
                }
            }
        });
        let nfs = ProgramId { program: 100_003, version: 4 };
        assert_eq!(register(addr, &[nfs], 2049).await.unwrap(), [nfs]);
        answering.await.unwrap();
    }

    #[tokio::test]
    async fn a_missing_port_mapper_is_an_error() {
        let unused = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        let error = register(unused, &[], 1).await.unwrap_err();
        assert!(error.to_string().contains("is rpcbind running?"), "{error}");
    }
}
