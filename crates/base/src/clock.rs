//! Time, passed in: leases, grace and writeback ages are tested by turning a [`ManualClock`].

use crate::sync::Mutex;
use std::time::{Duration, Instant, SystemTime};

/// A source of monotonic and of wall-clock time.
pub trait Clock: Send + Sync + 'static {
    /// Time since an arbitrary fixed point; never goes back.
    fn monotonic(&self) -> Duration;
    /// The wall clock, as files are stamped with it.
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

/// A clock that stands still until told to [`advance`](ManualClock::advance).
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
