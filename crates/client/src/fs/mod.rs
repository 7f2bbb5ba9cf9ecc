//! A mounted export as a [`FileSystem`].
//!
//! 1. Requests run on threads of the mount's own, so the futures here only wait for a reply and may
//!    be polled by any executor. Dropping a future abandons the reply, not the operation.
//! 2. The mount ends when the [`NfsFs`] and every open file have been dropped.

mod checks;
mod driven;
pub(crate) mod file;
pub(crate) mod handles;
mod mount_state;
mod waiting;

use crate::detail;
use crate::error::Violation;
use crate::files::attribute_cache::AttributeCache;
use crate::files::change_spans::OwnChanges;
use crate::files::deferred_close::Deferred;
use crate::files::silly_rename::{MOST_OF_AN_ATTEMPT, PATIENCE, REMOVAL_PAUSE};
use crate::fs::checks::{check_name, is_component};
use crate::fs::handles::Handles;
use crate::fs::mount_state::{MOST_OPERATIONS, MOST_TRANSFERS, Mount, MountState, Runtime};
use crate::mount;
use crate::protocol::{Handle, NewEntry, Node, Protocol, Reach, Root, Special, auth_sys, broken};
use crate::{MountOptions, NfsUrl, Version};
use async_trait::async_trait;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use weir_rpc::OpaqueAuth;
use weir_vfs::{
    Access, Acl, AclKind, AclName, Attr, Caller, Capabilities, CreateMode, Created, Cred, DirEntry,
    DirPage, EntryName, Error, FileId, FileSystem, FsStat, KeptAttributes, NewFile, OpenFile,
    Permissions, ReaddirRequest, RenameFlags, Result, SetAttr, SpecialFile, Unnamed, WholeFile,
    WholeRead, WholeRequest, XattrMode, XattrName, check_owners,
};

/// An NFS export, mounted.
#[derive(Clone)]
pub struct NfsFs {
    mount: Arc<Mount>,
}

/// A mount of the last directory on the path to a file.
pub struct Nearest {
    /// The mount.
    pub fs: Arc<NfsFs>,
    /// The attributes of its root.
    pub root: Attr,
    /// Number of components of the URL's path that lead to it.
    pub depth: usize,
}

/// Network traffic since the mount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WireStats {
    /// Bytes sent, headers included.
    pub sent_bytes: u64,
    /// Bytes received, headers included.
    pub received_bytes: u64,
    /// Connections that were re-established.
    pub reconnects: u64,
}

impl NfsFs {
    /// Mounts the directory at `url`; the URL's query takes precedence over `options`.
    ///
    /// # Errors
    /// The server cannot be reached, offers none of the requested versions, or refuses the path.
    pub async fn mount(url: &NfsUrl, options: &MountOptions) -> crate::Result<Arc<Self>> {
        Ok(Self::mount_to(url, Reach::End, options, None).await?.fs)
    }

    /// The same, with the mount's requests on the program's own runtime, which saves its threads and
    /// the way between them. The runtime must have its I/O and time drivers enabled and keep running; the
    /// end of the mount runs on it, too.
    ///
    /// # Errors
    /// As [`mount`](Self::mount).
    pub async fn mount_on(
        runtime: tokio::runtime::Handle,
        url: &NfsUrl,
        options: &MountOptions,
    ) -> crate::Result<Arc<Self>> {
        Ok(Self::mount_to(url, Reach::End, options, Some(Runtime::Callers(runtime))).await?.fs)
    }

    /// Mounts the last directory on the way to what `url` names, which may be a file, a link, or not
    /// exist. Its query goes before `options`.
    ///
    /// # Errors
    /// As [`mount`](Self::mount).
    pub async fn mount_nearest(url: &NfsUrl, options: &MountOptions) -> crate::Result<Nearest> {
        Self::mount_to(url, Reach::LastDirectory, options, None).await
    }

