//! Owner sequence numbers of minor version 0: each request of an owner is executed once, in order
//! (RFC 7530 section 9.1.7).
//!
//! 1. Requests of one owner run one at a time; those of different owners do not wait for each
//!    other.
//! 2. A request with the seqid, the operation, the arguments and the filehandle of the owner's last one
//!    gets the last reply again, even a CLOSE whose open is gone. Otherwise, only the next seqid is
//!    executed: a client that has given a request up may send another one with its seqid, which must
//!    not get the result of the first.
//! 3. An owner is forgotten with its client, or when it has had no state for a lease. Once a client
//!    has lost an open-owner this way, its new open-owners must confirm their first OPEN, which may
//!    be a retransmission of a forgotten owner's (RFC 7530 section 16.18.5). Until an owner has
//!    confirmed, OPEN accepts any seqid.
//! 4. The number of owners is limited, and so are the bytes of their names and cached results.
//!    An address, and a client within it, may take as much of the bytes as it leaves free. A new
//!    owner that does not fit is refused.

use crate::admission::LimitUse;
use crate::handle::Node;
use crate::state::{
    Account, ClientId, LockOwner, OwnerName, Principal, Removable, State, StateKey, Tally,
};
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use weir_nfs::v4::OpCode;

/// The kind of an owner. Open-owners and lock-owners have separate sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum OwnerKind {
    Open,
    Lock,
}

/// The last request of an owner.
#[derive(Debug, Default)]
pub(crate) struct LastRequest {
    /// `None` before the first request.
    request: Option<Numbered>,
    /// Its encoded result.
    result: Bytes,
    /// The current filehandle after it.
    current: Option<Node>,
    standing: Standing,
    /// The open that it closed, if it was a CLOSE.
    closed: Option<StateKey>,
}

/// What tells a request of an owner from others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Numbered {
    pub(crate) op: OpCode,
    pub(crate) seqid: u32,
    /// A hash of the arguments.
    pub(crate) digest: u64,
    /// The current filehandle before it.
    pub(crate) current: Option<Node>,
}

/// Whether an open-owner is confirmed, so that its first OPEN cannot have been a retransmission of
/// a forgotten owner's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Standing {
    /// None of its requests has succeeded yet.
    #[default]
    New,
    /// It has to confirm this open.
    Unconfirmed(StateKey),
    /// It is confirmed.
    Confirmed,
}

/// How to handle a request of an owner.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum SeqidCheck {
    /// Execute it.
    Execute,
    /// It was executed before. Holds its result, and the current filehandle after it.
    Replay(Bytes, Option<Node>),
    /// Reject it: it is neither the next request nor the last one.
    Misordered,
}

impl LastRequest {
    pub(crate) fn check_seqid(&self, request: &Numbered) -> SeqidCheck {
        match self.request {
            None => SeqidCheck::Execute,
            Some(last) if request.seqid == next(last.seqid) => SeqidCheck::Execute,
            Some(last) if *request == last => SeqidCheck::Replay(self.result.clone(), self.current),
            Some(_) => SeqidCheck::Misordered,
        }
    }

    /// Like [`check_seqid`](Self::check_seqid), for an OPEN.
    pub(crate) fn check_open_seqid(&self, request: &Numbered) -> SeqidCheck {
        match self.check_seqid(request) {
            SeqidCheck::Misordered if self.standing != Standing::Confirmed => SeqidCheck::Execute,
            check => check,
        }
    }

    pub(crate) fn executed(&mut self, request: Numbered, result: Bytes, current: Option<Node>) {
        self.request = Some(request);
        (self.result, self.current) = (result, current);
    }

    /// Stores the open that the last request closed. Returns the one that the request before it had
    /// closed.
    pub(crate) fn set_closed(&mut self, closed: Option<StateKey>) -> Option<StateKey> {
        std::mem::replace(&mut self.closed, closed)
    }

    pub(crate) fn standing(&self) -> Standing {
        self.standing
    }

    pub(crate) fn set_standing(&mut self, standing: Standing) {
        self.standing = standing;
    }
}

/// The next seqid; wraps around to 0.
fn next(seqid: u32) -> u32 {
    seqid.wrapping_add(1)
}

type Cell = Arc<tokio::sync::Mutex<LastRequest>>;

