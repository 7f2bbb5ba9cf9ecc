//! Inputs from seeds, run one after the other.

use crate::server::{self, Outcome};
use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};
use weir_stores::random::Random;

/// Failures after which a run ends.
const FAILURES: usize = 5;
/// How long an input may take on a slow machine; it takes milliseconds.
const LONGEST: Duration = Duration::from_secs(60);

/// What the inputs of some seeds did.
#[derive(Debug, Default)]
pub struct Report {
    /// Inputs.
    pub inputs: u64,
    /// What they did.
    pub outcome: Outcome,
    /// Seeds that failed, and how.
    pub failures: Vec<(u64, String)>,
}

impl Report {
    /// Adds another run's.
    pub fn add(&mut self, other: Self) {
        self.inputs += other.inputs;
        self.outcome.add(&other.outcome);
        self.failures.extend(other.failures);
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (seed, why) in &self.failures {
            writeln!(f, "seed {seed}: {why}")?;
        }
        write!(f, "{} inputs: {:?}", self.inputs, self.outcome)
    }
}

/// The input of a seed.
pub fn input(seed: u64) -> Vec<u8> {
    let mut random = Random::new(seed);
    let len = 64 + random.below(1024) as usize;
    (0..len.div_ceil(8)).flat_map(|_| random.number().to_le_bytes()).collect()
}

/// Runs the inputs of seeds, no longer than `limit`.
pub fn run(seeds: Range<u64>, limit: Option<Duration>) -> Report {
    let (mut report, began) = (Report::default(), Instant::now());
    let watched = Watched::default();
    watched.clone().watch();
    for seed in seeds {
        watched.seed.store(seed, SeqCst);
        if limit.is_some_and(|limit| began.elapsed() > limit) || report.failures.len() == FAILURES {
            break;
        }
        let input = input(seed);
        report.inputs += 1;
        match catch_unwind(AssertUnwindSafe(|| server::run(&input))) {
            Ok(Ok(outcome)) => report.outcome.add(&outcome),
            Ok(Err(why)) => report.failures.push((seed, why)),
            Err(panic) => report.failures.push((seed, message(&*panic))),
        }
    }
    watched.has_ended.store(true, SeqCst);
    report
}

/// Ends the process if an input runs for very long, as nothing else can end a loop.
#[derive(Clone, Debug, Default)]
struct Watched {
    seed: Arc<AtomicU64>,
    has_ended: Arc<AtomicBool>,
}

impl Watched {
    fn watch(self) {
        std::thread::spawn(move || {
            let mut last = (self.seed.load(SeqCst), Instant::now());
            while !self.has_ended.load(SeqCst) {
                std::thread::sleep(Duration::from_millis(500));
                let seed = self.seed.load(SeqCst);
                if seed != last.0 {
                    last = (seed, Instant::now());
                }
                if last.1.elapsed() > LONGEST {
                    eprintln!("seed {seed}: does not end within {LONGEST:?}");
                    std::process::abort();
                }
            }
        });
    }
}

fn message(panic: &dyn Any) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    format!("panic: {}", text.unwrap_or("without a message"))
}
