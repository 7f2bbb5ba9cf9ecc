//! Which file an identity means: a table from inode numbers to names, kept in a log.
//!
//! 1. Before an identity is given out, its name is in the log, by write(2): it is found again
//!    after the process was killed. (After a power failure the log may lack its newest part; the
//!    file is then found by a walk, or reported stale.)
//! 2. What the table says is a hint: whoever uses it compares inode and generation.
//! 3. The table has at most `max_nodes` entries, of about 110 bytes and the name each. Entries
//!    that were not used lately give way, directories never.
//! 4. A torn record at the end of the log is ignored, and so is everything behind it.

use indexmap::IndexMap;
use parking_lot::RwLock;
use rustix::fs::{FlockOperation, flock};
use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use weir_base::stable_hash;
use weir_vfs::FileId;

const MAGIC: &[u8; 8] = b"WEIRNOD1";
const LOG_NAME: &str = "nodes.log";
/// Header of a record: checksum, length of the name, what it says.
const RECORD_BYTES: usize = 8 + 2 + 1 + 4 * 8;
/// A log is rewritten when it has passed this size and four times that of what still counts.
const COMPACT_BYTES: u64 = 64 << 20;

/// Where a file was last seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// Inode number of the directory.
    pub(super) dir: u64,
    pub(super) name: Box<[u8]>,
}

/// What is remembered of a file.
#[derive(Debug)]
struct Node {
    generation: u64,
    /// Creation time, by which a file is recognised without asking for its generation.
    born: u64,
    place: Place,
    is_dir: bool,
    used: AtomicBool,
}

/// The table and its log.
#[derive(Debug)]
pub(super) struct Nodes {
    table: RwLock<Table>,
    max_nodes: usize,
}

#[derive(Debug, Default)]
struct Table {
    nodes: IndexMap<u64, Node>,
    /// More names of files that have several.
    others: HashMap<u64, Vec<Place>>,
    log: Option<Log>,
    /// Every identity ever given out is in the table, unless its file is gone.
    complete: bool,
    /// Where the search for an entry to give up goes on.
    hand: usize,
}

/// An identity and where it was found, to be remembered.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    pub(super) id: FileId,
    pub(super) born: u64,
    pub(super) place: Place,
    pub(super) is_dir: bool,
    pub(super) has_other_names: bool,
}

impl Nodes {
    /// A table without a log: identities do not outlive the process, but for what a walk finds.
    pub(super) fn in_memory(max_nodes: usize) -> Self {
        Self { table: RwLock::default(), max_nodes }
    }

    /// Opens the log in `state_dir` for the tree whose root is `root`, and reads it.
    ///
    /// # Errors
    /// Another process uses it, or it cannot be read or written.
    pub(super) fn open(state_dir: &Path, root: FileId, max_nodes: usize) -> io::Result<Self> {
        std::fs::create_dir_all(state_dir)?;
        let mut table = Table { complete: true, ..Table::default() };
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(state_dir.join("lock"))?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive).map_err(|_| {
            io::Error::new(
                io::ErrorKind::ResourceBusy,
                format!("{} is in use by another process", state_dir.display()),
            )
        })?;
        let path = state_dir.join(LOG_NAME);
        match std::fs::read(&path) {
            Ok(bytes) => table.replay(&bytes, root, max_nodes),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        let file = table.rewrite(&path, root)?;
        let size = file.metadata()?.len();
        table.log = Some(Log { file, _lock: lock, path, root, size, pending: Vec::new() });
        Ok(Self { table: RwLock::new(table), max_nodes })
    }

    /// Whether every identity given out and not gone is in the table.
    pub(super) fn is_complete(&self) -> bool {
        self.table.read().complete
    }

    /// How many files are remembered.
    pub(super) fn len(&self) -> usize {
        self.table.read().nodes.len()
    }

    /// Where a file was last seen.
    pub(super) fn place(&self, id: FileId) -> Option<Place> {
        let table = self.table.read();
        let node = table.nodes.get(&id.ino).filter(|node| node.generation == id.generation)?;
        node.touch();
        Some(node.place.clone())
    }

    /// Other names by which a file was seen.
    pub(super) fn other_places(&self, id: FileId) -> Vec<Place> {
        self.table.read().others.get(&id.ino).cloned().unwrap_or_default()
    }

    /// The identity with an inode number, if it is remembered.
    pub(super) fn by_ino(&self, ino: u64) -> Option<FileId> {
        let table = self.table.read();
        table.nodes.get(&ino).map(|node| FileId { ino, generation: node.generation })
    }

    /// The generation of a file with this inode number and creation time, if it is remembered;
    /// and whether it is remembered at this very place.
    pub(super) fn recognise(
        &self,
        ino: u64,
        born: u64,
        dir: u64,
        name: &[u8],
    ) -> Option<(u64, bool)> {
        let table = self.table.read();
        let node = table.nodes.get(&ino).filter(|node| node.born == born)?;
        node.touch();
        let here = node.place.dir == dir && *node.place.name == *name;
        Some((node.generation, here))
    }

