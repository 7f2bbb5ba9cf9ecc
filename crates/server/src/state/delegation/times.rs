//! What a client with a write delegation says of a file: to other clients (RFC 8881 section
//! 10.4.3), and, where it answers for the times, to the file (RFC 9754 section 5).
//!
//! 1. A time counts only if it is later than the file's original one: the file's when it was
//!    delegated, or the moment at which the client last set it with SETATTR. Another is ignored.
//! 2. A time in the future counts as now. All times of one answer are compared with one now.
//! 3. The time of access counts only together with that of the last change: it must not
//!    advance the time of the last change of attributes, and file systems advance that whenever
//!    times are set.
//! 4. A change attribute that others are told for data which is not written back yet is higher than
//!    all that anyone was told before.

use crate::handle::Node;
use crate::state::client::ClientId;
use crate::state::error::StateError;
use crate::state::stateid::{StateId, StateKey};
use crate::state::table::State;
use crate::state::tables::delegation::{Answer, Times};
use std::time::SystemTime;
use weir_vfs::{Attr, SetAttr, SetTime};

impl<F: Clone> State<F> {
    /// The attributes to tell others of a file, which are `ours` as far as the server knows, after
    /// the answer of the client that has it delegated for writing.
    pub(crate) fn attrs_for_others(
        &mut self,
        key: StateKey,
        answer: Answer,
        ours: Attr,
        now: SystemTime,
    ) -> Attr {
        let Some(d) = self.delegations.by_key.get_mut(&key) else { return ours };
        let (our_change, our_mtime, our_atime) = (ours.change, ours.mtime, ours.atime);
        let mut shown = ours;
        let mtime = answer.mtime.filter(|_| d.keeps_times);
        let mtime = mtime.and_then(|time| vetted(time, d.original.mtime, now));
        let has_data = d.change != Some(answer.change);
        if has_data {
            shown.size = answer.size;
        }
        // Data that the client has not written back changes the times, also if it tells none.
        if let Some(time) = mtime.or(has_data.then_some(now)) {
            shown.mtime = time;
            shown.ctime = shown.ctime.max(time);
        }
        if let (Some(_), Some(atime)) = (mtime, answer.atime) {
            shown.atime = vetted(atime, d.original.atime, now).unwrap_or(our_atime);
        }
        let touched = mtime.is_some_and(|time| time > our_mtime && d.shown_mtime != Some(time));
        if has_data || touched {
            d.shown_change = d.shown_change.max(our_change) + 1;
        }
        if mtime.is_some() {
            d.shown_mtime = mtime;
        }
        // What others saw stays true.
        shown.change = d.shown_change.max(our_change);
        shown
    }

    /// The times to set on a file that the client has delegated, after it has told its own.
    ///
    /// # Errors
    /// The stateid is not one of a delegation of this file with times.
    pub(crate) fn delegated_times(
        &self,
        client: ClientId,
        id: StateId,
        node: Node,
        (atime, mtime): (Option<SystemTime>, Option<SystemTime>),
        now: SystemTime,
    ) -> Result<SetAttr, StateError> {
        let d = self.delegation(client, id)?;
        if d.node != node || !d.keeps_times {
            return Err(StateError::BadStateId);
        }
        let Times { atime: read, mtime: changed } = d.original;
        let mtime = mtime.and_then(|time| vetted(time, changed, now));
        let atime = atime.filter(|_| mtime.is_some()).and_then(|time| vetted(time, read, now));
        let [atime, mtime] = [atime, mtime].map(|time| time.map(SetTime::To));
        Ok(SetAttr { atime, mtime, ..SetAttr::default() })
    }

    /// Notes that a client set times with SETATTR while it answers for them: what it says of the
    /// time before is history.
    pub(crate) fn times_set(
        &mut self,
        client: ClientId,
        node: Node,
        set: &SetAttr,
        now: SystemTime,
    ) {
        let held = self.delegations.held_by(client, node);
        let Some(d) = held.and_then(|key| self.delegations.by_key.get_mut(&key)) else { return };
        if set.atime.is_some() {
            d.original.atime = now;
        }
        if set.mtime.is_some() {
            d.original.mtime = now;
        }
    }
}

/// A client's time, if it counts.
fn vetted(time: SystemTime, original: SystemTime, now: SystemTime) -> Option<SystemTime> {
    Some(time.min(now)).filter(|time| *time > original)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn accepted_times_are_after_the_original_and_not_in_the_future() {
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        for (time, original, now, counts) in [
            (20, 10, 30, Some(20)),
            (40, 10, 30, Some(30)),
            (10, 10, 30, None),
            (5, 10, 30, None),
            // The file's own time is in the future.
            (60, 50, 30, None),
        ] {
            assert_eq!(vetted(at(time), at(original), at(now)), counts.map(at), "{time}");
        }
    }
}
