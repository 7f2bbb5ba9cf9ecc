//! Locks and share reservations of NFSv3's lock manager (NLM), in the same tables as NFSv4's.
//!
//! ```text
//!            nlm_lock                    grant_waiting               nlm_acknowledged(true)
//!   (none) ----------> waiting (in line) ------------> granting -----------------------------> held
//!                         |                               |
//!                         | nlm_cancel, nlm_free          | acknowledged(false), cancel, unlock, free
//!                         v                               v
//!                       (none)                          (none)
//! ```
//!
//! 1. A host has locks only while it is in the table of hosts, and it comes into that table only
//!    once it is on disk ([`State::nlm_remembered`]): so it is told of a restart.
//! 2. NLM has no leases: what a host holds is held until the host gives it up, or restarts.
//! 3. A lock that is granted to whoever waited is held from that moment on, before the host knows:
//!    nobody can take it in between.
//! 4. All tables are bounded: hosts as clients are, ranges and shares as those of NFSv4, together
//!    with them; waiting locks by [`MAX_WAITING`].

use super::blocked::Wanted;
use super::{Conflict, Holder, LockError, Range, Share, State};
use crate::handle::Node;
use bytes::Bytes;
use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;

/// Most locks that are waited for, or granted to hosts that do not know yet.
const MAX_WAITING: usize = 16 << 10;

/// Who holds locks: a process of a host.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NlmOwner {
    /// The host's address: names are whatever callers say, addresses at least get replies.
    pub host: IpAddr,
    /// The host's name for the owner.
    pub handle: Bytes,
    /// The process, as the host numbers it.
    pub process: i32,
}

/// What a host is told with when its lock is granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplyTo {
    /// What the host knows its request by.
    pub cookie: Bytes,
    /// The host's name for itself.
    pub caller: Bytes,
    /// The address at which this server was called, which the host takes grants from.
    pub server: IpAddr,
}

/// A lock to be taken.
#[derive(Clone, Debug)]
pub struct NlmLock {
    /// Whose.
    pub owner: NlmOwner,
    /// The file.
    pub node: Node,
    /// The bytes.
    pub range: Range,
    /// Whether it excludes readers as well.
    pub exclusive: bool,
    /// It was held before the server restarted.
    pub reclaim: bool,
    /// Whether to wait for it, and whom to tell when it is granted.
    pub wait: Option<ReplyTo>,
}

/// Why a lock or share reservation is not granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NlmError {
    /// The host is not on disk yet.
    Unknown,
    /// Not while hosts reclaim what they had.
    Grace,
    /// There is nothing to reclaim any more.
    NoGrace,
    /// Somebody holds a lock that is in the way.
    Denied(Conflict<Holder>),
    /// Somebody's share reservation is in the way.
    ShareDenied,
    /// Somebody holds a lock that is in the way, and this one is in line.
    Blocked,
    /// Whoever holds what is in the way waits for this owner.
    Deadlock,
    /// A table is full.
    TooMany,
}

impl From<LockError> for NlmError {
    fn from(error: LockError) -> Self {
        match error {
            LockError::Denied(conflict) => Self::Denied(conflict),
            LockError::Deadlock => Self::Deadlock,
            LockError::State(_) => Self::TooMany,
        }
    }
}

/// A lock in line.
#[derive(Clone, Debug)]
pub(super) struct Waiting {
    owner: NlmOwner,
    range: Range,
    exclusive: bool,
    to: ReplyTo,
}

impl Waiting {
    fn is(&self, owner: &NlmOwner, range: Range, exclusive: bool) -> bool {
        self.range == range && self.exclusive == exclusive && self.owner == *owner
    }
}

/// A lock that was granted to a host which waited for it, and does not know yet.
#[derive(Clone, Debug)]
pub struct Granted {
    /// Counts grants.
    pub number: u64,
    /// Whose.
    pub owner: NlmOwner,
    /// The file.
    pub node: Node,
    /// The bytes.
    pub range: Range,
    /// Whether it excludes readers as well.
    pub exclusive: bool,
    /// Whom to tell.
    pub to: ReplyTo,
}

/// The hosts that have locks, and those that have to be told of theirs.
#[derive(Debug, Default)]
pub(super) struct Hosts {
    hosts: HashMap<IpAddr, Host>,
    /// Files that somebody waits for.
    queues: HashSet<Node>,
    waiting: usize,
    /// Files on which an owner waits, once for each lock.
    waits: HashMap<NlmOwner, Vec<Node>>,
    shares: usize,
    granting: HashMap<u64, Granted>,
    granted: u64,
    /// Of `granting`: not taken by [`State::nlm_take_granted`] yet.
    untold: Vec<u64>,
    tell: Arc<Notify>,
}

