//! NLM hosts, their owners, and the locks that they wait for.

use crate::handle::Node;
use crate::state::error::StateError;
use crate::state::tables::grant_log::GrantLog;
use crate::state::tables::lock::{Holder, LockError};
use bytes::Bytes;
use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use weir_vfs::{LockConflict as Conflict, LockRange as Range};

/// How long the server waits before it asks a host again for its state number.
pub(in crate::state) const ASK_AGAIN: Duration = Duration::from_secs(60);

/// The owner of NLM locks: a process of a host.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct NlmOwner {
    /// The host's address. A caller can choose its name freely, but replies go to its address.
    pub(crate) host: IpAddr,
    /// The local user to whom the owner is limited; `None` for remote hosts and the local
    /// superuser, whose kernels name the owners of all their users.
    pub(crate) user: Option<u32>,
    /// The host's name for the owner.
    pub(crate) handle: Bytes,
    /// The host's number for the process (`svid`).
    pub(crate) process: i32,
}

/// What the server needs to tell a host that its lock is granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ReplyTo {
    /// The cookie of the host's request.
    pub(crate) cookie: Bytes,
    /// The host's name for itself (`caller_name`).
    pub(crate) caller: Bytes,
    /// The server address that the host called; the host accepts grants from this address only.
    pub(crate) server: IpAddr,
}

/// An NLM LOCK request.
#[derive(Clone, Debug)]
pub(crate) struct NlmLock {
    /// The owner.
    pub(crate) owner: NlmOwner,
    /// The file.
    pub(crate) node: Node,
    /// The byte range.
    pub(crate) range: Range,
    /// Whether it is a write lock.
    pub(crate) exclusive: bool,
    /// Whether the owner reclaims a lock that it held before the server restarted.
    pub(crate) reclaim: bool,
    /// Where to send the grant if the owner waits; `None` if it does not.
    pub(crate) wait: Option<ReplyTo>,
}

/// Why a lock or share reservation is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NlmError {
    /// The host is not on disk yet.
    Unknown,
    /// A notice reports that the host has restarted, and the host has not confirmed it yet.
    Doubted,
    /// The grace period is active.
    Grace,
    /// The host may not reclaim this: grace is over, the host held no locks, or the owner has
    /// reclaimed it in another mode.
    NoGrace,
    /// Another owner holds a conflicting lock.
    Denied(Conflict<Holder>),
    /// A share reservation of another owner conflicts.
    ShareDenied,
    /// Another owner holds a conflicting lock, and this request is queued.
    Blocked,
    /// The holder of the conflicting lock waits, perhaps through others, for this owner.
    Deadlock,
    /// A conflicting delegation must be recalled first.
    Delegated,
    /// Changes of client records must be on disk before anything is granted.
    Unsettled,
    /// The owner has released meanwhile what this would acquire.
    Overtaken,
    /// A table is full.
    TooMany,
}

impl From<LockError> for NlmError {
    fn from(error: LockError) -> Self {
        match error {
            LockError::Denied(conflict) => Self::Denied(conflict),
            LockError::Deadlock => Self::Deadlock,
            LockError::State(StateError::Unsettled) => Self::Unsettled,
            LockError::State(_) => Self::TooMany,
        }
    }
}

/// A queued LOCK request.
#[derive(Clone, Debug)]
pub(in crate::state) struct QueuedLock {
    pub(in crate::state) owner: NlmOwner,
    pub(in crate::state) range: Range,
    pub(in crate::state) exclusive: bool,
    pub(in crate::state) to: ReplyTo,
}

impl QueuedLock {
    pub(in crate::state) fn is(&self, owner: &NlmOwner, range: Range, exclusive: bool) -> bool {
        self.range == range && self.exclusive == exclusive && self.owner == *owner
    }
}

/// A lock that was granted to a waiting host, which has not acknowledged it yet.
#[derive(Clone, Debug)]
pub(crate) struct GrantedLock {
    /// Identifies the grant.
    pub(crate) number: u64,
    /// The owner.
    pub(crate) owner: NlmOwner,
    /// The file.
    pub(crate) node: Node,
    /// The byte range.
    pub(crate) range: Range,
    /// Whether it is a write lock.
    pub(crate) exclusive: bool,
    /// Where to send the grant.
    pub(crate) to: ReplyTo,
}

/// The NLM hosts, their queued requests, and the grants that they have not acknowledged.
#[derive(Debug, Default)]
pub(in crate::state) struct Hosts {
    pub(in crate::state) hosts: HashMap<IpAddr, Host>,
    /// Files with queued requests.
    pub(in crate::state) queues: HashSet<Node>,
    /// For each owner, the files on which it waits, and for how many locks.
    pub(in crate::state) waits: HashMap<NlmOwner, HashMap<Node, usize>>,
    pub(in crate::state) granting: HashMap<u64, GrantedLock>,
    /// For each owner and file with such grants, what it keeps if its host rejects one.
    pub(in crate::state) logs: HashMap<(NlmOwner, Node), GrantLog>,
    pub(in crate::state) granted: u64,
    /// Those of `granting` that [`State::nlm_take_granted`] has not taken yet.
    pub(in crate::state) unsent: Vec<u64>,
    pub(in crate::state) tell: Arc<Notify>,
}

impl Hosts {
    /// Updates [`waits`](Self::waits) after a request has left its queue.
    pub(in crate::state) fn left_line(&mut self, owner: &NlmOwner, node: Node) {
        let Some(waits) = self.waits.get_mut(owner) else { return };
        if let Some(locks) = waits.get_mut(&node) {
            *locks -= 1;
            if *locks == 0 {
                waits.remove(&node);
            }
        }
        if waits.is_empty() {
            self.waits.remove(owner);
        }
    }
}

#[derive(Debug)]
pub(in crate::state) struct Host {
    /// Files on which it has locks, share reservations or queued requests, or had when last
    /// checked.
    pub(in crate::state) files: HashSet<Node>,
    pub(in crate::state) used: Duration,
    pub(in crate::state) run: HostRun,
    /// The state number from a restart notice that the host has not confirmed.
    pub(in crate::state) doubt: Option<i32>,
}

/// The state number of a host's status monitor, which changes when the host restarts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::state) enum HostRun {
    /// The server has not asked for it.
    Unasked,
    /// The server asked for it at this time, and got no answer yet.
    Unknown {
        asked: Duration,
    },
    Number(i32),
}
