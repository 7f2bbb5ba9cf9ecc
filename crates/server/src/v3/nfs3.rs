//! State that NFSv3 and NFSACL calls share.

use super::open_files::Files;
use crate::delegation::recall::Recalls;
use crate::export::Exports;
use crate::metrics::Metrics;
use crate::operation::reply_cache::Replies;
use crate::storage::durability::Committer;
use crate::storage::retry_journal::RetryJournal;
use std::sync::Arc;
use weir_base::Clock;

/// NFSv3.
pub struct Nfs3 {
    pub(super) exports: Arc<Exports>,
    pub(super) committer: Arc<Committer>,
    pub(super) retries: Arc<RetryJournal>,
    pub(super) files: Files,
    pub(super) replies: Replies,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) recalls: Arc<Recalls>,
    pub(super) metrics: Arc<Metrics>,
}

impl Nfs3 {
    /// Serves `exports`. `committer` makes changes durable before their replies and has the write
    /// verifier; `retries` has the changes of earlier runs; `recalls` recalls delegations of NFSv4 clients.
    pub(crate) fn new(
        exports: Arc<Exports>,
        committer: Arc<Committer>,
        retries: Arc<RetryJournal>,
        clock: Arc<dyn Clock>,
        recalls: Arc<Recalls>,
        metrics: Arc<Metrics>,
        files: Files,
    ) -> Self {
        let replies = Replies::default();
        Self { exports, committer, retries, files, replies, clock, recalls, metrics }
    }
}

impl std::fmt::Debug for Nfs3 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Nfs3").field("exports", &self.exports).finish_non_exhaustive()
    }
}
