//! Maps identities to files: a table from inode numbers to names, with a
//! [log](crate::local::tree::nodelog) on disk.
//!
//! 1. Before an identity is handed out, its name is in the log, by write(2): it survives a kill of
//!    the process. A failing disk delays no caller: a bounded number of records waits in memory.
//! 2. The table's answer is a hint: the caller compares inode and generation.
//! 3. The table has at most `max_nodes` entries, of about 110 bytes plus the name each. It evicts
//!    entries that were not used recently, but never directories.
//! 4. `table` is never held across I/O, so a look-up of a known file does not wait for the log.
//!    Lock order: `log`, then `table`.
//! 5. Only a [complete](Nodes::is_complete) table proves that a file is gone.

use crate::local::tree::nodelog::{
    DIRECTORY, Header, LINKED, LOG_NAME, LastExit, Log, RECORD_BYTES, REMOVED, Record, Sum, encode,
    header, is_full, kind_of, lock, set_complete, sync_dir,
};
use indexmap::IndexMap;
use parking_lot::{Condvar, Mutex, MutexGuard, RwLock};
use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use weir_vfs::FileId;

/// A log is rewritten once it exceeds this size, and four times the size of its live records.
const COMPACT_BYTES: u64 = 64 << 20;
/// Appended records are synced after this time.
pub(in crate::local) const SYNC_AFTER: Duration = Duration::from_secs(1);
/// After a failure, the next attempt to rewrite the log comes this much later: it takes space that others may need.
const COMPACT_AGAIN: Duration = Duration::from_secs(60);
/// Entries written to a new log per hold of the lock.
const COMPACT_STEP: usize = 4096;

/// A name of a file (a hard link) where the file was last seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::local) struct Link {
    /// Inode number of the directory.
    pub(in crate::local) dir: u64,
    pub(in crate::local) name: Box<[u8]>,
}

/// An entry of the table.
#[derive(Debug)]
struct Node {
    generation: u64,
    /// Creation time, which identifies a file without reading its generation.
    born: u64,
    place: Link,
    is_dir: bool,
    used: AtomicBool,
}

/// The table and its log.
#[derive(Debug)]
pub(in crate::local) struct Nodes {
    shared: Arc<Shared>,
    keeper: Option<JoinHandle<()>>,
    /// Keeps other processes out.
    _lock: Option<File>,
}

#[derive(Debug)]
struct Shared {
    table: RwLock<Table>,
    log: Option<Mutex<Log>>,
    max_nodes: usize,
    compact_bytes: u64,
    /// Orders for the keeper, a thread that syncs and compacts the log.
    orders: Mutex<Orders>,
    wake: Condvar,
}

#[derive(Debug, Default)]
struct Orders {
    /// There are records to sync.
    work: bool,
    stop: bool,
}

#[derive(Debug, Default)]
struct Table {
    nodes: IndexMap<u64, Node>,
    /// Additional names of files that have several.
    others: HashMap<u64, Vec<Link>>,
    /// Records not yet in the log, if there is one.
    records: Option<Vec<u8>>,
    /// Every identity ever handed out is in the table, unless its file is gone.
    complete: bool,
    /// Where the search for an entry to evict continues.
    hand: usize,
}

/// An identity and its place, to be entered in the table.
#[derive(Clone, Debug)]
pub(in crate::local) struct Seen {
    pub(in crate::local) id: FileId,
    pub(in crate::local) born: u64,
    pub(in crate::local) place: Link,
    pub(in crate::local) is_dir: bool,
    pub(in crate::local) has_other_names: bool,
    /// Neither the kernel nor the file system gives the file a generation: if the table has one for
    /// the inode by now, that one stands.
    pub(in crate::local) numbered: bool,
}

impl Nodes {
    /// A table without a log: after a restart, only a search finds identities again.
    pub(in crate::local) fn in_memory(max_nodes: usize) -> Self {
        let shared = Shared::new(Table::default(), None, max_nodes);
        Self { shared: Arc::new(shared), keeper: None, _lock: None }
    }