impl Hosts {
    /// A lock is in line no more.
    fn left_line(&mut self, owner: &NlmOwner, node: Node) {
        self.waiting -= 1;
        let Some(waits) = self.waits.get_mut(owner) else { return };
        if let Some(at) = waits.iter().position(|&other| other == node) {
            waits.swap_remove(at);
        }
        if waits.is_empty() {
            self.waits.remove(owner);
        }
    }
}

#[derive(Debug)]
struct Host {
    /// Files on which it has something, or had when last looked at.
    files: HashSet<Node>,
    used: Duration,
}

impl<F: Clone> State<F> {
    /// Whether one more host may have locks.
    pub fn nlm_has_room_for(&self, host: IpAddr) -> bool {
        let hosts = &self.nlm.hosts;
        hosts.len() < self.limits.clients || hosts.contains_key(&host)
    }

    /// Notes that a host is on disk.
    pub fn nlm_remembered(&mut self, host: IpAddr, now: Duration) {
        let host = self.nlm.hosts.entry(host);
        host.or_insert(Host { files: HashSet::new(), used: now }).used = now;
    }

    /// LOCK. The same again while it is in line changes whom to tell.
    ///
    /// # Errors
    /// It is not granted, or not yet.
    pub fn nlm_lock(&mut self, lock: NlmLock, now: Duration) -> Result<(), NlmError> {
        let NlmLock { owner, node, range, exclusive, reclaim, wait } = lock;
        self.nlm_check(owner.host, reclaim, now)?;
        let holder = Holder::Nlm(owner.clone());
        match self.take_range(node, &holder, range, exclusive, now) {
            Ok(()) => {
                self.leave_line(node, |w| w.is(&owner, range, exclusive));
                // A host that asks again learns by the reply that it was granted the lock.
                let hosts = &mut self.nlm;
                hosts
                    .granting
                    .retain(|_, g| (g.node, g.range) != (node, range) || g.owner != owner);
                self.nlm_uses(owner.host, node, now);
                // An exclusive lock may have become a shared one.
                self.grant_waiting(node);
                Ok(())
            }
            Err(LockError::Denied(_)) if let Some(to) = wait => {
                self.leave_line(node, |w| w.is(&owner, range, exclusive));
                if self.would_deadlock(&holder, Wanted { node, range, exclusive }, now) {
                    return Err(NlmError::Deadlock);
                }
                if self.nlm.waiting + self.nlm.granting.len() >= MAX_WAITING {
                    return Err(NlmError::TooMany);
                }
                self.nlm_uses(owner.host, node, now);
                self.nlm.waiting += 1;
                self.nlm.waits.entry(owner.clone()).or_default().push(node);
                self.nlm.queues.insert(node);
                let file = self.files.entry(node).or_default();
                file.waiting.push(Waiting { owner, range, exclusive, to });
                Err(NlmError::Blocked)
            }
            Err(error) => {
                self.drop_idle(node);
                Err(error.into())
            }
        }
    }

    /// TEST: the lock that is in the way.
    ///
    /// # Errors
    /// [`NlmError::Grace`].
    pub fn nlm_test(
        &mut self,
        owner: &NlmOwner,
        node: Node,
        range: Range,
        exclusive: bool,
        now: Duration,
    ) -> Result<Option<Conflict<Holder>>, NlmError> {
        if self.grace.is_active(now) {
            return Err(NlmError::Grace);
        }
        Ok(self.conflict(node, &Holder::Nlm(owner.clone()), range, exclusive, now))
    }

    /// UNLOCK. A grant under way of any of it is void.
    pub fn nlm_unlock(&mut self, owner: &NlmOwner, node: Node, range: Range) {
        self.nlm.granting.retain(|_, g| {
            g.node != node
                || g.owner != *owner
                || g.range.end <= range.start
                || range.end <= g.range.start
        });
        self.free_range(node, &Holder::Nlm(owner.clone()), range);
        self.nlm_used(owner.host, node);
    }

    /// CANCEL: leaves the line; a lock that was granted meanwhile is given up, because the host
    /// does not know of it.
    pub fn nlm_cancel(&mut self, owner: &NlmOwner, node: Node, range: Range, exclusive: bool) {
        self.leave_line(node, |w| w.is(owner, range, exclusive));
        let same = |g: &Granted| g.node == node && g.range == range && g.owner == *owner;
        if self.nlm.granting.values().any(same) {
            self.nlm_unlock(owner, node, range);
        }
        self.nlm_used(owner.host, node);
    }

