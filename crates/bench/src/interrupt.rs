//! Ending a run early: the run checks this from time to time, so that it removes what it created
//! (servers, mounts, namespaces) before it ends.

use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use tokio::sync::Notify;
use weir_tools::failure::{Failure, Result};

static INTERRUPTED: AtomicBool = AtomicBool::new(false);
/// Wakes tasks that wait for something else meanwhile.
static STOP: Notify = Notify::const_new();

/// Ends the run of this process early: its `run` returns an error once it has removed what it
/// created. This cannot be undone. May be called from a signal's task, not from a signal handler.
pub fn stop() {
    INTERRUPTED.store(true, Relaxed);
    STOP.notify_waiters();
}

/// Whether [`stop`] was called.
pub fn is_interrupted() -> bool {
    INTERRUPTED.load(Relaxed)
}

/// Fails if [`stop`] was called.
pub(crate) fn check() -> Result<()> {
    match is_interrupted() {
        true => Err(Failure::new("go on", "interrupted")),
        false => Ok(()),
    }
}

/// Runs `work` until [`stop`] is called.
pub(crate) async fn unless_interrupted<T>(work: impl Future<Output = T>) -> Result<T> {
    tokio::select! {
        done = work => Ok(done),
        () = interrupted() => Err(Failure::new("go on", "interrupted")),
    }
}

/// Waits until [`stop`] is called.
pub(crate) async fn interrupted() {
    let stop = STOP.notified();
    tokio::pin!(stop);
    // From here on no call is missed.
    stop.as_mut().enable();
    if !is_interrupted() {
        stop.await;
    }
}