    async fn mount_to(
        url: &NfsUrl,
        reach: Reach,
        options: &MountOptions,
        on: Option<Runtime>,
    ) -> crate::Result<Nearest> {
        let options = url.options(options)?;
        let runtime = match on {
            Some(runtime) => runtime,
            None => Runtime::own(options.nconnect)?,
        };
        let (uid, gid, groups) = options.identity();
        let own = Arc::new(auth_sys(uid, gid, &groups));
        let mounting = mount::mount(url.clone(), reach, options.clone(), OpaqueAuth::clone(&own));
        let mounted = match runtime.handle()?.spawn(mounting).await {
            Ok(mounted) => mounted?,
            Err(_) => return Err(crate::Error::Local(Error::Io)),
        };
        let mount::Mounted { protocol, version, root: Root { node: root, depth }, counters } =
            mounted;
        let attr = root.attr.clone();
        let handles = Handles::new(root.attr.id, root.handle);
        let state = Arc::new(MountState {
            protocol,
            version,
            handles,
            own,
            attributes: Arc::new(AttributeCache::new(options.actimeo)),
            options,
            counters,
            open_files: Arc::default(),
            deferred: Arc::new(Deferred::new(runtime.handle()?.clone())),
            operations: Arc::new(Semaphore::new(MOST_OPERATIONS)),
            transfers: Arc::new(Semaphore::new(MOST_TRANSFERS)),
        });
        Ok(Nearest {
            fs: Arc::new(Self { mount: Arc::new(Mount { state, runtime }) }),
            root: attr,
            depth,
        })
    }

    /// [`mount`](Self::mount) for programs without an executor. Must not be called from one.
    ///
    /// # Errors Those of [`mount`](Self::mount).
    pub fn mount_blocking(url: &NfsUrl, options: &MountOptions) -> crate::Result<Arc<Self>> {
        crate::block_on(Self::mount(url, options))
    }

    /// The version that client and server agreed on.
    pub fn version(&self) -> Version {
        self.mount.state.version
    }

    /// Network traffic so far.
    pub fn wire_stats(&self) -> WireStats {
        let counters = &self.mount.state.counters;
        WireStats {
            sent_bytes: counters.sent.load(Relaxed),
            received_bytes: counters.received.load(Relaxed),
            reconnects: counters.reconnects.load(Relaxed),
        }
    }

    /// Returns all state that the server holds for this mount. Operations fail from then on; dirty
    /// data in a page cache over this mount is lost, so a program with such a cache calls its
    /// `CachedFs::unmount` instead. Dropping the mount does this in the background, which a program
    /// that exits may not complete.
    pub async fn unmount(&self) {
        if let Err(error) = self.mount.unmount().await {
            tracing::warn!("unmount: {error}");
        }
    }

    /// The mount's implementation of its protocol version.
    pub(crate) fn protocol(&self) -> &dyn Protocol {
        &*self.mount.state.protocol
    }

    /// The executor of the mount's requests.
    pub(crate) fn runtime(&self) -> Result<&tokio::runtime::Handle> {
        self.mount.runtime.handle()
    }

