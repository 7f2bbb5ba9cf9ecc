//! Distinguishes changes of a file by other programs from our own.
//!
//! The evidence is the time stamp (ctime), and the kernel's reports where it makes them (`watch`).
//! For the stamp:
//!
//! 1. Before a change of ours, it is compared with the last known one; this detects an earlier
//!    change by others even though ours overwrites its stamp.
//! 2. After a change of ours, it is adopted only if it lies within the time of our changes.
//! 3. The kernel stamps before it copies the data, and stamps are coarse (a clock tick, or up to
//!    two seconds): data read under a stamp younger than [`YOUNG`] is provisional, and an equal
//!    stamp proves nothing. Once the stamp is old, one change by others is counted, so that the
//!    data is read again. Not if the kernel reports changes: it does so once the data is in place.
//! 4. A change by others between ours, or within the same tick, leaves no trace in the stamp. Only
//!    the kernel's reports reveal it.

/// No later change, nor one still being copied, gets a stamp of this age in nanoseconds.
pub(in crate::local) const YOUNG: u64 = 2_500_000_000;
/// The most by which a stamp may precede its change, in nanoseconds.
const COARSEST: u64 = 2_000_000_000;

/// The known state of a file's stamps. Times are in nanoseconds since 1970.
#[derive(Debug, Default)]
pub(in crate::local) struct Seen {
    stamp: Option<u64>,
    /// When our changes since the last look began and ended.
    own: Option<(u64, u64)>,
    /// Data may have been read under a young stamp that was not ours.
    provisional: bool,
}

impl Seen {
    /// We are about to change the file, which has `stamp`; returns whether others have changed it
    /// since the last look.
    pub(in crate::local) fn before_own(
        &mut self,
        stamp: u64,
        now: u64,
        clock_is_ours: bool,
    ) -> bool {
        let foreign = self.changed(stamp, clock_is_ours);
        self.own = Some((now, now));
        foreign
    }

    /// Our changes have ended.
    pub(in crate::local) fn after_own(&mut self, now: u64) {
        if let Some(own) = &mut self.own {
            own.1 = now;
        }
    }

    /// A look with no change of ours in progress; returns whether others have changed the file, or
    /// may have.
    pub(in crate::local) fn look(
        &mut self,
        stamp: u64,
        now: u64,
        clock_is_ours: bool,
        watched: bool,
    ) -> bool {
        let ours = self.own.is_some();
        let foreign = self.changed(stamp, clock_is_ours);
        if watched {
            self.provisional = false;
            return foreign;
        }
        if now.saturating_sub(stamp) < YOUNG {
            self.provisional |= foreign || !ours;
            return foreign;
        }
        std::mem::take(&mut self.provisional) || foreign
    }

    fn changed(&mut self, stamp: u64, clock_is_ours: bool) -> bool {
        let own = self.own.take();
        let Some(known) = self.stamp.replace(stamp) else { return false };
        let ours = own.is_some_and(|(begun, ended)| {
            !clock_is_ours || (begun.saturating_sub(COARSEST) <= stamp && stamp <= ended)
        });
        known != stamp && !ours
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    #[test]
    fn our_own_changes_are_not_those_of_others() {
        let mut seen = Seen::default();
        assert!(!seen.look(10 * S, 100 * S, true, false));
        assert!(!seen.before_own(10 * S, 100 * S, true));
        seen.after_own(101 * S);
        assert!(!seen.look(100 * S, 102 * S, true, false));
        assert!(!seen.look(100 * S, 200 * S, true, false), "ours, and old by now");
    }

    #[test]
    fn a_change_before_between_and_after_ours_is_found() {
        let known = || {
            let mut seen = Seen::default();
            assert!(!seen.look(10 * S, 100 * S, true, true));
            seen
        };
        let mut before = known();
        assert!(before.before_own(99 * S, 100 * S, true), "ours is to hide it");
        let mut after = known();
        assert!(!after.before_own(10 * S, 100 * S, true));
        after.after_own(101 * S);
        assert!(after.look(101 * S + 1, 102 * S, true, true));
        let mut between = known();
        assert!(!between.before_own(10 * S, 100 * S, true));
        between.after_own(101 * S);
        assert!(between.before_own(103 * S, 104 * S, true));
    }

    #[test]
    fn data_read_under_a_young_stamp_is_provisional() {
        let mut seen = Seen::default();
        assert!(!seen.look(100 * S, 100 * S + 1, true, false));
        assert!(!seen.look(100 * S, 101 * S, true, false), "still young");
        assert!(seen.look(100 * S, 103 * S, true, false), "an equal stamp proves nothing");
        assert!(!seen.look(100 * S, 104 * S, true, false), "what was read since is proven");
        let mut watched = Seen::default();
        assert!(!watched.look(100 * S, 100 * S + 1, true, true));
        assert!(!watched.look(100 * S, 103 * S, true, true), "the kernel would have told");
    }

    #[test]
    fn a_foreign_clock_explains_stamps_after_own_changes() {
        let mut seen = Seen::default();
        assert!(!seen.look(10 * S, 100 * S, false, true));
        assert!(!seen.before_own(10 * S, 100 * S, false));
        seen.after_own(101 * S);
        assert!(!seen.look(500 * S, 102 * S, false, true));
        assert!(seen.look(501 * S, 103 * S, false, true));
    }
}
