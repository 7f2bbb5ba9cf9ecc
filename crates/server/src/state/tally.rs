//! How much of one limit each client and each address holds.
//!
//! An address holds what the clients and NLM hosts at it hold together. So a peer does not get more
//! by calling itself many clients.

use crate::admission::{allowance, fair_share};
use crate::state::client::ClientId;
use std::collections::HashMap;
use std::net::IpAddr;

/// A client and the address that it is counted at. `None`: it is counted alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Account {
    pub(crate) client: ClientId,
    pub(crate) address: Option<IpAddr>,
}

#[cfg(test)]
impl Account {
    pub(crate) fn alone(client: ClientId) -> Self {
        Self { client, address: None }
    }
}

/// What a client holds. It counts at the address where the client first held something.
#[derive(Clone, Copy, Debug)]
struct OfClient {
    amount: usize,
    address: Option<IpAddr>,
}

/// What clients would free if they were removed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Removable {
    pub(crate) total: usize,
    addresses: HashMap<IpAddr, usize>,
}

impl Removable {
    fn at(&self, address: IpAddr) -> usize {
        self.addresses.get(&address).copied().unwrap_or(0)
    }
}

/// How much of one limit each client and each address holds.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    total: usize,
    clients: HashMap<ClientId, OfClient>,
    addresses: HashMap<IpAddr, usize>,
}

impl Tally {
    pub(crate) fn total(&self) -> usize {
        self.total
    }

    pub(crate) fn of(&self, client: ClientId) -> usize {
        self.clients.get(&client).map_or(0, |of_client| of_client.amount)
    }

    pub(crate) fn of_address(&self, address: IpAddr) -> usize {
        self.addresses.get(&address).copied().unwrap_or(0)
    }

    pub(crate) fn add(&mut self, account: Account, amount: usize) {
        let Account { client, address } = account;
        if amount == 0 {
            return;
        }
        let new = OfClient { amount: 0, address };
        let of_client = self.clients.entry(client).or_insert(new);
        of_client.amount += amount;
        match of_client.address {
            Some(address) => self.add_at(address, amount),
            None => self.total += amount,
        }
    }

    /// Subtracts what a client no longer holds; at most what it holds.
    pub(crate) fn subtract(&mut self, client: ClientId, amount: usize) {
        let Some(of_client) = self.clients.get_mut(&client) else { return };
        let amount = amount.min(of_client.amount);
        of_client.amount -= amount;
        let OfClient { amount: left, address } = *of_client;
        if left == 0 {
            self.clients.remove(&client);
        }
        match address {
            Some(address) => self.subtract_at(address, amount),
            None => self.total -= amount,
        }
    }

    /// Adds what an NLM host at an address holds.
    pub(crate) fn add_at(&mut self, address: IpAddr, amount: usize) {
        if amount > 0 {
            self.total += amount;
            *self.addresses.entry(address).or_default() += amount;
        }
    }

    /// Subtracts what an NLM host at an address no longer holds.
    pub(crate) fn subtract_at(&mut self, address: IpAddr, amount: usize) {
        let Some(held) = self.addresses.get_mut(&address) else { return };
        let amount = amount.min(*held);
        *held -= amount;
        if *held == 0 {
            self.addresses.remove(&address);
        }
        self.total -= amount;
    }

    /// Adds what no client or host holds alone, at the address for which it is there. `None`: it
    /// counts in the total only.
    pub(crate) fn add_unowned(&mut self, address: Option<IpAddr>, amount: usize) {
        match address {
            Some(address) => self.add_at(address, amount),
            None => self.total += amount,
        }
    }

    /// Subtracts what [`add_unowned`](Self::add_unowned) has added.
    pub(crate) fn subtract_unowned(&mut self, address: Option<IpAddr>, amount: usize) {
        match address {
            Some(address) => self.subtract_at(address, amount),
            None => self.total -= amount,
        }
    }

