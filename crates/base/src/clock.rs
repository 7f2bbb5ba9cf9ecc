//! Time as a parameter: tests advance a [`ManualClock`] for leases, grace and writeback ages.

use crate::sync::Mutex;
use std::time::{Duration, Instant, SystemTime};

/// A source of monotonic and of wall-clock time.
pub trait Clock: Send + Sync + 'static {
    /// Time since an arbitrary fixed point; never decreases.
    fn monotonic(&self) -> Duration;
    /// The wall clock, which stamps files.
    fn wall(&self) -> SystemTime;
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
