//! The lock manager over real sockets. Each host has its own loopback address, with a port mapper,
//! a lock manager and a status monitor.

mod callbacks;
mod local_users;
mod overtaken_requests;
mod permissions;
mod unwritten_records;

use crate::export::{Export, ExportOptions, Squash};
use crate::handle::{Handles, Node};
use crate::program::{Call, Program, ProgramId, Programs, Refusal};
use crate::server::{Server, ServerConfig};
use crate::transport::{Transport, TransportLimits};
use async_trait::async_trait;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;
use tokio::net::{TcpListener, UdpSocket};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};
use weir_nfs::nlm::{
    self, CancelArgs, LockArgs, Notify, Res, Share, ShareAccess, ShareArgs, ShareMode, Status,
    TestArgs, TestReply, UnlockArgs, call,
};
use weir_nfs::{mount, nsm};
use weir_pagecache::{Cache, CachedFs, Config};
use weir_rpc::net::{ClientLimits, RpcClient, Source};
use weir_rpc::rpcbind::{self, Mapping};
use weir_rpc::{AuthSys, CallHeader, OpaqueAuth};
use weir_stores::local::{LocalFs, LocalOptions};
use weir_stores::memory::MemoryFs;
use weir_vfs::{
    Access, Caller, CreateMode, Error, FileSystem, Lock, LockOwner, LockRange, SetAttr,
};
use weir_xdr::{Encoder, Opaque};

/// A call of the server to a host.
#[derive(Debug)]
enum Told {
    Granted(TestArgs),
    Answer(u32, Res),
    Restarted(i32),
    /// Asked for its state number.
    Asked,
}

/// The programs of a host, all on one port.
struct Program4Host {
    id: ProgramId,
    port: u16,
    told: UnboundedSender<Told>,
    /// The answer to GRANTED.
    grant: Status,
    /// The host's state number.
    run: Arc<AtomicI32>,
}

#[async_trait]
impl Program for Program4Host {
    fn id(&self) -> ProgramId {
        self.id
    }

    async fn call(self: Arc<Self>, mut call: Call, mut reply: Encoder) -> Result<Encoder, Refusal> {
        match (self.id.program, call.header.procedure) {
            (rpcbind::PROGRAM, 3) => {
                let _: Mapping = call.args.get()?;
                reply.put(&u32::from(self.port));
            }
            (nlm::PROGRAM, 5) => {
                let args: TestArgs = call.args.get()?;
                reply.put(&Res { cookie: args.cookie.clone(), status: self.grant });
                self.told.send(Told::Granted(args)).unwrap();
            }
            (nlm::PROGRAM, number @ 12..=15) => {
                self.told.send(Told::Answer(number, call.args.get()?)).unwrap();
            }
            (nsm::PROGRAM, 1) => {
                let _: nsm::StatName = call.args.get()?;
                let state = self.run.load(Ordering::Relaxed);
                reply.put(&nsm::StatRes { outcome: nsm::Outcome::Success, state });
                self.told.send(Told::Asked).unwrap();
            }
            (nsm::PROGRAM, 6) => {
                let change: nsm::StatChange = call.args.get()?;
                self.told.send(Told::Restarted(change.state)).unwrap();
            }
            _ => return Err(Refusal::NoSuchProcedure),
        }
        Ok(reply)
    }
}

struct Host {
    ip: IpAddr,
    told: UnboundedReceiver<Told>,
    run: Arc<AtomicI32>,
    _stop: DropGuard,
}

impl Host {
    async fn new(number: u8, port: u16, grant: Status) -> Self {
        let ip = IpAddr::from([127, 0, 77, number]);
        let (tell, told) = unbounded_channel();
        let mut programs = Programs::default();
        let run = Arc::new(AtomicI32::new(3));
        for (program, version) in [(rpcbind::PROGRAM, 2), (nlm::PROGRAM, 4), (nsm::PROGRAM, 1)] {
            let id = ProgramId { program, version };
            let (told, run) = (tell.clone(), run.clone());
            programs.add(Arc::new(Program4Host { id, port, told, grant, run }));
        }
        let stop = CancellationToken::new();
        let listener = TcpListener::bind(SocketAddr::new(ip, port)).await.unwrap();
        let transport =
            Transport::new(TransportLimits::default(), 16, programs, Arc::default(), stop.clone());
        tokio::spawn(Arc::new(transport).serve(vec![listener]));
        Self { ip, told, run, _stop: stop.drop_guard() }
    }

