//! Locks and share reservations of the lock manager for NFSv3 (NLM), in the same tables as those of
//! NFSv4.
//!
//! ```text
//!            nlm_lock                   grant_waiting            nlm_acknowledged(true)
//!   (none) ----------> waiting (queued) -------------> granting ------------------------> held
//!                         |                               |
//!                         | nlm_cancel, nlm_free          | nlm_acknowledged(false), nlm_cancel,
//!                         |                               | nlm_unlock (all of it), nlm_free
//!                         v                               v
//!                       (none)                          (none), or what the owner held before
//! ```
//!
//! 1. A host holds locks only while it is in the table of hosts, and enters the table only once it
//!    is recorded on disk ([`State::nlm_remembered`]). So the server can notify every host with
//!    locks of a restart.
//! 2. NLM has no leases: a host holds its locks until it frees them or restarts.
//! 3. A lock granted to a waiting owner is held from the grant on, before the host has acknowledged
//!    it, so that no other owner can take it meanwhile. If the host rejects the grant, the owner
//!    gets what it has in that range without it ([`GrantLog`]).
//! 4. All tables are bounded, and addresses share them: hosts by [`Limits::nlm_hosts`], waiting locks
//!    and unacknowledged grants by [`Limits::nlm_waiting`], ranges and shares together with those of
//!    NFSv4.
//! 5. While it is unknown whether a host has restarted ([`State::nlm_doubt`]), the server grants it
//!    nothing: a new lock must not be freed along with those from before the restart.
//! 6. During the grace period hosts only get what they had: a reclaim does not wait, and changes no
//!    mode that its owner has already reclaimed.
//! 7. Nothing is granted while an NFSv4 client has a conflicting delegation; the same transition
//!    checks this. Files that a host uses are not delegated.

use crate::admission;
use crate::handle::Node;
use crate::state::quota::Requester;
use crate::state::refused::Resource;
use crate::state::share::Share;
use crate::state::table::State;
use crate::state::tables::delegation::Touch;
use crate::state::tables::grant_log::GrantLog;
use crate::state::tables::lock::{Holder, LockError};
use crate::state::tables::lock_waiters::WantedLock;
use crate::state::tables::nlm::{
    ASK_AGAIN, GrantedLock, Host, HostRun, NlmError, NlmLock, NlmOwner, QueuedLock,
};
use crate::state::tables::ranges::{overlap, within};
use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tracing::warn;
use weir_vfs::{Lock, LockConflict as Conflict, LockRange as Range, RangeLocks};

impl<F: Clone> State<F> {
    /// Whether the table may take another host, or already has it.
    pub(crate) fn nlm_has_room_for(&mut self, host: IpAddr) -> bool {
        self.nlm.hosts.contains_key(&host)
            || self.check_share(1, Resource::NlmHost, Requester::Host(host)).is_ok()
    }

    /// Adds a host that has been recorded on disk.
    pub(crate) fn nlm_remembered(&mut self, host: IpAddr, now: Duration) {
        let new = Host { files: HashSet::new(), used: now, run: HostRun::Unasked, doubt: None };
        let known = self.nlm.hosts.entry(host).or_insert_with(|| {
            self.tallies.nlm_hosts.add_at(admission::host(host), 1);
            new
        });
        known.used = now;
    }

    /// Whether the caller should ask a host for its state number. Returns true once, and again
    /// after a while if the host has not answered.
    pub(crate) fn nlm_asks_run(&mut self, host: IpAddr, now: Duration) -> bool {
        let Some(host) = self.nlm.hosts.get_mut(&host) else { return false };
        let asks = match host.run {
            HostRun::Unasked => true,
            HostRun::Unknown { asked } => now.saturating_sub(asked) >= ASK_AGAIN,
            HostRun::Number(_) => false,
        };
        if asks {
            host.run = HostRun::Unknown { asked: now };
        }
        asks
    }

    /// Stores the state number of a host; `None` if it has changed and the host must be asked
    /// again.
    pub(crate) fn nlm_note_run(&mut self, host: IpAddr, run: Option<i32>) {
        if let Some(host) = self.nlm.hosts.get_mut(&host) {
            host.run = run.map_or(HostRun::Unasked, HostRun::Number);
        }
    }

