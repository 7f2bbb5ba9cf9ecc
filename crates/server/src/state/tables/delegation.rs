//! The delegations.

use crate::handle::Node;
use crate::state::client::{ClientId, Principal};
use crate::state::ids::SessionId;
use crate::state::share::Share;
use crate::state::stateid::{StateId, StateKey};
use crate::state::tables::delegation_filter::Filter;
use crate::state::tables::open::WriteInProgress;
use hashlink::LruCache;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use weir_vfs::Access;

/// How long after a recall a file is not delegated.
pub(in crate::state) const CONTENDED: Duration = Duration::from_secs(30);
/// Files whose recall, or whose openers, are remembered.
pub(in crate::state) const REMEMBERED: usize = 16 << 10;

/// What a delegation lets its client do on its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum DelegationKind {
    /// Open to read.
    Read,
    /// Open to read and write.
    Write,
}

/// How a call affects a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Touch {
    /// Reads data or attributes: breaks a write delegation.
    Read,
    /// Changes data, attributes or names: breaks any delegation.
    Change,
}

impl DelegationKind {
    /// What its client may do on its own.
    pub(crate) fn access(self) -> Access {
        match self {
            Self::Read => Access::READ,
            Self::Write => Access::READ | Access::WRITE,
        }
    }

    pub(in crate::state) fn is_broken_by(self, touch: Touch) -> bool {
        self == Self::Write || touch == Touch::Change
    }
}

/// Which delegation a client asks for with an open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
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
pub(crate) enum WhyNot {
    /// Other clients use the file, or did recently.
    Contention,
    /// The limit is reached, delegations are disabled, or the client cannot be called back.
    Resource,
    /// The client has a delegation of this kind or a stronger one.
    HasOne,
    /// The client has a read delegation and wants a write delegation.
    Upgrade,
    /// The client has a write delegation and wants a read delegation.
    Downgrade,
    /// Not worthwhile yet: this is the first open of the file by the client.
    NotYet,
}

/// A client's request, which a callback about its result refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Referring {
    /// The session.
    pub(crate) session: SessionId,
    /// Its slot.
    pub(crate) slot: u32,
    /// The slot's sequence number.
    pub(crate) sequence: u32,
}

/// A request for a delegation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DelegationRequest {
    /// The client.
    pub(crate) client: ClientId,
    /// The file.
    pub(crate) node: Node,
    /// What the file was opened for.
    pub(crate) share: Share,
    /// What the client wants.
    pub(crate) wanted: Wanted,
}

/// A delegation to grant.
#[derive(Clone, Debug)]
pub(crate) struct Grant<F> {
    /// The client, the file, and what was asked for.
    pub(crate) request: DelegationRequest,
    /// A handle for reading, and for writing if it is a write delegation.
    pub(crate) file: F,
    /// The file's change attribute, as reported to the client.
    pub(crate) change: u64,
    /// The file's times, as the client is told.
    pub(crate) times: Times,
    /// Whether the client is to answer for the file's times; only with a write delegation.
    pub(crate) keeps_times: bool,
    /// The request that it is granted with.
    pub(crate) referring: Option<Referring>,
    /// The principal that opened the file.
    pub(crate) by: Principal,
    /// Whether the open created the file.
    pub(crate) made: bool,
}

/// When a file was last read and changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Times {
    /// Last access.
    pub(crate) atime: SystemTime,
    /// Last change of data.
    pub(crate) mtime: SystemTime,
}

/// The holder of a write delegation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Writer {
    /// The delegation.
    pub(crate) key: StateKey,
    /// Its client.
    pub(crate) client: ClientId,
    /// Whether the client answers for the file's times.
    pub(crate) keeps_times: bool,
}

/// What the holder of a write delegation answers to CB_GETATTR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    /// Another value than the file had when it was delegated: the client has data to write back.
    pub(crate) change: u64,
    /// The size with that data.
    pub(crate) size: u64,
    /// Last access, if the client answers for it.
    pub(crate) atime: Option<SystemTime>,
    /// Last change of data, if the client answers for it.
    pub(crate) mtime: Option<SystemTime>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::state) enum Phase {
    Held,
    Recalled {
        since: Duration,
    },
    /// To be revoked when the writes in progress are done.
    Overdue,
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
    /// The highest change attribute reported to others for data that the client has not written
    /// back.
    pub(in crate::state) shown_change: u64,
    /// The time of the last change that others were told with it.
    pub(in crate::state) shown_mtime: Option<SystemTime>,
    /// The times that the client's are compared with: the file's when it was delegated, or when the
    /// client last set them with SETATTR.
    pub(in crate::state) original: Times,
    /// Whether the client answers for the file's times.
    pub(in crate::state) keeps_times: bool,
    /// Who created the file by the open that the delegation was granted with.
    pub(in crate::state) made_by: Option<Principal>,
    /// The open for locks that were taken under the delegation.
    pub(in crate::state) stand_in: Option<StateKey>,
    pub(in crate::state) referring: Option<Referring>,
    pub(in crate::state) by: Principal,
    /// Its writes in progress.
    pub(in crate::state) writing: WriteInProgress,
}

