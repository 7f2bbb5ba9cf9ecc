//! The state of one mount, and the threads of its requests.

use crate::detail;
use crate::files::attribute_cache::AttributeCache;
use crate::files::deferred_close::Deferred;
use crate::files::silly_rename::OpenFiles;
use crate::fs::driven::Driven;
use crate::fs::handles::Handles;
use crate::mount::UNMOUNT_TIMEOUT;
use crate::protocol::{Handle, Node, Protocol};
use crate::transport::Counters;
use crate::{MountOptions, Version};
use std::future::Future;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use weir_rpc::OpaqueAuth;
use weir_vfs::{Error, Result, WholeFile};

/// One mount. It ends when this is dropped.
pub(crate) struct Mount {
    pub(crate) state: Arc<MountState>,
    pub(crate) runtime: Runtime,
}

/// The part that requests in flight hold: everything except the threads.
pub(crate) struct MountState {
    pub(crate) protocol: Arc<dyn Protocol>,
    pub(crate) version: Version,
    pub(crate) handles: Handles,
    /// The mount's own credential.
    pub(crate) own: Arc<OpaqueAuth>,
    pub(crate) options: MountOptions,
    pub(crate) counters: Arc<Counters>,
    pub(crate) open_files: Arc<OpenFiles>,
    pub(crate) attributes: Arc<AttributeCache>,
    pub(crate) deferred: Arc<Deferred>,
    /// Operations in progress, with those whose caller is gone.
    pub(crate) operations: Arc<Semaphore>,
    /// Reads and writes in progress of open files by path, likewise.
    pub(crate) transfers: Arc<Semaphore>,
}

/// Most operations in progress: without a limit, callers that give up waiting for a server that is down
/// would leave any number of them.
pub(crate) const MOST_OPERATIONS: usize = 4096;
/// Most reads and writes in progress of open files by path, each of at most 1 MiB.
pub(crate) const MOST_TRANSFERS: usize = 256;

impl MountState {
    /// [`Protocol::put_whole`], unless this mount has the replaced file open and would lose it: a rename of its own
    /// keeps that for its users.
    pub(crate) async fn put_whole(
        &self,
        cred: &OpaqueAuth,
        dir: &Handle,
        file: &WholeFile,
    ) -> crate::Result<Option<Node>> {
        let is_lost = |id| !self.protocol.keeps_unlinked() && self.open_files.is_open(id);
        match file.replaced.is_some_and(is_lost) {
            true => Ok(None),
            false => self.protocol.put_whole(cred, dir, file).await,
        }
    }

    /// Whether operations are in progress, with those whose caller is gone.
    pub(crate) fn is_busy(&self) -> bool {
        self.operations.available_permits() < MOST_OPERATIONS
            || self.transfers.available_permits() < MOST_TRANSFERS
    }

    /// Returns the state that the server holds, as far as the server answers in time, and ends the connections.
    pub(crate) async fn end(&self) {
        let close = async {
            self.deferred.finish().await;
            self.open_files.remove_silly_renamed(&*self.protocol).await;
        };
        let all = async {
            let _ = timeout(UNMOUNT_TIMEOUT / 2, close).await;
            self.protocol.unmount().await;
        };
        let _ = timeout(UNMOUNT_TIMEOUT, all).await;
        // Tasks that still wait for the server hold the protocol.
        self.protocol.end_connections();
    }
}

