//! The opens of all clients, with what answers a question about one file without going through its opens: a file may
//! be open by every client.
//!
//! | question | answered by | cost, with n opens |
//! | --- | --- | --- |
//! | the open of a stateid | `by_key` | constant |
//! | the open of an owner; the opens of a client, a file or an export | `by_owner` | log n, and what is found |
//! | whether opens conflict with a share mode | `files` | constant, log n without the asker's own |
//! | which open conflicts | its file's `changing`, then its other opens | the others only if it denies reading |
//! | an open for writing | `changing` | the opens of the file that write or deny |
//!
//! 1. `by_owner` has each open of `by_key` once, and nothing else.
//! 2. `files` has each file with opens: the number of its opens and, for each bit of access and deny, of those that set
//!    it. Therefore opens change only in [`Opens::change`].
//! 3. `unconfirmed` has the opens that wait for OPEN_CONFIRM, `changing` those that write or deny
//!    ([`Touch::Change`]): a file may be open for reading by every client, and written by one.

use crate::handle::Node;
use crate::state::client::{ClientId, OwnerName};
use crate::state::share::Share;
use crate::state::stateid::StateKey;
use crate::state::tables::delegation::Touch;
use crate::state::tables::open::Open;
use std::collections::{BTreeSet, HashMap, HashSet};
use weir_vfs::{Access, FileId};

/// The place of an open in the order of its file, client and owner. It has the key, too: the opens that stand for a
/// client's delegations of a file have one name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Name {
    node: Node,
    client: ClientId,
    owner: OwnerName,
    key: StateKey,
}

impl Name {
    fn of<F>(key: StateKey, open: &Open<F>) -> Self {
        Self { key, ..Self::first(open.node, open.client, open.owner.clone()) }
    }

    /// Before the opens of an owner, and with an empty name before all of a client.
    fn first(node: Node, client: ClientId, owner: OwnerName) -> Self {
        Self { node, client, owner, key: FIRST }
    }
}

/// Before all keys.
const FIRST: StateKey = StateKey { run: 0, number: 0 };

/// The number of opens of a file, and of those that set each bit of access and deny.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::state) struct ShareCounts {
    opens: u32,
    reads: u32,
    writes: u32,
    denies_reads: u32,
    denies_writes: u32,
}

impl ShareCounts {
    fn add(&mut self, share: Share) {
        self.each(share, |count, sets| *count += u32::from(sets));
    }

    fn subtract(&mut self, share: Share) {
        self.each(share, |count, sets| *count -= u32::from(sets));
    }

    fn each(&mut self, Share { access, deny }: Share, mut count: impl FnMut(&mut u32, bool)) {
        count(&mut self.opens, true);
        count(&mut self.reads, access.contains(Access::READ));
        count(&mut self.writes, access.contains(Access::WRITE));
        count(&mut self.denies_reads, deny.contains(Access::READ));
        count(&mut self.denies_writes, deny.contains(Access::WRITE));
    }

    /// The union of the share modes that are counted.
    fn union(self) -> Share {
        let bit = |count, bit| if count > 0 { bit } else { Access::empty() };
        Share {
            access: bit(self.reads, Access::READ) | bit(self.writes, Access::WRITE),
            deny: bit(self.denies_reads, Access::READ) | bit(self.denies_writes, Access::WRITE),
        }
    }
}

/// The opens of all clients.
#[derive(Debug)]
pub(in crate::state) struct Opens<F> {
    by_key: HashMap<StateKey, Open<F>>,
    by_owner: BTreeSet<Name>,
    files: HashMap<Node, ShareCounts>,
    changing: BTreeSet<(Node, StateKey)>,
    unconfirmed: HashSet<StateKey>,
}

impl<F> Default for Opens<F> {
    fn default() -> Self {
        Self {
            by_key: HashMap::new(),
            by_owner: BTreeSet::new(),
            files: HashMap::new(),
            changing: BTreeSet::new(),
            unconfirmed: HashSet::new(),
        }
    }
}

impl<F> Opens<F> {
    pub(in crate::state) fn get(&self, key: StateKey) -> Option<&Open<F>> {
        self.by_key.get(&key)
    }

    pub(in crate::state) fn contains(&self, key: StateKey) -> bool {
        self.by_key.contains_key(&key)
    }

    pub(in crate::state) fn len(&self) -> usize {
        self.by_key.len()
    }

    /// The opens that wait for OPEN_CONFIRM.
    pub(in crate::state) fn unconfirmed(&self) -> impl Iterator<Item = (StateKey, &Open<F>)> {
        self.unconfirmed.iter().filter_map(|&key| Some((key, self.get(key)?)))
    }

    /// Adds an open.
    pub(in crate::state) fn insert(&mut self, key: StateKey, open: Open<F>) {
        self.files.entry(open.node).or_default().add(open.share);
        self.by_owner.insert(Name::of(key, &open));
        if open.share.touch() == Touch::Change {
            self.changing.insert((open.node, key));
        }
        if open.unconfirmed.is_some() {
            self.unconfirmed.insert(key);
        }
        self.by_key.insert(key, open);
    }

    /// Changes an open; not its file, client or owner. Returns `None` if there is none.
    pub(in crate::state) fn change<T>(
        &mut self,
        key: StateKey,
        change: impl FnOnce(&mut Open<F>) -> T,
    ) -> Option<T> {
        let open = self.by_key.get_mut(&key)?;
        let before = open.share;
        let changed = change(open);
        if open.share != before
            && let Some(counts) = self.files.get_mut(&open.node)
        {
            counts.subtract(before);
            counts.add(open.share);
            match open.share.touch() {
                Touch::Change => self.changing.insert((open.node, key)),
                Touch::Read => self.changing.remove(&(open.node, key)),
            };
        }
        if open.unconfirmed.is_none() && !self.unconfirmed.is_empty() {
            self.unconfirmed.remove(&key);
        }
        Some(changed)
    }

