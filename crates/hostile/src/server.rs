//! One input against a live server.
//!
//! 1. The server is new for each input: over a store in memory, on a socket, with small limits, in
//!    one thread whose clock stands still unless all tasks wait.
//! 2. Every call whose header can be read is answered, with its xid, and the answer decodes. Other
//!    records end the connection or are ignored.
//! 3. What the server holds is within its limits after each input; a new client is then served; when
//!    the leases have expired and the exports are gone, the server holds nothing.

use crate::calls::{CLIENTS, Calls};
use crate::connection::{Arrived, Connection};
use crate::known::{Known, opaque, put};
use crate::replies;
use crate::source::Source;
use crate::templates::V3;
use bytes::Bytes;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock, Once};
use std::time::{Duration, SystemTime};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use weir_base::Clock;
use weir_nfs::v4::OpCode;
use weir_nfs::{mount, v3, v4};
use weir_pagecache::{Background, Cache, Config};
use weir_rpc::CallHeader;
use weir_server::{Export, ExportOptions, Server, ServerConfig, Squash};
use weir_stores::memory::{MemoryFs, MemoryOptions};
use weir_xdr::Decoder;

/// Most calls of an input.
const CALLS: usize = 64;
/// The last byte of the address of the client that checks the server afterwards.
const CHECKER: u8 = 9;
const LEASE: Duration = Duration::from_secs(5);
const COURTESY: Duration = Duration::from_secs(1);
/// Longer than the server takes to forget a host without locks, after its lease.
const IDLE_HOSTS: Duration = Duration::from_secs(15);
/// The page cache's budget, in bytes.
const BUDGET: u64 = 4 << 20;
/// Largest record that the server accepts.
const RECORD_BYTES: usize = 64 << 10;

/// What an input did.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Records that were sent.
    pub calls: u64,
    /// Of these, calls that succeeded, as far as RPC is concerned.
    pub answered: u64,
    /// Most opens at the end of an input.
    pub opens: u64,
    /// Most locked ranges.
    pub locks: u64,
    /// Most delegations.
    pub delegations: u64,
    /// How often each operation of NFSv4 succeeded and failed.
    pub results: BTreeMap<&'static str, (u64, u64)>,
}

impl Outcome {
    /// Adds another input's.
    pub fn add(&mut self, other: &Self) {
        self.calls += other.calls;
        self.answered += other.answered;
        self.opens = self.opens.max(other.opens);
        self.locks = self.locks.max(other.locks);
        self.delegations = self.delegations.max(other.delegations);
        for (operation, (succeeded, failed)) in &other.results {
            let of = self.results.entry(operation).or_default();
            *of = (of.0 + succeeded, of.1 + failed);
        }
    }
}

/// Runs one input.
///
/// # Errors
/// What the server did that it must not do.
///
/// # Panics
/// This machine has no memory, sockets or files left.
pub fn run(input: &[u8]) -> Result<Outcome, String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .expect("a runtime");
    let before = panics();
    let outcome = runtime.block_on(run_in(input));
    if panics() > before {
        return Err(format!("a task panicked; {outcome:?}"));
    }
    outcome
}

/// Panics of this thread so far: the runtime catches those of tasks.
fn panics() -> u64 {
    thread_local!(static PANICS: Cell<u64> = const { Cell::new(0) });
    static COUNTED: Once = Once::new();
    COUNTED.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            PANICS.set(PANICS.get() + 1);
            before(panic);
        }));
    });
    PANICS.get()
}

async fn run_in(input: &[u8]) -> Result<Outcome, String> {
    let mut source = Source::new(input);
    let mut host = Host::start(&mut source).await;
    let mut outcome = Outcome::default();
    while !source.is_empty() && outcome.calls < CALLS as u64 {
        host.step(&mut source, &mut outcome).await?;
    }
    host.check(&mut outcome).await?;
    for known in &host.calls.known {
        let results = known.results.clone();
        outcome.add(&Outcome { results, ..Outcome::default() });
    }
    host.end().await?;
    Ok(outcome)
}

/// The runtime's clock, which stands still while a task can run.
struct TestClock(Instant);

impl Clock for TestClock {
    fn monotonic(&self) -> Duration {
        self.0.elapsed()
    }

