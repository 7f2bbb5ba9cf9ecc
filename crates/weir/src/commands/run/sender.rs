//! Who sent a signal: a process, to this one, or the terminal, to all processes in its foreground.
//!
//! Sound because the action, which runs in the signal's handler, only reads the kernel's description of the signal and
//! sets a bit.
#![allow(unsafe_code, reason = "tokio does not tell who sent a signal")]

use rustix::process::Signal;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

/// The signals that are told apart, and those of them that a process has sent; a bit each.
static TOLD_APART: AtomicU64 = AtomicU64::new(0);
static SENT: AtomicU64 = AtomicU64::new(0);

fn bit(signal: Signal) -> u64 {
    1 << signal.as_raw()
}

/// Has [`was_sent_by_a_process`] tell about a signal. It is called before tokio listens to the signal: actions are
/// executed in the order of their registration, and that of tokio wakes the task that asks.
///
/// # Errors
/// The signal cannot be handled.
pub(super) fn tell_apart(signal: Signal) -> io::Result<()> {
    let bit = bit(signal);
    if TOLD_APART.fetch_or(bit, Ordering::AcqRel) & bit == 0 {
        let action = move |info: &libc::siginfo_t| {
            // Positive codes are those of the kernel, which acts for the terminal (sigaction(2)).
            if info.si_code <= 0 {
                SENT.fetch_or(bit, Ordering::Release);
            }
        };
        // SAFETY: see the header.
        unsafe { signal_hook_registry::register_sigaction(signal.as_raw(), action) }?;
    }
    Ok(())
}

/// Whether a process has sent the signal to this one since the last call; several at once count as one.
pub(super) fn was_sent_by_a_process(signal: Signal) -> bool {
    let bit = bit(signal);
    SENT.fetch_and(!bit, Ordering::AcqRel) & bit != 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{getpid, kill_process};
    use std::time::{Duration, Instant};

    #[test]
    fn a_signal_that_a_process_sends_is_told_once() {
        tell_apart(Signal::URG).unwrap();
        assert!(!was_sent_by_a_process(Signal::URG));
        kill_process(getpid(), Signal::URG).unwrap();
        let since = Instant::now();
        // Another thread may handle it.
        while !was_sent_by_a_process(Signal::URG) {
            assert!(since.elapsed() < Duration::from_secs(60));
            std::thread::yield_now();
        }
        assert!(!was_sent_by_a_process(Signal::URG));
    }
}
