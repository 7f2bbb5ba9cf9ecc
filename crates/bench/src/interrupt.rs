//! Ending a run early: the run looks here from time to time, so that what a run has made
//! (servers, mounts, namespaces) is taken down on the way out.

use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use tokio::sync::Notify;
use weir_tools::failure::{Failure, Result};

static INTERRUPTED: AtomicBool = AtomicBool::new(false);
/// Wakes those who wait for something else meanwhile.
static STOP: Notify = Notify::const_new();

/// Ends the run of this process early: its `run` returns an error as soon as it has taken down what it
/// made. There is no way back. May be called from a signal's task, not from a signal handler.
pub fn stop() {
    INTERRUPTED.store(true, Relaxed);
    STOP.notify_waiters();
}

/// Whether [`stop`] was called.
pub fn is_interrupted() -> bool {
    INTERRUPTED.load(Relaxed)
}

/// Fails when this process was told to stop.
pub(crate) fn check() -> Result<()> {
    match is_interrupted() {
        true => Err(Failure::new("go on", "interrupted")),
        false => Ok(()),
    }
}

/// Does `work` for as long as this process is not told to stop.
pub(crate) async fn unless_interrupted<T>(work: impl Future<Output = T>) -> Result<T> {
    tokio::select! {
        done = work => Ok(done),
        () = interrupted() => Err(Failure::new("go on", "interrupted")),
    }
}

/// Waits until this process is told to stop.
pub(crate) async fn interrupted() {
    let stop = STOP.notified();
    tokio::pin!(stop);
    // From here on nothing that happens is missed.
    stop.as_mut().enable();
    if !is_interrupted() {
        stop.await;
    }
}