    fn wall(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(1 << 30) + self.0.elapsed()
    }
}

/// The server, and what its clients know.
struct Host {
    server: Server,
    served: JoinHandle<std::io::Result<()>>,
    cache: Cache,
    address: SocketAddr,
    connections: [Option<Connection>; CLIENTS],
    calls: Calls,
    /// The records sent last, to be sent again.
    sent: Vec<Vec<u8>>,
}

/// The state directory: it holds the key of filehandles only, so they are the same for each input.
fn state_dir() -> PathBuf {
    static DIR: LazyLock<TempDir> = LazyLock::new(|| TempDir::new().expect("a directory"));
    DIR.path().to_path_buf()
}

/// An export of an empty store.
fn export(cache: &Cache, source: &str) -> Export {
    let options = ExportOptions { squash: Squash::Nobody, ..ExportOptions::default() };
    let store = MemoryFs::with_options(MemoryOptions { capacity_bytes: 32 << 20, max_files: 200 });
    Export { path: "/".into(), source: source.into(), fs: cache.mount(store), options }
}

fn config(source: &mut Source<'_>, export: Export) -> ServerConfig {
    let mut config = ServerConfig::new(vec![export], state_dir());
    let records = || {
        let memory = redb::backends::InMemoryBackend::new();
        redb::Database::builder().create_with_backend(memory)
    };
    config.records = Some(Arc::new(records));
    config.clock = Arc::new(TestClock(Instant::now()));
    config.clients_rpcbind = 1;
    config.notice_ports_below = u16::MAX;
    config.admission.secure = false;
    config.grace = if source.one_in(16) { LEASE } else { Duration::ZERO };
    config.delegated_times = source.one_in(2);
    config.descriptors = Some(1024);
    config.transport.record_bytes = RECORD_BYTES;
    config.transport.call_bytes = 256 << 10;
    config.transport.reply_bytes = 256 << 10;
    config.transport.all_reply_bytes = 1 << 20;
    let state = &mut config.state;
    (state.lease, state.courtesy) = (LEASE, COURTESY);
    (state.clients, state.sessions) = (24, 16);
    (state.opens, state.locks, state.delegations) = (48, 48, 12);
    state.kept_reply_bytes = 64 << 10;
    state.owner_bytes = 16 << 10;
    config
}

impl Host {
    async fn start(source: &mut Source<'_>) -> Self {
        let settings = Config {
            budget_bytes: BUDGET,
            readahead_bytes: 64 << 10,
            background: Background::Rounds,
            ..Config::default()
        };
        let cache = Cache::new(settings).expect("memory for a page cache");
        // Calls wait for it, when too much is dirty.
        let background = cache.clone();
        tokio::spawn(async move {
            loop {
                sleep(Duration::from_millis(200)).await;
                background.background_round();
            }
        });
        let server = Server::new(config(source, export(&cache, "first"))).expect("a server");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("a port");
        let serving = server.clone();
        let served = tokio::spawn(async move { serving.serve(listener).await });
        Self {
            server,
            served,
            cache,
            address,
            connections: Default::default(),
            calls: Calls::default(),
            sent: Vec::new(),
        }
    }

    async fn step(&mut self, source: &mut Source<'_>, outcome: &mut Outcome) -> Result<(), String> {
        let of = source.below(CLIENTS);
        // Each client has a minor version of its own, and uses another one now and then.
        let minor = if source.one_in(32) { source.word_below(3) } else { 2 - of as u32 };
        if self.calls.known[of].handles.is_empty() {
            self.mount(source, of, outcome).await?;
        }
        match minor {
            0 if self.calls.known[of].verifiers.is_empty() || source.one_in(64) => {
                self.introduce(source, of, outcome).await?;
            }
            1.. if self.calls.known[of].sessions.is_empty() || source.one_in(64) => {
                self.begin_session(source, of, outcome).await?;
            }
            _ => {}
        }
        let record = match source.below(24) {
            0..=6 => self.calls.compound(source, of, minor),
            7..=11 => self.calls.open_op(source, of, minor),
            12..=15 => {
                let Some((procedure, fields)) = source.pick(V3) else { return Ok(()) };
                self.calls.filled(source, of, (v3::PROGRAM, 3, *procedure as u32), fields)
            }
            16 | 17 => self.calls.other(source, of),
            18 => match source.pick(&self.sent) {
                Some(record) => record.clone(),
                None => return Ok(()),
            },
            19 => {
                let times = [10, 10, 300, 300, 1000, 2000, 4500, 61_000];
                let by = source.pick(&times).copied().unwrap_or(10);
                sleep(Duration::from_millis(by)).await;
                return Ok(());
            }
            20 => {
                self.connections[of] = None;
                return Ok(());
            }
            21 => return self.send_raw(source, of, outcome).await,
            _ => {
                let answer = match source.below(4) {
                    0 => None,
                    1 => Some(source.bytes(24).to_vec()),
                    _ => Some(Vec::new()),
                };
                for connection in self.connections.iter_mut().flatten() {
                    connection.callbacks.push_back(answer.clone());
                }
                return Ok(());
            }
        };
        self.send(of, &record, source, outcome).await
    }