    async fn told(&mut self) -> Told {
        timeout(Duration::from_secs(120), self.told.recv())
            .await
            .expect("nothing was told")
            .unwrap()
    }

    /// The next call except requests for the state number.
    async fn news(&mut self) -> Told {
        loop {
            match self.told().await {
                Told::Asked => {}
                told => return told,
            }
        }
    }

    /// Whether the server has called the host.
    fn has_news(&mut self) -> bool {
        std::iter::from_fn(|| self.told.try_recv().ok()).any(|told| !matches!(told, Told::Asked))
    }
}

const LIMITS: ClientLimits =
    ClientLimits { deadline: Duration::from_secs(120), ..ClientLimits::SMALL };

/// Connects from a host's address.
async fn connect(to: SocketAddr, host: IpAddr) -> RpcClient {
    RpcClient::connect(to, Source::address(host), LIMITS).await.unwrap()
}

struct Fixture {
    server: Option<Server>,
    served: tokio::task::JoinHandle<std::io::Result<()>>,
    addr: SocketAddr,
    fs: CachedFs,
    file: Node,
    dir: tempfile::TempDir,
    /// The port of all hosts' programs.
    port: u16,
    /// Keeps the port from other tests: no host has its address.
    _port: TcpListener,
    read_only: bool,
    /// Restart notices are accepted from ports below this.
    ports_below: u16,
    /// The grace period of the next start.
    grace: Duration,
}

/// A grace period that lasts until a test ends it.
const GRACE: Duration = Duration::from_secs(600);

impl Fixture {
    async fn new() -> Self {
        Self::with(false).await
    }

    async fn below(ports_below: u16) -> Self {
        Self::of(MemoryFs::new(), false, ports_below).await
    }

    async fn with(read_only: bool) -> Self {
        Self::of(MemoryFs::new(), read_only, u16::MAX).await
    }

    async fn of(store: Arc<dyn FileSystem>, read_only: bool, ports_below: u16) -> Self {
        let config = Config {
            budget_bytes: 8 << 20,
            fast_read: true,
            readahead_bytes: 0,
            ..Config::default()
        };
        let fs = Cache::new(config).unwrap().mount(store);
        let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
        let made = fs
            .create(&Caller::Own, fs.root().entry(b"file").with(&set), CreateMode::MustBeNew)
            .await
            .unwrap();
        // In memory, so that no file of the server waits for a busy disk.
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let reserved = TcpListener::bind("127.0.77.254:0").await.unwrap();
        let port = reserved.local_addr().unwrap().port();
        let (server, served, addr) =
            serve(&fs, dir.path(), port, read_only, ports_below, GRACE).await;
        let mut client = RpcClient::connect(addr, Source::ANY, LIMITS).await.unwrap();
        let (mnt, args) = (mount::Procedure::Mnt as u32, mount::Mnt { path: "/".into() });
        let root: mount::MntRes = client.call(mount::ID, mnt, &args).await.unwrap();
        let root = Handles::open(dir.path()).unwrap().unseal(&root.unwrap().handle).unwrap();
        let file = Node { id: made.attr.id, ..root };
        let (server, grace, _port) = (Some(server), GRACE, reserved);
        Self { server, served, addr, fs, file, dir, port, _port, read_only, ports_below, grace }
    }

    async fn stop(&mut self) {
        self.server.take().unwrap().stop();
        (&mut self.served).await.unwrap().unwrap();
    }

