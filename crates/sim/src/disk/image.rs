//! The content of a disk, and changes of it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::SystemTime;

/// The inode of the root directory.
pub(super) const ROOT: u64 = 2;

/// All files.
#[derive(Clone)]
pub(super) struct Image {
    pub(super) inodes: BTreeMap<u64, Inode>,
    /// Directory and name; the file, and the entry's cookie.
    pub(super) names: BTreeMap<(u64, Vec<u8>), (u64, u64)>,
}

/// One file.
#[derive(Clone)]
pub(super) struct Inode {
    pub(super) is_dir: bool,
    pub(super) meta: Meta,
    pub(super) data: Vec<u8>,
}

/// Attributes.
#[derive(Clone, Copy)]
pub(super) struct Meta {
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) atime: SystemTime,
    pub(super) mtime: SystemTime,
    pub(super) ctime: SystemTime,
    pub(super) change: u64,
}

/// One change. Each sets what it names to a value, so any subset of changes can be made.
#[derive(Clone)]
pub(super) enum Change {
    Data { ino: u64, offset: usize, bytes: Vec<u8> },
    Size { ino: u64, size: usize },
    Meta { ino: u64, meta: Meta },
    Names { entries: Vec<Entry>, made: Option<(u64, Inode)> },
}

/// A name in a directory, and the file (with the entry's cookie) that it belongs to after a change.
pub(super) type Entry = ((u64, Vec<u8>), Option<(u64, u64)>);

impl Change {
    /// Whether a sync of this node makes it durable.
    pub(super) fn is_of(&self, node: u64) -> bool {
        match self {
            Self::Data { ino, .. } | Self::Size { ino, .. } | Self::Meta { ino, .. } => {
                *ino == node
            }
            Self::Names { entries, .. } => entries.iter().any(|((dir, _), _)| *dir == node),
        }
    }

    /// The parts of it that a power cut keeps or loses.
    pub(super) fn parts(self, sector: usize) -> Vec<Self> {
        let Self::Data { ino, offset, bytes } = self else { return vec![self] };
        let mut parts = Vec::new();
        let mut at = 0;
        while at < bytes.len() {
            let end = ((offset + at) / sector + 1) * sector - offset;
            let end = end.min(bytes.len());
            parts.push(Self::Data { ino, offset: offset + at, bytes: bytes[at..end].to_vec() });
            at = end;
        }
        parts
    }
}

impl Meta {
    pub(super) fn new(mode: u32) -> Self {
        let now = SystemTime::now();
        Self { mode, uid: 0, gid: 0, atime: now, mtime: now, ctime: now, change: 1 }
    }
}

impl Image {
    pub(super) fn new() -> Self {
        let root = Inode { is_dir: true, meta: Meta::new(0o755), data: Vec::new() };
        Self { inodes: BTreeMap::from([(ROOT, root)]), names: BTreeMap::new() }
    }

    fn inode(&mut self, ino: u64) -> &mut Inode {
        self.inodes.entry(ino).or_insert_with(|| Inode {
            is_dir: false,
            meta: Meta::new(0o644),
            data: Vec::new(),
        })
    }

    pub(super) fn apply(&mut self, change: &Change) {
        match change {
            Change::Data { ino, offset, bytes } => {
                let data = &mut self.inode(*ino).data;
                let end = offset + bytes.len();
                if data.len() < end {
                    data.resize(end, 0);
                }
                data[*offset..end].copy_from_slice(bytes);
            }
            Change::Size { ino, size } => self.inode(*ino).data.resize(*size, 0),
            Change::Meta { ino, meta } => self.inode(*ino).meta = *meta,
            Change::Names { entries, made } => {
                if let Some((ino, inode)) = made {
                    let data = self.inodes.get(ino).map(|inode| inode.data.clone());
                    let data = data.unwrap_or_default();
                    self.inodes.insert(*ino, Inode { data, ..inode.clone() });
                }
                for (name, entry) in entries {
                    match entry {
                        Some(entry) => drop(self.names.insert(name.clone(), *entry)),
                        None => drop(self.names.remove(name)),
                    }
                }
            }
        }
    }

    pub(super) fn links(&self, ino: u64) -> u32 {
        self.names.values().filter(|(named, _)| *named == ino).count() as u32
    }

    /// Drops what no path from the root leads to.
    pub(super) fn drop_nameless(&mut self) {
        let mut reached = BTreeSet::from([ROOT]);
        let mut dirs = vec![ROOT];
        while let Some(dir) = dirs.pop() {
            for ((_, _), (ino, _)) in self.names.range((dir, Vec::new())..(dir + 1, Vec::new())) {
                if reached.insert(*ino) {
                    dirs.push(*ino);
                }
            }
        }
        self.inodes.retain(|ino, _| reached.contains(ino));
        let inodes = &self.inodes;
        self.names.retain(|(dir, _), (ino, _)| reached.contains(dir) && inodes.contains_key(ino));
    }
}
