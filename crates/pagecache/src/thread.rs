//! Threads of a cache: start, restart after a panic, sleep and wake-up.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;
use weir_base::sync::{Condvar, Mutex};

/// Who runs the background work of a cache: writeback, reclaim, and the end of what callers dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Background {
    /// Threads of the cache.
    #[default]
    Threads,
    /// The caller, with one call of [`Cache::background_round`](crate::Cache::background_round)
    /// after the other. A simulation does so, whose order of events must not depend on threads.
    Rounds,
}

/// Starts a thread of the cache.
pub(crate) fn try_spawn(name: &str, f: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    std::thread::Builder::new().name(name.into()).spawn(f).map(drop)
}

/// Runs a thread's loop to its end, and restarts it after a panic: without its flusher or its
/// reclaimer, a cache would silently stop accepting writes.
pub(crate) fn restart_on_panic(name: &str, run: impl Fn()) {
    while catch_unwind(AssertUnwindSafe(&run)).is_err() {
        tracing::error!("bug: thread {name} of the page cache panicked; it is restarted");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Wakes one thread. A wake-up before the thread sleeps is not lost.
#[derive(Default)]
pub(crate) struct Signal {
    kicked: Mutex<bool>,
    wake: Condvar,
}

impl Signal {
    /// Wakes the thread, or keeps it from falling asleep.
    pub(crate) fn kick(&self) {
        let mut kicked = self.kicked.lock();
        if !*kicked {
            *kicked = true;
            self.wake.notify_one();
        }
    }

    /// Sleeps until kicked, at most `at_most`.
    pub(crate) fn sleep(&self, at_most: Duration) {
        let mut kicked = self.kicked.lock();
        if !*kicked {
            let _ = self.wake.wait_for(&mut kicked, at_most);
        }
        *kicked = false;
    }
}
