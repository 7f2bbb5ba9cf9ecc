//! The operations of a file system, each as one compound.

use super::attr::{ServerLimits, attr_of, set_attrs};
use super::client::V4;
use super::requests::{getattr, lookup, node_ops, putfh, take};
use crate::error::{Error, Result, Violation};
use crate::protocol::ChangeSpan;
use crate::protocol::LockWaiters;
use crate::protocol::{
    Entry, Handle, Limits, NewEntry, Node, OpenContext, OpenLockOwner, Page, Protocol, Special,
    WriteRequest, Written,
};
use crate::transport::{Connection, ReadTarget};
use crate::v4::state::open_state::{is_gone, open_state};
use async_trait::async_trait;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use weir_base::PAGE_SIZE;
use weir_nfs::Data;
use weir_nfs::v4::op;
use weir_nfs::v4::op::access::Rights;
use weir_nfs::v4::types::{Content, StableHow, StateId};
use weir_nfs::v4::{Attrs, Error as Nfs4Error, Op, OpRes};
use weir_rpc::OpaqueAuth;
use weir_vfs::{
    Access, Acl, Attr, Capabilities, Extent, FileKind, FsStat, Layout, Lock, LockRange,
    Permissions, RenameFlags, SegmentKind, SetAttr, WholeFile, WholeRead, XattrMode,
};

impl V4 {
    pub(super) fn about(&self) -> Option<&ServerLimits> {
        self.about.get()
    }

    /// The file of a compound that ends with GETFH and GETATTR.
    pub(super) fn node(&self, results: Vec<OpRes>, operation: &'static str) -> Result<Node> {
        let (mut handle, mut attrs) = (None, None);
        for result in results {
            match result {
                OpRes::Getfh(Ok(fh)) => handle = Some(Handle(fh.0)),
                OpRes::Getattr(Ok(found)) => attrs = Some(found),
                _ => {}
            }
        }
        let (Some(handle), Some(attrs)) = (handle, attrs) else {
            return Err(self.unexpected(operation));
        };
        self.node_of(handle, &attrs, operation)
    }

    pub(super) fn node_of(
        &self,
        handle: Handle,
        attrs: &Attrs,
        operation: &'static str,
    ) -> Result<Node> {
        let attr = attr_of(attrs, &handle, &self.owners)
            .ok_or_else(|| crate::protocol::broken(&self.server, operation, Violation::BadValue))?;
        Ok(Node { handle, attr })
    }

    /// Entries of the directory, at most `max_entries`, and the cookie of an entry for itself or its parent.
    fn page(
        &self,
        dir: &Handle,
        listed: op::readdir::Listing,
        max_entries: usize,
        with_attr: bool,
    ) -> (Page, Option<u64>) {
        let mut page = Page { entries: Vec::new(), eof: listed.eof };
        let mut dots = None;
        for entry in listed.entries.0 {
            // Clients ignore them, if servers list them at all (RFC 8881 section 18.23.4).
            if matches!(&entry.name[..], b"." | b"..") {
                dots = Some(entry.cookie);
                continue;
            }
            if page.entries.len() == max_entries {
                page.eof = false;
                break;
            }
            let node =
                entry.attrs.filehandle.clone().and_then(|handle| {
                    self.node_of(Handle(handle.0), &entry.attrs, "READDIR").ok()
                });
            if let Some(node) = &node {
                self.found(node, dir, &entry.name);
            }
            let ino = entry.attrs.fileid.unwrap_or(entry.cookie);
            page.entries.push(Entry {
                name: entry.name.to_vec(),
                cookie: entry.cookie,
                ino,
                node: node.filter(|_| with_attr),
            });
        }
        (page, dots)
    }

    /// Stores a name, for files that are opened by name.
    pub(super) fn found(&self, node: &Node, dir: &Handle, name: &[u8]) {
        if !self.has_sessions() && node.attr.kind == FileKind::Regular {
            self.names.found(&node.handle, dir, name);
        }
    }
}

/// A change of a file between two fetches of its change attribute.
fn around(handle: &Handle, change: Op) -> [Op; 4] {
    let look = || getattr(super::attr::CHANGES);
    [putfh(handle), look(), change, look()]
}