    async fn start(&mut self) {
        let (dir, port, ports_below) = (self.dir.path(), self.port, self.ports_below);
        let (server, served, addr) =
            serve(&self.fs, dir, port, self.read_only, ports_below, self.grace).await;
        (self.server, self.served, self.addr) = (Some(server), served, addr);
    }

    async fn host(&self, number: u8) -> Host {
        Host::new(number, self.port, Status::Granted).await
    }

    fn handle(&self) -> nlm::FileHandle {
        Opaque::copy_from(&Handles::open(self.dir.path()).unwrap().seal(self.file))
    }

    fn lock(&self, process: i32, offset: u64, length: u64) -> nlm::Lock {
        let owner = format!("{process}@host").as_str().into();
        nlm::Lock { caller: "host".into(), file: self.handle(), owner, process, offset, length }
    }

    async fn call<C: nlm::Call>(&self, host: &Host, args: &C::Args) -> C::Res
    where
        C::Args: Sync,
    {
        self.call_as::<C>(host, 0, args).await
    }

    async fn call_as<C: nlm::Call>(&self, host: &Host, uid: u32, args: &C::Args) -> C::Res
    where
        C::Args: Sync,
    {
        let auth = AuthSys { uid, ..AuthSys::default() };
        let client = connect(self.addr, host.ip).await;
        let mut client = client.with_cred(OpaqueAuth::from(&auth));
        client.call(nlm::ID, C::PROCEDURE as u32, args).await.unwrap()
    }

    async fn take(&self, host: &Host, lock: nlm::Lock, how: How) -> Status {
        let How { exclusive, block, reclaim } = how;
        let args = LockArgs { cookie: "c".into(), block, exclusive, lock, reclaim, state: 1 };
        let res = self.call::<call::Lock>(host, &args).await;
        assert_eq!(&res.cookie[..], b"c");
        res.status
    }

    async fn release(&self, host: &Host, lock: nlm::Lock) -> Status {
        self.call::<call::Unlock>(host, &UnlockArgs { cookie: "u".into(), lock }).await.status
    }

    async fn test(&self, host: &Host, lock: nlm::Lock) -> TestReply {
        let args = TestArgs { cookie: "t".into(), exclusive: true, lock };
        self.call::<call::Test>(host, &args).await.reply
    }
}

#[derive(Clone, Copy)]
struct How {
    exclusive: bool,
    block: bool,
    reclaim: bool,
}

const SHARED: How = How { exclusive: false, block: false, reclaim: false };
const EXCLUSIVE: How = How { exclusive: true, ..SHARED };
const WAIT: How = How { block: true, ..EXCLUSIVE };
const RECLAIM: How = How { reclaim: true, ..EXCLUSIVE };

async fn serve(
    fs: &CachedFs,
    state_dir: &std::path::Path,
    port: u16,
    read_only: bool,
    ports_below: u16,
    grace: Duration,
) -> (Server, tokio::task::JoinHandle<std::io::Result<()>>, SocketAddr) {
    let options = ExportOptions { squash: Squash::Nobody, read_only, ..ExportOptions::default() };
    let export = Export { path: "/".into(), source: "/".into(), fs: fs.clone(), options };
    let mut config = ServerConfig::new(vec![export], state_dir);
    config.clients_rpcbind = port;
    config.notice_ports_below = ports_below;
    config.grace = grace;
    let server = Server::new(config).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let serving = server.clone();
    let served = tokio::spawn(async move { serving.serve(listener).await });
    (server, served, addr)
}

