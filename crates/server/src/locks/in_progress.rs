//! Requests of NLM hosts for locks and share reservations that the server is executing.
//!
//! Such a request may wait, for example for a recall, and the release of the lock may overtake it: the requesting
//! process is killed, and its kernel releases what the process may have got. The request must not succeed after that,
//! because no process would release the lock.
//!
//! 1. A request is listed before it waits for anything, so a release that arrives later by the same connection finds
//!    it.
//! 2. A release first marks the requests that it ends, and then takes the lock of the state. A request checks its
//!    mark under that lock, in the transition that acquires the lock. So either the request sees the mark, or the
//!    release frees what the request has acquired.
//! 3. A marked request is answered DENIED_GRACE_PERIOD, on which a host retries, because its process may live: another
//!    thread of it has closed a descriptor of the file, or the release came first and its execution was delayed. For a
//!    killed process the host does not retry.

use crate::handle::Node;
use crate::state::{NlmOwner, Range};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What a request would acquire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    Lock { range: Range, exclusive: bool },
    Share,
}

type Key = (NlmOwner, Node);

#[derive(Debug)]
struct Request {
    wanted: Wanted,
    is_overtaken: Arc<AtomicBool>,
}

#[derive(Debug, Default)]
struct Requests {
    /// By the number of the request.
    of: HashMap<Key, HashMap<u64, Request>>,
    last_number: u64,
}

/// The requests of all hosts in progress.
#[derive(Debug, Default)]
pub(crate) struct RequestsInProgress {
    requests: Mutex<Requests>,
}

/// A request in progress; listed while it lives.
#[derive(Debug)]
pub(super) struct InProgress<'a> {
    all: &'a RequestsInProgress,
    key: Key,
    number: u64,
    is_overtaken: Arc<AtomicBool>,
}

impl RequestsInProgress {
    /// Lists a request.
    pub(super) fn begin(&self, owner: NlmOwner, node: Node, wanted: Wanted) -> InProgress<'_> {
        let (key, is_overtaken) = ((owner, node), Arc::<AtomicBool>::default());
        let mut requests = self.requests.lock();
        requests.last_number += 1;
        let number = requests.last_number;
        let request = Request { wanted, is_overtaken: is_overtaken.clone() };
        requests.of.entry(key.clone()).or_default().insert(number, request);
        InProgress { all: self, key, number, is_overtaken }
    }

    /// Marks the requests of an owner that a release ends. The caller releases afterwards.
    pub(super) fn overtake(&self, owner: &NlmOwner, node: Node, ends: impl Fn(Wanted) -> bool) {
        let requests = self.requests.lock();
        let of_owner =
            requests.of.get(&(owner.clone(), node)).into_iter().flat_map(|of| of.values());
        of_owner.filter(|request| ends(request.wanted)).for_each(Request::overtake);
    }

    /// Marks all requests of a host. The caller releases what the host holds afterwards.
    pub(super) fn overtake_all_of(&self, host: IpAddr) {
        let requests = self.requests.lock();
        let of_host = requests.of.iter().filter(|((owner, _), _)| owner.host == host);
        of_host.flat_map(|(_, of)| of.values()).for_each(Request::overtake);
    }

    /// Whether a request of a host is in progress.
    pub(super) fn has_any_of(&self, host: IpAddr) -> bool {
        self.requests.lock().of.keys().any(|(owner, _)| owner.host == host)
    }
}

impl Request {
    fn overtake(&self) {
        // Ordered by the lock of the state.
        self.is_overtaken.store(true, Ordering::Relaxed);
    }
}

impl InProgress<'_> {
    /// Whether what the request wants has been released. A caller that acquires it then holds the lock of the state.
    pub(super) fn is_overtaken(&self) -> bool {
        self.is_overtaken.load(Ordering::Relaxed)
    }
}

impl Drop for InProgress<'_> {
    fn drop(&mut self) {
        let mut requests = self.all.requests.lock();
        if let Some(of_owner) = requests.of.get_mut(&self.key) {
            of_owner.remove(&self.number);
            if of_owner.is_empty() {
                requests.of.remove(&self.key);
            }
        }
    }
}