    /// Mounts the export and makes a file, a directory and a symbolic link there.
    async fn mount(
        &mut self,
        source: &mut Source<'_>,
        of: usize,
        outcome: &mut Outcome,
    ) -> Result<(), String> {
        let mount = self.calls.call(source, (mount::PROGRAM, 3, 1), b"\0\0\0\x01/\0\0\0", false);
        self.send(of, &mount, source, outcome).await?;
        let Some(root) = self.calls.known[of].handles.first().cloned() else { return Ok(()) };
        let all = [1, 0o777, 0, 0, 0, 0, 0];
        // UNCHECKED before the attributes of CREATE, the target after those of SYMLINK.
        for (procedure, name, before, after) in [
            (8, b"a", &[0][..], &b""[..]),
            (9, b"d", &[], b""),
            (10, b"s", &[], b"\0\0\0\x01a\0\0\0"),
        ] {
            let mut args = Vec::new();
            opaque(&mut args, &root);
            opaque(&mut args, name);
            before.iter().chain(&all).for_each(|word| put(&mut args, *word));
            args.extend_from_slice(after);
            let call = self.calls.call(source, (v3::PROGRAM, 3, procedure), &args, false);
            self.send(of, &call, source, outcome).await?;
        }
        Ok(())
    }

    /// EXCHANGE_ID, CREATE_SESSION and RECLAIM_COMPLETE.
    async fn begin_session(
        &mut self,
        source: &mut Source<'_>,
        of: usize,
        outcome: &mut Outcome,
    ) -> Result<(), String> {
        let mut exchange = Vec::new();
        put(&mut exchange, OpCode::ExchangeId as u32);
        exchange.extend_from_slice(&[u8::from(source.one_in(8)); 8]);
        let number = u8::from(source.one_in(8));
        opaque(&mut exchange, &[b'c', of as u8, number]);
        [0, 0, 0].iter().for_each(|w| put(&mut exchange, *w));
        let record = self.calls.first_compound(source, 2, &[exchange]);
        self.send(of, &record, source, outcome).await?;
        let mut create = Vec::new();
        put(&mut create, OpCode::CreateSession as u32);
        let known = &mut self.calls.known[of];
        create.extend_from_slice(&known.clients.last().copied().unwrap_or(0).to_be_bytes());
        put(&mut create, known.next_sequence());
        put(&mut create, 2);
        for _ in 0..2 {
            [0, 60_000, 60_000, 2000, 16, 4, 0].iter().for_each(|w| put(&mut create, *w));
        }
        [0x4000_0000, 1, 0].iter().for_each(|w| put(&mut create, *w));
        let record = self.calls.first_compound(source, 2, &[create]);
        self.send(of, &record, source, outcome).await?;
        let sequence = self.calls.sequence(source, of);
        let mut complete = Vec::new();
        [OpCode::ReclaimComplete as u32, 0].iter().for_each(|w| put(&mut complete, *w));
        let record = self.calls.first_compound(source, 2, &[sequence, complete]);
        self.send(of, &record, source, outcome).await
    }

