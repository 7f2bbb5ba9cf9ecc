//! Open directories.
//!
//! 1. An entry's position is the store's cookie. Positions 1 and 2 are those after `.` and `..`,
//!    which no store has.
//! 2. Names that were read and did not fit stay for the next READDIR, as far as it goes on there.
//! 3. READDIRPLUS sends only what was read after it began: the kernel takes its attributes and nodes for newer than
//!    all that it learned before. So what does not fit is read again, and little more is read than fits.

use crate::mounted::file_system::{Answer, Answered, Mounted};
use crate::mounted::handles::{Ahead, Directory};
use crate::wire::abi::{Dirent, EntryOut, OpenFlags, ReadIn};
use crate::wire::reply::{Entry, entry_out, open_out, type_bits};
use crate::wire::request::Requester;
use std::sync::Arc;
use weir_vfs::{DirEntry, Error, FileId, FileKind, ReaddirRequest};
use zerocopy::IntoBytes;

/// Positions after `.` and `..`.
const DOT: u64 = 1;
const DOT_DOT: u64 = 2;

impl Mounted {
    pub(super) async fn opendir(&self, from: Requester, node: u64) -> Answered {
        let id = self.nodes.file(node)?;
        if !self.settings.kernel_checks {
            use weir_vfs::Permissions;
            let may = self.fs.access(&self.caller(from), id, Permissions::READ).await?;
            if !may.contains(Permissions::READ) {
                return Err(Error::AccessDenied.into());
            }
        }
        let key = self.directories.insert(Arc::default()).ok_or(Error::TooManyOpen)?;
        let out = open_out(key as u64, OpenFlags::empty());
        Ok(Answer { directory: Some(key as u64), ..Answer::of(&out) })
    }

    pub(super) async fn readdir(
        &self,
        from: Requester,
        node: u64,
        args: &ReadIn,
        plus: bool,
    ) -> Answered {
        let id = self.nodes.file(node)?;
        let directory = self.directories.get(args.fh as usize).map(|found| Arc::clone(&found));
        let directory = directory.ok_or(Error::BadFile)?;
        let fsid = self.nodes.fsid(node);
        let mut page = Page::new(self, fsid, args.size as usize, plus);
        let (mut at, own) = (args.offset, self.number(id.ino, fsid));
        if at < DOT && page.add_dot(b".", own, DOT) {
            at = DOT;
        }
        if at == DOT && page.add_dot(b"..", self.parent_number(id, own).await?, DOT_DOT) {
            at = DOT_DOT;
        }
        while at >= DOT_DOT && page.takes_more() {
            let mut ahead = match self.ahead(from, &directory, id, at, &page).await {
                // The kernel gets what there is, whose uses of nodes are counted; the next READDIR gets the error.
                Err(_) if !page.bytes.is_empty() => break,
                ahead => ahead?,
            };
            let ended = ahead.eof;
            while let Some(entry) = ahead.entries.pop_front() {
                if !self.is_hidden(id, &entry.name) && !page.add(&entry) {
                    ahead.entries.push_front(entry);
                    break;
                }
                at = entry.cookie;
                ahead.at = at;
            }
            let is_empty = ahead.entries.is_empty();
            if is_empty || !plus {
                *directory.ahead.lock() = ahead;
            }
            if is_empty && ended {
                break;
            }
        }
        if page.bytes.is_empty() && page.is_full {
            return Err(Error::Invalid.into());
        }
        Ok(Answer { nodes: page.nodes, ..Answer::bytes(page.bytes) })
    }

    /// The inode number of a directory's parent, or its `own`: a server that maps root to another user refuses the look
    /// at the parent, because the mounting process asks, and not the user who may list the directory.
    async fn parent_number(&self, dir: FileId, own: u64) -> Result<u64, Error> {
        match self.fs.parent(dir).await {
            Err(Error::AccessDenied) => Ok(own),
            Ok(parent) => Ok(self.number(parent.id.ino, Some(parent.fsid))),
            Err(error) => Err(error),
        }
    }

