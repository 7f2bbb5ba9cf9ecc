//! Locks against programs on the server's own machine: the server also locks in the store what NFS
//! clients have locked, once on behalf of all of them.
//!
//! 1. The table of ranges decides between NFS clients. A range is locked in the store before it is
//!    entered in the table, and unlocked in the same transition in which the last client frees it.
//! 2. A file stays open for locking only while a range of it is locked or waited for (or while a
//!    call runs), so that programs can unmount and execute files without locks. The caller opens it
//!    before the transition ([`crate::locks`]).
//! 3. A store does not report when a program frees a lock, so every sweep retries waiting locks.

use crate::admission;
use crate::handle::Node;
use crate::state::quota::Requester;
use crate::state::refused::Resource;
use crate::state::table::State;
use crate::state::tables::lock::Holder;
use crate::state::tables::store_locks::{OpenedStoreLocks, StoreLocks, with_program};
use std::net::IpAddr;
use std::sync::Arc;
use weir_vfs::{Lock, LockConflict as Conflict, LockRange as Range};

impl<F: Clone> State<F> {
    /// The locks of a file in its store, if it is open there for locking.
    pub(crate) fn store_locks_of(&self, node: Node) -> Option<Arc<dyn StoreLocks>> {
        self.files.get(&node)?.store_locks.clone()
    }

    /// Whether a peer at an address may have one more file opened in its store for locking.
    pub(crate) fn may_lock_in_store(&mut self, by: Option<IpAddr>) -> bool {
        let requester = by.map_or(Requester::Newcomer, Requester::Host);
        self.check_share(1, Resource::StoreLock, requester).is_ok()
    }

    /// Runs a transition that locks ranges of a file, while the file is open in its store.
    pub(crate) fn with_store_locks<T>(
        &mut self,
        node: Node,
        opened: Option<OpenedStoreLocks>,
        transition: impl FnOnce(&mut Self) -> T,
    ) -> T {
        if let Some(opened) = opened {
            self.attach(node, opened);
        }
        let done = transition(self);
        self.detach_unlocked(node);
        done
    }

    fn attach(&mut self, node: Node, OpenedStoreLocks { locks, by }: OpenedStoreLocks) {
        let file = self.files.entry(node).or_default();
        if file.store_locks.is_none() {
            // Ranges that were granted while the file was not open in its store.
            for (_, lock) in file.ranges.all() {
                _ = locks.lock(lock);
            }
            file.store_locks = Some(locks);
        }
        self.locked_in_store.entry(node).or_insert_with(|| {
            let by = by.map(admission::host);
            self.tallies.store_locks.add_unowned(by, 1);
            by
        });
    }

    /// Closes a file in its store if no range of it is locked or waited for.
    pub(super) fn detach_unlocked(&mut self, node: Node) {
        let Some(file) = self.files.get_mut(&node) else {
            self.forget_locked_in_store(node);
            return;
        };
        if file.ranges.is_empty() && file.waiting.is_empty() && !self.lock_waiters.waits_for(node) {
            file.store_locks = None;
            self.forget_locked_in_store(node);
            self.drop_idle(node);
        }
    }

    fn forget_locked_in_store(&mut self, node: Node) {
        if let Some(by) = self.locked_in_store.remove(&node) {
            self.tallies.store_locks.subtract_unowned(by, 1);
        }
    }

    /// Does the same for all files.
    pub(super) fn detach_all_unlocked(&mut self) {
        for node in self.locked_in_store.keys().copied().collect::<Vec<_>>() {
            self.detach_unlocked(node);
        }
    }

    /// The conflicting lock of a local program, if there is one.
    pub(super) fn program_conflict(
        &self,
        node: Node,
        range: Range,
        exclusive: bool,
    ) -> Option<Conflict<Holder>> {
        let locks = self.files.get(&node)?.store_locks.as_ref()?;
        locks.conflict(Lock { range, exclusive }).map(with_program)
    }

