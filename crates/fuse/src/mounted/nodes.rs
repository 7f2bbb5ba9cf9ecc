//! Nodes: the numbers by which the kernel names files.
//!
//! 1. A node's number means one file as long as the mount lasts; numbers are not used again.
//! 2. The kernel counts its uses of a node: one for each reply with an entry. The table keeps a node
//!    until the kernel has given all of them back (FORGET), so it is as large as the kernel's own.

use crate::mounted::file_system::Keeper;
use crate::wire::abi::{ForgetOne, ROOT};
use crate::wire::reply::Errno;
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use tokio::sync::Mutex as AsyncMutex;
use weir_vfs::{Attr, FileId, LockOwner, OpenFile};

/// The nodes in use.
pub(crate) struct Nodes {
    table: Mutex<Table>,
}

struct Table {
    nodes: HashMap<u64, Node>,
    numbers: HashMap<FileId, u64>,
    next: u64,
    /// The hidden names of all nodes.
    hidden: HashSet<Hidden>,
}

struct Node {
    id: FileId,
    /// Uses by the kernel.
    lookups: u64,
    /// The change attribute that the kernel saw last.
    change: Option<u64>,
    /// The change attribute at the last open: the kernel's pages may be as old as that.
    opened_at: Option<u64>,
    /// Open files.
    opens: u64,
    /// Which cache keeps the file's data, while there are open files.
    keeper: Keeper,
    locks: Option<Box<Locks>>,
    /// The hidden name of a file without a name.
    hidden: Option<Hidden>,
}

/// The locks of a node.
struct Locks {
    /// The open file of the store that holds them.
    file: Arc<dyn OpenFile>,
    /// The owners that may have some.
    owners: HashMap<LockOwner, Asked>,
    /// Held while a lock of flock(2) is released that no program knows of: a request of the same owner that is granted
    /// meanwhile would lose it.
    turn: Arc<AsyncMutex<()>>,
}

/// What an owner has asked for.
#[derive(Default)]
struct Asked {
    /// Through which open file the last time.
    fh: u64,
    /// Of flock(2): requests that are not answered.
    asking: usize,
    /// Of flock(2): a program was told that it has the lock.
    is_told: bool,
    /// Of flock(2): a request was granted whose program did not learn of that.
    is_untold: bool,
}

/// How a request for a lock of flock(2) ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FlockEnd {
    /// It was granted, and its program knows.
    Told,
    /// It was granted, but its program was killed.
    Untold,
    /// It was not granted.
    Refused,
}

/// The hidden name of a file without a name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Hidden {
    pub(super) dir: FileId,
    pub(super) name: Vec<u8>,
}

/// What remains to do after the last close of a node's open files.
#[derive(Default)]
pub(crate) struct LastClose {
    /// The open file that held the node's locks, to close.
    pub(crate) locks: Option<Arc<dyn OpenFile>>,
    /// A name to remove.
    pub(crate) hidden: Option<Hidden>,
}

impl Node {
    fn new(id: FileId) -> Self {
        Self {
            id,
            lookups: 0,
            change: None,
            opened_at: None,
            opens: 0,
            keeper: Keeper::Weir,
            locks: None,
            hidden: None,
        }
    }
}

impl Table {
    fn asked(&mut self, node: u64, owner: LockOwner) -> Option<&mut Asked> {
        self.nodes.get_mut(&node)?.locks.as_mut()?.owners.get_mut(&owner)
    }
}

impl Nodes {
    pub(crate) fn new(root: FileId) -> Self {
        let mut root_node = Node::new(root);
        root_node.lookups = 1;
        let table = Table {
            nodes: HashMap::from([(ROOT, root_node)]),
            numbers: HashMap::from([(root, ROOT)]),
            next: ROOT + 1,
            hidden: HashSet::new(),
        };
        Self { table: Mutex::new(table) }
    }

    /// The file of a node.
    ///
    /// # Errors
    /// ESTALE for a number that the kernel does not have.
    pub(crate) fn file(&self, node: u64) -> Result<FileId, Errno> {
        let table = self.table.lock();
        table.nodes.get(&node).map(|node| node.id).ok_or(Errno(libc::ESTALE))
    }