#[tokio::test]
async fn locks_of_hosts_conflict_and_test_reports_the_holder() {
    let f = Fixture::new().await;
    let (a, b) = (f.host(1).await, f.host(2).await);
    assert_eq!(f.take(&a, f.lock(1, 0, 100), EXCLUSIVE).await, Status::Granted);
    assert_eq!(f.take(&a, f.lock(1, 0, 100), EXCLUSIVE).await, Status::Granted);
    assert_eq!(f.take(&b, f.lock(1, 99, 0), SHARED).await, Status::Denied);
    assert_eq!(f.take(&b, f.lock(1, 100, 0), EXCLUSIVE).await, Status::Granted);
    let holder =
        nlm::Holder { exclusive: true, process: 1, owner: "1@host".into(), offset: 100, length: 0 };
    assert_eq!(f.test(&a, f.lock(1, 500, 1)).await, TestReply::Denied(holder));
    assert_eq!(f.test(&a, f.lock(1, 0, 10)).await, TestReply::Granted);
    assert_eq!(f.release(&b, f.lock(1, 0, 0)).await, Status::Granted);
    assert_eq!(f.test(&a, f.lock(1, 500, 1)).await, TestReply::Granted);
    assert_eq!(f.take(&a, f.lock(1, u64::MAX - 1, 5), SHARED).await, Status::TooBig);

    // Frees all locks of a host.
    let all = Notify { name: "host".into(), state: 3 };
    f.call::<call::FreeAll>(&a, &all).await;
    assert_eq!(f.take(&b, f.lock(1, 0, 0), EXCLUSIVE).await, Status::Granted);
}

/// NLM allows empty owner names: the process number is enough.
#[tokio::test]
async fn unnamed_owners_are_distinguished_by_host_and_process() {
    let f = Fixture::new().await;
    let (mut a, b) = (f.host(1).await, f.host(2).await);
    let lock = |process| nlm::Lock { owner: "".into(), ..f.lock(process, 0, 10) };
    assert_eq!(f.take(&a, lock(1), EXCLUSIVE).await, Status::Granted);
    assert_eq!(f.take(&a, lock(1), EXCLUSIVE).await, Status::Granted);
    for (host, process) in [(&a, 2), (&b, 1)] {
        assert_eq!(f.take(host, lock(process), EXCLUSIVE).await, Status::Denied);
        let TestReply::Denied(holder) = f.test(host, lock(process)).await else { panic!() };
        assert_eq!((holder.process, &holder.owner[..]), (1, &b""[..]));
    }
    assert_eq!(f.take(&a, lock(2), WAIT).await, Status::Blocked);
    assert_eq!(f.release(&b, lock(1)).await, Status::Granted, "which is not the one that is held");
    assert!(!a.has_news());
    assert_eq!(f.release(&a, lock(1)).await, Status::Granted);
    assert!(matches!(a.news().await, Told::Granted(granted) if granted.lock == lock(2)));
}

#[tokio::test]
async fn a_lock_needs_access_to_the_file() {
    let f = Fixture::new().await;
    let a = f.host(1).await;
    let args = |lock| LockArgs {
        cookie: "c".into(),
        block: false,
        exclusive: false,
        lock,
        reclaim: false,
        state: 1,
    };
    let forged = nlm::Lock { file: "forged".into(), ..f.lock(1, 0, 0) };
    let status = async |uid, lock| f.call_as::<call::Lock>(&a, uid, &args(lock)).await.status;
    assert_eq!(status(0, forged).await, Status::StaleHandle);
    assert_eq!(status(7, f.lock(1, 0, 0)).await, Status::Failed);
    let owner = f.fs.getattr(f.file.id).await.unwrap().uid;
    assert_eq!(status(owner, f.lock(1, 0, 0)).await, Status::Granted);
    f.fs.unlink(&Caller::Own, f.fs.root().entry(b"file")).await.unwrap();
    assert_eq!(status(owner, f.lock(1, 0, 0)).await, Status::StaleHandle);

    let f = Fixture::with(true).await;
    let b = f.host(2).await;
    assert_eq!(f.take(&b, f.lock(1, 0, 0), EXCLUSIVE).await, Status::ReadOnlyFs);
    assert_eq!(f.take(&b, f.lock(1, 0, 0), SHARED).await, Status::Granted);
}

