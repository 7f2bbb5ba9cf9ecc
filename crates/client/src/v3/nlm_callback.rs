//! The service that servers call when they grant a lock for which a mount waits (NLM_GRANTED).
//!
//! 1. All mounts of the program share one service, on its own thread, registered with the machine's
//!    port mapper as the lock manager. A machine has only one: if the kernel or another program
//!    already provides it, or without a port mapper, there is no service, and waiters resend their
//!    request every second.
//! 2. Any host may call. A call only makes a waiter ask the server.
//! 3. [`LIMITS`] bounds the cost of callers ([`serve`]).

use super::V3;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use weir_base::sync::Mutex;
use weir_nfs::nlm::{self, Procedure, Res, Status, TestArgs};
use weir_rpc::net::{self, ClientLimits, PortMapper, ServiceLimits, Source, answers, serve};
use weir_rpc::rpcbind::{self, TCP};
use weir_rpc::{AcceptStatus, CallHeader, answer};
use weir_xdr::{Decoder, Encoder};

/// Limits for callers.
const LIMITS: ServiceLimits = ServiceLimits {
    connections: 64,
    record_bytes: 8192,
    // Longer than lock managers keep their connections.
    idle: Duration::from_secs(600),
    deadline: Duration::from_secs(30),
};
/// Limits for this machine's programs.
const LOCAL: ClientLimits =
    ClientLimits { deadline: Duration::from_secs(2), ..ClientLimits::SMALL };

/// The service and its mounts, while there are any.
static SERVICE: Mutex<Option<Service>> = Mutex::new(None);
/// Held while the service is started or stopped.
static CHANGING: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

struct Service {
    mounts: Vec<Weak<V3>>,
    stop: oneshot::Sender<()>,
    thread: std::thread::JoinHandle<()>,
}

/// A mount's registration with the service.
pub(super) struct Hearing {
    mount: Weak<V3>,
}

impl Hearing {
    /// Registers the mount for callbacks; `None` if this machine has no place for the service.
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

    /// Unregisters the mount; the last one stops the service.
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
            // It may have stopped by itself.
            let _ = stop.send(());
            let _ = tokio::task::spawn_blocking(move || thread.join()).await;
        }
    }
}

fn join(mount: &Weak<V3>) -> bool {
    SERVICE.lock().as_mut().map(|service| service.mounts.push(Weak::clone(mount))).is_some()
}

/// Starts the service on its own thread, as a mount's executor may end before others do.
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
                Err(why) => drop(started.send(Err(why.to_string()))),
            }
        });
    };
    let thread = std::thread::Builder::new().name("weir-nlm".into()).spawn(serve);
    let thread = thread.map_err(|error| error.to_string())?;
    starting.await.unwrap_or_else(|_| Err("its thread ended".into()))?;
    Ok(Service { mounts: Vec::new(), stop, thread })
}

/// Why the service cannot run.
#[derive(Debug, thiserror::Error)]
enum Unavailable {
    #[error("another lock manager of this machine is at port {0}")]
    Taken(u16),
    #[error("the port mapper does not register it")]
    Refused,
    #[error("{0}")]
    Local(#[from] io::Error),
    #[error("the port mapper cannot be asked: {0}")]
    Mapper(#[from] net::Error),
}

/// A socket registered with the port mapper.
struct Listening(TcpListener);

impl Listening {
    async fn begin() -> Result<Self, Unavailable> {
        let mut mapper = connect_to_mapper().await?;
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).await?;
        if let Some(other) = mapper.port_of(nlm::ID).await? {
            if answers(local(other), Source::RESERVED, nlm::ID, LOCAL).await {
                return Err(Unavailable::Taken(other));
            }
            tracing::debug!("the lock manager at port {other} does not answer: unregistering it");
            mapper.unset(nlm::ID).await?;
        }
        match mapper.set(nlm::ID, TCP, listener.local_addr()?.port()).await? {
            true => Ok(Self(listener)),
            false => Err(Unavailable::Refused),
        }
    }

    async fn serve(self, stopped: oneshot::Receiver<()>) {
        tokio::select! {
            never = serve(self.0, LIMITS, |call| answer(call, nlm::ID, execute)) => match never {},
            _ = stopped => {}
        }
        let unset = async { connect_to_mapper().await?.unset(nlm::ID).await };
        if let Err::<_, net::Error>(error) = unset.await {
            tracing::debug!("{error}");
        }
    }
}

async fn connect_to_mapper() -> Result<PortMapper, net::Error> {
    PortMapper::connect(local(rpcbind::PORT), Source::RESERVED, LOCAL).await
}

fn local(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

/// Executes a call: decodes its arguments, and encodes its results.
fn execute(header: &CallHeader, d: &mut Decoder, e: &mut Encoder) -> Result<(), AcceptStatus> {
    match Procedure::from_number(header.procedure) {
        Some(Procedure::Null) => {}
        Some(asked @ (Procedure::Granted | Procedure::GrantedMsg)) => {
            let args: TestArgs = d.get()?;
            let (mount, status) = tell(&args.lock);
            let res = Res { cookie: args.cookie, status };
            if asked == Procedure::Granted {
                e.put(&res);
            } else if let Some(mount) = mount {
                tokio::spawn(async move { mount.answer_grant(res).await });
            }
        }
        _ => return Err(AcceptStatus::ProcUnavail),
    }
    Ok(())
}

/// Tells the waiters that their lock is granted.
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
    use weir_rpc::OpaqueAuth;
    use weir_xdr::Opaque;

    fn call(procedure: u32, args: &[u8]) -> (Result<(), AcceptStatus>, Decoder) {
        let header = CallHeader {
            xid: 7,
            program: nlm::PROGRAM,
            version: nlm::VERSION,
            procedure,
            cred: OpaqueAuth::NONE,
            verf: OpaqueAuth::NONE,
        };
        let (mut d, mut e) = (Decoder::new(args.to_vec().into()), Encoder::new());
        let executed = execute(&header, &mut d, &mut e);
        (executed, Decoder::new(e.finish().to_bytes()))
    }

    #[test]
    fn granted_without_a_waiter_is_denied_and_an_unknown_procedure_refused() {
        let lock = nlm::Lock {
            caller: Opaque::copy_from(b"server"),
            file: Opaque::copy_from(b"handle"),
            owner: Opaque::copy_from(b"another owner"),
            process: 1,
            offset: 0,
            length: 0,
        };
        let cookie = Opaque::copy_from(b"cookie");
        let args = TestArgs { cookie: cookie.clone(), exclusive: true, lock };
        let mut e = Encoder::new();
        e.put(&args);
        let args = e.finish().to_bytes();
        let (executed, mut results) = call(5, &args);
        assert_eq!(executed, Ok(()));
        assert_eq!(results.get(), Ok(Res { cookie, status: Status::Denied }));
        assert_eq!(call(0, &[]).0, Ok(()));
        assert_eq!(call(2, &[]).0, Err(AcceptStatus::ProcUnavail));
        assert_eq!(call(99, &[]).0, Err(AcceptStatus::ProcUnavail));
        assert_eq!(call(10, &args[..20]).0, Err(AcceptStatus::GarbageArgs));
    }
}
