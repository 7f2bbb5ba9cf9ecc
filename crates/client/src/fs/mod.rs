//! A mounted export as a [`FileSystem`].
//!
//! 1. The conversation with the server runs on threads of the mount's own, so the futures here
//!    only wait for an answer and may be polled by any executor. An abandoned future abandons the
//!    answer, not the operation.
//! 2. The mount ends when the [`NfsFs`] and every open file are gone.

pub(crate) mod file;
pub(crate) mod handles;

use crate::error::Violation;
use crate::files::attribute_cache::Attributes;
use crate::files::change_spans::Changes;
use crate::files::deferred_close::Farewells;
use crate::files::silly_rename::OpenFiles;
use crate::fs::file::{NfsFile, Opened};
use crate::fs::handles::Handles;
use crate::locks::Lockers;
use crate::mount::{self, UNMOUNT_PATIENCE};
use crate::protocol::{Handle, Node, OpenAt, Place, Protocol, Special, broken};
use crate::transport::Counters;
use crate::{MountOptions, NfsUrl, Version};
use async_trait::async_trait;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::time::timeout;
use weir_rpc::{AuthSys, OpaqueAuth};
use weir_vfs::{
    Access, Attr, Caller, Capabilities, Created, Cred, DirEntry, DirPage, Error, FileId, FileKind,
    FileSystem, FsStat, OpenFile, RenameFlags, Result, SetAttr, Unnamed, XattrMode,
};

/// An NFS export, mounted.
#[derive(Clone)]
pub struct NfsFs {
    inner: Arc<Inner>,
}

/// What went over the wire since the mount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WireStats {
    /// Bytes sent, headers included.
    pub sent_bytes: u64,
    /// Bytes received, headers included.
    pub received_bytes: u64,
    /// Connections that had to be made anew.
    pub reconnects: u64,
}

impl NfsFs {
    /// Mounts the directory that `url` names; its query goes before `options`.
    ///
    /// # Errors
    /// The server cannot be reached, offers none of the versions asked for, or refuses the path.
    pub async fn mount(url: &NfsUrl, options: &MountOptions) -> crate::Result<Arc<Self>> {
        let options = url.options(options)?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(if options.nconnect > 1 { 2 } else { 1 })
            .thread_name("weir-nfs")
            .enable_all()
            .build()
            .map_err(|e| crate::Error::Local(e.into()))?;
        // Guards the runtime from here on: dropped, it ends in the background.
        let runtime = Runtime(Some(runtime));
        let (uid, gid, groups) = options.identity();
        let own = Arc::new(auth_sys(uid, gid, &groups));
        let mounting = mount::mount(url.clone(), options.clone(), OpaqueAuth::clone(&own));
        let mounted = match runtime.handle()?.spawn(mounting).await {
            Ok(mounted) => mounted?,
            Err(_) => return Err(crate::Error::Local(Error::Io)),
        };
        let mount::Mounted { protocol, version, root, counters } = mounted;
        let handles = Handles::new(root.attr.id, root.handle);
        let core = Arc::new(Core {
            protocol,
            version,
            handles,
            own,
            attributes: Arc::new(Attributes::new(options.actimeo)),
            options,
            counters,
            open_files: Arc::default(),
            farewells: Arc::new(Farewells::new(runtime.handle()?.clone())),
        });
        Ok(Arc::new(Self { inner: Arc::new(Inner { core, runtime }) }))
    }

    /// [`mount`](Self::mount) for programs without an executor. Must not be called on one.
    ///
    /// # Errors
    /// As [`mount`](Self::mount).
    pub fn mount_blocking(url: &NfsUrl, options: &MountOptions) -> crate::Result<Arc<Self>> {
        crate::block_on(Self::mount(url, options))
    }

    /// The version that client and server agreed on.
    pub fn version(&self) -> Version {
        self.inner.core.version
    }

    /// What went over the wire so far.
    pub fn wire_stats(&self) -> WireStats {
        let counters = &self.inner.core.counters;
        WireStats {
            sent_bytes: counters.sent.load(Relaxed),
            received_bytes: counters.received.load(Relaxed),
            reconnects: counters.reconnects.load(Relaxed),
        }
    }

    /// Gives back what the server holds for this mount. Operations fail from then on; what a page
    /// cache over this mount has not written back is lost, so a program that has one calls the
    /// cache's `CachedFs::unmount` instead. A mount that is dropped does this in the background,
    /// which a program that ends may not live to see.
    pub async fn unmount(&self) {
        let end = |core: Arc<Core>| async move {
            core.end().await;
            Ok(())
        };
        if let Err(error) = self.inner.run(end).await {
            tracing::warn!("unmount: {error}");
        }
    }

