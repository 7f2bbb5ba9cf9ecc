//! The order of operations, connections and files.

use super::{ConnectionFigures, Figures, OperationFigures};
use std::cmp::Reverse;
use weir_control::FileStatus;

/// What comes first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in super::super) enum Sort {
    /// The most executions, bytes moved, and bytes in memory.
    #[default]
    Amount,
    /// The slowest operations (99th percentile), connections with the most calls, and files with the
    /// most dirty bytes.
    Delay,
    /// By name.
    Name,
}

impl Sort {
    /// All orders by name.
    pub(in super::super) const ALL: &'static [(&'static str, &'static str, Self)] = &[
        ("amount", "Most executions, bytes moved, and bytes in memory", Self::Amount),
        ("delay", "Slowest operations, most calls, and most dirty bytes", Self::Delay),
        ("name", "By name", Self::Name),
    ];

    /// The next one, for the key that changes it.
    pub(in super::super) fn next(self) -> Self {
        match self {
            Self::Amount => Self::Delay,
            Self::Delay => Self::Name,
            Self::Name => Self::Amount,
        }
    }

    /// Its name.
    pub(in super::super) fn name(self) -> &'static str {
        Self::ALL.iter().find(|(.., sort)| *sort == self).map_or("", |(name, ..)| name)
    }

    /// Sorts all parts. Equals are in the order of their names.
    pub(in super::super) fn apply(self, figures: &mut Figures) {
        let Figures { operations, connections, files, .. } = figures;
        let name = |one: &OperationFigures| (one.protocol.clone(), one.name.clone());
        let bytes = |one: &ConnectionFigures| one.received_bytes.saturating_add(one.sent_bytes);
        let path = |one: &FileStatus| one.path.clone();
        match self {
            Self::Amount => {
                operations.sort_by_cached_key(|one| (Reverse(one.count), name(one)));
                connections.sort_by_cached_key(|one| (Reverse(bytes(one)), one.id));
                files.sort_by_cached_key(|one| (Reverse(one.resident_bytes), path(one)));
            }
            Self::Delay => {
                operations.sort_by_cached_key(|one| (Reverse(one.latency.p99), name(one)));
                connections.sort_by_cached_key(|one| (Reverse(one.calls), one.id));
                files.sort_by_cached_key(|one| (Reverse(one.dirty_bytes), path(one)));
            }
            Self::Name => {
                operations.sort_by_cached_key(name);
                connections.sort_by_cached_key(|one| (one.address.clone(), one.id));
                files.sort_by_cached_key(path);
            }
        }
    }
}
