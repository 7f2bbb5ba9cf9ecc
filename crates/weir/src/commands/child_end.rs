//! The end of a process that a command has started.

use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
use std::time::Duration;

/// Signals that come this soon after the end of a command may be those that ended it: a terminal and timeout(1) send
/// them to this process, too.
pub(super) const SAME_SIGNAL: Duration = Duration::from_secs(1);

/// Waits until a child has ended. Does not reap it: until the caller does, no other process gets its number, and a
/// signal to it reaches none.
pub(super) async fn ended(child: Pid) {
    let wait = move || {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        rustix::io::retry_on_intr(|| waitid(WaitId::Pid(child), options))
    };
    // If it fails, there is no such child.
    let _ = tokio::task::spawn_blocking(wait).await;
}