    /// The state number of a host when it took its locks. `None` if the host is not in the table,
    /// `Some(None)` if the number is not known.
    pub(crate) fn nlm_run_of(&self, host: IpAddr) -> Option<Option<i32>> {
        self.nlm.hosts.get(&host).map(|host| match host.run {
            HostRun::Number(run) => Some(run),
            _ => None,
        })
    }

    /// Notes a restart notice for a host, with its new state number. The sender may be forged, so
    /// the host gets no new locks until [`nlm_settle`](Self::nlm_settle) or
    /// [`nlm_keep`](Self::nlm_keep). Returns false if the host is not in the table.
    pub(crate) fn nlm_doubt(&mut self, host: IpAddr, noticed: i32) -> bool {
        let host = self.nlm.hosts.get_mut(&host);
        host.map(|host| host.doubt = Some(noticed)).is_some()
    }

    /// Whether a restart notice for a host is not confirmed yet.
    pub(crate) fn nlm_is_doubted(&self, host: IpAddr) -> bool {
        self.nlm.hosts.get(&host).is_some_and(|host| host.doubt.is_some())
    }

    /// Settles a restart notice with the state number that the host itself has given. If the host
    /// has restarted, frees its locks and returns true. `None` if there is no notice to settle.
    pub(crate) fn nlm_settle(&mut self, host: IpAddr, run: i32) -> Option<bool> {
        let of_host = self.nlm.hosts.get_mut(&host)?;
        let noticed = of_host.doubt.take()?;
        let restarted = match of_host.run {
            HostRun::Number(before) => before != run,
            _ => run == noticed,
        };
        if restarted {
            self.nlm_free(host);
            self.nlm_note_run(host, Some(run));
        }
        Some(restarted)
    }

    /// Drops a restart notice for a host, for instance because the host does not answer. The host
    /// keeps its locks.
    pub(crate) fn nlm_keep(&mut self, host: IpAddr) {
        if let Some(host) = self.nlm.hosts.get_mut(&host) {
            host.doubt = None;
        }
    }

    /// LOCK. A request that repeats a queued one replaces it, at the end of the queue. A reclaim is not
    /// queued: its host would be granted what it did not hold, perhaps before the hosts that did.
    ///
    /// # Errors
    /// [`NlmError::Blocked`] if the request is queued, otherwise why it is refused.
    pub(crate) fn nlm_lock(&mut self, lock: NlmLock, now: Duration) -> Result<(), NlmError> {
        let NlmLock { owner, node, range, exclusive, reclaim, wait } = lock;
        self.nlm_check(owner.host, reclaim)?;
        let touch = if exclusive { Touch::Change } else { Touch::Read };
        if self.delegations.conflict(node, touch, None) {
            return Err(NlmError::Delegated);
        }
        let holder = Holder::Nlm(owner.clone());
        if reclaim && self.holds_otherwise(node, &holder, Lock { range, exclusive }) {
            return Err(NlmError::NoGrace);
        }
        let wait = wait.filter(|_| !reclaim);
        let requester = Requester::of_holder(&holder, reclaim);
        // What `GrantLog::lock` adds.
        let grants = self.nlm.granting.values();
        let grants = grants.filter(|g| g.is_over(&owner, node, range) && g.range != range).count();
        self.check_quota_for(grants, Resource::Range, requester, now)
            .map_err(|_| NlmError::TooMany)?;
        match self.take_range(node, &holder, (range, exclusive), requester, now) {
            Ok(()) => {
                self.leave_line(node, |w| w.is(&owner, range, exclusive));
                // The reply tells a host that retried that it has the lock.
                self.accept_grants(|g| (g.node, g.range) == (node, range) && g.owner == owner);
                self.change_log(&owner, node, |log| log.lock(Lock { range, exclusive }));
                self.nlm_uses(owner.host, node, now);
                // The owner may have downgraded an exclusive lock to a shared one.
                self.grant_waiting(node);
                Ok(())
            }
            Err(LockError::Denied(_)) if let Some(to) = wait => {
                let repeats = self.leave_line(node, |w| w.is(&owner, range, exclusive)) > 0;
                if self.would_deadlock(&holder, WantedLock { node, range, exclusive }, now) {
                    return Err(NlmError::Deadlock);
                }
                if !repeats {
                    let share =
                        self.check_share(1, Resource::NlmWaiting, Requester::Host(owner.host));
                    share.map_err(|_| NlmError::TooMany)?;
                }
                self.nlm_uses(owner.host, node, now);
                self.tallies.nlm_waiting.add_at(admission::host(owner.host), 1);
                let waits = self.nlm.waits.entry(owner.clone()).or_default();
                *waits.entry(node).or_default() += 1;
                self.nlm.queues.insert(node);
                let file = self.files.entry(node).or_default();
                file.waiting.push(QueuedLock { owner, range, exclusive, to });
                Err(NlmError::Blocked)
            }
            Err(error) => {
                self.drop_idle(node);
                Err(error.into())
            }
        }
    }

