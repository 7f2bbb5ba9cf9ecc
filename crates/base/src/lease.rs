//! The lease of a client: when it was renewed, and the calls in progress, during which it does not expire. (It is in
//! this crate so that loom can check it.)
//!
//! 1. All of it is one atomic word. So a check that the lease has expired, and the end of the lease because of that,
//!    are one step: a call either begins before, and the lease goes on, or it does not begin.
//! 2. A lease that has ended stays ended.
//!
//! ```text
//!                  renew, begin_call, end_call
//!                      +-----+
//!                      v     |       end, end_if_silent
//!   new -------------> lasts ------------------------------> ended
//! ```

use crate::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Set when the lease has ended.
const ENDED: u64 = 1 << 63;
/// One call in progress.
const CALL: u64 = 1 << 42;
/// The bits that count calls in progress.
const CALLS: u64 = ENDED - CALL;
/// The bits of the time of the last renewal, in milliseconds: enough for 139 years.
const RENEWED: u64 = CALL - 1;

/// The lease of a client. Times are of a monotonic clock; they are rounded up to milliseconds.
#[derive(Debug)]
pub struct Lease {
    word: AtomicU64,
}

impl Lease {
    /// A lease that is renewed `now`.
    pub fn new(now: Duration) -> Self {
        Self { word: AtomicU64::new(millis(now)) }
    }

    /// When it was last renewed.
    pub fn renewed(&self) -> Duration {
        Duration::from_millis(self.word.load(Ordering::Acquire) & RENEWED)
    }

    /// Whether it has ended.
    pub fn has_ended(&self) -> bool {
        self.word.load(Ordering::Acquire) & ENDED != 0
    }

    /// Renews it, unless it has ended.
    pub fn renew(&self, now: Duration) {
        self.change(|word| Some(renewed(word, now)));
    }

    /// Renews it for as long as a call is in progress: until [`end_call`](Self::end_call). Returns false, and counts no
    /// call, if it has ended, or if two million calls are in progress.
    #[must_use = "only a call that has begun may end"]
    pub fn begin_call(&self, now: Duration) -> bool {
        self.change(|word| {
            let refused = word & ENDED != 0 || word & CALLS == CALLS;
            (!refused).then(|| renewed(word, now) + CALL)
        })
    }

    /// Ends a call, and renews it a last time.
    pub fn end_call(&self, now: Duration) {
        self.change(|word| {
            let calls = (word & CALLS).saturating_sub(CALL);
            Some(renewed(word & !CALLS | calls, now))
        });
    }

    /// The calls in progress.
    pub fn calls(&self) -> u64 {
        (self.word.load(Ordering::Acquire) & CALLS) / CALL
    }

    /// Whether no call is in progress, and none was within `time` before `now`.
    pub fn is_silent(&self, now: Duration, time: Duration) -> bool {
        is_silent(self.word.load(Ordering::Acquire), now, time)
    }

    /// Ends it.
    pub fn end(&self) {
        self.word.fetch_or(ENDED, Ordering::AcqRel);
    }

    /// Ends it if it [is silent](Self::is_silent). Returns whether it is.
    #[must_use = "it goes on if a call came first"]
    pub fn end_if_silent(&self, now: Duration, time: Duration) -> bool {
        self.change(|word| is_silent(word, now, time).then_some(word | ENDED))
    }

    /// Changes the word, unless `change` returns `None`. Returns whether it was changed.
    fn change(&self, change: impl FnMut(u64) -> Option<u64>) -> bool {
        self.word.fetch_update(Ordering::AcqRel, Ordering::Acquire, change).is_ok()
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX).min(RENEWED)
}

fn renewed(word: u64, now: Duration) -> u64 {
    word & !RENEWED | (word & RENEWED).max(millis(now))
}