    /// The node of a file, with one more use by the kernel.
    pub(crate) fn learn(&self, attr: &Attr) -> u64 {
        let mut table = self.table.lock();
        let number = match table.numbers.get(&attr.id) {
            Some(&number) => number,
            None => {
                let number = table.next;
                table.next += 1;
                table.numbers.insert(attr.id, number);
                table.nodes.insert(number, Node::new(attr.id));
                number
            }
        };
        if let Some(node) = table.nodes.get_mut(&number) {
            node.lookups += 1;
            node.change = Some(attr.change);
        }
        number
    }

    /// The kernel gives uses back.
    pub(crate) fn forget(&self, forgotten: &[ForgetOne]) {
        let mut table = self.table.lock();
        for one in forgotten {
            let Some(node) = table.nodes.get_mut(&one.nodeid) else { continue };
            node.lookups = node.lookups.saturating_sub(one.nlookup);
            if node.lookups == 0 && one.nodeid != ROOT {
                let id = node.id;
                table.nodes.remove(&one.nodeid);
                table.numbers.remove(&id);
            }
        }
    }

    /// Notes the change attribute that the kernel gets. Returns whether it differs from the last one.
    pub(crate) fn note_change(&self, node: u64, change: u64) -> bool {
        let mut table = self.table.lock();
        let Some(node) = table.nodes.get_mut(&node) else { return true };
        node.change.replace(change) != Some(change)
    }

    /// Notes the change attribute of an open. Returns whether it differs from that of the last one.
    pub(crate) fn note_open(&self, node: u64, change: u64) -> bool {
        let mut table = self.table.lock();
        let Some(node) = table.nodes.get_mut(&node) else { return true };
        node.opened_at.replace(change) != Some(change)
    }

    /// Whether the last open saw this change attribute.
    pub(crate) fn is_opened_at(&self, node: u64, change: u64) -> bool {
        let table = self.table.lock();
        table.nodes.get(&node).is_some_and(|node| node.opened_at == Some(change))
    }

    /// Counts one more open file. Returns which cache keeps its data: the one that is `wanted`, if there was no
    /// open file, else that of the others.
    pub(crate) fn opened(&self, node: u64, wanted: Keeper) -> Keeper {
        let mut table = self.table.lock();
        let Some(node) = table.nodes.get_mut(&node) else { return wanted };
        if node.opens == 0 {
            node.keeper = wanted;
        }
        node.opens += 1;
        node.keeper
    }

    /// Whether there are open files, and the kernel keeps their data.
    pub(crate) fn is_kept_by_kernel(&self, node: u64) -> bool {
        let table = self.table.lock();
        table.nodes.get(&node).is_some_and(|node| node.opens > 0 && node.keeper == Keeper::Kernel)
    }

    /// Takes back that there is one more open file.
    pub(crate) fn not_opened(&self, node: u64) {
        if let Some(node) = self.table.lock().nodes.get_mut(&node) {
            node.opens = node.opens.saturating_sub(1);
        }
    }

    /// Counts one open file less.
    pub(crate) fn closed(&self, node: u64) -> LastClose {
        let mut table = self.table.lock();
        let Some(node) = table.nodes.get_mut(&node) else { return LastClose::default() };
        node.opens = node.opens.saturating_sub(1);
        if node.opens > 0 {
            return LastClose::default();
        }
        let locks = node.locks.take().map(|locks| locks.file);
        let last = LastClose { locks, hidden: node.hidden.take() };
        if let Some(hidden) = &last.hidden {
            table.hidden.remove(hidden);
        }
        last
    }

    /// Notes that a node's only name is a hidden one.
    pub(crate) fn hide(&self, node: u64, name: Hidden) {
        let mut table = self.table.lock();
        if let Some(node) = table.nodes.get_mut(&node) {
            node.hidden = Some(name.clone());
            table.hidden.insert(name);
        }
    }

    /// Takes a node's hidden name, because it has got another one.
    pub(crate) fn take_hidden(&self, node: u64) -> Option<Hidden> {
        let mut table = self.table.lock();
        let hidden = table.nodes.get_mut(&node)?.hidden.take()?;
        table.hidden.remove(&hidden);
        Some(hidden)
    }

    /// Whether a node has a hidden name.
    pub(crate) fn has_hidden(&self, node: u64) -> bool {
        self.table.lock().nodes.get(&node).is_some_and(|node| node.hidden.is_some())
    }

    /// Whether the name is a hidden one.
    pub(crate) fn is_hidden(&self, name: &Hidden) -> bool {
        self.table.lock().hidden.contains(name)
    }

