//! Backoff before a retry: of a request that the server delays (DELAY, GRACE, JUKEBOX), or of a
//! connection to a server that is down.
//!
//! 1. Pauses double, up to a second. This bounds how much longer than necessary a client waits when
//!    a grace period ends, or a server is back.
//! 2. A soft mount waits for [`SOFT_PATIENCE`] in total.

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(10);
const FIRST_TO_CONNECT: Duration = Duration::from_millis(50);
const LONGEST: Duration = Duration::from_secs(1);
const SOFT_PATIENCE: Duration = Duration::from_secs(20);

/// The pauses between one request's attempts.
pub(crate) struct Backoff {
    hard: bool,
    next: Duration,
    passed: Duration,
}

impl Backoff {
    /// For a request of a `hard` mount, or of a soft one.
    pub(crate) fn new(hard: bool) -> Self {
        Self { hard, next: FIRST, passed: Duration::ZERO }
    }

    /// For requests that never give up, or give up for another reason.
    pub(crate) fn endless() -> Self {
        Self::new(true)
    }

    /// Between attempts to connect, which cost a server that is starting more than a call does.
    pub(crate) fn to_connect() -> Self {
        Self { next: FIRST_TO_CONNECT, ..Self::endless() }
    }

    /// Waits, or returns false at once if the time is used up.
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