    /// SHARE, in the place of what the owner reserved before.
    ///
    /// # Errors
    /// It is not granted.
    pub fn nlm_share(
        &mut self,
        owner: &NlmOwner,
        node: Node,
        share: Share,
        reclaim: bool,
        now: Duration,
    ) -> Result<(), NlmError> {
        self.nlm_check(owner.host, reclaim, now)?;
        self.clear_shares(node, None, share, now).map_err(|_| NlmError::ShareDenied)?;
        if self.nlm_share_conflict(node, Some(owner), share) {
            return Err(NlmError::ShareDenied);
        }
        if self.nlm.shares + self.opens.len() >= self.limits.opens {
            return Err(NlmError::TooMany);
        }
        self.drop_shares(node, |other| other == owner);
        self.files.entry(node).or_default().shares.push((owner.clone(), share));
        self.nlm.shares += 1;
        self.nlm_uses(owner.host, node, now);
        Ok(())
    }

    /// UNSHARE.
    pub fn nlm_unshare(&mut self, owner: &NlmOwner, node: Node) {
        self.drop_shares(node, |other| other == owner);
        self.nlm_used(owner.host, node);
    }

    /// Frees everything that a host has: it restarted, or says that it needs nothing of it.
    pub fn nlm_free(&mut self, host: IpAddr) {
        let files = self.nlm.hosts.get_mut(&host).map(|h| std::mem::take(&mut h.files));
        self.nlm.granting.retain(|_, g| g.owner.host != host);
        for node in files.into_iter().flatten() {
            self.leave_line(node, |w| w.owner.host == host);
            self.drop_shares(node, |owner| owner.host == host);
            self.change_ranges(node, |ranges| {
                let theirs = ranges.owners().filter(|o| is_of(o, host)).cloned();
                theirs.collect::<Vec<_>>().iter().for_each(|owner| ranges.release(owner));
            });
            self.grant_waiting(node);
            self.drop_idle(node);
        }
    }

    /// Frees what hosts have of an export that is served no more; who waits is granted nothing.
    pub(super) fn nlm_drop_export(&mut self, export: u16) {
        self.nlm.granting.retain(|_, g| g.node.export != export);
        let nodes = self.files.keys().filter(|node| node.export == export);
        for node in nodes.copied().collect::<Vec<_>>() {
            self.leave_line(node, |_| true);
            self.blocked.forget_file(node);
            self.drop_shares(node, |_| true);
            self.change_ranges(node, |ranges| {
                let theirs = ranges.owners().filter(|o| matches!(o, Holder::Nlm(_))).cloned();
                theirs.collect::<Vec<_>>().iter().for_each(|owner| ranges.release(owner));
            });
            self.drop_idle(node);
        }
        for host in self.nlm.hosts.values_mut() {
            host.files.retain(|node| node.export != export);
        }
    }

    /// Hosts that had nothing for a lease time, which are forgotten with this: they are to be taken
    /// off the disk before they are [remembered](Self::nlm_remembered) again.
    pub fn nlm_drop_idle(&mut self, now: Duration) -> Vec<IpAddr> {
        if self.grace.is_active(now) {
            return Vec::new();
        }
        let idle = |h: &Host| h.files.is_empty() && now.saturating_sub(h.used) > self.limits.lease;
        let gone: Vec<IpAddr> =
            self.nlm.hosts.iter().filter(|(_, h)| idle(h)).map(|(ip, _)| *ip).collect();
        for host in &gone {
            self.nlm.hosts.remove(host);
        }
        gone
    }

    /// Says when there is something for [`nlm_take_granted`](Self::nlm_take_granted).
    pub fn nlm_on_grant(&self) -> Arc<Notify> {
        self.nlm.tell.clone()
    }

    /// Locks that were granted to hosts which are to be told now.
    pub fn nlm_take_granted(&mut self) -> Vec<Granted> {
        let untold = std::mem::take(&mut self.nlm.untold);
        untold.iter().filter_map(|number| self.nlm.granting.get(number).cloned()).collect()
    }

    /// Whether a host is still to be told of a grant.
    pub fn nlm_is_granting(&self, number: u64) -> bool {
        self.nlm.granting.contains_key(&number)
    }

