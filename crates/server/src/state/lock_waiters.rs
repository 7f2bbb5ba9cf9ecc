//! Waits for NFSv4 locks, which clients poll for, and deadlock detection across NFSv4 and NLM.
//!
//! ```text
//!             lock, denied           the lock may be free         taken, to be told (CB_NOTIFY_LOCK)
//!   (none) ----------------> waiting -----------------------> freed ------------------------> (none)
//!                               |
//!                               | granted, the owner asks for it no more, or the client is gone
//!                               v
//!                            (none)
//! ```
//!
//! 1. No range is reserved for a waiter: the server notifies it, and it asks again.
//! 2. At most [`MAX_OF_FILE`] waits per file and [`MAX`] in all are listed, and at most [`MAX`]
//!    notifications are queued. A request beyond these is denied like any other, and its client
//!    polls.
//! 3. Clients do not report that they stop waiting. The server takes a wait to be over when the
//!    owner makes another lock request, when the open is closed under which it asked, or when the
//!    owner has not polled for as long as a waiting client may take ([`Wait::again`]). Only current
//!    waits count in a deadlock. A wait that is forgotten too early counts again when its owner
//!    asks again.

use crate::handle::Node;
use crate::state::table::State;
use crate::state::tables::lock::{Holder, LockOwner};
use crate::state::tables::lock_waiters::{Freed, MAX, MAX_CIRCLE, MAX_STEPS, Wait, WantedLock};
use crate::state::tables::ranges::merged;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use weir_vfs::{Lock, LockRange as Range};

impl<F: Clone> State<F> {
    /// Notified when [`take_freed`](Self::take_freed) has something to return.
    pub(crate) fn on_freed(&self) -> Arc<Notify> {
        self.lock_waiters.tell.clone()
    }

    /// Takes the clients to notify of locks that may be free.
    pub(crate) fn take_freed(&mut self) -> Vec<Freed> {
        std::mem::take(&mut self.lock_waiters.freed).into_iter().collect()
    }

    /// Queues notifications for the waits on a file that nothing conflicts with any longer.
    pub(super) fn notify_lock_waiters(&mut self, node: Node) {
        let Some(waiting) = self.lock_waiters.files.get(&node) else { return };
        let file = self.files.get(&node);
        let is_free = |(owner, wait): &&(LockOwner, Wait)| {
            let WantedLock { range, exclusive, .. } = wait.wanted;
            let holder = Holder::V4(owner.clone());
            file.is_none_or(|file| file.ranges.conflict(&holder, range, exclusive).is_none())
                && self.program_conflict(node, range, exclusive).is_none()
        };
        let free: Vec<_> = waiting.iter().filter(is_free).cloned().collect();
        for (owner, wait) in free {
            self.lock_waiters.leave(&owner, wait.wanted);
            let LockOwner { client, name } = owner;
            if self.lock_waiters.freed.len() < MAX {
                self.lock_waiters.freed.replace(Freed { client, owner: name, node });
            }
            self.lock_waiters.tell.notify_one();
        }
    }

    /// Periodic: drops waits whose owners stopped polling, and revokes conflicting locks of clients
    /// whose lease has expired.
    pub(super) fn retry_lock_waiters(&mut self, now: Duration) {
        self.lock_waiters.retain_all(|_, wait| wait.lasts(now));
        self.lock_waiters.owners.retain(|_, wait| wait.lasts(now));
        for (node, waiting) in self.lock_waiters.files.clone() {
            for (owner, Wait { wanted: WantedLock { range, exclusive, .. }, .. }) in waiting {
                self.conflict(node, &Holder::V4(owner), range, exclusive, now);
            }
            // Local programs do not report when they release a lock.
            self.notify_lock_waiters(node);
        }
    }

