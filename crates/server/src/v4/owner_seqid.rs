//! Owner sequence numbers of minor version 0: each request of an owner is executed once, in order
//! (RFC 7530 section 9.1.7).
//!
//! 1. Requests of one owner run one at a time; those of different owners do not wait for each
//!    other.
//! 2. A request with the seqid and the operation of the owner's last one gets the last reply again,
//!    even a CLOSE whose open is gone. Otherwise, only the next seqid is executed.
//! 3. An owner is forgotten with its client, or when it has had no state for a lease. Once a client
//!    has lost an open-owner this way, its new open-owners must confirm their first OPEN, which may
//!    be a retransmission of a forgotten owner's (RFC 7530 section 16.18.5). Until an owner has
//!    confirmed, OPEN accepts any seqid.
//! 4. The number of owners is limited, and so are the bytes of their names and cached results. A
//!    client may take as much of the bytes as it leaves free. A new owner that does not fit is
//!    refused.

use crate::admission::{LimitUse, allowance};
use crate::handle::Node;
use crate::state::{ClientId, LockOwner, OwnerName, Principal, State, StateKey};
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;
use weir_nfs::v4::OpCode;

/// The kind of an owner. Open-owners and lock-owners have separate sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    Open,
    Lock,
}

/// The last request of an owner.
#[derive(Debug, Default)]
pub(crate) struct Last {
    /// Its seqid; `None` before the first request.
    seqid: Option<u32>,
    /// Its operation.
    op: Option<OpCode>,
    /// Its encoded result.
    result: Bytes,
    /// The current filehandle after it.
    current: Option<Node>,
    standing: Standing,
    /// The open that it closed, if it was a CLOSE.
    closed: Option<StateKey>,
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
pub(crate) enum Turn {
    /// Execute it.
    Execute,
    /// It was executed before. Holds its result, and the current filehandle after it.
    Replay(Bytes, Option<Node>),
    /// Reject it: it is neither the next request nor the last one.
    Misordered,
}

impl Last {
    pub(crate) fn turn(&self, op: OpCode, seqid: u32) -> Turn {
        match self.seqid {
            None => Turn::Execute,
            Some(last) if seqid == next(last) => Turn::Execute,
            Some(last) if seqid == last && self.op == Some(op) => {
                Turn::Replay(self.result.clone(), self.current)
            }
            Some(_) => Turn::Misordered,
        }
    }

    /// Like [`turn`](Self::turn), for an OPEN.
    pub(crate) fn turn_to_open(&self, op: OpCode, seqid: u32) -> Turn {
        match self.turn(op, seqid) {
            Turn::Misordered if self.standing != Standing::Confirmed => Turn::Execute,
            turn => turn,
        }
    }