    /// Begins a read or write by path when its turn comes; `begin` must not wait. A caller that gives
    /// up before that leaves nothing behind.
    pub(crate) async fn in_turn<T: Send + 'static>(
        &self,
        begin: impl FnOnce(OwnedSemaphorePermit) -> T + Send + 'static,
    ) -> Result<T> {
        self.mount.in_turn(begin).await
    }

    /// Looks up a path below a directory, as far as it leads through directories: the files on it in
    /// order, and why the component after them was not found. If what was found last is no directory,
    /// the failure is without meaning.
    pub(crate) async fn lookup_path(
        &self,
        dir: FileId,
        names: &[Vec<u8>],
    ) -> Result<(Vec<Attr>, Option<Error>)> {
        names.iter().try_for_each(|name| check_name(name))?;
        let (dir, names) = (self.handle(dir)?, names.to_vec());
        let asked = self.mount.state.attributes.asking();
        let lookup = |state: Arc<MountState>| async move {
            state.protocol.lookup_path(&state.own, &dir, &names).await
        };
        let (nodes, failure) = self.mount.run(lookup).await?;
        let found = nodes.into_iter().map(|node| {
            self.mount.state.handles.remember(&node.attr, &node.handle);
            self.mount.state.attributes.remember(asked, &node.attr);
            node.attr
        });
        Ok((found.collect(), failure.map(|error| detail::current().neutral(error))))
    }

    /// Runs an operation, and enters the handle of its result under the file's id.
    async fn node<F, Fut>(&self, operation: F) -> Result<Attr>
    where
        F: FnOnce(Arc<MountState>) -> Fut,
        Fut: Future<Output = crate::Result<Node>> + Send + 'static,
    {
        let asked = self.mount.state.attributes.asking();
        let node = self.mount.run(operation).await?;
        self.mount.state.handles.remember(&node.attr, &node.handle);
        self.mount.state.attributes.remember(asked, &node.attr);
        Ok(node.attr)
    }

    /// Whether names of removed open files are in a directory.
    async fn has_silly_renamed(&self, caller: &Caller, directory: EntryName<'_>) -> bool {
        let open_files = &self.mount.state.open_files;
        if open_files.are_none_silly_renamed() {
            return false;
        }
        let Ok(attr) = self.lookup(caller, directory).await else { return false };
        self.handle(attr.id).is_ok_and(|handle| open_files.are_silly_renamed_in(&handle))
    }

    /// Runs an operation that changes names.
    async fn renaming<T>(&self, operation: impl Future<Output = Result<T>> + Send) -> Result<T> {
        self.mount.state.attributes.forget_all();
        let outcome = operation.await;
        self.mount.state.attributes.forget_all();
        outcome
    }

    /// Runs an operation that changes a file.
    async fn changing<T>(
        &self,
        id: FileId,
        operation: impl Future<Output = Result<T>> + Send,
    ) -> Result<T> {
        self.mount.state.attributes.forget(id);
        let outcome = operation.await;
        self.mount.state.attributes.forget(id);
        outcome
    }

    /// The file that has a name, if this mount may have it open; it asks the server only if any file
    /// is open. What is done to other files' names is nothing to a cache above: they have no data that
    /// waits to be written.
    async fn open_file(&self, caller: &Caller, entry: EntryName<'_>) -> Option<FileId> {
        if self.mount.state.open_files.is_empty() {
            return None;
        }
        Some(self.lookup(caller, entry).await.ok()?.id)
    }

    async fn names_left(&self, file: Option<FileId>) -> Result<Option<Unnamed>> {
        Ok(match file {
            Some(id) => self.count_names(id).await,
            None => None,
        })
    }

    fn handle(&self, id: FileId) -> Result<Handle> {
        let state = &self.mount.state;
        state.handles.get(id).or_else(|error| state.open_files.handle(id).ok_or(error))
    }

    /// The handle of the directory in which a name will be changed, and the name.
    fn place(&self, entry: EntryName<'_>) -> Result<(Handle, Vec<u8>)> {
        self.writable()?;
        check_name(entry.name)?;
        Ok((self.handle(entry.dir)?, entry.name.to_vec()))
    }

    fn writable(&self) -> Result<()> {
        if self.mount.state.options.ro { Err(Error::ReadOnly) } else { Ok(()) }
    }

    fn cred(&self, caller: &Caller) -> Arc<OpaqueAuth> {
        match caller {
            Caller::Own => Arc::clone(&self.mount.state.own),
            Caller::As(Cred { uid, gid, groups }) => Arc::new(auth_sys(*uid, *gid, groups)),
        }
    }

    async fn make(&self, caller: &Caller, new: NewFile<'_>, special: NewNode) -> Result<Attr> {
        check_owners(new.set.uid, new.set.gid)?;
        let ((dir, name), cred) = (self.place(new.at)?, self.cred(caller));
        let set = new.set.clone();
        self.renaming(self.node(|state| async move {
            let entry = NewEntry { dir: &dir, name: &name, set: &set };
            let special = match &special {
                NewNode::Directory => Special::Directory,
                NewNode::Symlink(target) => Special::Symlink(target),
                NewNode::Special(file) => Special::File(*file),
            };
            state.protocol.make(&cred, entry, special).await
        }))
        .await
    }
}

