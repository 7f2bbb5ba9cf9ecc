//! Nodes: the numbers by which the kernel names files.
//!
//! 1. A node's number means one file as long as the mount lasts; numbers are not used again.
//! 2. The kernel counts its uses of a node: one for each reply with an entry. The table keeps a node
//!    until the kernel has given all of them back (FORGET), so it is as large as the kernel's own; and
//!    until its open files are closed, because another thread may carry out the FORGET before the RELEASE.

use crate::mounted::file_system::Keeper;
use crate::mounted::lock_owners::LockOwners;
use crate::wire::abi::{ForgetOne, ROOT};
use crate::wire::reply::Errno;
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use tokio::sync::Mutex as AsyncMutex;
use weir_vfs::{Access, Attr, FileId, OpenFile};

const READ_WRITE: Access = Access::READ.union(Access::WRITE);

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
    /// All hidden names have been taken, because the mount ends.
    hides_no_more: bool,
}

struct Node {
    id: FileId,
    /// Its file system; `None`: that of the root.
    fsid: Option<u64>,
    /// Uses by the kernel.
    lookups: u64,
    /// The change attribute that the kernel saw last.
    change: Option<u64>,
    /// The change attribute than which no page of the kernel is older. `None` from an open that makes the kernel drop
    /// its pages until a request shows that it has.
    pages_of: Option<u64>,
    /// Open files.
    opens: u64,
    /// Those among them that are open for reading and writing. A shared mapping that programs store through keeps one
    /// of them open.
    read_write_opens: u64,
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
    owners: LockOwners,
    /// Held while a lock of flock(2) is released that no program knows of: a request of the same owner that is granted
    /// meanwhile would lose it.
    turn: Arc<AsyncMutex<()>>,
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
            fsid: None,
            lookups: 0,
            change: None,
            pages_of: None,
            opens: 0,
            read_write_opens: 0,
            keeper: Keeper::Weir,
            locks: None,
            hidden: None,
        }
    }

    fn count_close(&mut self, access: Access) {
        self.opens = self.opens.saturating_sub(1);
        let read_write = u64::from(access.contains(READ_WRITE));
        self.read_write_opens = self.read_write_opens.saturating_sub(read_write);
    }
}

impl Table {
    /// Removes a node that is not used any more.
    fn remove_unused(&mut self, number: u64) {
        let is_unused = |node: &Node| node.lookups == 0 && node.opens == 0;
        if number != ROOT
            && self.nodes.get(&number).is_some_and(is_unused)
            && let Some(node) = self.nodes.remove(&number)
        {
            self.numbers.remove(&node.id);
        }
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
            hides_no_more: false,
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

    /// The file system of a node; `None` if it is that of the root.
    pub(crate) fn fsid(&self, node: u64) -> Option<u64> {
        self.table.lock().nodes.get(&node).and_then(|node| node.fsid)
    }

    /// The file system of the root has got another number than this one.
    pub(crate) fn renumber_root(&self, before: u64) {
        let mut table = self.table.lock();
        for node in table.nodes.values_mut().filter(|node| node.fsid == Some(before)) {
            node.fsid = None;
        }
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
            node.fsid = Some(attr.fsid);
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
            table.remove_unused(one.nodeid);
        }
    }

    /// Notes the change attribute that the kernel gets. Returns whether it differs from the last one.
    pub(crate) fn note_change(&self, node: u64, change: u64) -> bool {
        let mut table = self.table.lock();
        let Some(node) = table.nodes.get_mut(&node) else { return true };
        node.change.replace(change) != Some(change)
    }

    /// The kernel may not have got the change attribute that was noted last.
    pub(crate) fn forget_change(&self, node: u64) {
        if let Some(node) = self.table.lock().nodes.get_mut(&node) {
            node.change = None;
        }
    }

    /// Whether the kernel has to drop its pages at an open with this change attribute. If so, other opens have to drop
    /// them, too, until it is [known](Self::pages_are_of) that they are dropped.
    pub(crate) fn drops_pages(&self, node: u64, change: u64) -> bool {
        let mut table = self.table.lock();
        let Some(node) = table.nodes.get_mut(&node) else { return true };
        let is_same = node.pages_of == Some(change);
        if !is_same {
            node.pages_of = None;
        }
        !is_same
    }

    /// Notes that the kernel has dropped its pages, after the file had this change attribute.
    pub(crate) fn pages_are_of(&self, node: u64, change: u64) {
        if let Some(node) = self.table.lock().nodes.get_mut(&node) {
            node.pages_of = Some(change);
        }
    }

    /// Whether no page of the kernel is older than this change attribute.
    pub(crate) fn has_pages_of(&self, node: u64, change: u64) -> bool {
        let table = self.table.lock();
        table.nodes.get(&node).is_some_and(|node| node.pages_of == Some(change))
    }

    /// Counts one more open file, which is open for `access`. Returns which cache keeps its data: the one that is
    /// `wanted`, if there was no open file, else that of the others.
    pub(crate) fn opened(&self, node: u64, access: Access, wanted: Keeper) -> Keeper {
        let mut table = self.table.lock();
        let Some(node) = table.nodes.get_mut(&node) else { return wanted };
        if node.opens == 0 {
            node.keeper = wanted;
        }
        node.opens += 1;
        node.read_write_opens += u64::from(access.contains(READ_WRITE));
        node.keeper
    }

    /// Whether programs may store to the file through a mapping.
    pub(crate) fn may_be_mapped_for_writing(&self, node: u64) -> bool {
        self.table.lock().nodes.get(&node).is_some_and(|node| node.read_write_opens > 0)
    }

