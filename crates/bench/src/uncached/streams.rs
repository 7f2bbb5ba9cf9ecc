//! Concurrent streams, sampled every second.

use crate::measure::{Roles, histogram, processor_times};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// The combined result of some streams.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Outcome {
    /// MB in each whole second.
    pub(crate) per_second_mb: Vec<f64>,
    /// Over the whole time, including making the data durable.
    pub(crate) mb_per_s: f64,
    pub(crate) bytes: u64,
    pub(crate) seconds: f64,
    /// The part of `seconds` for the final sync.
    pub(crate) sync_seconds: f64,
    /// Processor time of this process.
    pub(crate) user_s: f64,
    pub(crate) system_s: f64,
    /// The same by the threads' roles.
    pub(crate) cpu_s: BTreeMap<String, f64>,
    /// Durations of calls, in microseconds.
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) p999_us: f64,
    /// The first call that failed.
    pub(crate) error: Option<String>,
}

impl Outcome {
    /// Processor seconds per 10^9 bytes.
    pub(crate) fn cpu_per_gb(&self) -> f64 {
        (self.user_s + self.system_s) / (self.bytes.max(1) as f64 / 1e9)
    }

    /// The slowest second as a share of the median one.
    pub(crate) fn steadiness(&self) -> f64 {
        let slowest = self.per_second_mb.iter().copied().fold(f64::INFINITY, f64::min);
        slowest / crate::measure::median(&self.per_second_mb)
    }
}

/// Counters that the streams update.
pub(crate) struct Meter<'a> {
    stop: &'a AtomicBool,
    bytes: &'a AtomicU64,
    calls: Histogram<u64>,
    error: Option<String>,
}

impl Meter<'_> {
    pub(crate) fn stopped(&self) -> bool {
        self.stop.load(Relaxed)
    }

    /// A call of this duration has transferred this many bytes.
    pub(crate) fn moved(&mut self, bytes: usize, took: Duration) {
        self.bytes.fetch_add(bytes as u64, Relaxed);
        self.calls.saturating_record((took.as_nanos() as u64).max(1));
    }

    /// The stream ends here.
    pub(crate) fn failed(&mut self, error: impl std::fmt::Display) {
        self.error = Some(error.to_string());
    }
}

/// Runs `count` streams for `time`; `each_second` gets the MB of every second. In the end, `sync`
/// makes the written data durable.
pub(crate) fn run(
    count: usize,
    time: Duration,
    stream: impl Fn(usize, &mut Meter<'_>) + Sync,
    mut each_second: impl FnMut(f64),
    sync: impl FnOnce(),
) -> Outcome {
    let (stop, bytes) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut outcome = Outcome::default();
    let mut calls = histogram();
    let (roles, (user, system)) = (Roles::now(), processor_times());
    let start = Instant::now();
    std::thread::scope(|scope| {
        let (stop, bytes, stream) = (&stop, &bytes, &stream);
        let threads: Vec<_> = (0..count)
            .filter_map(|i| {
                let work = move || {
                    let mut meter = Meter { stop, bytes, calls: histogram(), error: None };
                    stream(i, &mut meter);
                    (meter.calls, meter.error)
                };
                std::thread::Builder::new()
                    .name(format!("stream-{i}"))
                    .spawn_scoped(scope, work)
                    .ok()
            })
            .collect();
        let mut before = 0;
        for second in 1.. {
            let due = Duration::from_secs(second).min(time);
            std::thread::sleep(due.saturating_sub(start.elapsed()));
            let now = bytes.load(Relaxed);
            if due == Duration::from_secs(second) {
                let mb = (now - before) as f64 / 1e6;
                outcome.per_second_mb.push(mb);
                each_second(mb);
            }
            before = now;
            if due == time || threads.iter().all(|thread| thread.is_finished()) {
                break;
            }
        }
        let used = Roles::now().since(&roles);
        outcome.cpu_s = used.into_iter().map(|(role, s)| (role.to_owned(), s)).collect();
        stop.store(true, Relaxed);
        for thread in threads {
            if let Ok((of_thread, error)) = thread.join() {
                // Both have the same bounds.
                let _ = calls.add(of_thread);
                outcome.error = outcome.error.take().or(error);
            }
        }
    });
    let until_sync = Instant::now();
    sync();
    outcome.sync_seconds = until_sync.elapsed().as_secs_f64();
    outcome.seconds = start.elapsed().as_secs_f64();
    let (user_after, system_after) = processor_times();
    (outcome.user_s, outcome.system_s) = (user_after - user, system_after - system);
    outcome.bytes = bytes.load(Relaxed);
    outcome.mb_per_s = outcome.bytes as f64 / 1e6 / outcome.seconds;
    let quantile = |q| calls.value_at_quantile(q) as f64 / 1e3;
    (outcome.p50_us, outcome.p99_us) = (quantile(0.5), quantile(0.99));
    outcome.p999_us = quantile(0.999);
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_summed() {
        let work = |_, meter: &mut Meter<'_>| {
            // Once at least: the thread may begin later than the time is over.
            loop {
                std::thread::sleep(Duration::from_millis(1));
                meter.moved(1000, Duration::from_millis(1));
                if meter.stopped() {
                    break;
                }
            }
        };
        let outcome = run(2, Duration::from_millis(50), work, |_| {}, || {});
        assert!(outcome.bytes > 0 && outcome.error.is_none());
        assert!(outcome.p50_us > 900.0 && outcome.p50_us < 1100.0);
    }
}
