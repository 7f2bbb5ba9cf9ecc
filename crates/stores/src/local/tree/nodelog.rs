//! The log of the [table of nodes](super::nodes) on disk, and its validity.
//!
//! 1. An appended record survives a kill of the process. A power failure may lose the newest
//!    records: the log is synced within [`SYNC_AFTER`](super::nodes::SYNC_AFTER), not before
//!    identities are handed out.
//! 2. So a log is complete only if its process shut down cleanly, or ran since this boot of the
//!    machine: a file next to it says which ([`LastExit`]). That file is removed while records
//!    cannot be written.
//! 3. A torn record ends the log; everything after it is ignored.

use rustix::fs::{FlockOperation, flock};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use weir_base::stable_hash;
use weir_vfs::FileId;
use xxhash_rust::xxh3::xxh3_64;

/// Logs of the current version, with XXH3 checksums.
const MAGIC: &[u8; 8] = b"WEIRNOD3";
/// Older logs, with [`stable_hash`] checksums. They are rewritten when they are opened.
const OLD_MAGIC: &[u8; 8] = b"WEIRNOD2";
pub(in crate::local) const LOG_NAME: &str = "nodes.log";
const MARK_NAME: &str = "nodes.state";
/// Header of the log: magic, identity of the root, whether evicted entries are missing.
pub(in crate::local) const HEADER_BYTES: usize = 32;
/// Header of a record: checksum, length of the name, kind, fields.
pub(in crate::local) const RECORD_BYTES: usize = 8 + 2 + 1 + 4 * 8;
/// Most bytes of records that wait for the disk; more are dropped.
const MAX_BACKLOG: usize = 16 << 20;
/// After a failed write, the next attempt waits this long.
pub(in crate::local) const RETRY_AFTER: Duration = Duration::from_secs(1);

pub(in crate::local) const REMOVED: u8 = 0;
const PRESENT: u8 = 1;
pub(in crate::local) const DIRECTORY: u8 = 2;
pub(in crate::local) const LINKED: u8 = 4;

pub(in crate::local) fn kind_of(is_dir: bool, linked: bool) -> u8 {
    PRESENT | if is_dir { DIRECTORY } else { 0 } | if linked { LINKED } else { 0 }
}

/// How the log's last process ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::local) enum LastExit {
    /// Cleanly: everything is on disk.
    Clean,
    /// Uncleanly, or it still runs; its writes are there if the machine's boot is this one.
    Boot(String),
    /// Unknown.
    Missing,
}

impl LastExit {
    pub(in crate::local) fn read(state_dir: &Path) -> Self {
        match std::fs::read_to_string(state_dir.join(MARK_NAME)) {
            Ok(text) if text == "clean\n" => Self::Clean,
            Ok(text) if text.len() > 8 => Self::Boot(text.trim_end().to_owned()),
            _ => Self::Missing,
        }
    }

    /// This boot of the machine.
    pub(in crate::local) fn of_this_boot() -> Self {
        match std::fs::read_to_string("/proc/sys/kernel/random/boot_id") {
            Ok(id) if id.len() > 8 => Self::Boot(id.trim_end().to_owned()),
            _ => Self::Missing,
        }
    }

    /// Whether everything written under this mark is there now.
    pub(in crate::local) fn is_believed(&self) -> bool {
        *self == Self::Clean || (*self != Self::Missing && *self == Self::of_this_boot())
    }

    /// Writes it to disk, durably.
    pub(in crate::local) fn write(&self, state_dir: &Path) -> io::Result<()> {
        let path = state_dir.join(MARK_NAME);
        let text = match self {
            Self::Clean => "clean\n".to_owned(),
            Self::Boot(id) => format!("{id}\n"),
            Self::Missing => {
                return match std::fs::remove_file(path) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                    _ => sync_dir(state_dir),
                };
            }
        };
        // Not the name of a new log, which may be written meanwhile.
        let fresh = state_dir.join("nodes.state.new");
        let mut file = File::create(&fresh)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&fresh, &path)?;
        sync_dir(state_dir)
    }
}