    /// SETCLIENTID and SETCLIENTID_CONFIRM.
    async fn introduce(
        &mut self,
        source: &mut Source<'_>,
        of: usize,
        outcome: &mut Outcome,
    ) -> Result<(), String> {
        let introduce = self.calls.op(source, of, OpCode::Setclientid);
        let record = self.calls.first_compound(source, 0, &[introduce]);
        self.send(of, &record, source, outcome).await?;
        let mut confirm = Vec::new();
        put(&mut confirm, OpCode::SetclientidConfirm as u32);
        let known = &self.calls.known[of];
        confirm.extend_from_slice(&known.clients.last().copied().unwrap_or(0).to_be_bytes());
        confirm.extend_from_slice(known.verifiers.last().unwrap_or(&[0; 8]));
        let record = self.calls.first_compound(source, 0, &[confirm]);
        self.send(of, &record, source, outcome).await
    }

    async fn connection(&mut self, of: usize) -> Result<&mut Connection, String> {
        let connection = &mut self.connections[of];
        if connection.is_none() {
            let opened = Connection::open(of as u8 + 1, self.address).await;
            let opened = opened.map_err(|error| format!("the server accepts none: {error}"))?;
            *connection = Some(opened);
        }
        connection.as_mut().ok_or_else(|| "no connection".into())
    }

    /// Sends a record in one or several fragments, and reads the reply that it must have.
    async fn send(
        &mut self,
        of: usize,
        record: &[u8],
        source: &mut Source<'_>,
        outcome: &mut Outcome,
    ) -> Result<(), String> {
        if self.sent.len() == 16 {
            self.sent.remove(0);
        }
        self.sent.push(record.to_vec());
        outcome.calls += 1;
        let cut = if source.one_in(8) { source.below(256).min(record.len()) } else { 0 };
        let mut framed = Vec::with_capacity(record.len() + 8);
        if cut > 0 {
            put(&mut framed, cut as u32);
            framed.extend_from_slice(&record[..cut]);
        }
        put(&mut framed, (record.len() - cut) as u32 | 1 << 31);
        framed.extend_from_slice(&record[cut..]);
        let connection = self.connection(of).await?;
        if !connection.send(&framed).await {
            self.connections[of] = None;
            return Ok(());
        }
        let mut d = Decoder::new(Bytes::copy_from_slice(record));
        let header = match CallHeader::decode(&mut d) {
            Ok(header) => header,
            Err(error) => {
                // A refusal, silence or the end.
                let refuses = error.reply().is_some();
                let wait = (!refuses).then_some(Duration::from_millis(100));
                let arrived = connection.reply(wait).await?;
                if !matches!(arrived, Arrived::Nothing) && !refuses {
                    self.connections[of] = None;
                }
                return match (arrived, refuses) {
                    (Arrived::Reply(_), false) => {
                        Err("a record that is no call is answered".into())
                    }
                    (Arrived::Nothing, true) => Err(format!("no answer to a call with {error}")),
                    _ => Ok(()),
                };
            }
        };
        match connection.reply(None).await? {
            Arrived::Reply(reply) => {
                outcome.answered += 1;
                replies::read(&mut self.calls.known[of], &header, reply)
            }
            Arrived::Closed if record.len() > RECORD_BYTES => {
                self.connections[of] = None;
                Ok(())
            }
            other => Err(format!("no reply to {header:?}: {other:?}")),
        }
    }

    /// Sends bytes that need not be a record on a connection of their own, which ends with them.
    async fn send_raw(
        &mut self,
        source: &mut Source<'_>,
        of: usize,
        outcome: &mut Outcome,
    ) -> Result<(), String> {
        self.connections[of] = None;
        let many = source.below(256);
        let mut bytes = source.bytes(many).to_vec();
        if source.one_in(2) {
            let earlier = source.pick(&self.sent).cloned().unwrap_or_default();
            bytes.extend((earlier.len() as u32 | 1 << 31).to_be_bytes());
            bytes.extend_from_slice(&earlier);
        }
        outcome.calls += 1;
        let connection = self.connection(of).await?;
        if connection.send(&bytes).await {
            while let Arrived::Reply(reply) = connection.reply(Some(LEASE)).await? {
                let header = Decoder::new(reply).get::<weir_rpc::ReplyHeader>();
                header.map_err(|error| format!("no header of a reply: {error}"))?;
            }
        }
        self.connections[of] = None;
        Ok(())
    }