    /// TEST: the conflicting lock, if there is one.
    ///
    /// # Errors
    /// [`NlmError::Grace`].
    pub(crate) fn nlm_test(
        &mut self,
        owner: &NlmOwner,
        node: Node,
        range: Range,
        exclusive: bool,
        now: Duration,
    ) -> Result<Option<Conflict<Holder>>, NlmError> {
        if self.grace.is_active() {
            return Err(NlmError::Grace);
        }
        Ok(self.conflict(node, &Holder::Nlm(owner.clone()), range, exclusive, now))
    }

    /// UNLOCK. Also ends unacknowledged grants of which it unlocks all. Of the others, the host may
    /// still reject what is left.
    ///
    /// # Errors
    /// [`NlmError::TooMany`] if it would split a range and the host may not have one more.
    pub(crate) fn nlm_unlock(
        &mut self,
        owner: &NlmOwner,
        node: Node,
        range: Range,
    ) -> Result<(), NlmError> {
        let holder = Holder::Nlm(owner.clone());
        let growth = self.growth(node, &holder, range, None);
        let log = self.nlm.logs.get(&(owner.clone(), node));
        let growth = growth + log.map_or(0, |log| log.splits(range));
        let share = self.check_share(growth, Resource::Range, Requester::Host(owner.host));
        share.map_err(|_| NlmError::TooMany)?;
        self.accept_grants(|g| g.is_over(owner, node, range) && within(range, g.range) == g.range);
        self.change_log(owner, node, |log| log.unlock(range));
        self.free_range(node, &holder, range);
        self.nlm_used(owner.host, node);
        Ok(())
    }

    /// CANCEL: removes the request from the queue. If it was granted meanwhile, the host does not
    /// know yet, so the grant is undone; the owner keeps what it held before.
    pub(crate) fn nlm_cancel(
        &mut self,
        owner: &NlmOwner,
        node: Node,
        range: Range,
        exclusive: bool,
    ) {
        self.leave_line(node, |w| w.is(owner, range, exclusive));
        let same = |g: &GrantedLock| g.node == node && g.range == range && g.owner == *owner;
        self.reject_grants(same);
        self.nlm_used(owner.host, node);
    }

    /// SHARE: replaces the owner's earlier share reservation of the file.
    ///
    /// # Errors
    /// Why it is refused.
    pub(crate) fn nlm_share(
        &mut self,
        owner: &NlmOwner,
        node: Node,
        share: Share,
        reclaim: bool,
        now: Duration,
    ) -> Result<(), NlmError> {
        self.nlm_check(owner.host, reclaim)?;
        let held = self.files.get(&node).and_then(|f| f.shares.iter().find(|s| s.0 == *owner));
        let held = held.map(|(_, held)| *held);
        if reclaim && held.is_some_and(|held| held != share) {
            return Err(NlmError::NoGrace);
        }
        if self.delegations.conflict(node, share.touch(), None) {
            return Err(NlmError::Delegated);
        }
        self.clear_shares(node, None, share, now).map_err(|_| NlmError::ShareDenied)?;
        if self.nlm_share_conflict(node, Some(owner), share) {
            return Err(NlmError::ShareDenied);
        }
        let more = usize::from(held.is_none());
        let requester = match reclaim {
            true => Requester::HostAgain(owner.host),
            false => Requester::Host(owner.host),
        };
        let quota = self.check_quota_for(more, Resource::Open, requester, now);
        quota.map_err(|_| NlmError::TooMany)?;
        self.check_settled().map_err(|_| NlmError::Unsettled)?;
        self.drop_shares(node, |other| other == owner);
        self.files.entry(node).or_default().shares.push((owner.clone(), share));
        self.tallies.opens.add_at(admission::host(owner.host), 1);
        self.nlm_uses(owner.host, node, now);
        Ok(())
    }

    /// UNSHARE.
    pub(crate) fn nlm_unshare(&mut self, owner: &NlmOwner, node: Node) {
        self.drop_shares(node, |other| other == owner);
        self.nlm_used(owner.host, node);
    }