enum NewNode {
    Directory,
    Symlink(Vec<u8>),
    Special(SpecialFile),
}

#[async_trait]
impl FileSystem for NfsFs {
    fn capabilities(&self) -> Capabilities {
        self.mount.state.protocol.capabilities()
    }

    fn root(&self) -> FileId {
        self.mount.state.handles.root().0
    }

    async fn statfs(&self) -> Result<FsStat> {
        self.mount
            .run(
                |state| async move { state.protocol.statfs(&state.own, &state.handles.root().1).await },
            )
            .await
    }

    async fn getattr(&self, id: FileId) -> Result<Attr> {
        let handle = self.handle(id)?;
        let get = |state: Arc<MountState>| async move {
            let ask = state.protocol.getattr(&state.own, &handle);
            state.attributes.get_or_ask(&*state.protocol, (id, &handle), ask).await
        };
        self.mount.run(get).await
    }

    fn forget_attributes(&self, id: FileId, which: KeptAttributes) {
        // Nothing is asked of a file without a handle.
        if let Ok(handle) = self.handle(id) {
            let MountState { protocol, attributes, .. } = &*self.mount.state;
            attributes.forget_kept(&**protocol, (id, &handle), which);
        }
    }

    async fn setattr(&self, caller: &Caller, id: FileId, masked: &SetAttr) -> Result<Attr> {
        self.writable()?;
        check_owners(masked.uid, masked.gid)?;
        let (handle, cred, mut set) = (self.handle(id)?, self.cred(caller), masked.clone());
        if set.mode_mask.take().is_some_and(|_| set.mode.is_some()) {
            // No version has a single request for this that every server supports. Cached
            // attributes may be from before another client's change.
            let handle = handle.clone();
            let ask = |state: Arc<MountState>| async move {
                state.protocol.getattr(&state.own, &handle).await
            };
            set.mode = masked.mode_of(self.mount.run(ask).await?.mode);
        }
        let set = self.mount.run(move |state| async move {
            let changes = state.open_files.changes(id);
            let change = changes.as_deref().map(OwnChanges::begin);
            let (attr, span) = state.protocol.setattr(&cred, &handle, None, &set).await?;
            if let Some(change) = change {
                change.done(span);
            }
            Ok(attr)
        });
        self.changing(id, set).await
    }

    async fn access(&self, caller: &Caller, id: FileId, mask: Permissions) -> Result<Permissions> {
        let (handle, cred) = (self.handle(id)?, self.cred(caller));
        self.mount
            .run(|state| async move { state.protocol.access(&cred, &handle, mask).await })
            .await
    }

    async fn lookup(&self, caller: &Caller, entry: EntryName<'_>) -> Result<Attr> {
        check_name(entry.name)?;
        let (dir, cred) = (self.handle(entry.dir)?, self.cred(caller));
        let name = entry.name.to_vec();
        self.node(|state| async move { state.protocol.lookup(&cred, &dir, &name).await }).await
    }

    async fn parent(&self, dir: FileId) -> Result<Attr> {
        if dir == self.root() {
            return self.getattr(dir).await;
        }
        let dir = self.handle(dir)?;
        self.node(|state| async move { state.protocol.parent(&state.own, &dir).await }).await
    }

