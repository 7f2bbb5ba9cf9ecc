//! The grace period: after a restart, clients reclaim the state that they had, and meanwhile no
//! client gets new state.
//!
//! 1. Grace ends at the first sweep after a fixed time, or when every client that had state has completed its
//!    reclaims. If no client had state, there is no grace period. The sweep also notes that absent NFSv4 clients may
//!    not reclaim in a later run, and nothing is granted until that is on disk: a client that might reclaim a lock
//!    after another restart, and a client that has got it meanwhile, would both rely on it (RFC 8881 section 8.4.3).
//!    The records of absent NLM hosts are removed within seconds.
//! 2. Only a client that the previous run recorded on disk may reclaim, and only as the principal
//!    that it had then. Until grace ends, no other principal gets its name.
//! 3. Meanwhile names are not removed or changed, sizes are not set, and there is no I/O without an
//!    open ([`Grace::holds_back`]): a client that is about to reclaim an open or a delegation could
//!    not notice such a change.
//! 4. NLM hosts do not say when they are done, so with any of them grace lasts its full time.

use crate::state::client::{Owner, Principal};
use crate::state::error::StateError;
use crate::state::record::Record;
use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::time::Duration;

/// The grace period of this run.
#[derive(Debug, Default)]
pub(crate) struct Grace {
    until: Duration,
    expected: HashMap<Owner, Record>,
    returned: HashSet<Owner>,
    hosts: HashSet<IpAddr>,
    ended: bool,
    /// The lease on disk is a longer one of an earlier run, until grace ends.
    has_longer_lease: bool,
}

impl Grace {
    /// A grace period until `until` (monotonic) for the clients that had state in the previous run.
    pub(crate) fn new(until: Duration, clients: impl IntoIterator<Item = (Owner, Record)>) -> Self {
        Self { until, expected: clients.into_iter().collect(), ..Self::default() }
    }

    /// Adds hosts that held NLM locks.
    #[must_use]
    pub(crate) fn with_hosts(mut self, hosts: impl IntoIterator<Item = IpAddr>) -> Self {
        self.hosts.extend(hosts);
        self
    }

    /// Notes that clients may know a longer lease of an earlier run, which is on disk.
    #[must_use]
    pub(crate) fn with_longer_lease(self, has_longer_lease: bool) -> Self {
        Self { has_longer_lease, ..self }
    }

    /// Whether, since the last call, grace has ended in which clients might know a longer lease: all that may reclaim
    /// after the next restart know that of this run.
    pub(crate) fn lease_may_be_shorter_now(&mut self) -> bool {
        self.ended && std::mem::take(&mut self.has_longer_lease)
    }

    /// Whether clients may still reclaim.
    pub(crate) fn is_active(&self) -> bool {
        let expects = !self.expected.is_empty() || !self.hosts.is_empty();
        !self.ended && expects
    }

    /// Whether clients may still reclaim opens, and with them delegations and share reservations.
    /// I/O without an open might conflict with those (RFC 8881 section 8.4.2.1). Once this is
    /// false, it stays false.
    pub(crate) fn holds_back(&self) -> bool {
        self.is_active() && !self.expected.is_empty()
    }

    /// Whether a host held locks that it may reclaim.
    pub(crate) fn expects_host(&self, host: IpAddr) -> bool {
        self.hosts.contains(&host)
    }

    /// Refuses another principal the name of a client that may still reclaim.
    ///
    /// # Errors
    /// [`StateError::ClientInUse`].
    pub(crate) fn check_name(
        &self,
        owner: &Owner,
        principal: &Principal,
    ) -> Result<(), StateError> {
        let theirs = self.expected.get(owner).and_then(|record| record.principal.as_ref());
        match theirs {
            Some(theirs) if theirs != principal && self.is_active() => Err(StateError::ClientInUse),
            _ => Ok(()),
        }
    }

    /// Whether a client may reclaim state; if so, records that it has returned.
    pub(crate) fn may_reclaim(&mut self, owner: &Owner, principal: &Principal) -> bool {
        let is_its = |record: &Record| record.is_of(principal);
        let may = self.is_active() && self.expected.get(owner).is_some_and(is_its);
        if may {
            self.returned.insert(owner.clone());
        }
        may
    }

