//! How fast a peer takes the replies that wait for it.
//!
//! 1. A peer is slow if replies have waited for it all through a window, and it took fewer bytes in that window
//!    than the minimum rate makes. Replies that are all sent begin anew.
//! 2. A byte is taken when the peer has acknowledged it, or, where the kernel does not tell that, when the
//!    kernel has it. The kernel's buffer empties in large steps, which say little of a slow peer.

use std::time::Duration;
use tokio::time::Instant;

/// Looks at the rate in a window.
const LOOKS: u32 = 4;

/// What a peer takes.
#[derive(Debug)]
pub(super) struct Drain {
    least_bytes: u64,
    window: Duration,
    next_look: Option<Instant>,
    /// Where the window began: when, and what was taken before.
    begun: Option<(Instant, u64)>,
}

impl Drain {
    /// Expects `rate` bytes per second over each `window`.
    pub(super) fn new(rate: u64, window: Duration) -> Self {
        let least = u128::from(rate) * window.as_millis() / 1000;
        let least_bytes = u64::try_from(least).unwrap_or(u64::MAX).max(1);
        Self { least_bytes, window, next_look: None, begun: None }
    }

    /// Replies wait to be taken, or none does.
    pub(super) fn set_waiting(&mut self, waits: bool, now: impl FnOnce() -> Instant) {
        if !waits {
            (self.next_look, self.begun) = (None, None);
        } else if self.next_look.is_none() {
            self.next_look = Some(now() + self.window / LOOKS);
        }
    }

    /// When to look how many bytes were taken.
    pub(super) fn next_look(&self) -> Option<Instant> {
        self.next_look
    }

    /// The peer has taken `taken` bytes in all. Says whether it is too slow.
    pub(super) fn look(&mut self, now: Instant, taken: u64) -> bool {
        self.next_look = Some(now + self.window / LOOKS);
        match self.begun {
            Some((begun, _)) if now.duration_since(begun) < self.window => false,
            Some((_, before)) if taken.saturating_sub(before) < self.least_bytes => true,
            _ => {
                self.begun = Some((now, taken));
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Duration = Duration::from_secs(60);

    /// After how long a peer that takes `rate` bytes per second in steps of `step` bytes is found slow, if it
    /// ever is in an hour.
    fn found_slow(rate: u64, step: u64) -> Option<Duration> {
        let begin = Instant::now();
        let mut drain = Drain::new(1000, WINDOW);
        drain.set_waiting(true, || begin);
        while let Some(now) = drain.next_look() {
            let since = now - begin;
            if since > Duration::from_secs(3600) {
                break;
            }
            if drain.look(now, rate * since.as_secs() / step * step) {
                return Some(since);
            }
        }
        None
    }

    #[test]
    fn a_peer_that_takes_less_than_the_minimum_is_slow_and_no_other_is() {
        assert_eq!(found_slow(0, 1), Some(WINDOW + WINDOW / LOOKS));
        assert_eq!(found_slow(999, 1), Some(WINDOW + WINDOW / LOOKS));
        assert_eq!(found_slow(1000, 1), None);
        assert_eq!(found_slow(1000, 30_000), None, "it reads in steps");
        assert_eq!(found_slow(1 << 20, 1 << 20), None);
    }

    #[test]
    fn replies_that_are_all_taken_begin_anew() {
        let begin = Instant::now();
        let mut drain = Drain::new(1000, WINDOW);
        drain.set_waiting(true, || begin);
        let first = drain.next_look().unwrap();
        assert!(!drain.look(first, 0));
        drain.set_waiting(false, || unreachable!("nothing waits"));
        assert_eq!(drain.next_look(), None);
        let later = begin + WINDOW * 3;
        drain.set_waiting(true, || later);
        drain.set_waiting(true, || unreachable!("it is known when to look"));
        assert!(!drain.look(later + WINDOW / LOOKS, 0));
        assert!(drain.look(later + WINDOW / LOOKS + WINDOW, 10));
    }
}
