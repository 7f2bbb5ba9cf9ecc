//! Mixed load of all versions on a server that is killed and restarted, with clients that vanish.
//!
//! 1. Each worker has a directory of its own and knows what the server has acknowledged there: every byte is read
//!    back over NFS and, at the end, in the served directory. No step creates a name anew that the server has
//!    acknowledged, nor uses one that has come back after the server has acknowledged its removal: the step would hide
//!    the loss.
//! 2. Workers of version 4 count in one shared file under its lock: a lock that two of them hold at once loses a count.
//! 3. The peak of the server's resident memory stays within its budget, what it had after its start, and what the table
//!    of limits allows.
//! 4. When all clients have left, descriptors, threads and state are as after the start.
//!
//! `WEIR_SOAK_SECONDS` is the time of the load. docs/RELIABILITY.md has the command for an hour.

mod common;

use common::{Server, scratch, weir, within};
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io::{self, BufRead, BufReader, ErrorKind, Seek, SeekFrom, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};
use weir_client::LockRange;
use weir_client::blocking::{Export, File};

const MIB: u64 = 1 << 20;
const BUDGET: u64 = 32 * MIB;
const LEASE: Duration = Duration::from_secs(8);
const VERSIONS: [&str; 4] = ["3", "4.0", "4.1", "4.2"];
/// Of each version; the second one leaves the server's cache as it was.
const WORKERS: usize = 2;
/// Steps of a worker until its client leaves and another one comes.
const STEPS: usize = 60;
/// Files of a worker, and the largest size of each: all together do not fit the budget.
const FILES: u64 = 8;
const SIZE: u64 = 2 * MIB;
/// Most of one write or read.
const PIECE: u64 = 300_000;
/// Time that an operation may take: the server is away for less than that.
const PATIENCE: Duration = Duration::from_secs(90);

/// What the limits of docs/LIMITS.md allow beside the budget, at the settings of `Soak::configure`.
const ALLOWANCE: u64 = CALLS + REPLIES + 2 * KEPT_REPLIES + OWNERS + 2 * RETRANSMITTED + JOURNAL;
const CALLS: u64 = 4 * MIB;
const REPLIES: u64 = 16 * MIB;
const KEPT_REPLIES: u64 = MIB;
const OWNERS: u64 = MIB;
/// Replies for retransmitted calls, for NFSv3 and 4.0 each.
const RETRANSMITTED: u64 = 16 * MIB;
/// What the journal of changes of names says of earlier runs.
const JOURNAL: u64 = 4 * MIB;

#[test]
fn a_server_under_mixed_load_with_restarts_keeps_every_byte_and_returns_to_where_it_began() {
    let seconds = std::env::var("WEIR_SOAK_SECONDS").map_or(1, |text| text.parse().unwrap());
    let soak = Soak::new();
    let server = soak.start(0);
    let load = &Load::new(server.port, Duration::from_secs(seconds));
    let (server, kept) = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..VERSIONS.len() * WORKERS)
            .map(|number| scope.spawn(move || Worker::new(load, number).run()))
            .collect();
        let vanishing = scope.spawn(|| vanish(load, &soak));
        let server = soak.restart_under(load, server, Duration::from_secs(seconds));
        let kept: Vec<_> = workers.into_iter().map(|worker| worker.join().unwrap()).collect();
        vanishing.join().unwrap();
        (server, kept)
    });
    soak.note_peak(&server);
    let workers = (VERSIONS.len() * WORKERS) as u64;
    let restarts = load.restarts.load(SeqCst);
    let (steps, repeated) = (load.steps.load(SeqCst), load.repeated.load(SeqCst));
    assert!(steps >= workers && restarts > 0, "{load}");
    assert!(repeated <= restarts * workers, "{load}");
    println!("{load}; highest memory beyond the start {} KiB", soak.highest.load(SeqCst) >> 10);
    soak.await_start(&server, seconds < 10);
    for (dir, files) in kept {
        let dir = soak.export.join(dir);
        let names = fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<_> = names.map(|name| name.into_string().unwrap()).collect();
        names.sort();
        assert!(names.iter().eq(files.keys()), "{}: {names:?}", dir.display());
        for (name, bytes) in files {
            assert!(fs::read(dir.join(&name)).unwrap() == bytes, "{}/{name}", dir.display());
        }
    }
    let counted = fs::read_to_string(soak.export.join("count")).unwrap_or_default();
    assert_eq!(counted.trim().parse().unwrap_or(0), load.counted.load(SeqCst), "a lost lock");
}