    /// Whether a client that had state has returned.
    pub(crate) fn has_returned(&self, owner: &Owner) -> bool {
        self.returned.contains(owner)
    }

    /// The disk record of a client that had state.
    pub(crate) fn record(&self, owner: &Owner) -> Option<&Record> {
        self.expected.get(owner)
    }

    /// Records that a client has completed its reclaims.
    pub(crate) fn completed(&mut self, owner: &Owner) {
        self.expected.remove(owner);
    }

    /// Ends grace when its time is over. Returns, once, the clients that did not return: they may
    /// not reclaim in a later run either.
    pub(crate) fn end(&mut self, now: Duration) -> Vec<Owner> {
        if self.ended || (self.is_active() && now < self.until) {
            return Vec::new();
        }
        self.ended = true;
        self.hosts.clear();
        let expected = self.expected.drain().map(|(owner, _)| owner);
        expected.filter(|owner| !self.returned.contains(owner)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(name: &'static str) -> Owner {
        Owner { sessions: true, name: bytes::Bytes::from_static(name.as_bytes()) }
    }

    const USER: Principal = Principal { flavor: 1, uid: 1000 };

    fn clients<const N: usize>(names: [&'static str; N]) -> [(Owner, Record); N] {
        let record = Record { principal: Some(USER), ..Record::default() };
        names.map(|name| (owner(name), record.clone()))
    }

    const SEC: Duration = Duration::from_secs(1);

    #[test]
    fn grace_ends_when_all_clients_are_back_or_time_is_up() {
        assert!(!Grace::new(90 * SEC, []).is_active());

        let mut grace = Grace::new(90 * SEC, clients(["a", "b"]));
        assert!(grace.may_reclaim(&owner("a"), &USER));
        assert!(!grace.may_reclaim(&owner("c"), &USER));
        grace.completed(&owner("a"));
        assert!(grace.is_active() && grace.holds_back());
        assert_eq!(grace.end(89 * SEC), []);
        assert!(grace.is_active(), "a sweep ends it");
        assert_eq!(grace.end(90 * SEC), [owner("b")]);
        assert!(!grace.is_active());
        assert_eq!(grace.end(91 * SEC), []);

        let mut grace = Grace::new(90 * SEC, clients(["a"]));
        assert!(grace.may_reclaim(&owner("a"), &USER));
        grace.completed(&owner("a"));
        assert!(!grace.is_active() && !grace.holds_back());
        assert_eq!(grace.end(2 * SEC), []);

        let host = IpAddr::from([192, 0, 2, 9]);
        let mut grace = Grace::new(90 * SEC, []).with_hosts([host]);
        assert!(grace.is_active() && grace.expects_host(host));
        assert!(!grace.holds_back(), "they hold byte-range locks, which are advisory");
        assert_eq!(grace.end(90 * SEC), []);
        assert!(!grace.expects_host(host));
    }

    #[test]
    fn a_client_name_stays_with_its_principal_in_grace() {
        let other = Principal { flavor: 1, uid: 1001 };
        let mut grace = Grace::new(90 * SEC, clients(["a"]));
        assert_eq!(grace.check_name(&owner("a"), &other), Err(StateError::ClientInUse));
        assert!(!grace.may_reclaim(&owner("a"), &other));
        assert_eq!(grace.check_name(&owner("b"), &other), Ok(()));
        assert_eq!(grace.check_name(&owner("a"), &USER), Ok(()));
        assert!(grace.may_reclaim(&owner("a"), &USER));
        assert_eq!(grace.end(90 * SEC), []);
        assert_eq!(grace.check_name(&owner("a"), &other), Ok(()));

        // If a record names no principal, only the superuser may reclaim.
        let mut grace = Grace::new(90 * SEC, [(owner("a"), Record::default())]);
        assert_eq!(grace.check_name(&owner("a"), &other), Ok(()));
        assert!(!grace.may_reclaim(&owner("a"), &other));
        assert!(grace.may_reclaim(&owner("a"), &Principal { flavor: 1, uid: 0 }));
    }
}