/// The owners of all clients of minor version 0.
#[derive(Debug)]
pub(crate) struct OwnerTable {
    owners: Mutex<Owners>,
    max: usize,
    max_bytes: usize,
}

/// Bytes charged for an owner in addition to its name and result.
const OWNER_BYTES: usize = 512;

/// An owner in the table.
#[derive(Debug)]
struct OwnerEntry {
    cell: Cell,
    /// When it was last used.
    used: Duration,
    /// Bytes charged for it.
    bytes: usize,
}

#[derive(Debug, Default)]
struct Owners {
    cells: HashMap<(LockOwner, OwnerKind), OwnerEntry>,
    /// Bytes charged for the owners of each client.
    bytes: Tally,
    /// How many new owners were refused because the table was full.
    refused: u64,
    /// For each open that its owner's last request closed: the owner, and the principal that sent
    /// the request. The open is gone, but the CLOSE may be retransmitted.
    closed: HashMap<StateKey, (LockOwner, Principal)>,
    /// Clients of which an open-owner was forgotten.
    have_forgotten: HashSet<ClientId>,
    looked_at: Duration,
}

impl Owners {
    /// Adjusts the charges: owners of a client now count for `after` bytes instead of `before`.
    fn count(&mut self, client: ClientId, before: usize, after: usize) {
        // The client holds something already, so it has its address.
        let account = Account { client, address: None };
        self.bytes.add(account, after.saturating_sub(before));
        self.bytes.subtract(client, before.saturating_sub(after));
    }
}

impl OwnerTable {
    /// An empty table for at most `max` owners of `max_bytes` in all.
    pub(crate) fn new(max: usize, max_bytes: usize) -> Self {
        Self { owners: Mutex::default(), max, max_bytes }
    }

    /// The use of the limit on the bytes of owners.
    pub(crate) fn limit_use(&self) -> LimitUse {
        let owners = self.owners.lock();
        let (limit, used) = (self.max_bytes as u64, owners.bytes.total() as u64);
        LimitUse { name: "owner_bytes", limit, used, refused: owners.refused }
    }

    /// The cell of an owner, which the caller keeps locked while it executes the owner's request.
    /// `None` if the table has no space for a new owner.
    pub(crate) fn cell(
        &self,
        owner: LockOwner,
        kind: OwnerKind,
        address: Option<IpAddr>,
        now: Duration,
    ) -> Option<Cell> {
        // Copied, because a slice would keep the whole request in memory.
        let owner = LockOwner { name: Bytes::copy_from_slice(&owner.name), ..owner };
        let owners = &mut *self.owners.lock();
        let key = (owner, kind);
        if let Some(known) = owners.cells.get_mut(&key) {
            known.used = now;
            return Some(known.cell.clone());
        }
        let (client, bytes) = (key.0.client, key.0.name.len() + OWNER_BYTES);
        let account = Account { client, address };
        let allowed = owners.bytes.allowance(self.max_bytes, account, &Removable::default());
        if owners.cells.len() >= self.max || bytes > allowed {
            owners.refused += 1;
            return None;
        }
        owners.bytes.add(account, bytes);
        let cell = Cell::default();
        owners.cells.insert(key, OwnerEntry { cell: cell.clone(), used: now, bytes });
        Some(cell)
    }

    /// Charges an owner for its cached result.
    pub(crate) fn keeps(&self, owner: &LockOwner, kind: OwnerKind, result_bytes: usize) {
        let owners = &mut *self.owners.lock();
        if let Some(known) = owners.cells.get_mut(&(owner.clone(), kind)) {
            let bytes = owner.name.len() + OWNER_BYTES + result_bytes;
            let before = std::mem::replace(&mut known.bytes, bytes);
            owners.count(owner.client, before, bytes);
        }
    }

    /// Whether a new open-owner of a client may be a forgotten one.
    pub(crate) fn must_confirm(&self, client: ClientId) -> bool {
        self.owners.lock().have_forgotten.contains(&client)
    }

    /// The open-owner whose last request closed this open, and the principal that sent the request.
    pub(crate) fn closed_by(&self, key: StateKey) -> Option<(LockOwner, Principal)> {
        self.owners.lock().closed.get(&key).cloned()
    }

