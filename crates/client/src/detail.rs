//! The client's own error beside the neutral one: the traits of `weir_vfs` return an errno, and a caller
//! within [`detailed`] gets the error that it stands for, with server, operation and status.
//!
//! 1. The place where an error becomes neutral notes it in the slot of the future that is polled there.
//!    Requests that complete elsewhere take the slot with them ([`current`]).

use crate::error::{Error, Result};
use std::sync::Arc;
use weir_base::sync::Mutex;

/// The last error noted.
#[derive(Clone, Default)]
pub(crate) struct Slot(Arc<Mutex<Option<Error>>>);

tokio::task_local! {
    static SLOT: Slot;
}

impl Slot {
    /// Makes an error neutral, and notes it.
    pub(crate) fn neutral(&self, error: Error) -> weir_vfs::Error {
        *self.0.lock() = Some(error.clone());
        error.into()
    }

    /// The error noted for `neutral`, or that alone if another one was noted.
    pub(crate) fn take(&self, neutral: weir_vfs::Error) -> Error {
        let noted = self.0.lock().take().filter(|noted| noted.to_vfs() == neutral);
        noted.unwrap_or(Error::Local(neutral))
    }

    /// Runs `start` with this slot as the current one.
    pub(crate) fn enter<T>(&self, start: impl FnOnce() -> T) -> T {
        SLOT.sync_scope(self.clone(), start)
    }
}

/// The slot of the future that is polled on this thread; one of its own outside of [`detailed`].
pub(crate) fn current() -> Slot {
    SLOT.try_with(Slot::clone).unwrap_or_default()
}

/// Awaits an operation of the traits; its error is the client's own.
pub(crate) async fn detailed<T>(operation: impl Future<Output = weir_vfs::Result<T>>) -> Result<T> {
    let slot = Slot::default();
    let outcome = SLOT.scope(slot.clone(), operation).await;
    outcome.map_err(|neutral| slot.take(neutral))
}
