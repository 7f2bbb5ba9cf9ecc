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
        let Some(pause) = self.pause() else { return false };
        tokio::time::sleep(pause).await;
        true
    }

    /// The next pause, or `None` if the time is used up.
    fn pause(&mut self) -> Option<Duration> {
        if !self.hard && self.passed >= SOFT_PATIENCE {
            return None;
        }
        let pause = self.next;
        self.passed += pause;
        self.next = (pause * 2).min(LONGEST);
        Some(pause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pauses(mut backoff: Backoff) -> impl Iterator<Item = u128> {
        std::iter::from_fn(move || backoff.pause()).map(|pause| pause.as_millis())
    }

    /// A client is at most a second late when a grace period ends.
    #[test]
    fn pauses_double_up_to_a_second() {
        let first: Vec<_> = pauses(Backoff::endless()).take(10).collect();
        assert_eq!(first, [10, 20, 40, 80, 160, 320, 640, 1000, 1000, 1000]);
        let first: Vec<_> = pauses(Backoff::to_connect()).take(7).collect();
        assert_eq!(first, [50, 100, 200, 400, 800, 1000, 1000]);
        assert_eq!(pauses(Backoff::endless()).nth(100_000), Some(1000));
    }

    #[test]
    fn a_soft_mount_gives_up() {
        let total: u128 = pauses(Backoff::new(false)).sum();
        assert!((20_000..21_000).contains(&total), "{total} ms");
    }
}
