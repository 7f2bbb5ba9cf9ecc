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

/// Most that wait for locks of one file.
pub(in crate::state) const MAX_OF_FILE: usize = 64;
/// Most entries of each table of [`LockWaiters`].
pub(in crate::state) const MAX: usize = 16 << 10;
/// How much later than expected a client that waits may ask.
pub(in crate::state) const SLACK: Duration = Duration::from_secs(5);
/// How long a client that is told when the lock is free may go without asking: Linux's asks every 30 seconds.
pub(in crate::state) const LISTENS: Duration = Duration::from_secs(40);
/// How long any client may.
pub(in crate::state) const LONGEST: Duration = Duration::from_secs(60);
/// Most owners that are looked at for a circle.
pub(in crate::state) const MAX_CIRCLE: usize = 1024;
/// Most ranges and waits that are looked at for a circle, under the lock of all state: milliseconds.
pub(in crate::state) const MAX_STEPS: usize = 1 << 18;

/// A lock that is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::state) struct Wanted {
    pub(in crate::state) node: Node,
    pub(in crate::state) range: Range,
    pub(in crate::state) exclusive: bool,
}

/// A wait: when it was last asked for, under which open, and until when it is to be asked for again.
#[derive(Clone, Debug)]
pub(in crate::state) struct Wait {
    pub(in crate::state) wanted: Wanted,
    pub(in crate::state) open: StateKey,
    pub(in crate::state) asked: Duration,
    pub(in crate::state) until: Duration,
}

impl Wait {
    /// A first request that waits.
    pub(in crate::state) fn new(
        wanted: Wanted,
        open: StateKey,
        listens: bool,
        now: Duration,
    ) -> Self {
        Self { wanted, open, asked: now, until: now + if listens { LISTENS } else { SLACK } }
    }

    /// The same if the owner asked `before`: a client without notices asks after a second at first,
    /// and then takes at most twice the time that it took the last time, so that what it did says
    /// what to expect (Linux: 1, 2, 4, ... 30 seconds; FreeBSD: every second).
    pub(in crate::state) fn again(self, before: Option<&Self>) -> Self {
        let Some(before) = before.filter(|before| before.wanted == self.wanted) else {
            return self;
        };
        let interval = self.asked.saturating_sub(before.asked);
        let until = self.asked + (interval * 2 + SLACK).min(LONGEST);
        Self { until: self.until.max(until), ..self }
    }

    pub(in crate::state) fn lasts(&self, now: Duration) -> bool {
        now <= self.until
    }
}

/// A client whose owner is to be told that a lock may be free.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Freed {
    /// The client.
    pub client: ClientId,
    /// The client's name for the owner.
    pub owner: OwnerName,
    /// The file.
    pub node: Node,
}

/// Who waits.
#[derive(Debug, Default)]
pub(in crate::state) struct LockWaiters {
    /// By file: who is to be told.
    pub(in crate::state) files: HashMap<Node, Vec<(LockOwner, Wait)>>,
    pub(in crate::state) listed: usize,
    /// What each owner waits for, as far as is known.
    pub(in crate::state) owners: HashMap<LockOwner, Wait>,
    /// Who is to be told, in order; at most [`MAX`].
    pub(in crate::state) freed: LinkedHashSet<Freed>,
    pub(in crate::state) tell: Arc<Notify>,
}

impl LockWaiters {
    /// An owner makes a request of locks: it waits no more. Returns what it waited for.
    pub(in crate::state) fn asks(&mut self, owner: &LockOwner) -> Option<Wait> {
        self.owners.remove(owner)
    }

    /// An open is closed: who asked under it waits no more.
    pub(in crate::state) fn closed(&mut self, open: StateKey, node: Node) {
        self.retain(node, |_, wait| wait.open != open);
        self.owners.retain(|_, wait| wait.open != open);
    }

    /// An owner waits, and is to be told if it `listens`.
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

    /// An owner has what it waited for.
    pub(in crate::state) fn leave(&mut self, owner: &LockOwner, wanted: Wanted) {
        self.retain(wanted.node, |other, wait| other != owner || wait.wanted != wanted);
    }

    /// Who waits for what of a file may be told no more.
    pub(in crate::state) fn forget_file(&mut self, node: Node) {
        self.retain(node, |_, _| false);
    }

    /// A client is gone.
    pub(in crate::state) fn forget_client(&mut self, client: ClientId) {
        self.retain_all(|owner, _| owner.client != client);
        self.owners.retain(|owner, _| owner.client != client);
    }

    /// Whether an owner waits for a lock of a file, and is to be told.
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
