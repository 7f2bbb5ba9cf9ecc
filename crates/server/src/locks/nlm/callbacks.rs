//! Calling hosts back: that a lock which they wait for is theirs, and the second halves of calls
//! that come in two.
//!
//! 1. A host that does not answer delays no other: it has a task of its own, which ends
//!    when there was nothing to say for a while.
//! 2. A grant is repeated until the host has answered, for [`GRANT_PATIENCE`] at most. A host that
//!    refuses it, or cannot be reached, loses it; but not where an earlier attempt may have reached
//!    it, because it may rely on the lock by now.
//! 3. At most [`MAX_ANSWERS`] answers wait for a host; it repeats requests that were not answered.
//!    Grants that wait are bounded by the state's own tables.

use crate::services::Services;
use crate::state::Granted;
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, warn};
use weir_nfs::nlm::{self, Procedure, Res, Status, TestArgs};
use weir_rpc::net::{self, ClientLimits, PortMapper, RpcClient, Source};
use weir_rpc::{AuthSys, OpaqueAuth};
use weir_xdr::{Bytes, Decode, Encode, Encoder, Opaque};

/// How long a grant is repeated.
const GRANT_PATIENCE: Duration = Duration::from_secs(60);
/// Pauses between attempts.
const PAUSE: std::ops::RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(10);
/// How long a grant waits for a copy before others are told.
const COPY_PATIENCE: Duration = Duration::from_millis(500);
/// Most answers that wait for one host.
const MAX_ANSWERS: usize = 256;
/// Most hosts that answers wait for.
const MAX_HOSTS: usize = 1024;
/// How long a connection without use is kept: shorter than lock managers keep theirs, so that a
/// connection is not found dead by the call that matters.
const KEEP_CONNECTION: Duration = Duration::from_secs(5);

/// A host, and the address of this server that it knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Route {
    pub(crate) host: IpAddr,
    pub(crate) server: IpAddr,
}

enum Message {
    Granted(Granted),
    Answer(Procedure, Bytes),
}

#[derive(Default)]
struct Queue {
    messages: VecDeque<Message>,
    more: Arc<Notify>,
}

/// What hosts are to be told.
pub(crate) struct Callbacks {
    queues: Mutex<HashMap<Route, Queue>>,
    /// The port of hosts' port mappers.
    mapper_port: u16,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl Callbacks {
    pub(crate) fn new(mapper_port: u16, stop: CancellationToken) -> Arc<Self> {
        Arc::new(Self { queues: Mutex::default(), mapper_port, tasks: TaskTracker::new(), stop })
    }

    /// Tells a host that a lock is granted.
    pub(super) fn tell(self: &Arc<Self>, services: &Arc<Services>, granted: Granted) {
        let route = Route { host: granted.owner.host, server: granted.to.server };
        self.send(services, route, Message::Granted(granted));
    }

    /// Answers a call that came in halves.
    pub(super) fn answer(
        self: &Arc<Self>,
        services: &Arc<Services>,
        route: Route,
        procedure: Procedure,
        results: Bytes,
    ) {
        self.send(services, route, Message::Answer(procedure, results));
    }

    /// Waits for everybody's end, after the server was told to stop.
    pub(crate) async fn stopped(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }

    fn send(self: &Arc<Self>, services: &Arc<Services>, route: Route, message: Message) {
        let mut queues = self.queues.lock();
        let is_answer = matches!(message, Message::Answer(..));
        let hosts = queues.len();
        match queues.get_mut(&route) {
            Some(queue) if is_answer && queue.messages.len() >= MAX_ANSWERS => {
                debug!("{}: too many answers are waiting for it", route.host);
            }
            Some(queue) => {
                queue.messages.push_back(message);
                queue.more.notify_one();
            }
            None if is_answer && hosts >= MAX_HOSTS => {
                debug!("{}: answers wait for too many hosts already", route.host);
            }
            None => {
                let mut queue = Queue::default();
                queue.messages.push_back(message);
                let caller = Caller {
                    callbacks: self.clone(),
                    services: services.clone(),
                    route,
                    more: queue.more.clone(),
                    connection: None,
                };
                queues.insert(route, queue);
                let stop = self.stop.clone();
                self.tasks.spawn(async move {
                    tokio::select! {
                        () = stop.cancelled() => {}
                        () = caller.run() => {}
                    }
                });
            }
        }
    }
}

/// The task that calls one host.
struct Caller {
    callbacks: Arc<Callbacks>,
    services: Arc<Services>,
    route: Route,
    more: Arc<Notify>,
    connection: Option<RpcClient>,
}

/// A call that failed.
struct Failed {
    error: net::Error,
    /// It may have arrived.
    sent: bool,
}

impl Caller {
    async fn run(mut self) {
        loop {
            let next = self.next();
            match next {
                Some(Message::Granted(granted)) => self.grant(granted).await,
                Some(Message::Answer(procedure, results)) => self.answer(procedure, results).await,
                None => {
                    if timeout(KEEP_CONNECTION, self.more.notified()).await.is_err() && self.leave()
                    {
                        return;
                    }
                }
            }
        }
    }

