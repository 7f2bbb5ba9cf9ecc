//! How many of the process's file descriptors peers may use.
//!
//! A connection takes one descriptor, and so does each file that NFSv4 clients have open. Together
//! they leave three eighths of the limit (RLIMIT_NOFILE) for the store's directories (a quarter),
//! NFSv3's open files and the server itself. So a client that opens as many files as it can does
//! not keep other clients from connecting.

use rustix::process::{Resource, getrlimit};

/// Descriptors that peers may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Descriptors {
    pub(crate) connections: usize,
    pub(crate) opens: usize,
}

impl Descriptors {
    /// Computed from the current limit of this process.
    pub(crate) fn of_process() -> Self {
        let limit = getrlimit(Resource::Nofile).current;
        Self::of(limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX))
    }

    fn of(limit: usize) -> Self {
        Self { connections: (limit / 4).max(1), opens: (limit / 8 * 3).max(1) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_and_opens_leave_descriptors_for_each_other_and_for_the_server() {
        assert_eq!(Descriptors::of(1024), Descriptors { connections: 256, opens: 384 });
        for limit in [0, 1, 7, 64, 1 << 20, usize::MAX] {
            let Descriptors { connections, opens } = Descriptors::of(limit);
            assert!(connections > 0 && opens > 0);
            assert!(limit < 8 || connections + opens <= limit - limit / 4);
        }
        assert!(Descriptors::of_process().opens > 1);
    }
}
