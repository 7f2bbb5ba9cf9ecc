//! The limit on the size of files (RLIMIT_FSIZE; systemd's `LimitFSIZE=`): the kernel reports a write beyond it as
//! EFBIG and by a signal, which by default ends the process.
//!
//! Sound because no handler of the signal runs, and no other part of the program sets its action.
#![allow(unsafe_code, reason = "neither std nor rustix ignores signals")]

use super::soft_limit;
use rustix::process::Resource;

/// Has a write beyond the limit fail and the process go on. Programs that it starts ignore the signal, too.
pub(crate) fn outlive() {
    // SAFETY: see the header.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// This process writes for other programs, whose own limits the kernel applies to them, until this is dropped.
pub(crate) struct Raised {
    _limit: soft_limit::Raised,
    action: libc::sighandler_t,
}

/// Raises the limit as far as this user may, and has a write beyond it fail and the process go on.
pub(crate) fn raise() -> Raised {
    let limit = soft_limit::raise(Resource::Fsize);
    // SAFETY: see the header.
    let action = unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    Raised { _limit: limit, action }
}

impl Drop for Raised {
    fn drop(&mut self) {
        // SAFETY: see the header; it is the action from before.
        unsafe { libc::signal(libc::SIGXFSZ, self.action) };
    }
}