    /// How much more a client may take: the rule of [`allowance`] holds for its address in the
    /// whole limit, and for the client in the share of its address. `freed` is what other clients would free.
    pub(crate) fn allowance(&self, limit: usize, account: Account, freed: &Removable) -> usize {
        let (used, own) = (self.total.saturating_sub(freed.total), self.of(account.client));
        match self.address_of(account) {
            Some(address) => {
                let free = self.allowance_at(limit, address, freed);
                if own == 0 { free } else { free.saturating_sub(own) / 2 }
            }
            None => allowance(limit, used, own),
        }
    }

    /// How much more the NLM hosts at an address may take.
    pub(crate) fn allowance_at(&self, limit: usize, address: IpAddr, freed: &Removable) -> usize {
        let own = self.of_address(address).saturating_sub(freed.at(address));
        allowance(limit, self.total.saturating_sub(freed.total), own)
    }

    /// What a client holds once it has taken all that it may, or has returned the excess.
    pub(crate) fn fair_share(&self, limit: usize, account: Account) -> usize {
        let own = self.of(account.client);
        match self.address_of(account) {
            Some(address) => {
                let of_address = self.of_address(address);
                fair_share(fair_share(limit, self.total, of_address), of_address, own)
            }
            None => fair_share(limit, self.total, own),
        }
    }

    /// What the address of a client holds, or the client itself if it is counted alone.
    pub(crate) fn of_group(&self, account: Account) -> usize {
        match self.address_of(account) {
            Some(address) => self.of_address(address),
            None => self.of(account.client),
        }
    }

    /// What a client that is removed would free.
    pub(crate) fn freed_by(&self, account: Account, freed: &mut Removable) {
        let amount = self.of(account.client);
        freed.total += amount;
        if let Some(address) = self.address_of(account) {
            *freed.addresses.entry(address).or_default() += amount;
        }
    }

    fn address_of(&self, account: Account) -> Option<IpAddr> {
        self.clients.get(&account.client).map_or(account.address, |of_client| of_client.address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: usize = 120;

    fn account(client: u64, address: &str) -> Account {
        Account { client: ClientId(client), address: Some(address.parse().unwrap()) }
    }

    fn fill(tally: &mut Tally, account: Account) -> usize {
        let mut taken = 0;
        while tally.allowance(LIMIT, account, &Removable::default()) > 0 {
            tally.add(account, 1);
            taken += 1;
        }
        taken
    }

    #[test]
    fn many_clients_of_one_address_get_its_share_and_no_more() {
        let mut tally = Tally::default();
        let crowd: usize = (0..1000).map(|id| fill(&mut tally, account(id, "192.0.2.1"))).sum();
        assert_eq!(crowd, 60, "half of the limit");
        assert_eq!(fill(&mut tally, account(2000, "192.0.2.2")), 15, "half of the next share");
        assert_eq!(tally.total(), 75);
    }

    #[test]
    fn a_client_leaves_room_for_others_of_its_address() {
        let mut tally = Tally::default();
        assert_eq!(fill(&mut tally, account(1, "192.0.2.1")), 30);
        assert_eq!(fill(&mut tally, account(2, "192.0.2.1")), 15);
        assert_eq!(tally.fair_share(LIMIT, account(1, "192.0.2.1")), 22);
        tally.subtract(ClientId(1), 30);
        tally.subtract(ClientId(2), 100);
        assert_eq!(tally.total(), 0);
        assert!(tally.clients.is_empty() && tally.addresses.is_empty());
    }

    #[test]
    fn a_client_is_counted_at_one_address_while_it_holds_something() {
        let mut tally = Tally::default();
        tally.add(account(1, "192.0.2.1"), 5);
        tally.add(account(1, "192.0.2.2"), 5);
        assert_eq!(tally.of_address("192.0.2.1".parse().unwrap()), 10);
        tally.add_at("192.0.2.1".parse().unwrap(), 2);
        tally.subtract(ClientId(1), 10);
        assert_eq!(tally.total(), 2);
        assert_eq!(
            tally.allowance_at(LIMIT, "192.0.2.1".parse().unwrap(), &Removable::default()),
            58
        );
    }
}
