//! What all operations use: the file system, its tables, and answers.

use crate::mounted::callers::Callers;
use crate::mounted::handles::{Directory, OpenFile};
use crate::mounted::kernel_pages::KernelPages;
use crate::mounted::nodes::Nodes;
use crate::mounted::stand_ins::StandIns;
use crate::session::MOST_REQUESTS;
use crate::session::counters::Counters;
use crate::session::device::Device;
use crate::wire::abi::{self, ForgetOne};
use crate::wire::reply::{Entry, Errno, attr_out, entry_out};
use crate::wire::request::Requester;
use sharded_slab::Slab;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::Semaphore;
use weir_base::{PAGE_SIZE, number_elsewhere};
use weir_pagecache::{CachedFs, Segments};
use weir_vfs::{Attr, Caller, FileId, FileKind, LockOwner, LockRange};
use zerocopy::IntoBytes;

/// Which cache keeps the data of open files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Keeper {
    /// Weir's page cache: every read and write is a request; one copy in memory, and uncached
    /// operations leave the cache as it was.
    #[default]
    Weir,
    /// The kernel's page cache: a read that it has is no request. Weir passes the data on.
    Kernel,
    /// The kernel's for a file that a program opens for reading alone, Weir's for one that it opens for
    /// writing or with O_DIRECT, or that is marked as uncached. The first open decides, until the last
    /// one is closed: so that the file has one keeper at a time.
    Auto,
    /// The kernel's, which keeps at most this many bytes of the mount, for a file that a program opens for reading;
    /// Weir's for one that it opens for writing alone or with O_DIRECT. The first open decides, as with `Auto`.
    Window(u64),
}

/// How a file system is mounted.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Which cache keeps data.
    pub keeper: Keeper,
    /// All reads and writes are uncached.
    pub uncached: bool,
    /// The kernel checks permissions, by mode and ACL, and operations run in the name of the
    /// program's user: for a mount that several users use. Otherwise they run with the rights of this
    /// process, and the store checks them.
    pub kernel_checks: bool,
    /// Mount points of other file systems, which the store does not enter, are shown as empty files and
    /// directories.
    pub show_mount_points: bool,
    /// The file system of the root, if the store may have files of others below it. Those get other inode numbers than
    /// they have there ([`number_elsewhere`]).
    pub root_fsid: Option<u64>,
    /// How long the kernel may use names and attributes without asking.
    pub valid: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        let valid = Duration::from_secs(1);
        Self {
            keeper: Keeper::default(),
            uncached: false,
            kernel_checks: false,
            show_mount_points: false,
            root_fsid: None,
            valid,
        }
    }
}

/// A mounted file system.
pub(crate) struct Mounted {
    pub(super) fs: CachedFs,
    pub(super) settings: Settings,
    device: Arc<Device>,
    pub(super) nodes: Nodes,
    callers: Callers,
    pub(super) files: Slab<Arc<OpenFile>>,
    pub(super) directories: Slab<Arc<Directory>>,
    pub(crate) counters: Counters,
    pub(super) stand_ins: StandIns,
    pub(super) observer: Option<Arc<dyn Observer>>,
    /// What the kernel keeps of files.
    pub(super) kernel_pages: KernelPages,
    /// Room for SEEK_DATA and SEEK_HOLE that wait for the kernel to drop pages: it may need room for a WRITE first.
    pub(super) seek_drops: Semaphore,
    /// As [`Settings::root_fsid`]; a server may give the file system another number.
    root_fsid: Option<AtomicU64>,
}

/// Is told what programs do.
pub trait Observer: Send + Sync + 'static {
    /// A program opens a file, which was not read or written through this open yet. Must not block for long.
    fn opening(&self, id: FileId);
}

impl std::fmt::Debug for Mounted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Mounted({} nodes)", self.nodes.len())
    }
}

/// The content of a reply, and what it hands over.
#[derive(Default)]
pub(super) struct Answer {
    pub(super) bytes: Vec<u8>,
    /// Data of a READ at an offset, clipped to a length.
    pub(super) data: Option<(Segments, u64, usize)>,
    /// Nodes of which the kernel gets one more use.
    pub(super) nodes: Vec<u64>,
    /// An open file.
    pub(super) file: Option<u64>,
    /// An open directory.
    pub(super) directory: Option<u64>,
    /// A lock.
    pub(super) lock: Option<Granted>,
}

/// A lock that was granted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Granted {
    pub(super) node: u64,
    pub(super) owner: LockOwner,
    pub(super) range: LockRange,
    /// By flock(2), so it belongs to all processes that have the open file: how often it was released before.
    pub(super) flock_releases: Option<u64>,
}

impl Answer {
    /// Success without content.
    pub(super) fn nothing() -> Self {
        Self::default()
    }

