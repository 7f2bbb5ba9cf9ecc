//! Seeds of the simulation, each in a process of its own; see docs/SIMULATION.md.

use std::process::{Command, Output};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Mutex, PoisonError};

/// Seeds of a run without `WEIR_SIM_SEEDS`.
const SEEDS: u64 = 50;

fn simulate(seed: u64, more: &[&str]) -> Output {
    let program = env!("CARGO_BIN_EXE_weir-sim");
    Command::new(program).arg(seed.to_string()).args(more).output().unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr[..]].concat()).into_owned()
}

/// The number in an environment variable.
fn number(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(value) => value.parse().unwrap_or_else(|_| panic!("{name}={value} is no number")),
        Err(_) => default,
    }
}

/// Runs seeds on all processors; those that fail, with what they say.
fn failing(from: u64, seeds: u64) -> Vec<(u64, String)> {
    let next = AtomicU64::new(from);
    let failed = Mutex::new(Vec::new());
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, SeqCst);
                    if seed >= from + seeds {
                        return;
                    }
                    let output = simulate(seed, &[]);
                    if !output.status.success() {
                        let mut failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
                        failed.push((seed, text(&output)));
                    }
                }
            });
        }
    });
    let mut failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
    failed.sort();
    failed
}

#[test]
fn seeds_find_nothing() {
    let failed = failing(number("WEIR_SIM_FROM", 1), number("WEIR_SIM_SEEDS", SEEDS));
    let seeds: Vec<u64> = failed.iter().map(|(seed, _)| *seed).collect();
    for (seed, said) in failed.iter().take(5) {
        println!("`cargo run -p weir-sim -- {seed} --trace` shows what led to this:\n{said}");
    }
    assert!(failed.is_empty(), "seeds {seeds:?} fail");
}

#[test]
fn a_seed_replays_exactly() {
    for seed in 1..5 {
        let (one, other) = (simulate(seed, &["--trace"]), simulate(seed, &["--trace"]));
        assert!(text(&one).contains("power cut") && text(&one).contains("fingerprint"));
        assert_eq!(text(&one), text(&other), "seed {seed}");
    }
    let lines = |seed| text(&simulate(seed, &[]));
    assert_ne!(lines(1).split("fingerprint").nth(1), lines(2).split("fingerprint").nth(1));
}

/// Each planted defect, and what of it is seen.
const PLANTED: &[(&str, &[&str])] = &[
    // A name is acknowledged and not durable.
    ("node-syncs", &["Stale", "name n"]),
    // COMMIT is acknowledged and the data is not durable.
    ("data-syncs", &["is allowed; last write"]),
    // The disk forgets some writes.
    ("writes", &["is allowed; last write"]),
    // The records of clients are not durable.
    ("records", &["the server does not start", "cannot be reclaimed", "lost a lock"]),
    // Calls are executed twice.
    ("twice", &["Exist", "NoEnt"]),
    // The server has forgotten its clients.
    ("clients", &["cannot be reclaimed", "lost a lock"]),
    // Clients keep delegations that they say they return.
    ("recalls", &["has a read delegation", "has a write delegation", "both have a delegation"]),
    // A request of NFSv4.0 that is sent again is executed again.
    ("seqids", &["Exist", "OldStateId", "BAD_SEQID"]),
    // Hosts that hold locks say that they have restarted.
    ("notices", &["both hold the lock"]),
];

#[test]
fn planted_defects_are_found() {
    for (plant, signs) in PLANTED {
        let found = (1..30).any(|seed| {
            let output = simulate(seed, &["--plant", plant]);
            let said = text(&output);
            !output.status.success() && signs.iter().any(|sign| said.contains(sign))
        });
        assert!(found, "30 seeds do not find {plant}");
    }
}
