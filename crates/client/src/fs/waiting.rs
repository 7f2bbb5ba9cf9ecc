//! A mount whose requests are executed by the threads that wait for them.

use super::driven::Driven;
use super::mount_state::Runtime;
use super::{NfsFs, Reach};
use crate::{MountOptions, NfsUrl};
use std::sync::Arc;

impl NfsFs {
    /// [`mount`](Self::mount), with the mount's requests on the threads that wait for them in [`wait`](Self::wait), as
    /// far as possible.
    pub(crate) async fn mount_for_waiting(
        url: &NfsUrl,
        options: &MountOptions,
    ) -> crate::Result<Arc<Self>> {
        // One thread at a time drives: too few for several connections.
        let driven = match url.options(options)?.nconnect {
            ..=1 => Some(Driven::new().map_err(|error| crate::Error::Local(error.into()))?),
            _ => None,
        };
        Ok(Self::mount_to(url, Reach::End, options, driven.map(Runtime::Driven)).await?.fs)
    }

    /// Waits on this thread for a future of this mount.
    pub(crate) fn wait<F: Future>(&self, call: F) -> F::Output {
        let state = &self.mount.state;
        match &self.mount.runtime {
            Runtime::Driven(driven) => driven.block_on(|| state.is_busy(), call),
            Runtime::Own(_) | Runtime::Callers(_) => crate::block_on(call),
        }
    }

    /// The same for a call of many requests, whose replies another thread receives meanwhile.
    pub(crate) fn wait_beside<F: Future>(&self, call: F) -> F::Output {
        match &self.mount.runtime {
            Runtime::Driven(driven) => driven.block_beside(call),
            Runtime::Own(_) | Runtime::Callers(_) => crate::block_on(call),
        }
    }

    /// Has what was given to the mount's executor begin, if only threads that [`wait`](Self::wait) drive it.
    pub(crate) fn hurry(&self) {
        if let Runtime::Driven(driven) = &self.mount.runtime {
            driven.hurry();
        }
    }
}