    /// Remembers files, before their identities are given out.
    pub(super) fn remember(&self, seen: impl IntoIterator<Item = Seen>) -> io::Result<()> {
        let mut table = self.table.write();
        for seen in seen {
            table.set(seen, self.max_nodes);
        }
        table.flush()
    }

    /// A name is gone; with `last`, so is the file.
    pub(super) fn forget(&self, ino: u64, dir: u64, name: &[u8], last: bool) {
        let mut table = self.table.write();
        let gone = Place { dir, name: name.into() };
        if let Some(others) = table.others.get_mut(&ino) {
            others.retain(|place| *place != gone);
        }
        if last {
            table.remove(ino);
            return;
        }
        let Some(node) = table.nodes.get(&ino).filter(|node| node.place == gone) else { return };
        let (generation, born, is_dir) = (node.generation, node.born, node.is_dir);
        if let Some(place) = table.others.get_mut(&ino).and_then(Vec::pop) {
            let id = FileId { ino, generation };
            let seen = Seen { id, born, place, is_dir, has_other_names: false };
            table.set(seen, self.max_nodes);
        }
    }

    /// A file goes by another name.
    pub(super) fn moved(&self, id: FileId, place: Place) -> io::Result<()> {
        let mut table = self.table.write();
        let Some(node) = table.nodes.get(&id.ino).filter(|n| n.generation == id.generation) else {
            return Ok(());
        };
        let seen = Seen { id, born: node.born, place, is_dir: node.is_dir, has_other_names: false };
        table.set(seen, self.max_nodes);
        table.flush()
    }
}

impl Node {
    fn touch(&self) {
        if !self.used.load(Relaxed) {
            self.used.store(true, Relaxed);
        }
    }
}

impl Table {
    fn set(&mut self, seen: Seen, max_nodes: usize) {
        let ino = seen.id.ino;
        if let Some(old) = self.nodes.get(&ino)
            && old.generation == seen.id.generation
        {
            let known_link = || self.others.get(&ino).is_some_and(|o| o.contains(&seen.place));
            if old.place == seen.place || (seen.has_other_names && known_link()) {
                return;
            }
            if seen.has_other_names {
                let others = self.others.entry(ino).or_default();
                others.retain(|place| *place != seen.place);
                others.push(old.place.clone());
                // So many names are enough to find a file by.
                if others.len() > 64 {
                    others.remove(0);
                }
            }
        } else {
            self.others.remove(&ino);
            self.make_room(max_nodes);
        }
        if let Some(log) = &mut self.log {
            log.add(&seen);
        }
        let Seen { id, born, place, is_dir, .. } = seen;
        let used = AtomicBool::new(false);
        let node = Node { generation: id.generation, born, place, is_dir, used };
        self.nodes.insert(id.ino, node);
    }

    fn remove(&mut self, ino: u64) {
        self.others.remove(&ino);
        if let Some(node) = self.nodes.swap_remove(&ino)
            && let Some(log) = &mut self.log
        {
            // Goes to the file with the next record: a removal that gets lost does no harm.
            let id = FileId { ino, generation: node.generation };
            log.encode(id, node.born, 0, REMOVED, &[]);
        }
    }

