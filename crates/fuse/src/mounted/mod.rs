//! A mounted file system: carries out the kernel's requests through the page cache.
//!
//! - `names`, `directories`, `attributes`, `files`, `locks`: the operations.
//! - `nodes`: the kernel's numbers for files. `callers`: in whose name operations run.
//!
//! 1. Every reply tells the state after the operation; what a reply hands over (a use of a node, an
//!    open file) is taken back if the kernel does not want the reply any more.
//! 2. `close-to-open`: OPEN compares the file's change attribute with the one that the kernel saw, and
//!    makes the kernel drop its attributes and pages if it differs; closing a file writes its data to
//!    the store.

mod attributes;
mod callers;
mod directories;
mod files;
mod locks;
mod names;
mod nodes;

use crate::mounted::callers::Callers;
use crate::mounted::directories::Directory;
use crate::mounted::files::OpenFile;
use crate::mounted::nodes::Nodes;
use crate::session::buffers::Payload;
use crate::session::device::Device;
use crate::session::pending::Reply;
use crate::wire::abi::{self, ForgetOne};
use crate::wire::reply::{Entry, Errno, attr_out, entry_out};
use crate::wire::request::{Op, Request, Requester};
use sharded_slab::Slab;
use std::io::IoSlice;
use std::sync::Arc;
use std::time::Duration;
use weir_pagecache::{CachedFs, Segments};
use weir_vfs::{Attr, Caller};
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
    /// How long the kernel may use names and attributes without asking.
    pub valid: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        let valid = Duration::from_secs(1);
        Self { keeper: Keeper::default(), uncached: false, kernel_checks: false, valid }
    }
}

/// A mounted file system.
pub(crate) struct Mounted {
    fs: CachedFs,
    settings: Settings,
    device: Arc<Device>,
    nodes: Nodes,
    callers: Callers,
    files: Slab<Arc<OpenFile>>,
    directories: Slab<Arc<Directory>>,
}

impl std::fmt::Debug for Mounted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Mounted({} nodes)", self.nodes.len())
    }
}

/// The content of a reply, and what it hands over.
#[derive(Default)]
struct Answer {
    bytes: Vec<u8>,
    /// Data of a READ at an offset, clipped to a length.
    data: Option<(Segments, u64, usize)>,
    /// Nodes of which the kernel gets one more use.
    nodes: Vec<u64>,
    /// An open file.
    file: Option<u64>,
    /// An open directory.
    directory: Option<u64>,
}

impl Answer {
    /// Success without content.
    fn nothing() -> Self {
        Self::default()
    }

    fn of(value: &(impl IntoBytes + zerocopy::Immutable)) -> Self {
        Self { bytes: value.as_bytes().to_vec(), ..Self::default() }
    }

    fn bytes(bytes: Vec<u8>) -> Self {
        Self { bytes, ..Self::default() }
    }
}

type Answered = Result<Answer, Errno>;

impl Mounted {
    pub(crate) fn new(fs: CachedFs, settings: Settings, device: Arc<Device>) -> Self {
        let nodes = Nodes::new(fs.root());
        Self {
            fs,
            settings,
            device,
            nodes,
            callers: Callers::default(),
            files: Slab::new(),
            directories: Slab::new(),
        }
    }

    /// The kernel gives uses of nodes back.
    pub(crate) fn forget(&self, nodes: &[ForgetOne]) {
        self.nodes.forget(nodes);
    }

    /// Carries out a request, and answers it.
    pub(crate) async fn serve(&self, request: Request, data: Option<Payload>, reply: Reply) {
        if !request.op.has_reply() {
            return;
        }
        match self.carry_out(request, data, &reply).await {
            Err(errno) => reply.fail(errno),
            Ok(answer) => {
                let sent = match &answer.data {
                    Some((segments, offset, len)) => {
                        reply.send(&files::slices(segments, *offset, *len))
                    }
                    None if answer.bytes.is_empty() => reply.send(&[]),
                    None => reply.send(&[IoSlice::new(&answer.bytes)]),
                };
                if sent.is_err() {
                    self.take_back(answer);
                }
            }
        }
    }

    /// Undoes what an answer would have handed over.
    fn take_back(&self, answer: Answer) {
        let forgotten: Vec<_> =
            answer.nodes.iter().map(|&nodeid| ForgetOne { nodeid, nlookup: 1 }).collect();
        self.nodes.forget(&forgotten);
        if let Some(fh) = answer.file {
            self.close(fh);
        }
        if let Some(fh) = answer.directory {
            self.directories.remove(fh as usize);
        }
    }

