//! The files of which a client may not reclaim state.

use crate::handle::Node;
use std::collections::BTreeSet;

/// Maximum number of files recorded individually for a client whose acknowledgment the server does
/// not get.
pub(in crate::state) const MAX_UNACKNOWLEDGED: usize = 64;

/// The files of which a client may not reclaim state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ReclaimDenied {
    /// All files.
    pub(crate) all: bool,
    /// These files.
    pub(crate) files: BTreeSet<Node>,
}

impl ReclaimDenied {
    /// Denies every reclaim.
    pub(crate) fn all() -> Self {
        Self { all: true, files: BTreeSet::new() }
    }

    /// Whether no reclaim is denied.
    pub(crate) fn is_empty(&self) -> bool {
        !self.all && self.files.is_empty()
    }

    pub(in crate::state) fn add(&mut self, node: Node, max: usize) {
        self.files.insert(node);
        if self.all || self.files.len() > max {
            *self = Self::all();
        }
    }
}
