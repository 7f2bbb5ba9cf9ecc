//! Notifies clients of minor version 1 and later that a lock they wait for may be free
//! (CB_NOTIFY_LOCK, RFC 8881 section 20.11), so that they need not poll for it.
//!
//! A notification is optional: a client that misses it retries on its own schedule. So no
//! notification is repeated. Clients that do not answer delay the others for seconds at most, and
//! only while there are [`AT_ONCE`] of them.

use crate::callback::Callbacks;
use crate::export::Exports;
use crate::state::{Freed, State};
use parking_lot::Mutex;
use std::sync::Arc;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tracing::debug;
use weir_nfs::v4::CbOp;
use weir_nfs::v4::cb::notify_lock;
use weir_nfs::v4::types::StateOwner;
use weir_pagecache::File;
use weir_xdr::Opaque;

/// Notifications in progress at a time.
const AT_ONCE: usize = 256;

/// Sends notifications until it is dropped.
pub(crate) async fn run(
    state: Arc<Mutex<State<File>>>,
    exports: Arc<Exports>,
    callbacks: Arc<Callbacks>,
) {
    let freed = state.lock().on_freed();
    let permits = Arc::new(Semaphore::new(AT_ONCE));
    let mut telling = JoinSet::new();
    loop {
        freed.notified().await;
        let notices = state.lock().take_freed();
        for notice in notices {
            // The semaphore is never closed.
            let Ok(permit) = permits.clone().acquire_owned().await else { return };
            let (exports, callbacks) = (exports.clone(), callbacks.clone());
            telling.spawn(async move {
                tell(&exports, &callbacks, notice).await;
                drop(permit);
            });
        }
        while telling.try_join_next().is_some() {}
    }
}

async fn tell(exports: &Exports, callbacks: &Arc<Callbacks>, Freed { client, owner, node }: Freed) {
    let op = CbOp::NotifyLock(notify_lock::Args {
        file: exports.seal(node)[..].into(),
        lock_owner: StateOwner { client_id: client.0, owner: Opaque(owner) },
    });
    if callbacks.call(client, op, None).await.is_none() {
        debug!(?client, "CB_NOTIFY_LOCK was not answered");
    }
}
