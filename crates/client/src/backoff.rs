//! Backoff before something is tried again: what a server puts off (DELAY, GRACE, JUKEBOX), or a
//! connection to one that is away.
//!
//! 1. They double, up to a second. That is what a client may wait longer than it would have to when a
//!    grace period ends, or a server is back.
//! 2. A soft mount waits for [`SOFT_PATIENCE`] in all.

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(10);
const FIRST_TO_CONNECT: Duration = Duration::from_millis(50);
const LONGEST: Duration = Duration::from_secs(1);
const SOFT_PATIENCE: Duration = Duration::from_secs(20);

/// How long one request waits between its attempts.
pub(crate) struct Backoff {
    hard: bool,
    next: Duration,
    passed: Duration,
}

impl Backoff {
    /// For a request of a mount that is `hard`, or soft.
    pub(crate) fn new(hard: bool) -> Self {
        Self { hard, next: FIRST, passed: Duration::ZERO }
    }

    /// For what never gives up, or gives up for another reason.
    pub(crate) fn endless() -> Self {
        Self::new(true)
    }

    /// Between attempts to connect, which cost a server that is just starting more than a call.
    pub(crate) fn to_connect() -> Self {
        Self { next: FIRST_TO_CONNECT, ..Self::endless() }
    }

    /// Waits; or says at once that there was enough of that.
    pub(crate) async fn wait(&mut self) -> bool {
        if !self.hard && self.passed >= SOFT_PATIENCE {
            return false;
        }
        tokio::time::sleep(self.next).await;
        self.passed += self.next;
        self.next = (self.next * 2).min(LONGEST);
        true
    }
}
