//! The changes that this mount makes of an open file, so that changes by others can be detected.
//!
//! 1. Each request of this mount that changes an open file also fetches the file's change attribute
//!    before and after the change (version 3: WCC data). These spans, joined, lead from the last known
//!    value to the current one unless another client has changed the file.
//! 2. A gap between spans and a failed request count as a change by others, because one cannot be
//!    ruled out. After a server has once left out a span, changes by others are not reported.
//! 3. A GETATTR reply is evaluated only if none of this mount's changes was in flight between the
//!    request and the reply.
//! 4. A change attribute may be the time of the last change: always in version 3, and in version 4 where the
//!    server's file system counts no changes. Then spans and replies show no change by others in the same
//!    tick of the server's clock, and those who rely on them ask [`is_time_stamp`].
//! 5. Memory is bounded: spans are joined as they come, and past [`MOST_SPANS`] gaps count at once.

use crate::protocol::ChangeSpan;
use std::time::{SystemTime, UNIX_EPOCH};
use weir_base::sync::Mutex;

/// Most spans with gaps between them that are kept.
const MOST_SPANS: usize = 64;

/// The changes of a file since this mount opened it.
#[derive(Default)]
pub(crate) struct OwnChanges(Mutex<State>);

#[derive(Default)]
struct State {
    /// The change attribute up to which all changes are known.
    known: Option<u64>,
    /// The spans of this mount's changes since then, in order, joined where they touch.
    own: Vec<(u64, u64)>,
    /// A change failed, or there were too many.
    doubt: bool,
    /// The server does not report the change attributes around a change.
    untold: bool,
    under_way: u32,
    /// Number of this mount's changes begun.
    begun: u64,
    by_others: u64,
}

/// A change by this mount in progress; if dropped, its outcome is unknown.
pub(crate) struct Change<'a> {
    changes: &'a OwnChanges,
    span: Option<ChangeSpan>,
}

/// A GETATTR in progress.
#[derive(Clone, Copy)]
pub(crate) struct Question(Option<u64>);

impl OwnChanges {
    /// Call before a change is requested.
    pub(crate) fn begin(&self) -> Change<'_> {
        let mut state = self.0.lock();
        state.under_way += 1;
        state.begun += 1;
        Change { changes: self, span: None }
    }

    /// Call before the attributes are requested.
    pub(crate) fn ask(&self) -> Question {
        let state = self.0.lock();
        Question((state.under_way == 0).then_some(state.begun))
    }

    /// The reply has arrived, with this change attribute.
    pub(crate) fn answered(&self, question: Question, change: u64) {
        let mut state = self.0.lock();
        if state.under_way > 0 || question.0 != Some(state.begun) {
            return;
        }
        let own = std::mem::take(&mut state.own);
        let doubt = std::mem::take(&mut state.doubt);
        let Some(known) = state.known.replace(change) else { return };
        let mut reached = known;
        let mut gap = doubt;
        for (before, after) in own {
            gap |= before > reached;
            reached = reached.max(after);
        }
        state.by_others += u64::from(gap || reached != change);
    }

    /// Number of changes by others detected; `None` if the server does not report enough.
    pub(crate) fn by_others(&self) -> Option<u64> {
        let state = self.0.lock();
        (!state.untold).then_some(state.by_others)
    }
}

impl Change<'_> {
    /// The server has made the change.
    pub(crate) fn done(mut self, span: ChangeSpan) {
        self.span = Some(span);
    }
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        let mut state = self.changes.0.lock();
        state.under_way -= 1;
        let (before, after) = match self.span {
            Some(ChangeSpan { before: Some(before), after: Some(after) }) => (before, after),
            Some(_) => return state.untold = true,
            None => return state.doubt = true,
        };
        let own = &mut state.own;
        let at = own.partition_point(|span| span.1 < before);
        let to = own[at..].partition_point(|span| span.0 <= after) + at;
        let joined = own
            .drain(at..to)
            .fold((before, after), |all, span| (all.0.min(span.0), all.1.max(span.1)));
        own.insert(at, joined);
        if own.len() > MOST_SPANS {
            own.clear();
            state.doubt = true;
        }
    }
}

/// Whether a change attribute is the change time, as servers encode it: in nanoseconds, or with the
/// seconds in front of 32 or 30 bits.
pub(crate) fn is_time_stamp(change: u64, ctime: SystemTime) -> bool {
    // Servers have no times before 1970 in version 3, and no use for them as change attributes.
    let Ok(since) = ctime.duration_since(UNIX_EPOCH) else { return false };
    let (seconds, nanos) = (since.as_secs(), u64::from(since.subsec_nanos()));
    let encoded = [seconds.wrapping_mul(1_000_000_000), seconds << 32, seconds << 30];
    encoded.iter().any(|seconds| seconds.wrapping_add(nanos) == change)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn span(before: u64, after: u64) -> ChangeSpan {
        ChangeSpan { before: Some(before), after: Some(after) }
    }

    fn look(changes: &OwnChanges, change: u64) -> u64 {
        changes.answered(changes.ask(), change);
        changes.by_others().unwrap()
    }

    #[test]
    fn own_changes_are_distinguished_from_those_of_others() {
        let changes = OwnChanges::default();
        assert_eq!(look(&changes, 10), 0, "the first look");
        assert_eq!(look(&changes, 11), 1, "nothing of ours");
        // Several at once, with replies in any order.
        let several = [changes.begin(), changes.begin(), changes.begin()];
        let asked = changes.ask();
        for (change, span) in several.into_iter().zip([span(12, 14), span(11, 13), span(14, 15)]) {
            change.done(span);
        }
        changes.answered(asked, 99);
        assert_eq!(changes.by_others(), Some(1), "asked while changes were under way");
        assert_eq!(look(&changes, 15), 1);
        // Another client's change happens between two of this mount's, before, or after them.
        changes.begin().done(span(15, 16));
        changes.begin().done(span(17, 18));
        assert_eq!(look(&changes, 18), 2);
        changes.begin().done(span(19, 20));
        assert_eq!(look(&changes, 20), 3);
        changes.begin().done(span(20, 21));
        assert_eq!(look(&changes, 22), 4);
        assert_eq!(look(&changes, 22), 4, "it counts once");
        // An unknown outcome counts.
        drop(changes.begin());
        assert_eq!(look(&changes, 22), 5);
        changes.begin().done(ChangeSpan { before: None, after: Some(23) });
        assert_eq!(changes.by_others(), None, "the server does not tell");
    }

    #[test]
    fn memory_is_bounded_and_too_many_gaps_count() {
        let changes = OwnChanges::default();
        look(&changes, 0);
        for n in 0..1000 {
            changes.begin().done(span(n * 10, n * 10 + 1));
            assert!(changes.0.lock().own.len() <= MOST_SPANS);
        }
        assert_eq!(look(&changes, 9991), 1);
    }

    #[test]
    fn change_times_are_distinguished_from_counters() {
        let ctime = UNIX_EPOCH + Duration::new(1_800_000_000, 123_456_789);
        let in_nanoseconds = 1_800_000_000_123_456_789;
        let of_linux = (1_800_000_000 << 32) + 123_456_789;
        let of_linux_before = (1_800_000_000 << 30) + 123_456_789;
        for change in [in_nanoseconds, of_linux, of_linux_before] {
            assert!(is_time_stamp(change, ctime), "{change}");
            // A server that counts may begin at the time.
            assert!(!is_time_stamp(change + 1, ctime), "{change}");
        }
        assert!(!is_time_stamp(7, ctime));
    }
}
