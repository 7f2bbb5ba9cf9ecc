//! The delegations.

use crate::handle::Node;
use crate::state::client::{ClientId, Principal};
use crate::state::session::SessionId;
use crate::state::share::Share;
use crate::state::stateid::{StateId, StateKey};
use crate::state::tables::delegation_filter::Filter;
use hashlink::LruCache;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

/// For so long after a recall a file is not delegated.
pub(in crate::state) const CONTENDED: Duration = Duration::from_secs(30);
/// Files of which it is remembered that they were recalled, or who opened them.
pub(in crate::state) const REMEMBERED: usize = 16 << 10;

/// What a delegation lets its client do on its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DelegationKind {
    /// Open to read.
    Read,
    /// Open to read and write.
    Write,
}

/// What a call does to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Touch {
    /// Reads data or attributes: breaks a write delegation.
    Read,
    /// Changes data, attributes or names: breaks any delegation.
    Change,
}

impl DelegationKind {
    pub(in crate::state) fn is_broken_by(self, touch: Touch) -> bool {
        self == Self::Write || touch == Touch::Change
    }
}

/// What a client wants of delegations with an open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// The server decides (`OPEN4_SHARE_ACCESS_WANT_NO_PREFERENCE`).
    NoPreference,
    /// A read delegation.
    Read,
    /// A write delegation.
    Write,
    /// Either.
    Any,
}

/// Why a file is not delegated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhyNot {
    /// Others use it, or did lately.
    Contention,
    /// Too many are out, none are given at all, or the client cannot be called back.
    Resource,
    /// The client has one of this kind, or a better one.
    HasOne,
    /// The client has a read delegation and wants a write delegation.
    Upgrade,
    /// It would not pay yet: the file was opened once.
    NotYet,
}

/// A request of a client, to be named in a callback that goes with what it did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Referring {
    /// The session.
    pub session: SessionId,
    /// Its slot.
    pub slot: u32,
    /// The slot's sequence number.
    pub sequence: u32,
}

/// A delegation that is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Ask {
    /// Whose.
    pub client: ClientId,
    /// The file.
    pub node: Node,
    /// What the file was opened for.
    pub share: Share,
    /// What the client wants.
    pub wanted: Wanted,
}

/// A delegation to be given.
#[derive(Clone, Debug)]
pub struct Grant<F> {
    /// To whom, and of what.
    pub ask: Ask,
    /// A handle to read with, and to write with if it is a write delegation.
    pub file: F,
    /// The file's change attribute, as the client is told.
    pub change: u64,
    /// The request that it is given with.
    pub referring: Option<Referring>,
    /// Who opened the file.
    pub by: Principal,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::state) enum Phase {
    Held,
    Recalled { since: Duration },
}

#[derive(Clone, Debug)]
pub(in crate::state) struct Delegation<F> {
    pub(in crate::state) client: ClientId,
    pub(in crate::state) node: Node,
    pub(in crate::state) kind: DelegationKind,
    pub(in crate::state) phase: Phase,
    pub(in crate::state) file: F,
    /// The change attribute that the client was told; `None` after it changed the file itself.
    pub(in crate::state) change: Option<u64>,
    /// The highest change attribute that others were told of what the client has not written yet.
    pub(in crate::state) told: u64,
    pub(in crate::state) referring: Option<Referring>,
    pub(in crate::state) by: Principal,
}

/// All delegations.
#[derive(Debug)]
pub(in crate::state) struct Delegations<F> {
    pub(in crate::state) by_key: BTreeMap<StateKey, Delegation<F>>,
    pub(in crate::state) by_node: HashMap<Node, Vec<StateKey>>,
    pub(in crate::state) filter: Arc<Filter>,
    pub(in crate::state) contended: LruCache<Node, Duration>,
    pub(in crate::state) opened: LruCache<(Node, ClientId, DelegationKind), ()>,
    /// Where the last look at delegated files ended.
    pub(in crate::state) looked_at: Option<StateKey>,
}

impl<F> Default for Delegations<F> {
    fn default() -> Self {
        Self {
            by_key: BTreeMap::new(),
            by_node: HashMap::new(),
            filter: Arc::default(),
            contended: LruCache::new(REMEMBERED),
            opened: LruCache::new(REMEMBERED),
            looked_at: None,
        }
    }
}

impl<F> Delegations<F> {
    pub(in crate::state) fn of(
        &self,
        node: Node,
    ) -> impl Iterator<Item = (StateKey, &Delegation<F>)> {
        let keys = self.by_node.get(&node).map_or(&[][..], |keys| keys);
        keys.iter().filter_map(|&key| Some((key, self.by_key.get(&key)?)))
    }

    pub(in crate::state) fn held_by(&self, client: ClientId, node: Node) -> Option<StateKey> {
        self.of(node).find(|(_, d)| d.client == client).map(|(key, _)| key)
    }

    /// Whether a delegation of another client than `by` is in the way.
    pub(in crate::state) fn conflict(
        &self,
        node: Node,
        touch: Touch,
        by: Option<ClientId>,
    ) -> bool {
        self.of(node).any(|(_, d)| Some(d.client) != by && d.kind.is_broken_by(touch))
    }

    /// Whose a delegation is.
    pub(in crate::state) fn client_of(&self, key: StateKey) -> Option<ClientId> {
        self.by_key.get(&key).map(|d| d.client)
    }

    /// Who opened the file that was delegated then.
    pub(in crate::state) fn holder(&self, key: StateKey) -> Option<&Principal> {
        self.by_key.get(&key).map(|d| &d.by)
    }

    /// The client changes a file itself that it has a read delegation of.
    pub(in crate::state) fn changed_by(&mut self, client: ClientId, node: Node) {
        if let Some(key) = self.held_by(client, node)
            && let Some(delegation) = self.by_key.get_mut(&key)
            && delegation.kind == DelegationKind::Read
        {
            delegation.change = None;
        }
    }

    /// Takes a delegation off the file.
    pub(in crate::state) fn lift(&mut self, key: StateKey) {
        let Some(d) = self.by_key.get(&key) else { return };
        let Some(keys) = self.by_node.get_mut(&d.node) else { return };
        let before = keys.len();
        keys.retain(|k| *k != key);
        if keys.len() < before {
            self.filter.remove(d.node, d.kind);
        }
        if keys.is_empty() {
            self.by_node.remove(&d.node);
        }
    }
}

/// What is in the way, and whom to tell.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recalled {
    /// Delegations whose clients are to be told now.
    pub tell: Vec<StateKey>,
    /// Some are in the way still.
    pub pending: bool,
}

/// A delegation that its client is to give back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    /// Whose.
    pub client: ClientId,
    /// Which.
    pub id: StateId,
    /// Of which file.
    pub node: Node,
    /// The request that it was given with.
    pub referring: Option<Referring>,
}
