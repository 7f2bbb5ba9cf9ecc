//! What the peers at one address hold of the server's limits.
//!
//! The server counts by IPv4 address or by the first 64 bits of an IPv6 address: a host cannot
//! easily change these. It keeps an entry for an address while the address has a connection or an
//! NFSv4 client.

use super::quota::{Quota, Share, Taken};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Weak};

/// Limits on what all peers hold together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SharedLimits {
    /// Bytes of replies that are being built or wait to be sent.
    pub(crate) reply_bytes: usize,
    /// Bytes of large calls.
    pub(crate) call_bytes: usize,
    pub(crate) connections: usize,
    /// NFSv4 clients.
    pub(crate) clients: usize,
}

/// How much of a limit is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LimitUse {
    pub(crate) name: &'static str,
    pub(crate) limit: u64,
    pub(crate) used: u64,
    /// How often a peer had to wait for its share, or was refused.
    pub(crate) refused: u64,
}

/// How often an address had to wait for its share of a limit, or was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refusals {
    pub(crate) limit: &'static str,
    pub(crate) address: IpAddr,
    pub(crate) count: u64,
}

impl LimitUse {
    fn of(name: &'static str, quota: &Quota) -> Self {
        let (limit, used) = (quota.limit() as u64, quota.used() as u64);
        Self { name, limit, used, refused: quota.refused() }
    }
}

/// The limits that all addresses share, and the addresses that use them.
#[derive(Debug)]
pub(crate) struct Addresses {
    pub(crate) reply_bytes: Arc<Quota>,
    pub(crate) call_bytes: Arc<Quota>,
    pub(crate) connections: Arc<Quota>,
    clients: Arc<Quota>,
    known: Mutex<HashMap<IpAddr, Weak<AddressShares>>>,
}

/// The shares of one address.
#[derive(Debug)]
pub(crate) struct AddressShares {
    host: IpAddr,
    pub(crate) reply_bytes: Arc<Share>,
    pub(crate) call_bytes: Arc<Share>,
    pub(crate) connections: Arc<Share>,
    clients: Arc<Share>,
    /// The server has refused a connection from the address, and logged that.
    pub(crate) was_refused: AtomicBool,
}

impl Addresses {
    pub(crate) fn new(limits: SharedLimits) -> Self {
        Self {
            reply_bytes: Quota::new(limits.reply_bytes),
            call_bytes: Quota::new(limits.call_bytes),
            connections: Quota::new(limits.connections),
            clients: Quota::new(limits.clients),
            known: Mutex::default(),
        }
    }

    /// The use of each limit except the number of clients.
    pub(crate) fn uses(&self) -> Vec<LimitUse> {
        let quotas = [
            ("reply_bytes", &self.reply_bytes),
            ("call_bytes", &self.call_bytes),
            ("connections", &self.connections),
        ];
        quotas.map(|(name, quota)| LimitUse::of(name, quota)).into()
    }

    /// How often the addresses that are in use had to wait or were refused, by limit.
    pub(crate) fn refusals(&self) -> Vec<Refusals> {
        let known: Vec<_> = self.known.lock().values().filter_map(Weak::upgrade).collect();
        let of = |one: &Arc<AddressShares>| {
            let shares = [
                ("reply_bytes", &one.reply_bytes),
                ("call_bytes", &one.call_bytes),
                ("connections", &one.connections),
                ("clients", &one.clients),
            ];
            let address = one.host;
            shares.map(|(limit, share)| Refusals { limit, address, count: share.refused() })
        };
        known.iter().flat_map(of).filter(|refusals| refusals.count > 0).collect()
    }

    /// The shares of the host at an address.
    pub(crate) fn shares_of(&self, ip: IpAddr) -> Arc<AddressShares> {
        let host = host(ip);
        let mut known = self.known.lock();
        let entry = known.entry(host).or_default();
        if let Some(shares) = entry.upgrade() {
            return shares;
        }
        let shares = Arc::new(AddressShares {
            host,
            reply_bytes: self.reply_bytes.share(),
            call_bytes: self.call_bytes.share(),
            connections: self.connections.share(),
            clients: self.clients.share(),
            was_refused: AtomicBool::new(false),
        });
        *entry = Arc::downgrade(&shares);
        shares
    }

    /// Removes the addresses without connections and clients.
    pub(crate) fn sweep(&self) {
        self.known.lock().retain(|_, shares| shares.strong_count() > 0);
    }
}

impl AddressShares {
    /// The address that is counted ([`host`]).
    pub(crate) fn host(&self) -> IpAddr {
        self.host
    }

    /// Counts a new client against the share of its address; `None` if the address has used up its
    /// share.
    pub(crate) fn charge_client(self: &Arc<Self>) -> Option<ClientCharge> {
        Some(ClientCharge { _taken: self.clients.try_take(1)?, _address: self.clone() })
    }
}

/// One client, counted against the share of its address. Keeps the entry of the address while it
/// lives.
#[derive(Debug)]
pub(crate) struct ClientCharge {
    _taken: Taken,
    _address: Arc<AddressShares>,
}

/// The part of an address that identifies a host: all of an IPv4 address, the first 64 bits of an
/// IPv6 address. A host chooses the other 64 bits itself (RFC 4862), so they identify nothing. A
/// shorter prefix, such as a site's 48 bits, would make all machines of a site share with the one
/// that takes the most.
pub(crate) fn host(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V6(ip) if !ip.is_loopback() => {
            const NETWORK: u128 = !0 << 64;
            Ipv6Addr::from_bits(ip.to_bits() & NETWORK).into()
        }
        ip => ip,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_remembered_while_it_is_in_use() {
        let addresses = Addresses::new(SharedLimits {
            reply_bytes: 10,
            call_bytes: 10,
            connections: 10,
            clients: 3,
        });
        let of = |ip: &str| addresses.shares_of(ip.parse().unwrap());
        let first = of("192.0.2.1");
        assert!(Arc::ptr_eq(&first, &of("::ffff:192.0.2.1")));
        assert!(!Arc::ptr_eq(&first, &of("192.0.2.2")));
        let v6 = of("2001:db8::1");
        assert!(Arc::ptr_eq(&v6, &of("2001:db8::ffff:2")), "a host has many of these");
        assert!(!Arc::ptr_eq(&v6, &of("2001:db8:0:1::1")));
        addresses.sweep();
        assert!(Arc::ptr_eq(&first, &of("192.0.2.1")));
        let charge = first.charge_client().unwrap();
        let _other = first.charge_client();
        assert!(first.charge_client().is_none(), "one more would leave too few free");
        let refused =
            Refusals { limit: "clients", address: "192.0.2.1".parse().unwrap(), count: 2 };
        assert_eq!(addresses.refusals(), [refused]);
        drop((first, v6, _other));
        addresses.sweep();
        assert_eq!(addresses.known.lock().len(), 1, "its client is there still");
        drop(charge);
        addresses.sweep();
        assert!(addresses.known.lock().is_empty());
    }
}
