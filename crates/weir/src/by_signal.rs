//! Ends the process by a signal, as programs end that do not handle it: a shell whose command SIGINT has ended ends its
//! loop or script, too, which it does not after an exit code.
//!
//! Sound because the signal's default action replaces tokio's handler, which is not called again, and needs nothing of
//! this program.
#![allow(unsafe_code, reason = "neither std nor rustix sets the action of signals")]

use rustix::process::{DumpableBehavior, set_dumpable_behavior};

/// Ends this process by a signal, without a core file (SIGQUIT). Where signals do not end it (the first process of a
/// container), it exits with the code by which shells show that: 128 and the signal's number.
pub(crate) fn end_by(signal: i32) -> ! {
    // This also holds where core files go to a program, which limits do not prevent.
    let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
    // SAFETY: see the header.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
        libc::raise(signal);
    }
    std::process::exit(128 + signal)
}

/// Has this process, which handles no signals, go on after those that ask to stop.
pub(crate) fn outlive_stops() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: no handler runs, and no other part of the process sets these signals' actions.
        unsafe {
            libc::signal(signal, libc::SIG_IGN);
        }
    }
}

/// Has SIGINT and SIGTERM end this process from now on, as if it had never handled them.
pub(crate) fn end_at_signals() {
    for signal in [libc::SIGINT, libc::SIGTERM] {
        // SAFETY: see the header.
        unsafe {
            libc::signal(signal, libc::SIG_DFL);
        }
    }
}