    /// Whether there are open files, and the kernel keeps their data.
    pub(crate) fn is_kept_by_kernel(&self, node: u64) -> bool {
        let table = self.table.lock();
        table.nodes.get(&node).is_some_and(|node| node.opens > 0 && node.keeper == Keeper::Kernel)
    }

    /// Takes back that there is one more open file, which is open for `access`.
    pub(crate) fn not_opened(&self, number: u64, access: Access) {
        let mut table = self.table.lock();
        if let Some(node) = table.nodes.get_mut(&number) {
            node.count_close(access);
            table.remove_unused(number);
        }
    }

    /// Counts one open file less, which was open for `access`.
    pub(crate) fn closed(&self, number: u64, access: Access) -> LastClose {
        let mut table = self.table.lock();
        let Some(node) = table.nodes.get_mut(&number) else { return LastClose::default() };
        node.count_close(access);
        if node.opens > 0 {
            return LastClose::default();
        }
        let locks = node.locks.take().map(|locks| locks.file);
        let last = LastClose { locks, hidden: node.hidden.take() };
        if let Some(hidden) = &last.hidden {
            table.hidden.remove(hidden);
        }
        table.remove_unused(number);
        last
    }

    /// Notes that a node's only name is a hidden one. Hands the name back, to be removed, if all of them have been
    /// [taken](Self::take_all_hidden).
    pub(crate) fn hide(&self, node: u64, name: Hidden) -> Option<Hidden> {
        let mut table = self.table.lock();
        if table.hides_no_more {
            return Some(name);
        }
        let node = table.nodes.get_mut(&node)?;
        node.hidden = Some(name.clone());
        table.hidden.insert(name);
        None
    }

    /// Takes a node's hidden name, because it has got another one.
    pub(crate) fn take_hidden(&self, node: u64) -> Option<Hidden> {
        let mut table = self.table.lock();
        let hidden = table.nodes.get_mut(&node)?.hidden.take()?;
        table.hidden.remove(&hidden);
        Some(hidden)
    }

    /// Takes all hidden names, because the mount ends. No node gets one any more.
    pub(crate) fn take_all_hidden(&self) -> Vec<Hidden> {
        let mut table = self.table.lock();
        table.hides_no_more = true;
        table.hidden.clear();
        table.nodes.values_mut().filter_map(|node| node.hidden.take()).collect()
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
                let new = || {
                    Box::new(Locks { file, owners: LockOwners::default(), turn: Arc::default() })
                };
                Arc::clone(&node.locks.get_or_insert_with(new).file)
            }
            _ => file,
        }
    }

    /// What `act` returns for the owners of the node's locks; `None` if no open file holds locks of it.
    pub(crate) fn lock_owners<T>(
        &self,
        node: u64,
        act: impl FnOnce(&mut LockOwners) -> T,
    ) -> Option<T> {
        let mut table = self.table.lock();
        let locks = table.nodes.get_mut(&node)?.locks.as_mut()?;
        Some(act(&mut locks.owners))
    }

    /// Held while a request of flock(2) [begins](LockOwners::flock_begins) or ends, and while what it has is released.
    pub(crate) fn flock_turn(&self, node: u64) -> Option<Arc<AsyncMutex<()>>> {
        let table = self.table.lock();
        table.nodes.get(&node)?.locks.as_ref().map(|locks| Arc::clone(&locks.turn))
    }

    /// How many nodes there are.
    pub(crate) fn len(&self) -> usize {
        self.table.lock().nodes.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_stores::memory::MemoryFs;
    use weir_vfs::FileSystem;

    #[test]
    fn a_node_that_is_forgotten_before_its_file_is_closed_keeps_what_is_left_to_do() {
        let root = FileId { ino: 1, generation: 0 };
        let store = MemoryFs::new();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let mut attr = runtime.block_on(store.getattr(store.root())).unwrap();
        attr.id = FileId { ino: 2, generation: 0 };
        let nodes = Nodes::new(root);
        let number = nodes.learn(&attr);
        nodes.opened(number, Access::READ, Keeper::Weir);
        let hidden = Hidden { dir: root, name: b"h".to_vec() };
        assert_eq!(nodes.hide(number, hidden.clone()), None);
        nodes.forget(&[ForgetOne { nodeid: number, nlookup: 1 }]);
        assert_eq!(nodes.file(number), Ok(attr.id));
        assert_eq!(nodes.closed(number, Access::READ).hidden, Some(hidden.clone()));
        assert!(nodes.file(number).is_err() && !nodes.is_hidden(&hidden));
        assert_eq!(nodes.len(), 1);
        // In the other order.
        let number = nodes.learn(&attr);
        nodes.opened(number, Access::READ, Keeper::Weir);
        nodes.closed(number, Access::READ);
        assert_eq!(nodes.file(number), Ok(attr.id));
        nodes.forget(&[ForgetOne { nodeid: number, nlookup: 1 }]);
        assert_eq!(nodes.len(), 1);
    }

    #[test]
    fn a_file_may_be_mapped_for_writing_while_it_is_open_for_reading_and_writing() {
        let root = FileId { ino: 1, generation: 0 };
        let nodes = Nodes::new(root);
        for access in [Access::READ, Access::WRITE, READ_WRITE, READ_WRITE] {
            nodes.opened(ROOT, access, Keeper::Weir);
        }
        for access in [READ_WRITE, Access::READ, Access::WRITE] {
            nodes.closed(ROOT, access);
            assert!(nodes.may_be_mapped_for_writing(ROOT));
        }
        nodes.not_opened(ROOT, READ_WRITE);
        assert!(!nodes.may_be_mapped_for_writing(ROOT));
    }
}
