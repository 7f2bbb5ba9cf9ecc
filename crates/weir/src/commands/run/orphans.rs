//! Processes whose parents have ended, below the command: they become children of this process.
//!
//! Linux before 6.11 says that a filter has no more users when the last of them has been reaped, not when it has ended.
//! In a container, there may be no other process that reaps them.
//!
//! Sound because the kernel writes to one structure of the type that it expects, of which any bytes are valid.
#![allow(unsafe_code, reason = "rustix does not tell which child has ended")]

use rustix::process::{Pid, WaitId, WaitIdOptions, getpid, set_child_subreaper, waitid};
use std::convert::Infallible;
use std::time::Duration;

/// Time between looks for processes that have ended.
const LOOK: Duration = Duration::from_millis(100);

/// Orphans below this process become its children until this is dropped.
pub(super) struct Adopting(());

impl Adopting {
    /// Where that fails, they have another parent, which may reap them.
    pub(super) fn begin() -> Self {
        let _ = set_child_subreaper(Some(getpid()));
        Self(())
    }
}

impl Drop for Adopting {
    fn drop(&mut self) {
        let _ = set_child_subreaper(None);
    }
}

/// Reaps the children of this process that have ended, except the command, whose status others need.
pub(super) async fn reap(command: Option<Pid>) -> Infallible {
    loop {
        while reap_one(command) {}
        tokio::time::sleep(LOOK).await;
    }
}

/// Returns whether there may be more of them.
fn reap_one(command: Option<Pid>) -> bool {
    // SAFETY: see the header.
    let ended = unsafe {
        let mut child: libc::siginfo_t = std::mem::zeroed();
        let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
        match libc::waitid(libc::P_ALL, 0, &raw mut child, options) {
            0 => Pid::from_raw(child.si_pid()),
            _ => None,
        }
    };
    // The command is reaped soon, too; those behind it in the kernel's list, thereafter.
    let orphan = ended.filter(|pid| Some(*pid) != command);
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
    orphan.is_some_and(|pid| waitid(WaitId::Pid(pid), options).is_ok())
}
