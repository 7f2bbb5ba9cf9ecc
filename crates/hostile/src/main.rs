//! Runs inputs of seeds against a live server.
//!
//! ```text
//! weir-hostile 17             the input of one seed
//! weir-hostile 1..100000      of many
//! weir-hostile FILE           an input that a fuzzer found
//! ```

use std::process::ExitCode;
use std::time::Instant;
use weir_hostile::{seeds, server};

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [what] = &args[..] else { return usage() };
    if let Ok(input) = std::fs::read(what) {
        return match server::run(&input) {
            Ok(outcome) => {
                println!("{outcome:?}");
                ExitCode::SUCCESS
            }
            Err(why) => {
                println!("{what}: {why}");
                ExitCode::FAILURE
            }
        };
    }
    let (from, to) = match what.split_once("..").map(|(from, to)| (from.parse(), to.parse())) {
        Some((Ok(from), Ok(to))) => (from, to),
        None => match what.parse::<u64>() {
            Ok(seed) => (seed, seed + 1),
            Err(_) => return usage(),
        },
        Some(_) => return usage(),
    };
    let began = Instant::now();
    let report = seeds::run(from..to, None);
    println!("{report}");
    println!("{:.0} inputs per second", report.inputs as f64 / began.elapsed().as_secs_f64());
    if report.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn usage() -> ExitCode {
    eprintln!("usage: weir-hostile SEED|FROM..TO|FILE");
    ExitCode::from(2)
}