    /// Has the lease renewed no more, or again; returns how long it is, where there is one.
    pub(crate) fn fall_silent(&self, silent: bool) -> Option<Duration> {
        self.inner.core.protocol.fall_silent(silent)
    }

    /// The node behind a result that has one is remembered under its id.
    async fn node<F, Fut>(&self, operation: F) -> Result<Attr>
    where
        F: FnOnce(Arc<Core>) -> Fut,
        Fut: Future<Output = crate::Result<Node>> + Send + 'static,
    {
        let asked = self.inner.core.attributes.asking();
        let node = self.inner.run(operation).await?;
        self.inner.core.handles.remember(&node.attr, &node.handle);
        self.inner.core.attributes.remember(asked, &node.attr);
        Ok(node.attr)
    }

    /// Does what changes names.
    async fn renaming<T>(&self, operation: impl Future<Output = Result<T>> + Send) -> Result<T> {
        self.inner.core.attributes.forget_all();
        let outcome = operation.await;
        self.inner.core.attributes.forget_all();
        outcome
    }

    /// Does what changes a file.
    async fn changing<T>(
        &self,
        id: FileId,
        operation: impl Future<Output = Result<T>> + Send,
    ) -> Result<T> {
        self.inner.core.attributes.forget(id);
        let outcome = operation.await;
        self.inner.core.attributes.forget(id);
        outcome
    }

    fn handle(&self, id: FileId) -> Result<Handle> {
        let core = &self.inner.core;
        core.handles.get(id).or_else(|error| core.open_files.handle(id).ok_or(error))
    }

    /// The handle of a directory in which `name` is about to be changed.
    fn place(&self, dir: FileId, name: &[u8]) -> Result<(Handle, Vec<u8>)> {
        self.writable()?;
        check_name(name)?;
        Ok((self.handle(dir)?, name.to_vec()))
    }

    fn writable(&self) -> Result<()> {
        if self.inner.core.options.ro { Err(Error::ReadOnly) } else { Ok(()) }
    }

    fn cred(&self, caller: &Caller) -> Arc<OpaqueAuth> {
        match caller {
            Caller::Own => Arc::clone(&self.inner.core.own),
            Caller::As(Cred { uid, gid, groups }) => Arc::new(auth_sys(*uid, *gid, groups)),
        }
    }

    async fn make(
        &self,
        caller: &Caller,
        dir: FileId,
        name: &[u8],
        set: &SetAttr,
        special: NewNode,
    ) -> Result<Attr> {
        let ((dir, name), cred, set) = (self.place(dir, name)?, self.cred(caller), set.clone());
        self.renaming(self.node(|core| async move {
            let place = Place { dir: &dir, name: &name, set: &set };
            let special = match &special {
                NewNode::Directory => Special::Directory,
                NewNode::Symlink(target) => Special::Symlink(target),
                NewNode::Device(kind, rdev) => Special::Device(*kind, *rdev),
            };
            core.protocol.make(&cred, place, special).await
        }))
        .await
    }
}

enum NewNode {
    Directory,
    Symlink(Vec<u8>),
    Device(FileKind, (u32, u32)),
}

/// One mount.
pub(crate) struct Inner {
    core: Arc<Core>,
    runtime: Runtime,
}

/// What operations in flight hold on to: all but the threads that they run on.
pub(crate) struct Core {
    protocol: Arc<dyn Protocol>,
    version: Version,
    handles: Handles,
    own: Arc<OpaqueAuth>,
    options: MountOptions,
    counters: Arc<Counters>,
    open_files: Arc<OpenFiles>,
    attributes: Arc<Attributes>,
    farewells: Arc<Farewells>,
}

impl Core {
    /// Gives back what the server holds, as far as it answers in time.
    async fn end(&self) {
        let let_go = async {
            self.farewells.over().await;
            self.open_files.remove_hidden(&*self.protocol).await;
        };
        let all = async {
            let _ = timeout(UNMOUNT_PATIENCE / 2, let_go).await;
            self.protocol.unmount().await;
        };
        let _ = timeout(UNMOUNT_PATIENCE, all).await;
    }
}

