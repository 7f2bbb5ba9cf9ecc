//! The hosts that use NLM, their owners, and the locks that they wait for.

use crate::handle::Node;
use crate::state::tables::lock::{Holder, LockError};
use bytes::Bytes;
use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use weir_vfs::{Lock, LockConflict as Conflict, LockRange as Range};

/// Most locks that are waited for, or granted to hosts that do not know yet.
pub(in crate::state) const MAX_WAITING: usize = 16 << 10;

/// How long after a host was asked in vain which run of it this is, it is asked again.
pub(in crate::state) const ASK_AGAIN: Duration = Duration::from_secs(60);

/// Who holds locks: a process of a host.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NlmOwner {
    /// The host's address: callers choose their names, but addresses get the replies.
    pub host: IpAddr,
    /// The user of this machine that the owner is believed to be, and none else: hosts see to their own
    /// users' owners, but this machine's users call for themselves.
    pub user: Option<u32>,
    /// The host's name for the owner.
    pub handle: Bytes,
    /// The process, as the host numbers it.
    pub process: i32,
}

/// What a host is told with when its lock is granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplyTo {
    /// What the host knows its request by.
    pub cookie: Bytes,
    /// The host's name for itself.
    pub caller: Bytes,
    /// The address at which this server was called, which the host takes grants from.
    pub server: IpAddr,
}

/// A lock to be taken.
#[derive(Clone, Debug)]
pub struct NlmLock {
    /// Whose.
    pub owner: NlmOwner,
    /// The file.
    pub node: Node,
    /// The bytes.
    pub range: Range,
    /// Whether it excludes readers as well.
    pub exclusive: bool,
    /// It was held before the server restarted.
    pub reclaim: bool,
    /// Whether to wait for it, and whom to tell when it is granted.
    pub wait: Option<ReplyTo>,
}

/// Why a lock or share reservation is not granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NlmError {
    /// The host is not on disk yet.
    Unknown,
    /// The host is said to have restarted, which is to be confirmed first.
    Doubted,
    /// Not while hosts reclaim what they had.
    Grace,
    /// There is nothing to reclaim any more.
    NoGrace,
    /// Another owner holds a conflicting lock.
    Denied(Conflict<Holder>),
    /// A share reservation of another owner conflicts.
    ShareDenied,
    /// Another owner holds a conflicting lock, and this one is in line.
    Blocked,
    /// The holder of the conflicting lock waits for this owner.
    Deadlock,
    /// A delegation is in the way, and has to be recalled first.
    Delegated,
    /// A table is full.
    TooMany,
}

impl From<LockError> for NlmError {
    fn from(error: LockError) -> Self {
        match error {
            LockError::Denied(conflict) => Self::Denied(conflict),
            LockError::Deadlock => Self::Deadlock,
            LockError::State(_) => Self::TooMany,
        }
    }
}

/// A lock in line.
#[derive(Clone, Debug)]
pub(in crate::state) struct Waiting {
    pub(in crate::state) owner: NlmOwner,
    pub(in crate::state) range: Range,
    pub(in crate::state) exclusive: bool,
    pub(in crate::state) to: ReplyTo,
}

impl Waiting {
    pub(in crate::state) fn is(&self, owner: &NlmOwner, range: Range, exclusive: bool) -> bool {
        self.range == range && self.exclusive == exclusive && self.owner == *owner
    }
}

/// A lock that was granted to a host which waited for it, and does not know yet.
#[derive(Clone, Debug)]
pub struct Granted {
    /// Counts grants.
    pub number: u64,
    /// Whose.
    pub owner: NlmOwner,
    /// The file.
    pub node: Node,
    /// The bytes.
    pub range: Range,
    /// Whether it excludes readers as well.
    pub exclusive: bool,
    /// Whom to tell.
    pub to: ReplyTo,
    /// What the owner held of the bytes before, oldest first. Counted among the ranges that are held.
    pub before: Vec<Lock>,
}

/// The hosts that have locks, and those that have to be told of theirs.
#[derive(Debug, Default)]
pub(in crate::state) struct Hosts {
    pub(in crate::state) hosts: HashMap<IpAddr, Host>,
    /// Files with waiters.
    pub(in crate::state) queues: HashSet<Node>,
    pub(in crate::state) waiting: usize,
    /// Files on which an owner waits, and for how many locks.
    pub(in crate::state) waits: HashMap<NlmOwner, HashMap<Node, usize>>,
    pub(in crate::state) shares: usize,
    pub(in crate::state) granting: HashMap<u64, Granted>,
    pub(in crate::state) granted: u64,
    /// Of `granting`: not taken by [`State::nlm_take_granted`] yet.
    pub(in crate::state) untold: Vec<u64>,
    pub(in crate::state) tell: Arc<Notify>,
}

impl Hosts {
    /// A lock is in line no more.
    pub(in crate::state) fn left_line(&mut self, owner: &NlmOwner, node: Node) {
        self.waiting -= 1;
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
    /// Files on which it has something, or had when last looked at.
    pub(in crate::state) files: HashSet<Node>,
    pub(in crate::state) used: Duration,
    pub(in crate::state) run: HostRun,
    /// The run that it is in now, as a notice says that is not confirmed.
    pub(in crate::state) doubt: Option<i32>,
}

/// Which run of a host this is, as its status monitor counts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::state) enum HostRun {
    /// It was not asked.
    Unasked,
    /// It is being asked since then, or did not say.
    Unknown {
        asked: Duration,
    },
    Number(i32),
}
