//! Restart notifications (NSM version 1): clients notify this server of their restart, and the
//! server frees their locks; the server notifies clients of its own restart, and they reclaim their
//! locks.
//!
//! This implements only the part of a status monitor that the lock manager needs: it monitors hosts
//! for no other program, so MON fails. A machine that also mounts NFSv3 itself needs its own
//! `rpc.statd`, and may keep it.
//!
//! 1. A notice frees only the locks of the address that it comes from, and only if it comes from a
//!    port that only the host's superuser may bind
//!    ([`ServerConfig::notice_ports_below`](crate::ServerConfig)). On this machine the superuser or
//!    the server's own user must own the sending socket, because any user may be allowed to bind
//!    these ports.
//! 2. A connection proves where it comes from, a datagram does not. After a datagram, the server
//!    asks the host's status monitor over a connection for its current state number (SM_STAT), and
//!    frees the locks if it is not the number under which they were taken. If that one is not
//!    known, the current number must be that of the notice.
//! 3. A host that does not answer keeps its locks. The server asks it for [`CONFIRM_PATIENCE`], and
//!    once more when it requests a lock, because Linux runs its status monitor by then; if that
//!    fails, too, the notice is dropped. One task asks each host, for at most [`MAX_QUERIES`] hosts
//!    at a time, and only hosts with locks: datagrams cannot make the server call other hosts.
//!    While a notice is undecided, the host gets no lock, because the answer could free it along
//!    with those of the host's earlier run ([`Nsm1::settle`]).
//! 4. The server's state number is odd and increases with each run: it is computed from the run
//!    number.
//! 5. The server repeats its own notice to a host that does not answer for [`NOTIFY_PATIENCE`]. It
//!    notifies at most [`MAX_TELLING`] hosts at a time, so such a host does not hold up the others.

use crate::admission::Origin;
use crate::locks::host_network::HostAccess;
use crate::locks::in_progress::RequestsInProgress;
use crate::peer::Peer;
use crate::program::{Call, Program, ProgramId, Refusal};
use crate::state::{self, LockHost};
use async_trait::async_trait;
use futures_util::{StreamExt, stream};
use parking_lot::Mutex;
use socket2::{Domain, Socket, Type};
use std::collections::HashSet;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::UdpSocket;
use tokio::sync::{Notify, Semaphore};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};
use weir_base::Clock;
use weir_nfs::nsm::{
    self, Mon, MonId, MyId, Outcome, Procedure, StatChange, StatName, StatRes, State,
};
use weir_pagecache::File;
use weir_rpc::net::{ClientLimits, Source};
use weir_rpc::{RECORD_HEADER_BYTES, answer};
use weir_xdr::{Bytes, Decoder, Encoder, Opaque};

/// Limits for calls to a host.
const LIMITS: ClientLimits = ClientLimits::SMALL;
/// How long a lock request waits for the host's answer.
const PATIENCE: Duration = LIMITS.deadline;
/// How long the server tries to notify hosts of its restart.
const NOTIFY_PATIENCE: Duration = Duration::from_secs(15 * 60);
/// Pauses between attempts.
const PAUSE: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(500)..=Duration::from_secs(30);
/// How long the server tries to ask a host whether it has restarted.
const CONFIRM_PATIENCE: Duration = Duration::from_secs(60);
/// Maximum number of hosts asked at a time.
const MAX_QUERIES: usize = 64;
/// Maximum number of hosts notified at a time.
const MAX_TELLING: usize = 64;
/// Longest datagram accepted: an RPC header, a name and a number.
const MAX_DATAGRAM_BYTES: usize = 2048;

/// The NSM state number of a run.
fn number_of(run: u32) -> i32 {
    (run.wrapping_mul(2).wrapping_sub(1) & 0x7fff_ffff).cast_signed()
}

/// NSM version 1.
pub(crate) struct Nsm1 {
    /// The number of this run of the server.
    run: u32,
    clock: Arc<dyn Clock>,
    queries: Arc<HostQueries>,
    /// Requests of hosts for locks, which a notice over a connection ends.
    pub(super) requests: RequestsInProgress,
}

/// What the status monitor needs to check notices.
pub(crate) struct Confirm {
    pub(crate) state: Arc<Mutex<state::State<File>>>,
    pub(crate) hosts: HostAccess,
    /// Only notices from ports below this are accepted.
    pub(crate) ports_below: u16,
    pub(crate) stop: CancellationToken,
}

/// Asks hosts for their state numbers.
struct HostQueries {
    confirm: Confirm,
    /// Hosts that are being asked after a notice.
    confirming: Mutex<HashSet<IpAddr>>,
    /// Hosts that are being asked because they request a lock.
    settling: Mutex<HashSet<IpAddr>>,
    /// Notified when a host in `settling` has been asked.
    settled: Notify,
    permits: Semaphore,
}