#[tokio::test]
async fn a_waiting_host_gets_granted_when_the_lock_is_free() {
    let f = Fixture::new().await;
    let (a, mut b, mut c) = (f.host(1).await, f.host(2).await, f.host(3).await);
    assert_eq!(f.take(&a, f.lock(1, 0, 0), EXCLUSIVE).await, Status::Granted);
    assert_eq!(f.take(&b, f.lock(2, 5, 10), WAIT).await, Status::Blocked);
    assert_eq!(f.take(&c, f.lock(3, 0, 6), WAIT).await, Status::Blocked);
    f.release(&a, f.lock(1, 0, 0)).await;
    let Told::Granted(granted) = b.news().await else { panic!() };
    assert_eq!((granted.lock, granted.exclusive), (f.lock(2, 5, 10), true));
    assert!(!c.has_news());
    assert_eq!(f.take(&a, f.lock(1, 14, 1), SHARED).await, Status::Denied);
    f.release(&b, f.lock(2, 0, 0)).await;
    assert!(matches!(c.news().await, Told::Granted(g) if g.lock == f.lock(3, 0, 6)));

    // The server does not call a host that has cancelled.
    assert_eq!(f.take(&a, f.lock(1, 0, 0), WAIT).await, Status::Blocked);
    let args =
        CancelArgs { cookie: "x".into(), block: true, exclusive: true, lock: f.lock(1, 0, 0) };
    assert_eq!(f.call::<call::Cancel>(&a, &args).await.status, Status::Granted);
    f.release(&c, f.lock(3, 0, 0)).await;
    assert_eq!(f.test(&b, f.lock(2, 0, 0)).await, TestReply::Granted);
}

#[tokio::test]
async fn a_grant_that_is_refused_goes_to_the_next_host() {
    let f = Fixture::new().await;
    let (a, mut c) = (f.host(1).await, f.host(3).await);
    let mut b = Host::new(2, f.port, Status::Denied).await;
    assert_eq!(f.take(&a, f.lock(1, 0, 0), EXCLUSIVE).await, Status::Granted);
    assert_eq!(f.take(&b, f.lock(2, 0, 0), WAIT).await, Status::Blocked);
    assert_eq!(f.take(&c, f.lock(3, 0, 0), WAIT).await, Status::Blocked);
    f.release(&a, f.lock(1, 0, 0)).await;
    assert!(matches!(b.news().await, Told::Granted(_)));
    assert!(matches!(c.news().await, Told::Granted(_)));
}

#[tokio::test]
async fn asynchronous_calls_are_answered_by_callbacks() {
    let f = Fixture::new().await;
    let mut a = f.host(1).await;
    let (cookie, lock) = (nlm::NetObj::from("half"), f.lock(1, 0, 0));
    let args = LockArgs {
        cookie: cookie.clone(),
        block: false,
        exclusive: true,
        lock: lock.clone(),
        reclaim: false,
        state: 1,
    };
    f.call::<call::LockMsg>(&a, &args).await;
    let Told::Answer(12, Res { cookie: answered, status: Status::Granted }) = a.news().await else {
        panic!()
    };
    assert_eq!(answered, cookie);
    f.call::<call::UnlockMsg>(&a, &UnlockArgs { cookie, lock }).await;
    assert!(matches!(a.news().await, Told::Answer(14, Res { status: Status::Granted, .. })));
}

#[tokio::test]
async fn share_reservations_of_hosts_conflict() {
    let f = Fixture::new().await;
    let (a, b) = (f.host(1).await, f.host(2).await);
    let share = |access, mode| {
        let share =
            Share { caller: "host".into(), file: f.handle(), owner: "o".into(), mode, access };
        ShareArgs { cookie: "s".into(), share, reclaim: false }
    };
    let reads_alone = share(ShareAccess::Read, ShareMode::Write);
    let writes = share(ShareAccess::Write, ShareMode::None);
    assert_eq!(f.call::<call::Share>(&a, &reads_alone).await.status, Status::Granted);
    assert_eq!(f.call::<call::Share>(&b, &writes).await.status, Status::Denied);
    assert_eq!(f.call::<call::Unshare>(&a, &reads_alone).await.status, Status::Granted);
    assert_eq!(f.call::<call::Share>(&b, &writes).await.status, Status::Granted);
}