    /// Whether an owner that `holder` would wait for waits, directly or through others, for
    /// `holder`. Each owner is visited once. A search that exceeds its bounds finds no deadlock.
    pub(super) fn would_deadlock(
        &self,
        holder: &Holder,
        wanted: WantedLock,
        now: Duration,
    ) -> bool {
        let WantedLock { node, range, exclusive } = wanted;
        let mut search =
            CycleSearch { from: holder, seen: HashSet::new(), ahead: Vec::new(), steps: 0 };
        let mut closed = self.search(&mut search, holder, node, [Lock { range, exclusive }]);
        while let Some(other) = search.ahead.pop().filter(|_| !closed && search.steps < MAX_STEPS) {
            match other {
                Holder::V4(owner) => {
                    let wait = self.lock_waiters.owners.get(owner).filter(|wait| {
                        let client = self.clients.get(owner.client);
                        wait.lasts(now)
                            && client.is_ok_and(|client| !self.clients.is_expired(client, now))
                    });
                    if let Some(Wait { wanted: WantedLock { node, range, exclusive }, .. }) = wait {
                        let (node, lock) = (*node, Lock { range: *range, exclusive: *exclusive });
                        closed = self.search(&mut search, other, node, [lock]);
                    }
                }
                Holder::Nlm(owner) => {
                    for node in self.nlm_waits_on(owner) {
                        let line = self.nlm_line(node);
                        search.steps += line.len();
                        let theirs =
                            line.filter(|(waits, _)| *waits == owner).map(|(_, lock)| lock);
                        closed = self.search(&mut search, other, node, theirs);
                        if closed || search.steps >= MAX_STEPS {
                            break;
                        }
                    }
                }
                Holder::LocalProgram => {}
            }
        }
        closed
    }

    /// Adds the holders of locks that conflict with those that `requester` wants. Returns whether
    /// the owner from which the search began is one of them.
    fn search<'a>(
        &'a self,
        search: &mut CycleSearch<'a, '_>,
        requester: &Holder,
        node: Node,
        wanted: impl IntoIterator<Item = Lock>,
    ) -> bool {
        let Some(file) = self.files.get(&node) else { return false };
        let wanted: Vec<Lock> = wanted.into_iter().collect();
        if let [Lock { range, exclusive }] = wanted[..] {
            for other in file.ranges.conflicts(requester, range, exclusive) {
                search.steps += 1;
                if search.steps >= MAX_STEPS {
                    return false;
                }
                if search.note(other) {
                    return true;
                }
            }
            return false;
        }
        let wanted = WantedRanges::of(&wanted);
        for (other, held) in file.ranges.all() {
            search.steps += 1;
            if search.steps >= MAX_STEPS {
                return false;
            }
            if wanted.conflict(held) && other != requester && search.note(other) {
                return true;
            }
        }
        false
    }
}

/// A search for a cycle of waits.
struct CycleSearch<'a, 'b> {
    from: &'b Holder,
    /// Owners found, at most [`MAX_CIRCLE`], and those of them still to visit.
    seen: HashSet<&'a Holder>,
    ahead: Vec<&'a Holder>,
    /// Ranges and waits examined so far.
    steps: usize,
}

impl<'a> CycleSearch<'a, '_> {
    /// Adds an owner of a conflicting lock. Returns whether the search began from it.
    fn note(&mut self, other: &'a Holder) -> bool {
        if other == self.from {
            return true;
        }
        if self.seen.len() < MAX_CIRCLE && self.seen.insert(other) {
            self.ahead.push(other);
        }
        false
    }
}

/// The locks that an owner waits for in one file: disjoint ranges, in order.
struct WantedRanges {
    exclusive: Vec<Range>,
    any: Vec<Range>,
}

impl WantedRanges {
    fn of(locks: &[Lock]) -> Self {
        let exclusive = locks.iter().filter(|lock| lock.exclusive).map(|lock| lock.range).collect();
        let any = locks.iter().map(|lock| lock.range).collect();
        Self { exclusive: merged(exclusive), any: merged(any) }
    }