    pub(crate) fn executed(
        &mut self,
        (op, seqid): (OpCode, u32),
        result: Bytes,
        current: Option<Node>,
    ) {
        (self.op, self.seqid) = (Some(op), Some(seqid));
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

type Cell = Arc<tokio::sync::Mutex<Last>>;

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
struct Known {
    cell: Cell,
    /// When it was last used.
    used: Duration,
    /// Bytes charged for it.
    bytes: usize,
}

#[derive(Debug, Default)]
struct Owners {
    cells: HashMap<(LockOwner, Kind), Known>,
    /// Bytes charged for all owners, and for those of each client.
    bytes: usize,
    of_client: HashMap<ClientId, usize>,
    /// How many new owners were refused for lack of room.
    refused: u64,
    /// For each open that its owner's last request closed: the owner, and the principal that sent the
    /// request. The open is gone, but the CLOSE may be retransmitted.
    closed: HashMap<StateKey, (LockOwner, Principal)>,
    /// Clients of which an open-owner was forgotten.
    have_forgotten: HashSet<ClientId>,
    looked_at: Duration,
}

impl Owners {
    /// Adjusts the charges: owners of a client now count for `after` bytes instead of `before`.
    fn count(&mut self, client: ClientId, before: usize, after: usize) {
        self.bytes = self.bytes + after - before;
        let of_client = self.of_client.entry(client).or_default();
        *of_client = *of_client + after - before;
        if *of_client == 0 {
            self.of_client.remove(&client);
        }
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
        let (limit, used) = (self.max_bytes as u64, owners.bytes as u64);
        LimitUse { name: "owner_bytes", limit, used, refused: owners.refused }
    }

    /// The cell of an owner, which the caller keeps locked while it executes the owner's request.
    /// `None` if there is no room for a new owner.
    pub(crate) fn cell(&self, owner: LockOwner, kind: Kind, now: Duration) -> Option<Cell> {
        // Copied, because a slice would keep the whole request in memory.
        let owner = LockOwner { name: Bytes::copy_from_slice(&owner.name), ..owner };
        let owners = &mut *self.owners.lock();
        let key = (owner, kind);
        if let Some(known) = owners.cells.get_mut(&key) {
            known.used = now;
            return Some(known.cell.clone());
        }
        let (client, bytes) = (key.0.client, key.0.name.len() + OWNER_BYTES);
        let own = owners.of_client.get(&client).copied().unwrap_or(0);
        if owners.cells.len() >= self.max || bytes > allowance(self.max_bytes, owners.bytes, own) {
            owners.refused += 1;
            return None;
        }
        owners.count(client, 0, bytes);
        let cell = Cell::default();
        owners.cells.insert(key, Known { cell: cell.clone(), used: now, bytes });
        Some(cell)
    }

    /// Charges an owner for its cached result.
    pub(crate) fn keeps(&self, owner: &LockOwner, kind: Kind, result_bytes: usize) {
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
        if let Some(gone) = owners.cells.remove(&(owner.clone(), Kind::Lock)) {
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
        let mut in_use: HashMap<ClientId, Option<HashSet<(OwnerName, Kind)>>> =
            idle.map(|((owner, _), _)| (owner.client, None)).collect();
        let state = state.lock();
        for (client, names) in &mut in_use {
            *names = state.clients.get(*client).is_ok().then(|| {
                let opens = state.open_owners(*client).map(|name| (name.clone(), Kind::Open));
                let locks = state.lock_owners(*client).map(|name| (name.clone(), Kind::Lock));
                opens.chain(locks).collect()
            });
        }
        have_forgotten.retain(|client| state.clients.get(*client).is_ok());
        drop(state);
        cells.retain(|(owner, kind), Known { cell, used, bytes }| {
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
                    if *kind == Kind::Open && of_client.is_some_and(Option::is_some) {
                        have_forgotten.insert(owner.client);
                    }
                    gone.push((owner.client, *bytes));
                    false
                }
            }
        });
        closed.retain(|_, (owner, _)| cells.contains_key(&(owner.clone(), Kind::Open)));
        gone.into_iter().for_each(|(client, bytes)| owners.count(client, bytes, 0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::{Grace, Limits};

    const LEASE: Duration = Duration::from_secs(8);
    const OP: OpCode = OpCode::Open;

    #[test]
    fn a_request_is_executed_once_and_in_order() {
        let mut last = Last::default();
        assert_eq!(last.turn(OP, 41), Turn::Execute);
        last.executed((OP, 41), Bytes::from_static(b"done"), None);
        assert_eq!(last.turn(OP, 41), Turn::Replay(Bytes::from_static(b"done"), None));
        assert_eq!(last.turn(OpCode::Close, 41), Turn::Misordered);
        assert_eq!(last.turn(OP, 42), Turn::Execute);
        assert_eq!(last.turn(OP, 43), Turn::Misordered);
        last.executed((OP, u32::MAX), Bytes::new(), None);
        assert_eq!(last.turn(OP, 0), Turn::Execute);
    }

    #[test]
    fn any_number_begins_an_owner_that_has_not_confirmed() {
        let mut last = Last::default();
        last.executed((OP, 41), Bytes::new(), None);
        last.set_standing(Standing::Unconfirmed(StateKey { run: 1, number: 1 }));
        assert_eq!(last.turn_to_open(OP, 7), Turn::Execute);
        assert_eq!(last.turn_to_open(OP, 41), Turn::Replay(Bytes::new(), None));
        assert_eq!(last.turn(OP, 7), Turn::Misordered);
        last.set_standing(Standing::Confirmed);
        assert_eq!(last.turn_to_open(OP, 7), Turn::Misordered);
    }

    fn owner(client: ClientId) -> LockOwner {
        LockOwner { client, name: Bytes::new() }
    }

    #[test]
    fn idle_owners_are_forgotten_and_new_ones_of_their_client_have_to_confirm() {
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
        let cell = |client, kind, now| table.cell(owner(client), kind, now).unwrap();
        for client in [client, gone] {
            for kind in [Kind::Open, Kind::Lock] {
                assert!(Arc::ptr_eq(&cell(client, kind, LEASE), &cell(client, kind, LEASE)));
            }
        }
        assert!(table.cell(owner(ClientId(7)), Kind::Open, LEASE).is_none(), "too many");
        let busy = cell(client, Kind::Open, LEASE);
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
    fn a_client_with_many_owners_leaves_room_for_those_of_others() {
        let table = OwnerTable::new(1000, 100 * OWNER_BYTES);
        let named = |client, name: u32| {
            let name = Bytes::copy_from_slice(&name.to_be_bytes());
            LockOwner { client: ClientId(client), name }
        };
        let cell = |owner| table.cell(owner, Kind::Lock, LEASE);
        let made = (0..).take_while(|&i| cell(named(1, i)).is_some()).count();
        assert_eq!(made, 49, "their names count, too");
        assert!(cell(named(1, 0)).is_some(), "that one is known");
        assert!(cell(named(2, 0)).is_some());
        table.keeps(&named(2, 0), Kind::Lock, 30 * OWNER_BYTES);
        assert!(cell(named(2, 1)).is_none(), "results count, too");
        assert_eq!(table.limit_use().refused, 2);
        for i in 0..50 {
            table.forget(&named(1, i));
        }
        assert!(cell(named(2, 1)).is_some());
        table.forget(&named(2, 0));
        table.forget(&named(2, 1));
        assert_eq!(table.limit_use().used, 0);
        assert!(table.owners.lock().of_client.is_empty());
    }
}
