//! Look-ups in the name service of this machine, which may query a directory service and take long.
//!
//! They run on threads that may block, but only [`MAX_LOOKUPS`] at a time: peers choose whom to look
//! up, and the state database is written on the same threads (tokio has a limit of 512).

use tokio::sync::Semaphore;
use tokio::task::{JoinError, spawn_blocking};

/// Look-ups that run at a time, of all servers of the process.
const MAX_LOOKUPS: usize = 32;

static LOOKUPS: Semaphore = Semaphore::const_new(MAX_LOOKUPS);

/// Runs a look-up, which may block. It runs to its end even if its caller goes away.
///
/// # Errors
/// The look-up panicked, or the runtime stops.
pub(crate) async fn look_up<T: Send + 'static>(
    look_up: impl FnOnce() -> T + Send + 'static,
) -> Result<T, JoinError> {
    // The semaphore is never closed.
    let permit = LOOKUPS.acquire().await.ok();
    let task = spawn_blocking(move || {
        // Until the thread is free again, not only until the caller has gone.
        let _permit = permit;
        look_up()
    });
    task.await
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::future::join_all;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::sync_channel;

    #[tokio::test]
    async fn slow_look_ups_leave_threads_for_others() {
        let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let slow = (0..3 * MAX_LOOKUPS).map(|_| {
            let (running, most) = (running.clone(), most.clone());
            // Ends when the sender is dropped.
            let (hold, held) = sync_channel::<()>(0);
            let task = tokio::spawn(look_up(move || {
                most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                let _ = held.recv();
                running.fetch_sub(1, Ordering::SeqCst);
            }));
            (hold, task)
        });
        let (holds, tasks): (Vec<_>, Vec<_>) = slow.unzip();
        while running.load(Ordering::SeqCst) < MAX_LOOKUPS {
            tokio::task::yield_now().await;
        }
        // A caller that goes away frees no thread.
        tasks[0].abort();
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        drop(holds);
        join_all(tasks).await;
        assert_eq!(most.load(Ordering::SeqCst), MAX_LOOKUPS);
    }
}