/// All delegations.
#[derive(Debug)]
pub(in crate::state) struct Delegations<F> {
    pub(in crate::state) by_key: BTreeMap<StateKey, Delegation<F>>,
    /// Every client may have a delegation of one file, so what conflicts with a call is found by its kind.
    pub(in crate::state) by_node: BTreeMap<(Node, DelegationKind, ClientId), StateKey>,
    pub(in crate::state) filter: Arc<Filter>,
    pub(in crate::state) contended: LruCache<Node, Duration>,
    pub(in crate::state) opened: LruCache<(Node, ClientId, DelegationKind), ()>,
    /// Where the last check of delegated files ended.
    pub(in crate::state) looked_at: Option<StateKey>,
}

impl<F> Default for Delegations<F> {
    fn default() -> Self {
        Self {
            by_key: BTreeMap::new(),
            by_node: BTreeMap::new(),
            filter: Arc::default(),
            contended: LruCache::new(REMEMBERED),
            opened: LruCache::new(REMEMBERED),
            looked_at: None,
        }
    }
}

impl<F> Delegations<F> {
    /// Adds a delegation of a client that has none of the file.
    pub(in crate::state) fn insert(&mut self, key: StateKey, delegation: Delegation<F>) {
        let Delegation { node, kind, client, .. } = delegation;
        self.by_node.insert((node, kind, client), key);
        self.by_key.insert(key, delegation);
    }

    /// The delegations of a file of one kind.
    pub(in crate::state) fn of(
        &self,
        node: Node,
        kind: DelegationKind,
    ) -> impl Iterator<Item = (StateKey, &Delegation<F>)> {
        let of = (node, kind, ClientId(0))..=(node, kind, ClientId(u64::MAX));
        self.by_node.range(of).filter_map(|(_, &key)| Some((key, self.by_key.get(&key)?)))
    }

    /// The delegations that conflict with a call by client `by` (`None`: unknown).
    pub(in crate::state) fn broken_by(
        &self,
        node: Node,
        touch: Touch,
        by: Option<ClientId>,
    ) -> impl Iterator<Item = StateKey> {
        let kinds = [DelegationKind::Write, DelegationKind::Read];
        let broken = kinds.into_iter().filter(move |kind| kind.is_broken_by(touch));
        let all = broken.flat_map(move |kind| self.of(node, kind));
        all.filter(move |(_, d)| Some(d.client) != by).map(|(key, _)| key)
    }

    pub(in crate::state) fn held_by(&self, client: ClientId, node: Node) -> Option<StateKey> {
        let kinds = [DelegationKind::Read, DelegationKind::Write];
        kinds.into_iter().find_map(|kind| self.by_node.get(&(node, kind, client)).copied())
    }

    /// Whether a delegation of a client other than `by` conflicts.
    pub(in crate::state) fn conflict(
        &self,
        node: Node,
        touch: Touch,
        by: Option<ClientId>,
    ) -> bool {
        self.broken_by(node, touch, by).next().is_some()
    }

    /// The client that holds a delegation.
    pub(in crate::state) fn client_of(&self, key: StateKey) -> Option<ClientId> {
        self.by_key.get(&key).map(|d| d.client)
    }

    /// Whether a delegation only exists until its writes in progress are done.
    pub(in crate::state) fn is_overdue(&self, key: StateKey) -> bool {
        self.by_key.get(&key).is_some_and(|d| d.phase == Phase::Overdue)
    }

    /// The principal that opened the file when it was delegated.
    pub(in crate::state) fn holder(&self, key: StateKey) -> Option<&Principal> {
        self.by_key.get(&key).map(|d| &d.by)
    }

    /// The principal that created a file with a client's delegation of it.
    pub(in crate::state) fn made_by(&self, client: ClientId, node: Node) -> Option<Principal> {
        self.by_key.get(&self.held_by(client, node)?)?.made_by.clone()
    }

    /// Records that a client changes a file of which it has a read delegation.
    pub(in crate::state) fn changed_by(&mut self, client: ClientId, node: Node) {
        if let Some(key) = self.held_by(client, node)
            && let Some(delegation) = self.by_key.get_mut(&key)
            && delegation.kind == DelegationKind::Read
        {
            delegation.change = None;
        }
    }

    /// Removes a delegation from its file.
    pub(in crate::state) fn lift(&mut self, key: StateKey) {
        let Some(d) = self.by_key.get(&key) else { return };
        if self.by_node.remove(&(d.node, d.kind, d.client)).is_some() {
            self.filter.remove(d.node, d.kind);
        }
    }
}

/// The result of a recall.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Recalled {
    /// Delegations whose clients must be sent a recall now.
    pub(crate) tell: Vec<StateKey>,
    /// Whether some conflict still.
    pub(crate) pending: bool,
}

/// A recall to send to a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PendingRecall {
    /// The client.
    pub(crate) client: ClientId,
    /// The delegation.
    pub(crate) id: StateId,
    /// The file.
    pub(crate) node: Node,
    /// The request that it was granted with.
    pub(crate) referring: Option<Referring>,
}