    async fn carry_out(&self, request: Request, data: Option<Payload>, reply: &Reply) -> Answered {
        let Request { node, from, op, .. } = request;
        match op {
            Op::Read(args) => self.read(&args).await,
            Op::Write { args, .. } => {
                self.write(from, node, &args, data.as_deref().unwrap_or_default()).await
            }
            Op::Lookup { name } => self.lookup(from, node, &name).await,
            Op::Getattr { fh } => self.getattr(node, fh).await,
            Op::Setattr(args) => self.setattr(from, node, &args).await,
            Op::Readlink => self.readlink(from, node).await,
            Op::Symlink { name, target } => self.symlink(from, node, &name, &target).await,
            Op::Mknod { mode, rdev, umask, name } => {
                self.mknod(from, node, &name, (mode, umask), rdev).await
            }
            Op::Mkdir { mode, umask, name } => self.mkdir(from, node, &name, (mode, umask)).await,
            Op::Unlink { name } => self.unlink(from, node, &name).await,
            Op::Rmdir { name } => self.rmdir(from, node, &name).await,
            Op::Rename { name, newdir, newname, flags } => {
                self.rename(from, (node, &name), (newdir, &newname), flags).await
            }
            Op::Link { oldnode, name } => self.link(from, oldnode, node, &name).await,
            Op::Open(args) => self.open(from, node, &args).await,
            Op::Create(args, name) => self.create(from, node, &name, &args).await,
            Op::Flush { fh, lock_owner } => self.flush(node, fh, lock_owner).await,
            Op::Release(args) => self.release(node, &args).await,
            Op::Fsync { fh, data_only } => self.fsync(fh, data_only).await,
            Op::Fallocate(args) => self.fallocate(from, node, &args).await,
            Op::Lseek(args) => self.lseek(&args).await,
            Op::CopyFileRange { args, long_count } => self.copy_file_range(&args, long_count).await,
            Op::Getlk(args) => self.getlk(node, &args).await,
            Op::Setlk { args, wait } => self.setlk(node, &args, wait, reply).await,
            other => self.carry_out_other(node, from, other).await,
        }
    }

    async fn carry_out_other(&self, node: u64, from: Requester, op: Op) -> Answered {
        match op {
            Op::Opendir => self.opendir(from, node).await,
            Op::Readdir { args, plus } => self.readdir(from, node, &args, plus).await,
            Op::Releasedir { fh } => {
                self.directories.remove(fh as usize);
                Ok(Answer::nothing())
            }
            Op::Fsyncdir => {
                self.fs.sync_node(self.nodes.file(node)?).await?;
                Ok(Answer::nothing())
            }
            Op::Statfs => self.statfs().await,
            Op::Syncfs => {
                self.fs.cache().flush().await?;
                Ok(Answer::nothing())
            }
            Op::Setxattr { name, value, flags } => {
                self.setxattr(from, node, &name, &value, flags).await
            }
            Op::Getxattr { name, size } => self.getxattr(from, node, &name, size).await,
            Op::Listxattr { size } => self.listxattr(from, node, size).await,
            Op::Removexattr { name } => self.removexattr(from, node, &name).await,
            Op::Access { mask } => self.access(from, node, mask).await,
            _ => Err(Errno::NO_SYSTEM_CALL),
        }
    }

    /// In whose name a request is carried out.
    fn caller(&self, from: Requester) -> Caller {
        if self.settings.kernel_checks { self.callers.of(from) } else { Caller::Own }
    }

    /// An answer that gives the kernel a use of a file's node.
    fn entry(&self, attr: Attr) -> Answer {
        let entry = self.learn(attr);
        Answer { nodes: vec![entry.node], ..Answer::of(&entry_out(&entry)) }
    }

    /// A use of a file's node.
    fn learn(&self, attr: Attr) -> Entry {
        Entry { node: self.nodes.learn(&attr), attr, valid: self.settings.valid }
    }

    /// Makes the kernel ask for a node's attributes again.
    fn drop_attributes(&self, node: u64) {
        let out = abi::InvalInodeOut { ino: node, off: -1, len: 0 };
        // The kernel may have forgotten the node.
        let _ = self.device.send(0, abi::NOTIFY_INVAL_INODE, &[IoSlice::new(out.as_bytes())]);
    }

    fn attr_answer(&self, node: u64, attr: &Attr) -> Answer {
        self.nodes.note_change(node, attr.change);
        Answer::of(&attr_out(attr, self.settings.valid))
    }
}