    /// Whether a lock of another owner conflicts.
    fn conflict(&self, held: Lock) -> bool {
        let wanted = if held.exclusive { &self.any } else { &self.exclusive };
        let first = wanted.partition_point(|range| range.end <= held.range.start);
        wanted.get(first).is_some_and(|range| range.start < held.range.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::client::ClientId;
    use crate::state::tables::lock_waiters::{LISTENS, MAX_OF_FILE};
    use crate::state::tests::{LEASE, NODE, T0, WRITE, ready, request, state_after};
    use crate::state::{
        LockError, LockRequest, LockTarget, NlmError, NlmLock, NlmOwner, OpenRequest, ReplyTo,
        StateError, StateId,
    };
    use bytes::Bytes;
    use std::net::IpAddr;

    type State = super::State<char>;

    const SECOND: Duration = Duration::from_secs(1);
    const HOST: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));

    fn nlm_owner(process: i32) -> NlmOwner {
        NlmOwner { host: HOST, user: None, handle: Bytes::new(), process }
    }

    /// An owner of a client, with the file open.
    struct Process {
        client: ClientId,
        open: StateId,
        name: &'static str,
        locks: Option<StateId>,
        listens: bool,
    }

    impl Process {
        fn new(state: &mut State, client: ClientId, name: &'static str) -> Self {
            let open = state.open(request(client, WRITE), T0).unwrap();
            Self { client, open, name, locks: None, listens: true }
        }

        fn lock(&mut self, state: &mut State, byte: u64, now: Duration) -> Result<(), LockError> {
            self.open.seq = 0;
            let target = match self.locks {
                Some(id) => LockTarget::Locks(id),
                None => LockTarget::Open(self.open, Bytes::from_static(self.name.as_bytes())),
            };
            let range = Range { start: byte, end: byte + 1 };
            let (client, exclusive) = (self.client, true);
            let request = LockRequest {
                client,
                target,
                node: NODE,
                range,
                exclusive,
                reclaim: false,
                wait: true,
                listens: self.listens,
            };
            state.lock(request, now).map(|id| self.locks = Some(id))
        }

        fn unlock(&mut self, state: &mut State, byte: u64) {
            let range = Range { start: byte, end: byte + 1 };
            let id = state.unlock(self.client, self.locks.unwrap(), NODE, range);
            self.locks = Some(id.unwrap());
        }
    }

    fn nlm_lock(state: &mut State, process: i32, byte: u64) -> Result<(), NlmError> {
        state.nlm_remembered(HOST, T0);
        let to = ReplyTo { cookie: Bytes::new(), caller: Bytes::new(), server: HOST };
        let lock = NlmLock {
            owner: nlm_owner(process),
            node: NODE,
            range: Range { start: byte, end: byte + 1 },
            exclusive: true,
            reclaim: false,
            wait: Some(to),
        };
        state.nlm_lock(lock, T0)
    }

    fn is_denied(result: Result<(), LockError>) -> bool {
        matches!(result, Err(LockError::Denied(_)))
    }

    #[test]
    fn a_waiter_is_notified_when_nothing_conflicts_any_more() {
        let mut state = state_after(&[]);
        let (a, b) = (ready(&mut state, "a", T0), ready(&mut state, "b", T0));
        let mut holder = Process::new(&mut state, a, "holder");
        let mut one = Process::new(&mut state, b, "one");
        let mut two = Process::new(&mut state, b, "two");
        holder.lock(&mut state, 0, T0).unwrap();
        holder.lock(&mut state, 5, T0).unwrap();
        assert!(is_denied(one.lock(&mut state, 0, T0)));
        assert!(is_denied(one.lock(&mut state, 0, T0)), "it asks again");
        assert!(is_denied(two.lock(&mut state, 5, T0)));
        assert_eq!(state.lock_waiters.listed, 2);
        holder.unlock(&mut state, 1);
        assert_eq!(state.take_freed(), []);
        holder.unlock(&mut state, 0);
        let told = |owner| Freed { client: b, owner: Bytes::from_static(owner), node: NODE };
        assert_eq!(state.take_freed(), [told(b"one")]);
        one.lock(&mut state, 0, T0).unwrap();
        assert_eq!(state.lock_waiters.listed, 1);
        // An owner that is gone is not told, and delays no other.
        state.purge(b);
        holder.unlock(&mut state, 5);
        assert_eq!(state.take_freed(), []);
        assert!(state.lock_waiters.files.is_empty() && state.lock_waiters.owners.is_empty());
    }

