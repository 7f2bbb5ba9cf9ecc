//! The kinds of state with a limit, and the refused requests of each.

use crate::admission::Refusals;
use std::collections::HashMap;
use std::net::IpAddr;

/// The kinds of state with a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::state) enum Resource {
    Client,
    Session,
    /// Opens, share reservations of NLM hosts, and opens whose file is about to be created.
    Open,
    LockState,
    Range,
    Delegation,
    /// Files that are open in their stores for locks, by the address that had them opened.
    StoreLock,
    NlmHost,
    /// Locks that NLM hosts wait for, and those granted but not acknowledged.
    NlmWaiting,
}

pub(in crate::state) const KINDS: [(Resource, &str); 9] = [
    (Resource::Client, "clients"),
    (Resource::Session, "sessions"),
    (Resource::Open, "opens"),
    (Resource::LockState, "lock_states"),
    (Resource::Range, "locked_ranges"),
    (Resource::Delegation, "delegations"),
    (Resource::StoreLock, "store_locks"),
    (Resource::NlmHost, "nlm_hosts"),
    (Resource::NlmWaiting, "nlm_waiting"),
];

/// Addresses whose refused requests are counted.
pub(in crate::state) const MAX_ADDRESSES: usize = 1024;

/// Refused requests by kind, and by kind and address.
#[derive(Debug, Default)]
pub(in crate::state) struct Refused {
    counts: [u64; KINDS.len()],
    /// For at most [`MAX_ADDRESSES`].
    addresses: HashMap<IpAddr, [u64; KINDS.len()]>,
}

impl Refused {
    /// Counts a refused request of a peer at an address, if that is known.
    pub(in crate::state) fn count(&mut self, kind: Resource, address: Option<IpAddr>) {
        self.counts[kind as usize] += 1;
        let Some(address) = address else { return };
        let addresses = &mut self.addresses;
        if addresses.len() >= MAX_ADDRESSES && !addresses.contains_key(&address) {
            let total = |counts: &[u64; KINDS.len()]| counts.iter().sum::<u64>();
            let least = addresses.iter().min_by_key(|(_, counts)| total(counts));
            if let Some(least) = least.map(|(address, _)| *address) {
                addresses.remove(&least);
            }
        }
        addresses.entry(address).or_default()[kind as usize] += 1;
    }

    /// By kind, in the order of [`KINDS`].
    pub(in crate::state) fn counts(&self) -> &[u64; KINDS.len()] {
        &self.counts
    }

    pub(in crate::state) fn by_address(&self) -> Vec<Refusals> {
        let of = |(&address, counts): (&IpAddr, &[u64; KINDS.len()])| {
            let kinds = KINDS.iter().zip(*counts).filter(|(_, count)| *count > 0);
            let kinds = kinds.map(move |(&(_, limit), count)| Refusals { limit, address, count });
            kinds.collect::<Vec<_>>()
        };
        self.addresses.iter().flat_map(of).collect()
    }
}