    /// Locks a range in the store on which no other client holds a conflicting lock.
    ///
    /// # Errors
    /// The conflicting lock of a local program.
    pub(super) fn lock_in_store(
        &self,
        node: Node,
        range: Range,
        exclusive: bool,
    ) -> Result<(), Conflict<Holder>> {
        match self.files.get(&node).and_then(|file| file.store_locks.as_ref()) {
            Some(locks) => locks.lock(Lock { range, exclusive }).map_err(with_program),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::tables::lock::LockError;
    use crate::state::tables::nlm::{NlmError, NlmLock, NlmOwner, ReplyTo};
    use crate::state::tables::revoked::Why;
    use crate::state::tests::{LEASE, NODE, READ, T0, WRITE, lock_under, ready, request};
    use crate::state::{ClientId, Grace, Ids, Limits, LockRequest, LockTarget, StateId};
    use bytes::Bytes;
    use parking_lot::Mutex;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    /// The locks that were taken in the store, and how often a range was unlocked there.
    #[derive(Debug, Default)]
    struct Recorded(Mutex<Vec<Lock>>, AtomicUsize);

    impl StoreLocks for Recorded {
        fn conflict(&self, _: Lock) -> Option<Lock> {
            None
        }

        fn lock(&self, lock: Lock) -> Result<(), Lock> {
            self.0.lock().push(lock);
            Ok(())
        }

        fn unlock(&self, _: Range) {
            self.1.fetch_add(1, Relaxed);
        }
    }

    #[test]
    fn a_lock_that_is_denied_after_a_purge_does_not_weaken_another_in_the_store() {
        let limits = Limits { locks: 8, ..Limits::default() };
        let mut state: State<char> = State::new(Ids::new(1, [7; 32]), limits, Grace::default());
        let [old, live] = ["old", "live"].map(|name| ready(&mut state, name, T0));
        let [of_old, of_live] =
            [old, live].map(|client| state.open(request(client, READ.union(WRITE)), T0).unwrap());
        let lock = |of, client, start, end, exclusive| {
            let range = Range { start, end };
            LockRequest { range, ..lock_under(of, client, exclusive) }
        };
        // All that each may have.
        for at in [0, 100, 200, 300] {
            state.lock(lock(of_old, old, at, at + 10, true), T0).unwrap();
        }
        for at in [400, 500] {
            state.lock(lock(of_live, live, at, at + 10, true), T0).unwrap();
        }
        let host = IpAddr::from([192, 0, 2, 7]);
        let owner = NlmOwner { host, user: None, handle: Bytes::new(), process: 1 };
        let to = ReplyTo { cookie: Bytes::new(), caller: Bytes::new(), server: host };
        let range = Range { start: 5, end: 15 };
        let (wait, exclusive) = (Some(to), true);
        let waits = NlmLock { owner, node: NODE, range, exclusive, reclaim: false, wait };
        state.nlm_remembered(host, T0);
        assert_eq!(state.nlm_lock(waits, T0), Err(NlmError::Blocked));
        let now = LEASE * 2;
        state.clients.renew(live, now);
        let recorded = Arc::new(Recorded::default());
        let opened = OpenedStoreLocks { locks: recorded.clone(), by: None };
        let shared = lock(of_live, live, 12, 14, false);
        let denied = state.with_store_locks(NODE, Some(opened), |state| state.lock(shared, now));
        // The host has it, because the silent client was removed.
        assert!(matches!(denied, Err(LockError::Denied(_))), "{denied:?}");
        assert!(state.clients.get(old).is_err());
        let last = recorded.0.lock().last().copied();
        assert_eq!(last, Some(Lock { range, exclusive: true }));
    }

    #[test]
    fn a_rejected_grant_restores_in_the_store_what_it_restores_in_the_table() {
        let mut state: State<char> =
            State::new(Ids::new(1, [7; 32]), Limits::default(), Grace::default());
        let host = IpAddr::from([192, 0, 2, 7]);
        state.nlm_remembered(host, T0);
        let owner = |process| NlmOwner { host, user: None, handle: Bytes::new(), process };
        let lock = |process, start, end, exclusive| {
            let (range, wait, reclaim) = (Range { start, end }, None, false);
            NlmLock { owner: owner(process), node: NODE, range, exclusive, reclaim, wait }
        };
        let recorded = Arc::new(Recorded::default());
        let opened = OpenedStoreLocks { locks: recorded.clone(), by: None };
        let first = lock(1, 5, 15, true);
        state.with_store_locks(NODE, Some(opened), |state| state.nlm_lock(first, T0)).unwrap();
        state.nlm_lock(lock(2, 0, 3, true), T0).unwrap();
        // The grant downgrades the first lock.
        let to = ReplyTo { cookie: Bytes::new(), caller: Bytes::new(), server: host };
        let waits = NlmLock { wait: Some(to), ..lock(1, 0, 15, false) };
        assert_eq!(state.nlm_lock(waits, T0), Err(NlmError::Blocked));
        state.nlm_unlock(&owner(2), NODE, Range::ALL).unwrap();
        let granted = state.nlm_take_granted().remove(0);
        state.nlm_lock(lock(3, 5, 15, false), T0).unwrap();
        state.nlm_acknowledged(granted.number, false);
        // The other owner has a shared lock by now, so the first one gets no more.
        let held: Vec<Lock> = state.files[&NODE].ranges.of(&Holder::Nlm(owner(1))).collect();
        let shared = Lock { range: Range { start: 5, end: 15 }, exclusive: false };
        assert_eq!((held, recorded.0.lock().last().copied()), (vec![shared], Some(shared)));
    }

    #[test]
    fn many_locks_of_a_file_are_removed_in_one_go() {
        const OWNERS: u64 = 200;
        type End = fn(&mut State<char>, ClientId, StateId);
        let ends: [End; 3] = [
            |state, client, _| state.purge(client),
            |state, client, open| state.close(client, open, NODE).unwrap(),
            |state, _, open| state.revoke(open.key, Why::Removed),
        ];
        for end in ends {
            let mut state: State<char> =
                State::new(Ids::new(1, [7; 32]), Limits::default(), Grace::default());
            let a = ready(&mut state, "a", T0);
            let open = state.open(request(a, READ.union(WRITE)), T0).unwrap();
            let recorded = Arc::new(Recorded::default());
            let mut opened = Some(OpenedStoreLocks { locks: recorded.clone(), by: None });
            for number in 0..OWNERS {
                let target = LockTarget::Open(open, Bytes::copy_from_slice(&number.to_be_bytes()));
                let range = Range { start: number * 10, end: number * 10 + 5 };
                let lock = LockRequest { target, range, ..lock_under(open, a, true) };
                let locked = |state: &mut State<char>| state.lock(lock, T0).map(drop);
                assert_eq!(state.with_store_locks(NODE, opened.take(), locked), Ok(()));
            }
            end(&mut state, a, open);
            assert!(state.files.is_empty() && state.tallies.ranges.total() == 0);
            // Each call may be a system call, under the lock of the state.
            assert!(recorded.1.load(Relaxed) as u64 <= OWNERS + 1);
        }
    }

    #[test]
    fn locks_of_the_same_bytes_are_removed_in_the_store_once() {
        const OWNERS: u64 = 200;
        let mut state: State<char> =
            State::new(Ids::new(1, [7; 32]), Limits::default(), Grace::default());
        let [a, b] = ["a", "b"].map(|name| ready(&mut state, name, T0));
        let [of_all, of_parts] =
            [a, b].map(|client| state.open(request(client, READ.union(WRITE)), T0).unwrap());
        let recorded = Arc::new(Recorded::default());
        let mut opened = Some(OpenedStoreLocks { locks: recorded.clone(), by: None });
        for number in 0..OWNERS {
            let part = Range { start: number * 10, end: number * 10 + 1 };
            for (client, open, range) in [(a, of_all, Range::ALL), (b, of_parts, part)] {
                let target = LockTarget::Open(open, Bytes::copy_from_slice(&number.to_be_bytes()));
                let lock = LockRequest { target, range, ..lock_under(open, client, false) };
                let locked = |state: &mut State<char>| state.lock(lock, T0).map(drop);
                assert_eq!(state.with_store_locks(NODE, opened.take(), locked), Ok(()));
            }
        }
        let before = recorded.1.load(Relaxed);
        state.close(a, of_all, NODE).unwrap();
        assert_eq!(state.tallies.ranges.total() as u64, OWNERS);
        // One for each gap between the ranges that remain, and one after them.
        assert_eq!((recorded.1.load(Relaxed) - before) as u64, OWNERS);
    }
}