    /// Opens the log in `state_dir` for the tree whose root is `root`, and reads it. While there is no
    /// space to rewrite it, it is continued as it is.
    ///
    /// # Errors
    /// Another process uses it, or it cannot be read or written.
    pub(in crate::local) fn open(
        state_dir: &Path,
        root: FileId,
        max_nodes: usize,
    ) -> io::Result<Self> {
        std::fs::create_dir_all(state_dir)?;
        let lock = lock(state_dir)?;
        let mut table = Table { complete: true, ..Table::default() };
        let path = state_dir.join(LOG_NAME);
        let mark = LastExit::read(state_dir);
        let mut readable = None;
        match std::fs::read(&path) {
            Ok(bytes) => {
                readable = table.replay(&bytes, root, max_nodes);
                if table.complete && !mark.is_believed() {
                    tracing::warn!(
                        dir = %state_dir.display(),
                        "the machine went down while files were served: those whose handles the log lacks \
                         are searched for"
                    );
                    table.complete = false;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                // A new state directory, unless entries were found.
                table.complete = mark == LastExit::Missing;
            }
            Err(error) => return Err(error),
        }
        table.records = Some(Vec::new());
        let shared = Shared::new(table, None, max_nodes);
        let (mut log, marked) = match (shared.rewrite(&path, root), readable) {
            (Ok(file), _) => {
                // From here on, records count for this boot.
                let marked =
                    sync_dir(state_dir).and_then(|()| LastExit::of_this_boot().write(state_dir));
                (Log::new(state_dir, root, file), marked)
            }
            (Err(error), Some(size)) if is_full(&error) => {
                let file = OpenOptions::new().append(true).open(&path)?;
                file.set_len(size)?;
                (Log::new(state_dir, root, (file, size)), Err(error))
            }
            (Err(error), _) => return Err(error),
        };
        if let Err(error) = marked {
            if !is_full(&error) {
                return Err(error);
            }
            tracing::warn!(
                %error,
                dir = %state_dir.display(),
                "cannot rewrite or mark the node log: it is continued as it is until there is space"
            );
            // The keeper rewrites it. Until then, a mark of this boot stands, and no other.
            log.lost = true;
            if mark != LastExit::of_this_boot() {
                log.mark(&LastExit::Missing);
            }
        }
        shared.orders.lock().work = log.lost;
        let shared = Arc::new(Shared { log: Some(Mutex::new(log)), ..shared });
        let keeper = std::thread::Builder::new().name("weir-nodes".into());
        let kept = shared.clone();
        let keeper = keeper.spawn(move || kept.keep())?;
        Ok(Self { shared, keeper: Some(keeper), _lock: Some(lock) })
    }

    /// Whether every identity handed out is in the table, unless its file is gone.
    pub(in crate::local) fn is_complete(&self) -> bool {
        self.shared.table.read().complete
    }

    /// Number of files in the table.
    pub(in crate::local) fn len(&self) -> usize {
        self.shared.table.read().nodes.len()
    }

    /// Where a file was last seen.
    pub(in crate::local) fn place(&self, id: FileId) -> Option<Link> {
        let table = self.shared.table.read();
        let node = table.nodes.get(&id.ino).filter(|node| node.generation == id.generation)?;
        node.touch();
        Some(node.place.clone())
    }

    /// Other names under which a file was seen.
    pub(in crate::local) fn other_places(&self, id: FileId) -> Vec<Link> {
        self.shared.table.read().others.get(&id.ino).cloned().unwrap_or_default()
    }

    /// The identity with an inode number, if it is in the table.
    pub(in crate::local) fn by_ino(&self, ino: u64) -> Option<FileId> {
        let table = self.shared.table.read();
        table.nodes.get(&ino).map(|node| FileId { ino, generation: node.generation })
    }

    /// The generation of a file with this inode number and creation time, if it is in the table;
    /// and whether the table has this very place.
    pub(in crate::local) fn recognise(
        &self,
        ino: u64,
        born: u64,
        dir: u64,
        name: &[u8],
    ) -> Option<(u64, bool)> {
        let table = self.shared.table.read();
        let node = table.nodes.get(&ino).filter(|node| node.born == born)?;
        node.touch();
        let here = node.place.dir == dir && *node.place.name == *name;
        Some((node.generation, here))
    }

    /// Enters files, before their identities are handed out.
    pub(in crate::local) fn remember(&self, seen: impl IntoIterator<Item = Seen>) {
        let mut table = self.shared.table.write();
        for mut seen in seen {
            if seen.numbered {
                table.adopt(&mut seen, |_| true);
            }
            table.set(seen, self.shared.max_nodes);
        }
        drop(table);
        self.shared.append();
    }

    /// Enters a file to which neither the kernel nor the file system gives a generation, and returns
    /// its identity: that in the table if its generation `stands`, else that in `seen`. Deciding
    /// under the table's lock gives the file one identity, however many callers find it at once.
    pub(in crate::local) fn number(
        &self,
        mut seen: Seen,
        stands: impl FnOnce(u64) -> bool,
    ) -> FileId {
        let mut table = self.shared.table.write();
        table.adopt(&mut seen, stands);
        let id = seen.id;
        table.set(seen, self.shared.max_nodes);
        drop(table);
        self.shared.append();
        id
    }

    /// A name is gone; with `last`, the file is, too.
    pub(in crate::local) fn forget(&self, ino: u64, dir: u64, name: &[u8], last: bool) {
        let mut table = self.shared.table.write();
        if last {
            table.remove(ino);
        } else {
            table.forget(ino, &Link { dir, name: name.into() }, self.shared.max_nodes);
        }
    }

    /// A name of a file was renamed; its other names stay, if it is `linked`: has several.
    pub(in crate::local) fn moved(&self, id: FileId, linked: bool, from: &Link, to: Link) {
        let mut table = self.shared.table.write();
        table.forget(id.ino, from, self.shared.max_nodes);
        let Some(node) = table.nodes.get(&id.ino).filter(|n| n.generation == id.generation) else {
            return;
        };
        // If the table knew no other name, the place is still the one that is gone.
        let has_other_names = linked && node.place != *from;
        let (born, is_dir) = (node.born, node.is_dir);
        let seen = Seen { id, born, place: to, is_dir, has_other_names, numbered: false };
        table.set(seen, self.shared.max_nodes);
        drop(table);
        self.shared.append();
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        self.shared.orders.lock().stop = true;
        self.shared.wake.notify_all();
        if let Some(keeper) = self.keeper.take() {
            // It does not panic; if it did, the log is not marked as clean below.
            if keeper.join().is_err() {
                return;
            }
        }
        self.shared.close();
    }
}

impl Shared {
    fn new(table: Table, log: Option<Mutex<Log>>, max_nodes: usize) -> Self {
        Self {
            table: RwLock::new(table),
            log,
            max_nodes,
            compact_bytes: COMPACT_BYTES,
            orders: Mutex::default(),
            wake: Condvar::new(),
        }
    }