#[tokio::test]
async fn restarted_server_notifies_hosts_and_they_reclaim_in_grace() {
    let mut f = Fixture::new().await;
    let (mut a, b) = (f.host(1).await, f.host(2).await);
    assert_eq!(f.take(&a, f.lock(1, 0, 0), EXCLUSIVE).await, Status::Granted);
    f.stop().await;
    f.start().await;
    assert!(matches!(a.news().await, Told::Restarted(3)));
    assert_eq!(f.take(&b, f.lock(1, 0, 0), EXCLUSIVE).await, Status::DeniedGracePeriod);
    assert_eq!(f.test(&b, f.lock(1, 0, 0)).await, TestReply::DeniedGracePeriod);
    // It had no lock to reclaim.
    assert_eq!(f.take(&b, f.lock(1, 0, 0), RECLAIM).await, Status::DeniedGracePeriod);
    assert_eq!(f.take(&a, f.lock(1, 0, 0), RECLAIM).await, Status::Granted);
    f.server.as_ref().unwrap().services.state.lock().grace.end(Duration::MAX);
    assert_eq!(f.take(&b, f.lock(1, 0, 0), EXCLUSIVE).await, Status::Denied);
    assert_eq!(f.take(&a, f.lock(1, 0, 0), RECLAIM).await, Status::DeniedGracePeriod);
}

/// Sends a notice by datagram, as Linux does.
async fn notify_by_datagram(f: &Fixture, host: &Host, run: i32) {
    let socket = UdpSocket::bind(SocketAddr::new(host.ip, 0)).await.unwrap();
    send_notice(f, &socket, run).await;
}

async fn send_notice(f: &Fixture, socket: &UdpSocket, run: i32) {
    let mut e = Encoder::new();
    e.put(&CallHeader {
        xid: 9,
        program: nsm::PROGRAM,
        version: nsm::VERSION,
        procedure: nsm::Procedure::Notify as u32,
        cred: OpaqueAuth::NONE,
        verf: OpaqueAuth::NONE,
    });
    e.put(&nsm::StatChange { name: "host".into(), state: run });
    let datagram = e.finish().to_bytes();
    let mut reply = [0; 64];
    let answered = async {
        // The server may not be listening yet.
        loop {
            socket.send_to(&datagram, f.addr).await.unwrap();
            let answer = timeout(Duration::from_secs(1), socket.recv(&mut reply)).await;
            if matches!(answer, Ok(Ok(_))) {
                break;
            }
        }
    };
    timeout(Duration::from_secs(120), answered).await.unwrap();
    assert_eq!(reply[..4], [0, 0, 0, 9]);
}

async fn notify_by_connection(f: &Fixture, host: &Host, run: i32) {
    let mut client = connect(f.addr, host.ip).await;
    let change = nsm::StatChange { name: "host".into(), state: run };
    client.call::<()>(nsm::ID, nsm::Procedure::Notify as u32, &change).await.unwrap();
}

/// Waits until the server has queried a host's status monitor.
async fn asked(host: &mut Host) {
    assert!(matches!(host.told().await, Told::Asked));
}

