//! The service that servers call when a lock is granted for which a mount waits (NLM GRANTED).
//!
//! 1. There is one for all mounts of the program, on a thread of its own, registered with the
//!    machine's port mapper as its lock manager. A machine has one: where the kernel's, or another
//!    program's, answers already, or where there is no port mapper, there is no service, and
//!    whoever waits asks again every second.
//! 2. Anybody may call. A call makes somebody ask the server, and no more.
//! 3. At most [`MOST_CONNECTIONS`] are open; one that is silent for [`IDLE`], or sends a record of
//!    over [`MAX_BYTES`], is closed.

use super::V3;
use super::program;
use crate::transport::{self, Connection, Counters, Patience, Peer};
use bytes::BytesMut;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, oneshot};
use tokio::time::timeout;
use weir_base::sync::Mutex;
use weir_nfs::nlm::{self, Procedure, Res, Status, TestArgs};
use weir_rpc::rpcbind::{self, Mapping};
use weir_rpc::{AcceptStatus, CallHeader, OpaqueAuth, RecordReader, ReplyHeader, VersionRange};
use weir_xdr::{Bytes, Decoder, Encoder, Message};

/// Most connections at a time.
const MOST_CONNECTIONS: usize = 64;
/// Longest record, in bytes.
const MAX_BYTES: usize = 8192;
/// How long a connection may be silent: longer than lock managers keep theirs.
const IDLE: Duration = Duration::from_secs(600);
/// How long this machine's programs may take to answer.
const PATIENCE: Patience = Patience { timeo: Duration::from_secs(2), retrans: 0, hard: false };

/// The mounts that are told, while there are any.
static SERVICE: Mutex<Option<Service>> = Mutex::new(None);
/// Held by whoever begins or ends the service.
static CHANGING: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

struct Service {
    mounts: Vec<Weak<V3>>,
    stop: oneshot::Sender<()>,
    thread: std::thread::JoinHandle<()>,
}

/// A mount's share in the service.
pub(super) struct Hearing {
    mount: Weak<V3>,
}

impl Hearing {
    /// Has the mount hear of what is granted; `None`: this machine has no place for that.
    pub(super) async fn begin(mount: &Arc<V3>) -> Option<Self> {
        let _one_at_a_time = CHANGING.lock().await;
        let mount = Arc::downgrade(mount);
        if !join(&mount) {
            match start().await {
                Ok(service) => *SERVICE.lock() = Some(service),
                Err(why) => {
                    tracing::info!(
                        "waiting for locks by asking again: no server can call back ({why})"
                    );
                    return None;
                }
            }
            join(&mount);
        }
        Some(Self { mount })
    }

    /// The mount hears no more; the last one's end is the service's.
    pub(super) async fn end(&self) {
        let _one_at_a_time = CHANGING.lock().await;
        let ended = {
            let mut service = SERVICE.lock();
            service.take_if(|service| {
                service.mounts.retain(|m| m.strong_count() > 0 && !m.ptr_eq(&self.mount));
                service.mounts.is_empty()
            })
        };
        if let Some(Service { stop, thread, .. }) = ended {
            // It may have ended by itself.
            let _ = stop.send(());
            let _ = tokio::task::spawn_blocking(move || thread.join()).await;
        }
    }
}

fn join(mount: &Weak<V3>) -> bool {
    SERVICE.lock().as_mut().map(|service| service.mounts.push(Weak::clone(mount))).is_some()
}

/// Starts the service on a thread of its own, as a mount's executor may end before others do.
async fn start() -> Result<Service, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    let (stop, stopped) = oneshot::channel();
    let (started, starting) = oneshot::channel();
    let serve = move || {
        runtime.block_on(async {
            match Listening::begin().await {
                Ok(listening) => {
                    let _ = started.send(Ok(()));
                    listening.serve(stopped).await;
                }
                Err(why) => drop(started.send(Err(why))),
            }
        });
    };
    let thread = std::thread::Builder::new().name("weir-nlm".into()).spawn(serve);
    let thread = thread.map_err(|error| error.to_string())?;
    starting.await.unwrap_or_else(|_| Err("its thread ended".into()))?;
    Ok(Service { mounts: Vec::new(), stop, thread })
}