    fn next(&self) -> Option<Message> {
        self.callbacks.queues.lock().get_mut(&self.route)?.messages.pop_front()
    }

    /// Gives the queue up if there is nothing in it.
    fn leave(&self) -> bool {
        let mut queues = self.callbacks.queues.lock();
        let empty = queues.get(&self.route).is_none_or(|queue| queue.messages.is_empty());
        if empty {
            queues.remove(&self.route);
        }
        empty
    }

    async fn grant(&mut self, granted: Granted) {
        let number = granted.number;
        if !self.services.state.lock().nlm_is_granting(number) {
            return;
        }
        // A copy may still write to the file under a lock that was taken away or given up. If its store
        // takes long, the host is told of other files first.
        if timeout(COPY_PATIENCE, self.services.copies.quiesce(granted.node)).await.is_err() {
            if let Some(queue) = self.callbacks.queues.lock().get_mut(&self.route) {
                queue.messages.push_back(Message::Granted(granted));
            }
            return;
        }
        let begun = Instant::now();
        let args = self.granted_args(granted);
        let (mut may_know, mut pause) = (false, *PAUSE.start());
        while self.services.state.lock().nlm_is_granting(number) {
            let host = self.route.host;
            match self.call::<Res>(Procedure::Granted, &args).await {
                Ok(Res { status: Status::DeniedGracePeriod, .. }) => {}
                Ok(Res { status, .. }) => {
                    let wants = status == Status::Granted || may_know;
                    debug!("{host}: a lock is granted: {status:?}");
                    return self.services.state.lock().nlm_acknowledged(number, wants);
                }
                Err(Failed { error, sent }) => {
                    may_know |= sent;
                    if begun.elapsed() > GRANT_PATIENCE {
                        warn!("{host}: cannot be told that a lock is granted: {error}");
                        return self.services.state.lock().nlm_acknowledged(number, may_know);
                    }
                    debug!("{host}: cannot be told that a lock is granted: {error}; again");
                }
            }
            sleep(pause).await;
            pause = (pause * 2).min(*PAUSE.end());
        }
    }

    fn granted_args(&self, granted: Granted) -> TestArgs {
        let Granted { number, owner, node, range, exclusive, to, .. } = granted;
        let lock = nlm::Lock {
            caller: Opaque(to.caller),
            file: Opaque::copy_from(&self.services.exports.seal(node)),
            owner: Opaque(owner.handle),
            process: owner.process,
            offset: range.start,
            length: range.nlm_length(),
        };
        // Some clients know the request by its cookie; it is told apart by the lock anyway.
        let cookie = if to.cookie.is_empty() {
            Opaque::copy_from(&number.to_be_bytes())
        } else {
            Opaque(to.cookie)
        };
        TestArgs { cookie, exclusive, lock }
    }

    /// Two attempts: the connection may have been one that the host had closed.
    async fn answer(&mut self, procedure: Procedure, results: Bytes) {
        for _ in 0..2 {
            match self.call::<()>(procedure, &Raw(&results)).await {
                Ok(()) => return,
                Err(Failed { error, .. }) => {
                    debug!("{}: {} failed: {error}", self.route.host, procedure.name());
                }
            }
        }
    }

    async fn call<R: Decode>(
        &mut self,
        procedure: Procedure,
        args: &(impl Encode + Sync),
    ) -> Result<R, Failed> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => self.connect().await.map_err(|error| Failed { error, sent: false })?,
        };
        let result = connection.call(nlm::ID, procedure as u32, args).await;
        let result = result.map_err(|error| Failed { error, sent: true })?;
        self.connection = Some(connection);
        Ok(result)
    }

    async fn connect(&self) -> Result<RpcClient, net::Error> {
        let Route { host, server } = self.route;
        let mapper = SocketAddr::new(host, self.callbacks.mapper_port);
        let source = Source::address(server);
        let client = PortMapper::find(mapper, source, nlm::ID, ClientLimits::SMALL).await?;
        let name = rustix::system::uname();
        let name = name.nodename().to_bytes();
        let auth = AuthSys { machine_name: name.into(), ..AuthSys::default() };
        Ok(client.with_cred(OpaqueAuth::from(&auth)))
    }
}

/// Results that are encoded already.
struct Raw<'a>(&'a Bytes);

impl Encode for Raw<'_> {
    fn encode(&self, e: &mut Encoder) {
        e.raw(self.0);
    }
}
