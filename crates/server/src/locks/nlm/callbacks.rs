//! Calls to hosts: GRANTED for locks that they wait for, and the _RES calls of asynchronous
//! procedures.
//!
//! 1. Each host has its own task, so a host that does not answer delays no other. The task ends
//!    after it has been idle for a while.
//! 2. The server repeats a GRANTED call until the host has answered, for at most
//!    [`GRANT_PATIENCE`]. A host that refuses the lock or cannot be reached loses it, unless an
//!    earlier attempt may have reached it: then it may rely on the lock.
//! 3. At most [`MAX_ANSWERS`] answers wait for a host, and peers share the memory of all
//!    ([`ANSWER_BYTES`]). The server drops further ones; a host repeats unanswered requests. The
//!    tables in `state` bound the waiting grants.
//! 4. Peers share the connections ([`CONNECTIONS`]); a host for which none is free waits.

use crate::admission::{self, Quota, Share, Taken};
use crate::locks::host_network::{HostAccess, HostProgram};
use crate::services::Services;
use crate::state::GrantedLock;
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::{Arc, Weak};
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
/// Memory of all waiting answers.
const ANSWER_BYTES: usize = 16 << 20;
/// What an answer counts besides its length, because it may need a queue and a task.
const ANSWER_OVERHEAD_BYTES: usize = 4 << 10;
/// Connections to all hosts.
pub(super) const CONNECTIONS: usize = 1024;
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
    Answer(Answer),
}

struct Answer {
    procedure: Procedure,
    results: Bytes,
    /// The part of its peer's share.
    _memory: Taken,
}

/// The shares of a peer, which may be many hosts ([`admission::host`]).
struct PeerShares {
    answer_bytes: Arc<Share>,
    connections: Arc<Share>,
}

#[derive(Default)]
struct Queue {
    messages: VecDeque<Message>,
    more: Arc<Notify>,
}

