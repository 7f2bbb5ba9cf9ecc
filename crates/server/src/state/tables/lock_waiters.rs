//! The owners that wait for NFSv4 locks.

use crate::handle::Node;
use crate::state::client::{ClientId, OwnerName};
use crate::state::stateid::StateKey;
use crate::state::tables::lock::LockOwner;
use hashlink::LinkedHashSet;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use weir_vfs::LockRange as Range;

/// Maximum number of listed waits for locks of one file.
pub(in crate::state) const MAX_OF_FILE: usize = 64;
/// Maximum number of entries in each table of [`LockWaiters`].
pub(in crate::state) const MAX: usize = 16 << 10;
/// How late a waiting client may poll.
pub(in crate::state) const SLACK: Duration = Duration::from_secs(5);
/// The longest expected interval between polls of a client that is notified; Linux's polls every 30
/// seconds.
pub(in crate::state) const LISTENS: Duration = Duration::from_secs(40);
/// The longest expected interval between polls of any client.
pub(in crate::state) const LONGEST: Duration = Duration::from_secs(60);
/// Maximum number of owners visited in a search for a deadlock.
pub(in crate::state) const MAX_CIRCLE: usize = 1024;
/// Maximum number of ranges and waits examined in a search for a deadlock. It holds the state's
/// lock; this many take milliseconds.
pub(in crate::state) const MAX_STEPS: usize = 1 << 18;

/// A lock that an owner waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::state) struct WantedLock {
    pub(in crate::state) node: Node,
    pub(in crate::state) range: Range,
    pub(in crate::state) exclusive: bool,
}

/// A wait: when its owner last polled, under which open, and when the next poll is due at the
/// latest.
#[derive(Clone, Debug)]
pub(in crate::state) struct Wait {
    pub(in crate::state) wanted: WantedLock,
    pub(in crate::state) open: StateKey,
    pub(in crate::state) polled: Duration,
    pub(in crate::state) until: Duration,
}

impl Wait {
    /// A wait that begins with this request.
    pub(in crate::state) fn new(
        wanted: WantedLock,
        open: StateKey,
        listens: bool,
        now: Duration,
    ) -> Self {
        Self { wanted, open, polled: now, until: now + if listens { LISTENS } else { SLACK } }
    }

    /// Extends the deadline if `before` is a wait of the same owner for the same lock. A client
    /// without notifications polls after one second, and at most doubles the interval each time
    /// (Linux: 1, 2, 4, ... 30 seconds; FreeBSD: every second), so the last interval bounds the
    /// next one.
    pub(in crate::state) fn again(self, before: Option<&Self>) -> Self {
        let Some(before) = before.filter(|before| before.wanted == self.wanted) else {
            return self;
        };
        let interval = self.polled.saturating_sub(before.polled);
        let until = self.polled + (interval * 2 + SLACK).min(LONGEST);
        Self { until: self.until.max(until), ..self }
    }

    pub(in crate::state) fn lasts(&self, now: Duration) -> bool {
        now <= self.until
    }
}

/// A client to notify that a lock may be free for one of its owners.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Freed {
    /// The client.
    pub(crate) client: ClientId,
    /// The client's name for the owner.
    pub(crate) owner: OwnerName,
    /// The file.
    pub(crate) node: Node,
}

/// All waits for NFSv4 locks.
#[derive(Debug, Default)]
pub(in crate::state) struct LockWaiters {
    /// Waits to notify, by file.
    pub(in crate::state) files: HashMap<Node, Vec<(LockOwner, Wait)>>,
    pub(in crate::state) listed: usize,
    /// The last known wait of each owner.
    pub(in crate::state) owners: HashMap<LockOwner, Wait>,
    /// Notifications to send, in order; at most [`MAX`].
    pub(in crate::state) freed: LinkedHashSet<Freed>,
    pub(in crate::state) tell: Arc<Notify>,
}

impl LockWaiters {
    /// Ends an owner's wait, because it makes a lock request. Returns the wait.
    pub(in crate::state) fn asks(&mut self, owner: &LockOwner) -> Option<Wait> {
        self.owners.remove(owner)
    }

    /// Ends the waits under an open that is closed.
    pub(in crate::state) fn closed(&mut self, open: StateKey, node: Node) {
        self.retain(node, |_, wait| wait.open != open);
        self.owners.retain(|_, wait| wait.open != open);
    }

    /// Records a wait; lists it for a notification if the client `listens`.
    pub(in crate::state) fn wait(&mut self, owner: LockOwner, wait: Wait, listens: bool) {
        if listens {
            self.leave(&owner, wait.wanted);
            let file = self.files.entry(wait.wanted.node).or_default();
            if file.len() < MAX_OF_FILE && self.listed < MAX {
                file.push((owner.clone(), wait.clone()));
                self.listed += 1;
            }
        }
        if self.owners.len() < MAX {
            self.owners.insert(owner, wait);
        }
    }

    /// Removes an owner's listed wait for a lock.
    pub(in crate::state) fn leave(&mut self, owner: &LockOwner, wanted: WantedLock) {
        self.retain(wanted.node, |other, wait| other != owner || wait.wanted != wanted);
    }

    /// Removes the listed waits for a file.
    pub(in crate::state) fn forget_file(&mut self, node: Node) {
        self.retain(node, |_, _| false);
    }

    /// Removes the waits of a client.
    pub(in crate::state) fn forget_client(&mut self, client: ClientId) {
        self.retain_all(|owner, _| owner.client != client);
        self.owners.retain(|owner, _| owner.client != client);
    }

    /// Whether a wait for a lock of the file is listed.
    pub(in crate::state) fn waits_for(&self, node: Node) -> bool {
        self.files.contains_key(&node)
    }

    pub(in crate::state) fn retain(
        &mut self,
        node: Node,
        keep: impl Fn(&LockOwner, &Wait) -> bool,
    ) {
        let Some(file) = self.files.get_mut(&node) else { return };
        let before = file.len();
        file.retain(|(owner, wait)| keep(owner, wait));
        self.listed -= before - file.len();
        if file.is_empty() {
            self.files.remove(&node);
        }
    }

    pub(in crate::state) fn retain_all(&mut self, keep: impl Fn(&LockOwner, &Wait) -> bool) {
        for node in self.files.keys().copied().collect::<Vec<_>>() {
            self.retain(node, &keep);
        }
    }
}