    /// Frees everything that a host holds or waits for: the host restarted, or sent FREE_ALL.
    pub(crate) fn nlm_free(&mut self, host: IpAddr) {
        self.nlm_keep(host);
        let files = self.nlm.hosts.get_mut(&host).map(|h| std::mem::take(&mut h.files));
        self.accept_grants(|g| g.owner.host == host);
        for node in files.into_iter().flatten() {
            self.leave_line(node, |w| w.owner.host == host);
            self.drop_shares(node, |owner| owner.host == host);
            self.release_hosts_ranges(node, |owner| is_of(owner, host));
            self.grant_waiting(node);
            self.drop_idle(node);
        }
    }

    /// Frees what hosts hold in an export that is no longer served. Queued requests are dropped
    /// without a grant.
    pub(crate) fn nlm_drop_export(&mut self, export: u16) {
        self.accept_grants(|g| g.node.export == export);
        let nodes = self.files.keys().filter(|node| node.export == export);
        for node in nodes.copied().collect::<Vec<_>>() {
            self.leave_line(node, |_| true);
            self.lock_waiters.forget_file(node);
            self.drop_shares(node, |_| true);
            self.release_hosts_ranges(node, |owner| matches!(owner, Holder::Nlm(_)));
            self.drop_idle(node);
        }
        for host in self.nlm.hosts.values_mut() {
            host.files.retain(|node| node.export != export);
        }
    }

    /// Removes and returns the hosts that have used no file for longer than a lease time. The
    /// caller must remove their disk records before they are [remembered](Self::nlm_remembered)
    /// again, unless that fails.
    pub(crate) fn nlm_drop_idle(&mut self, now: Duration) -> Vec<IpAddr> {
        if self.grace.is_active() {
            return Vec::new();
        }
        let idle = |h: &Host| h.files.is_empty() && now.saturating_sub(h.used) > self.limits.lease;
        let gone: Vec<IpAddr> =
            self.nlm.hosts.iter().filter(|(_, h)| idle(h)).map(|(ip, _)| *ip).collect();
        for host in &gone {
            self.nlm.hosts.remove(host);
            self.tallies.nlm_hosts.subtract_at(admission::host(*host), 1);
        }
        gone
    }

    /// Notified when [`nlm_take_granted`](Self::nlm_take_granted) has something to return.
    pub(crate) fn nlm_on_grant(&self) -> Arc<Notify> {
        self.nlm.tell.clone()
    }

    /// Takes the new grants, which the caller must send to their hosts.
    pub(crate) fn nlm_take_granted(&mut self) -> Vec<GrantedLock> {
        let unsent = std::mem::take(&mut self.nlm.unsent);
        unsent.iter().filter_map(|number| self.nlm.granting.get(number).cloned()).collect()
    }

    /// Whether a grant still needs to be sent to its host.
    pub(crate) fn nlm_is_granting(&self, number: u64) -> bool {
        self.nlm.granting.contains_key(&number)
    }

    /// Ends a grant that its host has answered. The grant is undone unless the host `wants` the
    /// lock.
    pub(crate) fn nlm_acknowledged(&mut self, number: u64, wants: bool) {
        match wants {
            true => self.accept_grants(|g| g.number == number),
            false => self.reject_grants(|g| g.number == number),
        }
    }

    /// Ends the unacknowledged grants that `ends` selects. Their locks stay held.
    fn accept_grants(&mut self, ends: impl Fn(&GrantedLock) -> bool) {
        for GrantedLock { number, owner, node, .. } in self.end_grants(ends) {
            self.change_log(&owner, node, |log| log.accept(number));
        }
    }

    /// Undoes the unacknowledged grants that `ends` selects.
    fn reject_grants(&mut self, ends: impl Fn(&GrantedLock) -> bool) {
        self.end_grants(ends).into_iter().for_each(|granted| self.take_back(granted));
    }

    fn end_grants(&mut self, ends: impl Fn(&GrantedLock) -> bool) -> Vec<GrantedLock> {
        let ended = self.nlm.granting.extract_if(|_, granted| ends(granted));
        let mut ended: Vec<GrantedLock> = ended.map(|(_, granted)| granted).collect();
        ended.sort_unstable_by_key(|granted| granted.number);
        for granted in &ended {
            self.tallies.nlm_waiting.subtract_at(admission::host(granted.owner.host), 1);
        }
        ended
    }