    /// The open file that holds the node's locks.
    pub(crate) fn locks(&self, node: u64) -> Option<Arc<dyn OpenFile>> {
        let table = self.table.lock();
        table.nodes.get(&node)?.locks.as_ref().map(|locks| Arc::clone(&locks.file))
    }

    /// Makes `file` the one that holds the node's locks, unless there is one already; returns that.
    /// A node that no program has open any more keeps none.
    pub(crate) fn hold_locks(&self, node: u64, file: Arc<dyn OpenFile>) -> Arc<dyn OpenFile> {
        let mut table = self.table.lock();
        match table.nodes.get_mut(&node) {
            Some(node) if node.opens > 0 => {
                let new = || Box::new(Locks { file, owners: HashMap::new(), turn: Arc::default() });
                Arc::clone(&node.locks.get_or_insert_with(new).file)
            }
            _ => file,
        }
    }

    /// Notes that an owner asks for a lock through an open file.
    pub(crate) fn note_lock(&self, node: u64, owner: LockOwner, fh: u64) {
        let mut table = self.table.lock();
        if let Some(locks) = table.nodes.get_mut(&node).and_then(|node| node.locks.as_mut()) {
            locks.owners.entry(owner).or_default().fh = fh;
        }
    }

    /// What a request of flock(2) takes before it [begins](Self::flock_begins), and while what it has is released.
    pub(crate) fn flock_turn(&self, node: u64) -> Option<Arc<AsyncMutex<()>>> {
        let table = self.table.lock();
        table.nodes.get(&node)?.locks.as_ref().map(|locks| Arc::clone(&locks.turn))
    }

    /// Notes that an owner of flock(2) asks for its lock through an open file. Returns whether a program was told that
    /// it has one.
    pub(crate) fn flock_begins(&self, node: u64, owner: LockOwner, fh: u64) -> bool {
        let mut table = self.table.lock();
        let locks = table.nodes.get_mut(&node).and_then(|node| node.locks.as_mut());
        // It may have been noted before, and unlocked since by another thread.
        let Some(asked) = locks.map(|locks| locks.owners.entry(owner).or_default()) else {
            return false;
        };
        asked.fh = fh;
        asked.asking += 1;
        asked.is_told
    }

    /// Notes that such a request has ended. Returns whether the owner has a lock that no program knows of, nor asks
    /// for: it is to be released.
    pub(crate) fn flock_ends(&self, node: u64, owner: LockOwner, end: FlockEnd) -> bool {
        let mut table = self.table.lock();
        let Some(asked) = table.asked(node, owner) else { return false };
        asked.asking = asked.asking.saturating_sub(1);
        match end {
            FlockEnd::Told => (asked.is_told, asked.is_untold) = (true, false),
            FlockEnd::Untold => asked.is_untold = !asked.is_told,
            FlockEnd::Refused => {}
        }
        asked.is_untold && asked.asking == 0
    }

    /// Whether an owner may have locks.
    pub(crate) fn may_have_locks(&self, node: u64, owner: LockOwner) -> bool {
        let table = self.table.lock();
        let locks = table.nodes.get(&node).and_then(|node| node.locks.as_ref());
        locks.is_some_and(|locks| locks.owners.contains_key(&owner))
    }

    /// Notes that an owner has no locks any more.
    pub(crate) fn note_unlocked(&self, node: u64, owner: LockOwner) {
        let mut table = self.table.lock();
        if let Some(locks) = table.nodes.get_mut(&node).and_then(|node| node.locks.as_mut()) {
            match locks.owners.get_mut(&owner) {
                Some(asked) if asked.asking > 0 => {
                    (asked.is_told, asked.is_untold) = (false, false);
                }
                _ => _ = locks.owners.remove(&owner),
            }
        }
    }

    /// The owners that may have locks, and have asked for the last one through this open file.
    pub(crate) fn lock_owners_of(&self, node: u64, fh: u64) -> Vec<LockOwner> {
        let table = self.table.lock();
        let locks = table.nodes.get(&node).and_then(|node| node.locks.as_ref());
        let owners = locks.into_iter().flat_map(|locks| &locks.owners);
        owners.filter(|(_, asked)| asked.fh == fh).map(|(&owner, _)| owner).collect()
    }

    /// How many nodes there are.
    pub(crate) fn len(&self) -> usize {
        self.table.lock().nodes.len()
    }
}