    pub(super) fn of(value: &(impl IntoBytes + zerocopy::Immutable)) -> Self {
        Self { bytes: value.as_bytes().to_vec(), ..Self::default() }
    }

    pub(super) fn bytes(bytes: Vec<u8>) -> Self {
        Self { bytes, ..Self::default() }
    }
}

/// An operation's answer.
pub(super) type Answered = Result<Answer, Errno>;

impl Mounted {
    pub(crate) fn new(
        fs: CachedFs,
        settings: Settings,
        device: Arc<Device>,
        observer: Option<Arc<dyn Observer>>,
    ) -> io::Result<Self> {
        let nodes = Nodes::new(fs.root());
        let limit = match settings.keeper {
            Keeper::Window(bytes) => Some(bytes),
            _ => None,
        };
        let kernel_pages = KernelPages::new(&device, limit)?;
        Ok(Self {
            fs,
            settings,
            device,
            nodes,
            callers: Callers::default(),
            files: Slab::new(),
            directories: Slab::new(),
            counters: Counters::default(),
            stand_ins: StandIns::default(),
            observer,
            kernel_pages,
            seek_drops: Semaphore::new(MOST_REQUESTS / 2),
            root_fsid: settings.root_fsid.map(AtomicU64::new),
        })
    }

    /// The kernel gives uses of nodes back.
    pub(crate) fn forget(&self, nodes: &[ForgetOne]) {
        self.nodes.forget(nodes);
    }

    /// In whose name a request is carried out.
    pub(super) fn caller(&self, from: Requester) -> Caller {
        if self.settings.kernel_checks { self.callers.of(from) } else { Caller::Own }
    }

    /// An answer that gives the kernel a use of a file's node.
    pub(super) fn entry(&self, attr: Attr) -> Answer {
        let entry = self.learn(attr);
        Answer { nodes: vec![entry.node], ..Answer::of(&entry_out(&entry)) }
    }

    /// A use of a file's node.
    pub(super) fn learn(&self, attr: Attr) -> Entry {
        let node = self.nodes.learn(&attr);
        let attr = self.shown(node, attr);
        Entry { node, attr, valid: self.settings.valid }
    }

    /// Makes the kernel ask for a node's attributes again.
    pub(super) fn drop_attributes(&self, node: u64) {
        self.device.drop_attributes(node);
    }

    /// Makes the kernel look up all names again (since Linux 6.16; before, it uses them as long as it may).
    pub(super) fn drop_names(&self) {
        // It fails where the kernel does not know this notification.
        let _ = self.device.send(0, abi::NOTIFY_INC_EPOCH, &[]);
    }

    pub(super) fn attr_answer(&self, node: u64, attr: &Attr) -> Answer {
        self.nodes.note_change(node, attr.change);
        let attr = self.shown(node, attr.clone());
        let mut out = attr_out(&attr, self.settings.valid);
        if self.nodes.has_hidden(node) {
            out.attr.nlink = out.attr.nlink.saturating_sub(1);
        }
        Answer::of(&out)
    }

    /// A file's attributes as programs see them.
    pub(super) fn shown(&self, node: u64, mut attr: Attr) -> Attr {
        if node == abi::ROOT {
            self.note_root(attr.fsid);
        }
        if self.may_hide_data(node, &attr) {
            attr.allocated = PAGE_SIZE as u64;
        }
        attr.id.ino = self.number(attr.id.ino, Some(attr.fsid));
        attr
    }

    /// Whether what was stored through a mapping, which is not here, may be the only data of a file. Programs take a
    /// file without space for one hole (GNU tar: `--sparse`).
    pub(super) fn may_hide_data(&self, node: u64, attr: &Attr) -> bool {
        attr.kind == FileKind::Regular
            && attr.allocated == 0
            && attr.size > 0
            && self.nodes.may_be_mapped_for_writing(node)
    }

    /// Notes the number of the root's file system. If it is another one than before, files keep their inode numbers.
    fn note_root(&self, fsid: u64) {
        if let Some(root) = &self.root_fsid {
            let before = root.swap(fsid, Ordering::Relaxed);
            if before != fsid {
                self.nodes.renumber_root(before);
            }
        }
    }

    /// The inode number that programs see of a file in this file system (`None`: that of the root).
    pub(super) fn number(&self, ino: u64, fsid: Option<u64>) -> u64 {
        match (&self.root_fsid, fsid) {
            (Some(root), Some(fsid)) if fsid != root.load(Ordering::Relaxed) => {
                number_elsewhere(fsid, ino)
            }
            _ => ino,
        }
    }

    /// Has the kernel drop no pages that are waited for, or go on with it.
    #[cfg(test)]
    pub(crate) fn hold_drops(&self, held: bool) {
        self.kernel_pages.hold(held);
    }
}
