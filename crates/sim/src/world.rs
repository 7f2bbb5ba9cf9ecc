//! What a simulation is made of: one server, which comes and goes, its disks, and the faults.

use crate::disk::{Disk, Lies};
use crate::host;
use crate::oracle::{Delegations, Files, Locks, Names};
use crate::records::Records;
use async_trait::async_trait;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio::time::sleep;
use weir_base::SystemClock;
use weir_pagecache::{Background, Cache, Config};
use weir_server::{Export, ExportOptions, HostNetwork, ProgramId, Server, ServerConfig, Squash};
use weir_stores::random::Random;
use weir_xdr::Bytes;

/// How long clients may be silent, and may reclaim after a restart.
pub(crate) const LEASE: Duration = Duration::from_secs(10);
/// How long things go wrong, in simulated time.
const CHAOS: Duration = Duration::from_secs(10);
/// How long the server takes to find that a call to a host is lost.
const LOST: Duration = Duration::from_secs(2);
/// The page cache's budget, in bytes.
const BUDGET: u64 = 1 << 20;

/// A defect that is planted, to see that the simulation finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Plant {
    /// The disk's syncs of names and attributes do nothing: names are acknowledged and not durable.
    NodeSyncs,
    /// The disk's syncs of data do nothing: COMMIT is acknowledged and the data is not durable.
    DataSyncs,
    /// The disk forgets some writes.
    Writes,
    /// Syncs of the server's records of clients do nothing.
    Records,
    /// The network delivers each call twice, the copy as a call of its own (with another number).
    Twice,
    /// A server that restarts has forgotten its clients.
    Clients,
    /// Clients say that they return their delegations, and do not.
    Recalls,
    /// A request of NFSv4.0 that is sent again counts as its owner's next: it is executed twice.
    Seqids,
    /// Hosts say that they have restarted when they have just taken a lock.
    Notices,
}

impl Plant {
    pub(crate) const ALL: &[(&str, Self)] = &[
        ("node-syncs", Self::NodeSyncs),
        ("data-syncs", Self::DataSyncs),
        ("writes", Self::Writes),
        ("records", Self::Records),
        ("twice", Self::Twice),
        ("clients", Self::Clients),
        ("recalls", Self::Recalls),
        ("seqids", Self::Seqids),
        ("notices", Self::Notices),
    ];
}

/// The server that runs.
pub(crate) struct Running {
    pub(crate) server: Server,
    served: JoinHandle<std::io::Result<()>>,
}

/// A directory and a name there.
type Path = (Vec<u8>, String);

/// The simulated world.
pub(crate) struct World {
    pub(crate) random: Mutex<Random>,
    pub(crate) disk: Arc<Disk>,
    records: Mutex<Arc<Records>>,
    state_dir: TempDir,
    pub(crate) server: Mutex<Option<Running>>,
    /// Starts of the server so far.
    run: AtomicU64,
    /// When the server that ran before stopped, and when this one started.
    pub(crate) restarted: Mutex<(Duration, Duration)>,
    /// The caches of all runs: an old one still has to let go of what it holds.
    caches: Mutex<Vec<Cache>>,
    /// Until when each client is cut off.
    partitions: Mutex<BTreeMap<usize, Duration>>,
    pub(crate) plant: Option<Plant>,
    seed: u64,
    /// A hash of all events.
    trace: AtomicU64,
    traces: bool,
    /// No more faults.
    pub(crate) calm: AtomicBool,
    pub(crate) files: Mutex<Files>,
    pub(crate) names: Mutex<Names>,
    pub(crate) locks: Mutex<Locks>,
    pub(crate) delegations: Mutex<Delegations>,
    /// Names of the files that all clients work on, by handle.
    pub(crate) file_names: Mutex<BTreeMap<Vec<u8>, String>>,
    /// Their directories and names there.
    pub(crate) paths: Mutex<BTreeMap<Vec<u8>, Path>>,
    /// The clients that run, by address.
    pub(crate) hosts: Mutex<BTreeMap<IpAddr, Weak<dyn Host>>>,
    me: Weak<Self>,
}

impl World {
    pub(crate) fn new(seed: u64, plant: Option<Plant>, traces: bool) -> Arc<Self> {
        let mut random = Random::new(seed);
        let lies = Lies {
            node_syncs: plant == Some(Plant::NodeSyncs),
            data_syncs: plant == Some(Plant::DataSyncs),
            writes: plant == Some(Plant::Writes),
        };
        let disk = Disk::new(random.number(), lies);
        let records = Records::new(random.number(), plant == Some(Plant::Records));
        let state_dir = TempDir::new().expect("a directory for the server's key");
        Arc::new_cyclic(|me| Self {
            random: Mutex::new(random),
            disk,
            records: Mutex::new(records),
            state_dir,
            server: Mutex::default(),
            run: AtomicU64::new(0),
            restarted: Mutex::default(),
            caches: Mutex::default(),
            partitions: Mutex::default(),
            plant,
            seed,
            trace: AtomicU64::new(0xcbf2_9ce4_8422_2325),
            traces,
            calm: AtomicBool::new(false),
            files: Mutex::default(),
            names: Mutex::default(),
            locks: Mutex::default(),
            delegations: Mutex::default(),
            file_names: Mutex::default(),
            paths: Mutex::default(),
            hosts: Mutex::default(),
            me: me.clone(),
        })
    }

