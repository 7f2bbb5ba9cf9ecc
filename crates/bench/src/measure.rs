//! Clocks and averages.

use hdrhistogram::Histogram;
use std::collections::BTreeMap;
use std::fs;
use std::hint::black_box;
use std::time::{Duration, Instant};
use weir_stores::random::Random;

/// Ticks per second of the processor times in `/proc/*/stat`.
const TICKS_PER_SECOND: f64 = 100.0;

/// Elapsed time, and this process's processor time in it, in seconds.
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
pub(crate) struct Times {
    pub(crate) real_s: f64,
    pub(crate) user_s: f64,
    pub(crate) system_s: f64,
}

impl Times {
    /// Measures a piece of work, to a hundredth of a second.
    pub(crate) fn of<T>(work: impl FnOnce() -> T) -> (Self, T) {
        let (user, system) = processor_times();
        let start = Instant::now();
        let result = work();
        let real_s = start.elapsed().as_secs_f64();
        let (user_after, system_after) = processor_times();
        (Self { real_s, user_s: user_after - user, system_s: system_after - system }, result)
    }
}

/// User and system time of this process so far, in seconds.
pub(crate) fn processor_times() -> (f64, f64) {
    processor_times_of("self").unwrap_or_default()
}

/// Processor time of a process so far, in seconds; `None` if there is no such process.
pub(crate) fn processor_seconds_of(process: u32) -> Option<f64> {
    processor_times_of(&process.to_string()).map(|(user, system)| user + system)
}

/// Processor time of all ended processes that this one has started and waited for, in seconds.
pub(crate) fn children_seconds() -> f64 {
    fields_of("self", [13, 14]).map_or(0.0, |[user, system]| user + system)
}

fn processor_times_of(process: &str) -> Option<(f64, f64)> {
    fields_of(process, [11, 12]).map(|[user, system]| (user, system))
}

/// Two times in seconds, by the numbers of their fields after the name in `/proc/*/stat`.
fn fields_of(process: &str, numbers: [usize; 2]) -> Option<[f64; 2]> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name, in parentheses, may contain spaces.
    let fields: Vec<&str> =
        stat.rsplit_once(')').map_or(Vec::new(), |(_, rest)| rest.split_whitespace().collect());
    let ticks = |i: usize| fields.get(i).and_then(|f| f.parse::<f64>().ok()).unwrap_or(0.0);
    Some(numbers.map(|number| ticks(number) / TICKS_PER_SECOND))
}

/// Processor seconds by role, of the existing threads.
#[derive(Clone, Debug, Default)]
pub(crate) struct Roles(BTreeMap<u32, (&'static str, f64)>);

impl Roles {
    /// Reads the times of all threads of this process.
    pub(crate) fn now() -> Self {
        let mut roles = BTreeMap::new();
        for entry in fs::read_dir("/proc/self/task").into_iter().flatten().flatten() {
            let Some(id) = entry.file_name().to_str().and_then(|n| n.parse().ok()) else {
                continue;
            };
            let read = |name| fs::read_to_string(entry.path().join(name)).unwrap_or_default();
            let nanos = read("schedstat").split(' ').next().and_then(|n| n.parse::<f64>().ok());
            roles.insert(id, (role_of(read("comm").trim()), nanos.unwrap_or(0.0) / 1e9));
        }
        Self(roles)
    }

    /// Processor seconds used since `before`, by role. Threads that ended meanwhile are missing, so
    /// call this before they end.
    pub(crate) fn since(&self, before: &Self) -> BTreeMap<&'static str, f64> {
        let mut sums = BTreeMap::new();
        for (id, (role, seconds)) in &self.0 {
            let already = before.0.get(id).map_or(0.0, |(_, seconds)| *seconds);
            *sums.entry(*role).or_insert(0.0) += seconds - already;
        }
        sums
    }
}

/// The role of a thread, by its name.
fn role_of(name: &str) -> &'static str {
    match name {
        "weir-flush" => "flusher",
        "weir-reclaim" => "reclaim",
        "weir-ring" | "weir-io" => "device I/O",
        name if name.starts_with("stream") => "caller",
        name if name.starts_with("hot") => "hot reader",
        name if name.starts_with("iou-") => "io_uring worker",
        _ => "other",
    }
}

/// Durations in nanoseconds, up to a minute, with a resolution of a thousandth.
pub(crate) fn histogram() -> Histogram<u64> {
    match Histogram::new_with_bounds(1, 60_000_000_000, 3) {
        Ok(histogram) => histogram,
        Err(_) => unreachable!("the bounds are constants that it takes"),
    }
}

/// The median; 0 for no values.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => 0.0,
        len if len % 2 == 1 => sorted[len / 2],
        len => f64::midpoint(sorted[len / 2 - 1], sorted[len / 2]),
    }
}