/// The load would cover the loss otherwise.
#[test]
fn the_load_takes_no_removed_name_that_comes_back_for_a_new_one() {
    let soak = Soak::new();
    let server = soak.start(0);
    let load = Load::new(server.port, Duration::ZERO);
    let mut worker = Worker::new(&load, VERSIONS.len() - 1);
    let export = worker.connect();
    export.create_dir(&worker.dir).unwrap();
    for name in 0..FILES {
        fs::write(soak.export.join(worker.path(&name.to_string())), "back").unwrap();
    }
    for _ in 0..4 {
        catch_unwind(AssertUnwindSafe(|| worker.create(&export))).unwrap_err();
    }
    worker.files.insert("0".to_owned(), b"back".to_vec());
    // To its own name, it does nothing.
    let mut rename = || catch_unwind(AssertUnwindSafe(|| worker.rename(&export, "0"))).is_err();
    assert!((0..100).any(|_| rename()));
    // And a name that it has acknowledged is not just missing.
    fs::remove_file(soak.export.join(worker.path("0"))).unwrap();
    catch_unwind(AssertUnwindSafe(|| worker.remove(&export, "0"))).unwrap_err();
}

/// A server and its directories.
struct Soak {
    dir: tempfile::TempDir,
    export: PathBuf,
    /// After the first start, without clients.
    base: OnceLock<Figures>,
    /// The highest resident memory of any run beyond that.
    highest: AtomicU64,
}

/// A process's resources.
#[derive(Debug)]
struct Figures {
    resident: u64,
    /// What they refer to; without directories, of which a store keeps the last ones open (docs/LIMITS.md).
    descriptors: Vec<String>,
    /// Their names; without the store's pool, which starts up to 16 on demand, and the kernel's for io_uring.
    threads: Vec<String>,
}

impl Soak {
    fn new() -> Self {
        let dir = scratch();
        let export = dir.path().canonicalize().unwrap().join("export");
        fs::create_dir(&export).unwrap();
        Self { dir, export, base: OnceLock::new(), highest: AtomicU64::new(0) }
    }

    fn configure(&self, port: u16) -> PathBuf {
        let text = format!(
            "[server]\nlisten = \"127.0.0.1:{port}\"\nbudget = {BUDGET}\nlease = {lease}\nstate_dir = {state:?}\n\
             [limits]\ncourtesy = 0\nclients = 256\nsessions = 256\nopens = 1024\nlocks = 1024\n\
             call_bytes = {CALLS}\nreply_bytes = {REPLIES}\nkept_reply_bytes = {KEPT_REPLIES}\nowner_bytes = {OWNERS}\n\
             [[export]]\npath = {export:?}\nname = \"/soak\"\nsquash = \"none\"\n",
            lease = LEASE.as_secs(),
            state = self.dir.path().join("state"),
            export = self.export,
        );
        let path = self.dir.path().join("weir.toml");
        fs::write(&path, text).unwrap();
        path
    }

    fn start(&self, port: u16) -> Server {
        let mut command = weir(["serve", "--json", "--log", "warn", "--config"]);
        command.arg(self.configure(port)).env("XDG_RUNTIME_DIR", self.dir.path());
        let server = Server::spawn(command);
        // It announces its address just before it listens at the control socket.
        within(PATIENCE, || held(self.dir.path()).map(drop));
        self.base.get_or_init(|| Figures::of(&server));
        server
    }