/// The socket, and the port mapper that knows of it.
struct Listening {
    listener: TcpListener,
    mapper: Connection,
}

impl Listening {
    async fn begin() -> Result<Self, String> {
        let mapper = connect(rpcbind::PORT).await.map_err(|error| error.to_string())?;
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).await;
        let listener = listener.map_err(|error| error.to_string())?;
        let port = listener.local_addr().map_err(|error| error.to_string())?.port();
        let known = program::port_of(&mapper, nlm::PROGRAM, nlm::VERSION).await;
        if let Some(other) = known.map_err(|error| error.to_string())? {
            if answers(other).await {
                return Err(format!("another lock manager of this machine is at port {other}"));
            }
            tracing::debug!("the lock manager at port {other} is gone");
            unset(&mapper).await.map_err(|error| error.to_string())?;
        }
        let set = mapping(port);
        let set = program::ask_mapper(&mapper, rpcbind::Procedure::Set, "SET", &set);
        match set.await {
            Ok(true) => Ok(Self { listener, mapper }),
            Ok(false) => Err("the port mapper does not register it".into()),
            Err(error) => Err(error.to_string()),
        }
    }

    async fn serve(self, stopped: oneshot::Receiver<()>) {
        let room = Arc::new(Semaphore::new(MOST_CONNECTIONS));
        let accepting = async {
            loop {
                let Ok(permit) = Arc::clone(&room).acquire_owned().await else { return };
                match self.listener.accept().await {
                    Ok((stream, from)) => {
                        tokio::spawn(async move {
                            if let Err(error) = converse(stream).await {
                                tracing::debug!("{from}: {error}");
                            }
                            drop(permit);
                        });
                    }
                    Err(error) => {
                        tracing::debug!("cannot be called: {error}");
                        tokio::time::sleep(Duration::from_secs(1)).await;
                    }
                }
            }
        };
        tokio::select! {
            () = accepting => {}
            _ = stopped => {}
        }
        if let Err(error) = unset(&self.mapper).await {
            tracing::debug!("{error}");
        }
    }
}

async fn connect(port: u16) -> crate::Result<Connection> {
    let at = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port);
    let (name, heard) = (at.to_string().into(), Arc::default());
    let peer = Peer { name, addrs: vec![at], resvport: true, locate: None, heard };
    Connection::open(peer, PATIENCE, Arc::new(Counters::default()), None).await
}

async fn answers(port: u16) -> bool {
    let which = (nlm::PROGRAM, nlm::VERSION, Procedure::Null as u32);
    match connect(port).await {
        Ok(there) => {
            program::call::<()>(&there, &OpaqueAuth::NONE, which, "NULL", &()).await.is_ok()
        }
        Err(_) => false,
    }
}

async fn unset(mapper: &Connection) -> crate::Result<bool> {
    program::ask_mapper(mapper, rpcbind::Procedure::Unset, "UNSET", &mapping(0)).await
}

fn mapping(port: u16) -> Mapping {
    let (program, version) = (nlm::PROGRAM, nlm::VERSION);
    Mapping { program, version, protocol: rpcbind::TCP, port: port.into() }
}

/// Answers one caller until it hangs up.
async fn converse(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut records = RecordReader::new(MAX_BYTES);
    let mut input = BytesMut::new();
    loop {
        let record = records.next_record(&mut input).map_err(io::Error::other)?;
        match record {
            Some(record) => match answer(record) {
                Some(reply) => {
                    timeout(IDLE, stream.write_all(&reply.to_bytes())).await??;
                }
                None => return Ok(()),
            },
            None => {
                if timeout(IDLE, stream.read_buf(&mut input)).await?? == 0 {
                    return Ok(());
                }
            }
        }
    }
}

/// `None`: not a call.
fn answer(record: Bytes) -> Option<Message> {
    transport::answer(record, put_reply)
}