impl HostQueries {
    /// Asks a host's status monitor for its state number.
    async fn ask(&self, host: IpAddr) -> io::Result<i32> {
        // The semaphore is never closed.
        let _permit = self.permits.acquire().await.map_err(io::Error::other)?;
        let found = self.confirm.hosts.find(host, Source::ANY, nsm::ID, LIMITS);
        let mut client = found.await?;
        // Some status monitors answer only for names that they can resolve.
        let name = StatName { name: "localhost".into() };
        match client.call(nsm::ID, Procedure::Stat as u32, &name).await? {
            StatRes { state: 0, .. } => Err(io::Error::other("its status monitor has no number")),
            StatRes { state, .. } => Ok(state),
        }
    }

    /// Records the state number of a host that begins to take locks.
    async fn learn(&self, host: IpAddr) {
        match self.ask(host).await {
            Ok(run) => self.confirm.state.lock().nlm_note_run(host, Some(run)),
            Err(error) => debug!("{host}: cannot query its NSM state number: {error}"),
        }
    }

    /// Checks a datagram's claim that a host has restarted, and frees its locks if so.
    async fn confirm(&self, host: IpAddr) {
        let (begun, mut pause) = (Instant::now(), *PAUSE.start());
        while self.confirm.state.lock().nlm_is_doubted(host) {
            match self.ask(host).await {
                Ok(run) => return self.answered(host, run),
                Err(error) if begun.elapsed() > CONFIRM_PATIENCE => {
                    return warn!(
                        "{host}: a notice says that it has restarted, but its status monitor cannot be queried: \
                         {error}; its NLM locks are kept, and it is asked again when it requests another \
                         (run rpc.statd there, and let this server reach it)"
                    );
                }
                Err(error) => debug!("{host}: cannot query whether it has restarted: {error}"),
            }
            sleep(pause).await;
            pause = (pause * 2).min(*PAUSE.end());
        }
    }

    /// Handles the answer of a host whose restart is in doubt.
    fn answered(&self, host: IpAddr, run: i32) {
        let settled = self.confirm.state.lock().nlm_settle(host, run);
        match settled {
            Some(true) => info!("{host} has restarted (state {run}): its NLM locks are freed"),
            // Linux's rpc.statd reads the number when it starts, which may be before sm-notify
            // increments it.
            Some(false) => warn!(
                "{host}: a notice says that it has restarted, but its status monitor says that it has not (state {run}); \
                 its NLM locks are kept (if it has, restart rpc.statd there, then run sm-notify -f)"
            ),
            None => {}
        }
    }

    /// Asks a host that requests a lock, if its restart is in doubt. A host that does not answer
    /// keeps its locks. Waits if another request is asking already.
    async fn settle(&self, host: IpAddr) {
        let until = Instant::now() + PATIENCE;
        loop {
            let settled = self.settled.notified();
            tokio::pin!(settled);
            // Registered before the check, so that no notification in between is missed.
            settled.as_mut().enable();
            if !self.confirm.state.lock().nlm_is_doubted(host) {
                return;
            }
            if self.settling.lock().insert(host) {
                let _settling = Settling { queries: self, host };
                match timeout(PATIENCE, self.ask(host)).await {
                    Ok(Ok(run)) => return self.answered(host, run),
                    failed => {
                        let error = failed.map_or_else(io::Error::from, |asked| {
                            asked.err().unwrap_or_else(|| io::ErrorKind::Other.into())
                        });
                        warn!(
                            "{host}: a notice says that it has restarted, but its status monitor cannot be queried: \
                             {error}; its NLM locks are kept"
                        );
                        return self.confirm.state.lock().nlm_keep(host);
                    }
                }
            }
            if timeout_at(until, settled).await.is_err() {
                return;
            }
        }
    }
}

/// A host in `settling`.
struct Settling<'a> {
    queries: &'a HostQueries,
    host: IpAddr,
}

impl Drop for Settling<'_> {
    fn drop(&mut self) {
        self.queries.settling.lock().remove(&self.host);
        self.queries.settled.notify_waiters();
    }
}

/// A host in `confirming`.
struct Confirming {
    queries: Arc<HostQueries>,
    host: IpAddr,
}

impl Drop for Confirming {
    fn drop(&mut self) {
        self.queries.confirming.lock().remove(&self.host);
    }
}

impl Nsm1 {
    pub(crate) fn new(run: u32, clock: Arc<dyn Clock>, confirm: Confirm) -> Self {
        let (confirming, settling) = (Mutex::default(), Mutex::default());
        let (settled, permits) = (Notify::new(), Semaphore::new(MAX_QUERIES));
        Self {
            run,
            clock,
            queries: Arc::new(HostQueries { confirm, confirming, settling, settled, permits }),
            requests: RequestsInProgress::default(),
        }
    }