    #[test]
    fn notifications_are_queued_once_per_waiter_and_bounded() {
        let mut state = state_after(&[]);
        let (a, b) = (ready(&mut state, "a", T0), ready(&mut state, "b", T0));
        let mut holder = Process::new(&mut state, a, "holder");
        let mut waits = Process::new(&mut state, b, "waits");
        let mut wait_and_free = |state: &mut State| {
            holder.lock(state, 0, T0).unwrap();
            assert!(is_denied(waits.lock(state, 0, T0)));
            holder.unlock(state, 0);
        };
        (0..3).for_each(|_| wait_and_free(&mut state));
        assert_eq!(state.take_freed().len(), 1);
        for number in 0..MAX {
            let owner = Bytes::from(number.to_be_bytes().to_vec());
            state.lock_waiters.freed.insert(Freed { client: a, owner, node: NODE });
        }
        wait_and_free(&mut state);
        assert_eq!(state.take_freed().len(), MAX);
    }

    #[test]
    fn a_silent_clients_lock_goes_to_a_waiter() {
        let mut state = state_after(&[]);
        let (a, b) = (ready(&mut state, "a", T0), ready(&mut state, "b", T0));
        let mut silent = Process::new(&mut state, a, "silent");
        let mut waits = Process::new(&mut state, b, "waits");
        silent.lock(&mut state, 0, T0).unwrap();
        let later = LEASE - Duration::from_secs(1);
        assert!(is_denied(waits.lock(&mut state, 0, later)));
        state.clients.renew(b, later);
        let over = LEASE + Duration::from_secs(1);
        state.sweep(over);
        assert_eq!(state.take_freed().len(), 1);
        assert_eq!(state.test_stateid(a, silent.locks.unwrap()), Err(StateError::Expired));
    }

    #[test]
    fn wait_queues_are_bounded_and_idle_waiters_dropped() {
        let mut state = state_after(&[]);
        let (a, b) = (ready(&mut state, "a", T0), ready(&mut state, "b", T0));
        let mut holder = Process::new(&mut state, a, "holder");
        holder.lock(&mut state, 0, T0).unwrap();
        for number in 0..2 * MAX_OF_FILE {
            let name = number.to_string().leak();
            assert!(is_denied(Process::new(&mut state, b, name).lock(&mut state, 0, T0)));
        }
        assert_eq!(state.lock_waiters.listed, MAX_OF_FILE);
        let later = T0 + LISTENS + SECOND;
        state.clients.renew(a, later);
        state.sweep(later);
        assert!(state.lock_waiters.listed == 0 && state.lock_waiters.owners.is_empty());
    }

    #[test]
    fn a_wait_that_would_close_a_cycle_is_a_deadlock() {
        let mut state = state_after(&[]);
        let (a, b) = (ready(&mut state, "a", T0), ready(&mut state, "b", T0));
        let mut one = Process::new(&mut state, a, "one");
        let mut two = Process::new(&mut state, b, "two");
        let mut three = Process::new(&mut state, b, "three");
        one.lock(&mut state, 1, T0).unwrap();
        two.lock(&mut state, 2, T0).unwrap();
        three.lock(&mut state, 3, T0).unwrap();
        assert!(is_denied(one.lock(&mut state, 2, T0)));
        assert!(is_denied(two.lock(&mut state, 3, T0)));
        assert_eq!(three.lock(&mut state, 1, T0), Err(LockError::Deadlock));
        // It was not made to wait, and gives way.
        three.unlock(&mut state, 3);
        two.lock(&mut state, 3, T0).unwrap();
        two.unlock(&mut state, 2);
        one.lock(&mut state, 2, T0).unwrap();
    }