impl Inner {
    /// Does `operation` on the mount's threads.
    pub(crate) async fn run<T, F, Fut>(&self, operation: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(Arc<Core>) -> Fut,
        Fut: Future<Output = crate::Result<T>> + Send + 'static,
    {
        self.try_run(operation).await.map_err(Error::from)
    }

    /// [`run`](Self::run), with all that is known of an error.
    pub(crate) async fn try_run<T, F, Fut>(&self, operation: F) -> crate::Result<T>
    where
        T: Send + 'static,
        F: FnOnce(Arc<Core>) -> Fut,
        Fut: Future<Output = crate::Result<T>> + Send + 'static,
    {
        let task = self.runtime.handle()?.spawn(operation(Arc::clone(&self.core)));
        task.await.unwrap_or(Err(crate::Error::Local(Error::Io)))
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let Some(runtime) = self.runtime.0.take() else { return };
        let core = Arc::clone(&self.core);
        // The last user may be one of the runtime's own threads, which cannot wait for itself.
        std::thread::spawn(move || {
            runtime.block_on(core.end());
            runtime.shutdown_background();
        });
    }
}

struct Runtime(Option<tokio::runtime::Runtime>);

impl Runtime {
    fn handle(&self) -> Result<&tokio::runtime::Handle> {
        self.0.as_ref().map(tokio::runtime::Runtime::handle).ok_or(Error::Io)
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

#[async_trait]
impl FileSystem for NfsFs {
    fn capabilities(&self) -> Capabilities {
        self.inner.core.protocol.capabilities()
    }

    fn root(&self) -> FileId {
        self.inner.core.handles.root().0
    }

    async fn statfs(&self) -> Result<FsStat> {
        self.inner
            .run(
                |core| async move { core.protocol.statfs(&core.own, &core.handles.root().1).await },
            )
            .await
    }

    async fn getattr(&self, id: FileId) -> Result<Attr> {
        let handle = self.handle(id)?;
        self.inner
            .run(|core| async move {
                let ask = core.protocol.getattr(&core.own, &handle);
                core.attributes.get_or_ask(&*core.protocol, (id, &handle), ask).await
            })
            .await
    }

    async fn setattr(&self, caller: &Caller, id: FileId, masked: &SetAttr) -> Result<Attr> {
        self.writable()?;
        let (handle, cred, mut set) = (self.handle(id)?, self.cred(caller), masked.clone());
        if set.mode_mask.take().is_some_and(|_| set.mode.is_some()) {
            // No version has this in one step at every server. What is remembered of the file may be
            // from before another client's change.
            let handle = handle.clone();
            let ask =
                |core: Arc<Core>| async move { core.protocol.getattr(&core.own, &handle).await };
            set.mode = masked.mode_of(self.inner.run(ask).await?.mode);
        }
        let set = self.inner.run(move |core| async move {
            let changes = core.open_files.changes(id);
            let change = changes.as_deref().map(Changes::begin);
            let (attr, span) = core.protocol.setattr(&cred, &handle, None, &set).await?;
            if let Some(change) = change {
                change.done(span);
            }
            Ok(attr)
        });
        self.changing(id, set).await
    }

    async fn access(&self, caller: &Caller, id: FileId, mask: u32) -> Result<u32> {
        let (handle, cred) = (self.handle(id)?, self.cred(caller));
        self.inner.run(|core| async move { core.protocol.access(&cred, &handle, mask).await }).await
    }

    async fn lookup(&self, caller: &Caller, dir: FileId, name: &[u8]) -> Result<Attr> {
        check_name(name)?;
        let (dir, cred, name) = (self.handle(dir)?, self.cred(caller), name.to_vec());
        self.node(|core| async move { core.protocol.lookup(&cred, &dir, &name).await }).await
    }

    async fn parent(&self, dir: FileId) -> Result<Attr> {
        if dir == self.root() {
            return self.getattr(dir).await;
        }
        let dir = self.handle(dir)?;
        self.node(|core| async move { core.protocol.parent(&core.own, &dir).await }).await
    }

    async fn readdir(
        &self,
        caller: &Caller,
        dir: FileId,
        cookie: u64,
        max_entries: usize,
        with_attr: bool,
    ) -> Result<DirPage> {
        let (dir, cred) = (self.handle(dir)?, self.cred(caller));
        let asked = self.inner.core.attributes.asking();
        let page = self
            .inner
            .run(move |core| async move {
                let protocol = &core.protocol;
                let page = protocol.readdir(&cred, &dir, cookie, max_entries, with_attr).await?;
                // What comes after such a page would never be seen, or be asked for for ever.
                match page.entries.last() {
                    Some(last) if page.eof || last.cookie != cookie => Ok(page),
                    None if page.eof => Ok(page),
                    _ => Err(broken(protocol.server(), "READDIR", Violation::NoProgress)),
                }
            })
            .await?;
        let entries = page.entries.into_iter().map(|entry| {
            let attr = entry.node.map(|node| {
                self.inner.core.handles.remember(&node.attr, &node.handle);
                self.inner.core.attributes.remember(asked, &node.attr);
                node.attr
            });
            DirEntry { name: entry.name, cookie: entry.cookie, attr, ino: entry.ino }
        });
        Ok(DirPage { entries: entries.collect(), eof: page.eof })
    }

    async fn readlink(&self, caller: &Caller, id: FileId) -> Result<Vec<u8>> {
        let (handle, cred) = (self.handle(id)?, self.cred(caller));
        self.inner.run(|core| async move { core.protocol.readlink(&cred, &handle).await }).await
    }

    async fn create(
        &self,
        caller: &Caller,
        dir: FileId,
        name: &[u8],
        set: &SetAttr,
        exclusive: bool,
    ) -> Result<Created> {
        let ((dir_handle, name), cred) = (self.place(dir, name)?, self.cred(caller));
        loop {
            let (parent, set) = (dir_handle.clone(), set.clone());
            let (new, cred) = (name.clone(), Arc::clone(&cred));
            let make = self.node(|core| async move {
                let place = Place { dir: &parent, name: &new, set: &set };
                core.protocol.create(&cred, place, exclusive).await
            });
            match self.renaming(make).await {
                Ok(attr) => return Ok(Created { attr, created: true }),
                Err(Error::Exists) if !exclusive => {}
                Err(error) => return Err(error),
            }
            match self.lookup(caller, dir, &name).await {
                Ok(attr) => return Ok(Created { attr, created: false }),
                // Removed in between: make it after all.
                Err(Error::NotFound) => {}
                Err(error) => return Err(error),
            }
        }
    }

    async fn mkdir(
        &self,
        caller: &Caller,
        dir: FileId,
        name: &[u8],
        set: &SetAttr,
    ) -> Result<Attr> {
        self.make(caller, dir, name, set, NewNode::Directory).await
    }

    async fn symlink(
        &self,
        caller: &Caller,
        dir: FileId,
        name: &[u8],
        target: &[u8],
        set: &SetAttr,
    ) -> Result<Attr> {
        self.make(caller, dir, name, set, NewNode::Symlink(target.to_vec())).await
    }

    async fn mknod(
        &self,
        caller: &Caller,
        dir: FileId,
        name: &[u8],
        kind: FileKind,
        rdev: (u32, u32),
        set: &SetAttr,
    ) -> Result<Attr> {
        match kind {
            FileKind::Block | FileKind::Char | FileKind::Fifo | FileKind::Socket => {
                self.make(caller, dir, name, set, NewNode::Device(kind, rdev)).await
            }
            FileKind::Regular | FileKind::Directory | FileKind::Symlink => Err(Error::Invalid),
        }
    }

    async fn link(&self, caller: &Caller, id: FileId, dir: FileId, name: &[u8]) -> Result<Attr> {
        let (handle, cred) = (self.handle(id)?, self.cred(caller));
        let (dir, name) = self.place(dir, name)?;
        let link = self
            .inner
            .run(|core| async move { core.protocol.link(&cred, &handle, &dir, &name).await });
        self.renaming(link).await
    }

    async fn unlink(&self, caller: &Caller, dir: FileId, name: &[u8]) -> Result<()> {
        let ((dir, name), cred) = (self.place(dir, name)?, self.cred(caller));
        let unlink = self.inner.run(|core| async move {
            core.open_files.unlink(&*core.protocol, cred, dir, &name).await
        });
        self.renaming(unlink).await
    }

    async fn count_names(&self, id: FileId) -> Option<Unnamed> {
        let core = &self.inner.core;
        if core.open_files.is_hidden(id) {
            // As far as this mount is concerned its last name is gone.
            return Some(Unnamed { id, nlink: 0 });
        }
        // A file that is not open has nothing that waits to be written: no reason to ask.
        if !core.open_files.is_open(id) {
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

    async fn rmdir(&self, caller: &Caller, dir: FileId, name: &[u8]) -> Result<()> {
        let ((dir, name), cred) = (self.place(dir, name)?, self.cred(caller));
        let remove = self
            .inner
            .run(|core| async move { core.protocol.remove(&cred, &dir, &name, true).await });
        self.renaming(remove).await
    }

    async fn rename(
        &self,
        caller: &Caller,
        from_dir: FileId,
        from: &[u8],
        to_dir: FileId,
        to: &[u8],
        flags: RenameFlags,
    ) -> Result<()> {
        let (from, to) = (self.place(from_dir, from)?, self.place(to_dir, to)?);
        let cred = self.cred(caller);
        let rename = self.inner.run(|core| async move {
            core.protocol.rename(&cred, (&from.0, &from.1), (&to.0, &to.1), flags).await
        });
        self.renaming(rename).await
    }

    async fn open(&self, caller: &Caller, id: FileId, access: Access) -> Result<Arc<dyn OpenFile>> {
        if access.contains(Access::WRITE) {
            self.writable()?;
        }
        let (handle, cred) = (self.handle(id)?, self.cred(caller));
        let runtime = self.inner.runtime.handle()?.clone();
        let opened = self
            .inner
            .run(|core| async move {
                let open: OpenAt = core.protocol.open(cred, &handle, access).await?;
                if core.protocol.grant(&handle).is_none() {
                    core.attributes.forget(id);
                }
                // Made here, so that an open whose caller has gone is closed again.
                let changes = core.open_files.opened(id, &handle);
                let open_files = Arc::clone(&core.open_files);
                let protocol = Arc::clone(&core.protocol);
                let attributes = Arc::clone(&core.attributes);
                Ok(Opened {
                    protocol,
                    runtime,
                    open,
                    access,
                    id,
                    open_files,
                    attributes,
                    changes,
                    lockers: Lockers::new(),
                    farewells: Arc::clone(&core.farewells),
                })
            })
            .await?;
        Ok(Arc::new(NfsFile::new(Arc::clone(&self.inner), opened)))
    }

    /// Servers make changes of names and attributes durable before they answer.
    async fn sync_node(&self, id: FileId) -> Result<()> {
        self.handle(id).map(drop)
    }

    async fn unmount(&self) -> Result<()> {
        Self::unmount(self).await;
        Ok(())
    }

    async fn get_xattr(&self, caller: &Caller, id: FileId, name: &[u8]) -> Result<Vec<u8>> {
        let (handle, cred, name) = (self.handle(id)?, self.cred(caller), name.to_vec());
        self.inner
            .run(|core| async move { core.protocol.get_xattr(&cred, &handle, &name).await })
            .await
    }

    async fn set_xattr(
        &self,
        caller: &Caller,
        id: FileId,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        self.writable()?;
        let (handle, cred) = (self.handle(id)?, self.cred(caller));
        let (name, value) = (name.to_vec(), value.to_vec());
        let set = self.inner.run(|core| async move {
            core.protocol.set_xattr(&cred, &handle, &name, &value, mode).await
        });
        self.changing(id, set).await
    }

    async fn list_xattrs(&self, caller: &Caller, id: FileId) -> Result<Vec<Vec<u8>>> {
        let (handle, cred) = (self.handle(id)?, self.cred(caller));
        self.inner.run(|core| async move { core.protocol.list_xattrs(&cred, &handle).await }).await
    }

    async fn remove_xattr(&self, caller: &Caller, id: FileId, name: &[u8]) -> Result<()> {
        self.writable()?;
        let (handle, cred, name) = (self.handle(id)?, self.cred(caller), name.to_vec());
        let remove = self
            .inner
            .run(|core| async move { core.protocol.remove_xattr(&cred, &handle, &name).await });
        self.changing(id, remove).await
    }
}

/// Longest name. Some servers cannot read a call with a longer one (Linux over NFSv3).
const MAX_NAME_BYTES: usize = 255;

/// One component, and neither `.` nor `..`.
fn check_name(name: &[u8]) -> Result<()> {
    let bad = name.is_empty() || name == b"." || name == b".." || name.contains(&0);
    match (bad || name.contains(&b'/'), name.len() > MAX_NAME_BYTES) {
        (true, _) => Err(Error::Invalid),
        (false, true) => Err(Error::NameTooLong),
        (false, false) => Ok(()),
    }
}

/// AUTH_SYS takes 16 groups besides the first (RFC 5531 appendix A); the rest are left out.
fn auth_sys(uid: u32, gid: u32, groups: &[u32]) -> OpaqueAuth {
    let gids: Vec<u32> = groups.iter().copied().filter(|g| *g != gid).take(16).collect();
    let machine_name = rustix::system::uname().nodename().to_bytes().into();
    OpaqueAuth::from(&AuthSys { stamp: 0, machine_name, uid, gid, gids: gids.into() })
}