fn put_reply(header: &CallHeader, d: &mut Decoder, e: &mut Encoder) {
    let reply = |status| ReplyHeader::accepted(header.xid, status);
    let versions = VersionRange { low: nlm::VERSION, high: nlm::VERSION };
    let procedure = Procedure::from_number(header.procedure);
    match (header.program, header.version, procedure) {
        (nlm::PROGRAM, nlm::VERSION, Some(Procedure::Null)) => e.put(&reply(AcceptStatus::Success)),
        (
            nlm::PROGRAM,
            nlm::VERSION,
            Some(asked @ (Procedure::Granted | Procedure::GrantedMsg)),
        ) => match d.get::<TestArgs>() {
            Ok(args) => {
                e.put(&reply(AcceptStatus::Success));
                let (mount, status) = tell(&args.lock);
                let res = Res { cookie: args.cookie, status };
                if asked == Procedure::Granted {
                    e.put(&res);
                } else if let Some(mount) = mount {
                    tokio::spawn(async move { mount.answer_grant(res).await });
                }
            }
            Err(_) => e.put(&reply(AcceptStatus::GarbageArgs)),
        },
        (nlm::PROGRAM, nlm::VERSION, _) => e.put(&reply(AcceptStatus::ProcUnavail)),
        (nlm::PROGRAM, ..) => e.put(&reply(AcceptStatus::ProgMismatch(versions))),
        _ => e.put(&reply(AcceptStatus::ProgUnavail)),
    }
}

/// Tells whoever waits for a lock that it is granted.
fn tell(lock: &nlm::Lock) -> (Option<Arc<V3>>, Status) {
    let mounts = SERVICE.lock().as_ref().map(|s| s.mounts.clone()).unwrap_or_default();
    let told = mounts.iter().filter_map(Weak::upgrade).find_map(|mount| {
        let status = mount.granted(lock)?;
        Some((Some(mount), status))
    });
    told.unwrap_or((None, Status::Denied))
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_xdr::Opaque;

    fn call(program: u32, version: u32, procedure: u32, args: &[u8]) -> Bytes {
        let mut e = weir_xdr::Encoder::new();
        let (cred, verf) = (OpaqueAuth::NONE, OpaqueAuth::NONE);
        e.put(&CallHeader { xid: 7, program, version, procedure, cred, verf });
        e.raw(args);
        e.finish().to_bytes()
    }

    fn status_of(reply: Option<Message>) -> (Option<AcceptStatus>, Decoder) {
        let mut d = Decoder::new(reply.unwrap().to_bytes().slice(4..));
        let header: ReplyHeader = d.get().unwrap();
        assert_eq!(header.xid, 7);
        let status = match header.body {
            weir_rpc::ReplyBody::Accepted(accepted) => Some(accepted.status),
            weir_rpc::ReplyBody::Denied(_) => None,
        };
        (status, d)
    }

    #[test]
    fn what_nobody_waits_for_is_denied_and_what_is_not_known_refused() {
        let lock = nlm::Lock {
            caller: Opaque::copy_from(b"server"),
            file: Opaque::copy_from(b"handle"),
            owner: Opaque::copy_from(b"somebody else"),
            process: 1,
            offset: 0,
            length: 0,
        };
        let cookie = Opaque::copy_from(b"cookie");
        let args = TestArgs { cookie: cookie.clone(), exclusive: true, lock };
        let mut e = weir_xdr::Encoder::new();
        e.put(&args);
        let args = e.finish().to_bytes();
        let (status, mut d) = status_of(answer(call(nlm::PROGRAM, 4, 5, &args)));
        assert_eq!(status, Some(AcceptStatus::Success));
        assert_eq!(d.get(), Ok(Res { cookie, status: Status::Denied }));
        for (which, expected) in [
            ((nlm::PROGRAM, 4, 0), AcceptStatus::Success),
            ((nlm::PROGRAM, 4, 2), AcceptStatus::ProcUnavail),
            ((nlm::PROGRAM, 4, 99), AcceptStatus::ProcUnavail),
            ((nlm::PROGRAM, 3, 0), AcceptStatus::ProgMismatch(VersionRange { low: 4, high: 4 })),
            ((100_003, 3, 0), AcceptStatus::ProgUnavail),
        ] {
            let (status, _) = status_of(answer(call(which.0, which.1, which.2, &[])));
            assert_eq!(status, Some(expected), "{which:?}");
        }
        let (status, _) = status_of(answer(call(nlm::PROGRAM, 4, 10, &args[..20])));
        assert_eq!(status, Some(AcceptStatus::GarbageArgs));
        assert!(answer(Bytes::from_static(b"neither call nor reply")).is_none());
    }
}
