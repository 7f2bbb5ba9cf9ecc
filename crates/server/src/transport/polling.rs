//! Looking for the next call for a moment before going to sleep.
//!
//! A client that makes one small call at a time sends the next a few microseconds after it has the
//! reply; a thread that has gone to sleep by then costs both of them a wake-up. So a connection
//! whose calls have been coming that way looks at its socket for a moment first.
//!
//! 1. A connection that does not call that way never looks: it has to prove itself by calls that
//!    came soon, and one look in vain takes most of its credit.
//! 2. A look is at most [`PATIENCE`] long, and at most all processors but one look at a time.

use std::io::{self, Read};
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

/// Connections that may look at a time; those that do.
static LOOKERS: LazyLock<usize> =
    LazyLock::new(|| std::thread::available_parallelism().map_or(0, |n| n.get() - 1));
static LOOKING: AtomicUsize = AtomicUsize::new(0);

/// What a connection's calls so far say about the next.
#[derive(Debug, Default)]
pub(super) struct Polling {
    credit: u32,
    /// When the last replies went out, until the next call comes.
    replied: Option<Instant>,
}

impl Polling {
    /// Replies have gone out, and none is left.
    pub(super) fn replied(&mut self) {
        self.replied = Some(Instant::now());
    }

    /// Bytes came, though nobody looked.
    pub(super) fn arrived(&mut self) {
        match self.replied.take().map(|replied| replied.elapsed()) {
            Some(after) if after < SOON => self.credit = (self.credit + 1).min(MOST_CREDIT),
            Some(_) => self.credit = self.credit.saturating_sub(1),
            None => {}
        }
    }

    /// Reads what comes within a moment: how much, or `None` if nothing did or it is not worth
    /// looking.
    pub(super) fn look(
        &mut self,
        mut socket: impl Read,
        into: &mut [u8],
    ) -> Option<io::Result<usize>> {
        if self.credit < TRUST || self.replied.is_none() {
            return None;
        }
        let _place = Place::take()?;
        let end = Instant::now() + PATIENCE;
        loop {
            match socket.read(into) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                read => {
                    self.replied = None;
                    self.credit = (self.credit + 1).min(MOST_CREDIT);
                    return Some(read);
                }
            }
            if Instant::now() >= end {
                self.credit = self.credit.saturating_sub(LOSS);
                return None;
            }
            (0..32).for_each(|_| std::hint::spin_loop());
        }
    }
}

/// One of the places of those that look.
struct Place;

impl Place {
    fn take() -> Option<Self> {
        let free = LOOKING.fetch_add(1, Ordering::Relaxed) < *LOOKERS;
        let place = Self;
        free.then_some(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        LOOKING.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Has nothing to read a few times, then a byte.
    struct After(u32);

    impl Read for &mut After {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            match self.0.checked_sub(1) {
                Some(left) => self.0 = left,
                None => {
                    into[0] = 7;
                    return Ok(1);
                }
            }
            Err(io::ErrorKind::WouldBlock.into())
        }
    }

    fn look(polling: &mut Polling, after: u32) -> bool {
        polling.look(&mut After(after), &mut [0]).is_some()
    }

    #[test]
    fn only_who_calls_soon_is_looked_for() {
        let mut polling = Polling { credit: TRUST - 1, replied: Some(Instant::now()) };
        assert!(!look(&mut polling, 0), "not proven yet");
        polling.arrived();
        assert_eq!(polling.credit, TRUST);
        assert!(!look(&mut polling, 0), "nothing was answered, so nothing is due");
        polling.replied = Instant::now().checked_sub(SOON);
        polling.arrived();
        assert_eq!(polling.credit, TRUST - 1, "that one came late");
    }

    #[test]
    fn a_look_in_vain_costs_credit_and_ends() {
        if *LOOKERS == 0 {
            return;
        }
        let mut polling = Polling { credit: MOST_CREDIT, replied: Some(Instant::now()) };
        assert!(look(&mut polling, 3));
        polling.replied();
        let begin = Instant::now();
        assert!(!look(&mut polling, u32::MAX));
        assert!(begin.elapsed() >= PATIENCE);
        assert_eq!(polling.credit, MOST_CREDIT - LOSS);
        assert!(!(0..4).any(|_| look(&mut polling, u32::MAX)));
        assert!(polling.credit < TRUST);
        assert!(!look(&mut polling, 0));
        assert_eq!(LOOKING.load(Ordering::Relaxed), 0);
    }
}