    /// Changes the log of an owner with unacknowledged grants on a file, and counts its entries.
    fn change_log<T: Default>(
        &mut self,
        owner: &NlmOwner,
        node: Node,
        change: impl FnOnce(&mut GrantLog) -> T,
    ) -> T {
        let key = (owner.clone(), node);
        let Some(log) = self.nlm.logs.get_mut(&key) else { return T::default() };
        let before = log.counted();
        let changed = change(log);
        let after = log.counted();
        if log.is_over() {
            self.nlm.logs.remove(&key);
        }
        self.count_ranges(&Holder::Nlm(key.0), before, after);
        changed
    }

    /// Undoes a grant: its owner gets what it has in that range without it.
    fn take_back(&mut self, granted: GrantedLock) {
        let GrantedLock { number, owner, node, range, .. } = granted;
        let holder = Holder::Nlm(owner.clone());
        let before = self.change_log(&owner, node, |log| log.reject(number));
        let kept: Vec<Lock> = self.change_ranges(node, range, &holder, |ranges| {
            ranges.unlock(&holder, range);
            let restore = |Lock { range, exclusive }| {
                // If the grant downgraded an exclusive lock, others may hold shared locks by now;
                // the owner then gets a shared one.
                let modes = if exclusive { &[true, false][..] } else { &[false][..] };
                let mut modes = modes.iter().copied();
                let found = modes.find(|&exclusive| ranges.lock(&holder, range, exclusive).is_ok());
                if found.is_none() {
                    warn!(
                        "{}: cannot restore a lock of {owner:?}: another owner holds it",
                        owner.host
                    );
                }
                found.map(|exclusive| Lock { range, exclusive })
            };
            before.into_iter().filter_map(restore).collect()
        });
        for Lock { range, exclusive } in kept {
            // The store may still hold the range in the mode of the grant. This fails if a local
            // program has taken a conflicting lock; the table keeps the lock among NFS clients
            // then.
            drop(self.lock_in_store(node, range, exclusive));
        }
        self.grant_waiting(node);
        self.nlm_used(owner.host, node);
    }

    /// Unlocks what the holders that `goes` selects have locked of a file.
    fn release_hosts_ranges(&mut self, node: Node, goes: impl Fn(&Holder) -> bool) {
        let owners = self.files.get(&node).into_iter().flat_map(|file| file.ranges.owners());
        let gone: Vec<Holder> = owners.filter(|owner| goes(owner)).cloned().collect();
        self.release_ranges(node, &gone);
    }

    /// Whether a host's share reservation conflicts with one by `by`, which is `None` for NFSv4.
    pub(super) fn nlm_share_conflict(
        &self,
        node: Node,
        by: Option<&NlmOwner>,
        share: Share,
    ) -> bool {
        let shares = self.files.get(&node).map_or(&[][..], |f| &f.shares);
        shares.iter().any(|(owner, other)| Some(owner) != by && other.conflicts(share))
    }

    /// Grants the queued locks of a file that no longer conflict, in the order of the queue.
    pub(super) fn grant_waiting(&mut self, node: Node) {
        let mut at = 0;
        while self.tallies.ranges.total() < self.limits.locks
            && let Some(file) = self.files.get(&node)
            && let Some(first) = file.waiting.get(at)
        {
            let holder = Holder::Nlm(first.owner.clone());
            let (range, exclusive) = (first.range, first.exclusive);
            let held = file.ranges.within(&holder, range);
            let is_free = file.ranges.conflict(&holder, range, exclusive).is_none()
                && self.lock_in_store(node, range, exclusive).is_ok();
            let take = |ranges: &mut RangeLocks<Holder>| ranges.lock(&holder, range, exclusive);
            if !is_free || self.change_ranges(node, range, &holder, take).is_err() {
                at += 1;
                continue;
            }
            let Some(file) = self.files.get_mut(&node) else { return };
            let QueuedLock { owner, to, .. } = file.waiting.remove(at);
            let hosts = &mut self.nlm;
            hosts.left_line(&owner, node);
            hosts.granted += 1;
            let number = hosts.granted;
            hosts.logs.entry((owner.clone(), node)).or_default();
            let lock = Lock { range, exclusive };
            self.change_log(&owner, node, |log| log.grant(number, lock, &held));
            let hosts = &mut self.nlm;
            let granted = GrantedLock { number, owner, node, range, exclusive, to };
            hosts.granting.insert(number, granted);
            hosts.unsent.push(number);
            hosts.tell.notify_one();
        }
        if self.files.get(&node).is_none_or(|f| f.waiting.is_empty()) {
            self.nlm.queues.remove(&node);
        }
        self.notify_lock_waiters(node);
    }

