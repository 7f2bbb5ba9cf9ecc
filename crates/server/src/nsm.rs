//! Who restarted (NSM version 1): clients tell this server, which then frees their locks, and this
//! server tells clients, which then reclaim theirs.
//!
//! This is as much of a status monitor as the lock manager needs: it monitors for nobody else, so
//! MON fails. A host that mounts NFSv3 itself needs its own (`rpc.statd`), and may keep it.
//!
//! 1. A notice frees the locks of the address that it comes from, and of no other.
//! 2. The number of a run is odd and goes up with each: it is made of the state's own.
//! 3. A host that does not answer is told again and again for [`NOTIFY_PATIENCE`], and holds up
//!    nobody: at most [`MAX_TELLING`] are told at a time, each in turn.

use crate::outcall::Outcall;
use crate::program::{Call, Program, ProgramId, Refusal};
use crate::server::Core;
use crate::state::LockHost;
use async_trait::async_trait;
use futures_util::{StreamExt, stream};
use socket2::{Domain, Socket, Type};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::UdpSocket;
use tokio::time::{Instant, sleep};
use tracing::{debug, info, warn};
use weir_nfs::nsm::{
    self, Mon, MonId, MyId, Outcome, Procedure, StatChange, StatName, StatRes, State,
};
use weir_rpc::{AcceptStatus, CallHeader, ReplyHeader, VersionRange};
use weir_xdr::{Bytes, Decoder, Encoder, Opaque};

/// How long hosts are told of a restart.
const NOTIFY_PATIENCE: Duration = Duration::from_secs(15 * 60);
/// Pauses between attempts.
const PAUSE: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(500)..=Duration::from_secs(30);
/// Most hosts that are told at a time.
const MAX_TELLING: usize = 64;
/// The longest datagram that is read: a name and a number behind a header.
const MAX_DATAGRAM_BYTES: usize = 2048;

/// The number of a run, as status monitors count.
fn number_of(run: u32) -> i32 {
    (run.wrapping_mul(2).wrapping_sub(1) & 0x7fff_ffff).cast_signed()
}

/// NSM version 1.
pub(crate) struct Nsm1 {
    core: Arc<Core>,
}

impl Nsm1 {
    pub(crate) fn new(core: Arc<Core>) -> Self {
        Self { core }
    }

    /// Answers datagrams, which is how Linux tells of restarts, at the address that connections
    /// are taken at; with `only_v6`, not those of IPv4 as well.
    pub(crate) async fn listen(self: Arc<Self>, address: SocketAddr, only_v6: bool) {
        let socket = match bind(address, only_v6) {
            Ok(socket) => socket,
            Err(error) => {
                return warn!(
                    "cannot be told by datagrams that clients restart: UDP {address}: {error}"
                );
            }
        };
        let mut buffer = [0; MAX_DATAGRAM_BYTES];
        loop {
            match socket.recv_from(&mut buffer).await {
                Ok((len, from)) => {
                    let datagram = Bytes::copy_from_slice(&buffer[..len]);
                    if let Some(reply) = self.answer(from.ip(), datagram)
                        && let Err(error) = socket.send_to(&reply, from).await
                    {
                        debug!("{from}: {error}");
                    }
                }
                // An earlier reply was not wanted, say.
                Err(error) => {
                    debug!("a datagram: {error}");
                    sleep(*PAUSE.start()).await;
                }
            }
        }
    }

    fn answer(&self, from: IpAddr, datagram: Bytes) -> Option<Bytes> {
        let mut args = Decoder::new(datagram);
        let header = CallHeader::decode(&mut args).ok()?;
        let accepted = |status| ReplyHeader::accepted(header.xid, status);
        let mut reply = Encoder::new();
        let refused = match (header.program, header.version) {
            (nsm::PROGRAM, nsm::VERSION) => {
                reply.put(&accepted(AcceptStatus::Success));
                let results = self.execute(from, header.procedure, &mut args);
                match results {
                    Ok(results) => {
                        reply.raw(&results);
                        return Some(reply.finish().to_bytes());
                    }
                    Err(refusal) => refusal.header(header.xid),
                }
            }
            (nsm::PROGRAM, _) => accepted(AcceptStatus::ProgMismatch(VersionRange {
                low: nsm::VERSION,
                high: nsm::VERSION,
            })),
            _ => accepted(AcceptStatus::ProgUnavail),
        };
        let mut reply = Encoder::new();
        reply.put(&refused);
        Some(reply.finish().to_bytes())
    }

    fn execute(&self, from: IpAddr, number: u32, args: &mut Decoder) -> Result<Bytes, Refusal> {
        let procedure = Procedure::from_number(number).ok_or(Refusal::NoSuchProcedure)?;
        let state = number_of(self.core.run);
        let not_monitored = StatRes { outcome: Outcome::Failure, state };
        let mut results = Encoder::new();
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
                let StatChange { name, state } = args.get()?;
                let name = String::from_utf8_lossy(&name).escape_debug().to_string();
                let host = from.to_canonical();
                info!(
                    "{host} ({name}) says that it has restarted (run {state}): its locks by NLM are freed"
                );
                self.core.state.lock().nlm_free(host);
            }
        }
        Ok(results.finish().to_bytes())
    }
}

#[async_trait]
impl Program for Nsm1 {
    fn id(&self) -> ProgramId {
        ProgramId { program: nsm::PROGRAM, version: nsm::VERSION }
    }

    async fn call(self: Arc<Self>, mut call: Call, mut reply: Encoder) -> Result<Encoder, Refusal> {
        let from = call.peer.addr().ip();
        reply.raw(&self.execute(from, call.header.procedure, &mut call.args)?);
        Ok(reply)
    }
}

/// The news of this server's restart.
pub(crate) struct Restart {
    run: u32,
    hosts: Vec<LockHost>,
    /// The port of hosts' port mappers.
    mapper_port: u16,
}

impl Restart {
    pub(crate) fn new(run: u32, hosts: Vec<LockHost>, mapper_port: u16) -> Self {
        Self { run, hosts, mapper_port }
    }

    /// Tells hosts that had locks, so that they claim them back.
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
            warn!("{host}: cannot be told of the restart; it may think that it still has locks");
        }
    }

    /// Gives a host back that has to be told again.
    async fn tell_one(&self, told: LockHost) -> Option<LockHost> {
        match self.notify(told).await {
            Ok(()) => {
                debug!("{}: told of the restart", told.host);
                None
            }
            Err(error) => {
                debug!("{}: cannot be told of the restart: {error}", told.host);
                Some(told)
            }
        }
    }

    async fn notify(&self, LockHost { host, server }: LockHost) -> io::Result<()> {
        let mapper = SocketAddr::new(host, self.mapper_port);
        let monitor = (nsm::PROGRAM, nsm::VERSION);
        let from = Some(server);
        let mut client = Outcall::to_program(mapper, from, monitor, "status monitor").await?;
        let name = Opaque::copy_from(rustix::system::uname().nodename().to_bytes());
        let change = StatChange { name, state: number_of(self.run) };
        client.call((nsm::PROGRAM, nsm::VERSION, Procedure::Notify as u32), &change).await
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
    fn numbers_of_runs_are_odd_and_go_up() {
        assert_eq!([1, 2, 3].map(number_of), [1, 3, 5]);
        assert!(number_of(u32::MAX) > 0);
    }
}