    async fn readdir(&self, caller: &Caller, request: ReaddirRequest) -> Result<DirPage> {
        let ReaddirRequest { dir, cookie, max_entries, with_attr } = request;
        let (dir, cred) = (self.handle(dir)?, self.cred(caller));
        let asked = self.mount.state.attributes.asking();
        let page = self
            .mount
            .run(move |state| async move {
                let protocol = &state.protocol;
                let page = protocol.readdir(&cred, &dir, cookie, max_entries, with_attr).await?;
                let broken = |violation| Err(broken(protocol.server(), "READDIR", violation));
                if !page.entries.iter().all(|entry| is_component(&entry.name)) {
                    return broken(Violation::BadName);
                }
                // Entries after such a page would never be seen, or requested forever.
                match page.entries.last() {
                    Some(last) if page.eof || last.cookie != cookie => Ok(page),
                    None if page.eof => Ok(page),
                    _ => broken(Violation::NoProgress),
                }
            })
            .await?;
        let entries = page.entries.into_iter().map(|entry| {
            let attr = entry.node.map(|node| {
                self.mount.state.handles.remember(&node.attr, &node.handle);
                self.mount.state.attributes.remember(asked, &node.attr);
                node.attr
            });
            DirEntry { name: entry.name, cookie: entry.cookie, attr, ino: entry.ino }
        });
        Ok(DirPage { entries: entries.collect(), eof: page.eof })
    }

    async fn readlink(&self, caller: &Caller, id: FileId) -> Result<Vec<u8>> {
        let (handle, cred) = (self.handle(id)?, self.cred(caller));
        self.mount.run(|state| async move { state.protocol.readlink(&cred, &handle).await }).await
    }

    async fn create(&self, caller: &Caller, new: NewFile<'_>, mode: CreateMode) -> Result<Created> {
        check_owners(new.set.uid, new.set.gid)?;
        let ((dir, name), cred) = (self.place(new.at)?, self.cred(caller));
        let exclusive = mode == CreateMode::MustBeNew;
        for _ in 0..MAX_CREATES {
            let (dir, name) = (dir.clone(), name.clone());
            let (cred, set) = (Arc::clone(&cred), new.set.clone());
            let make = self.node(|state| async move {
                let entry = NewEntry { dir: &dir, name: &name, set: &set };
                state.protocol.create(&cred, entry, exclusive).await
            });
            match self.renaming(make).await {
                Ok(attr) => return Ok(Created { attr, created: true }),
                Err(Error::Exists) if !exclusive => {}
                Err(error) => return Err(error),
            }
            match self.lookup(caller, new.at).await {
                Ok(attr) => return Ok(Created { attr, created: false }),
                // Removed in between: create it after all.
                Err(Error::NotFound) => {}
                Err(error) => return Err(error),
            }
            let pause = |_| async {
                tokio::time::sleep(CREATE_PAUSE).await;
                Ok(())
            };
            self.mount.run(pause).await?;
        }
        Err(Error::Exists)
    }

    async fn mkdir(&self, caller: &Caller, new: NewFile<'_>) -> Result<Attr> {
        self.make(caller, new, NewNode::Directory).await
    }

    async fn symlink(&self, caller: &Caller, new: NewFile<'_>, target: &[u8]) -> Result<Attr> {
        self.make(caller, new, NewNode::Symlink(target.to_vec())).await
    }

    async fn mknod(&self, caller: &Caller, new: NewFile<'_>, node: SpecialFile) -> Result<Attr> {
        self.make(caller, new, NewNode::Special(node)).await
    }

    async fn link(&self, caller: &Caller, id: FileId, entry: EntryName<'_>) -> Result<Attr> {
        let (handle, cred) = (self.handle(id)?, self.cred(caller));
        let (dir, name) = self.place(entry)?;
        let link = self
            .mount
            .run(|state| async move { state.protocol.link(&cred, &handle, &dir, &name).await });
        self.renaming(link).await
    }

