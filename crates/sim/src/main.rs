//! Simulates one server, its clients, network, clock and disk in one process, from one seed.
//!
//! ```text
//! weir-sim 17                one seed; exits with 1 and says why if something is wrong
//! weir-sim 17 --trace        with all events
//! weir-sim 1..1000           many, each in a process of its own
//! weir-sim 17 --plant twice  with a planted defect; see Plant::ALL
//! ```
//!
//! 1. Everything happens in one thread, on a runtime whose clock stands still unless all tasks wait, and
//!    then jumps to the next time that a task waits for. Latencies come from the seed, and make the order of events.
//! 2. One process runs one seed, so no global state of one seed is there in another. The last line says
//!    the seed's fingerprint: a hash of all events with their times.

mod client;
mod disk;
mod host;
mod network;
mod oracle;
mod records;
mod worker;
mod world;

use client::{Client, Version};
use std::collections::BTreeMap;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};
use worker::{Places, Worker};
use world::{Plant, World};

/// Clients of a simulation.
const CLIENTS: usize = 4;
/// The versions that a client has with the same odds.
const VERSIONS: [Version; 6] =
    [Version::V3, Version::V40, Version::V41, Version::V41, Version::V42, Version::V42];
/// How long all of it may last, in simulated time.
const LONGEST: Duration = Duration::from_secs(600);
/// How long a seed may run on a slow machine; it takes a second.
const LONGEST_IN_REAL_TIME: Duration = Duration::from_secs(600);

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let traces = args.iter().any(|arg| arg == "--trace");
    let plant = match args.iter().position(|arg| arg == "--plant").map(|at| args.get(at + 1)) {
        None => None,
        Some(name) => match Plant::ALL.iter().find(|(known, _)| Some(*known) == name.map(|n| &**n))
        {
            Some((_, plant)) => Some(*plant),
            None => return usage(),
        },
    };
    match args.first().map(|seeds| seeds.split_once("..").ok_or(seeds)) {
        Some(Ok((from, to))) => match (from.parse(), to.parse()) {
            (Ok(from), Ok(to)) => many(from, to, &args[1..]),
            _ => usage(),
        },
        Some(Err(seed)) => match seed.parse() {
            Ok(seed) => one(seed, plant, traces),
            Err(_) => usage(),
        },
        None => usage(),
    }
}

fn usage() -> ExitCode {
    let plants: Vec<&str> = Plant::ALL.iter().map(|(name, _)| *name).collect();
    eprintln!("usage: weir-sim SEED|FROM..TO [--trace] [--plant {}]", plants.join("|"));
    ExitCode::from(2)
}

/// Runs seeds, each in a process of its own.
fn many(from: u64, to: u64, args: &[String]) -> ExitCode {
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(error) => {
            eprintln!("cannot tell which program this is: {error}");
            return ExitCode::FAILURE;
        }
    };
    let mut failed = Vec::new();
    for seed in from..to {
        let output = Command::new(&program).arg(seed.to_string()).args(args).output();
        if !matches!(&output, Ok(output) if output.status.success()) {
            failed.push(seed);
            let said = output.map(|output| [output.stdout, output.stderr].concat());
            println!("seed {seed}: {}", String::from_utf8_lossy(&said.unwrap_or_default()));
        }
    }
    println!("{} seeds, {} failed: {failed:?}", to.saturating_sub(from), failed.len());
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs one seed in this process.
fn one(seed: u64, plant: Option<Plant>, traces: bool) -> ExitCode {
    end_what_hangs();
    end_at_a_panic(seed);
    host::begin(seed);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .on_thread_unpark(follow_clock)
        .build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("cannot start the runtime: {error}");
            return ExitCode::FAILURE;
        }
    };
    let world = World::new(seed, plant, traces);
    runtime.block_on(async {
        if timeout(LONGEST, simulate(&world)).await.is_err() {
            world.violation("the simulation does not end".into());
        }
    });
    world.tell_end();
    // What is left waits for replies that never come.
    runtime.shutdown_background();
    ExitCode::SUCCESS
}

