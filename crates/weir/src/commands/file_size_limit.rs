//! The limit on the size of files (RLIMIT_FSIZE; systemd's `LimitFSIZE=`): the kernel reports a write beyond it as
//! EFBIG and by a signal, which by default ends the process.

#![allow(unsafe_code, reason = "neither std nor rustix ignores signals")]

/// Has a write beyond the limit fail and the process go on. Programs that it starts ignore the signal, too.
pub(crate) fn outlive() {
    // SAFETY: no handler runs, and no other part of the program sets this signal's action.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}
