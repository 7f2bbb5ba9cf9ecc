//! The state of one mount, and the threads of its requests.

use crate::files::attribute_cache::AttributeCache;
use crate::files::deferred_close::Deferred;
use crate::files::silly_rename::OpenFiles;
use crate::fs::handles::Handles;
use crate::mount::UNMOUNT_TIMEOUT;
use crate::protocol::Protocol;
use crate::transport::Counters;
use crate::{MountOptions, Version};
use std::future::Future;
use std::sync::Arc;
use tokio::time::timeout;
use weir_rpc::OpaqueAuth;
use weir_vfs::{Error, Result};

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
}

impl MountState {
    /// Returns the state that the server holds, as far as the server answers in time.
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
        self.try_run(operation).await.map_err(Error::from)
    }

    /// Like [`run`](Self::run), with the client's own error.
    pub(crate) async fn try_run<T, F, Fut>(&self, operation: F) -> crate::Result<T>
    where
        T: Send + 'static,
        F: FnOnce(Arc<MountState>) -> Fut,
        Fut: Future<Output = crate::Result<T>> + Send + 'static,
    {
        let task = self.runtime.handle()?.spawn(operation(Arc::clone(&self.state)));
        task.await.unwrap_or(Err(crate::Error::Local(Error::Io)))
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let Some(runtime) = self.runtime.0.take() else { return };
        let state = Arc::clone(&self.state);
        // The last reference may be dropped on one of the runtime's own threads, which cannot wait
        // for itself.
        std::thread::spawn(move || {
            runtime.block_on(state.end());
            runtime.shutdown_background();
        });
    }
}

/// The mount's executor; shut down in the background when dropped.
pub(crate) struct Runtime(pub(crate) Option<tokio::runtime::Runtime>);

impl Runtime {
    pub(crate) fn handle(&self) -> Result<&tokio::runtime::Handle> {
        self.0.as_ref().map(tokio::runtime::Runtime::handle).ok_or(Error::Io)
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}