    #[test]
    fn a_finished_wait_closes_no_cycle() {
        let mut state = state_after(&[]);
        let (a, b) = (ready(&mut state, "a", T0), ready(&mut state, "b", T0));
        let mut one = Process::new(&mut state, a, "one");
        let mut two = Process::new(&mut state, b, "two");
        one.lock(&mut state, 1, T0).unwrap();
        two.lock(&mut state, 2, T0).unwrap();
        assert!(is_denied(one.lock(&mut state, 2, T0)));
        // It was interrupted, and does something else.
        one.lock(&mut state, 7, T0).unwrap();
        assert!(is_denied(two.lock(&mut state, 1, T0)));
        // The other way round: now the other waits.
        assert_eq!(one.lock(&mut state, 2, T0), Err(LockError::Deadlock));
    }

    /// A waits for B since `asked`; whether B, who asks for what A has, closes a circle.
    fn closes_a_circle(listens: bool, asked: &[u64], at: u64) -> bool {
        let mut state = state_after(&[]);
        let (a, b) = (ready(&mut state, "a", T0), ready(&mut state, "b", T0));
        let mut one = Process { listens, ..Process::new(&mut state, a, "one") };
        let mut two = Process::new(&mut state, b, "two");
        one.lock(&mut state, 1, T0).unwrap();
        two.lock(&mut state, 2, T0).unwrap();
        let renewed = |state: &mut State, seconds: u64| {
            let now = T0 + Duration::from_secs(seconds);
            [a, b].into_iter().for_each(|client| state.clients.renew(client, now));
            now
        };
        for asked in asked {
            let now = renewed(&mut state, *asked);
            assert!(is_denied(one.lock(&mut state, 2, now)));
        }
        let at = renewed(&mut state, at);
        let result = two.lock(&mut state, 1, at);
        assert!(is_denied(result.clone()) || result == Err(LockError::Deadlock));
        result == Err(LockError::Deadlock)
    }

    #[test]
    fn a_waiter_that_stops_polling_is_forgotten_after_the_polling_interval() {
        // Linux without notices asks after 1, 2, 4, ... 30 seconds.
        assert!(closes_a_circle(false, &[0], 1));
        assert!(!closes_a_circle(false, &[0], 6));
        assert!(closes_a_circle(false, &[0, 1, 3, 7], 15));
        assert!(!closes_a_circle(false, &[0, 1, 3, 7], 21));
        assert!(closes_a_circle(false, &[0, 1, 3, 7, 15, 31], 61));
        assert!(!closes_a_circle(false, &[0, 1, 3, 7, 15, 31, 61, 91], 153));
        // With notices, every 30 seconds.
        assert!(closes_a_circle(true, &[0], 30));
        assert!(!closes_a_circle(true, &[0], 41));
    }

