//! What is to be said to the server when somebody lets go of something: a file to be closed, a lock to
//! be given up. It is said in the background, and the end of the mount waits until it is.

use std::future::Future;
use tokio::runtime::Handle;
use tokio::task::JoinSet;
use weir_base::sync::Mutex;

/// The farewells of a mount.
pub(crate) struct Farewells {
    runtime: Handle,
    under_way: Mutex<JoinSet<()>>,
}

impl Farewells {
    /// None yet; they will be said on the mount's threads.
    pub(crate) fn new(runtime: Handle) -> Self {
        Self { runtime, under_way: Mutex::default() }
    }

    pub(crate) fn say(&self, farewell: impl Future<Output = ()> + Send + 'static) {
        let mut under_way = self.under_way.lock();
        // Those that are over take up no room.
        while under_way.try_join_next().is_some() {}
        under_way.spawn_on(farewell, &self.runtime);
    }

    /// Returns when all that were begun are over; those that are not when it is dropped never will be.
    pub(crate) async fn over(&self) {
        loop {
            let mut under_way = std::mem::take(&mut *self.under_way.lock());
            if under_way.join_next().await.is_none() {
                return;
            }
            // Who lets go of a lock may be the last who has its file open.
            while under_way.join_next().await.is_some() {}
        }
    }
}
