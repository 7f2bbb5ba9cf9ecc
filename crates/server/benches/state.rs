//! What state costs with 10 to 10,000 clients: each opens one file that all share and a file of its own, locks, reads,
//! unlocks and closes them. Prints the time of each operation, and the memory of each client.
//!
//! `cargo bench -p weir-server --bench state`

#[path = "../tests/common/mod.rs"]
mod common;

use common::in_use;
use std::fmt::Write;
use std::sync::Barrier;
use std::thread;
use std::time::Instant;
use weir_server::{LoadedFile, StateLoad};

const CLIENTS: [usize; 3] = [10, 1000, 10_000];
/// Calls of each operation, in rounds of one per client.
const CALLS: usize = 20_000;
const SHARED: usize = 0;
/// READs of a thread that competes with others, each in a session of its own.
const READS: u32 = 200_000;
/// Each count of threads is measured as often, and the shortest time taken.
const TRIALS: u32 = 7;
/// A range that every client locks for reading.
const COMMON: (u64, u64) = (1 << 40, 1 << 41);

/// The nanoseconds of each call of the operations, in the order of their first calls.
#[derive(Default)]
struct Times(Vec<(&'static str, Vec<u64>)>);

impl Times {
    /// Calls `operation` for each of `count` clients.
    fn each(&mut self, name: &'static str, count: usize, mut operation: impl FnMut(usize) -> bool) {
        let at = self.0.iter().position(|(other, _)| *other == name).unwrap_or_else(|| {
            self.0.push((name, Vec::with_capacity(CALLS)));
            self.0.len() - 1
        });
        for number in 0..count {
            let begun = Instant::now();
            let done = operation(number);
            self.0[at].1.push(begun.elapsed().as_nanos() as u64);
            assert!(done, "{name}: client {number} is refused");
        }
    }
}

/// The range that only this client locks.
fn own(number: usize) -> (u64, u64) {
    let start = number as u64 * 10;
    (start, start + 5)
}

/// The time of each operation, and the bytes that a client takes with both files open and locked.
fn measure(clients: usize) -> (Times, usize) {
    let rounds = CALLS / clients;
    let (mut times, mut bytes) = (Times::default(), 0);
    let empty = in_use();
    let mut load = StateLoad::default();
    (0..clients).for_each(|_| assert!(load.add_session()));
    for round in 0..rounds {
        let mut shared: Vec<LoadedFile> = Vec::with_capacity(clients);
        times.each("open, shared file", clients, |number| {
            shared.extend(load.open(number, SHARED));
            shared.len() == number + 1
        });
        times.each("lock, a range of its own", clients, |number| {
            let (start, end) = own(number);
            load.lock(&mut shared[number], start, end, true)
        });
        times.each("lock, the range of all, shared", clients, |number| {
            load.lock(&mut shared[number], COMMON.0, COMMON.1, false)
        });
        times.each("read, shared file", clients, |number| load.read(&shared[number]));
        times.each("read in a session", clients, |number| {
            load.read_in_session(number, &shared[number], round as u32 + 1)
        });
        times.each("read without an open", clients, |_| load.read_unopened(SHARED));
        let mut single: Vec<LoadedFile> = Vec::with_capacity(clients);
        times.each("open, own file", clients, |number| {
            single.extend(load.open(number, number + 1));
            single.len() == number + 1
        });
        times.each("lock, own file", clients, |number| load.lock(&mut single[number], 0, 10, true));
        if round == 0 {
            // Two vectors of the benchmark's own are among it.
            let own = 2 * clients * size_of::<LoadedFile>();
            let samples = times.0.iter().map(|(_, of)| of.capacity() * 8).sum::<usize>();
            let used = in_use() - empty - own - samples;
            bytes = used / clients;
        }
        times.each("unlock, own file", clients, |number| load.unlock(&mut single[number], 0, 10));
        times.each("close, own file", clients, |number| load.close(single[number]));
        times.each("unlock, a range of its own", clients, |number| {
            let (start, end) = own(number);
            load.unlock(&mut shared[number], start, end)
        });
        times.each("close, shared file, one lock", clients, |number| load.close(shared[number]));
    }
    (times, bytes)
}

/// The nanoseconds of a READ of each of `threads`, which read at once in sessions and files of their own while
/// `clients` have a session.
fn contend(clients: usize, threads: usize) -> u64 {
    let mut load = StateLoad::default();
    (0..clients).for_each(|_| assert!(load.add_session()));
    let opened = (0..threads).map(|number| load.open(number, number));
    let files: Vec<LoadedFile> = opened.map(|file| file.expect("it opens the file")).collect();
    let trial = |trial: u32| {
        let barrier = Barrier::new(threads);
        let read = |number: usize| {
            barrier.wait();
            let begun = Instant::now();
            for sequence in trial * READS + 1..=(trial + 1) * READS {
                assert!(load.read_in_session(number, &files[number], sequence));
            }
            begun.elapsed().as_nanos() as u64 / u64::from(READS)
        };
        thread::scope(|scope| {
            let all: Vec<_> =
                (0..threads).map(|number| scope.spawn(move || read(number))).collect();
            all.into_iter().map(|one| one.join().expect("it reads")).max()
        })
    };
    (0..TRIALS).filter_map(trial).min().unwrap_or(0)
}

fn main() {
    let runs = CLIENTS.map(measure);
    let mut table = String::from("ns, median : p99");
    for clients in CLIENTS {
        _ = write!(table, " | {clients}");
    }
    for (at, (name, _)) in runs[0].0.0.iter().enumerate() {
        _ = write!(table, "\n{name}");
        for (times, _) in &runs {
            let mut of = times.0[at].1.clone();
            of.sort_unstable();
            _ = write!(table, " | {} : {}", of[of.len() / 2], of[of.len() * 99 / 100]);
        }
    }
    table.push_str("\nbytes of a client");
    for (_, bytes) in &runs {
        _ = write!(table, " | {bytes}");
    }
    for threads in [1, 2] {
        _ = write!(table, "\nread in a session, {threads} threads at once");
        for clients in CLIENTS {
            _ = write!(table, " | {}", contend(clients, threads));
        }
    }
    println!("{table}");
}
