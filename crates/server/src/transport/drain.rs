//! Detects peers that read their replies too slowly.
//!
//! 1. A peer is slow if replies waited for it during a whole window and it took fewer bytes in that
//!    window than the expected rate requires. The window restarts when all replies have been sent.
//! 2. The peer has taken a byte when it has acknowledged it, or, where the kernel does not report
//!    that, when the kernel has accepted it. The kernel's send buffer empties in large steps, so
//!    the second measure is coarse for a slow peer.
//! 3. The expected rate depends on whether other connections need the memory ([`expected_rate`]): a
//!    slow network alone is no reason to end a connection.
//! 4. The window also restarts if a check comes much later than planned (the server was suspended),
//!    or if the kernel's answer is of another kind than at its beginning: neither says anything
//!    about the peer.

use super::TransportLimits;
use crate::admission::AddressShares;
use std::time::Duration;
use tokio::time::Instant;

/// Checks per window.
const LOOKS: u32 = 4;

/// How much a peer has taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DrainProgress {
    /// Bytes that the peer has acknowledged.
    Acknowledged(u64),
    /// Bytes that the kernel has accepted, where it does not report how many the peer has
    /// acknowledged.
    Written(u64),
}

impl DrainProgress {
    /// Bytes since `before`, if both are of the same kind.
    fn since(self, before: Self) -> Option<u64> {
        match (self, before) {
            (Self::Acknowledged(now), Self::Acknowledged(before))
            | (Self::Written(now), Self::Written(before)) => Some(now.saturating_sub(before)),
            _ => None,
        }
    }
}

/// The rate that a connection of an address must reach, in bytes per second.
///
/// While reply memory is short for all addresses, each connection must reach the minimum rate.
/// While it is short for this address only, its connections must reach that rate together, since
/// they may share a slow network. Otherwise the least rate is enough.
pub(super) fn expected_rate(limits: &TransportLimits, address: &AddressShares) -> u64 {
    let rate = if address.reply_bytes.is_short_for_all() {
        limits.min_drain_rate
    } else if !address.reply_bytes.allows(limits.record_bytes) {
        limits.min_drain_rate / (address.connections.held() as u64).max(1)
    } else {
        0
    };
    rate.max(limits.least_drain_rate)
}

/// Measures how fast a peer takes waiting replies.
#[derive(Debug)]
pub(super) struct Drain {
    window: Duration,
    next_look: Option<Instant>,
    /// The start of the window, and the progress at that time.
    begun: Option<(Instant, DrainProgress)>,
}

impl Drain {
    /// Measures the rate over each `window`.
    pub(super) fn new(window: Duration) -> Self {
        Self { window, next_look: None, begun: None }
    }

    /// Notes whether replies wait.
    pub(super) fn set_waiting(&mut self, waits: bool, now: impl FnOnce() -> Instant) {
        if !waits {
            (self.next_look, self.begun) = (None, None);
        } else if self.next_look.is_none() {
            self.next_look = Some(now() + self.window / LOOKS);
        }
    }

    /// When to check next.
    pub(super) fn next_look(&self) -> Option<Instant> {
        self.next_look
    }

    /// Checks the rate, given the progress in all. Returns whether the peer is slower than `rate`
    /// bytes per second.
    pub(super) fn look(&mut self, now: Instant, taken: DrainProgress, rate: u64) -> bool {
        let step = self.window / LOOKS;
        let planned = self.next_look.replace(now + step);
        let is_late = planned.is_some_and(|planned| now.duration_since(planned) > step);
        let before = self.begun.filter(|_| !is_late);
        let Some((begun, Some(bytes))) = before.map(|(at, before)| (at, taken.since(before)))
        else {
            self.begun = Some((now, taken));
            return false;
        };
        let passed = now.duration_since(begun);
        if passed < self.window {
            return false;
        }
        if u128::from(bytes) * 1000 < u128::from(rate) * passed.as_millis() {
            return true;
        }
        self.begun = Some((now, taken));
        false
    }
}

#[cfg(test)]
mod tests {
    use super::DrainProgress::{Acknowledged, Written};
    use super::*;
    use crate::admission::{Addresses, SharedLimits};

    const WINDOW: Duration = Duration::from_secs(60);
    const STEP: Duration = Duration::from_secs(15);

    /// The time until a peer that takes `rate` bytes per second in steps of `step` bytes is found
    /// slow, within an hour.
    fn found_slow(rate: u64, step: u64) -> Option<Duration> {
        let begin = Instant::now();
        let mut drain = Drain::new(WINDOW);
        drain.set_waiting(true, || begin);
        while let Some(now) = drain.next_look() {
            let since = now - begin;
            if since > Duration::from_secs(3600) {
                break;
            }
            if drain.look(now, Acknowledged(rate * since.as_secs() / step * step), 1000) {
                return Some(since);
            }
        }
        None
    }