    /// Notes an event; the events of a seed are always the same.
    pub(crate) fn event(&self, what: &str) {
        let line = format!("{:>12.6} {what}", host::now().as_secs_f64());
        let mut hash = self.trace.load(SeqCst);
        for byte in line.bytes() {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        self.trace.store(hash, SeqCst);
        if self.traces {
            eprintln!("{line}");
        }
    }

    /// What must not be has happened: the simulation ends here, as what follows tells no more.
    pub(crate) fn violation(&self, what: String) -> ! {
        self.event(&format!("VIOLATION: {what}"));
        println!("{what}");
        self.tell_end();
        // No destructor runs from here on.
        let _ = std::fs::remove_dir_all(self.state_dir.path());
        std::process::exit(1);
    }

    /// Says when the simulation ended, and how to know it again.
    pub(crate) fn tell_end(&self) {
        let (seed, fingerprint) = (self.seed, self.trace.load(SeqCst));
        println!("seed {seed}: fingerprint {fingerprint:016x}, {:?} simulated", host::now());
    }

    pub(crate) fn below(&self, limit: u64) -> u64 {
        self.random.lock().below(limit)
    }

    /// The number of the server's run.
    pub(crate) fn run(&self) -> u64 {
        self.run.load(SeqCst)
    }

    /// The lease of a client is good until then.
    pub(crate) fn renewed(&self, client: usize, until: Duration) {
        let times = (host::now(), until);
        self.locks.lock().renewed(client, times);
        self.delegations.lock().renewed(client, times);
    }

    /// The name of a file that all clients work on.
    pub(crate) fn file_name(&self, file: &[u8]) -> String {
        self.file_names.lock().get(file).cloned().unwrap_or_else(|| "a file".into())
    }

    pub(crate) fn is_cut_off(&self, client: usize) -> bool {
        self.partitions.lock().get(&client).is_some_and(|until| host::now() < *until)
    }

    /// Starts a server.
    pub(crate) fn start(&self) {
        let config = Config {
            budget_bytes: BUDGET,
            readahead_bytes: 64 << 10,
            background: Background::Rounds,
            ..Config::default()
        };
        let cache = Cache::new(config).expect("memory for a page cache");
        let fs = cache.mount(self.disk.store());
        let options = ExportOptions { squash: Squash::Nobody, ..ExportOptions::default() };
        let export = Export { path: "/".into(), source: "".into(), fs, options };
        let mut config = ServerConfig::new(vec![export], self.state_dir.path());
        config.state.lease = LEASE;
        config.grace = LEASE;
        config.admission.secure = false;
        // It ticks by itself: another thread's ticks would come at other times in each simulation.
        config.clock = Arc::new(SystemClock::default());
        let run = self.run() + 1;
        config.host_network = Some(Arc::new(Hosts { world: self.me.clone(), run }));
        if self.plant == Some(Plant::Clients) {
            *self.records.lock() = Records::new(1, false);
        }
        let records = self.records.lock().clone();
        // What is left of a server that is gone may try again to open them.
        let generation = records.generation();
        config.records = Some(Arc::new(move || records.open(generation)));
        let server = match Server::new(config) {
            Ok(server) => server,
            Err(error) => self.violation(format!("the server does not start: {error}")),
        };
        let serving = server.clone();
        let served = tokio::spawn(async move { serving.serve_all(Vec::new()).await });
        self.caches.lock().push(cache);
        self.run.fetch_add(1, SeqCst);
        self.restarted.lock().1 = host::now();
        self.locks.lock().restarted(host::now() + LEASE);
        *self.server.lock() = Some(Running { server, served });
        self.event(&format!("the server starts, run {}", self.run()));
    }

    /// Ends the server from one moment to the next; with the power, the disk loses what is not synced.
    pub(crate) fn crash(&self, with_power: bool) {
        let Some(running) = self.server.lock().take() else { return };
        let records = self.records.lock().clone();
        if with_power {
            let (kept, of) = self.disk.cut_power();
            records.cut_power();
            self.event(&format!("power cut: {kept} parts of {of} changes are kept"));
        } else {
            self.disk.kill();
            records.kill();
            self.event("the server is killed");
        }
        self.restarted.lock().0 = host::now();
        // What is left of the process reaches neither disk nor clients any more. It is told to end so that
        // its tasks do.
        running.server.stop();
    }

    /// Ends the server in order.
    async fn stop(&self) {
        let Some(running) = self.server.lock().take() else { return };
        self.event("the server is stopped");
        self.restarted.lock().0 = host::now();
        running.server.stop();
        match running.served.await {
            Ok(Ok(())) => {}
            Ok(Err(error)) if !self.disk.failures().0 && !self.disk.failures().1 => {
                self.violation(format!("the server cannot stop: {error}"));
            }
            Ok(Err(_)) => {}
            Err(error) => self.violation(format!("the server panicked: {error}")),
        }
        // The process is gone now.
        self.disk.kill();
        self.records.lock().kill();
        self.event("the server has stopped");
    }

    /// The background work of all page caches, and the check of their budget.
    pub(crate) async fn background(self: Arc<Self>) {
        loop {
            let pause = 1 + self.below(8);
            sleep(Duration::from_millis(pause)).await;
            let caches = self.caches.lock().clone();
            for cache in caches {
                cache.background_round();
                if cache.used_bytes() > cache.budget_bytes() {
                    let used = cache.used_bytes();
                    self.violation(format!("{used} bytes of pages, {BUDGET} are allowed"));
                }
            }
        }
    }

    /// Restarts the server in one of three ways.
    async fn restart(&self, how: u64) {
        match how {
            0 => self.stop().await,
            1 => self.crash(false),
            _ => self.crash(true),
        }
        sleep(Duration::from_millis(1 + self.below(3000))).await;
        self.start();
    }

    /// Lets things go wrong for a while; with a greater `pace`, for longer and as much less often.
    pub(crate) async fn chaos(&self, clients: usize, pace: u32) {
        let end = host::now() + CHAOS * pace;
        // Each simulation has some kinds of faults, so that some are not hidden behind others.
        let (io_errors, full) = (self.below(3) == 0, self.below(3) == 0);
        let restarts = self.below(4) != 0;
        while host::now() < end {
            sleep(Duration::from_millis(1 + self.below(1500)) * pace).await;
            match self.below(9) {
                how @ 0..3 if restarts => self.restart(how).await,
                3 | 4 => {
                    let client = self.below(clients as u64) as usize;
                    let most = if self.below(4) == 0 { 25_000 } else { 3000 };
                    let span = Duration::from_millis(self.below(most));
                    self.event(&format!("client {client} is cut off for {span:?}"));
                    self.partitions.lock().insert(client, host::now() + span);
                }
                5 => {
                    self.event("the disk is slow");
                    self.disk.trouble(|trouble| trouble.slow_ms = 400);
                    sleep(Duration::from_millis(self.below(2000))).await;
                    self.disk.trouble(|trouble| trouble.slow_ms = 16);
                }
                6 if io_errors => {
                    self.event("the disk fails calls");
                    let odds = 2 + self.below(20);
                    self.disk.trouble(|trouble| trouble.io_error_in = odds);
                    sleep(Duration::from_millis(self.below(1000))).await;
                    self.disk.trouble(|trouble| trouble.io_error_in = 0);
                }
                7 if full => {
                    self.event("the disk is full");
                    self.disk.trouble(|trouble| trouble.full = true);
                    sleep(Duration::from_millis(self.below(1000))).await;
                    self.disk.trouble(|trouble| trouble.full = false);
                }
                _ => {}
            }
        }
        self.partitions.lock().clear();
        self.event("calm");
        self.calm.store(true, SeqCst);
    }

    /// The last power cut, after which all that was acknowledged is looked for.
    pub(crate) async fn cut_power_at_last(&self) {
        self.restart(2).await;
    }
}

/// A client's host, as the server calls it.
pub(crate) trait Host: Send + Sync {
    /// It has crashed or ended.
    fn is_gone(&self) -> bool;
    fn is_cut_off(&self) -> bool;
    /// Executes a call of its lock manager or status monitor. Returns the results.
    fn execute(self: Arc<Self>, id: ProgramId, procedure: u32, args: Bytes) -> Option<Bytes>;
}

/// The server's way to programs of hosts: lock managers and status monitors.
struct Hosts {
    world: Weak<World>,
    /// The server's run.
    run: u64,
}

impl Hosts {
    /// The host, unless it is gone, or the server.
    fn host(&self, host: IpAddr) -> Option<Arc<dyn Host>> {
        let world = self.world.upgrade()?;
        let runs = world.run() == self.run && world.server.lock().is_some();
        let host = world.hosts.lock().get(&host)?.upgrade()?;
        (runs && !host.is_gone()).then_some(host)
    }

    /// Waits until a record has arrived. False: it is lost.
    async fn travel(&self) -> bool {
        let Some(world) = self.world.upgrade() else { return false };
        let latency = Duration::from_millis(1 + world.below(20));
        let lost = world.below(50) == 0 && !world.calm.load(SeqCst);
        sleep(if lost { LOST } else { latency }).await;
        !lost
    }
}

#[async_trait]
impl HostNetwork for Hosts {
    async fn call(
        &self,
        host: IpAddr,
        id: ProgramId,
        procedure: u32,
        args: Bytes,
    ) -> Option<Bytes> {
        if !self.travel().await {
            return None;
        }
        if self.host(host)?.is_cut_off() {
            sleep(LOST).await;
            return None;
        }
        let reply = self.host(host)?.execute(id, procedure, args)?;
        let arrives = self.travel().await && !self.host(host)?.is_cut_off();
        arrives.then_some(reply)
    }
}
