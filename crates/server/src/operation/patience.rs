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

/// What is left of the time that a call may wait.
#[derive(Debug)]
pub(crate) struct Patience(Duration);

impl Patience {
    pub(crate) fn new() -> Self {
        Self(LIMIT)
    }

    /// Waits for `what`; `None` if the time is used up first.
    pub(crate) async fn wait<T>(&mut self, what: impl Future<Output = T>) -> Option<T> {
        let mut what = pin!(what);
        loop {
            let begun = Instant::now();
            let done = timeout(self.0.min(STEP), what.as_mut()).await;
            self.spend(begun.elapsed());
            match done {
                Ok(done) => return Some(done),
                Err(_) if self.0.is_zero() => return None,
                Err(_) => {}
            }
        }
    }

    fn spend(&mut self, elapsed: Duration) {
        self.0 = self.0.saturating_sub(elapsed.min(STEP));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::{pending, ready};

    #[test]
    fn a_suspension_counts_as_one_step() {
        let mut patience = Patience::new();
        patience.spend(Duration::from_millis(30));
        patience.spend(Duration::from_secs(3600));
        assert_eq!(patience.0, LIMIT - STEP - Duration::from_millis(30));
        (0..20).for_each(|_| patience.spend(STEP));
        assert!(patience.0.is_zero());
    }

    #[tokio::test]
    async fn what_is_ready_is_returned_even_when_the_time_is_used_up() {
        let mut patience = Patience(Duration::ZERO);
        assert_eq!(patience.wait(ready(7)).await, Some(7));
        assert_eq!(patience.wait(pending::<()>()).await, None);
        assert_eq!(Patience(STEP * 2).wait(pending::<()>()).await, None);
    }
}