    #[test]
    fn a_peer_below_the_minimum_rate_is_slow() {
        assert_eq!(found_slow(0, 1), Some(WINDOW + STEP));
        assert_eq!(found_slow(999, 1), Some(WINDOW + STEP));
        assert_eq!(found_slow(1000, 1), None);
        assert_eq!(found_slow(1000, 30_000), None, "it reads in steps");
        assert_eq!(found_slow(1 << 20, 1 << 20), None);
    }

    #[test]
    fn a_drained_queue_restarts_the_measurement() {
        let begin = Instant::now();
        let mut drain = Drain::new(WINDOW);
        drain.set_waiting(true, || begin);
        let first = drain.next_look().unwrap();
        assert!(!drain.look(first, Acknowledged(0), 1000));
        drain.set_waiting(false, || unreachable!("nothing waits"));
        assert_eq!(drain.next_look(), None);
        let later = begin + WINDOW * 3;
        drain.set_waiting(true, || later);
        drain.set_waiting(true, || unreachable!("it is known when to look"));
        assert!(!look_until(&mut drain, later + WINDOW, |_| Acknowledged(10)));
        assert!(look_until(&mut drain, later + WINDOW + STEP, |_| Acknowledged(10)));
    }

    /// Checks at each planned time until `end`. Returns whether the peer is found slow.
    fn look_until(
        drain: &mut Drain,
        end: Instant,
        taken: impl Fn(Instant) -> DrainProgress,
    ) -> bool {
        while let Some(now) = drain.next_look().filter(|&now| now <= end) {
            if drain.look(now, taken(now), 1000) {
                return true;
            }
        }
        false
    }

    #[test]
    fn a_late_check_restarts_the_measurement() {
        let begin = Instant::now();
        let mut drain = Drain::new(WINDOW);
        drain.set_waiting(true, || begin);
        assert!(!look_until(&mut drain, begin + WINDOW, |_| Acknowledged(0)));
        let woken = begin + WINDOW * 2;
        assert!(!drain.look(woken, Acknowledged(0), 1000), "the server was paused");
        assert!(!look_until(&mut drain, woken + WINDOW - STEP, |_| Acknowledged(0)));
        assert!(look_until(&mut drain, woken + WINDOW, |_| Acknowledged(0)), "slow all the same");
    }

    #[test]
    fn a_missing_kernel_figure_restarts_the_measurement() {
        let begin = Instant::now();
        let mut drain = Drain::new(WINDOW);
        drain.set_waiting(true, || begin);
        let failed = begin + STEP;
        // The peer takes enough, but much more is written at first.
        let taken = |now: Instant| {
            let bytes = (now - begin).as_secs() * 1000;
            if now == failed { Written(bytes + 4_000_000) } else { Acknowledged(bytes) }
        };
        assert!(!look_until(&mut drain, begin + WINDOW * 10, taken));
        // Without acknowledgements, the bytes written count.
        drain.set_waiting(false, || begin);
        drain.set_waiting(true, || begin);
        assert!(look_until(&mut drain, begin + WINDOW + STEP, |_| Written(1)));
    }

    #[test]
    fn the_minimum_rate_is_higher_while_others_wait_for_memory() {
        let limits = TransportLimits { record_bytes: 100, ..TransportLimits::default() };
        let shared =
            SharedLimits { reply_bytes: 8000, call_bytes: 1, connections: 100, clients: 1 };
        let addresses = Addresses::new(shared);
        let of = |last: u8| addresses.shares_of([192, 0, 2, last].into());
        let one = of(1);
        let _connections = one.connections.try_take(4).unwrap();
        let some = one.reply_bytes.try_take(3000).unwrap();
        assert_eq!(expected_rate(&limits, &one), 1 << 10, "there is enough for all");
        let rest = one.reply_bytes.try_take(1000).unwrap();
        assert_eq!(expected_rate(&limits, &one), 4 << 10, "its connections share the rate");
        assert_eq!(expected_rate(&limits, &of(2)), 1 << 10, "another address");
        let _full = [of(2).reply_bytes.try_take(2000), of(3).reply_bytes.try_take(1500)];
        assert_eq!(expected_rate(&limits, &one), 16 << 10, "memory is short for all");
        drop((some, rest));
        assert_eq!(expected_rate(&limits, &one), 1 << 10);
    }
}
