//! Being interrupted: whoever works looks here from time to time, so that what a run has made
//! (servers, mounts, namespaces) is taken down on the way out.

use crate::ended::Ended;
use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;
use weir_tools::failure::{Asked, Failure, Result};

static INTERRUPTED: AtomicBool = AtomicBool::new(false);
/// Wakes those who wait for something else meanwhile.
static STOP: Notify = Notify::const_new();

/// Does `work` with signals caught: told to stop, its next [`check`] fails, and it unwinds.
pub(super) fn with_interrupts(work: impl FnOnce() -> Result<Ended>) -> Result<Ended> {
    let mut threads = tokio::runtime::Builder::new_multi_thread();
    let runtime = threads.worker_threads(1).enable_all().build();
    let runtime = runtime.asked(|| "start threads".into())?;
    let listen = |kind| {
        let _inside = runtime.enter();
        signal(kind).asked(|| "listen to signals".into())
    };
    for kind in [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()] {
        let mut signals = listen(kind)?;
        runtime.spawn(async move {
            while signals.recv().await.is_some() {
                INTERRUPTED.store(true, Relaxed);
                STOP.notify_waiters();
            }
        });
    }
    match work() {
        Err(_) if is_interrupted() => Ok(Ended::Interrupted),
        ended => ended,
    }
}

/// Whether this process was told to stop.
pub(super) fn is_interrupted() -> bool {
    INTERRUPTED.load(Relaxed)
}

/// Fails when this process was told to stop.
pub(super) fn check() -> Result<()> {
    match is_interrupted() {
        true => Err(Failure::new("go on", "interrupted")),
        false => Ok(()),
    }
}

/// Does `work` for as long as this process is not told to stop.
pub(super) async fn unless_interrupted<T>(work: impl Future<Output = T>) -> Result<T> {
    tokio::select! {
        done = work => Ok(done),
        () = interrupted() => Err(Failure::new("go on", "interrupted")),
    }
}

/// Waits until this process is told to stop.
pub(super) async fn interrupted() {
    let stop = STOP.notified();
    tokio::pin!(stop);
    // From here on nothing that happens is missed.
    stop.as_mut().enable();
    if !is_interrupted() {
        stop.await;
    }
}
