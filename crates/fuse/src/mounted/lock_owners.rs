//! The owners of one node's locks: which of them may have locks, and what programs know of those of flock(2).
//!
//! 1. An owner is noted before its request reaches the store, and again when the store has granted it. A release
//!    of all its locks forgets the owner only if it was not noted since the release began: the store may have
//!    granted a lock after it.
//! 2. All processes that share an open file share its lock of flock(2). The lock is held from its grant until a
//!    release begins: before the reply is sent, because a program may release or upgrade it as soon as it has the
//!    reply.
//! 3. A program is told by the reply to a request, unless a release has begun since the grant. A lock that is held,
//!    that no program was told of, and that no request asks for, is to be released.

use std::collections::HashMap;
use weir_vfs::LockOwner;

/// The owners that may have locks of a node.
#[derive(Clone, Debug, Default)]
pub(crate) struct LockOwners {
    owners: HashMap<LockOwner, Asked>,
    /// How often an owner was noted.
    notes: u64,
}

/// What an owner has asked for.
#[derive(Clone, Debug, Default)]
struct Asked {
    /// Through which open file the last time.
    fh: u64,
    /// The number of that note.
    note: u64,
    /// Of flock(2): requests that have not ended.
    asking: usize,
    /// Of flock(2): the store has granted the lock.
    is_held: bool,
    /// Of flock(2): a program was told that it has the lock.
    is_told: bool,
    /// Of flock(2): how often a release has begun.
    releases: u64,
}

impl LockOwners {
    /// Notes that an owner asks for a lock, or has got one, through an open file.
    pub(crate) fn note(&mut self, owner: LockOwner, fh: u64) {
        self.noted(owner, fh);
    }

    fn noted(&mut self, owner: LockOwner, fh: u64) -> &mut Asked {
        self.notes += 1;
        let asked = self.owners.entry(owner).or_default();
        (asked.fh, asked.note) = (fh, self.notes);
        asked
    }

    /// Begins a request of flock(2). Returns whether the store may hold the owner's lock already.
    pub(crate) fn flock_begins(&mut self, owner: LockOwner, fh: u64) -> bool {
        // It may have been noted before, and released since by another thread.
        let asked = self.noted(owner, fh);
        asked.asking += 1;
        asked.is_held
    }

    /// Notes that the store has granted such a request. Returns the number of releases, for
    /// [`flock_told`](Self::flock_told).
    pub(crate) fn flock_granted(&mut self, owner: LockOwner, fh: u64) -> u64 {
        let asked = self.noted(owner, fh);
        asked.is_held = true;
        asked.releases
    }

    /// Notes that a program has got the reply to such a request.
    pub(crate) fn flock_told(&mut self, owner: LockOwner, releases: u64) {
        if let Some(asked) = self.owners.get_mut(&owner)
            && asked.releases == releases
        {
            asked.is_told = true;
        }
    }

    /// Ends such a request. Returns whether the owner's lock is to be released (3).
    pub(crate) fn flock_ends(&mut self, owner: LockOwner) -> bool {
        let Some(asked) = self.owners.get_mut(&owner) else { return false };
        asked.asking = asked.asking.saturating_sub(1);
        asked.is_held && !asked.is_told && asked.asking == 0
    }

    /// Whether an owner may have locks.
    pub(crate) fn may_have_locks(&self, owner: LockOwner) -> bool {
        self.owners.contains_key(&owner)
    }

    /// Begins a release of all locks of an owner that may have some. Returns the owner's last note, for
    /// [`release_ends`](Self::release_ends).
    pub(crate) fn release_begins(&mut self, owner: LockOwner) -> Option<u64> {
        let asked = self.owners.get_mut(&owner)?;
        (asked.is_held, asked.is_told) = (false, false);
        asked.releases += 1;
        Some(asked.note)
    }

    /// Ends such a release: forgets the owner, unless it was noted meanwhile.
    pub(crate) fn release_ends(&mut self, owner: LockOwner, note: u64) {
        if self.owners.get(&owner).is_some_and(|asked| asked.note == note && asked.asking == 0) {
            self.owners.remove(&owner);
        }
    }

    /// The owners that may have locks, and have asked for the last one through this open file.
    pub(crate) fn of_file(&self, fh: u64) -> Vec<LockOwner> {
        let owners = self.owners.iter().filter(|(_, asked)| asked.fh == fh);
        owners.map(|(&owner, _)| owner).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWNER: LockOwner = LockOwner(1);
    const FH: u64 = 1;

    /// The next step of a task, in the order of `mounted/locks.rs`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Next {
        Begin,
        Grant,
        Note,
        Reply(u64),
        End(u64),
        Release(Why),
        Unlock(Why, u64),
        Forget(Why, u64),
        Nothing,
    }