/// The median of the ratios `a` to `b` of pairs measured together.
pub(crate) fn paired(a: &[f64], b: &[f64]) -> f64 {
    median(&a.iter().zip(b).map(|(a, b)| a / b).collect::<Vec<_>>())
}

/// The order of a round of `count` things: every second one goes backwards, so that none always follows the same.
pub(crate) fn in_turn(count: usize, round: usize) -> impl Iterator<Item = usize> {
    (0..count).map(move |i| if round.is_multiple_of(2) { i } else { count - 1 - i })
}

/// Offsets of blocks in a part of a file.
#[derive(Clone)]
pub(crate) struct Walk {
    block: u64,
    order: Order,
}

#[derive(Clone)]
enum Order {
    /// Sequential, up to the end and then again from the start.
    Sequential { at: u64, end: u64 },
    /// From a short list, repeatedly, so that generating them costs nothing.
    Listed { at: usize, list: Vec<u64> },
    /// Any of so many.
    Scattered { random: Random, blocks: u64 },
}

impl Walk {
    /// Consecutive blocks of the first `span` bytes, beginning with the one at `start`.
    pub(crate) fn sequential(span: u64, block: u64, start: u64) -> Self {
        let at = start / block * block % span;
        Self { block, order: Order::Sequential { at, end: span / block * block } }
    }

    /// 4096 random blocks of the first `span` bytes, repeatedly.
    pub(crate) fn random(span: u64, block: u64, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let blocks = (span / block).max(1);
        let list = (0..4096).map(|_| random.below(blocks) * block).collect();
        Self { block, order: Order::Listed { at: 0, list } }
    }

    /// Random blocks of the first `span` bytes, in a new order each time.
    pub(crate) fn scattered(span: u64, block: u64, seed: u64) -> Self {
        let blocks = (span / block).max(1);
        Self { block, order: Order::Scattered { random: Random::new(seed), blocks } }
    }

    #[inline]
    pub(crate) fn step(&mut self) -> u64 {
        match &mut self.order {
            Order::Sequential { at, end } => {
                let now = *at;
                *at = if now + self.block < *end { now + self.block } else { 0 };
                now
            }
            Order::Listed { at, list } => {
                *at = (*at + 1) % 4096;
                list[*at]
            }
            Order::Scattered { random, blocks } => {
                let wide = u128::from(random.number()) * u128::from(*blocks);
                (wide >> 64) as u64 * self.block
            }
        }
    }
}

/// Nanoseconds of processor time per call of `op` on the offsets of a walk, measured for about
/// `time`. Memory reads do not wait, so on an idle machine this is the elapsed time; on a busy one
/// it excludes the time of other processes.
pub(crate) fn nanos_per_op(walk: &mut Walk, time: Duration, mut op: impl FnMut(u64)) -> f64 {
    let batch = (1 << 17) / walk.block.max(512) + 1;
    let (start, mut ops) = (thread_time(), 0);
    loop {
        for _ in 0..batch {
            op(black_box(walk.step()));
        }
        ops += batch;
        let elapsed = thread_time().saturating_sub(start);
        if elapsed >= time {
            return elapsed.as_nanos() as f64 / ops as f64;
        }
    }
}

/// This thread's processor time so far.
fn thread_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_pairs() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(median(&[]), 0.0);
        assert_eq!(paired(&[2.0, 20.0, 300.0], &[1.0, 10.0, 100.0]), 2.0);
    }

    #[test]
    fn every_second_round_goes_backwards() {
        let order = |round| in_turn(3, round).collect::<Vec<_>>();
        assert_eq!([order(0), order(1), order(2)], [[0, 1, 2], [2, 1, 0], [0, 1, 2]]);
    }

    #[test]
    fn walks_stay_in_their_part() {
        let mut walk = Walk::sequential(1000, 300, 0);
        assert_eq!([0; 4].map(|_| walk.step()), [0, 300, 600, 0]);
        assert_eq!(Walk::sequential(1000, 300, 700).step(), 600);
        for mut walk in [Walk::random(1 << 20, 4096, 7), Walk::scattered(1 << 20, 4096, 7)] {
            assert!((0..10_000).map(|_| walk.step()).all(|at| at % 4096 == 0 && at < 1 << 20));
        }
    }

    #[test]
    fn this_process_has_used_some_time() {
        let (times, sum) = Times::of(|| (0..100_000_000u64).fold(0, |a, b| black_box(a ^ b)));
        assert!(times.real_s > 0.0 && sum < u64::MAX);
        assert!(Roles::now().since(&Roles::default()).values().sum::<f64>() > 0.0);
    }
}
