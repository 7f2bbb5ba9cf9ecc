//! The operations on filehandles that the versions of the protocol have in common.
//!
//! An implementation is one mount in one version. It handles reconnection, recovery of sessions and
//! reclaim of state itself; its callers see only errors that the version cannot recover from.

mod config;
pub(crate) mod cookie_verifiers;
mod lock_waiters;
mod types;

pub(crate) use config::ProtocolConfig;
pub(crate) use lock_waiters::{LockCallback, LockWaiters};
pub(crate) use types::{
    ChangeSpan, Entry, Handle, Limits, NewEntry, Node, OpenContext, OpenLockOwner, Page, Reach,
    Root, Special, WriteRequest, Written, file_id, file_size,
};

use crate::error::{Error, Result, Violation};
use crate::transport::ReadTarget;
use async_trait::async_trait;
use std::any::Any;
use std::sync::Arc;
use weir_rpc::{AuthSys, OpaqueAuth};
use weir_vfs::{
    Access, Acl, Attr, Capabilities, Extent, FileKind, FsStat, Layout, Lock, LockRange,
    Permissions, RenameFlags, SetAttr, WholeFile, WholeRead, XattrMode,
};

/// One version of the protocol with one server.
#[async_trait]
pub(crate) trait Protocol: Any + Send + Sync + 'static {
    /// The server's name, for messages.
    fn server(&self) -> &Arc<str>;
    fn capabilities(&self) -> Capabilities;
    fn limits(&self) -> Limits;
    /// Whether an open file stays usable after its last name is removed.
    fn keeps_unlinked(&self) -> bool;
    async fn statfs(&self, cred: &OpaqueAuth, root: &Handle) -> Result<FsStat>;
    async fn getattr(&self, cred: &OpaqueAuth, handle: &Handle) -> Result<Attr>;
    async fn setattr(
        &self,
        cred: &OpaqueAuth,
        handle: &Handle,
        open: Option<&OpenContext>,
        set: &SetAttr,
    ) -> Result<(Attr, ChangeSpan)>;
    /// Those of the permissions `wanted` that the server grants.
    async fn access(
        &self,
        cred: &OpaqueAuth,
        handle: &Handle,
        wanted: Permissions,
    ) -> Result<Permissions>;
    async fn lookup(&self, cred: &OpaqueAuth, dir: &Handle, name: &[u8]) -> Result<Node>;
    /// Looks up a path below a directory, as far as it leads through directories: returns the files on
    /// it in order, and why the component after them was not found. A file that is no directory may be
    /// the last one found although components follow; the failure is then without meaning.
    async fn lookup_path(
        &self,
        cred: &OpaqueAuth,
        dir: &Handle,
        names: &[Vec<u8>],
    ) -> Result<(Vec<Node>, Option<Error>)> {
        let mut found: Vec<Node> = Vec::with_capacity(names.len());
        for name in names {
            let at = found.last().map_or(dir, |node| &node.handle);
            match self.lookup(cred, at, name).await {
                Ok(node) => found.push(node),
                Err(error) => return Ok((found, Some(error))),
            }
            if found.last().is_some_and(|node| node.attr.kind != FileKind::Directory) {
                break;
            }
        }
        Ok((found, None))
    }
    async fn parent(&self, cred: &OpaqueAuth, dir: &Handle) -> Result<Node>;
    async fn readdir(
        &self,
        cred: &OpaqueAuth,
        dir: &Handle,
        cookie: u64,
        max_entries: usize,
        with_attr: bool,
    ) -> Result<Page>;
    async fn readlink(&self, cred: &OpaqueAuth, handle: &Handle) -> Result<Vec<u8>>;
    /// Creates a regular file that must not exist. `exclusive`: a retransmission of the request
    /// recognises the file that the first one created.
    async fn create(&self, cred: &OpaqueAuth, entry: NewEntry<'_>, exclusive: bool)
    -> Result<Node>;
    async fn make(
        &self,
        cred: &OpaqueAuth,
        entry: NewEntry<'_>,
        special: Special<'_>,
    ) -> Result<Node>;
    async fn link(
        &self,
        cred: &OpaqueAuth,
        handle: &Handle,
        dir: &Handle,
        name: &[u8],
    ) -> Result<Attr>;
    /// Removes a name; of a directory if `directory`.
    async fn remove(
        &self,
        cred: &OpaqueAuth,
        dir: &Handle,
        name: &[u8],
        directory: bool,
    ) -> Result<()>;
    async fn rename(
        &self,
        cred: &OpaqueAuth,
        from: (&Handle, &[u8]),
        to: (&Handle, &[u8]),
        flags: RenameFlags,
    ) -> Result<()>;
    /// Creates a small file whole: see [`weir_vfs::FileSystem::put_whole`].
    async fn put_whole(
        &self,
        cred: &OpaqueAuth,
        dir: &Handle,
        file: &WholeFile,
    ) -> Result<Option<Node>>;
    /// Reads a small file whole: see [`weir_vfs::FileSystem::get_whole`].
    async fn get_whole(
        &self,
        cred: &OpaqueAuth,
        handle: &Handle,
        most: usize,
        with_xattrs: bool,
    ) -> Result<Option<WholeRead>>;
    async fn open(
        &self,
        cred: Arc<OpaqueAuth>,
        handle: &Handle,
        access: Access,
    ) -> Result<OpenContext>;
    /// Opens a file for reading, for a user who executes it.
    async fn open_to_execute(&self, cred: Arc<OpaqueAuth>, handle: &Handle) -> Result<OpenContext> {
        // The server opens a program for who may execute it.
        self.open(cred, handle, Access::READ).await
    }
    /// The number of the delegation that the mount holds for a file: while it stays the same, no
    /// other client changes the file.
    fn grant(&self, _handle: &Handle) -> Option<u64> {
        None
    }
    async fn close(&self, open: OpenContext);
    /// Requests a lock. Returns whether it was granted. `waits`: the caller will request it again, so
    /// the server may call back when it is free.
    async fn lock(
        &self,
        open: &OpenContext,
        owner: OpenLockOwner,
        lock: Lock,
        waits: bool,
    ) -> Result<bool>;
    /// The lock requests that wait for other owners' locks.
    fn lock_waiters(&self) -> &LockWaiters;
    /// Withdraws a request that waited for a lock.
    async fn withdraw_lock(&self, _: &OpenContext, _: OpenLockOwner, _: Lock) -> Result<()> {
        Ok(())
    }
    /// The parts of a lock owner's locks in a range.
    fn locks_held(&self, open: &OpenContext, owner: OpenLockOwner, range: LockRange) -> Vec<Lock>;
    /// A lock owner claims its locks in a range only as shared ones from now on.
    fn claim_shared(&self, _: &OpenContext, _: OpenLockOwner, _: LockRange) {}
    /// An owner may not have what it takes for its lock: I/O and locks of the file fail until all owners
    /// have released theirs.
    fn lose_locks(&self, open: &OpenContext);
    /// A lock of another owner that conflicts with this one.
    async fn test_lock(
        &self,
        open: &OpenContext,
        owner: OpenLockOwner,
        lock: Lock,
    ) -> Result<Option<Lock>>;
    /// Releases a lock owner's locks in a range.
    async fn unlock(
        &self,
        open: &OpenContext,
        owner: OpenLockOwner,
        range: LockRange,
    ) -> Result<()>;
    /// Releases a lock owner without locks, where the version has a request for that.
    async fn release_lock_owner(&self, _: &OpenContext, _: OpenLockOwner) {}
    /// One READ or READ_PLUS into its destination.
    async fn read(&self, open: &OpenContext, target: ReadTarget) -> Result<Layout>;
    /// One WRITE, durable if the request asks for that.
    async fn write(&self, open: &OpenContext, request: WriteRequest) -> Result<Written>;
    /// Makes writes durable; returns the verifier.
    async fn commit(&self, open: &OpenContext) -> Result<([u8; 8], ChangeSpan)>;
    async fn extent_at(&self, open: &OpenContext, offset: u64) -> Result<Extent>;
    async fn allocate(&self, open: &OpenContext, offset: u64, len: u64) -> Result<ChangeSpan>;
    async fn punch_hole(&self, open: &OpenContext, offset: u64, len: u64) -> Result<ChangeSpan>;
    async fn clone_range(
        &self,
        from: &OpenContext,
        to: &OpenContext,
        offset: u64,
        len: u64,
        to_offset: u64,
    ) -> Result<ChangeSpan>;
    /// Copies at most `len` bytes within the server, and makes them durable. Returns how many.
    async fn copy_range(
        &self,
        _from: &OpenContext,
        _to: &OpenContext,
        _offset: u64,
        _len: u64,
        _to_offset: u64,
    ) -> Result<(u64, ChangeSpan)> {
        Err(weir_vfs::Error::NotSupported.into())
    }
    async fn get_xattr(&self, cred: &OpaqueAuth, handle: &Handle, name: &[u8]) -> Result<Vec<u8>>;
    async fn set_xattr(
        &self,
        cred: &OpaqueAuth,
        handle: &Handle,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()>;
    async fn list_xattrs(&self, cred: &OpaqueAuth, handle: &Handle) -> Result<Vec<Vec<u8>>>;
    async fn remove_xattr(&self, cred: &OpaqueAuth, handle: &Handle, name: &[u8]) -> Result<()>;
    /// The access control list of a file; `None` if its mode says all of it. A list that the version cannot express is
    /// denied.
    async fn get_acl(&self, cred: &OpaqueAuth, handle: &Handle) -> Result<Option<Acl>>;
    /// Closes, unlocks and returns all state that the server holds for this mount.
    async fn unmount(&self);
    /// Ends the mount's connections; pending and later calls fail. Waits for nothing.
    fn end_connections(&self);
}

/// Opens a file without open state at the server: checks that it exists and that the caller has the permissions
/// `wanted`.
pub(crate) async fn open_stateless(
    protocol: &dyn Protocol,
    cred: Arc<OpaqueAuth>,
    handle: &Handle,
    wanted: Permissions,
) -> Result<OpenContext> {
    match protocol.getattr(&cred, handle).await?.kind {
        FileKind::Regular => {}
        FileKind::Directory => return Err(weir_vfs::Error::IsDirectory.into()),
        FileKind::Symlink => return Err(weir_vfs::Error::Loop.into()),
        _ => return Err(weir_vfs::Error::Invalid.into()),
    }
    match protocol.access(&cred, handle, wanted).await? == wanted {
        true => Ok(OpenContext { cred, handle: handle.clone(), state: None }),
        false => Err(weir_vfs::Error::AccessDenied.into()),
    }
}

/// An invalid answer to `operation`.
pub(crate) fn broken(server: &Arc<str>, operation: &'static str, violation: Violation) -> Error {
    Error::Protocol { server: Arc::clone(server), operation, violation }
}

/// AUTH_SYS has room for 16 groups besides the first (RFC 5531 appendix A); the rest are omitted.
pub(crate) fn auth_sys(uid: u32, gid: u32, groups: &[u32]) -> OpaqueAuth {
    let gids: Vec<u32> = groups.iter().copied().filter(|g| *g != gid).take(16).collect();
    let machine_name = rustix::system::uname().nodename().to_bytes().into();
    OpaqueAuth::from(&AuthSys { stamp: 0, machine_name, uid, gid, gids: gids.into() })
}
