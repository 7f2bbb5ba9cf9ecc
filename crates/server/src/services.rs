//! The services that the programs of all versions use.

use crate::callback::Callbacks;
use crate::delegation::recall::Recalls;
use crate::export::Exports;
use crate::handle::Node;
use crate::metrics::Metrics;
use crate::operation::copies::Copies;
use crate::state::{SlotTables, State};
use crate::storage::client_tracking::ClientTracking;
use crate::storage::durability::Committer;
use crate::storage::recovery::Recovery;
use crate::storage::retry_journal::RetryJournal;
use crate::storage::write_verifier::WriteVerifier;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;
use weir_base::Clock;
use weir_pagecache::File;

/// The services that the programs of a server share.
pub(crate) struct Services {
    pub(crate) exports: Arc<Exports>,
    pub(crate) state: Arc<Mutex<State<File>>>,
    /// The number of the server's run, which its stateids name.
    pub(crate) run: u32,
    /// The slots of the sessions in `state`.
    pub(crate) slot_tables: Arc<SlotTables>,
    pub(crate) callbacks: Arc<Callbacks>,
    pub(crate) recalls: Arc<Recalls>,
    pub(crate) copies: Arc<Copies>,
    pub(crate) records: Arc<ClientTracking>,
    pub(crate) recovery: Recovery,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) verifier: Arc<WriteVerifier>,
    pub(crate) committer: Arc<Committer>,
    pub(crate) retries: Arc<RetryJournal>,
    pub(crate) metrics: Arc<Metrics>,
}

impl Services {
    /// Puts the services of the server's run `run` together.
    pub(crate) fn new(
        exports: Arc<Exports>,
        state: State<File>,
        recovery: Recovery,
        retries: RetryJournal,
        run: u32,
        clock: Arc<dyn Clock>,
        stop: &CancellationToken,
    ) -> Self {
        let slot_tables = state.sessions.slot_tables().clone();
        let state = Arc::new(Mutex::new(state));
        let callbacks = Arc::new(Callbacks::new(state.clone()));
        let records = Arc::new(ClientTracking::new(state.clone(), recovery.clone(), clock.clone()));
        let copies = Arc::new(Copies::new(state.clone(), exports.clone()));
        let recalls = Arc::new(Recalls::new(
            state.clone(),
            callbacks.clone(),
            exports.clone(),
            records.clone(),
            copies.clone(),
            clock.clone(),
            stop.child_token(),
        ));
        let verifier = Arc::<WriteVerifier>::default();
        let committer = Arc::new(Committer::new(verifier.clone()));
        let (retries, metrics) = (Arc::new(retries), Arc::new(Metrics::default()));
        Self {
            exports,
            state,
            run,
            slot_tables,
            callbacks,
            recalls,
            copies,
            records,
            recovery,
            clock,
            verifier,
            committer,
            retries,
            metrics,
        }
    }

    pub(crate) fn now(&self) -> Duration {
        self.clock.monotonic()
    }

    /// Writes the client records that no reply waits for. The next call retries failed writes.
    pub(crate) async fn write_records(&self) {
        _ = self.records.write_all().await;
    }

    /// Whether a file's export is still served. Check this after acquiring state in it: if the
    /// export is removed later, [`Server::set_exports`](crate::Server::set_exports) frees that
    /// state.
    pub(crate) fn serves(&self, node: Node) -> bool {
        self.exports.table().get(node.export).is_ok()
    }
}