    /// Removes an open.
    pub(in crate::state) fn remove(&mut self, key: StateKey) -> Option<Open<F>> {
        let open = self.by_key.remove(&key)?;
        self.by_owner.remove(&Name::of(key, &open));
        self.unconfirmed.remove(&key);
        self.changing.remove(&(open.node, key));
        if let Some(counts) = self.files.get_mut(&open.node) {
            counts.subtract(open.share);
            if counts.opens == 0 {
                self.files.remove(&open.node);
            }
        }
        Some(open)
    }

    /// Whether any client has a file open.
    pub(in crate::state) fn is_open(&self, node: Node) -> bool {
        self.files.contains_key(&node)
    }

    /// Whether any client has a file open for writing.
    pub(in crate::state) fn is_open_to_write(&self, node: Node) -> bool {
        self.files.get(&node).is_some_and(|counts| counts.writes > 0)
    }

    /// Whether another client than this one has a file open.
    pub(in crate::state) fn is_open_by_others(&self, client: ClientId, node: Node) -> bool {
        let is_of_file = |name: &&Name| name.node == node;
        let first = self.from(node, ClientId(0)).next().filter(is_of_file);
        let after = client.0.checked_add(1).and_then(|id| self.from(node, ClientId(id)).next());
        first.is_some_and(|name| name.client != client) || after.filter(is_of_file).is_some()
    }

    /// An owner's open of a file.
    pub(in crate::state) fn of_owner(
        &self,
        client: ClientId,
        owner: &OwnerName,
        node: Node,
    ) -> Option<StateKey> {
        self.all_of_owner(client, owner, node).next()
    }

    fn all_of_owner(
        &self,
        client: ClientId,
        owner: &OwnerName,
        node: Node,
    ) -> impl Iterator<Item = StateKey> {
        let first = Name::first(node, client, owner.clone());
        let is_its =
            move |name: &&Name| (name.node, name.client, &name.owner) == (node, client, owner);
        self.by_owner.range(first..).take_while(is_its).map(|name| name.key)
    }

    /// A client's opens of a file.
    pub(in crate::state) fn of_client(
        &self,
        client: ClientId,
        node: Node,
    ) -> impl Iterator<Item = (StateKey, &Open<F>)> {
        let opens = self.from(node, client);
        self.named(opens.take_while(move |name| (name.node, name.client) == (node, client)))
    }

    /// The opens of a file.
    pub(in crate::state) fn of_file(
        &self,
        node: Node,
    ) -> impl Iterator<Item = (StateKey, &Open<F>)> {
        self.named(self.from(node, ClientId(0)).take_while(move |name| name.node == node))
    }

    /// The opens of a file that write or deny.
    pub(in crate::state) fn of_file_to_change(
        &self,
        node: Node,
    ) -> impl Iterator<Item = (StateKey, &Open<F>)> {
        let opens = self.changing.range((node, FIRST)..).take_while(move |(of, _)| *of == node);
        opens.filter_map(|&(_, key)| Some((key, self.get(key)?)))
    }

    /// The opens of the files of an export.
    pub(in crate::state) fn of_export(&self, export: u16) -> impl Iterator<Item = StateKey> {
        let first = Node { export, id: FileId { ino: 0, generation: 0 } };
        let opens = self.from(first, ClientId(0));
        opens.take_while(move |name| name.node.export == export).map(|name| name.key)
    }

    /// Whether opens, other than those of the owner `by`, conflict with a share mode.
    pub(in crate::state) fn are_in_conflict(
        &self,
        node: Node,
        by: Option<(ClientId, &OwnerName)>,
        share: Share,
    ) -> bool {
        let Some(&(mut counts)) = self.files.get(&node) else { return false };
        if !counts.union().conflicts(share) {
            return false;
        }
        if let Some((client, owner)) = by {
            let own = self.all_of_owner(client, owner, node);
            own.filter_map(|key| self.get(key)).for_each(|open| counts.subtract(open.share));
        }
        counts.union().conflicts(share)
    }

    /// The opens from those of a client of a file on.
    fn from(&self, node: Node, client: ClientId) -> impl Iterator<Item = &Name> {
        self.by_owner.range(Name::first(node, client, OwnerName::new())..)
    }

    fn named<'a>(
        &'a self,
        names: impl Iterator<Item = &'a Name>,
    ) -> impl Iterator<Item = (StateKey, &'a Open<F>)> {
        names.filter_map(|name| Some((name.key, self.get(name.key)?)))
    }
}

#[cfg(test)]
impl<F> Opens<F> {
    pub(in crate::state) fn iter(&self) -> impl Iterator<Item = (&StateKey, &Open<F>)> {
        self.by_key.iter()
    }

    /// Computes the indices and counters again, and compares.
    ///
    /// # Panics
    /// They differ.
    pub(in crate::state) fn check(&self) {
        let mut files = HashMap::<Node, ShareCounts>::new();
        for (_, open) in self.iter() {
            files.entry(open.node).or_default().add(open.share);
        }
        assert_eq!(self.files, files);
        assert_eq!(self.by_owner, self.iter().map(|(key, open)| Name::of(*key, open)).collect());
        let changing = self.iter().filter(|(_, open)| open.share.touch() == Touch::Change);
        assert_eq!(self.changing, changing.map(|(key, open)| (open.node, *key)).collect());
        let waiting = self.iter().filter(|(_, open)| open.unconfirmed.is_some());
        assert_eq!(self.unconfirmed, waiting.map(|(key, _)| *key).collect());
    }
}
