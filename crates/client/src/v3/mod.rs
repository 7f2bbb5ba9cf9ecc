//! NFSv3 (RFC 1813): stateless, so a call without an answer is simply sent again.
//!
//! - [`mount`]: from a path to a filehandle, with MOUNT;
//! - [`nlm`]: locks; [`nlm_callback`]: the server's calls about them;
//! - [`program`]: where these programs are;
//! - [`convert`]: attributes and errors to and from the neutral ones;
//! - [`acl`]: access control lists, by a program of their own;
//! - [`namespace`]: the operations that change names; here: the others.
//!
//! 1. A call that is not idempotent is resent under the same xid and from the same port, for the
//!    server's reply cache; if that fails, the client recognises the effect of the first one
//!    ([`retried`](crate::retried)).

mod acl;
mod convert;
mod mount;
mod namespace;
mod nlm;
mod nlm_callback;
mod program;
mod whole;

use crate::backoff::Backoff;
use crate::error::{Error, Result, Violation};
use crate::protocol::ChangeSpan;
use crate::protocol::LockWaiters;
use crate::protocol::ProtocolConfig;
use crate::protocol::cookie_verifiers::Verifiers;
use crate::protocol::{
    Entry, Handle, Limits, NewEntry, Node, OpenContext, OpenLockOwner, Page, Protocol, Special,
    WriteRequest, Written, broken,
};
use crate::transport::{
    Connection, Expect, Patience, Peer, ReadTarget, Reply, Request, ResultForm,
};
use async_trait::async_trait;
use convert::{Status, attr_of, handle_of, neutral, set_attr, span_of};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock, Weak};
use tokio::sync::Notify;
use weir_nfs::Data;
use weir_nfs::v3::op::{
    access, commit, fsinfo, fsstat, getattr, lookup, pathconf, read, readdir, readdirplus,
    readlink, setattr, write,
};
use weir_nfs::v3::types::{Created, DirOp};
use weir_nfs::v3::{self, Call, Error as Nfs3Error, Procedure};
use weir_rpc::OpaqueAuth;
use weir_vfs::{
    Access, Acl, Attr, Capabilities, Extent, FsStat, Layout, Lock, LockRange, Permissions,
    RenameFlags, SetAttr, WholeFile, WholeRead, XattrMode,
};
use weir_xdr::Decoder;

/// A mount over NFSv3.
pub(crate) struct V3 {
    server: Arc<str>,
    connections: Vec<Connection>,
    next_connection: AtomicUsize,
    own: OpaqueAuth,
    hard: bool,
    asked: Limits,
    about: OnceLock<FsInfo>,
    verifiers: Verifiers,
    /// The MOUNT service and path used.
    mounted: OnceLock<mount::MountRequest>,
    peer: Peer,
    patience: Patience,
    /// Distinguishes this mount's lock owners from others of the machine.
    unique: [u8; 8],
    locks: nlm::Locks,
    /// Whether the server's port mapper has ever answered.
    has_mapper: AtomicBool,
    /// The server does not offer NFSACL.
    has_no_lists: AtomicBool,
    /// Notified when the mount has ended its connections.
    ended: Notify,
    me: Weak<Self>,
}

#[derive(Clone, Copy)]
struct FsInfo {
    limits: Limits,
    max_file_size: u64,
    max_name: u32,
    max_links: u32,
}

/// Most consecutive pages with only the directory itself and its parent.
const MAX_DOT_PAGES: u32 = 3;
/// Room for lists of entries; the procedure bounds other results.
const MAX_LIST_BYTES: usize = 1 << 20;
/// Longest name or link target in a result.
const MAX_TEXT_BYTES: usize = 65536;