pub(in crate::local) fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

/// Locks a state directory against other processes.
pub(in crate::local) fn lock(state_dir: &Path) -> io::Result<File> {
    let lock =
        OpenOptions::new().create(true).truncate(false).write(true).open(state_dir.join("lock"))?;
    flock(&lock, FlockOperation::NonBlockingLockExclusive).map_err(|_| {
        io::Error::new(
            io::ErrorKind::ResourceBusy,
            format!("{} is in use by another process", state_dir.display()),
        )
    })?;
    Ok(lock)
}

/// The table's file.
#[derive(Debug)]
pub(in crate::local) struct Log {
    pub(in crate::local) file: Arc<File>,
    pub(in crate::local) state_dir: PathBuf,
    pub(in crate::local) root: FileId,
    pub(in crate::local) size: u64,
    /// Records not yet written to the file.
    backlog: Vec<u8>,
    /// The time of the last failed write.
    failed: Option<Instant>,
    /// Records were dropped, or the log cannot be marked: it has to be rewritten.
    pub(in crate::local) lost: bool,
    /// Records appended while a new log is written. `None` if some were dropped meanwhile.
    pub(in crate::local) tee: Option<Vec<u8>>,
    /// Records were appended since the last sync.
    pub(in crate::local) unsynced: bool,
    /// A new log could not be written: the next attempt comes no sooner.
    pub(in crate::local) compact_after: Option<Instant>,
}

impl Log {
    /// A log of `size` bytes.
    pub(in crate::local) fn new(state_dir: &Path, root: FileId, (file, size): (File, u64)) -> Self {
        Self {
            file: Arc::new(file),
            state_dir: state_dir.to_owned(),
            root,
            size,
            backlog: Vec::new(),
            failed: None,
            lost: false,
            tee: None,
            unsynced: false,
            compact_after: None,
        }
    }

    pub(in crate::local) fn path(&self) -> PathBuf {
        self.state_dir.join(LOG_NAME)
    }

    pub(in crate::local) fn is_failing(&self) -> bool {
        self.failed.is_some()
    }

    /// Appends records; keeps those that cannot be written, and appends them later.
    pub(in crate::local) fn append(&mut self, records: &[u8], now: Instant) {
        self.backlog.extend_from_slice(records);
        if self.backlog.is_empty()
            || self.failed.is_some_and(|at| now.saturating_duration_since(at) < RETRY_AFTER)
        {
            return self.bound();
        }
        let written = match self.failed {
            // A partial write of the last attempt must not precede later records.
            Some(_) => {
                self.file.set_len(self.size).and_then(|()| (&*self.file).write_all(&self.backlog))
            }
            None => (&*self.file).write_all(&self.backlog),
        };
        match written {
            Ok(()) => {
                self.size += self.backlog.len() as u64;
                self.unsynced = true;
                if let Some(tee) = &mut self.tee {
                    tee.extend_from_slice(&self.backlog);
                }
                self.backlog = Vec::new();
                if self.failed.take().is_some() {
                    tracing::info!(dir = %self.state_dir.display(), "the node log is written again");
                    // A rewritten log will be marked.
                    self.lost = self.lost || !self.mark(&LastExit::of_this_boot());
                }
            }
            Err(error) => {
                if self.failed.replace(now).is_none() {
                    tracing::warn!(
                        %error,
                        dir = %self.state_dir.display(),
                        "cannot write the node log: handles are kept in memory, and files are searched \
                         for after a restart unless there is space in time"
                    );
                    self.mark(&LastExit::Missing);
                }
                self.bound();
            }
        }
    }

    fn bound(&mut self) {
        if self.backlog.len() > MAX_BACKLOG {
            self.backlog = Vec::new();
            self.lost = true;
            self.tee = None;
        }
    }