    /// Writes the table's new records to the log; on return, the kernel has those from before the
    /// call, unless the write failed.
    fn append(&self) {
        let Some(log) = &self.log else { return };
        drop(self.append_to(log));
        let mut orders = self.orders.lock();
        if !std::mem::replace(&mut orders.work, true) {
            self.wake.notify_one();
        }
    }

    fn append_to<'a>(&self, log: &'a Mutex<Log>) -> MutexGuard<'a, Log> {
        // In the order of their creation: the holder of the log takes them out.
        let mut log = log.lock();
        let records = self.table.write().records.as_mut().map(std::mem::take).unwrap_or_default();
        // Also if records are dropped, the table has them: only the log is incomplete until it is rewritten, and has
        // no mark.
        log.append(&records, Instant::now());
        log
    }

    /// The keeper's work, until the table is closed.
    fn keep(&self) {
        let mut orders = self.orders.lock();
        while !orders.stop {
            if !orders.work {
                self.wake.wait(&mut orders);
                continue;
            }
            // Records within this time are synced together; only a stop shortens the wait.
            let until = Instant::now() + SYNC_AFTER;
            while !orders.stop && !self.wake.wait_until(&mut orders, until).timed_out() {}
            orders.work = false;
            drop(orders);
            let again = self.tidy();
            orders = self.orders.lock();
            orders.work |= again;
        }
    }

    /// Syncs the log, and rewrites it if that is due; returns whether there is more to do.
    fn tidy(&self) -> bool {
        let Some(log) = &self.log else { return false };
        let mut held = self.append_to(log);
        let file = std::mem::take(&mut held.unsynced).then(|| held.file.clone());
        let counts = self.table.read().nodes.len() as u64 * (RECORD_BYTES as u64 + 16);
        let grown = held.size > self.compact_bytes && held.size > 4 * counts;
        let waits = held.compact_after.is_some_and(|after| Instant::now() < after);
        let compact = !waits && !held.is_failing() && (grown || held.lost);
        drop(held);
        if let Some(file) = file
            && let Err(error) = file.sync_data()
        {
            // The failed sync may have lost records silently: a rewritten log has them all.
            tracing::warn!(%error, "cannot sync the node log");
            let mut held = log.lock();
            held.lost = true;
            held.mark(&LastExit::Missing);
        }
        if compact && let Err(error) = self.compact(log) {
            tracing::warn!(%error, "cannot compact the node log");
            log.lock().compact_after = Some(Instant::now() + COMPACT_AGAIN);
        }
        let held = log.lock();
        held.is_failing() || held.lost
    }

    /// Replaces the log by one with the live records only. Appends wait only at the beginning and
    /// at the end.
    ///
    /// # Errors
    /// The new log could not be written, and is removed: the old one continues.
    fn compact(&self, log: &Mutex<Log>) -> io::Result<()> {
        let (path, root) = {
            let mut log = self.append_to(log);
            log.tee = Some(Vec::new());
            (log.path(), log.root)
        };
        let _removed = RemovedUnlessRenamed(&path);
        let fresh = self.write_snapshot(&path, root).and_then(|fresh| {
            fresh.sync_data()?;
            Ok(fresh)
        });
        let mut log = self.append_to(log);
        let tee = log.tee.take();
        let mut fresh = fresh?;
        // Records that were dropped meanwhile may be neither in the new log nor in the tee.
        let Some(tee) = tee.filter(|_| !log.is_failing()) else {
            return Err(io::ErrorKind::StorageFull.into());
        };
        fresh.write_all(&tee)?;
        // Records that were dropped before are in the table, and so in the new log.
        set_complete(&fresh, root, self.table.read().complete)?;
        let (file, size) = put_in_place(fresh, &path)?;
        log.size = size;
        log.file = Arc::new(file);
        log.unsynced = true;
        // A log that cannot be marked is not trusted.
        log.lost = log.lost && !log.mark(&LastExit::of_this_boot());
        log.compact_after = log.lost.then(|| Instant::now() + COMPACT_AGAIN);
        Ok(())
    }

    /// Replaces the log at the start. Returns the new one, on disk, and its size.
    fn rewrite(&self, path: &Path, root: FileId) -> io::Result<(File, u64)> {
        let _removed = RemovedUnlessRenamed(path);
        let file = self.write_snapshot(path, root)?;
        set_complete(&file, root, self.table.read().complete)?;
        file.sync_data()?;
        put_in_place(file, path)
    }

    /// Writes a log of the live records next to the current one. Changes meanwhile are in it in
    /// their old or new state, and in the records of that time.
    fn write_snapshot(&self, path: &Path, root: FileId) -> io::Result<File> {
        let mut file = OpenOptions::new()
            .create(true)
            .truncate(true)
            .write(true)
            .open(path.with_extension("new"))?;
        let mut out = Vec::from(header(root, false));
        // From the end: a removed entry is replaced by the last one, which was written already.
        let mut left = self.table.read().nodes.len();
        loop {
            let table = self.table.read();
            let end = left.min(table.nodes.len());
            left = end.saturating_sub(COMPACT_STEP);
            for at in (left..end).rev() {
                table.encode_node(&mut out, at);
            }
            drop(table);
            file.write_all(&out)?;
            out.clear();
            if left == 0 {
                return Ok(file);
            }
        }
    }

    /// Shuts down cleanly: everything is on disk, and marked so.
    fn close(&self) {
        let Some(log) = &self.log else { return };
        let log = self.append_to(log);
        if log.is_whole() && log.file.sync_all().is_ok() && self.table.read().complete {
            log.mark(&LastExit::Clean);
        } else if let Err(error) = LastExit::Missing.write(&log.state_dir) {
            tracing::warn!(%error, "cannot mark the node log");
        }
    }
}