impl V3 {
    /// Connects; `None` if the server does not offer the version.
    pub(crate) async fn begin(config: &ProtocolConfig) -> Result<Option<Arc<Self>>> {
        let mut connections = Vec::new();
        for _ in 0..config.options.nconnect {
            let (peer, counters) = (config.peer.clone(), Arc::clone(&config.counters));
            connections.push(Connection::open(peer, config.patience, counters, None).await?);
        }
        let random = getrandom::u64().unwrap_or_else(|_| std::process::id().into());
        let v3 = Arc::new_cyclic(|me| Self {
            server: Arc::clone(&config.peer.name),
            connections,
            next_connection: AtomicUsize::new(0),
            own: config.own.clone(),
            hard: config.options.hard,
            asked: Limits {
                read: config.options.rsize as usize,
                write: config.options.wsize as usize,
            },
            about: OnceLock::new(),
            verifiers: Verifiers::default(),
            mounted: OnceLock::new(),
            peer: config.peer.clone(),
            patience: config.patience,
            unique: random.to_be_bytes(),
            locks: nlm::Locks::default(),
            has_mapper: AtomicBool::new(false),
            has_no_lists: AtomicBool::new(false),
            ended: Notify::new(),
            me: me.clone(),
        });
        match v3.send(&OpaqueAuth::NONE, &v3::op::null::Args {}, None).await {
            Ok(_) => Ok(Some(v3)),
            Err(Error::Refused { refusal, .. }) if refusal.is_other_version() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Fetches the limits of the file system at `root`.
    async fn learn(&self, root: &Handle) -> Result<()> {
        let info = self.call(&self.own, fsinfo::Args { root: handle_of(root) }).await?;
        let conf = self.call(&self.own, pathconf::Args { object: handle_of(root) }).await?;
        let limits = Limits {
            read: self.asked.read.min(info.read_max.max(512) as usize),
            write: self.asked.write.min(info.write_max.max(512) as usize),
        };
        // Set once, at the mount.
        let _ = self.about.set(FsInfo {
            limits,
            max_file_size: info.max_file_size,
            max_name: conf.name_max,
            max_links: conf.link_max,
        });
        Ok(())
    }

    /// The pauses between one request's attempts.
    fn backoff(&self) -> Backoff {
        Backoff::new(self.hard, self.patience.limit())
    }

    /// Sends a call, again while the server delays it.
    async fn call<A, T, F>(&self, cred: &OpaqueAuth, args: A) -> Result<T>
    where
        A: Call<Res = std::result::Result<T, F>>,
        A::Res: weir_xdr::Decode,
        F: Status,
    {
        let (outcome, _) = self.outcome(cred, args).await?;
        outcome.map_err(|failure| self.failed(A::PROCEDURE.name(), failure.status()))
    }

    /// The same, with the results of a failure, and whether the server may have executed the call
    /// already, so that this is its answer to a resent call.
    async fn outcome<A, T, F>(
        &self,
        cred: &OpaqueAuth,
        args: A,
    ) -> Result<(std::result::Result<T, F>, bool)>
    where
        A: Call<Res = std::result::Result<T, F>>,
        A::Res: weir_xdr::Decode,
        F: Status,
    {
        let (mut backoff, mut resent) = (self.backoff(), false);
        loop {
            let reply = self.send(cred, &args, None).await?;
            let result: A::Res = self.decode(A::PROCEDURE, &reply)?;
            resent |= reply.resent;
            match &result {
                Err(failure) if failure.status() == Nfs3Error::Jukebox && backoff.wait().await => {}
                _ => return Ok((result, resent)),
            }
        }
    }

    async fn send<A: Call>(
        &self,
        cred: &OpaqueAuth,
        args: &A,
        target: Option<&ReadTarget>,
    ) -> Result<Reply> {
        let expect = match (target, A::PROCEDURE) {
            (Some(target), _) => Expect::Read(target.clone(), ResultForm::V3),
            (None, Procedure::Readdir | Procedure::Readdirplus) => {
                Expect::Results { max_bytes: MAX_LIST_BYTES }
            }
            (None, procedure) => {
                Expect::Results { max_bytes: procedure.max_result_bytes() + MAX_TEXT_BYTES }
            }
        };
        let program = (v3::PROGRAM, v3::VERSION, A::PROCEDURE as u32);
        let mut request = Request::new(program, cred, A::PROCEDURE.name(), expect);
        request.encoder().put(args);
        self.connection().call(request).await
    }

    /// The connection for the next call, in rotation.
    fn connection(&self) -> &Connection {
        let turn = self.next_connection.fetch_add(1, Relaxed);
        &self.connections[turn % self.connections.len()]
    }

    fn decode<T: weir_xdr::Decode>(&self, procedure: Procedure, reply: &Reply) -> Result<T> {
        let mut d = Decoder::new(reply.body.clone());
        d.get().map_err(|error| broken(&self.server, procedure.name(), error.into()))
    }

    fn failed(&self, operation: &'static str, error: Nfs3Error) -> Error {
        Error::Status {
            server: Arc::clone(&self.server),
            operation,
            status: error.name().to_owned(),
            error: neutral(error),
        }
    }

    /// The file of a reply in which handle and attributes are optional.
    async fn created(
        &self,
        cred: &OpaqueAuth,
        entry: &NewEntry<'_>,
        created: Created,
    ) -> Result<Node> {
        match (created.handle, created.attr) {
            (Some(handle), Some(attr)) => {
                let handle = Handle(handle.0);
                let attr = attr_of(&attr, &handle);
                Ok(Node { handle, attr })
            }
            _ => self.lookup(cred, entry.dir, entry.name).await,
        }
    }

    fn listing<T>(
        &self,
        listing: Vec<T>,
        eof: bool,
        max_entries: usize,
        entry: impl Fn(T) -> Entry,
    ) -> Page {
        let mut page = Page { entries: Vec::new(), eof };
        for listed in listing.into_iter().map(entry) {
            if page.entries.len() == max_entries {
                page.eof = false;
                break;
            }
            page.entries.push(listed);
        }
        page
    }
}

fn dir_op(dir: &Handle, name: &[u8]) -> DirOp {
    DirOp::new(handle_of(dir), name.to_vec())
}

#[async_trait]
impl Protocol for V3 {
    fn server(&self) -> &Arc<str> {
        &self.server
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::FAST_READ
            | Capabilities::UNCACHED
            | Capabilities::LOCKS
            | Capabilities::WRITE_TIMES
            | Capabilities::WHOLE_FILES
    }

    fn limits(&self) -> Limits {
        self.about.get().map_or(Limits { read: 32768, write: 32768 }, |about| about.limits)
    }

    fn keeps_unlinked(&self) -> bool {
        false
    }

    async fn statfs(&self, cred: &OpaqueAuth, root: &Handle) -> Result<FsStat> {
        let space = self.call(cred, fsstat::Args { root: handle_of(root) }).await?;
        let about = self.about.get();
        Ok(FsStat {
            total_bytes: space.total_bytes,
            free_bytes: space.free_bytes,
            available_bytes: space.available_bytes,
            total_files: space.total_files,
            free_files: space.free_files,
            max_name: about.map_or(255, |a| a.max_name),
            max_file_size: about.map_or(i64::MAX as u64, |a| a.max_file_size),
            max_links: about.map_or(1, |a| a.max_links),
            clone_bytes: 0,
        })
    }

    async fn getattr(&self, cred: &OpaqueAuth, handle: &Handle) -> Result<Attr> {
        let attr = self.call(cred, getattr::Args { object: handle_of(handle) }).await?;
        Ok(attr_of(&attr, handle))
    }

    async fn setattr(
        &self,
        cred: &OpaqueAuth,
        handle: &Handle,
        _open: Option<&OpenContext>,
        set: &SetAttr,
    ) -> Result<(Attr, ChangeSpan)> {
        let args = setattr::Args { object: handle_of(handle), set: set_attr(set), guard: None };
        let around = self.call(cred, args).await?;
        let span = span_of(&around);
        match around.after {
            Some(attr) => Ok((attr_of(&attr, handle), span)),
            None => Ok((self.getattr(cred, handle).await?, span)),
        }
    }

    async fn access(
        &self,
        cred: &OpaqueAuth,
        handle: &Handle,
        wanted: Permissions,
    ) -> Result<Permissions> {
        use access::Rights;
        let pairs = [
            (Permissions::READ, Rights::READ),
            (Permissions::WRITE, Rights::MODIFY | Rights::EXTEND),
            (Permissions::EXECUTE, Rights::LOOKUP | Rights::EXECUTE),
        ];
        let asked = pairs.iter().filter(|(permission, _)| wanted.contains(*permission));
        let rights = asked.fold(Rights::empty(), |all, (_, rights)| all | *rights);
        let args = access::Args { object: handle_of(handle), rights };
        let granted = self.call(cred, args).await?.rights;
        let has = pairs.iter().filter(|(_, rights)| granted.intersects(*rights));
        Ok(has.fold(Permissions::empty(), |all, (permission, _)| all | *permission) & wanted)
    }

    async fn lookup(&self, cred: &OpaqueAuth, dir: &Handle, name: &[u8]) -> Result<Node> {
        let found = self.call(cred, lookup::Args { what: dir_op(dir, name) }).await?;
        let handle = Handle(found.object.0);
        let attr = match found.attr {
            Some(attr) => attr_of(&attr, &handle),
            None => self.getattr(cred, &handle).await?,
        };
        Ok(Node { handle, attr })
    }

    async fn parent(&self, cred: &OpaqueAuth, dir: &Handle) -> Result<Node> {
        self.lookup(cred, dir, b"..").await
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
        let count = max_entries.saturating_mul(bytes).clamp(4096, 65536) as u32;
        let is_dot = |entry: &Entry| matches!(&entry.name[..], b"." | b"..");
        let mut cookie = cookie;
        for _ in 0..MAX_DOT_PAGES {
            let (object, verifier) = (handle_of(dir), self.verifiers.get(dir, cookie));
            let page = if with_attr {
                let (dir_count, max_count) = (count, count);
                let args =
                    readdirplus::Args { dir: object, cookie, verifier, dir_count, max_count };
                let listing = self.call(cred, args).await?;
                self.verifiers.set(dir, listing.verifier);
                self.listing(listing.entries.0, listing.eof, max_entries, |entry| {
                    let node = entry.handle.zip(entry.attr).map(|(handle, attr)| {
                        let handle = Handle(handle.0);
                        let attr = attr_of(&attr, &handle);
                        Node { handle, attr }
                    });
                    Entry {
                        name: entry.name.to_vec(),
                        cookie: entry.cookie,
                        ino: entry.fileid,
                        node,
                    }
                })
            } else {
                let args = readdir::Args { dir: object, cookie, verifier, count };
                let listing = self.call(cred, args).await?;
                self.verifiers.set(dir, listing.verifier);
                self.listing(listing.entries.0, listing.eof, max_entries, |entry| Entry {
                    name: entry.name.to_vec(),
                    cookie: entry.cookie,
                    ino: entry.fileid,
                    node: None,
                })
            };
            // A page with only the directory itself and its parent says nothing yet.
            match page.entries.last() {
                Some(last) if !page.eof && page.entries.iter().all(is_dot) => cookie = last.cookie,
                _ => {
                    let entries = page.entries.into_iter().filter(|e| !is_dot(e)).collect();
                    return Ok(Page { entries, eof: page.eof });
                }
            }
        }
        Err(broken(&self.server, "READDIR", Violation::NoProgress))
    }

    async fn readlink(&self, cred: &OpaqueAuth, handle: &Handle) -> Result<Vec<u8>> {
        let link = self.call(cred, readlink::Args { link: handle_of(handle) }).await?;
        Ok(link.target.to_vec())
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
        _with_xattrs: bool,
    ) -> Result<Option<WholeRead>> {
        self.get_file(cred, handle, most).await
    }

    async fn open(
        &self,
        cred: Arc<OpaqueAuth>,
        handle: &Handle,
        access: Access,
    ) -> Result<OpenContext> {
        crate::protocol::open_stateless(self, cred, handle, access.into()).await
    }

    async fn open_to_execute(&self, cred: Arc<OpaqueAuth>, handle: &Handle) -> Result<OpenContext> {
        // To who may execute a program, the server grants no right to read it, and yet answers READ (RFC 1813 section
        // 4.4).
        crate::protocol::open_stateless(self, cred, handle, Permissions::EXECUTE).await
    }

    async fn close(&self, _open: OpenContext) {}

    async fn lock(
        &self,
        open: &OpenContext,
        owner: OpenLockOwner,
        lock: Lock,
        waits: bool,
    ) -> Result<bool> {
        self.lock_range(open, owner, lock, waits).await
    }

    fn lock_waiters(&self) -> &LockWaiters {
        &self.locks.waiters
    }

    async fn withdraw_lock(
        &self,
        open: &OpenContext,
        owner: OpenLockOwner,
        lock: Lock,
    ) -> Result<()> {
        self.cancel(open, owner, lock).await
    }

    fn locks_held(&self, open: &OpenContext, owner: OpenLockOwner, range: LockRange) -> Vec<Lock> {
        self.locks.held_in(&open.handle, owner, range)
    }

    fn lose_locks(&self, open: &OpenContext) {
        self.locks.lose(&open.handle);
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

    async fn read(&self, open: &OpenContext, target: ReadTarget) -> Result<Layout> {
        self.check_locks(&open.handle)?;
        let args = read::Args {
            file: handle_of(&open.handle),
            offset: target.offset,
            count: target.len as u32,
        };
        let mut backoff = self.backoff();
        loop {
            let reply = self.send(&open.cred, &args, Some(&target)).await?;
            match reply.read {
                Some(Ok(layout)) => return Ok(layout),
                Some(Err(violation)) => return Err(broken(&self.server, "read", violation)),
                None => match self.decode::<Nfs3Error>(Procedure::Read, &reply)? {
                    Nfs3Error::Jukebox if backoff.wait().await => {}
                    error => return Err(self.failed(Procedure::Read.name(), error)),
                },
            }
        }
    }

    async fn write(&self, open: &OpenContext, request: WriteRequest) -> Result<Written> {
        self.check_locks(&open.handle)?;
        let stable = match request.durable {
            true => write::Stability::FileSync,
            false => write::Stability::Unstable,
        };
        let data = Data::Shared(request.data);
        let args = write::Args {
            file: handle_of(&open.handle),
            offset: request.offset,
            count: data.len() as u32,
            stable,
            data,
        };
        let written = self.call(&open.cred, args).await?;
        Ok(Written {
            count: written.count as usize,
            stable: written.committed != write::Stability::Unstable,
            verifier: written.verifier,
            span: span_of(&written.file),
        })
    }

    async fn commit(&self, open: &OpenContext) -> Result<([u8; 8], ChangeSpan)> {
        let args = commit::Args { file: handle_of(&open.handle), offset: 0, count: 0 };
        let committed = self.call(&open.cred, args).await?;
        Ok((committed.verifier, span_of(&committed.file)))
    }

    async fn extent_at(&self, _open: &OpenContext, _offset: u64) -> Result<Extent> {
        Err(weir_vfs::Error::NotSupported.into())
    }

    async fn allocate(&self, _open: &OpenContext, _offset: u64, _len: u64) -> Result<ChangeSpan> {
        Err(weir_vfs::Error::NotSupported.into())
    }

    async fn punch_hole(&self, _open: &OpenContext, _offset: u64, _len: u64) -> Result<ChangeSpan> {
        Err(weir_vfs::Error::NotSupported.into())
    }

    async fn clone_range(
        &self,
        _from: &OpenContext,
        _to: &OpenContext,
        _offset: u64,
        _len: u64,
        _to_offset: u64,
    ) -> Result<ChangeSpan> {
        Err(weir_vfs::Error::NotSupported.into())
    }

    async fn get_xattr(&self, _cred: &OpaqueAuth, _: &Handle, _name: &[u8]) -> Result<Vec<u8>> {
        Err(weir_vfs::Error::NotSupported.into())
    }

    async fn set_xattr(
        &self,
        _cred: &OpaqueAuth,
        _handle: &Handle,
        _name: &[u8],
        _value: &[u8],
        _mode: XattrMode,
    ) -> Result<()> {
        Err(weir_vfs::Error::NotSupported.into())
    }

    async fn list_xattrs(&self, _cred: &OpaqueAuth, _handle: &Handle) -> Result<Vec<Vec<u8>>> {
        Err(weir_vfs::Error::NotSupported.into())
    }

    async fn remove_xattr(&self, _cred: &OpaqueAuth, _: &Handle, _name: &[u8]) -> Result<()> {
        Err(weir_vfs::Error::NotSupported.into())
    }

    async fn get_acl(&self, cred: &OpaqueAuth, handle: &Handle) -> Result<Option<Acl>> {
        self.access_list(cred, handle).await
    }

    async fn unmount(&self) {
        self.give_up_locks().await;
        if let Err(error) = self.umnt().await {
            tracing::debug!("{error}");
        }
        self.locks.stop_hearing().await;
    }

    fn end_connections(&self) {
        self.connections.iter().for_each(Connection::end);
        let others = self.mounted.get().and_then(|asked| asked.service.as_ref());
        // A connection to the lock manager that is made from here on ends at its first use.
        others.into_iter().chain(self.locks.connection()).for_each(Connection::end);
        self.ended.notify_waiters();
    }
}

/// Approximate bytes of an entry in a reply: bounds the number per reply.
const DIR_ENTRY_BYTES: usize = 200;
const DIR_NAME_BYTES: usize = 48;
