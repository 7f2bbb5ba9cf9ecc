//! What the open connections have carried.
//!
//! The table is locked when a connection begins or ends, and by reports; a connection counts in its own
//! counters, which no other task writes.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The open connections by number.
#[derive(Debug, Default)]
pub(crate) struct OpenConnections {
    open: Mutex<HashMap<u64, Arc<Counts>>>,
}

#[derive(Debug)]
struct Counts {
    addr: SocketAddr,
    calls: AtomicU64,
    received: AtomicU64,
    sent: AtomicU64,
}

/// What an open connection has carried since it began.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionCounts {
    /// A number that no other connection of this run has.
    pub id: u64,
    /// The address of the client.
    pub addr: SocketAddr,
    /// Calls of the client.
    pub calls: u64,
    /// Bytes that the client sent.
    pub received_bytes: u64,
    /// Bytes that it was sent.
    pub sent_bytes: u64,
}

impl OpenConnections {
    /// Enters a connection, until the returned value is dropped.
    pub(crate) fn enter(self: &Arc<Self>, id: u64, addr: SocketAddr) -> Traffic {
        let zero = || AtomicU64::new(0);
        let counts = Arc::new(Counts { addr, calls: zero(), received: zero(), sent: zero() });
        self.open.lock().insert(id, counts.clone());
        Traffic { id, counts, table: self.clone() }
    }

    /// The connections that have carried the most bytes, at most `most` of them.
    pub(crate) fn busiest(&self, most: usize) -> Vec<ConnectionCounts> {
        let mut all: Vec<_> = self.open.lock().iter().map(|(&id, counts)| counts.of(id)).collect();
        let bytes = |one: &ConnectionCounts| one.received_bytes.saturating_add(one.sent_bytes);
        all.sort_unstable_by_key(|one| (std::cmp::Reverse(bytes(one)), one.id));
        all.truncate(most);
        all
    }
}

impl Counts {
    fn of(&self, id: u64) -> ConnectionCounts {
        ConnectionCounts {
            id,
            addr: self.addr,
            calls: self.calls.load(Relaxed),
            received_bytes: self.received.load(Relaxed),
            sent_bytes: self.sent.load(Relaxed),
        }
    }
}

/// The counters of one connection.
#[derive(Debug)]
pub(crate) struct Traffic {
    id: u64,
    counts: Arc<Counts>,
    table: Arc<OpenConnections>,
}

impl Traffic {
    /// Counts a call.
    pub(crate) fn called(&mut self) {
        add(&self.counts.calls, 1);
    }

    /// Counts bytes that the client sent.
    pub(crate) fn received(&mut self, bytes: usize) {
        add(&self.counts.received, bytes);
    }

    /// Counts bytes that the client was sent.
    pub(crate) fn sent(&mut self, bytes: usize) {
        add(&self.counts.sent, bytes);
    }
}

/// Adds to a counter that this task alone writes.
fn add(counter: &AtomicU64, n: usize) {
    counter.store(counter.load(Relaxed) + n as u64, Relaxed);
}

impl Drop for Traffic {
    fn drop(&mut self) {
        self.table.open.lock().remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_connections_are_told_by_their_traffic() {
        let table = Arc::new(OpenConnections::default());
        let addr = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let mut quiet = table.enter(1, addr(1000));
        let mut busy = table.enter(2, addr(1001));
        quiet.received(10);
        busy.called();
        busy.received(40);
        busy.sent(4096);
        let busiest = ConnectionCounts {
            id: 2,
            addr: addr(1001),
            calls: 1,
            received_bytes: 40,
            sent_bytes: 4096,
        };
        assert_eq!(table.busiest(1), [busiest]);
        drop(busy);
        let left: Vec<_> = table.busiest(9).into_iter().map(|one| one.id).collect();
        assert_eq!(left, [1]);
    }
}
