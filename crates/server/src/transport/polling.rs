//! Looking for the next call for a moment before going to sleep.
//!
//! A client that makes one small call at a time sends the next a few microseconds after it has the
//! reply; a thread that has gone to sleep by then costs both of them a wake-up. So a connection
//! whose calls have been coming that way looks at its socket for a moment first.
//!
//! 1. A connection that does not call that way never looks: it has to prove itself by calls that
//!    came soon, and one look in vain takes most of its credit.
//! 2. A look is at most [`PATIENCE`] long, and at most all processors but one look at a time.

use std::io;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// How long to look.
const PATIENCE: Duration = Duration::from_micros(50);
/// A call that comes this soon after a reply, wake-up included, would have been worth a look.
const SOON: Duration = Duration::from_micros(150);
/// Calls that have to come soon before the first look, and again after looks in vain.
const TRUST: u32 = 4;
const MOST_CREDIT: u32 = 16;
const LOSS: u32 = 6;
/// Looks that found a call, one after the other, from which on the next is taken to find one, too.
const STEADY: u32 = 8;

/// Those who look, of all connections.
static LOOKERS: Lookers = Lookers {
    now: AtomicUsize::new(0),
    most: LazyLock::new(|| std::thread::available_parallelism().map_or(0, |n| n.get() - 1)),
};

/// What a connection's calls so far say about the next.
#[derive(Debug)]
pub(super) struct Polling {
    lookers: &'static Lookers,
    credit: u32,
    /// Looks that found a call, since one was in vain or was not allowed.
    found: u32,
    /// When the last replies went out, until the next call comes.
    replied: Option<Instant>,
    /// Reads the clock; tests have one of their own.
    now: fn() -> Instant,
}

impl Default for Polling {
    fn default() -> Self {
        Self { lookers: &LOOKERS, credit: 0, found: 0, replied: None, now: Instant::now }
    }
}

impl Polling {
    /// Replies have gone out, and none is left.
    pub(super) fn replied(&mut self) {
        self.replied = Some((self.now)());
    }

    /// Bytes came while no thread looked.
    pub(super) fn arrived(&mut self) {
        match self.replied.take().map(|replied| (self.now)().duration_since(replied)) {
            Some(after) if after < SOON => self.credit = (self.credit + 1).min(MOST_CREDIT),
            Some(_) => self.credit = self.credit.saturating_sub(1),
            None => {}
        }
    }

    /// Whether calls are found by looking, one after the other.
    pub(super) fn is_steady(&self) -> bool {
        self.found >= STEADY
    }

    /// Calls `read` until something has come, for a moment; `None` if nothing did or it is not
    /// worth looking.
    pub(super) fn look(
        &mut self,
        mut read: impl FnMut() -> io::Result<usize>,
    ) -> Option<io::Result<usize>> {
        let found = std::mem::take(&mut self.found);
        if self.credit < TRUST || self.replied.is_none() {
            return None;
        }
        let _looking = self.lookers.join()?;
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
struct Lookers {
    now: AtomicUsize,
    most: LazyLock<usize>,
}

impl Lookers {
    /// Lets a connection look, unless as many look as may.
    fn join(&self) -> Option<Looking<'_>> {
        let free = self.now.fetch_add(1, Ordering::Relaxed) < *self.most;
        let looking = Looking(self);
        free.then_some(looking)
    }
}

/// A connection looks; ends on drop.
struct Looking<'a>(&'a Lookers);

impl Drop for Looking<'_> {
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

    /// The test's clock: each reading is a microsecond after the one before, however long the
    /// test is kept from running.
    fn now() -> Instant {
        let now = NOW.get().map_or_else(Instant::now, |last| last + Duration::from_micros(1));
        NOW.set(Some(now));
        now
    }

    /// One that has been answered just now, and is the only one that polls.
    fn polling(credit: u32) -> Polling {
        let lookers = Lookers { now: AtomicUsize::new(0), most: LazyLock::new(|| 1) };
        let lookers = Box::leak(Box::new(lookers));
        Polling { lookers, credit, found: 0, replied: Some(now()), now }
    }

    /// Whether a call is found that is there after a few times in vain.
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
    fn only_who_calls_soon_is_looked_for() {
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
    fn a_look_in_vain_costs_credit_and_ends() {
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
        assert_eq!(polling.lookers.now.load(Ordering::Relaxed), 0);
    }
}
