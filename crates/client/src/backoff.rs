//! Backoff before a retry: of a request that the server delays (DELAY, GRACE, JUKEBOX), or of a
//! connection to a server that is down.
//!
//! 1. Pauses double, up to a second. This bounds how much longer than necessary a client waits when
//!    a grace period ends, or a server is back.
//! 2. A soft mount waits as long for the end of a delay as for a reply, and at least for [`LEAST_PATIENCE`]. The time
//!    counts from the first pause on, attempts included, but not what a pause took longer: this process stood still.

use std::time::Duration;
use tokio::time::Instant;

const FIRST: Duration = Duration::from_millis(10);
const FIRST_TO_CONNECT: Duration = Duration::from_millis(50);
const LONGEST: Duration = Duration::from_secs(1);
const LEAST_PATIENCE: Duration = Duration::from_secs(20);

/// The pauses between one request's attempts.
pub(crate) struct Backoff {
    /// How long to retry; `None` for ever.
    patience: Option<Duration>,
    next: Duration,
    /// The time of the first pause.
    begun: Option<Instant>,
}

impl Backoff {
    /// For a request of a `hard` mount, or of a soft one whose calls wait for `limit` for their replies.
    pub(crate) fn new(hard: bool, limit: Duration) -> Self {
        let patience = (!hard).then(|| limit.max(LEAST_PATIENCE));
        Self { patience, next: FIRST, begun: None }
    }

    /// For requests that never give up, or give up for another reason.
    pub(crate) fn endless() -> Self {
        Self { patience: None, next: FIRST, begun: None }
    }

    /// Between attempts to connect, which cost a server that is starting more than a call does.
    pub(crate) fn to_connect() -> Self {
        Self { next: FIRST_TO_CONNECT, ..Self::endless() }
    }

    /// Waits, or returns false at once if the time is used up.
    pub(crate) async fn wait(&mut self) -> bool {
        let begun = Instant::now();
        let Some(pause) = self.pause(begun) else { return false };
        tokio::time::sleep(pause).await;
        self.leave_out(begun.elapsed().saturating_sub(pause));
        true
    }

    /// Does not count time in which this process stood still.
    fn leave_out(&mut self, stood: Duration) {
        self.begun = self.begun.map(|begun| begun + stood);
    }

    /// The next pause, or `None` if the time is used up.
    fn pause(&mut self, now: Instant) -> Option<Duration> {
        let waited = now.saturating_duration_since(*self.begun.get_or_insert(now));
        if self.patience.is_some_and(|patience| waited >= patience) {
            return None;
        }
        let pause = self.next;
        self.next = (pause * 2).min(LONGEST);
        Some(pause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pauses(backoff: Backoff) -> impl Iterator<Item = u128> {
        pauses_between(backoff, Duration::ZERO)
    }

    /// The pauses between attempts that take `each`.
    fn pauses_between(mut backoff: Backoff, each: Duration) -> impl Iterator<Item = u128> {
        let mut now = Instant::now();
        let next = move || {
            let pause = backoff.pause(now)?;
            now += pause + each;
            Some(pause.as_millis())
        };
        std::iter::from_fn(next)
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
        let total: u128 = pauses(Backoff::new(false, Duration::ZERO)).sum();
        assert!((20_000..21_000).contains(&total), "{total} ms");
        // As long as it waits for a reply.
        let limit = Duration::from_secs(180);
        let total: u128 = pauses(Backoff::new(false, limit)).sum();
        assert!((180_000..181_000).contains(&total), "{total} ms");
        let slow = pauses_between(Backoff::new(false, limit), Duration::from_secs(60));
        assert_eq!(slow.count(), 3, "attempts count, too");
        assert_eq!(pauses(Backoff::new(true, limit)).nth(100_000), Some(1000));
    }

    #[test]
    fn a_standstill_does_not_count() {
        let (mut backoff, begun) = (Backoff::new(false, Duration::ZERO), Instant::now());
        let stood = Duration::from_secs(600);
        assert_eq!(backoff.pause(begun), Some(FIRST));
        assert!(backoff.pause(begun + stood).is_none());
        backoff.leave_out(stood);
        assert!(backoff.pause(begun + stood).is_some());
        assert!(backoff.pause(begun + stood + LEAST_PATIENCE).is_none());
    }
}