    /// Called when a host takes a lock: asks for its state number, unless that is known or was
    /// asked for recently.
    pub(crate) fn learn(&self, host: IpAddr) {
        let now = self.clock.monotonic();
        if self.queries.confirm.state.lock().nlm_asks_run(host, now) {
            let queries = self.queries.clone();
            tokio::spawn(async move {
                tokio::select! {
                    () = queries.confirm.stop.cancelled() => {}
                    () = queries.learn(host) => {}
                }
            });
        }
    }

    /// Whether a host may have something to release: it is known to NLM, or is requesting a lock.
    pub(crate) fn may_release(&self, host: IpAddr) -> bool {
        self.queries.confirm.state.lock().nlm_run_of(host).is_some()
            || self.requests.has_any_of(host)
    }

    /// Handles a host's statement over a connection that it has restarted or needs no locks: frees
    /// its locks.
    pub(crate) fn noticed_by_connection(&self, from: &Peer, what: &str) {
        let host = from.addr().ip().to_canonical();
        if self.may_release(host)
            && self.counts(from.addr())
            && is_of_host(from.addr(), from.origin())
        {
            info!("{host} reports that it {what}: its NLM locks are freed");
            self.requests.overtake_all_of(host);
            let mut state = self.queries.confirm.state.lock();
            state.nlm_free(host);
            state.nlm_note_run(host, None);
        }
    }

    /// Handles a datagram that says that a host has restarted.
    async fn noticed_by_datagram(&self, from: SocketAddr, noticed: i32) {
        let host = from.ip().to_canonical();
        let has_locks = self.queries.confirm.state.lock().nlm_run_of(host).is_some();
        if !has_locks
            || !self.counts(from)
            || !is_of_host(from, Origin::of_datagram(from).await)
            || !self.queries.confirm.state.lock().nlm_doubt(host, noticed)
            || !self.queries.confirming.lock().insert(host)
        {
            return;
        }
        let confirming = Confirming { queries: self.queries.clone(), host };
        tokio::spawn(async move {
            let queries = &confirming.queries;
            tokio::select! {
                () = queries.confirm.stop.cancelled() => {}
                () = queries.confirm(host) => {}
            }
        });
    }

    /// Called before a host takes a lock: if its restart is in doubt, asks the host.
    pub(crate) async fn settle(&self, host: IpAddr) {
        self.queries.settle(host).await;
    }

    /// Whether a host is being asked after a notice.
    #[cfg(test)]
    pub(crate) fn is_asking(&self, host: IpAddr) -> bool {
        self.queries.confirming.lock().contains(&host)
    }

    /// Whether the server is executing a host's request for a lock.
    #[cfg(test)]
    pub(crate) fn has_requests_of(&self, host: IpAddr) -> bool {
        self.requests.has_any_of(host)
    }

    /// Whether a notice comes from a port that only the host's superuser may bind.
    fn counts(&self, from: SocketAddr) -> bool {
        let counts = from.port() < self.queries.confirm.ports_below;
        if !counts {
            warn!("{from}: ignoring a restart notice: it does not come from a privileged port");
        }
        counts
    }

    /// Serves datagrams at the address of the TCP listener, because Linux sends its notices by UDP.
    /// With `only_v6`, the socket does not accept IPv4 as well.
    pub(crate) async fn listen(self: Arc<Self>, address: SocketAddr, only_v6: bool) {
        let socket = match bind(address, only_v6) {
            Ok(socket) => socket,
            Err(error) => {
                return warn!(
                    "cannot receive restart notices of clients by UDP at {address}: {error}"
                );
            }
        };
        let mut buffer = [0; MAX_DATAGRAM_BYTES];
        loop {
            match socket.recv_from(&mut buffer).await {
                Ok((len, from)) => {
                    let datagram = Bytes::copy_from_slice(&buffer[..len]);
                    let mut noticed = None;
                    let reply = self.answer(datagram, &mut noticed);
                    if let Some(run) = noticed {
                        self.noticed_by_datagram(from, run).await;
                    }
                    if let Some(reply) = reply
                        && let Err(error) = socket.send_to(&reply, from).await
                    {
                        debug!("{from}: {error}");
                    }
                }
                // For example, the ICMP error for an earlier reply.
                Err(error) => {
                    debug!("a datagram: {error}");
                    sleep(*PAUSE.start()).await;
                }
            }
        }
    }