impl Mount {
    /// Runs `operation` on the mount's threads.
    pub(crate) async fn run<T, F, Fut>(&self, operation: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(Arc<MountState>) -> Fut,
        Fut: Future<Output = crate::Result<T>> + Send + 'static,
    {
        self.try_run(operation).await.map_err(|error| detail::current().neutral(error))
    }

    /// Like [`run`](Self::run), with the client's own error.
    pub(crate) async fn try_run<T, F, Fut>(&self, operation: F) -> crate::Result<T>
    where
        T: Send + 'static,
        F: FnOnce(Arc<MountState>) -> Fut,
        Fut: Future<Output = crate::Result<T>> + Send + 'static,
    {
        let operation = operation(Arc::clone(&self.state));
        let runtime = self.runtime.handle()?.clone();
        // A caller that gives up before its turn leaves nothing behind.
        let begin = move |turn| {
            runtime.spawn(async move {
                let outcome = operation.await;
                drop(turn);
                outcome
            })
        };
        let task = self.in_turn_of(&self.state.operations, begin).await?;
        task.await.unwrap_or(Err(crate::Error::Local(Error::Io)))
    }

    /// Runs `begin` with a permit of `transfers`; it must not wait.
    pub(crate) async fn in_turn<T: Send + 'static>(
        &self,
        begin: impl FnOnce(OwnedSemaphorePermit) -> T + Send + 'static,
    ) -> Result<T> {
        self.in_turn_of(&self.state.transfers, begin).await
    }

    /// Runs `begin` with a permit; it must not wait.
    ///
    /// A task waits for the permit, because the semaphore grants permits in order: one granted to a
    /// future that its owner does not poll would be lost to every other request.
    async fn in_turn_of<T: Send + 'static>(
        &self,
        permits: &Arc<Semaphore>,
        begin: impl FnOnce(OwnedSemaphorePermit) -> T + Send + 'static,
    ) -> Result<T> {
        if let Ok(turn) = Arc::clone(permits).try_acquire_owned() {
            return Ok(begin(turn));
        }
        let permits = Arc::clone(permits);
        let wait = async move { permits.acquire_owned().await.map(begin) };
        let mut task = AbortOnDrop(self.runtime.handle()?.spawn(wait));
        match (&mut task.0).await {
            Ok(Ok(begun)) => Ok(begun),
            Ok(Err(_)) | Err(_) => Err(Error::Io),
        }
    }

    /// Returns the state that the server holds; does not wait for operations in progress.
    pub(crate) async fn unmount(&self) -> Result<()> {
        let state = Arc::clone(&self.state);
        let end = self.runtime.handle()?.spawn(async move { state.end().await });
        end.await.map_err(|_| Error::Io)
    }
}

/// A task that ends with its owner, at the next point where it waits.
struct AbortOnDrop<T>(JoinHandle<T>);

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let state = Arc::clone(&self.state);
        match &mut self.runtime {
            Runtime::Own(runtime) => {
                let Some(runtime) = runtime.take() else { return };
                // The last reference may be dropped on one of the runtime's own threads, which cannot
                // wait for itself.
                std::thread::spawn(move || {
                    runtime.block_on(state.end());
                    runtime.shutdown_background();
                });
            }
            Runtime::Driven(driven) => driven.end(async move { state.end().await }),
            Runtime::Callers(handle) => drop(handle.spawn(async move { state.end().await })),
        }
    }
}

/// The mount's executor.
pub(crate) enum Runtime {
    /// Its own; shut down in the background when dropped.
    Own(Option<tokio::runtime::Runtime>),
    /// Its own, which threads that wait for calls drive.
    Driven(Driven),
    /// The program's.
    Callers(tokio::runtime::Handle),
}

impl Runtime {
    /// Threads of the mount's own.
    pub(crate) fn own(connections: u32) -> crate::Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(if connections > 1 { 2 } else { 1 })
            .thread_name("weir-nfs")
            .enable_all()
            .build()
            .map_err(|error| crate::Error::Local(error.into()))?;
        Ok(Self::Own(Some(runtime)))
    }

    pub(crate) fn handle(&self) -> Result<&tokio::runtime::Handle> {
        match self {
            Self::Own(runtime) => {
                runtime.as_ref().map(tokio::runtime::Runtime::handle).ok_or(Error::Io)
            }
            Self::Driven(driven) => driven.handle().ok_or(Error::Io),
            Self::Callers(handle) => Ok(handle),
        }
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        if let Self::Own(runtime) = self
            && let Some(runtime) = runtime.take()
        {
            runtime.shutdown_background();
        }
    }
}
