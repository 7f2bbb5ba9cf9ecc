//! Who sent a signal: a process, to this one, or the terminal, to all processes in its foreground.
//!
//! Sound because the action, which runs in the signal's handler, only reads the kernel's description of the signal and
//! sets a bit.
#![allow(unsafe_code, reason = "tokio does not tell who sent a signal")]

use rustix::process::{Pid, Signal};
use std::io;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

/// The signals that are told apart, and those of them that a process has sent; a bit each.
static TOLD_APART: AtomicU64 = AtomicU64::new(0);
static SENT: AtomicU64 = AtomicU64::new(0);
/// The process whose signals do not count. A sender that this PID namespace does not show is 0.
static COMMAND: AtomicI32 = AtomicI32::new(NO_COMMAND);
const NO_COMMAND: i32 = -1;

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
            // SAFETY: the other ones are those of signals that processes send: the description names the sender.
            if info.si_code <= 0 && unsafe { info.si_pid() } != COMMAND.load(Ordering::Acquire) {
                SENT.fetch_or(bit, Ordering::Release);
            }
        };
        // SAFETY: see the header.
        unsafe { signal_hook_registry::register_sigaction(signal.as_raw(), action) }?;
    }
    Ok(())
}

/// This process is the command. It has the signals itself that it sends to its process group, to which this process
/// belongs, too.
pub(super) fn except_from(command: Pid) {
    COMMAND.store(command.as_raw_nonzero().get(), Ordering::Release);
}

/// Whether a process has sent the signal to this one since the last call; several at once count as one.
pub(super) fn was_sent_by_a_process(signal: Signal) -> bool {
    let bit = bit(signal);
    SENT.fetch_and(!bit, Ordering::AcqRel) & bit != 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::Mutex;
    use rustix::process::{getpid, kill_process};
    use std::time::{Duration, Instant};

    /// The tests share what counts as the command.
    static ALONE: Mutex<()> = Mutex::new(());

    #[test]
    fn a_signal_that_a_process_sends_is_told_once() {
        let _alone = ALONE.lock();
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

    #[test]
    fn a_signal_that_the_command_sends_does_not_count() {
        tell_apart(Signal::WINCH).unwrap();
        // SAFETY: it takes a number. It returns when this thread has handled the signal.
        let send = || assert_eq!(unsafe { libc::raise(Signal::WINCH.as_raw()) }, 0);
        let _alone = ALONE.lock();
        send();
        assert!(was_sent_by_a_process(Signal::WINCH));
        except_from(getpid());
        send();
        let was_sent = was_sent_by_a_process(Signal::WINCH);
        COMMAND.store(NO_COMMAND, Ordering::Release);
        assert!(!was_sent);
    }
}