    /// The reply to a call. Sets `noticed` to the state number that a notice carries.
    fn answer(&self, datagram: Bytes, noticed: &mut Option<i32>) -> Option<Bytes> {
        let reply = answer(datagram, nsm::ID, |header, args, reply| {
            self.execute(header.procedure, args, reply, |run| *noticed = Some(run))
        })?;
        // Datagrams have no record mark.
        Some(reply.to_bytes().slice(RECORD_HEADER_BYTES..))
    }

    fn execute(
        &self,
        number: u32,
        args: &mut Decoder,
        results: &mut Encoder,
        noticed: impl FnOnce(i32),
    ) -> Result<(), Refusal> {
        let procedure = Procedure::from_number(number).ok_or(Refusal::NoSuchProcedure)?;
        let state = number_of(self.run);
        let not_monitored = StatRes { outcome: Outcome::Failure, state };
        match procedure {
            Procedure::Null | Procedure::SimuCrash => {}
            Procedure::Stat => {
                let _: StatName = args.get()?;
                results.put(&not_monitored);
            }
            Procedure::Mon => {
                let _: Mon = args.get()?;
                results.put(&not_monitored);
            }
            Procedure::Unmon => {
                let _: MonId = args.get()?;
                results.put(&State { state });
            }
            Procedure::UnmonAll => {
                let _: MyId = args.get()?;
                results.put(&State { state });
            }
            Procedure::Notify => {
                // The name is only what the host calls itself.
                let StatChange { state, .. } = args.get()?;
                noticed(state);
            }
        }
        Ok(())
    }
}

#[async_trait]
impl Program for Nsm1 {
    fn id(&self) -> ProgramId {
        nsm::ID
    }

    async fn call(self: Arc<Self>, mut call: Call, mut reply: Encoder) -> Result<Encoder, Refusal> {
        let noticed = |run| {
            let what = format!("has restarted (state {run})");
            self.noticed_by_connection(&call.peer, &what);
        };
        self.execute(call.header.procedure, &mut call.args, &mut reply, noticed)?;
        Ok(reply)
    }
}

/// Whether the sender of a notice may speak for its host, as far as this machine can verify.
fn is_of_host(from: SocketAddr, origin: Origin) -> bool {
    let speaks = origin.speaks_for_machine();
    if !speaks {
        warn!("{from}: ignoring a restart notice: it comes from {origin}");
    }
    speaks
}

/// The notices of this server's restart.
pub(crate) struct Restart {
    run: u32,
    hosts: Vec<LockHost>,
    access: HostAccess,
}

impl Restart {
    pub(crate) fn new(run: u32, hosts: Vec<LockHost>, access: HostAccess) -> Self {
        Self { run, hosts, access }
    }

    /// Notifies hosts that had locks, so that they reclaim them.
    pub(crate) async fn tell(self: Arc<Self>) {
        let mut waiting: Vec<LockHost> = self.hosts.clone();
        let (begun, mut pause) = (Instant::now(), *PAUSE.start());
        while !waiting.is_empty() && begun.elapsed() < NOTIFY_PATIENCE {
            let told = stream::iter(waiting.into_iter().map(|host| self.tell_one(host)));
            let told: Vec<Option<LockHost>> = told.buffer_unordered(MAX_TELLING).collect().await;
            waiting = told.into_iter().flatten().collect();
            sleep(pause).await;
            pause = (pause * 2).min(*PAUSE.end());
        }
        for LockHost { host, .. } in waiting {
            warn!(
                "{host}: cannot notify it of the restart; it may believe that it still holds its locks"
            );
        }
    }

    /// Notifies one host. Returns the host if this failed and must be repeated.
    async fn tell_one(&self, told: LockHost) -> Option<LockHost> {
        match self.notify(told).await {
            Ok(()) => {
                debug!("{}: notified of the restart", told.host);
                None
            }
            Err(error) => {
                debug!("{}: cannot notify it of the restart: {error}", told.host);
                Some(told)
            }
        }
    }

    async fn notify(&self, LockHost { host, server }: LockHost) -> io::Result<()> {
        let source = Source::address(server);
        let mut client = self.access.find(host, source, nsm::ID, LIMITS).await?;
        let name = Opaque::copy_from(rustix::system::uname().nodename().to_bytes());
        let change = StatChange { name, state: number_of(self.run) };
        Ok(client.call(nsm::ID, Procedure::Notify as u32, &change).await?)
    }
}

fn bind(address: SocketAddr, only_v6: bool) -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, None)?;
    if only_v6 {
        socket.set_only_v6(true)?;
    }
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    UdpSocket::from_std(socket.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_numbers_are_odd_and_increase() {
        assert_eq!([1, 2, 3].map(number_of), [1, 3, 5]);
        assert!(number_of(u32::MAX) > 0);
    }
}
