//! Minor version 0: each request of an owner once, in order (RFC 7530 section 9.1.7).
//!
//! 1. Requests of one owner run one at a time; those of different owners do not wait for each
//!    other.
//! 2. A request whose number is the last one's gets the last one's reply; only the next number is
//!    executed.
//! 3. An owner is forgotten with its client.

use crate::handle::Node;
use crate::state::{ClientId, LockOwner};
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

/// Opens and locks have owners of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    Open,
    Lock,
}

/// What is remembered of an owner's last request.
#[derive(Debug, Default)]
pub(crate) struct Last {
    seqid: Option<u32>,
    result: Bytes,
    current: Option<Node>,
}

/// Whether a request of an owner is to be executed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// It is new.
    Execute,
    /// It was executed: its result, and the filehandle that it left.
    Replay(Bytes, Option<Node>),
    /// It is neither.
    Misordered,
}

impl Last {
    pub(crate) fn turn(&self, seqid: u32) -> Turn {
        match self.seqid {
            None => Turn::Execute,
            Some(last) if seqid == next(last) => Turn::Execute,
            Some(last) if seqid == last => Turn::Replay(self.result.clone(), self.current),
            Some(_) => Turn::Misordered,
        }
    }

    pub(crate) fn executed(&mut self, seqid: u32, result: Bytes, current: Option<Node>) {
        *self = Self { seqid: Some(seqid), result, current };
    }
}

/// The number after; 0 comes after the highest.
fn next(seqid: u32) -> u32 {
    seqid.wrapping_add(1)
}

type Owners = HashMap<(LockOwner, Kind), Arc<tokio::sync::Mutex<Last>>>;

/// The owners of all clients of minor version 0.
#[derive(Debug, Default)]
pub(crate) struct OwnerTable {
    owners: Mutex<Owners>,
}

impl OwnerTable {
    /// The cell of an owner; lock it for as long as its request is executed.
    pub(crate) fn cell(&self, owner: LockOwner, kind: Kind) -> Arc<tokio::sync::Mutex<Last>> {
        self.owners.lock().entry((owner, kind)).or_default().clone()
    }

    /// Forgets one owner.
    pub(crate) fn forget(&self, owner: &LockOwner, kind: Kind) {
        self.owners.lock().remove(&(owner.clone(), kind));
    }

    /// Forgets owners of clients that are gone.
    pub(crate) fn retain(&self, is_known: impl Fn(ClientId) -> bool) {
        self.owners.lock().retain(|(owner, _), _| is_known(owner.client));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_executed_once_and_in_order() {
        let mut last = Last::default();
        assert_eq!(last.turn(41), Turn::Execute);
        last.executed(41, Bytes::from_static(b"done"), None);
        assert_eq!(last.turn(41), Turn::Replay(Bytes::from_static(b"done"), None));
        assert_eq!(last.turn(42), Turn::Execute);
        assert_eq!(last.turn(43), Turn::Misordered);
        last.executed(u32::MAX, Bytes::new(), None);
        assert_eq!(last.turn(0), Turn::Execute);
    }

    #[test]
    fn owners_have_cells_of_their_own_and_go_with_their_client() {
        let table = OwnerTable::default();
        let owner = |client| LockOwner { client: ClientId(client), name: Bytes::new() };
        let cell = table.cell(owner(1), Kind::Open);
        assert!(Arc::ptr_eq(&cell, &table.cell(owner(1), Kind::Open)));
        assert!(!Arc::ptr_eq(&cell, &table.cell(owner(1), Kind::Lock)));
        table.retain(|client| client != ClientId(1));
        assert!(!Arc::ptr_eq(&cell, &table.cell(owner(1), Kind::Open)));
    }
}