    /// Kills the server, or stops it, in the first two thirds of the time, and starts it again.
    fn restart_under(&self, load: &Load, mut server: Server, time: Duration) -> Server {
        let between = (time / 3).clamp(Duration::from_millis(500), Duration::from_secs(30));
        let begun = Instant::now();
        for restart in 1.. {
            let at = begun + between * restart;
            if at > begun + time * 2 / 3 {
                break;
            }
            std::thread::sleep(at.saturating_duration_since(Instant::now()));
            self.note_peak(&server);
            let port = server.port;
            load.restarts.fetch_add(1, SeqCst);
            // Every third time it may write out what it has.
            let signal = if restart % 3 == 0 { Signal::TERM } else { Signal::KILL };
            server.signal(signal);
            server.ended();
            server = self.start(port);
            load.restarted.fetch_add(1, SeqCst);
        }
        server
    }

    fn base(&self) -> &Figures {
        self.base.get().unwrap()
    }

    /// Checks the highest resident memory of this run.
    fn note_peak(&self, server: &Server) {
        let (peak, start) = (kib_of(server, "VmHWM:"), self.base().resident);
        let beyond = peak.saturating_sub(start);
        self.highest.fetch_max(beyond, SeqCst);
        let most = BUDGET / 20 * 21 + ALLOWANCE;
        assert!(beyond <= most, "{peak} bytes resident, {start} after the start");
    }