    /// Gives up an entry that was not used lately when the table is full.
    fn make_room(&mut self, max_nodes: usize) {
        let mut looks = 0;
        while self.nodes.len() >= max_nodes && looks < 64 {
            looks += 1;
            self.hand = if self.hand + 1 < self.nodes.len() { self.hand + 1 } else { 0 };
            let Some((&ino, node)) = self.nodes.get_index(self.hand) else { return };
            if !node.is_dir && !node.used.swap(false, Relaxed) {
                self.nodes.swap_remove(&ino);
                self.others.remove(&ino);
                self.complete = false;
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        let Some(log) = &mut self.log else { return Ok(()) };
        if log.pending.is_empty() {
            return Ok(());
        }
        log.flush()?;
        let counts = self.nodes.len() as u64 * (RECORD_BYTES as u64 + 16);
        if log.size > COMPACT_BYTES && log.size > 4 * counts {
            let (path, root) = (log.path.clone(), log.root);
            let file = self.rewrite(&path, root)?;
            let size = file.metadata()?.len();
            if let Some(log) = &mut self.log {
                (log.file, log.size) = (file, size);
            }
        }
        Ok(())
    }

    /// Reads a log back.
    fn replay(&mut self, bytes: &[u8], root: FileId, max_nodes: usize) {
        let Some(mut rest) = bytes.strip_prefix(&header(root)[..]) else {
            if !bytes.is_empty() {
                tracing::warn!("the node log is not of this tree: starting anew");
            }
            self.complete = bytes.is_empty();
            return;
        };
        while let Some((record, tail)) = Record::decode(rest) {
            rest = tail;
            if record.kind == REMOVED {
                self.others.remove(&record.id.ino);
                self.nodes.swap_remove(&record.id.ino);
            } else {
                let seen = Seen {
                    id: record.id,
                    born: record.born,
                    place: Place { dir: record.dir, name: record.name.into() },
                    is_dir: record.kind & DIRECTORY != 0,
                    has_other_names: record.kind & LINKED != 0,
                };
                self.set(seen, max_nodes);
            }
        }
        if !rest.is_empty() {
            tracing::warn!(bytes = rest.len(), "the node log ends in a torn record");
        }
    }

    /// Writes a log of what counts in place of the one that is there.
    fn rewrite(&self, path: &Path, root: FileId) -> io::Result<File> {
        let fresh = path.with_extension("new");
        let mut out = Vec::from(header(root));
        let mut file = File::create(&fresh)?;
        for (&ino, node) in &self.nodes {
            let id = FileId { ino, generation: node.generation };
            let linked = self.others.get(&ino).map_or(&[][..], Vec::as_slice);
            // The last record of a file counts as its place, those before as its other names.
            for place in linked.iter().chain([&node.place]) {
                let kind = kind_of(node.is_dir, !linked.is_empty());
                encode(&mut out, id, node.born, place.dir, kind, &place.name);
            }
            if out.len() > 1 << 20 {
                file.write_all(&out)?;
                out.clear();
            }
        }
        file.write_all(&out)?;
        file.sync_data()?;
        std::fs::rename(&fresh, path)?;
        OpenOptions::new().append(true).open(path)
    }
}

/// The file that the table is kept in.
#[derive(Debug)]
struct Log {
    file: File,
    /// Keeps other processes out.
    _lock: File,
    path: PathBuf,
    root: FileId,
    size: u64,
    pending: Vec<u8>,
}

impl Log {
    fn add(&mut self, seen: &Seen) {
        let kind = kind_of(seen.is_dir, seen.has_other_names);
        self.encode(seen.id, seen.born, seen.place.dir, kind, &seen.place.name);
    }

    fn encode(&mut self, id: FileId, born: u64, dir: u64, kind: u8, name: &[u8]) {
        encode(&mut self.pending, id, born, dir, kind, name);
    }

    fn flush(&mut self) -> io::Result<()> {
        match self.file.write_all(&self.pending) {
            Ok(()) => {
                self.size += self.pending.len() as u64;
                self.pending.clear();
                Ok(())
            }
            Err(error) => {
                // What was written of it must not stand before later records.
                self.file.set_len(self.size)?;
                Err(error)
            }
        }
    }
}

const REMOVED: u8 = 0;
const PRESENT: u8 = 1;
const DIRECTORY: u8 = 2;
const LINKED: u8 = 4;

fn kind_of(is_dir: bool, linked: bool) -> u8 {
    PRESENT | if is_dir { DIRECTORY } else { 0 } | if linked { LINKED } else { 0 }
}

fn header(root: FileId) -> [u8; 24] {
    let mut header = [0; 24];
    header[..8].copy_from_slice(MAGIC);
    header[8..16].copy_from_slice(&root.ino.to_le_bytes());
    header[16..].copy_from_slice(&root.generation.to_le_bytes());
    header
}

/// One record of the log: checksum of the rest, length of the name, kind, identity, creation
/// time, directory, name.
struct Record<'a> {
    id: FileId,
    born: u64,
    dir: u64,
    kind: u8,
    name: &'a [u8],
}

fn encode(out: &mut Vec<u8>, id: FileId, born: u64, dir: u64, kind: u8, name: &[u8]) {
    let from = out.len();
    out.extend_from_slice(&[0; 8]);
    out.extend_from_slice(&(name.len() as u16).to_le_bytes());
    out.push(kind);
    for word in [id.ino, id.generation, born, dir] {
        out.extend_from_slice(&word.to_le_bytes());
    }
    out.extend_from_slice(name);
    let sum = stable_hash(&out[from + 8..]);
    out[from..from + 8].copy_from_slice(&sum.to_le_bytes());
}

impl<'a> Record<'a> {
    /// The record at the front, and what follows it; `None` at the end or at a torn record.
    fn decode(bytes: &'a [u8]) -> Option<(Self, &'a [u8])> {
        let mut input = bytes;
        let mut take = |len: usize| {
            let (now, later) = input.split_at_checked(len)?;
            input = later;
            Some(now)
        };
        let sum = u64::from_le_bytes(take(8)?.try_into().ok()?);
        let name_bytes = usize::from(u16::from_le_bytes(take(2)?.try_into().ok()?));
        let kind = *take(1)?.first()?;
        let mut word = || Some(u64::from_le_bytes(take(8)?.try_into().ok()?));
        let (ino, generation, born, dir) = (word()?, word()?, word()?, word()?);
        let name = take(name_bytes)?;
        if stable_hash(bytes.get(8..RECORD_BYTES + name_bytes)?) != sum {
            return None;
        }
        Some((Self { id: FileId { ino, generation }, born, dir, kind, name }, input))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: FileId = FileId { ino: 2, generation: 9 };

    fn seen(ino: u64, dir: u64, name: &str) -> Seen {
        Seen {
            id: FileId { ino, generation: ino * 10 },
            born: ino,
            place: Place { dir, name: name.as_bytes().into() },
            is_dir: false,
            has_other_names: false,
        }
    }

    fn place_of(nodes: &Nodes, ino: u64) -> Option<(u64, String)> {
        let place = nodes.place(FileId { ino, generation: ino * 10 })?;
        Some((place.dir, String::from_utf8(place.name.into_vec()).unwrap()))
    }

    #[test]
    fn the_table_is_read_back() {
        let dir = tempfile::tempdir().unwrap();
        let nodes = Nodes::open(dir.path(), ROOT, 1000).unwrap();
        nodes.remember((10..200).map(|i| seen(i, 2, &format!("file{i}")))).unwrap();
        nodes.moved(FileId { ino: 10, generation: 100 }, seen(0, 11, "moved").place).unwrap();
        nodes.forget(12, 2, b"file12", true);
        nodes.remember([seen(500, 2, "after")]).unwrap();
        assert!(Nodes::open(dir.path(), ROOT, 1000).is_err(), "one process at a time");
        drop(nodes);
        for _ in 0..2 {
            let nodes = Nodes::open(dir.path(), ROOT, 1000).unwrap();
            assert_eq!(nodes.len(), 190);
            assert_eq!(place_of(&nodes, 10), Some((11, "moved".into())));
            assert_eq!(place_of(&nodes, 12), None);
            assert_eq!(place_of(&nodes, 199), Some((2, "file199".into())));
            assert_eq!(nodes.place(FileId { ino: 199, generation: 1 }), None);
            assert!(nodes.is_complete());
        }
        let other_tree = FileId { ino: 3, generation: 9 };
        let nodes = Nodes::open(dir.path(), other_tree, 1000).unwrap();
        assert_eq!((nodes.len(), nodes.is_complete()), (0, false));
    }

    #[test]
    fn a_torn_tail_costs_only_itself() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(LOG_NAME);
        drop(Nodes::open(dir.path(), ROOT, 1000).unwrap());
        let base = std::fs::read(&path).unwrap();
        let nodes = Nodes::open(dir.path(), ROOT, 1000).unwrap();
        nodes.remember([seen(10, 2, "first"), seen(11, 2, "second")]).unwrap();
        drop(nodes);
        let whole = std::fs::read(&path).unwrap();
        for len in base.len()..whole.len() {
            std::fs::write(&path, &whole[..len]).unwrap();
            let nodes = Nodes::open(dir.path(), ROOT, 1000).unwrap();
            let first_is_whole = len >= base.len() + RECORD_BYTES + 5;
            assert_eq!(nodes.len(), usize::from(first_is_whole), "{len} bytes");
        }
        let mut bad = whole.clone();
        let last = bad.len() - 1;
        bad[last] ^= 1;
        std::fs::write(&path, &bad).unwrap();
        assert_eq!(Nodes::open(dir.path(), ROOT, 1000).unwrap().len(), 1);
    }

    #[test]
    fn a_linked_file_is_known_by_its_other_name() {
        let dir = tempfile::tempdir().unwrap();
        let nodes = Nodes::open(dir.path(), ROOT, 1000).unwrap();
        let linked = |name| Seen { has_other_names: true, ..seen(10, 2, name) };
        nodes.remember([linked("a"), linked("b")]).unwrap();
        drop(nodes);
        let nodes = Nodes::open(dir.path(), ROOT, 1000).unwrap();
        assert_eq!(place_of(&nodes, 10), Some((2, "b".into())));
        nodes.forget(10, 2, b"b", false);
        assert_eq!(place_of(&nodes, 10), Some((2, "a".into())));
    }

    #[test]
    fn a_full_table_gives_up_files_and_never_directories() {
        let nodes = Nodes::in_memory(100);
        let dirs = (1000..1010).map(|i| Seen { is_dir: true, ..seen(i, 2, "dir") });
        nodes.remember(dirs).unwrap();
        nodes.remember((2000..3000).map(|i| seen(i, 2, "file"))).unwrap();
        assert_eq!(nodes.len(), 100);
        assert!((1000..1010).all(|ino| place_of(&nodes, ino).is_some()));
        assert!(!nodes.is_complete());
    }
}
