//! The names of a [`MemoryFs`](super::MemoryFs).
//!
//! 1. Every node in the table except the root has at least one name, and `nlink` counts them.
//! 2. Directories form a tree: each has one parent, and none is below itself.
//! 3. A cookie belongs to one entry for as long as the entry exists, and is never reused.

use super::node::{Body, Meta, Node};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use weir_vfs::{EntryName, Error, FileId, Result};

/// Cookies 0, 1 and 2 have special meanings in NFS.
const FIRST_COOKIE: u64 = 3;

/// All nodes that have a name, and all directories' entries.
#[derive(Debug)]
pub(super) struct Tree {
    nodes: HashMap<FileId, Arc<Node>>,
    dirs: HashMap<FileId, Directory>,
}

/// A directory's entries.
#[derive(Debug)]
pub(super) struct Directory {
    pub(super) parent: FileId,
    names: BTreeMap<Vec<u8>, (u64, FileId)>,
    cookies: BTreeMap<u64, Vec<u8>>,
    next_cookie: u64,
}

impl Directory {
    fn new(parent: FileId) -> Self {
        Self { parent, names: BTreeMap::new(), cookies: BTreeMap::new(), next_cookie: FIRST_COOKIE }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    pub(super) fn get(&self, name: &[u8]) -> Option<FileId> {
        self.names.get(name).map(|&(_, id)| id)
    }

    /// Entries after a cookie: cookie, name and file.
    pub(super) fn after(&self, cookie: u64) -> impl Iterator<Item = (u64, &[u8], FileId)> {
        self.cookies.range(cookie.saturating_add(1)..).filter_map(|(&cookie, name)| {
            self.names.get(name).map(|&(_, id)| (cookie, name.as_slice(), id))
        })
    }

    /// Makes a name refer to a file; an existing entry keeps its cookie.
    fn set(&mut self, name: &[u8], id: FileId) {
        if let Some(entry) = self.names.get_mut(name) {
            entry.1 = id;
            return;
        }
        self.names.insert(name.to_vec(), (self.next_cookie, id));
        self.cookies.insert(self.next_cookie, name.to_vec());
        self.next_cookie += 1;
    }

    fn unset(&mut self, name: &[u8]) {
        if let Some((cookie, _)) = self.names.remove(name) {
            self.cookies.remove(&cookie);
        }
    }
}

impl Tree {
    pub(super) fn new(root: Node) -> Self {
        let id = root.id;
        Self {
            nodes: HashMap::from([(id, Arc::new(root))]),
            dirs: HashMap::from([(id, Directory::new(id))]),
        }
    }

    pub(super) fn len(&self) -> u64 {
        self.nodes.len() as u64
    }

    pub(super) fn node(&self, id: FileId) -> Result<&Arc<Node>> {
        self.nodes.get(&id).ok_or(Error::Stale)
    }

    pub(super) fn dir(&self, id: FileId) -> Result<&Directory> {
        match self.dirs.get(&id) {
            Some(dir) => Ok(dir),
            None => {
                Err(if self.nodes.contains_key(&id) { Error::NotDirectory } else { Error::Stale })
            }
        }
    }

    pub(super) fn child(&self, dir: FileId, name: &[u8]) -> Result<&Arc<Node>> {
        let id = self.dir(dir)?.get(name).ok_or(Error::NotFound)?;
        self.node(id)
    }

    /// Whether directory `below` is `dir` or below it.
    pub(super) fn is_within(&self, below: FileId, dir: FileId) -> bool {
        let mut at = below;
        loop {
            if at == dir {
                return true;
            }
            match self.dirs.get(&at) {
                Some(d) if d.parent != at => at = d.parent,
                _ => return false,
            }
        }
    }

    /// Enters a new file under its first name.
    pub(super) fn insert(&mut self, dir: FileId, name: &[u8], node: Node) -> Arc<Node> {
        let node = Arc::new(node);
        if node.is_dir() {
            self.dirs.insert(node.id, Directory::new(dir));
            self.on_meta(dir, |meta| meta.nlink += 1);
        }
        self.nodes.insert(node.id, node.clone());
        self.set(dir, name, node.id);
        node
    }

    /// Adds a name for a file.
    pub(super) fn link(&mut self, dir: FileId, name: &[u8], id: FileId) {
        self.on_meta(id, |meta| {
            meta.nlink += 1;
            meta.touch();
        });
        self.set(dir, name, id);
    }

    /// Removes a name, and the file with its last one.
    pub(super) fn remove(&mut self, dir: FileId, name: &[u8]) {
        let Some(id) = self.dirs.get(&dir).and_then(|d| d.get(name)) else { return };
        self.unset(dir, name);
        self.drop_link(dir, id);
    }

    /// Renames an entry; replaces a file with the target name.
    pub(super) fn rename(&mut self, from: EntryName<'_>, to: EntryName<'_>) {
        let Some(id) = self.dirs.get(&from.dir).and_then(|d| d.get(from.name)) else { return };
        let replaced = self.dirs.get(&to.dir).and_then(|d| d.get(to.name));
        self.unset(from.dir, from.name);
        self.set(to.dir, to.name, id);
        if let Some(replaced) = replaced {
            self.drop_link(to.dir, replaced);
        }
        self.moved(id, from.dir, to.dir);
    }

    /// Swaps two names.
    pub(super) fn exchange(&mut self, a: EntryName<'_>, b: EntryName<'_>) {
        let find = |at: EntryName<'_>| self.dirs.get(&at.dir).and_then(|d| d.get(at.name));
        let (Some(a_id), Some(b_id)) = (find(a), find(b)) else { return };
        self.set(a.dir, a.name, b_id);
        self.set(b.dir, b.name, a_id);
        self.moved(a_id, a.dir, b.dir);
        self.moved(b_id, b.dir, a.dir);
    }

    /// Updates the directories after `id` has moved from one to another.
    fn moved(&mut self, id: FileId, from: FileId, to: FileId) {
        self.on_meta(id, Meta::touch);
        if let Some(dir) = self.dirs.get_mut(&id) {
            dir.parent = to;
            self.on_meta(from, |meta| meta.nlink -= 1);
            self.on_meta(to, |meta| meta.nlink += 1);
        }
    }

    fn drop_link(&mut self, dir: FileId, id: FileId) {
        let Some(node) = self.nodes.get(&id) else { return };
        let is_dir = matches!(node.body, Body::Directory);
        let left = {
            let mut meta = node.meta.lock();
            meta.nlink = if is_dir { 0 } else { meta.nlink - 1 };
            meta.touch();
            meta.nlink
        };
        if left == 0 {
            self.nodes.remove(&id);
            self.dirs.remove(&id);
        }
        if is_dir {
            self.on_meta(dir, |meta| meta.nlink -= 1);
        }
    }

    fn set(&mut self, dir: FileId, name: &[u8], id: FileId) {
        if let Some(entries) = self.dirs.get_mut(&dir) {
            entries.set(name, id);
        }
        self.on_meta(dir, Meta::touch_data);
    }

    fn unset(&mut self, dir: FileId, name: &[u8]) {
        if let Some(entries) = self.dirs.get_mut(&dir) {
            entries.unset(name);
        }
        self.on_meta(dir, Meta::touch_data);
    }

    fn on_meta(&self, id: FileId, change: impl FnOnce(&mut Meta)) {
        if let Some(node) = self.nodes.get(&id) {
            change(&mut node.meta.lock());
        }
    }
}
