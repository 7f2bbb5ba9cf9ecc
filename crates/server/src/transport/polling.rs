//! Polls for the next call for a moment before the thread sleeps.
//!
//! A client that makes one small call at a time sends the next one a few microseconds after the
//! reply. If the server's thread sleeps by then, the wake-up delays both. So a connection whose
//! calls have come this way first polls its socket for a moment.
//!
//! 1. A connection whose calls do not come this way never polls. It earns credit with calls that
//!    come soon; a poll in vain takes most of the credit. If several calls were answered together,
//!    the client has others in flight and does not wait for these replies: then the connection
//!    does not poll.
//! 2. A poll lasts at most [`PATIENCE`], and at least one processor is left that no connection
//!    polls on.

use std::io;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Maximum duration of a poll.
const PATIENCE: Duration = Duration::from_micros(50);
/// A call that arrives this soon after a reply, wake-up included, would have been worth polling
/// for.
const SOON: Duration = Duration::from_micros(150);
/// Credit needed to poll. Each call that comes soon earns one.
const TRUST: u32 = 4;
const MOST_CREDIT: u32 = 16;
const LOSS: u32 = 6;
/// Number of successful polls in a row after which the next one is expected to succeed.
const STEADY: u32 = 8;

/// The polling connections of the process.
static POLLERS: Pollers = Pollers {
    now: AtomicUsize::new(0),
    most: LazyLock::new(|| std::thread::available_parallelism().map_or(0, |n| n.get() - 1)),
};

/// Predicts from a connection's earlier calls when the next one comes.
#[derive(Debug)]
pub(super) struct Polling {
    pollers: &'static Pollers,
    credit: u32,
    /// Successful polls since the last one that failed or was not allowed.
    found: u32,
    /// Calls since replies were last sent.
    calls: u32,
    /// When the last replies were sent; `None` once the next call has come, and if they were the
    /// replies to several calls.
    replied: Option<Instant>,
    /// The clock. Tests have their own.
    now: fn() -> Instant,
}

impl Default for Polling {
    fn default() -> Self {
        Self { pollers: &POLLERS, credit: 0, found: 0, calls: 0, replied: None, now: Instant::now }
    }
}

impl Polling {
    /// Notes a call.
    pub(super) fn called(&mut self) {
        self.calls = self.calls.saturating_add(1);
    }

    /// Notes that all replies have been sent.
    pub(super) fn replied(&mut self) {
        let is_alone = std::mem::take(&mut self.calls) <= 1;
        self.replied = is_alone.then(self.now);
    }

    /// Notes that bytes arrived without a poll.
    pub(super) fn arrived(&mut self) {
        match self.replied.take().map(|replied| (self.now)().duration_since(replied)) {
            Some(after) if after < SOON => self.credit = (self.credit + 1).min(MOST_CREDIT),
            Some(_) => self.credit = self.credit.saturating_sub(1),
            None => {}
        }
    }

    /// Whether polls have been finding calls.
    pub(super) fn is_steady(&self) -> bool {
        self.found >= STEADY
    }

    /// Calls `read` for a moment until bytes have arrived. `None` if nothing came, or polling is
    /// not worthwhile.
    pub(super) fn look(
        &mut self,
        mut read: impl FnMut() -> io::Result<usize>,
    ) -> Option<io::Result<usize>> {
        let found = std::mem::take(&mut self.found);
        if self.credit < TRUST || self.replied.is_none() {
            return None;
        }
        let _polling = self.pollers.join()?;
        let end = (self.now)() + PATIENCE;
        loop {
            match read() {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                read => {
                    self.replied = None;
                    self.credit = (self.credit + 1).min(MOST_CREDIT);
                    self.found = found.saturating_add(1);
                    return Some(read);
                }
            }
            if (self.now)() >= end {
                self.credit = self.credit.saturating_sub(LOSS);
                return None;
            }
            (0..32).for_each(|_| std::hint::spin_loop());
        }
    }
}

#[derive(Debug)]
struct Pollers {
    now: AtomicUsize,
    most: LazyLock<usize>,
}

impl Pollers {
    /// Lets a connection poll, unless the maximum already does.
    fn join(&self) -> Option<PollingGuard<'_>> {
        let free = self.now.fetch_add(1, Ordering::Relaxed) < *self.most;
        let guard = PollingGuard(self);
        free.then_some(guard)
    }
}

/// A polling connection; stops on drop.
struct PollingGuard<'a>(&'a Pollers);

impl Drop for PollingGuard<'_> {
    fn drop(&mut self) {
        self.0.now.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    thread_local! {
        static NOW: Cell<Option<Instant>> = const { Cell::new(None) };
    }

    /// The test's clock: each reading is one microsecond after the previous one, however long the
    /// test is suspended.
    fn now() -> Instant {
        let now = NOW.get().map_or_else(Instant::now, |last| last + Duration::from_micros(1));
        NOW.set(Some(now));
        now
    }

    /// A connection that has just been answered, and is the only one that polls.
    fn polling(credit: u32) -> Polling {
        let pollers = Pollers { now: AtomicUsize::new(0), most: LazyLock::new(|| 1) };
        let pollers = Box::leak(Box::new(pollers));
        Polling { pollers, credit, found: 0, calls: 0, replied: Some(now()), now }
    }

    /// Whether a poll finds a call that arrives after `after` failed reads.
    fn look(polling: &mut Polling, mut after: u32) -> bool {
        let look = polling.look(|| match after.checked_sub(1) {
            Some(left) => {
                after = left;
                Err(io::ErrorKind::WouldBlock.into())
            }
            None => Ok(1),
        });
        look.is_some()
    }

    #[test]
    fn polling_happens_only_for_callers_that_call_soon() {
        let mut polling = polling(TRUST - 1);
        assert!(!look(&mut polling, 0), "not proven yet");
        polling.arrived();
        assert_eq!(polling.credit, TRUST);
        assert!(!look(&mut polling, 0), "nothing was answered, so nothing is due");
        polling.replied = now().checked_sub(SOON);
        polling.arrived();
        assert_eq!(polling.credit, TRUST - 1, "that one came late");
    }

    #[test]
    fn polling_does_not_follow_calls_that_were_answered_together() {
        let mut polling = polling(MOST_CREDIT);
        for (calls, polls) in [(1, true), (2, false), (32, false), (1, true)] {
            (0..calls).for_each(|_| polling.called());
            polling.replied();
            assert_eq!(look(&mut polling, 0), polls, "after {calls} calls");
        }
        polling.credit = 0;
        (0..2).for_each(|_| polling.called());
        polling.replied();
        polling.arrived();
        assert_eq!(polling.credit, 0, "no call would have been worth polling for");
    }

    #[test]
    fn an_empty_poll_costs_credit_and_ends() {
        let mut polling = polling(MOST_CREDIT);
        for found in 0..STEADY {
            assert_eq!(polling.is_steady(), found >= STEADY);
            assert!(look(&mut polling, 3));
            polling.replied();
        }
        assert!(polling.is_steady());
        let begin = now();
        assert!(!look(&mut polling, u32::MAX));
        assert!(now() - begin >= PATIENCE);
        assert_eq!(polling.credit, MOST_CREDIT - LOSS);
        assert!(!polling.is_steady());
        assert!(!(0..4).any(|_| look(&mut polling, u32::MAX)));
        assert!(polling.credit < TRUST);
        assert!(!look(&mut polling, 0));
        assert_eq!(polling.pollers.now.load(Ordering::Relaxed), 0);
    }
}
