//! Calls to hosts: GRANTED for locks that they wait for, and the _RES calls of asynchronous
//! procedures.
//!
//! 1. Each host has its own task, so a host that does not answer delays no other. The task ends
//!    after it has been idle for a while.
//! 2. The server repeats a GRANTED call until the host has answered, for at most
//!    [`GRANT_PATIENCE`]. A host that refuses the lock or cannot be reached loses it, unless an
//!    earlier attempt may have reached it: then it may rely on the lock.
//! 3. At most [`MAX_ANSWERS`] answers wait for a host; a host repeats unanswered requests. The
//!    tables in `state` bound the waiting grants.

use crate::locks::host_network::{HostAccess, HostProgram};
use crate::services::Services;
use crate::state::GrantedLock;
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, warn};
use weir_nfs::nlm::{self, Procedure, Res, Status, TestArgs};
use weir_rpc::net::{self, ClientLimits, Source};
use weir_rpc::{AuthSys, OpaqueAuth};
use weir_xdr::{Bytes, Decode, Encode, Encoder, Opaque};

/// How long a GRANTED call is repeated.
const GRANT_PATIENCE: Duration = Duration::from_secs(60);
/// Pauses between attempts.
const PAUSE: std::ops::RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(10);
/// How long a grant waits for a background copy before the host's other grants are sent.
const COPY_PATIENCE: Duration = Duration::from_millis(500);
/// Maximum number of answers that wait for one host.
const MAX_ANSWERS: usize = 256;
/// Maximum number of hosts for which answers wait.
const MAX_HOSTS: usize = 1024;
/// How long an idle connection is kept. This is shorter than the idle limits of lock managers, so a
/// call rarely finds its connection closed.
const KEEP_CONNECTION: Duration = Duration::from_secs(5);

/// A host, and the address by which it reaches this server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Route {
    pub(crate) host: IpAddr,
    pub(crate) server: IpAddr,
}

enum Message {
    Granted(GrantedLock),
    Answer(Procedure, Bytes),
}

#[derive(Default)]
struct Queue {
    messages: VecDeque<Message>,
    more: Arc<Notify>,
}

/// The queued calls to all hosts.
pub(crate) struct HostCalls {
    queues: Mutex<HashMap<Route, Queue>>,
    hosts: HostAccess,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl HostCalls {
    pub(crate) fn new(hosts: HostAccess, stop: CancellationToken) -> Arc<Self> {
        Arc::new(Self { queues: Mutex::default(), hosts, tasks: TaskTracker::new(), stop })
    }

    /// Queues the GRANTED call for a lock.
    pub(super) fn tell(self: &Arc<Self>, services: &Arc<Services>, granted: GrantedLock) {
        let route = Route { host: granted.owner.host, server: granted.to.server };
        self.send(services, route, Message::Granted(granted));
    }

    /// Queues the _RES call that answers an asynchronous procedure.
    pub(super) fn answer(
        self: &Arc<Self>,
        services: &Arc<Services>,
        route: Route,
        procedure: Procedure,
        results: Bytes,
    ) {
        self.send(services, route, Message::Answer(procedure, results));
    }

    /// Waits until all tasks have ended, after the server was told to stop.
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
                debug!("{}: dropping an answer: too many wait for this host", route.host);
            }
            Some(queue) => {
                queue.messages.push_back(message);
                queue.more.notify_one();
            }
            None if is_answer && hosts >= MAX_HOSTS => {
                debug!("{}: dropping an answer: answers wait for too many hosts", route.host);
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
    callbacks: Arc<HostCalls>,
    services: Arc<Services>,
    route: Route,
    more: Arc<Notify>,
    connection: Option<HostProgram>,
}

/// A call that failed.
struct Failed {
    error: net::Error,
    /// The call may have arrived.
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

    /// Removes the queue if it is empty. Returns whether it did.
    fn leave(&self) -> bool {
        let mut queues = self.callbacks.queues.lock();
        let empty = queues.get(&self.route).is_none_or(|queue| queue.messages.is_empty());
        if empty {
            queues.remove(&self.route);
        }
        empty
    }

    async fn grant(&mut self, granted: GrantedLock) {
        let number = granted.number;
        if !self.services.state.lock().nlm_is_granting(number) {
            return;
        }
        // A background copy may still write to the file under a lock that was revoked or released.
        // If its store takes long, this grant goes to the end of the queue.
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
                    debug!("{host}: answered a grant: {status:?}");
                    return self.services.state.lock().nlm_acknowledged(number, wants);
                }
                Err(Failed { error, sent }) => {
                    may_know |= sent;
                    if begun.elapsed() > GRANT_PATIENCE {
                        warn!("{host}: cannot send the grant of a lock: {error}");
                        return self.services.state.lock().nlm_acknowledged(number, may_know);
                    }
                    debug!("{host}: cannot send the grant of a lock: {error}; retrying");
                }
            }
            sleep(pause).await;
            pause = (pause * 2).min(*PAUSE.end());
        }
    }

    fn granted_args(&self, granted: GrantedLock) -> TestArgs {
        let GrantedLock { number, owner, node, range, exclusive, to, .. } = granted;
        let lock = nlm::Lock {
            caller: Opaque(to.caller),
            file: Opaque::copy_from(&self.services.exports.seal(node)),
            owner: Opaque(owner.handle),
            process: owner.process,
            offset: range.start,
            length: range.nlm_length(),
        };
        // Some clients match the grant to their request by the cookie. The server does not need it.
        let cookie = if to.cookie.is_empty() {
            Opaque::copy_from(&number.to_be_bytes())
        } else {
            Opaque(to.cookie)
        };
        TestArgs { cookie, exclusive, lock }
    }

    /// Tries twice, because the host may have closed the first connection while it was idle.
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

    async fn connect(&self) -> Result<HostProgram, net::Error> {
        let Route { host, server } = self.route;
        let (source, limits) = (Source::address(server), ClientLimits::SMALL);
        let client = self.callbacks.hosts.find(host, source, nlm::ID, limits).await?;
        let name = rustix::system::uname();
        let name = name.nodename().to_bytes();
        let auth = AuthSys { machine_name: name.into(), ..AuthSys::default() };
        Ok(client.with_cred(OpaqueAuth::from(&auth)))
    }
}

/// Encoded results.
struct Raw<'a>(&'a Bytes);

impl Encode for Raw<'_> {
    fn encode(&self, e: &mut Encoder) {
        e.raw(self.0);
    }
}