    /// The entries after position `at`.
    async fn ahead(
        &self,
        from: Requester,
        directory: &Directory,
        dir: FileId,
        at: u64,
        page: &Page<'_>,
    ) -> Result<Ahead, Error> {
        let cookie = if at == DOT_DOT { 0 } else { at };
        let kept = std::mem::take(&mut *directory.ahead.lock());
        let has = kept.at == at && kept.with_attr == page.plus;
        if has && (!kept.entries.is_empty() || kept.eof && at != DOT_DOT) {
            return Ok(kept);
        }
        let least_entries = if page.plus { 1 } else { 16 };
        let max_entries = (page.room() / page.least_bytes()).clamp(least_entries, 1024);
        let request = ReaddirRequest { dir, cookie, max_entries, with_attr: page.plus };
        let read = self.fs.readdir(&self.caller(from), request).await?;
        // Without entries and without an end, a store would be asked for ever.
        let eof = read.eof || read.entries.is_empty();
        Ok(Ahead { at, with_attr: page.plus, entries: read.entries.into(), eof })
    }
}

/// The entries of a reply.
struct Page<'a> {
    mounted: &'a Mounted,
    /// The directory's file system.
    fsid: Option<u64>,
    plus: bool,
    size: usize,
    bytes: Vec<u8>,
    nodes: Vec<u64>,
    is_full: bool,
}

impl<'a> Page<'a> {
    fn new(mounted: &'a Mounted, fsid: Option<u64>, size: usize, plus: bool) -> Self {
        Self { mounted, fsid, plus, size, bytes: Vec::new(), nodes: Vec::new(), is_full: false }
    }

    fn room(&self) -> usize {
        self.size.saturating_sub(self.bytes.len())
    }

    /// Whether to read entries for it. A store may have returned fewer than it was asked for: a few that would fit
    /// as well are not worth another call, unless the rest stays for the next READDIR.
    fn takes_more(&self) -> bool {
        let worth = self.least_bytes().max(self.size / 4);
        !self.is_full && (!self.plus || self.bytes.is_empty() || self.room() >= worth)
    }

    /// Bytes of an entry with a short name.
    fn least_bytes(&self) -> usize {
        size_of::<Dirent>() + 8 + if self.plus { size_of::<EntryOut>() } else { 0 }
    }

    /// Adds `.` or `..`, of which the kernel gets no use.
    fn add_dot(&mut self, name: &[u8], ino: u64, position: u64) -> bool {
        let kind = type_bits(FileKind::Directory) >> 12;
        self.put(name, ino, position, kind, None)
    }

    /// Adds an entry, unless there is no room for it.
    fn add(&mut self, entry: &DirEntry) -> bool {
        // 0: the kernel asks for the type when a program wants it.
        let kind = entry.attr.as_ref().map_or(0, |attr| type_bits(attr.kind) >> 12);
        let (ino, fsid) = match &entry.attr {
            Some(attr) => (attr.id.ino, Some(attr.fsid)),
            None => (entry.ino, self.fsid),
        };
        let number = self.mounted.number(ino, fsid);
        self.put(&entry.name, number, entry.cookie, kind, Some(entry))
    }

    fn put(
        &mut self,
        name: &[u8],
        ino: u64,
        position: u64,
        kind: u32,
        entry: Option<&DirEntry>,
    ) -> bool {
        let head = if self.plus { size_of::<EntryOut>() } else { 0 };
        let len = (head + size_of::<Dirent>() + name.len()).next_multiple_of(8);
        if len > self.room() {
            self.is_full = true;
            return false;
        }
        let end = self.bytes.len() + len;
        if self.plus {
            let out = match entry.and_then(|entry| entry.attr.clone()) {
                Some(attr) => {
                    let entry: Entry = self.mounted.learn(attr);
                    self.nodes.push(entry.node);
                    entry_out(&entry)
                }
                None => EntryOut::default(),
            };
            self.bytes.extend_from_slice(out.as_bytes());
        }
        let dirent = Dirent { ino, off: position, namelen: name.len() as u32, kind };
        self.bytes.extend_from_slice(dirent.as_bytes());
        self.bytes.extend_from_slice(name);
        self.bytes.resize(end, 0);
        true
    }
}