    #[test]
    fn close_and_lockt_end_a_wait() {
        let mut state = state_after(&[]);
        let (a, b) = (ready(&mut state, "a", T0), ready(&mut state, "b", T0));
        let mut one = Process::new(&mut state, a, "one");
        let mut two = Process::new(&mut state, b, "two");
        two.lock(&mut state, 2, T0).unwrap();
        // Its locks are of one open, and it waits under another.
        one.lock(&mut state, 1, T0).unwrap();
        let other = OpenRequest { owner: Bytes::from_static(b"o2"), ..request(a, WRITE) };
        let other = state.open(other, T0).unwrap();
        let mut again = Process { open: other, ..Process::new(&mut state, a, "one") };
        assert!(is_denied(again.lock(&mut state, 2, T0)));
        assert_eq!(two.lock(&mut state, 1, T0), Err(LockError::Deadlock));
        state.close(a, other, NODE).unwrap();
        assert!(is_denied(two.lock(&mut state, 1, T0)));
        two.unlock(&mut state, 7);
        assert!(is_denied(one.lock(&mut state, 2, T0)));
        let owner = LockOwner { client: a, name: Bytes::from_static(b"one") };
        state.test_lock(&owner, NODE, Range { start: 9, end: 10 }, true, T0).unwrap();
        assert!(is_denied(two.lock(&mut state, 1, T0)));
    }

    #[test]
    fn cycles_through_nfsv4_and_nlm_are_found() {
        let mut state = state_after(&[]);
        let a = ready(&mut state, "a", T0);
        let mut one = Process::new(&mut state, a, "one");
        one.lock(&mut state, 1, T0).unwrap();
        nlm_lock(&mut state, 2, 2).unwrap();
        nlm_lock(&mut state, 3, 3).unwrap();
        assert_eq!(nlm_lock(&mut state, 2, 3), Err(NlmError::Blocked));
        assert_eq!(nlm_lock(&mut state, 3, 2), Err(NlmError::Deadlock));
        assert_eq!(nlm_lock(&mut state, 3, 1), Err(NlmError::Blocked));
        assert_eq!(one.lock(&mut state, 2, T0), Err(LockError::Deadlock));
        // Without waiting, nothing is wrong.
        assert!(is_denied(one.lock(&mut state, 4, T0).and_then(|()| {
            let range = Range { start: 2, end: 3 };
            let target = LockTarget::Locks(one.locks.unwrap());
            let request = LockRequest {
                client: a,
                target,
                node: NODE,
                range,
                exclusive: true,
                reclaim: false,
                wait: false,
                listens: false,
            };
            state.lock(request, T0).map(|_| ())
        })));
    }

    #[test]
    fn the_deadlock_search_visits_each_wait_once() {
        const WAITS: u64 = 2000;
        let mut state = state_after(&[]);
        state.nlm_remembered(HOST, T0);
        // Each byte is held by another owner, and one owner waits for all of them.
        for byte in 0..WAITS {
            nlm_lock(&mut state, 10 + byte as i32, byte).unwrap();
        }
        nlm_lock(&mut state, 1, WAITS).unwrap();
        for byte in 0..WAITS {
            assert_eq!(nlm_lock(&mut state, 1, byte), Err(NlmError::Blocked));
        }
        // Another searches through all of that, and in vain.
        nlm_lock(&mut state, 2, WAITS + 1).unwrap();
        let holder = Holder::Nlm(nlm_owner(2));
        let range = Range { start: WAITS, end: WAITS + 1 };
        let mut search =
            CycleSearch { from: &holder, seen: HashSet::new(), ahead: Vec::new(), steps: 0 };
        let wanted = [Lock { range, exclusive: true }];
        assert!(!state.search(&mut search, &holder, NODE, wanted));
        assert_eq!(search.ahead.len(), 1);
        let waits = state.nlm_line(NODE).map(|(_, lock)| lock);
        assert!(!state.search(&mut search, &Holder::Nlm(nlm_owner(1)), NODE, waits));
        // The first search finds one range, the second goes through all.
        let ranges = WAITS as usize + 2;
        assert_eq!(search.steps, 1 + ranges, "each range is looked at once");
        assert!(search.ahead.len() <= MAX_CIRCLE && search.seen.len() <= MAX_CIRCLE);
        assert_eq!(nlm_lock(&mut state, 2, WAITS), Err(NlmError::Blocked));
        // A circle among as many is found.
        assert_eq!(nlm_lock(&mut state, 10, WAITS), Err(NlmError::Deadlock));
    }
}