    /// Returns whether the mark could be written.
    pub(in crate::local) fn mark(&self, mark: &LastExit) -> bool {
        let written = mark.write(&self.state_dir);
        if let Err(error) = &written {
            // Without a mark the log is not trusted, which is safe.
            tracing::warn!(%error, "cannot mark the node log");
            drop(std::fs::remove_file(self.state_dir.join(MARK_NAME)));
        }
        written.is_ok()
    }

    /// Whether the kernel has all records: none failed, none was dropped.
    pub(in crate::local) fn is_whole(&self) -> bool {
        self.failed.is_none() && !self.lost && self.backlog.is_empty()
    }
}

/// Whether there is no space for what was to be written.
pub(in crate::local) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// The header of a log of the tree with this root.
pub(in crate::local) fn header(root: FileId, complete: bool) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..8].copy_from_slice(MAGIC);
    header[8..16].copy_from_slice(&root.ino.to_le_bytes());
    header[16..24].copy_from_slice(&root.generation.to_le_bytes());
    header[24] = u8::from(complete);
    header
}

/// Records in a log's header whether the log is complete.
pub(in crate::local) fn set_complete(file: &File, root: FileId, complete: bool) -> io::Result<()> {
    file.write_all_at(&header(root, complete), 0)
}

/// One record of the log: checksum of the rest, length of the name, kind, identity, creation
/// time, directory, name.
pub(in crate::local) struct Record<'a> {
    pub(in crate::local) id: FileId,
    pub(in crate::local) born: u64,
    pub(in crate::local) dir: u64,
    pub(in crate::local) kind: u8,
    pub(in crate::local) name: &'a [u8],
}

/// The kind of checksum in a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::local) enum Sum {
    /// XXH3, 64 bits.
    Xxh3,
    /// FNV-1a, in older logs.
    Fnv1a,
}

impl Sum {
    fn of(self, bytes: &[u8]) -> u64 {
        match self {
            Self::Xxh3 => xxh3_64(bytes),
            Self::Fnv1a => stable_hash(bytes),
        }
    }
}

/// The header of a log.
pub(in crate::local) struct Header {
    pub(in crate::local) sum: Sum,
    /// Every identity handed out is in the log.
    pub(in crate::local) complete: bool,
}

impl Header {
    /// The header of a log of the tree with this root, and the records after it; `None` if the log
    /// is for another tree, or none.
    pub(in crate::local) fn decode(bytes: &[u8], root: FileId) -> Option<(Self, &[u8])> {
        for (magic, sum) in [(MAGIC, Sum::Xxh3), (OLD_MAGIC, Sum::Fnv1a)] {
            for complete in [true, false] {
                let mut front = header(root, complete);
                front[..8].copy_from_slice(magic);
                if let Some(records) = bytes.strip_prefix(&front[..]) {
                    return Some((Self { sum, complete }, records));
                }
            }
        }
        None
    }
}

pub(in crate::local) fn encode(
    out: &mut Vec<u8>,
    id: FileId,
    born: u64,
    dir: u64,
    kind: u8,
    name: &[u8],
) {
    let from = out.len();
    out.extend_from_slice(&[0; 8]);
    out.extend_from_slice(&(name.len() as u16).to_le_bytes());
    out.push(kind);
    for word in [id.ino, id.generation, born, dir] {
        out.extend_from_slice(&word.to_le_bytes());
    }
    out.extend_from_slice(name);
    let sum = Sum::Xxh3.of(&out[from + 8..]);
    out[from..from + 8].copy_from_slice(&sum.to_le_bytes());
}

impl<'a> Record<'a> {
    /// The first record, with a checksum of this kind, and the rest; `None` at the end or at a torn
    /// record.
    pub(in crate::local) fn decode(bytes: &'a [u8], by: Sum) -> Option<(Self, &'a [u8])> {
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
        if by.of(bytes.get(8..RECORD_BYTES + name_bytes)?) != sum {
            return None;
        }
        Some((Self { id: FileId { ino, generation }, born, dir, kind, name }, input))
    }
}