    /// Why a lock is released.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Why {
        /// Others share it, and it is to be exclusive.
        Upgrade,
        /// No program knows of it.
        Untold,
        /// A program asks for it.
        Asked,
    }

    #[derive(Clone, Copy, Debug)]
    struct Task {
        next: Next,
        is_killed: bool,
        /// The reply to this task comes first.
        after: Option<usize>,
        is_answered: bool,
        /// The lock was granted, and not released since on behalf of a program.
        is_granted: bool,
        /// Its program has the reply, and no program has begun to give the lock up since.
        knows: bool,
    }

    /// Requests and releases of one owner, and the lock in the store.
    #[derive(Clone, Debug)]
    struct World {
        owners: LockOwners,
        tasks: Vec<Task>,
        is_held: bool,
        /// Others share the lock.
        is_shared: bool,
        has_turn: Option<usize>,
    }

    fn task(next: Next, is_killed: bool, after: Option<usize>) -> Task {
        let (is_answered, is_granted, knows) = Default::default();
        Task { next, is_killed, after, is_answered, is_granted, knows }
    }

    impl World {
        fn may_step(&self, at: usize) -> bool {
            let task = &self.tasks[at];
            let waits = task.after.is_some_and(|before| !self.tasks[before].is_answered);
            let needs_turn = matches!(task.next, Next::Begin | Next::End(_));
            task.next != Next::Nothing && !waits && (!needs_turn || self.has_turn.is_none())
        }

        fn is_known(&self) -> bool {
            self.tasks.iter().any(|task| task.knows)
        }

        fn after_release(&mut self, why: Why) -> Next {
            if why == Why::Untold {
                self.has_turn = None;
            }
            if why == Why::Upgrade { Next::Grant } else { Next::Nothing }
        }

        fn step(&mut self, at: usize) {
            let Task { next, is_killed, is_granted, .. } = self.tasks[at];
            self.tasks[at].next = match next {
                Next::Begin => {
                    self.owners.note(OWNER, FH);
                    let may_hold = self.owners.flock_begins(OWNER, FH);
                    // Or else two upgrades would wait for each other.
                    assert!(may_hold || !self.is_known(), "a lock that a program has is unknown");
                    let upgrades = may_hold && self.is_shared;
                    if upgrades { Next::Release(Why::Upgrade) } else { Next::Grant }
                }
                Next::Grant => {
                    (self.is_held, self.tasks[at].is_granted) = (true, true);
                    Next::Note
                }
                Next::Note => Next::Reply(self.owners.flock_granted(OWNER, FH)),
                Next::Reply(releases) => {
                    self.tasks[at].is_answered = true;
                    self.tasks[at].knows = !is_killed && is_granted;
                    Next::End(releases)
                }
                Next::End(releases) => {
                    if !is_killed {
                        self.owners.flock_told(OWNER, releases);
                    }
                    if self.owners.flock_ends(OWNER) {
                        self.has_turn = Some(at);
                        Next::Release(Why::Untold)
                    } else {
                        Next::Nothing
                    }
                }
                Next::Release(why) => {
                    let note = self.owners.release_begins(OWNER);
                    assert!(note.is_some() || !self.is_known(), "a lock would not be released");
                    if why != Why::Untold {
                        self.tasks.iter_mut().for_each(|task| task.knows = false);
                    }
                    note.map_or_else(|| self.after_release(why), |note| Next::Unlock(why, note))
                }
                Next::Unlock(why, note) => {
                    self.is_held = false;
                    if why != Why::Untold {
                        self.tasks.iter_mut().for_each(|task| {
                            (task.is_granted, task.knows) = (false, false);
                        });
                    }
                    Next::Forget(why, note)
                }
                Next::Forget(why, note) => {
                    self.owners.release_ends(OWNER, note);
                    self.after_release(why)
                }
                Next::Nothing => Next::Nothing,
            };
            assert!(self.is_held || !self.is_known(), "a program lost its lock");
        }

        /// Takes the steps in every order; returns the number of orders.
        fn explore(&self) -> usize {
            let able: Vec<_> = (0..self.tasks.len()).filter(|&at| self.may_step(at)).collect();
            if able.is_empty() {
                assert!(
                    self.tasks.iter().all(|task| task.next == Next::Nothing),
                    "stuck: {self:?}"
                );
                assert!(!self.is_held || self.is_known(), "a lock is left: {self:?}");
                assert!(!self.is_held || self.owners.may_have_locks(OWNER), "forgotten: {self:?}");
                return 1;
            }
            let explore = |at| {
                let mut world = self.clone();
                world.step(at);
                world.explore()
            };
            able.into_iter().map(explore).sum()
        }
    }

    #[test]
    fn a_lock_of_flock_is_held_exactly_while_a_program_knows_of_it_in_every_order_of_events() {
        let request = |is_killed| task(Next::Begin, is_killed, None);
        let release = task(Next::Release(Why::Asked), false, Some(0));
        let cases = [
            vec![request(false), release],
            vec![request(false), request(false)],
            vec![request(false), request(true)],
            vec![request(true), request(true)],
            vec![request(false), release, request(false)],
            vec![request(false), release, request(true)],
        ];
        for tasks in cases {
            for is_shared in [false, true] {
                let (owners, is_held, has_turn) = Default::default();
                let tasks = tasks.clone();
                let world = World { owners, tasks, is_held, is_shared, has_turn };
                assert!(world.explore() > 1);
            }
        }
    }

    #[test]
    fn an_owner_that_gets_a_lock_while_its_others_are_released_is_not_forgotten() {
        let mut owners = LockOwners::default();
        owners.note(OWNER, FH);
        let note = owners.release_begins(OWNER).unwrap();
        // Another thread of the process.
        owners.note(OWNER, 2);
        owners.release_ends(OWNER, note);
        assert_eq!(owners.of_file(2), [OWNER]);
        let note = owners.release_begins(OWNER).unwrap();
        owners.release_ends(OWNER, note);
        assert!(!owners.may_have_locks(OWNER));
        assert_eq!(owners.release_begins(OWNER), None);
    }
}
