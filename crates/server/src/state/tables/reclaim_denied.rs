//! What a client may not reclaim.

use crate::handle::Node;
use std::collections::BTreeSet;

/// Files that are told apart of a client that cannot be told what was taken.
pub(in crate::state) const MAX_UNTOLD: usize = 64;

/// Files of which a client may reclaim nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReclaimDenied {
    /// Of no file.
    pub all: bool,
    /// Of these not.
    pub files: BTreeSet<Node>,
}

impl ReclaimDenied {
    /// Of no file may anything be reclaimed.
    pub fn all() -> Self {
        Self { all: true, files: BTreeSet::new() }
    }

    /// Nothing is barred.
    pub fn is_empty(&self) -> bool {
        !self.all && self.files.is_empty()
    }

    pub(in crate::state) fn add(&mut self, node: Node, max: usize) {
        self.files.insert(node);
        if self.all || self.files.len() > max {
            *self = Self::all();
        }
    }
}
