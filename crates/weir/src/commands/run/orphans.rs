//! Processes whose parents have ended, below the command: they become children of this process.
//!
//! Linux before 6.11 says that a filter has no more users when the last of them has been reaped, not when it has ended.
//! In a container, there may be no other process that reaps them. Later versions need none of this, and it has a price:
//! jobs that a shell leaves behind keep a parent in their session, so the kernel stops them when they read from the
//! terminal, where otherwise their read would fail. Process 1 gets all orphans anyway.
//!
//! Sound because the kernel writes to one structure of the type that it expects, of which any bytes are valid.
#![allow(unsafe_code, reason = "rustix does not tell which child has ended")]

use rustix::process::{Pid, WaitId, WaitIdOptions, getpid, set_child_subreaper, waitid};
use rustix::system::uname;
use std::convert::Infallible;
use std::time::Duration;

/// Time between looks for processes that have ended.
const LOOK: Duration = Duration::from_millis(100);

/// Orphans below this process become its children until this is dropped.
pub(super) struct Adopting(());

impl Adopting {
    /// `None` where that is not needed. Where it fails, they have another parent, which may reap them.
    pub(super) fn begin() -> Option<Self> {
        let release = uname();
        let is_needed = needs_reaping(&release.release().to_string_lossy()) && !getpid().is_init();
        is_needed.then(|| {
            let _ = set_child_subreaper(Some(getpid()));
            Self(())
        })
    }
}

/// Whether this release of Linux waits until the users of a filter have been reaped.
fn needs_reaping(release: &str) -> bool {
    let mut numbers =
        release.split(|c: char| !c.is_ascii_digit()).map(|number| number.parse().unwrap_or(0));
    let version: [u32; 2] = std::array::from_fn(|_| numbers.next().unwrap_or(0));
    version < [6, 11]
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orphans_are_adopted_before_linux_6_11() {
        for (release, needs) in [
            ("5.9.0", true),
            ("5.15.0-125-generic", true),
            ("6.10.14", true),
            ("6.11.0", false),
            ("6.18-rc1", false),
            ("7.0", false),
            ("unknown", true),
        ] {
            assert_eq!(needs_reaping(release), needs, "{release}");
        }
    }
}
