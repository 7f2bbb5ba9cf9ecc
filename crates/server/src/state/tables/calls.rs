//! The exports that the calls in progress of a client use. A call keeps its client's state in these, however long it
//! takes: it may still write under that. It does not keep what the client has elsewhere once its lease is over: a store
//! that never answers would keep all state of a dead client.
//!
//! A call enters an export before it looks at the client's state there, so a transition under the state's lock either
//! finds the export in use or is seen by the call.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

/// Number of counters. Exports share them, so an export may count as used because of another.
const COUNTERS: u16 = 16;

/// How many calls of a client use each export.
#[derive(Debug, Default)]
pub(crate) struct ExportsInUse([AtomicU32; COUNTERS as usize]);

impl ExportsInUse {
    fn counter(&self, export: u16) -> &AtomicU32 {
        &self.0[usize::from(export % COUNTERS)]
    }

    /// Whether a call may be using an export.
    pub(in crate::state) fn has(&self, export: u16) -> bool {
        self.counter(export).load(SeqCst) > 0
    }
}

/// The exports that one call uses, until this is dropped.
#[derive(Debug, Default)]
pub(crate) struct CallUses {
    of_client: Option<Arc<ExportsInUse>>,
    /// The counters that it has raised, a bit each.
    raised: u16,
}

impl CallUses {
    /// Of a call that uses no export yet.
    pub(crate) fn of(client: Arc<ExportsInUse>) -> Self {
        Self { of_client: Some(client), raised: 0 }
    }

    /// Notes that the call uses an export.
    pub(crate) fn enter(&mut self, export: u16) {
        let bit = 1 << (export % COUNTERS);
        if let Some(client) = &self.of_client
            && self.raised & bit == 0
        {
            client.counter(export).fetch_add(1, SeqCst);
            self.raised |= bit;
        }
    }
}

impl Drop for CallUses {
    fn drop(&mut self) {
        let Some(client) = &self.of_client else { return };
        for counter in (0..COUNTERS).filter(|counter| self.raised & (1 << counter) != 0) {
            client.counter(counter).fetch_sub(1, SeqCst);
        }
    }
}