    /// What the server holds, by the name of the limit, with the limit.
    fn held(&self) -> BTreeMap<String, (u64, u64)> {
        let mut held = BTreeMap::<String, (u64, u64)>::new();
        for line in self.server.report().open_metrics().lines() {
            let Some((name, value)) = line.rsplit_once(' ') else { continue };
            let Some((metric, label)) = name.split_once("{limit=\"") else { continue };
            let entry = held.entry(label.trim_end_matches("\"}").into()).or_default();
            match metric {
                "weir_limit_used" => entry.0 = value.parse().unwrap_or(u64::MAX),
                "weir_limit" => entry.1 = value.parse().unwrap_or(0),
                _ => {}
            }
        }
        held
    }

    /// Checks that the limits hold, and that a new client is served.
    async fn check(&mut self, outcome: &mut Outcome) -> Result<(), String> {
        let held = self.held();
        for (name, (used, limit)) in &held {
            // The first slot of a session always keeps its reply.
            let more = if name == "kept_reply_bytes" { limit + 16 * 4096 } else { 0 };
            if *used > limit + more {
                return Err(format!("{used} of {name}, {limit} are allowed"));
            }
        }
        let used = |name: &str| held.get(name).map_or(0, |(used, _)| *used);
        outcome.opens = used("opens");
        outcome.locks = used("locked_ranges");
        outcome.delegations = used("delegations");
        if self.cache.used_bytes() > self.cache.budget_bytes() {
            return Err(format!("{} bytes of pages", self.cache.used_bytes()));
        }
        self.served().await
    }

    /// NULL and GETATTR of the root, by a client of its own.
    async fn served(&mut self) -> Result<(), String> {
        let opened = Connection::open(CHECKER, self.address).await;
        let mut connection = opened.map_err(|error| format!("no connection: {error}"))?;
        let mut known = Known::default();
        let mut nothing = Source::new(&[]);
        let root = b"\0\0\0\0\0\0\0\0\0\0\0\x02\0\0\0\x18\0\0\0\x09\0\0\0\x01\0\0\0\x1a";
        let calls: [(u32, u32, u32, &[u8]); 4] = [
            (v3::PROGRAM, 3, 0, b""),
            (v4::PROGRAM, 4, 0, b""),
            (mount::PROGRAM, 3, 1, b"\0\0\0\x01/\0\0\0"),
            (v4::PROGRAM, 4, 1, root),
        ];
        for (program, version, procedure, args) in calls {
            let record = self.calls.call(&mut nothing, (program, version, procedure), args, false);
            let mark = record.len() as u32 | 1 << 31;
            connection.send(&[&mark.to_be_bytes()[..], &record].concat()).await;
            let header = CallHeader::decode(&mut Decoder::new(record.into()))
                .map_err(|error| error.to_string())?;
            let Arrived::Reply(reply) = connection.reply(None).await? else {
                return Err(format!("the server does not answer {header:?} any more"));
            };
            replies::read(&mut known, &header, reply.clone())?;
            // After the header of an accepted reply, a word that says success.
            if procedure == 1 && reply.slice(24..28)[..] != [0; 4] {
                return Err(format!("the server answers {header:?} with {reply:?}"));
            }
        }
        Ok(())
    }

    /// Lets the leases expire and checks that nothing is left.
    async fn end(mut self) -> Result<(), String> {
        self.connections = Default::default();
        sleep(2 * (LEASE + COURTESY)).await;
        // The lock manager's locks have no lease: they go with the export, and the hosts that held them when the
        // server looks for idle ones.
        let other = export(&self.cache, "other");
        self.server.set_exports(vec![other]).map_err(|error| error.to_string())?;
        sleep(LEASE + IDLE_HOSTS).await;
        for (name, (used, _)) in self.held() {
            if used > 0 {
                return Err(format!("{used} of {name} are left"));
            }
        }
        // Data of the export that is gone is written back in the background.
        sleep(Duration::from_secs(40)).await;
        self.server.stop();
        match timeout(Duration::from_secs(120), self.served).await {
            Ok(Ok(Ok(()))) => Ok(()),
            Ok(Ok(Err(error))) => Err(format!("the server cannot stop: {error}")),
            Ok(Err(error)) => Err(format!("the server panicked: {error}")),
            Err(_) => Err("the server does not stop".into()),
        }
    }
}