    /// Notes which open the last request of an owner closed, and which principal `by` sent it.
    /// `before` is the open that the owner's request before it had closed.
    pub(crate) fn closed(
        &self,
        (owner, by): (LockOwner, Principal),
        key: Option<StateKey>,
        before: Option<StateKey>,
    ) {
        let closed = &mut self.owners.lock().closed;
        if let Some(before) = before {
            closed.remove(&before);
        }
        if let Some(key) = key {
            closed.insert(key, (owner, by));
        }
    }

    /// Forgets a lock-owner.
    pub(crate) fn forget(&self, owner: &LockOwner) {
        let owners = &mut *self.owners.lock();
        if let Some(gone) = owners.cells.remove(&(owner.clone(), OwnerKind::Lock)) {
            owners.count(owner.client, gone.bytes, 0);
        }
    }

    /// Periodic: forgets owners that have had no state for a `lease`, and those of clients that are
    /// gone.
    pub(crate) fn sweep<F: Clone>(&self, state: &Mutex<State<F>>, lease: Duration, now: Duration) {
        let owners = &mut *self.owners.lock();
        if now.saturating_sub(owners.looked_at) < lease / 4 {
            return;
        }
        owners.looked_at = now;
        let Owners { cells, closed, have_forgotten, .. } = owners;
        let mut gone = Vec::new();
        let is_idle = |cell: &Cell, used: Duration| {
            Arc::strong_count(cell) == 1 && now.saturating_sub(used) >= lease
        };
        let idle = cells.iter().filter(|(_, known)| is_idle(&known.cell, known.used));
        let mut in_use: HashMap<ClientId, Option<HashSet<(OwnerName, OwnerKind)>>> =
            idle.map(|((owner, _), _)| (owner.client, None)).collect();
        let state = state.lock();
        for (client, names) in &mut in_use {
            *names = state.clients.get(*client).is_ok().then(|| {
                let opens = state.open_owners(*client).map(|name| (name.clone(), OwnerKind::Open));
                let locks = state.lock_owners(*client).map(|name| (name.clone(), OwnerKind::Lock));
                opens.chain(locks).collect()
            });
        }
        have_forgotten.retain(|client| state.clients.get(*client).is_ok());
        drop(state);
        cells.retain(|(owner, kind), OwnerEntry { cell, used, bytes }| {
            if !is_idle(cell, *used) {
                return true;
            }
            match in_use.get(&owner.client) {
                Some(Some(names)) if names.contains(&(owner.name.clone(), *kind)) => {
                    // It still has state: check it again after a lease.
                    *used = now;
                    true
                }
                of_client => {
                    if *kind == OwnerKind::Open && of_client.is_some_and(Option::is_some) {
                        have_forgotten.insert(owner.client);
                    }
                    gone.push((owner.client, *bytes));
                    false
                }
            }
        });
        closed.retain(|_, (owner, _)| cells.contains_key(&(owner.clone(), OwnerKind::Open)));
        gone.into_iter().for_each(|(client, bytes)| owners.count(client, bytes, 0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::{Grace, Limits};

    const LEASE: Duration = Duration::from_secs(8);

    fn numbered(seqid: u32) -> Numbered {
        Numbered { op: OpCode::Open, seqid, digest: 7, current: None }
    }

    #[test]
    fn requests_of_an_owner_are_executed_once_and_in_order() {
        let mut last = LastRequest::default();
        assert_eq!(last.check_seqid(&numbered(41)), SeqidCheck::Execute);
        last.executed(numbered(41), Bytes::from_static(b"done"), None);
        assert_eq!(
            last.check_seqid(&numbered(41)),
            SeqidCheck::Replay(Bytes::from_static(b"done"), None)
        );
        let node = Node { export: 1, id: weir_vfs::FileId { ino: 1, generation: 1 } };
        for other in [
            Numbered { op: OpCode::Close, ..numbered(41) },
            Numbered { digest: 8, ..numbered(41) },
            Numbered { current: Some(node), ..numbered(41) },
        ] {
            assert_eq!(last.check_seqid(&other), SeqidCheck::Misordered, "{other:?}");
        }
        assert_eq!(last.check_seqid(&numbered(42)), SeqidCheck::Execute);
        assert_eq!(last.check_seqid(&numbered(43)), SeqidCheck::Misordered);
        last.executed(numbered(u32::MAX), Bytes::new(), None);
        assert_eq!(last.check_seqid(&numbered(0)), SeqidCheck::Execute);
    }

    #[test]
    fn an_unconfirmed_owner_may_start_with_any_seqid() {
        let mut last = LastRequest::default();
        last.executed(numbered(41), Bytes::new(), None);
        last.set_standing(Standing::Unconfirmed(StateKey { run: 1, number: 1 }));
        assert_eq!(last.check_open_seqid(&numbered(7)), SeqidCheck::Execute);
        assert_eq!(last.check_open_seqid(&numbered(41)), SeqidCheck::Replay(Bytes::new(), None));
        assert_eq!(last.check_seqid(&numbered(7)), SeqidCheck::Misordered);
        last.set_standing(Standing::Confirmed);
        assert_eq!(last.check_open_seqid(&numbered(7)), SeqidCheck::Misordered);
    }

    fn owner(client: ClientId) -> LockOwner {
        LockOwner { client, name: Bytes::new() }
    }

    #[test]
    fn after_idle_owners_are_forgotten_new_owners_of_their_client_must_confirm() {
        let state = Mutex::new(State::<()>::new(
            crate::state::Ids::new(1, [7; 32]),
            Limits::default(),
            Grace::default(),
        ));
        let name = crate::state::Owner { sessions: false, name: Bytes::new() };
        let principal = crate::state::Principal { flavor: 1, uid: 0 };
        let client = state.lock().clients.insert(name, [0; 8], principal, Duration::ZERO).unwrap();
        let gone = ClientId(9);
        let table = OwnerTable::new(4, 1 << 20);
        let cell = |client, kind, now| table.cell(owner(client), kind, None, now).unwrap();
        for client in [client, gone] {
            for kind in [OwnerKind::Open, OwnerKind::Lock] {
                assert!(Arc::ptr_eq(&cell(client, kind, LEASE), &cell(client, kind, LEASE)));
            }
        }
        assert!(table.cell(owner(ClientId(7)), OwnerKind::Open, None, LEASE).is_none(), "too many");
        let busy = cell(client, OwnerKind::Open, LEASE);
        table.sweep(&state, LEASE, LEASE * 2);
        assert_eq!(table.owners.lock().cells.len(), 1);
        assert!(!table.must_confirm(client));
        drop(busy);
        table.sweep(&state, LEASE, LEASE * 2);
        assert_eq!(table.owners.lock().cells.len(), 1, "too early to look again");
        table.sweep(&state, LEASE, LEASE * 3);
        assert!(table.owners.lock().cells.is_empty());
        assert!(table.must_confirm(client) && !table.must_confirm(gone));
    }

    #[test]
    fn clients_of_one_address_share_the_bytes_of_owners() {
        let table = OwnerTable::new(1000, 100 * OWNER_BYTES);
        let made = |clients: std::ops::Range<u64>, address: &str| {
            let address = Some(address.parse().unwrap());
            let cell = |id| table.cell(owner(ClientId(id)), OwnerKind::Open, address, LEASE);
            clients.filter(|&id| cell(id).is_some()).count()
        };
        assert_eq!(made(0..200, "192.0.2.1"), 50);
        assert_eq!(made(200..400, "192.0.2.2"), 25);
    }

    #[test]
    fn a_client_with_many_owners_leaves_room_for_other_clients() {
        let table = OwnerTable::new(1000, 100 * OWNER_BYTES);
        let named = |client, name: u32| {
            let name = Bytes::copy_from_slice(&name.to_be_bytes());
            LockOwner { client: ClientId(client), name }
        };
        let cell = |owner| table.cell(owner, OwnerKind::Lock, None, LEASE);
        let made = (0..).take_while(|&i| cell(named(1, i)).is_some()).count();
        assert_eq!(made, 49, "their names count, too");
        assert!(cell(named(1, 0)).is_some(), "that one is known");
        assert!(cell(named(2, 0)).is_some());
        table.keeps(&named(2, 0), OwnerKind::Lock, 30 * OWNER_BYTES);
        assert!(cell(named(2, 1)).is_none(), "results count, too");
        assert_eq!(table.limit_use().refused, 2);
        for i in 0..50 {
            table.forget(&named(1, i));
        }
        assert!(cell(named(2, 1)).is_some());
        table.forget(&named(2, 0));
        table.forget(&named(2, 1));
        assert_eq!(table.limit_use().used, 0);
    }
}
