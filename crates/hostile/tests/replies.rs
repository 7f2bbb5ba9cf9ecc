//! Inputs from seeds, against a live client.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use weir_hostile::client::Honest;
use weir_hostile::seeds;

/// Inputs of a run without `WEIR_FUZZ_SECONDS`.
const INPUTS: u64 = 48;
/// Inputs at a time: most of them wait.
const AT_A_TIME: usize = 12;
/// How much memory the process may use in the end, in bytes.
const MOST_BYTES: u64 = 1 << 30;

/// The number in an environment variable.
fn number(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{name}={value} is no number")))
}

/// The most memory that the process has used, in bytes.
fn most_resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

#[test]
fn a_client_survives_a_hostile_server() {
    let panics = Arc::new(AtomicU64::new(0));
    let (counted, before) = (panics.clone(), std::panic::take_hook());
    std::panic::set_hook(Box::new(move |panic| {
        counted.fetch_add(1, SeqCst);
        before(panic);
    }));
    let (from, seconds) = (number("WEIR_FUZZ_FROM").unwrap_or(1), number("WEIR_FUZZ_SECONDS"));
    let began = Instant::now();
    let goes_on = |seed: u64| match seconds {
        Some(seconds) => began.elapsed() < Duration::from_secs(seconds),
        None => seed < from + INPUTS,
    };
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let (mut inputs, mut succeeded, mut failed) = (0, 0, 0);
    runtime.unwrap().block_on(async {
        let honest = Honest::start().await;
        let (mut running, mut seed) = (JoinSet::new(), from);
        loop {
            while running.len() < AT_A_TIME && goes_on(seed) {
                let (honest, now) = (honest.clone(), seed);
                running.spawn(async move { (now, honest.run(&seeds::input(now)).await) });
                seed += 1;
            }
            let Some(ended) = running.join_next().await else { break };
            let (seed, result) = ended.expect("an input panics");
            let (of_this, failed_of_this) =
                result.unwrap_or_else(|why| panic!("seed {seed}: {why}"));
            (inputs, succeeded, failed) =
                (inputs + 1, succeeded + of_this, failed + failed_of_this);
        }
    });
    let rate = inputs as f64 / began.elapsed().as_secs_f64();
    println!(
        "{inputs} inputs: {succeeded} operations succeed, {failed} fail; {rate:.1} inputs per second"
    );
    assert_eq!(panics.load(SeqCst), 0, "the client panics");
    assert!(most_resident_bytes() < MOST_BYTES, "{} bytes", most_resident_bytes());
    assert!(
        succeeded > inputs && failed > inputs / 8,
        "the replies are changed too often, or never"
    );
}
