//! Inputs from seeds, against a live server.

use std::time::{Duration, Instant};
use weir_hostile::seeds;
use weir_nfs::v4::OpCode;

/// Inputs of a run without `WEIR_FUZZ_SECONDS`.
const INPUTS: u64 = 400;
/// Inputs before the memory that the process uses is noted.
const WARM_UP: u64 = 200;
/// How much it may grow after that, in bytes.
const GROWTH: u64 = 96 << 20;

/// The number in an environment variable.
fn number(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{name}={value} is no number")))
}

/// The memory that the process uses, in bytes.
fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

#[test]
fn a_server_survives_hostile_clients() {
    let (from, seconds) = (number("WEIR_FUZZ_FROM").unwrap_or(1), number("WEIR_FUZZ_SECONDS"));
    let limit = seconds.map(Duration::from_secs);
    let last = if limit.is_some() { u64::MAX } else { from + INPUTS };
    let began = Instant::now();
    let first = seeds::run(from..from + WARM_UP, limit);
    let used = resident_bytes();
    let mut report = seeds::run(from + WARM_UP..last, limit);
    let grown = resident_bytes().saturating_sub(used);
    report.add(first);
    let rate = report.inputs as f64 / began.elapsed().as_secs_f64();
    println!("{report}\n{rate:.0} inputs per second");
    assert!(report.failures.is_empty(), "`cargo run -p weir-hostile -- SEED` repeats one");
    assert!(grown < GROWTH, "memory has grown by {grown} bytes");

    // The inputs reach what they are meant to reach.
    let outcome = &report.outcome;
    assert!(outcome.opens > 8 && outcome.locks > 2 && outcome.delegations > 0, "{outcome:?}");
    let of = |code: OpCode| outcome.results.get(code.name()).copied().unwrap_or_default();
    for code in [OpCode::Open, OpCode::Lock, OpCode::Sequence, OpCode::Write, OpCode::Read] {
        assert!(of(code).0 > 5, "{code:?} succeeds {} times", of(code).0);
    }
    let untried: Vec<_> = OpCode::ALL
        .iter()
        .filter(|code| weir_hostile::has_arguments(**code) && of(**code) == (0, 0))
        .collect();
    assert!(untried.is_empty(), "never answered: {untried:?}");
}