    /// Waits until the server has let go of everything that clients made it hold; `at_once`: of what it lets go of
    /// before clients' records expire, and idle threads of its runtime end.
    fn await_start(&self, server: &Server, at_once: bool) {
        let (begun, base) = (Instant::now(), self.base());
        loop {
            let (held, now) = (held(self.dir.path()).unwrap(), Figures::of(server));
            let is_back = held.iter().all(|(name, _)| at_once && name == "clients")
                && now.descriptors.len() <= base.descriptors.len()
                && (at_once || now.threads.len() <= base.threads.len());
            if is_back {
                let (resident, took) = (now.resident >> 10, begun.elapsed().as_secs_f64());
                println!("after {took:.1} s as after the start; {resident} KiB resident");
                return;
            }
            let what = || format!("{held:?}; {now:?}; after the start {base:?}");
            assert!(begun.elapsed() < LEASE * 6, "{}", what());
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

impl Figures {
    fn of(server: &Server) -> Self {
        let entries = |what: &str| {
            let dir = fs::read_dir(format!("/proc/{}/{what}", server.child.id())).unwrap();
            dir.map(|entry| entry.unwrap().path())
        };
        // Either may end while this looks.
        let descriptors = entries("fd")
            .filter(|fd| fs::metadata(fd).is_ok_and(|target| !target.is_dir()))
            .filter_map(|fd| fs::read_link(fd).ok());
        let names = entries("task")
            .filter_map(|task| fs::read_to_string(task.join("comm")).ok())
            .filter(|name| !name.starts_with("weir-io") && !name.starts_with("iou-wrk"));
        let resident = kib_of(server, "VmRSS:");
        Self {
            resident,
            descriptors: descriptors.map(|target| target.display().to_string()).collect(),
            threads: names.map(|name| name.trim().to_owned()).collect(),
        }
    }
}

/// A size in the process's status, in bytes.
fn kib_of(server: &Server, field: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", server.child.id())).unwrap();
    let line = status.lines().find(|line| line.starts_with(field)).unwrap();
    line.split_ascii_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

/// The limits of which clients hold something; `None` if the server does not answer yet.
fn held(runtime: &Path) -> Option<Vec<(String, u64)>> {
    let output = weir(["status", "--json"]).env("XDG_RUNTIME_DIR", runtime).output().unwrap();
    if !output.status.success() {
        return None;
    }
    let status: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let limits = status[0]["limits"].as_array().unwrap();
    let used = limits.iter().map(|limit| {
        let name = limit["name"].as_str().unwrap();
        (name.to_owned(), limit["used"].as_u64().unwrap())
    });
    let used: Vec<_> = used.collect();
    assert!(used.iter().any(|(name, _)| name == "opens"), "{status}");
    Some(used.into_iter().filter(|(_, used)| *used > 0).collect())
}

/// What the clients share, and what they have done.
struct Load {
    port: u16,
    until: Instant,
    /// Restarts of the server that have begun, and that have ended.
    restarts: AtomicU64,
    restarted: AtomicU64,
    steps: AtomicU64,
    clients: AtomicU64,
    vanished: AtomicU64,
    verified: AtomicU64,
    counted: AtomicU64,
    /// Changes of names that were made before a restart, and reported as failed after it.
    repeated: AtomicU64,
}

impl Load {
    fn new(port: u16, time: Duration) -> Self {
        let until = Instant::now() + time;
        let [restarts, restarted, steps, clients, vanished, verified, counted, repeated] =
            Default::default();
        Self {
            port,
            until,
            restarts,
            restarted,
            steps,
            clients,
            vanished,
            verified,
            counted,
            repeated,
        }
    }

    fn is_over(&self) -> bool {
        Instant::now() >= self.until
    }

    fn url(&self, path: &str, version: &str) -> String {
        let port = self.port;
        format!("nfs://127.0.0.1:{port}/soak{path}?mountport={port}&timeo=20&vers={version}")
    }
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { restarts, steps, clients, vanished, verified, counted, repeated, .. } = self;
        let verified = verified.load(SeqCst) >> 20;
        write!(
            f,
            "{steps:?} steps of {clients:?} clients, {vanished:?} vanished, {restarts:?} restarts; "
        )?;
        write!(f, "{verified} MiB verified, {counted:?} counted, {repeated:?} changes repeated")
    }
}

/// Clients that end without a word: one that holds a lock, or one in the middle of a copy. Another program removes
/// what they leave behind.
fn vanish(load: &Load, soak: &Soak) {
    let mut random = Random(99);
    let (dir, big) = (soak.export.join("vanish"), soak.dir.path().join("big"));
    fs::write(&big, random.bytes(8 * MIB)).unwrap();
    for (round, version) in VERSIONS.iter().cycle().enumerate() {
        if round > 0 && load.is_over() {
            return;
        }
        fs::create_dir(&dir).unwrap();
        let at = load.url(&format!("/vanish/{round}"), version);
        // A lock of version 3 stays until its host says that it has restarted.
        if *version == "3" || random.below(2) == 0 {
            let copy =
                weir(["cp".as_ref(), big.as_os_str(), at.as_ref()]).stderr(Stdio::null()).spawn();
            let mut copy = copy.unwrap();
            std::thread::sleep(Duration::from_millis(random.below(150)));
            copy.kill().unwrap();
            copy.wait().unwrap();
        } else {
            let lock = weir(["lock", &at, "sh", "-c", "echo locked; exec cat"])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::null())
                .spawn();
            let mut lock = lock.unwrap();
            let mut said = String::new();
            BufReader::new(lock.stdout.take().unwrap()).read_line(&mut said).unwrap();
            // Empty if the server was away when it began.
            assert!(["locked\n", ""].contains(&&*said), "vers={version}: {said}");
            lock.kill().unwrap();
            lock.wait().unwrap();
        }
        load.vanished.fetch_add(1, SeqCst);
        // The server may still execute the last call of the client that is gone.
        within(PATIENCE, || fs::remove_dir_all(&dir).ok());
    }
}

/// Clients, one after the other, of one version in a directory of their own.
struct Worker<'a> {
    load: &'a Load,
    version: &'static str,
    dir: String,
    url: String,
    random: Random,
    /// The files by name, as the server has acknowledged them.
    files: BTreeMap<String, Vec<u8>>,
}

impl<'a> Worker<'a> {
    fn new(load: &'a Load, number: usize) -> Self {
        let version = VERSIONS[number % VERSIONS.len()];
        let mut url = load.url("", version);
        if number >= VERSIONS.len() {
            url.push_str("&uncached");
        }
        let (dir, random) = (format!("worker-{number}"), Random(number as u64));
        Self { load, version, dir, url, random, files: BTreeMap::new() }
    }

