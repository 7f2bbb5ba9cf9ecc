//! Whose turn it is to sync a file (`mapping/sync.rs`).
//!
//! 1. At most one sync runs. A call joins the sync that begins next, so that sync covers all that
//!    was written before the call.

use crate::writeback::durability::{Covered, Durability};

/// The syncs of a file, numbered from 1 in the order of their begin.
#[derive(Debug, Default)]
pub(crate) struct Syncs {
    begun: u64,
    /// The last one has not ended.
    running: bool,
    /// A caller of the next sync needs attributes, too.
    attributes: bool,
}

/// What a call that has joined a sync does next.
pub(crate) enum JoinedSync {
    Done,
    Wait,
    /// It runs the sync.
    Run(Sync),
}

/// A sync that has begun.
pub(crate) struct Sync {
    pub(crate) data_only: bool,
    pub(crate) covered: Covered,
}

impl Syncs {
    /// Joins the next sync, and returns its number.
    pub(crate) fn join(&mut self, data_only: bool) -> u64 {
        self.attributes |= !data_only;
        self.begun + 1
    }

    /// For a call that joined sync `number`. Begins the sync if none runs.
    pub(crate) fn next_step(&mut self, number: u64, durability: &Durability) -> JoinedSync {
        if self.running {
            return if number < self.begun { JoinedSync::Done } else { JoinedSync::Wait };
        }
        if number <= self.begun {
            return JoinedSync::Done;
        }
        self.begun += 1;
        self.running = true;
        let data_only = !std::mem::take(&mut self.attributes);
        JoinedSync::Run(Sync { data_only, covered: durability.begin() })
    }

    pub(crate) fn is_running(&self) -> bool {
        self.running
    }

    /// The running sync has ended.
    pub(crate) fn end(&mut self) {
        self.running = false;
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_shared_sync_returns_attributes_to_callers_that_need_them() {
        let (mut syncs, durability) = (Syncs::default(), Durability::default());
        let data_only = |syncs: &mut Syncs, number| match syncs.next_step(number, &durability) {
            JoinedSync::Run(sync) => Some(sync.data_only),
            JoinedSync::Done | JoinedSync::Wait => None,
        };
        let first = syncs.join(true);
        assert_eq!(data_only(&mut syncs, first), Some(true));
        let (second, also, again) = (syncs.join(true), syncs.join(false), syncs.join(true));
        assert_eq!((second, also, again), (2, 2, 2));
        assert_eq!(data_only(&mut syncs, second), None, "the first one runs");
        syncs.end();
        assert_eq!(data_only(&mut syncs, again), Some(false));
        let third = syncs.join(true);
        syncs.end();
        assert_eq!(data_only(&mut syncs, third), Some(true), "no caller needs attributes now");
    }

    #[test]
    fn a_call_waits_for_the_end_of_the_sync_that_covers_it() {
        let (mut syncs, durability) = (Syncs::default(), Durability::default());
        let (first, also) = (syncs.join(true), syncs.join(true));
        assert!(matches!(syncs.next_step(first, &durability), JoinedSync::Run(_)));
        let later = syncs.join(true);
        for number in [first, also, later] {
            assert!(matches!(syncs.next_step(number, &durability), JoinedSync::Wait));
        }
        syncs.end();
        assert!(matches!(syncs.next_step(also, &durability), JoinedSync::Done));
        assert!(matches!(syncs.next_step(later, &durability), JoinedSync::Run(_)));
        assert!(matches!(syncs.next_step(also, &durability), JoinedSync::Done), "beside another");
        assert!(matches!(syncs.next_step(later, &durability), JoinedSync::Wait));
    }
}