    async fn unlink(&self, caller: &Caller, entry: EntryName<'_>) -> Result<()> {
        let ((dir, name), cred) = (self.place(entry)?, self.cred(caller));
        let unlink = self.mount.run(|state| async move {
            state.open_files.unlink(&*state.protocol, cred, dir, &name).await
        });
        self.renaming(unlink).await
    }

    async fn unlink_counted(
        &self,
        caller: &Caller,
        entry: EntryName<'_>,
    ) -> Result<Option<Unnamed>> {
        let victim = self.open_file(caller, entry).await;
        self.unlink(caller, entry).await?;
        self.names_left(victim).await
    }

    async fn count_names(&self, id: FileId) -> Option<Unnamed> {
        let state = &self.mount.state;
        if state.open_files.is_silly_renamed(id) {
            // For this mount, the last name is gone.
            return Some(Unnamed { id, nlink: 0 });
        }
        // A file that is not open has no dirty data: no need to ask.
        if !state.open_files.is_open(id) {
            return None;
        }
        match self.getattr(id).await {
            Ok(attr) => Some(Unnamed { id, nlink: attr.nlink }),
            Err(Error::Stale | Error::NotFound) => Some(Unnamed { id, nlink: 0 }),
            Err(_) => None,
        }
    }

    fn names_change_here(&self) -> bool {
        false
    }

    async fn rmdir(&self, caller: &Caller, entry: EntryName<'_>) -> Result<()> {
        let (mut left, mut looked) = (PATIENCE, Instant::now());
        loop {
            let ((dir, name), cred) = (self.place(entry)?, self.cred(caller));
            // Before the attempt: the last one may go after it.
            let has_silly_renamed = self.has_silly_renamed(caller, entry).await;
            let remove = self
                .mount
                .run(|state| async move { state.protocol.remove(&cred, &dir, &name, true).await });
            let removed = self.renaming(remove).await;
            let passed = std::mem::replace(&mut looked, Instant::now()).elapsed();
            left = left.saturating_sub(passed.min(MOST_OF_AN_ATTEMPT));
            // Names of files that are just being closed do not keep it.
            if removed != Err(Error::NotEmpty) || left.is_zero() || !has_silly_renamed {
                return removed;
            }
            // On the mount's executor, which has a timer.
            let pause = |_| async {
                tokio::time::sleep(REMOVAL_PAUSE).await;
                Ok(())
            };
            self.mount.run(pause).await?;
        }
    }

    async fn rename(
        &self,
        caller: &Caller,
        from: EntryName<'_>,
        to: EntryName<'_>,
        flags: RenameFlags,
    ) -> Result<()> {
        let (from, to) = (self.place(from)?, self.place(to)?);
        let cred = self.cred(caller);
        let rename = self.mount.run(|state| async move {
            let (from, to) = ((&from.0, &from.1[..]), (&to.0, &to.1[..]));
            state.open_files.rename(&*state.protocol, cred, from, to, flags).await
        });
        self.renaming(rename).await
    }

    async fn rename_counted(
        &self,
        caller: &Caller,
        from: EntryName<'_>,
        to: EntryName<'_>,
        flags: RenameFlags,
    ) -> Result<Option<Unnamed>> {
        let replaced = match flags {
            RenameFlags::Replace => self.open_file(caller, to).await,
            RenameFlags::NoReplace | RenameFlags::Exchange => None,
        };
        self.rename(caller, from, to, flags).await?;
        self.names_left(replaced).await
    }

    async fn put_whole(
        &self,
        caller: &Caller,
        dir: FileId,
        file: &WholeFile,
    ) -> Result<Option<Attr>> {
        check_name(&file.temporary)?;
        let (uid, gid) = file.owner.unzip();
        check_owners(uid, gid)?;
        let (dir, cred) = (self.place(dir.entry(&file.name))?.0, self.cred(caller));
        let file = file.clone();
        let put = self.mount.run(|state| async move { state.put_whole(&cred, &dir, &file).await });
        let Some(node) = self.renaming(put).await? else { return Ok(None) };
        self.mount.state.handles.remember(&node.attr, &node.handle);
        Ok(Some(node.attr))
    }