    /// The files on which an owner waits.
    pub(super) fn nlm_waits_on(&self, owner: &NlmOwner) -> impl Iterator<Item = Node> {
        self.nlm.waits.get(owner).into_iter().flat_map(|files| files.keys().copied())
    }

    /// The queued locks of a file, and their owners.
    pub(super) fn nlm_line(&self, node: Node) -> impl ExactSizeIterator<Item = (&NlmOwner, Lock)> {
        let waiting = self.files.get(&node).map_or(&[][..], |file| &file.waiting);
        let lock = |w: &QueuedLock| Lock { range: w.range, exclusive: w.exclusive };
        waiting.iter().map(move |w| (&w.owner, lock(w)))
    }

    /// Periodic: retries queued locks, which clients with an expired lease may block.
    pub(super) fn retry_waiting(&mut self, now: Duration) {
        for node in self.nlm.queues.iter().copied().collect::<Vec<_>>() {
            let waiting = self.files.get(&node).map(|f| f.waiting.clone()).unwrap_or_default();
            for w in waiting {
                self.conflict(node, &Holder::Nlm(w.owner), w.range, w.exclusive, now);
            }
            self.grant_waiting(node);
        }
    }

    fn nlm_check(&self, host: IpAddr, reclaim: bool) -> Result<(), NlmError> {
        match self.nlm.hosts.get(&host) {
            None => return Err(NlmError::Unknown),
            Some(host) if host.doubt.is_some() => return Err(NlmError::Doubted),
            Some(_) => {}
        }
        match (reclaim, self.grace.is_active()) {
            (false, false) => Ok(()),
            (false, true) => Err(NlmError::Grace),
            (true, true) if self.grace.expects_host(host) => Ok(()),
            (true, _) => Err(NlmError::NoGrace),
        }
    }

    /// Removes queued requests of a file. Returns how many.
    fn leave_line(&mut self, node: Node, leaves: impl Fn(&QueuedLock) -> bool) -> usize {
        let Some(file) = self.files.get_mut(&node) else { return 0 };
        let mut number = 0;
        for left in file.waiting.extract_if(.., |w| leaves(w)) {
            self.nlm.left_line(&left.owner, node);
            self.tallies.nlm_waiting.subtract_at(admission::host(left.owner.host), 1);
            number += 1;
        }
        if file.waiting.is_empty() {
            self.nlm.queues.remove(&node);
        }
        number
    }

    fn drop_shares(&mut self, node: Node, goes: impl Fn(&NlmOwner) -> bool) {
        let Some(file) = self.files.get_mut(&node) else { return };
        for (owner, _) in file.shares.extract_if(.., |(owner, _)| goes(owner)) {
            self.tallies.opens.subtract_at(admission::host(owner.host), 1);
        }
    }

    fn nlm_uses(&mut self, host: IpAddr, node: Node, now: Duration) {
        if let Some(host) = self.nlm.hosts.get_mut(&host) {
            host.files.insert(node);
            host.used = now;
        }
    }

    /// Updates [`Host::files`] after a host has freed something on a file.
    fn nlm_used(&mut self, host: IpAddr, node: Node) {
        let has = self.files.get(&node).is_some_and(|f| {
            f.ranges.owners().any(|owner| is_of(owner, host))
                || f.shares.iter().any(|(owner, _)| owner.host == host)
                || f.waiting.iter().any(|w| w.owner.host == host)
        });
        if !has && let Some(host) = self.nlm.hosts.get_mut(&host) {
            host.files.remove(&node);
        }
        self.drop_idle(node);
    }
}

impl GrantedLock {
    /// Whether it was granted to this owner, and overlaps a range of the file.
    fn is_over(&self, owner: &NlmOwner, node: Node, range: Range) -> bool {
        self.node == node && overlap(self.range, range) && self.owner == *owner
    }
}

fn is_of(holder: &Holder, host: IpAddr) -> bool {
    matches!(holder, Holder::Nlm(owner) if owner.host == host)
}

#[cfg(test)]
mod tests;