fn is_silent(word: u64, now: Duration, time: Duration) -> bool {
    word & CALLS == 0 && now.saturating_sub(Duration::from_millis(word & RENEWED)) > time
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(90);
    const SEC: Duration = Duration::from_secs(1);

    #[test]
    fn a_lease_expires_when_no_call_is_in_progress() {
        let lease = Lease::new(SEC);
        assert!(!lease.is_silent(SEC + LEASE, LEASE));
        assert!(lease.is_silent(SEC + LEASE + SEC, LEASE));
        assert!(lease.begin_call(2 * SEC) && lease.begin_call(SEC));
        assert_eq!(lease.renewed(), 2 * SEC, "time does not go back");
        lease.end_call(3 * SEC);
        assert!(!lease.end_if_silent(10 * LEASE, LEASE), "a call is in progress");
        lease.end_call(4 * SEC);
        assert!(!lease.end_if_silent(4 * SEC + LEASE, LEASE));
        lease.renew(5 * SEC);
        assert!(!lease.end_if_silent(5 * SEC + LEASE, LEASE));
        assert!(lease.end_if_silent(6 * SEC + LEASE, LEASE) && lease.has_ended());
    }

    #[test]
    fn no_call_begins_once_a_lease_has_ended() {
        let lease = Lease::new(SEC);
        assert!(lease.begin_call(SEC));
        lease.end();
        assert!(!lease.begin_call(2 * SEC));
        lease.end_call(3 * SEC);
        lease.renew(4 * SEC);
        assert!(lease.has_ended() && !lease.begin_call(5 * SEC));
    }

    #[test]
    fn calls_and_times_do_not_overflow_into_each_other() {
        let lease = Lease::new(Duration::from_nanos(1));
        assert_eq!(lease.renewed(), Duration::from_millis(1), "rounded up");
        lease.renew(Duration::MAX);
        assert!(!lease.has_ended() && lease.is_silent(Duration::MAX, LEASE));
        let most = CALLS / CALL;
        assert!((0..most).all(|_| lease.begin_call(SEC)) && !lease.begin_call(SEC));
        assert!(!lease.has_ended());
        (0..=most).for_each(|_| lease.end_call(SEC));
        assert!(lease.is_silent(Duration::MAX, LEASE), "no more calls end than have begun");
    }
}

/// Under loom, which tries the orders of the threads' steps.
#[cfg(all(test, loom))]
mod model {
    use super::*;
    use crate::sync::{Arc, atomic::AtomicUsize, thread};
    use std::sync::atomic::{AtomicU64 as Count, Ordering::Relaxed};

    const LEASE: Duration = Duration::from_secs(90);
    const OVER: Duration = Duration::from_secs(91);

    /// Checks `of` in all orders with at most three preemptions. It returns a number below two; both occur.
    fn both_occur(of: impl Fn() -> usize + Send + Sync + 'static) {
        let counts: std::sync::Arc<[Count; 2]> = Default::default();
        let counted = counts.clone();
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(move || {
            counted[of()].fetch_add(1, Relaxed);
        });
        assert!(counts.iter().all(|count| count.load(Relaxed) > 0), "{counts:?}");
    }

    #[test]
    fn either_a_call_begins_or_its_lease_ends() {
        both_occur(|| {
            let lease = Arc::new(Lease::new(Duration::ZERO));
            let of_call = lease.clone();
            let call = thread::spawn(move || {
                let begun = of_call.begin_call(OVER);
                if begun {
                    of_call.end_call(OVER);
                }
                begun
            });
            let ended = lease.end_if_silent(OVER, LEASE);
            let begun = call.join().unwrap();
            assert!(begun != ended, "the call: {begun}, the end: {ended}");
            assert_eq!(lease.has_ended(), ended);
            usize::from(ended)
        });
    }

    #[test]
    fn no_call_is_in_progress_when_a_lease_ends() {
        both_occur(|| {
            let world = Arc::new((Lease::new(Duration::ZERO), AtomicUsize::new(0)));
            let call = |world: &(Lease, AtomicUsize)| {
                if world.0.begin_call(Duration::ZERO) {
                    world.1.fetch_add(1, Ordering::Relaxed);
                    world.1.fetch_sub(1, Ordering::Relaxed);
                    world.0.end_call(Duration::ZERO);
                }
            };
            let other = world.clone();
            let other = thread::spawn(move || call(&other));
            let own = world.clone();
            let own = thread::spawn(move || call(&own));
            let ended = world.0.end_if_silent(OVER, LEASE);
            if ended {
                assert_eq!(world.1.load(Ordering::Relaxed), 0, "a call is in progress");
            }
            own.join().unwrap();
            other.join().unwrap();
            usize::from(ended)
        });
    }
}