/// Replaces the old log by a new one, and returns that, and its size. After an error, the old one is in place.
fn put_in_place(fresh: File, path: &Path) -> io::Result<(File, u64)> {
    drop(fresh);
    let new = path.with_extension("new");
    let file = OpenOptions::new().append(true).open(&new)?;
    let size = file.metadata()?.len();
    std::fs::rename(new, path)?;
    Ok((file, size))
}

/// Removes the new log when this is dropped, if it did not take the place of that at the path: it may fill the disk.
struct RemovedUnlessRenamed<'a>(&'a Path);

impl Drop for RemovedUnlessRenamed<'_> {
    fn drop(&mut self) {
        let removed = std::fs::remove_file(self.0.with_extension("new"));
        if let Err(error) = removed
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(%error, "cannot remove an unfinished node log");
        }
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
    /// Gives what was seen the generation that the table has for it, if that one `stands`.
    fn adopt(&self, seen: &mut Seen, stands: impl FnOnce(u64) -> bool) {
        let known = self.nodes.get(&seen.id.ino).filter(|node| node.born == seen.born);
        if let Some(node) = known.filter(|node| stands(node.generation)) {
            seen.id.generation = node.generation;
        }
    }

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
                // This many names suffice to find a file.
                if others.len() > 64 {
                    others.remove(0);
                }
            }
        } else {
            self.others.remove(&ino);
            self.make_room(max_nodes);
        }
        if let Some(records) = &mut self.records {
            let kind = kind_of(seen.is_dir, seen.has_other_names);
            encode(records, seen.id, seen.born, seen.place.dir, kind, &seen.place.name);
        }
        let Seen { id, born, place, is_dir, .. } = seen;
        let used = AtomicBool::new(false);
        let node = Node { generation: id.generation, born, place, is_dir, used };
        self.nodes.insert(id.ino, node);
    }

    /// A name is gone. The table keeps the place of a file of which it knows no other name.
    fn forget(&mut self, ino: u64, gone: &Link, max_nodes: usize) {
        if let Some(others) = self.others.get_mut(&ino) {
            others.retain(|place| place != gone);
        }
        let Some(node) = self.nodes.get(&ino).filter(|node| node.place == *gone) else { return };
        let (generation, born, is_dir) = (node.generation, node.born, node.is_dir);
        if let Some(place) = self.others.get_mut(&ino).and_then(Vec::pop) {
            let id = FileId { ino, generation };
            let (has_other_names, numbered) = (false, false);
            self.set(Seen { id, born, place, is_dir, has_other_names, numbered }, max_nodes);
        }
    }

    fn remove(&mut self, ino: u64) {
        self.others.remove(&ino);
        if let Some(node) = self.nodes.swap_remove(&ino)
            && let Some(records) = &mut self.records
        {
            // Written with the next record: losing a removal does no harm.
            let id = FileId { ino, generation: node.generation };
            encode(records, id, node.born, 0, REMOVED, &[]);
        }
    }

    /// If the table is full, evicts an entry that was not used recently.
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

    /// Reads a log. Returns the length of what is valid, if records may be appended to it.
    fn replay(&mut self, bytes: &[u8], root: FileId, max_nodes: usize) -> Option<u64> {
        let Some((Header { sum, complete }, mut rest)) = Header::decode(bytes, root) else {
            if !bytes.is_empty() {
                tracing::warn!("the node log belongs to another tree: starting with an empty one");
            }
            self.complete = bytes.is_empty();
            return None;
        };
        self.complete = complete;
        while let Some((record, tail)) = Record::decode(rest, sum) {
            rest = tail;
            if record.kind == REMOVED {
                self.others.remove(&record.id.ino);
                self.nodes.swap_remove(&record.id.ino);
            } else {
                let seen = Seen {
                    id: record.id,
                    born: record.born,
                    place: Link { dir: record.dir, name: record.name.into() },
                    is_dir: record.kind & DIRECTORY != 0,
                    has_other_names: record.kind & LINKED != 0,
                    numbered: false,
                };
                self.set(seen, max_nodes);
            }
        }
        if !rest.is_empty() {
            tracing::warn!(bytes = rest.len(), "the node log ends in a torn record");
        }
        (sum == Sum::Xxh3).then_some((bytes.len() - rest.len()) as u64)
    }

    /// Appends the records of an entry.
    fn encode_node(&self, out: &mut Vec<u8>, at: usize) {
        let Some((&ino, node)) = self.nodes.get_index(at) else { return };
        let id = FileId { ino, generation: node.generation };
        let linked = self.others.get(&ino).map_or(&[][..], Vec::as_slice);
        // The last record of a file is its place, those before are its other names.
        for place in linked.iter().chain([&node.place]) {
            let kind = kind_of(node.is_dir, !linked.is_empty());
            encode(out, id, node.born, place.dir, kind, &place.name);
        }
    }
}

#[cfg(test)]
mod tests;