impl Fixture {
    /// Waits until the server has recorded this state number for a host's locks.
    async fn knows(&self, host: &Host, run: Option<i32>) {
        let state = &self.server.as_ref().unwrap().services.state;
        let known = async {
            while state.lock().nlm_run_of(host.ip) != Some(run) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(Duration::from_secs(120), known).await.unwrap();
    }
}

#[tokio::test]
async fn a_restarted_host_loses_its_locks_and_other_hosts_keep_theirs() {
    let f = Fixture::new().await;
    let (mut a, b) = (f.host(1).await, f.host(2).await);
    assert_eq!(f.take(&a, f.lock(1, 0, 10), EXCLUSIVE).await, Status::Granted);
    assert_eq!(f.take(&b, f.lock(1, 10, 10), EXCLUSIVE).await, Status::Granted);
    asked(&mut a).await;
    f.knows(&a, Some(3)).await;
    a.run.store(5, Ordering::Relaxed);
    notify_by_datagram(&f, &a, 5).await;
    asked(&mut a).await;
    f.knows(&a, Some(5)).await;
    assert_eq!(f.take(&b, f.lock(1, 0, 10), EXCLUSIVE).await, Status::Granted);
    assert_eq!(f.take(&a, f.lock(1, 10, 10), EXCLUSIVE).await, Status::Denied);

    // A connection proves where it comes from.
    notify_by_connection(&f, &b, 7).await;
    assert_eq!(f.take(&a, f.lock(1, 0, 20), EXCLUSIVE).await, Status::Granted);

    // The server monitors for no other program.
    let mut client = connect(f.addr, a.ip).await;
    let stat = nsm::StatName { name: "box".into() };
    let res: nsm::StatRes = client.call(nsm::ID, nsm::Procedure::Stat as u32, &stat).await.unwrap();
    assert_eq!(res.outcome, nsm::Outcome::Failure);
}

#[tokio::test]
async fn locks_taken_after_a_hosts_restart_outlive_its_earlier_ones() {
    let f = Fixture::new().await;
    let (mut a, b) = (f.host(1).await, f.host(2).await);
    assert_eq!(f.take(&a, f.lock(1, 0, 10), EXCLUSIVE).await, Status::Granted);
    asked(&mut a).await;
    f.knows(&a, Some(3)).await;
    // The host sends its notice before its status monitor runs.
    a.run.store(0, Ordering::Relaxed);
    notify_by_datagram(&f, &a, 5).await;
    asked(&mut a).await;
    assert_eq!(f.take(&b, f.lock(1, 0, 10), EXCLUSIVE).await, Status::Denied);
    a.run.store(5, Ordering::Relaxed);
    assert_eq!(f.take(&a, f.lock(2, 0, 10), EXCLUSIVE).await, Status::Granted);
    // The task that the notice started has ended.
    let monitor = &f.server.as_ref().unwrap().monitor;
    let ended = async {
        while monitor.is_asking(a.ip) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(Duration::from_secs(60), ended).await.unwrap();
    assert_eq!(f.take(&b, f.lock(1, 0, 10), EXCLUSIVE).await, Status::Denied);
}

#[tokio::test]
async fn an_unverifiable_restart_notice_frees_no_locks() {
    let f = Fixture::new().await;
    let (mut a, b) = (f.host(1).await, f.host(2).await);
    assert_eq!(f.take(&a, f.lock(1, 0, 10), EXCLUSIVE).await, Status::Granted);
    asked(&mut a).await;
    f.knows(&a, Some(3)).await;
    a.run.store(0, Ordering::Relaxed);
    notify_by_datagram(&f, &a, 5).await;
    asked(&mut a).await;
    assert_eq!(f.take(&a, f.lock(1, 10, 10), EXCLUSIVE).await, Status::Granted);
    assert_eq!(f.take(&b, f.lock(1, 5, 10), EXCLUSIVE).await, Status::Denied);
}

#[tokio::test]
async fn a_forged_datagram_frees_no_locks() {
    let f = Fixture::new().await;
    let (mut a, b) = (f.host(1).await, f.host(2).await);
    assert_eq!(f.take(&a, f.lock(1, 0, 0), EXCLUSIVE).await, Status::Granted);
    asked(&mut a).await;
    f.knows(&a, Some(3)).await;
    // The notices name different state numbers; the host's status monitor reports the earlier one.
    for run in [3, 5] {
        notify_by_datagram(&f, &a, run).await;
        asked(&mut a).await;
        // One task asks the host, and ends with the answer.
        let asked = &f.server.as_ref().unwrap().monitor;
        let ended = async {
            while asked.is_asking(a.ip) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(Duration::from_secs(120), ended).await.unwrap();
        assert_eq!(f.take(&b, f.lock(1, 0, 0), EXCLUSIVE).await, Status::Denied);
    }
    // The server does not call a host without locks.
    notify_by_datagram(&f, &f.host(4).await, 3).await;
    assert!(!f.server.as_ref().unwrap().monitor.is_asking(IpAddr::from([127, 0, 77, 4])));
}

#[tokio::test]
async fn a_notice_from_an_unprivileged_port_frees_no_locks() {
    let f = Fixture::below(1).await;
    let (a, b) = (f.host(1).await, f.host(2).await);
    assert_eq!(f.take(&a, f.lock(1, 0, 0), EXCLUSIVE).await, Status::Granted);
    notify_by_connection(&f, &a, 5).await;
    notify_by_datagram(&f, &a, 5).await;
    let all = Notify { name: "host".into(), state: 5 };
    f.call::<call::FreeAll>(&a, &all).await;
    assert!(!f.server.as_ref().unwrap().monitor.is_asking(a.ip));
    assert_eq!(f.take(&b, f.lock(1, 0, 0), EXCLUSIVE).await, Status::Denied);
}

/// Unknown procedures and truncated arguments.
#[tokio::test]
async fn undefined_and_malformed_nlm_calls_are_refused() {
    let f = Fixture::new().await;
    let a = f.host(1).await;
    for procedure in [16, 19, 24] {
        let mut client = RpcClient::connect(f.addr, Source::ANY, LIMITS).await.unwrap();
        let refused = client.call::<()>(nlm::ID, procedure, &()).await;
        assert!(refused.is_err());
    }
    let mut client = RpcClient::connect(f.addr, Source::ANY, LIMITS).await.unwrap();
    let lock = nlm::Procedure::Lock as u32;
    assert!(client.call::<Res>(nlm::ID, lock, &7_u32).await.is_err());
    assert_eq!(f.take(&a, f.lock(1, 0, 0), EXCLUSIVE).await, Status::Granted);
}

#[tokio::test]
async fn locks_of_local_programs_and_hosts_conflict() {
    let dir = tempfile::tempdir().unwrap();
    let open = || LocalFs::open(dir.path(), LocalOptions::default()).unwrap();
    let mut f = Fixture::of(open(), false, u16::MAX).await;
    let mut host = f.host(1).await;
    let other = open();
    let id = other.lookup(&Caller::Own, other.root().entry(b"file")).await.unwrap().id;
    let both = Access::READ | Access::WRITE;
    let program = other.open(&Caller::Own, id, both).await.unwrap();
    let (owner, range) = (LockOwner(1), LockRange { start: 0, end: 10 });
    let exclusive = Lock { range, exclusive: true };
    program.lock(owner, exclusive, false).await.unwrap();
    assert_eq!(f.take(&host, f.lock(1, 5, 1), SHARED).await, Status::Denied);
    let TestReply::Denied(holder) = f.test(&host, f.lock(1, 5, 1)).await else { panic!() };
    assert_eq!((holder.offset, holder.length, holder.exclusive), (0, 10, true));
    assert_eq!(f.take(&host, f.lock(1, 10, 1), EXCLUSIVE).await, Status::Granted);
    // The waiting host gets the lock once the program releases it.
    assert_eq!(f.take(&host, f.lock(1, 5, 1), WAIT).await, Status::Blocked);
    program.unlock(owner, range).await.unwrap();
    let Told::Granted(granted) = host.news().await else { panic!() };
    assert_eq!((granted.lock.offset, granted.lock.length), (5, 1));
    assert_eq!(program.lock(owner, exclusive, false).await, Err(Error::WouldBlock));
    // The program cannot lock what a host has reclaimed.
    f.stop().await;
    f.start().await;
    assert_eq!(f.take(&host, f.lock(1, 5, 1), RECLAIM).await, Status::Granted);
    assert_eq!(program.lock(owner, exclusive, false).await, Err(Error::WouldBlock));
    assert_eq!(f.release(&host, f.lock(1, 0, 0)).await, Status::Granted);
    program.lock(owner, exclusive, false).await.unwrap();
}
