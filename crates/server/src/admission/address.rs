//! What the peers at one address hold of the server's limits.
//!
//! An address is what one host can hardly change at will: an IPv4 address, or the first 64 bits of
//! an IPv6 address. It is known as long as a connection comes from it.

use super::quota::{Quota, Share};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Weak};

/// Bounds on what all peers hold together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SharedLimits {
    /// Bytes of replies that are made or wait to be sent.
    pub(crate) reply_bytes: usize,
    /// Bytes of large calls.
    pub(crate) call_bytes: usize,
    pub(crate) connections: usize,
}

/// What is held of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LimitUse {
    pub(crate) name: &'static str,
    pub(crate) limit: u64,
    pub(crate) used: u64,
    /// How often a peer had to wait for its share, or was refused.
    pub(crate) refused: u64,
}

impl LimitUse {
    fn of(name: &'static str, quota: &Quota) -> Self {
        let (limit, used) = (quota.limit() as u64, quota.used() as u64);
        Self { name, limit, used, refused: quota.refused() }
    }
}

/// The limits that addresses share, and the addresses that hold some of them.
#[derive(Debug)]
pub(crate) struct Addresses {
    pub(crate) reply_bytes: Arc<Quota>,
    pub(crate) call_bytes: Arc<Quota>,
    pub(crate) connections: Arc<Quota>,
    known: Mutex<HashMap<IpAddr, Weak<AddressShares>>>,
}

/// What one address holds.
#[derive(Debug)]
pub(crate) struct AddressShares {
    pub(crate) reply_bytes: Arc<Share>,
    pub(crate) call_bytes: Arc<Share>,
    pub(crate) connections: Arc<Share>,
    /// A connection from it was refused, and the log says so.
    pub(crate) was_refused: AtomicBool,
}

impl Addresses {
    pub(crate) fn new(limits: SharedLimits) -> Self {
        Self {
            reply_bytes: Quota::new(limits.reply_bytes),
            call_bytes: Quota::new(limits.call_bytes),
            connections: Quota::new(limits.connections),
            known: Mutex::default(),
        }
    }

    /// What is held of each limit.
    pub(crate) fn uses(&self) -> Vec<LimitUse> {
        let quotas = [
            ("reply_bytes", &self.reply_bytes),
            ("call_bytes", &self.call_bytes),
            ("connections", &self.connections),
        ];
        quotas.map(|(name, quota)| LimitUse::of(name, quota)).into()
    }

    /// The shares of the host at an address.
    pub(crate) fn shares_of(&self, ip: IpAddr) -> Arc<AddressShares> {
        let mut known = self.known.lock();
        let place = known.entry(host(ip)).or_default();
        if let Some(shares) = place.upgrade() {
            return shares;
        }
        let shares = Arc::new(AddressShares {
            reply_bytes: self.reply_bytes.share(),
            call_bytes: self.call_bytes.share(),
            connections: self.connections.share(),
            was_refused: AtomicBool::new(false),
        });
        *place = Arc::downgrade(&shares);
        shares
    }

    /// Forgets an address from which the last connection has gone.
    pub(crate) fn forget_unused(&self, ip: IpAddr) {
        let mut known = self.known.lock();
        if known.get(&host(ip)).is_some_and(|shares| shares.strong_count() == 0) {
            known.remove(&host(ip));
        }
    }
}

/// The part of an address that says which host it is.
fn host(ip: IpAddr) -> IpAddr {
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
    fn an_address_is_known_while_it_is_used() {
        let addresses =
            Addresses::new(SharedLimits { reply_bytes: 10, call_bytes: 10, connections: 10 });
        let of = |ip: &str| addresses.shares_of(ip.parse().unwrap());
        let first = of("192.0.2.1");
        assert!(Arc::ptr_eq(&first, &of("::ffff:192.0.2.1")));
        assert!(!Arc::ptr_eq(&first, &of("192.0.2.2")));
        let v6 = of("2001:db8::1");
        assert!(Arc::ptr_eq(&v6, &of("2001:db8::ffff:2")), "a host has many of these");
        assert!(!Arc::ptr_eq(&v6, &of("2001:db8:0:1::1")));
        addresses.forget_unused("192.0.2.1".parse().unwrap());
        assert!(Arc::ptr_eq(&first, &of("192.0.2.1")));
        drop((first, v6));
        for ip in ["192.0.2.1", "192.0.2.2", "2001:db8::7", "2001:db8:0:1::7"] {
            addresses.forget_unused(ip.parse().unwrap());
        }
        assert!(addresses.known.lock().is_empty());
    }
}