    async fn get_whole(&self, caller: &Caller, request: WholeRequest) -> Result<Option<WholeRead>> {
        let WholeRequest { id, max_bytes, with_xattrs } = request;
        let (handle, cred) = (self.handle(id)?, self.cred(caller));
        let get = |state: Arc<MountState>| async move {
            state.protocol.get_whole(&cred, &handle, max_bytes, with_xattrs).await
        };
        self.mount.run(get).await
    }

    async fn open(&self, caller: &Caller, id: FileId, access: Access) -> Result<Arc<dyn OpenFile>> {
        if access.contains(Access::WRITE) {
            self.writable()?;
        }
        let cred = self.cred(caller);
        let open = move |protocol: Arc<dyn Protocol>, handle: Handle| async move {
            protocol.open(cred, &handle, access).await
        };
        self.open_by(id, access, open).await
    }

    async fn open_to_execute(&self, caller: &Caller, id: FileId) -> Result<Arc<dyn OpenFile>> {
        let cred = self.cred(caller);
        let open = move |protocol: Arc<dyn Protocol>, handle: Handle| async move {
            protocol.open_to_execute(cred, &handle).await
        };
        self.open_by(id, Access::READ, open).await
    }

    /// Servers make changes of names and attributes durable before they reply.
    async fn sync_node(&self, id: FileId) -> Result<()> {
        self.handle(id).map(drop)
    }

    async fn unmount(&self) -> Result<()> {
        Self::unmount(self).await;
        Ok(())
    }

    async fn get_xattr(&self, caller: &Caller, xattr: XattrName<'_>) -> Result<Vec<u8>> {
        let (handle, cred) = (self.handle(xattr.id)?, self.cred(caller));
        let name = xattr.name.to_vec();
        self.mount
            .run(|state| async move { state.protocol.get_xattr(&cred, &handle, &name).await })
            .await
    }

    async fn set_xattr(
        &self,
        caller: &Caller,
        xattr: XattrName<'_>,
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        self.writable()?;
        let (handle, cred) = (self.handle(xattr.id)?, self.cred(caller));
        let (name, value) = (xattr.name.to_vec(), value.to_vec());
        let set = self.mount.run(|state| async move {
            state.protocol.set_xattr(&cred, &handle, &name, &value, mode).await
        });
        self.changing(xattr.id, set).await
    }

    async fn list_xattrs(&self, caller: &Caller, id: FileId) -> Result<Vec<Vec<u8>>> {
        let (handle, cred) = (self.handle(id)?, self.cred(caller));
        self.mount
            .run(|state| async move { state.protocol.list_xattrs(&cred, &handle).await })
            .await
    }

    async fn remove_xattr(&self, caller: &Caller, xattr: XattrName<'_>) -> Result<()> {
        self.writable()?;
        let (handle, cred) = (self.handle(xattr.id)?, self.cred(caller));
        let name = xattr.name.to_vec();
        let remove = self
            .mount
            .run(|state| async move { state.protocol.remove_xattr(&cred, &handle, &name).await });
        self.changing(xattr.id, remove).await
    }

    /// Default lists are not read, and none are set.
    async fn get_acl(&self, acl: AclName) -> Result<Option<Acl>> {
        if acl.kind != AclKind::Access {
            return Err(Error::NotSupported);
        }
        let handle = self.handle(acl.id)?;
        let get = |state: Arc<MountState>| async move {
            state.protocol.get_acl(&state.own, &handle).await
        };
        self.mount.run(get).await
    }
}

/// How often a name may exist for CREATE but not for LOOKUP, and the pause between attempts.
const MAX_CREATES: u32 = 16;
const CREATE_PAUSE: Duration = Duration::from_millis(20);