/// Ends the program when it takes far longer than a seed does: a lock that is taken twice, or a loop that
/// never waits, holds up its only thread, and with it simulated time.
fn end_what_hangs() {
    std::thread::spawn(|| {
        // Of the machine's time, which the simulation does not replace for this.
        std::thread::sleep(LONGEST_IN_REAL_TIME);
        eprintln!("the simulation hangs");
        std::process::exit(1);
    });
}

/// Ends the program at any panic: those of background tasks would otherwise be seen by none.
fn end_at_a_panic(seed: u64) {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        report(info);
        eprintln!("seed {seed} panics");
        std::process::exit(1);
    }));
}

thread_local! {
    static BEGUN: std::cell::Cell<Option<Instant>> = const { std::cell::Cell::new(None) };
}

/// The runtime's clock may have jumped: the process's goes with it.
fn follow_clock() {
    if let Some(begun) = BEGUN.get() {
        host::set_now(begun.elapsed());
    }
}

async fn simulate(world: &Arc<World>) {
    BEGUN.set(Some(Instant::now()));
    world.start();
    tokio::spawn(world.clone().background());
    let versions = [(); CLIENTS].map(|()| VERSIONS[world.below(VERSIONS.len() as u64) as usize]);
    // With these, a grace period lasts until its end, and most calls wait for that.
    let waits = versions.iter().any(|version| matches!(version, Version::V3 | Version::V40));
    let pace = if waits { 4 } else { 1 };
    let clients: Vec<Arc<Client>> = (0..)
        .zip(versions)
        .map(|(number, version)| Client::new(world, number, version, 1))
        .collect();
    let places = Arc::new(set_up(world, &clients).await);
    let mut working = Vec::new();
    for client in clients {
        working.push(tokio::spawn(live(world.clone(), client, places.clone())));
    }
    world.chaos(CLIENTS, pace).await;
    for worker in working {
        if let Err(error) = worker.await {
            world.violation(format!("a client panicked: {error}"));
        }
    }
    world.cut_power_at_last().await;
    let client = Client::new(world, 1, Version::V42, 100);
    let last = Worker { client, world: world.clone(), places };
    last.client.mount().await;
    last.check_all().await;
}

/// Makes what all clients work on, while nothing goes wrong.
async fn set_up(world: &Arc<World>, clients: &[Arc<Client>]) -> Places {
    let mut places = Places { dirs: Vec::new(), files: BTreeMap::new(), lock_file: Vec::new() };
    let root = clients[0].mount().await;
    let made = |what: &str, result: Result<Vec<u8>, client::Failure>| match result {
        Ok(handle) => handle,
        Err(error) => world.violation(format!("{what} cannot be made: {error:?}")),
    };
    let maker = &clients[0];
    places.lock_file = made("the file to lock", maker.create(&root, "locks").await.result);
    let locks = (root.clone(), "locks".to_owned());
    world.paths.lock().insert(places.lock_file.clone(), locks);
    for client in clients {
        let number = client.number;
        let dir = made("a directory", maker.mkdir(&root, &format!("dir {number}")).await.result);
        for part in 0..2 {
            let name = format!("file {number}.{part}");
            let file = made("a file", maker.create(&dir, &name).await.result);
            world.file_names.lock().insert(file.clone(), name.clone());
            world.paths.lock().insert(file.clone(), (dir.clone(), name.clone()));
            places.files.insert(name, file);
        }
        places.dirs.push(dir);
    }
    places
}

/// A client's life: it may crash, and come back some time later as another start of the same client.
async fn live(world: Arc<World>, mut client: Arc<Client>, places: Arc<Places>) {
    for boot in 2.. {
        let (number, version) = (client.number, client.version);
        let worker =
            Worker { client: client.clone(), world: world.clone(), places: places.clone() };
        let span = Duration::from_millis(2000 + world.below(20_000));
        let is_long = boot > 3;
        if is_long {
            return worker.work().await;
        }
        if timeout(span, worker.work()).await.is_ok() {
            return;
        }
        world.event(&format!("client {number} crashes"));
        client.link.end();
        // Its next start gives them up.
        world.locks.lock().held.retain(|_, holder| holder.client != number);
        world.delegations.lock().crashed(number);
        // What the server still executes of its calls has ended by then.
        sleep(Duration::from_secs(3) + Duration::from_millis(world.below(3000))).await;
        client = Client::new(&world, number, version, boot);
    }
}
