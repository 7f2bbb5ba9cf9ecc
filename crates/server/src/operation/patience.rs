//! How long a call waits for another client or for a store before its client is told to try again.
//!
//! Only time in which this process runs counts. A server that was suspended has answers to read when it goes
//! on; to give up at once would delay every conflict whose delegate answered in the meantime.

use std::pin::pin;
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// How long a call waits in total.
const LIMIT: Duration = Duration::from_millis(1500);
/// Cap on the time counted between two checks of the clock.
const STEP: Duration = Duration::from_millis(100);

/// What is left of the time that a call may wait. What the call does between two waits counts, too.
#[derive(Debug)]
pub(crate) struct Patience {
    left: Duration,
    /// Since the last check of the clock.
    checked: Instant,
}

impl Patience {
    pub(crate) fn new() -> Self {
        Self::of(LIMIT)
    }

    fn of(left: Duration) -> Self {
        Self { left, checked: Instant::now() }
    }

    /// Waits for `what`; `None` if the time is used up first.
    pub(crate) async fn wait<T>(&mut self, what: impl Future<Output = T>) -> Option<T> {
        let mut what = pin!(what);
        loop {
            let done = timeout(self.left.min(STEP), what.as_mut()).await;
            self.spend(Instant::now());
            match done {
                Ok(done) => return Some(done),
                Err(_) if self.left.is_zero() => return None,
                Err(_) => {}
            }
        }
    }

    fn spend(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(std::mem::replace(&mut self.checked, now));
        self.left = self.left.saturating_sub(passed.min(STEP));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::{pending, ready};

    #[test]
    fn a_suspension_counts_as_one_step() {
        let mut patience = Patience::new();
        let mut spend = |passed| {
            patience.spend(patience.checked + passed);
            patience.left
        };
        spend(Duration::from_millis(30));
        let left = spend(Duration::from_secs(3600));
        assert_eq!(left, LIMIT - STEP - Duration::from_millis(30));
        (0..20).for_each(|_| _ = spend(STEP));
        assert!(spend(STEP).is_zero());
    }

    /// Otherwise a call that is woken again and again, for others, would wait without end.
    #[tokio::test]
    async fn the_time_between_two_waits_counts() {
        let mut patience = Patience::new();
        patience.checked -= STEP / 2;
        assert_eq!(patience.wait(ready(())).await, Some(()));
        assert!(patience.left <= LIMIT - STEP / 2);
    }

    #[tokio::test]
    async fn what_is_ready_is_returned_even_when_the_time_is_used_up() {
        let mut patience = Patience::of(Duration::ZERO);
        assert_eq!(patience.wait(ready(7)).await, Some(7));
        assert_eq!(patience.wait(pending::<()>()).await, None);
        assert_eq!(Patience::of(STEP * 2).wait(pending::<()>()).await, None);
    }
}
