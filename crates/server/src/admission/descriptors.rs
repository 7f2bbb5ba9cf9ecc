//! How many of the process's file descriptors each use may take.
//!
//! | use | part of RLIMIT_NOFILE | bounded by |
//! | --- | --- | --- |
//! | connections | 8/32 | `Limits::connections` |
//! | NFSv4's opens and NLM's share reservations | 12/32 | `state::Limits::opens` |
//! | delegations | 2/32 | `state::Limits::delegations` |
//! | files locked in their store | 3/32 | `state::Limits::store_locks` |
//! | directories that stores keep open | 4/32 | the program that opens the stores |
//! | files that NFSv3 keeps open between calls | 1/32 | `v3::open_files` |
//! | reserve | the rest | |
//!
//! The reserve is for the listeners, one connection that is accepted to be refused, the state
//! database, the log, the event queues of threads, and files that a call opens for itself. So no
//! peer keeps others from connecting by opening, locking or caching what it can.

use rustix::process::{Resource, getrlimit};

/// Descriptors that each use may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Descriptors {
    pub(crate) connections: usize,
    pub(crate) opens: usize,
    pub(crate) delegations: usize,
    pub(crate) store_locks: usize,
    pub(crate) directories: usize,
    pub(crate) v3_files: usize,
}

impl Descriptors {
    /// Computed from the current limit of this process.
    pub(crate) fn of_process() -> Self {
        let limit = getrlimit(Resource::Nofile).current;
        Self::of(limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX))
    }

    /// Computed from a limit. Every use gets at least one.
    pub(crate) fn of(limit: usize) -> Self {
        let part = |parts: usize| (limit / 32 * parts).max(1);
        Self {
            connections: part(8),
            opens: part(12),
            delegations: part(2),
            store_locks: part(3),
            directories: part(4),
            v3_files: part(1).min(1024),
        }
    }
}

/// How many directories the stores of a server may keep open together.
pub fn directory_descriptors() -> usize {
    Descriptors::of_process().directories
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_uses_of_descriptors_leave_a_reserve_together() {
        for limit in [32, 33, 63, 64, 1024, 4096, 1 << 20, usize::MAX] {
            let all = Descriptors::of(limit);
            let Descriptors { connections, opens, delegations, .. } = all;
            let Descriptors { store_locks, directories, v3_files, .. } = all;
            let uses = [connections, opens, delegations, store_locks, directories, v3_files];
            assert!(uses.iter().all(|&part| part > 0), "{all:?}");
            assert!(uses.iter().sum::<usize>() <= limit - limit / 16, "{all:?} of {limit}");
        }
        assert_eq!(Descriptors::of(0).connections, 1, "it can serve at all");
        assert!(Descriptors::of_process().opens > 1);
    }
}