/// The queued calls to all hosts.
pub(crate) struct HostCalls {
    queues: Mutex<HashMap<Route, Queue>>,
    answer_bytes: Arc<Quota>,
    connections: Arc<Quota>,
    /// By the address that is counted.
    peers: Mutex<HashMap<IpAddr, Weak<PeerShares>>>,
    hosts: HostAccess,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl HostCalls {
    pub(crate) fn new(hosts: HostAccess, stop: CancellationToken) -> Arc<Self> {
        Arc::new(Self {
            queues: Mutex::default(),
            answer_bytes: Quota::new(ANSWER_BYTES),
            connections: Quota::new(CONNECTIONS),
            peers: Mutex::default(),
            hosts,
            tasks: TaskTracker::new(),
            stop,
        })
    }

    /// The shares of a host's peer.
    fn shares_of(&self, host: IpAddr) -> Arc<PeerShares> {
        let mut peers = self.peers.lock();
        let peer = admission::host(host);
        if let Some(known) = peers.get(&peer).and_then(Weak::upgrade) {
            return known;
        }
        peers.retain(|_, used| used.strong_count() > 0);
        let shares = Arc::new(PeerShares {
            answer_bytes: self.answer_bytes.share(),
            connections: self.connections.share(),
        });
        peers.insert(peer, Arc::downgrade(&shares));
        shares
    }

    /// Queues the GRANTED call for a lock.
    pub(super) fn tell(self: &Arc<Self>, services: &Arc<Services>, granted: GrantedLock) {
        let route = Route { host: granted.owner.host, server: granted.to.server };
        self.send(services, route, self.shares_of(route.host), Message::Granted(granted));
    }

    /// Queues the _RES call that answers an asynchronous procedure.
    pub(super) fn answer(
        self: &Arc<Self>,
        services: &Arc<Services>,
        route: Route,
        procedure: Procedure,
        results: Bytes,
    ) {
        let shares = self.shares_of(route.host);
        let Some(memory) = shares.answer_bytes.try_take(results.len() + ANSWER_OVERHEAD_BYTES)
        else {
            return debug!("{}: dropping an answer: too many wait for its peer", route.host);
        };
        let answer = Answer { procedure, results, _memory: memory };
        self.send(services, route, shares, Message::Answer(answer));
    }

    /// Waits until all tasks have ended, after the server was told to stop.
    pub(crate) async fn stopped(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }

    fn send(
        self: &Arc<Self>,
        services: &Arc<Services>,
        route: Route,
        shares: Arc<PeerShares>,
        message: Message,
    ) {
        let mut queues = self.queues.lock();
        let is_answer = matches!(message, Message::Answer(..));
        match queues.get_mut(&route) {
            Some(queue) if is_answer && queue.messages.len() >= MAX_ANSWERS => {
                debug!("{}: dropping an answer: too many wait for this host", route.host);
            }
            Some(queue) => {
                queue.messages.push_back(message);
                queue.more.notify_one();
            }
            None => {
                let mut queue = Queue::default();
                queue.messages.push_back(message);
                let caller = Caller {
                    callbacks: self.clone(),
                    services: services.clone(),
                    route,
                    shares,
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
    /// Lives as long as what the queue's messages and the connection take of it.
    shares: Arc<PeerShares>,
    more: Arc<Notify>,
    connection: Option<Connection>,
}

struct Connection {
    program: HostProgram,
    /// The part of its peer's share.
    _one: Taken,
}

/// How a host is reached.
enum Way {
    Open(Box<Connection>),
    New(Taken),
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
                Some(Message::Answer(answer)) => self.answer(answer).await,
                // Without a connection, the task waits for nothing.
                None if self.connection.is_none() => {
                    if self.leave() {
                        return;
                    }
                }
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
        let args = self.granted_args(granted);
        let mut begun = Instant::now();
        let (mut may_know, mut pause) = (false, *PAUSE.start());
        loop {
            let host = self.route.host;
            let asked = Instant::now();
            let way = self.way().await;
            // That others use the connections of the peer is not the host's failure.
            begun += asked.elapsed();
            let left = GRANT_PATIENCE.saturating_sub(begun.elapsed());
            let connected = timeout(left, self.connected(way)).await;
            // The host may have given the lock up while the connection was made, and may want it again by now.
            if !self.services.state.lock().nlm_is_granting(number) {
                self.connection = connected.ok().and_then(Result::ok);
                return;
            }
            let answer = match connected {
                Ok(Ok(connection)) => self.call_over(connection, Procedure::Granted, &args).await,
                Ok(Err(failed)) => Err(failed),
                Err(_) => Err(Failed { error: net::Error::TimedOut(GRANT_PATIENCE), sent: false }),
            };
            match answer {
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
    async fn answer(&mut self, answer: Answer) {
        let procedure = answer.procedure;
        for _ in 0..2 {
            match self.call::<()>(procedure, &Raw(&answer.results)).await {
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
        let way = self.way().await;
        let connection = self.connected(way).await?;
        self.call_over(connection, procedure, args).await
    }

    async fn call_over<R: Decode>(
        &mut self,
        mut connection: Connection,
        procedure: Procedure,
        args: &(impl Encode + Sync),
    ) -> Result<R, Failed> {
        let result = connection.program.call(nlm::ID, procedure as u32, args).await;
        let result = result.map_err(|error| Failed { error, sent: true })?;
        self.connection = Some(connection);
        Ok(result)
    }

    /// The connection of the last call, or else a part of the peer's share for a new one. Waits for it without a limit.
    async fn way(&mut self) -> Way {
        match self.connection.take() {
            Some(connection) => Way::Open(Box::new(connection)),
            None => Way::New(self.shares.connections.take(1).await),
        }
    }

    async fn connected(&self, way: Way) -> Result<Connection, Failed> {
        match way {
            Way::Open(connection) => Ok(*connection),
            Way::New(one) => self.connect(one).await.map_err(|error| Failed { error, sent: false }),
        }
    }

    async fn connect(&self, one: Taken) -> Result<Connection, net::Error> {
        let Route { host, server } = self.route;
        let (source, limits) = (Source::address(server), ClientLimits::SMALL);
        let client = self.callbacks.hosts.find(host, source, nlm::ID, limits).await?;
        let name = rustix::system::uname();
        let name = name.nodename().to_bytes();
        let auth = AuthSys { machine_name: name.into(), ..AuthSys::default() };
        Ok(Connection { program: client.with_cred(OpaqueAuth::from(&auth)), _one: one })
    }
}

/// Encoded results.
struct Raw<'a>(&'a Bytes);

impl Encode for Raw<'_> {
    fn encode(&self, e: &mut Encoder) {
        e.raw(self.0);
    }
}
