//! Time as a parameter: tests advance a [`ManualClock`] for leases, grace and writeback ages.

use crate::sync::Mutex;
use crate::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};
use std::time::{Duration, Instant, SystemTime};

/// A source of monotonic and of wall-clock time.
pub trait Clock: Send + Sync + 'static {
    /// Time since an arbitrary fixed point; never decreases.
    fn monotonic(&self) -> Duration;
    /// The wall clock, which stamps files.
    fn wall(&self) -> SystemTime;
    /// Tells the clock that this process runs. Returns in what time to call this again; `None` if there is no need.
    fn tick(&self) -> Option<Duration> {
        None
    }
}

/// The machine's clocks.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock {
    start: Instant,
}

impl Default for SystemClock {
    fn default() -> Self {
        Self { start: Instant::now() }
    }
}

impl Clock for SystemClock {
    fn monotonic(&self) -> Duration {
        self.start.elapsed()
    }

    fn wall(&self) -> SystemTime {
        SystemTime::now()
    }
}

/// A clock whose monotonic time leaves out what passes while this process does not run (SIGSTOP, a frozen container):
/// what its peers send meanwhile waits in its sockets.
///
/// 1. A thread calls [`tick`](Clock::tick) every `TICK`. If the next tick comes more than `LONGEST_GAP` later, this
///    process did not run meanwhile, and only so much of the time counts.
/// 2. The time never goes back. No thread reads more than `LONGEST_GAP` beyond the last tick, which is what counts of
///    a gap.
/// 3. A reader takes no lock unless there is a gap. `skipped` is stored before `ticked`, so a reader that finds a tick
///    from after a gap finds another `skipped` than before, too.
#[derive(Debug, Default)]
pub struct RunningClock<C = SystemClock> {
    clock: C,
    /// The last tick, in the time of `clock`, in nanoseconds.
    ticked: AtomicU64,
    /// What was left out so far, in nanoseconds.
    skipped: AtomicU64,
    ticking: Mutex<()>,
}

/// Time between ticks.
const TICK: Duration = Duration::from_millis(250);
/// Longest time between ticks of a process that runs.
const LONGEST_GAP: Duration = Duration::from_secs(1);

impl<C: Clock> RunningClock<C> {
    fn nanos(&self) -> u64 {
        u64::try_from(self.clock.monotonic().as_nanos()).unwrap_or(u64::MAX)
    }
}

impl<C: Clock> Clock for RunningClock<C> {
    fn monotonic(&self) -> Duration {
        loop {
            let skipped = self.skipped.load(Acquire);
            let now = self.nanos();
            let gap = now.saturating_sub(self.ticked.load(Acquire));
            if u128::from(gap) > LONGEST_GAP.as_nanos() {
                self.tick();
            } else if self.skipped.load(Relaxed) == skipped {
                return Duration::from_nanos(now - skipped);
            }
        }
    }

    fn wall(&self) -> SystemTime {
        self.clock.wall()
    }

    fn tick(&self) -> Option<Duration> {
        let _one_at_a_time = self.ticking.lock();
        let (now, ticked) = (self.nanos(), self.ticked.load(Relaxed));
        let longest = u64::try_from(LONGEST_GAP.as_nanos()).unwrap_or(u64::MAX);
        let gap = now.saturating_sub(ticked).saturating_sub(longest);
        self.skipped.fetch_add(gap, Release);
        self.ticked.store(now, Release);
        Some(TICK)
    }
}

/// A clock that stands still except for calls of [`advance`](ManualClock::advance).
#[derive(Debug)]
pub struct ManualClock {
    now: Mutex<(Duration, SystemTime)>,
}

impl Default for ManualClock {
    fn default() -> Self {
        Self { now: Mutex::new((Duration::ZERO, SystemTime::UNIX_EPOCH)) }
    }
}

impl ManualClock {
    /// Moves both times forward by `by`.
    pub fn advance(&self, by: Duration) {
        let mut now = self.now.lock();
        now.0 += by;
        now.1 += by;
    }
}

impl Clock for ManualClock {
    fn monotonic(&self) -> Duration {
        self.now.lock().0
    }

    fn wall(&self) -> SystemTime {
        self.now.lock().1
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    /// A clock that was read `after` the last tick, and again `gap` later.
    fn across(after: Duration, gap: Duration) -> [Duration; 2] {
        let clock = RunningClock::<ManualClock>::default();
        let before = clock.monotonic();
        let read = [after, gap].map(|time| {
            clock.clock.advance(time);
            clock.monotonic() - before
        });
        // The clock goes on.
        clock.clock.advance(TICK);
        assert_eq!(clock.monotonic() - before, read[1] + TICK);
        read
    }

    #[test]
    fn time_in_which_the_process_does_not_run_is_left_out() {
        assert_eq!(across(TICK, TICK), [TICK, 2 * TICK]);
        for hours in [1, 1000] {
            let gap = Duration::from_secs(hours * 3600);
            assert_eq!(across(TICK, gap), [TICK, LONGEST_GAP]);
            assert_eq!(across(LONGEST_GAP, gap), [LONGEST_GAP; 2]);
        }
    }

    #[test]
    fn time_with_ticks_counts_in_full() {
        let clock = RunningClock::<ManualClock>::default();
        for _ in 0..1000 {
            clock.clock.advance(LONGEST_GAP);
            assert_eq!(clock.tick(), Some(TICK));
        }
        assert_eq!(clock.monotonic(), 1000 * LONGEST_GAP);
    }

    /// However the readers and the ticks meet.
    #[test]
    fn no_reader_sees_the_time_go_back_or_jump() {
        let clock = RunningClock::<ManualClock>::default();
        let gap = Duration::from_secs(100);
        std::thread::scope(|threads| {
            for _ in 0..3 {
                threads.spawn(|| {
                    let mut last = Duration::ZERO;
                    while last < 1000 * LONGEST_GAP {
                        let now = clock.monotonic();
                        assert!(now >= last, "{last:?}, then {now:?}");
                        last = now;
                    }
                });
            }
            for _ in 0..1000 {
                clock.clock.advance(gap);
                clock.tick();
            }
        });
        assert_eq!(clock.monotonic(), 1000 * LONGEST_GAP);
    }
}