    /// A host has been told of a grant, and `wants` the lock or does not.
    pub fn nlm_acknowledged(&mut self, number: u64, wants: bool) {
        let Some(granted) = self.nlm.granting.remove(&number) else { return };
        if !wants {
            self.nlm_unlock(&granted.owner, granted.node, granted.range);
        }
    }

    /// Whether a host's share reservation is in the way of one by `by`, or by nobody of NLM.
    pub(super) fn nlm_share_conflict(
        &self,
        node: Node,
        by: Option<&NlmOwner>,
        share: Share,
    ) -> bool {
        let shares = self.files.get(&node).map_or(&[][..], |f| &f.shares);
        shares.iter().any(|(owner, other)| Some(owner) != by && other.conflicts(share))
    }

    /// Grants what can be granted of the locks that are waited for.
    pub(super) fn grant_waiting(&mut self, node: Node) {
        let mut at = 0;
        while self.held < self.limits.locks
            && let Some(file) = self.files.get(&node)
            && let Some(first) = file.waiting.get(at)
        {
            let holder = Holder::Nlm(first.owner.clone());
            let (range, exclusive) = (first.range, first.exclusive);
            if self.change_ranges(node, |ranges| ranges.lock(&holder, range, exclusive)).is_err() {
                at += 1;
                continue;
            }
            let Some(file) = self.files.get_mut(&node) else { return };
            let Waiting { owner, to, .. } = file.waiting.remove(at);
            let hosts = &mut self.nlm;
            hosts.left_line(&owner, node);
            hosts.granted += 1;
            let number = hosts.granted;
            hosts.granting.insert(number, Granted { number, owner, node, range, exclusive, to });
            hosts.untold.push(number);
            hosts.tell.notify_one();
        }
        if self.files.get(&node).is_none_or(|f| f.waiting.is_empty()) {
            self.nlm.queues.remove(&node);
        }
        self.tell_blocked(node);
    }

    /// The locks that an owner waits for.
    pub(super) fn nlm_waits<'a>(&'a self, owner: &'a NlmOwner) -> impl Iterator<Item = Wanted> {
        self.nlm.waits.get(owner).into_iter().flatten().flat_map(move |&node| {
            let waiting = self.files.get(&node).map_or(&[][..], |file| &file.waiting);
            let theirs = waiting.iter().filter(move |w| w.owner == *owner);
            theirs.map(move |w| Wanted { node, range: w.range, exclusive: w.exclusive })
        })
    }

    /// Periodic: clients that went silent may hold what hosts wait for.
    pub(super) fn retry_waiting(&mut self, now: Duration) {
        for node in self.nlm.queues.iter().copied().collect::<Vec<_>>() {
            let waiting = self.files.get(&node).map(|f| f.waiting.clone()).unwrap_or_default();
            for w in waiting {
                self.conflict(node, &Holder::Nlm(w.owner), w.range, w.exclusive, now);
            }
            self.grant_waiting(node);
        }
    }

    fn nlm_check(&self, host: IpAddr, reclaim: bool, now: Duration) -> Result<(), NlmError> {
        if !self.nlm.hosts.contains_key(&host) {
            return Err(NlmError::Unknown);
        }
        match (reclaim, self.grace.is_active(now)) {
            (false, false) => Ok(()),
            (false, true) => Err(NlmError::Grace),
            (true, true) if self.grace.expects_host(host) => Ok(()),
            (true, _) => Err(NlmError::NoGrace),
        }
    }

    fn leave_line(&mut self, node: Node, leaves: impl Fn(&Waiting) -> bool) {
        let Some(file) = self.files.get_mut(&node) else { return };
        for left in file.waiting.extract_if(.., |w| leaves(w)) {
            self.nlm.left_line(&left.owner, node);
        }
        if file.waiting.is_empty() {
            self.nlm.queues.remove(&node);
        }
    }

    fn drop_shares(&mut self, node: Node, goes: impl Fn(&NlmOwner) -> bool) {
        let Some(file) = self.files.get_mut(&node) else { return };
        let before = file.shares.len();
        file.shares.retain(|(owner, _)| !goes(owner));
        self.nlm.shares -= before - file.shares.len();
    }

    fn nlm_uses(&mut self, host: IpAddr, node: Node, now: Duration) {
        if let Some(host) = self.nlm.hosts.get_mut(&host) {
            host.files.insert(node);
            host.used = now;
        }
    }

    /// Notes that a host may have nothing on a file any more.
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

fn is_of(holder: &Holder, host: IpAddr) -> bool {
    matches!(holder, Holder::Nlm(owner) if owner.host == host)
}

#[cfg(test)]
mod tests;