pub(super) fn span_of(results: &[OpRes]) -> ChangeSpan {
    let mut found = results.iter().filter_map(|result| match result {
        OpRes::Getattr(Ok(attrs)) => Some(attrs.change),
        _ => None,
    });
    let before = found.next().flatten();
    ChangeSpan { before, after: found.last().flatten() }
}

#[async_trait]
impl Protocol for V4 {
    fn server(&self) -> &Arc<str> {
        &self.server
    }

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::FAST_READ
            | Capabilities::UNCACHED
            | Capabilities::LOCKS
            | Capabilities::WRITE_TIMES
            | Capabilities::WHOLE_FILES;
        if self.minor >= 2 {
            capabilities |= Capabilities::HOLES | Capabilities::ALLOCATE | Capabilities::COPY;
            let about = self.about();
            capabilities.set(Capabilities::CLONE, about.is_some_and(|a| a.clones));
            capabilities.set(Capabilities::XATTR, about.is_some_and(|a| a.xattrs));
        }
        capabilities
    }

    fn limits(&self) -> Limits {
        self.about().map_or(Limits { read: 65536, write: 65536 }, |about| about.limits)
    }

    fn keeps_unlinked(&self) -> bool {
        self.has_sessions()
    }

    async fn statfs(&self, cred: &OpaqueAuth, root: &Handle) -> Result<FsStat> {
        let wanted = match self.minor {
            2.. => super::attr::SPACE.union(super::attr::SHARED),
            _ => super::attr::SPACE,
        };
        // Servers have been seen to fail for those that they do not support.
        let supported = self.about().and_then(|about| about.supported);
        let wanted = supported.map_or(wanted, |supported| wanted.intersection(supported));
        let ops = [putfh(root), getattr(wanted)];
        let attrs = take!(self, self.call(cred, "GETATTR", &ops).await?, Getattr)?;
        Ok(super::attr::space(&attrs))
    }

    async fn getattr(&self, cred: &OpaqueAuth, handle: &Handle) -> Result<Attr> {
        let ops = [putfh(handle), getattr(super::attr::WANTED)];
        let attrs = take!(self, self.call(cred, "GETATTR", &ops).await?, Getattr)?;
        Ok(self.node_of(handle.clone(), &attrs, "GETATTR")?.attr)
    }

    async fn setattr(
        &self,
        cred: &OpaqueAuth,
        handle: &Handle,
        open: Option<&OpenContext>,
        set: &SetAttr,
    ) -> Result<(Attr, ChangeSpan)> {
        let attrs = set_attrs(set);
        let ops = |stateid| {
            vec![
                putfh(handle),
                getattr(super::attr::CHANGES),
                Op::Setattr(op::setattr::Args { stateid, attrs: attrs.clone().into() }),
                getattr(super::attr::WANTED),
            ]
        };
        let results = match open {
            Some(open) => self.call_open(open, "SETATTR", ops).await?,
            None => self.call(cred, "SETATTR", &ops(StateId::ANONYMOUS)).await?,
        };
        let span = span_of(&results);
        let attrs = take!(self, results.into_iter().skip(2), Getattr)?;
        Ok((self.node_of(handle.clone(), &attrs, "SETATTR")?.attr, span))
    }

    async fn access(
        &self,
        cred: &OpaqueAuth,
        handle: &Handle,
        wanted: Permissions,
    ) -> Result<Permissions> {
        let pairs = [
            (Permissions::READ, Rights::READ),
            (Permissions::WRITE, Rights::MODIFY | Rights::EXTEND),
            (Permissions::EXECUTE, Rights::LOOKUP | Rights::EXECUTE),
        ];
        let asked = pairs.iter().filter(|(permission, _)| wanted.contains(*permission));
        let access = asked.fold(Rights::empty(), |all, (_, rights)| all | *rights);
        let ops = [putfh(handle), Op::Access(access)];
        let granted = take!(self, self.call(cred, "ACCESS", &ops).await?, Access)?.rights;
        let has = pairs.iter().filter(|(_, rights)| granted.intersects(*rights));
        Ok(has.fold(Permissions::empty(), |all, (permission, _)| all | *permission) & wanted)
    }

    async fn lookup(&self, cred: &OpaqueAuth, dir: &Handle, name: &[u8]) -> Result<Node> {
        let ops = node_ops(vec![putfh(dir), lookup(name)]);
        let node = self.node(self.call(cred, "LOOKUP", &ops).await?, "LOOKUP")?;
        self.found(&node, dir, name);
        Ok(node)
    }

    async fn lookup_path(
        &self,
        cred: &OpaqueAuth,
        dir: &Handle,
        names: &[Vec<u8>],
    ) -> Result<(Vec<Node>, Option<Error>)> {
        self.lookup_names(cred, dir, names).await
    }

    async fn parent(&self, cred: &OpaqueAuth, dir: &Handle) -> Result<Node> {
        let ops = node_ops(vec![putfh(dir), Op::Lookupp(())]);
        self.node(self.call(cred, "LOOKUPP", &ops).await?, "LOOKUPP")
    }

    async fn readdir(
        &self,
        cred: &OpaqueAuth,
        dir: &Handle,
        cookie: u64,
        max_entries: usize,
        with_attr: bool,
    ) -> Result<Page> {
        let bytes = if with_attr { DIR_ENTRY_BYTES } else { DIR_NAME_BYTES };
        // A page has room for the longest entry, even if reads are limited to less.
        let most = self.limits().read.max(LEAST_DIR_BYTES);
        let max_count = max_entries.saturating_mul(bytes).clamp(LEAST_DIR_BYTES, most) as u32;
        let mut cookie = cookie;
        for _ in 0..MAX_DOT_PAGES {
            let ops = [
                putfh(dir),
                Op::Readdir(op::readdir::Args {
                    cookie,
                    verifier: self.verifiers.get(dir, cookie),
                    dir_count: max_count,
                    max_count,
                    attrs: if with_attr { super::attr::IN_DIRECTORY } else { super::attr::NUMBER },
                }),
            ];
            let listed = take!(self, self.call(cred, "READDIR", &ops).await?, Readdir)?;
            self.verifiers.set(dir, listed.verifier);
            match self.page(dir, listed, max_entries, with_attr) {
                (Page { entries, eof: false }, Some(last)) if entries.is_empty() => cookie = last,
                (page, _) => return Ok(page),
            }
        }
        Err(crate::protocol::broken(&self.server, "READDIR", Violation::NoProgress))
    }

    async fn readlink(&self, cred: &OpaqueAuth, handle: &Handle) -> Result<Vec<u8>> {
        let ops = [putfh(handle), Op::Readlink(())];
        Ok(take!(self, self.call(cred, "READLINK", &ops).await?, Readlink)?.to_vec())
    }

    async fn create(
        &self,
        cred: &OpaqueAuth,
        entry: NewEntry<'_>,
        exclusive: bool,
    ) -> Result<Node> {
        self.create_file(cred, entry, exclusive).await
    }

    async fn make(
        &self,
        cred: &OpaqueAuth,
        entry: NewEntry<'_>,
        special: Special<'_>,
    ) -> Result<Node> {
        self.make_name(cred, entry, special).await
    }

    async fn link(
        &self,
        cred: &OpaqueAuth,
        handle: &Handle,
        dir: &Handle,
        name: &[u8],
    ) -> Result<Attr> {
        self.link_name(cred, handle, dir, name).await
    }

    async fn remove(
        &self,
        cred: &OpaqueAuth,
        dir: &Handle,
        name: &[u8],
        directory: bool,
    ) -> Result<()> {
        self.remove_name(cred, dir, name, directory).await
    }

    async fn rename(
        &self,
        cred: &OpaqueAuth,
        from: (&Handle, &[u8]),
        to: (&Handle, &[u8]),
        flags: RenameFlags,
    ) -> Result<()> {
        self.rename_name(cred, from, to, flags).await
    }

    async fn put_whole(
        &self,
        cred: &OpaqueAuth,
        dir: &Handle,
        file: &WholeFile,
    ) -> Result<Option<Node>> {
        self.put_file(cred, dir, file).await
    }

    async fn get_whole(
        &self,
        cred: &OpaqueAuth,
        handle: &Handle,
        most: usize,
        with_xattrs: bool,
    ) -> Result<Option<WholeRead>> {
        self.get_file(cred, handle, most, with_xattrs).await
    }

    async fn open(
        &self,
        cred: Arc<OpaqueAuth>,
        handle: &Handle,
        access: Access,
    ) -> Result<OpenContext> {
        match self.open_file(Arc::clone(&cred), handle, access).await {
            // Minor version 0 has no name to open it by.
            Err(error) if !self.has_sessions() && is_gone(&error) => {
                crate::protocol::open_stateless(self, cred, handle, access.into()).await
            }
            Ok(open) if self.noreuse.load(Relaxed) => {
                self.advise_noreuse(&open).await;
                Ok(open)
            }
            opened => opened,
        }
    }

    fn grant(&self, handle: &Handle) -> Option<u64> {
        self.grant_of(handle)
    }

    async fn close(&self, open: OpenContext) {
        self.close_file(open).await;
    }

    fn lock_waiters(&self) -> &LockWaiters {
        &self.delegations.waiters
    }

    async fn lock(
        &self,
        open: &OpenContext,
        owner: OpenLockOwner,
        lock: Lock,
        waits: bool,
    ) -> Result<bool> {
        self.lock_range(open, owner, lock, waits).await
    }

    async fn test_lock(
        &self,
        open: &OpenContext,
        owner: OpenLockOwner,
        lock: Lock,
    ) -> Result<Option<Lock>> {
        self.lock_in_the_way(open, owner, lock).await
    }

    async fn unlock(
        &self,
        open: &OpenContext,
        owner: OpenLockOwner,
        range: LockRange,
    ) -> Result<()> {
        self.unlock_range(open, owner, range).await
    }

    fn locks_held(&self, open: &OpenContext, owner: OpenLockOwner, range: LockRange) -> Vec<Lock> {
        let state = open_state(open);
        state.map_or(Vec::new(), |state| state.known.lock().locks.held.within(&owner, range))
    }

    fn claim_shared(&self, open: &OpenContext, owner: OpenLockOwner, range: LockRange) {
        if let Some(state) = open_state(open) {
            state.known.lock().locks.downgrade(owner, range);
        }
    }

    fn lose_locks(&self, open: &OpenContext) {
        if let Some(state) = open_state(open) {
            state.known.lock().locks.lose_some();
        }
    }

    async fn release_lock_owner(&self, open: &OpenContext, owner: OpenLockOwner) {
        self.forget_lock_owner(open, owner).await;
    }

    async fn read(&self, open: &OpenContext, target: ReadTarget) -> Result<Layout> {
        if self.readplus.load(Relaxed)
            && let Some(layout) = self.read_plus(open, &target).await?
        {
            return Ok(layout);
        }
        self.read_plain(open, &target).await
    }

    async fn write(&self, open: &OpenContext, request: WriteRequest) -> Result<Written> {
        let stable = match request.durable {
            true => StableHow::FileSync,
            false => StableHow::Unstable,
        };
        let ops = |stateid| {
            let args = op::write::Args {
                stateid,
                offset: request.offset,
                stable,
                data: Data::Shared(Arc::clone(&request.data)),
            };
            around(&open.handle, Op::Write(args)).into()
        };
        let results = self.call_open(open, "WRITE", ops).await?;
        let span = span_of(&results);
        let written = take!(self, results, Write)?;
        Ok(Written {
            span,
            count: written.count as usize,
            stable: written.committed != StableHow::Unstable,
            verifier: written.verifier,
        })
    }

    async fn commit(&self, open: &OpenContext) -> Result<([u8; 8], ChangeSpan)> {
        let op = Op::Commit(op::commit::Args { offset: 0, count: 0 });
        let results = self.call(&open.cred, "COMMIT", &around(&open.handle, op)).await?;
        let span = span_of(&results);
        Ok((take!(self, results, Commit)?, span))
    }

    async fn extent_at(&self, open: &OpenContext, offset: u64) -> Result<Extent> {
        if self.minor < 2 {
            return Err(weir_vfs::Error::NotSupported.into());
        }
        let seek = |stateid, what| Op::Seek(op::seek::Args { stateid, offset, what });
        // The hole first: there always is one, at the end of the file if not before.
        let ops = |stateid| {
            vec![
                putfh(&open.handle),
                seek(stateid, Content::Hole),
                getattr(super::attr::WANTED),
                seek(stateid, Content::Data),
            ]
        };
        let answer = self.exchange_open(open, "SEEK", ops, None).await?;
        let mut results = answer.results.into_iter().skip(1);
        let hole = match results.next() {
            Some(OpRes::Seek(Ok(found))) => found.offset,
            _ => {
                self.checked("SEEK", answer.status)?;
                return Err(self.unexpected("SEEK"));
            }
        };
        let size = match results.next() {
            Some(OpRes::Getattr(Ok(attrs))) => {
                self.node_of(open.handle.clone(), &attrs, "SEEK")?.attr.size
            }
            _ => return Err(self.unexpected("SEEK")),
        };
        if hole > offset {
            return Ok(Extent { kind: SegmentKind::Data, start: offset, end: hole });
        }
        let mut kind = SegmentKind::Hole;
        let end = match results.next() {
            Some(OpRes::Seek(Ok(found))) if found.offset > offset => found.offset,
            // A hole up to the end of file.
            Some(OpRes::Seek(Ok(found))) if found.eof => size,
            Some(OpRes::Seek(Err(Nfs4Error::NxIo))) => size,
            // By now it is data, which another client has written in between: a page at least.
            Some(OpRes::Seek(Ok(found))) if found.offset == offset => {
                kind = SegmentKind::Data;
                let page = PAGE_SIZE as u64;
                (offset / page + 1).saturating_mul(page).min(size)
            }
            Some(OpRes::Seek(Err(error))) => return Err(self.failed("SEEK", error)),
            _ => return Err(self.unexpected("SEEK")),
        };
        if end <= offset {
            return Err(weir_vfs::Error::NoSuchRange.into());
        }
        Ok(Extent { kind, start: offset, end })
    }

    async fn allocate(&self, open: &OpenContext, offset: u64, length: u64) -> Result<ChangeSpan> {
        let ops = |stateid| {
            let args = op::allocate::Args { stateid, offset, length };
            around(&open.handle, Op::Allocate(args)).into()
        };
        Ok(span_of(&self.call_open(open, "ALLOCATE", ops).await?))
    }

    async fn punch_hole(&self, open: &OpenContext, offset: u64, length: u64) -> Result<ChangeSpan> {
        let ops = |stateid| {
            let args = op::deallocate::Args { stateid, offset, length };
            around(&open.handle, Op::Deallocate(args)).into()
        };
        Ok(span_of(&self.call_open(open, "DEALLOCATE", ops).await?))
    }

    async fn clone_range(
        &self,
        from: &OpenContext,
        to: &OpenContext,
        offset: u64,
        len: u64,
        to_offset: u64,
    ) -> Result<ChangeSpan> {
        let ops = |[source, destination]: [StateId; 2]| {
            vec![
                putfh(&from.handle),
                Op::Savefh(()),
                putfh(&to.handle),
                getattr(super::attr::CHANGES),
                Op::Clone(op::clone::Args {
                    source,
                    destination,
                    source_offset: offset,
                    destination_offset: to_offset,
                    count: len,
                }),
                getattr(super::attr::CHANGES),
            ]
        };
        let answer = self.exchange_opens([from, to], "CLONE", ops, None).await?;
        self.checked("CLONE", answer.status)?;
        Ok(span_of(&answer.results))
    }

    async fn copy_range(
        &self,
        from: &OpenContext,
        to: &OpenContext,
        offset: u64,
        len: u64,
        to_offset: u64,
    ) -> Result<(u64, ChangeSpan)> {
        self.copy(from, to, (offset, len, to_offset)).await
    }

    async fn get_xattr(&self, cred: &OpaqueAuth, handle: &Handle, name: &[u8]) -> Result<Vec<u8>> {
        let name = user_name(name)?.into();
        let ops = [putfh(handle), Op::Getxattr(name)];
        Ok(take!(self, self.call(cred, "GETXATTR", &ops).await?, Getxattr)?.to_vec())
    }

    async fn set_xattr(
        &self,
        cred: &OpaqueAuth,
        handle: &Handle,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        use op::setxattr::Mode;
        let mode = match mode {
            XattrMode::Either => Mode::Either,
            XattrMode::Create => Mode::Create,
            XattrMode::Replace => Mode::Replace,
        };
        let args = op::setxattr::Args { mode, name: user_name(name)?.into(), value: value.into() };
        let ops = [putfh(handle), Op::Setxattr(args)];
        let answer = self.exchange(cred, "SETXATTR", &ops, None).await?;
        match answer.status {
            Err(Nfs4Error::Exist)
                if answer.resent
                    && self.get_xattr(cred, handle, name).await.is_ok_and(|set| set == value) =>
            {
                Ok(())
            }
            status => self.checked("SETXATTR", status),
        }
    }

    async fn list_xattrs(&self, cred: &OpaqueAuth, handle: &Handle) -> Result<Vec<Vec<u8>>> {
        if self.minor < 2 {
            return Err(weir_vfs::Error::NotSupported.into());
        }
        let (mut names, mut cookie, mut bytes) = (Vec::new(), 0, 0);
        loop {
            let args = op::listxattrs::Args { cookie, max_bytes: 65536 };
            let ops = [putfh(handle), Op::Listxattrs(args)];
            let results = self.call(cred, "LISTXATTRS", &ops);
            let listed = take!(self, results.await?, Listxattrs)?;
            // Each name takes some memory, also an empty one.
            bytes +=
                listed.names.iter().map(|name| XATTR_OVERHEAD_BYTES + name.len()).sum::<usize>();
            if bytes > MAX_XATTR_BYTES || (listed.names.is_empty() && !listed.eof) {
                return Err(self.unexpected("LISTXATTRS"));
            }
            names.extend(listed.names.iter().map(|name| [b"user.", &name[..]].concat()));
            if listed.eof {
                return Ok(names);
            }
            cookie = listed.cookie;
        }
    }

    async fn remove_xattr(&self, cred: &OpaqueAuth, handle: &Handle, name: &[u8]) -> Result<()> {
        let name = user_name(name)?.into();
        let ops = [putfh(handle), Op::Removexattr(name)];
        let answer = self.exchange(cred, "REMOVEXATTR", &ops, None).await?;
        match answer.status {
            Err(Nfs4Error::NoXattr) if answer.resent => Ok(()),
            status => self.checked("REMOVEXATTR", status),
        }
    }

    async fn get_acl(&self, cred: &OpaqueAuth, handle: &Handle) -> Result<Option<Acl>> {
        self.access_list(cred, handle).await
    }

    async fn unmount(&self) {
        self.close_all().await;
        if self.has_sessions()
            && let Err(error) = self.destroy().await
        {
            tracing::debug!("{error}");
        }
    }

    fn end_connections(&self) {
        self.ended.store(true, Relaxed);
        self.connections.iter().for_each(Connection::end);
    }
}

/// Only attributes in the `user.` name space are sent, without that prefix
/// (RFC 8276 section 4).
fn user_name(name: &[u8]) -> Result<&[u8]> {
    name.strip_prefix(b"user.").ok_or_else(|| weir_vfs::Error::NotSupported.into())
}

/// Approximate bytes of an entry in a READDIR reply, with attributes and without.
const DIR_ENTRY_BYTES: usize = 320;
const DIR_NAME_BYTES: usize = 64;
/// Smallest limit of a READDIR reply, in bytes.
const LEAST_DIR_BYTES: usize = 4096;
/// Most consecutive pages with only the directory itself and its parent.
const MAX_DOT_PAGES: u32 = 3;
/// Most bytes of names of one file's extended attributes; bounds memory. Linux lists 64 KiB at most.
const MAX_XATTR_BYTES: usize = 1 << 20;
/// Those of a name besides its own.
const XATTR_OVERHEAD_BYTES: usize = 32;