    /// Works until the time is over. Returns its directory and files.
    fn run(mut self) -> (String, BTreeMap<String, Vec<u8>>) {
        let export = self.connect();
        export.create_dir_all(&self.dir).unwrap();
        export.close();
        let mut is_over = false;
        while !is_over {
            let export = self.connect();
            self.verify(&export);
            for _ in 0..STEPS {
                self.step(&export);
                self.load.steps.fetch_add(1, SeqCst);
                is_over = self.load.is_over();
                if is_over {
                    break;
                }
            }
            // Dropped, it leaves in the background.
            if self.random.below(2) == 0 {
                export.close();
            }
        }
        let export = self.connect();
        self.verify(&export);
        export.close();
        (self.dir, self.files)
    }

    /// A new client; waits for a server that is away.
    fn connect(&self) -> Export {
        let begun = Instant::now();
        loop {
            match Export::connect(&self.url) {
                Ok(export) => {
                    self.load.clients.fetch_add(1, SeqCst);
                    return export.with_time_limit(PATIENCE);
                }
                Err(error) => assert!(begun.elapsed() < PATIENCE, "{}: {error}", self.url),
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn path(&self, name: &str) -> String {
        format!("{}/{name}", self.dir)
    }

    fn check<T>(&self, result: io::Result<T>) -> T {
        result.unwrap_or_else(|error| panic!("{}: {error}", self.url))
    }

    fn open(&self, export: &Export, name: &str) -> File {
        let options = weir_client::OpenOptions::new().read(true).write(true);
        self.check(export.open_with(self.path(name), &options))
    }

    fn step(&mut self, export: &Export) {
        let present = self.files.len() as u64;
        let Some(name) = self.files.keys().nth(self.random.below(present.max(1)) as usize).cloned()
        else {
            return self.create(export);
        };
        match self.random.below(12) {
            0 | 1 => self.create(export),
            2 | 3 => self.write(export, &name),
            4 => self.stream(export, &name),
            5 | 6 => self.read(export, &name),
            7 => self.rename(export, &name),
            8 => self.remove(export, &name),
            9 => self.list(export),
            10 => self.resize(export, &name),
            _ if self.version == "4.2" && self.random.below(2) == 0 => self.punch(export, &name),
            _ if self.version == "3" => self.lock(export, &name),
            _ => self.count(export),
        }
    }

    fn create(&mut self, export: &Export) {
        let name = self.random.below(FILES).to_string();
        let options = weir_client::OpenOptions::new().write(true);
        let options = match (self.files.contains_key(&name), self.random.below(2)) {
            (true, _) => options.truncate(true),
            (false, 0) => options.create_new(true),
            (false, _) => {
                self.check_presence(export, &name);
                options.create(true)
            }
        };
        let file = self.check(export.open_with(self.path(&name), &options));
        let len = self.random.below(PIECE);
        let data = self.random.bytes(len);
        self.check(file.write_at(0, data.clone()));
        self.files.insert(name, data);
    }

    fn write(&mut self, export: &Export, name: &str) {
        let (at, len) = (self.random.below(SIZE - PIECE), self.random.below(PIECE));
        let data = self.random.bytes(len);
        let file = self.open(export, name);
        self.check(file.write_at(at, data.clone()));
        self.wrote(name, at, &data);
    }

    fn stream(&mut self, export: &Export, name: &str) {
        let (at, len) = (self.random.below(SIZE - PIECE), self.random.below(PIECE));
        let data = self.random.bytes(len);
        let mut file = self.open(export, name);
        self.check(file.seek(SeekFrom::Start(at)));
        for piece in data.chunks(10_000) {
            self.check(file.write_all(piece));
        }
        self.check(file.sync_all());
        self.wrote(name, at, &data);
    }

    fn wrote(&mut self, name: &str, at: u64, data: &[u8]) {
        let (at, bytes) = (at as usize, self.files.get_mut(name).unwrap());
        // An empty write extends nothing.
        if !data.is_empty() {
            bytes.resize(bytes.len().max(at + data.len()), 0);
            bytes[at..at + data.len()].copy_from_slice(data);
        }
    }

    fn read(&mut self, export: &Export, name: &str) {
        let (at, len) = (self.random.below(SIZE), self.random.below(PIECE));
        let file = self.open(export, name);
        let found = self.check(file.read_at(at, len as usize));
        let bytes = &self.files[name];
        let range = bytes.len().min(at as usize)..bytes.len().min((at + len) as usize);
        assert!(found == bytes[range], "{}: {name} at {at}", self.url);
        self.load.verified.fetch_add(found.len() as u64, SeqCst);
    }

    fn rename(&mut self, export: &Export, name: &str) {
        let to = self.random.below(FILES).to_string();
        if to == name {
            return;
        }
        let (from_path, to_path) = (self.path(name), self.path(&to));
        self.check_presence(export, name);
        self.check_presence(export, &to);
        self.change_names(|| export.rename(from_path, to_path));
        let bytes = self.files.remove(name).unwrap();
        self.files.insert(to, bytes);
    }

    fn remove(&mut self, export: &Export, name: &str) {
        let path = self.path(name);
        self.check_presence(export, name);
        self.change_names(|| export.remove_file(path));
        self.files.remove(name);
    }

    /// Checks that the server has a name if it has acknowledged it last, and does not if it has acknowledged its end.
    fn check_presence(&self, export: &Export, name: &str) {
        let is_there = self.check(export.try_exists(self.path(name)));
        assert_eq!(is_there, self.files.contains_key(name), "{}: {name}", self.url);
    }

    /// A change of names that the server made just before a restart may fail when the client sends it again
    /// (docs/RELIABILITY.md); whether it was made is verified later.
    fn change_names(&self, change: impl FnOnce() -> io::Result<()>) {
        let ended = self.load.restarted.load(SeqCst);
        match change() {
            Err(error)
                if error.kind() == ErrorKind::NotFound
                    && self.load.restarts.load(SeqCst) > ended =>
            {
                self.load.repeated.fetch_add(1, SeqCst);
            }
            done => self.check(done),
        }
    }

    fn list(&self, export: &Export) {
        let entries = self.check(export.read_dir(&self.dir));
        let mut names: Vec<_> = entries
            .map(|entry| self.check(entry).file_name().to_str().unwrap().to_owned())
            .collect();
        names.sort();
        assert!(names.iter().eq(self.files.keys()), "{}: {names:?}", self.url);
    }

    fn resize(&mut self, export: &Export, name: &str) {
        let size = self.random.below(SIZE);
        let file = self.open(export, name);
        self.check(file.set_len(size));
        self.files.get_mut(name).unwrap().resize(size as usize, 0);
    }

    fn punch(&mut self, export: &Export, name: &str) {
        let (at, len) = (self.random.below(SIZE), 1 + self.random.below(PIECE));
        let file = self.open(export, name);
        self.check(file.punch_hole(at, len));
        let bytes = self.files.get_mut(name).unwrap();
        let range = bytes.len().min(at as usize)..bytes.len().min((at + len) as usize);
        bytes[range].fill(0);
    }

    fn lock(&mut self, export: &Export, name: &str) {
        let file = self.open(export, name);
        self.check(file.lock(LockRange::ALL, true));
        self.check(file.unlock(LockRange::ALL));
    }

    /// Adds one to a number that others count, too.
    fn count(&mut self, export: &Export) {
        let options = weir_client::OpenOptions::new().read(true).write(true).create(true);
        let file = self.check(export.open_with("count", &options));
        self.check(file.lock(LockRange::ALL, true));
        let before = self.check(file.read_at(0, 100));
        let before: u64 = std::str::from_utf8(&before).unwrap().trim().parse().unwrap_or(0);
        self.check(file.write_at(0, format!("{:>20}", before + 1)));
        self.load.counted.fetch_add(1, SeqCst);
        self.check(file.unlock(LockRange::ALL));
    }

    /// Reads everything back.
    fn verify(&self, export: &Export) {
        self.list(export);
        for (name, bytes) in &self.files {
            let found = self.check(export.read(self.path(name)));
            assert!(found == bytes[..], "{}: {name}", self.url);
            self.load.verified.fetch_add(found.len() as u64, SeqCst);
        }
    }
}

/// Numbers that look random: SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    fn bytes(&mut self, len: u64) -> Vec<u8> {
        let words = (0..len.div_ceil(8)).flat_map(|_| self.next().to_le_bytes());
        words.take(len as usize).collect()
    }
}
