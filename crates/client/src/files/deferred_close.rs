//! CLOSE and unlock requests that are sent in the background when the program drops a file or a lock.
//! The end of the mount waits for them.

use std::future::Future;
use tokio::runtime::Handle;
use tokio::task::JoinSet;
use weir_base::sync::Mutex;

/// The deferred requests of a mount.
pub(crate) struct Deferred {
    runtime: Handle,
    tasks: Mutex<JoinSet<()>>,
}

impl Deferred {
    /// Requests will run on `runtime`, the mount's own.
    pub(crate) fn new(runtime: Handle) -> Self {
        Self { runtime, tasks: Mutex::default() }
    }

    pub(crate) fn spawn(&self, request: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = self.tasks.lock();
        // Finished tasks are removed here, so that the set stays small.
        while tasks.try_join_next().is_some() {}
        tasks.spawn_on(request, &self.runtime);
    }

    /// Waits until all requests are done. Dropping the future aborts those that it waits for.
    pub(crate) async fn finish(&self) {
        loop {
            let mut tasks = std::mem::take(&mut *self.tasks.lock());
            if tasks.join_next().await.is_none() {
                return;
            }
            // A task may defer another: unlocking may drop the last reference to the file.
            while tasks.join_next().await.is_some() {}
        }
    }
}
