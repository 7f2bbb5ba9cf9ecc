//! A store seen through a cache.
//!
//! 1. A file has one mapping, however often it is open. It outlives its last close with all its
//!    pages, until memory is wanted; opening it again asks the store for its attributes, so that a
//!    change behind the cache's back is noticed. The store's file is closed when no program has had the
//!    file open for some seconds (`fs/deferred_close.rs`), and stays open for the last [`IDLE_FILES`] only.
//! 2. A mapping with something dirty is never let go of, so a file never has two.
//! 3. A file without names and without opens loses its pages, dirty ones too: no program can read them.
//! 4. The change attribute shown of a file never goes back, whether it has a mapping or not.

pub(crate) mod deferred_close;
mod gone;
mod unmount;

use crate::cache::Cache;
use crate::file::{File, Mount};
use crate::fs::deferred_close::Idle;
use crate::mapping::Mapping;
use crate::memory::metadata::Shrinkable;
use crate::writeback::durability::Unsynced;
use crate::writeback::errseq::Untold;
use crate::writeback::lane::Lane;
use crate::writeback::throttle::StoreWriteback;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Weak};
use std::time::Instant;
use weir_base::sync::Mutex;
use weir_base::sync::atomic::{AtomicU64, Ordering};
use weir_vfs::{
    Access, Acl, AclKind, Attr, Caller, Created, DirPage, EntryName, Error, FileId, FileKind,
    FileSystem, FsStat, Permissions, RenameFlags, Result, SetAttr, SpecialFile, XattrMode,
};

/// Files of a store that stay open after their last close.
const IDLE_FILES: usize = 1024;

/// A store seen through the cache: the same names, attributes that include what is not written
/// back yet, and files whose data is cached. Cheap to clone. The namespace operations mirror
/// [`FileSystem`], as inherent async methods.
#[derive(Clone)]
pub struct CachedFs {
    pub(crate) shared: Arc<FsShared>,
}

pub(crate) struct FsShared {
    pub(crate) cache: Cache,
    pub(crate) store: Arc<dyn FileSystem>,
    pub(crate) dirty: Arc<StoreWriteback>,
    pub(crate) table: Mutex<Table>,
    /// How far the change attribute shown was ahead of the store's when a mapping was let go of.
    lead: AtomicU64,
}

#[derive(Default)]
pub(crate) struct Table {
    pub(crate) mappings: HashMap<FileId, Entry>,
    /// Those that no program has open, by the cache's clock, oldest first.
    idle: BTreeMap<u64, FileId>,
    /// Of these, the ones whose store file is open.
    pub(crate) idle_open: BTreeMap<u64, (FileId, Idle)>,
    /// Files that are open, but no longer for writing, and since when.
    pub(crate) written: HashMap<FileId, Instant>,
    /// Errors of files that have no mapping any more, and which of these are not synced.
    pub(crate) untold: Untold,
    pub(crate) unsynced: Unsynced,
}

pub(crate) struct Entry {
    pub(crate) mapping: Arc<Mapping>,
    /// Its key in `idle`, while no program has it open.
    idle_since: Option<u64>,
}

impl Cache {
    /// Mounts a store: makes its files available through this cache.
    pub fn mount(&self, store: Arc<dyn FileSystem>) -> CachedFs {
        CachedFs::new(self.clone(), store)
    }
}

impl CachedFs {
    pub(crate) fn new(cache: Cache, store: Arc<dyn FileSystem>) -> Self {
        let shared = Arc::new_cyclic(|fs| {
            let idle: Weak<FsShared> = Weak::clone(fs);
            let lane = Lane::new(cache.memory(), cache.writeback(), idle);
            let dirty = Arc::new(StoreWriteback::new(cache.writeback().clone(), lane));
            FsShared { cache, store, dirty, table: Mutex::default(), lead: AtomicU64::new(0) }
        });
        let store: Arc<dyn Shrinkable> = shared.clone();
        shared.cache.memory().metadata.stores.lock().push(Arc::downgrade(&store));
        Self { shared }
    }

    /// The same, without keeping it.
    pub fn downgrade(&self) -> WeakFs {
        WeakFs { shared: Arc::downgrade(&self.shared) }
    }

    /// The cache.
    pub fn cache(&self) -> &Cache {
        &self.shared.cache
    }

    /// The store itself.
    pub fn store(&self) -> &Arc<dyn FileSystem> {
        &self.shared.store
    }

    /// How often since the mount written data of its files was lost, or may have been: a write to the
    /// store failed for good, or the store's sync failed. It grows before any caller is told, and
    /// before the data is gone from the cache. A server that compares it from a write to the write's
    /// sync knows whether to have the client write again.
    pub fn write_errors(&self) -> u64 {
        self.shared.dirty.errors.load(Ordering::SeqCst)
    }

    /// The root directory.
    pub fn root(&self) -> FileId {
        self.store().root()
    }

    /// Space and file counts.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn statfs(&self) -> Result<FsStat> {
        self.store().statfs().await
    }

    /// Opens a regular file through the cache. All opens of one file share its pages. Cheap when
    /// the file's mapping is alive (recently closed mappings are kept), as NFSv3 opens per call.
    ///
    /// # Errors
    /// [`Error::AccessDenied`] if `caller` may not; [`Error::IsDirectory`], [`Error::Invalid`] for
    /// what is not a regular file; those of the store.
    pub async fn open(&self, caller: &Caller, id: FileId, access: Access) -> Result<File> {
        let needed = Permissions::from(access);
        if *caller != Caller::Own
            && !self.store().access(caller, id, needed).await?.contains(needed)
        {
            return Err(Error::AccessDenied);
        }
        let (mapping, was_idle) = self.mapping(id, access).await?;
        let file = File::new(self.shared.clone(), mapping, access);
        let mapping = &file.open.mapping;
        mapping.upgrade(access).await?;
        if was_idle {
            mapping.getattr().await?;
        }
        Ok(file)
    }

    /// The file's mapping, counted as opened once more, and whether no program had it open.
    async fn mapping(&self, id: FileId, access: Access) -> Result<(Arc<Mapping>, bool)> {
        if let Some(found) = self.shared.reopen(id) {
            return Ok(found);
        }
        self.shared.cache.memory().shrink_metadata();
        let fs = &self.shared;
        let lead = fs.lead.load(Ordering::Relaxed);
        let new = Mapping::open(fs.cache.memory(), &fs.store, &fs.dirty, id, access, lead).await?;
        Ok((fs.enter(new), false))
    }

    /// Attributes, dirty data included.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn getattr(&self, id: FileId) -> Result<Attr> {
        match self.shared.live(id) {
            Some(mapping) => mapping.getattr().await,
            None => Ok(self.shared.overlaid(self.store().getattr(id).await?)),
        }
    }

    /// Sets attributes. A size change goes through the cache; times are set after dirty data was
    /// written back.
    ///
    /// # Errors
    /// Those of the store; [`Error::AccessDenied`] if a size is given and `caller` may not write.
    pub async fn setattr(&self, caller: &Caller, id: FileId, set: &SetAttr) -> Result<Attr> {
        let mut rest = set.clone();
        if let Some(size) = rest.size.take() {
            self.open(caller, id, Access::WRITE).await?.truncate_async(size).await?;
        }
        let Some(mapping) = self.shared.live(id) else {
            let attr = if rest.is_empty() && set.size.is_some() {
                self.store().getattr(id).await?
            } else {
                self.store().setattr(caller, id, &rest).await?
            };
            return Ok(self.shared.overlaid(attr));
        };
        if rest.is_empty() {
            return mapping.getattr().await;
        }
        let times = rest.mtime.is_some() || rest.atime.is_some();
        if times {
            // Else writeback would move the times afterwards. Open files are told of what is lost.
            let _ = mapping.write_or_lose(0..u64::MAX).await;
        }
        let caller = caller.clone();
        let tasks = mapping.lane().tasks.clone();
        let work = async move {
            let _exclusive = mapping.lock_invalidate().await;
            mapping.state.lock().overlay.begin();
            let result = mapping.store.setattr(&caller, id, &rest).await;
            let mut state = mapping.state.lock();
            state.overlay.end();
            let mut attr = result?;
            state.overlay.attributes_set(&attr, rest.mtime.is_some());
            drop(state);
            mapping.overlay(&mut attr, None, None);
            Ok(attr)
        };
        crate::tasks::finish(&tasks, work).await
    }

    /// Which of the permissions in `mask` the caller has.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn access(
        &self,
        caller: &Caller,
        id: FileId,
        mask: Permissions,
    ) -> Result<Permissions> {
        self.store().access(caller, id, mask).await
    }

    /// Finds a name in a directory.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn lookup(&self, caller: &Caller, dir: FileId, name: &[u8]) -> Result<Attr> {
        Ok(self.shared.overlaid(self.store().lookup(caller, dir, name).await?))
    }

    /// The directory that holds directory `dir`; the root's is the root.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn parent(&self, dir: FileId) -> Result<Attr> {
        self.store().parent(dir).await
    }

    /// Reads names after `cookie` (0: from the front), at most `max_entries`, with attributes if
    /// `with_attr`.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn readdir(
        &self,
        caller: &Caller,
        dir: FileId,
        cookie: u64,
        max_entries: usize,
        with_attr: bool,
    ) -> Result<DirPage> {
        let mut page = self.store().readdir(caller, dir, cookie, max_entries, with_attr).await?;
        for entry in &mut page.entries {
            entry.attr = entry.attr.take().map(|attr| self.shared.overlaid(attr));
        }
        Ok(page)
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn readlink(&self, caller: &Caller, id: FileId) -> Result<Vec<u8>> {
        self.store().readlink(caller, id).await
    }

    /// Makes a regular file, or finds it unless `exclusive`; `set` applies to a new file only.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn create(
        &self,
        caller: &Caller,
        dir: FileId,
        name: &[u8],
        set: &SetAttr,
        exclusive: bool,
    ) -> Result<Created> {
        let Created { attr, created } =
            self.store().create(caller, dir, name, set, exclusive).await?;
        Ok(Created { attr: self.shared.overlaid(attr), created })
    }

    /// As [`create`](Self::create); a new file is opened as well, if the store has it open from
    /// making it, with the rights of who made it.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn create_open(
        &self,
        caller: &Caller,
        dir: FileId,
        name: &[u8],
        set: &SetAttr,
        exclusive: bool,
        access: Access,
    ) -> Result<(Created, Option<File>)> {
        let (Created { attr, created }, made) =
            self.store().create_open(caller, dir, name, set, exclusive).await?;
        let created = Created { attr: self.shared.overlaid(attr), created };
        let Some(made) = made else { return Ok((created, None)) };
        let fs = &self.shared;
        fs.cache.memory().shrink_metadata();
        let lead = fs.lead.load(Ordering::Relaxed);
        let id = created.attr.id;
        let mapping =
            Mapping::of_open(fs.cache.memory(), &fs.store, &fs.dirty, id, made, lead).await?;
        let file = File::new(fs.clone(), fs.enter(mapping), access);
        // Another caller may have opened it first.
        file.open.mapping.upgrade(access).await?;
        if !access.contains(Access::WRITE) {
            fs.table.lock().note_written(&file.open.mapping);
        }
        Ok((created, Some(file)))
    }

    /// Makes a directory.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn mkdir(
        &self,
        caller: &Caller,
        dir: FileId,
        name: &[u8],
        set: &SetAttr,
    ) -> Result<Attr> {
        self.store().mkdir(caller, dir, name, set).await
    }

    /// Makes a symbolic link.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn symlink(
        &self,
        caller: &Caller,
        dir: FileId,
        name: &[u8],
        target: &[u8],
        set: &SetAttr,
    ) -> Result<Attr> {
        self.store().symlink(caller, dir, name, target, set).await
    }

    /// Makes a device, pipe or socket.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn mknod(
        &self,
        caller: &Caller,
        dir: FileId,
        name: &[u8],
        node: SpecialFile,
        set: &SetAttr,
    ) -> Result<Attr> {
        self.store().mknod(caller, dir, name, node, set).await
    }

    /// Makes another name for a file.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn link(
        &self,
        caller: &Caller,
        id: FileId,
        dir: FileId,
        name: &[u8],
    ) -> Result<Attr> {
        Ok(self.shared.overlaid(self.store().link(caller, id, dir, name).await?))
    }

    /// Removes a name that is not a directory's; open files live on.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn unlink(&self, caller: &Caller, dir: FileId, name: &[u8]) -> Result<()> {
        let unnamed = self.store().unlink_counted(caller, dir, name).await?;
        self.shared.lost_name(unnamed);
        Ok(())
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn rmdir(&self, caller: &Caller, dir: FileId, name: &[u8]) -> Result<()> {
        self.store().rmdir(caller, dir, name).await
    }

    /// Moves a name.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn rename(
        &self,
        caller: &Caller,
        from: EntryName<'_>,
        to: EntryName<'_>,
        flags: RenameFlags,
    ) -> Result<()> {
        let unnamed = self.store().rename_counted(caller, from, to, flags).await?;
        self.shared.lost_name(unnamed);
        Ok(())
    }

    /// Makes everything done to directory or file `id` durable; dirty data of a file, too.
    ///
    /// # Errors
    /// Those of the store, and of writing data back. No open file counts as told by this call: each is
    /// still told of data that is lost, and of a sync that failed.
    pub async fn sync_node(&self, id: FileId) -> Result<()> {
        if let Some(mapping) = self.shared.live(id) {
            mapping.write_back(0..u64::MAX).await?;
            mapping.settle().await;
            return mapping.make_durable(self.store().sync_node(id)).await;
        }
        let sync = self.shared.clone().sync_gone(id);
        // To its end also if the caller goes away: the file is either synced or noted as not.
        crate::tasks::finish(&self.shared.dirty.lane.tasks, sync).await
    }

    /// Reads an extended attribute, by its full name (`user.x`).
    ///
    /// # Errors
    /// Those of the store.
    pub async fn get_xattr(&self, caller: &Caller, id: FileId, name: &[u8]) -> Result<Vec<u8>> {
        self.store().get_xattr(caller, id, name).await
    }

    /// Sets an extended attribute.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn set_xattr(
        &self,
        caller: &Caller,
        id: FileId,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        let (store, caller) = (self.store().clone(), caller.clone());
        let (name, value) = (name.to_vec(), value.to_vec());
        let mark = marks_uncached(&name).then(|| value == weir_vfs::UNCACHED_MARK);
        let set = async move { store.set_xattr(&caller, id, &name, &value, mode).await };
        self.change_attributes(id, set).await?;
        self.mark_uncached(id, mark).await;
        Ok(())
    }

    /// Full names of the extended attributes.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn list_xattrs(&self, caller: &Caller, id: FileId) -> Result<Vec<Vec<u8>>> {
        self.store().list_xattrs(caller, id).await
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn remove_xattr(&self, caller: &Caller, id: FileId, name: &[u8]) -> Result<()> {
        let (store, caller, name) = (self.store().clone(), caller.clone(), name.to_vec());
        let mark = marks_uncached(&name).then_some(false);
        let remove = async move { store.remove_xattr(&caller, id, &name).await };
        self.change_attributes(id, remove).await?;
        self.mark_uncached(id, mark).await;
        Ok(())
    }

    /// A file whose mark has changed is used accordingly from now on; what is resident of one that
    /// is not to be cached is written back and goes.
    async fn mark_uncached(&self, id: FileId, mark: Option<bool>) {
        if let (Some(uncached), Some(mapping)) = (mark, self.shared.live(id)) {
            mapping.uncached.store(uncached, Ordering::Relaxed);
            if uncached {
                // What cannot be written is dropped, and open files are told.
                let _ = mapping.write_or_lose(0..u64::MAX).await;
                mapping.drop_clean(0..u64::MAX);
            }
        }
    }

    /// An access control list; `None` where the file's permission bits say all.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn get_acl(&self, id: FileId, kind: AclKind) -> Result<Option<Acl>> {
        self.store().get_acl(id, kind).await
    }

    /// Sets an access control list, or takes it away.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn set_acl(
        &self,
        caller: &Caller,
        id: FileId,
        kind: AclKind,
        acl: Option<&Acl>,
    ) -> Result<()> {
        let (store, caller, acl) = (self.store().clone(), caller.clone(), acl.cloned());
        let set = async move { store.set_acl(&caller, id, kind, acl.as_ref()).await };
        self.change_attributes(id, set).await
    }

    /// Makes a change of a file's attributes that is known to be ours: it moves the change
    /// attribute, and leaves cached data alone.
    async fn change_attributes(
        &self,
        id: FileId,
        change: impl Future<Output = Result<()>> + Send + 'static,
    ) -> Result<()> {
        let Some(mapping) = self.shared.live(id) else { return change.await };
        let tasks = mapping.lane().tasks.clone();
        let work = async move {
            let _exclusive = mapping.lock_invalidate().await;
            mapping.state.lock().overlay.begin();
            let changed = change.await;
            let attr = mapping.stored_attr().await;
            let mut state = mapping.state.lock();
            state.overlay.end();
            changed?;
            if let Ok((attr, _)) = &attr {
                state.overlay.attributes_set(attr, false);
            }
            Ok(())
        };
        crate::tasks::finish(&tasks, work).await
    }
}

/// A [`CachedFs`] for as long as another owner keeps it, or has a file of it open.
#[derive(Clone)]
pub struct WeakFs {
    shared: Weak<FsShared>,
}

impl WeakFs {
    /// The file system, if it is still there.
    pub fn upgrade(&self) -> Option<CachedFs> {
        self.shared.upgrade().map(|shared| CachedFs { shared })
    }
}

fn marks_uncached(name: &[u8]) -> bool {
    name == weir_vfs::UNCACHED_XATTR
}

impl FsShared {
    /// The file's mapping, if it has one.
    fn live(&self, id: FileId) -> Option<Arc<Mapping>> {
        self.table.lock().mappings.get(&id).map(|e| e.mapping.clone())
    }

    /// The same, counted as opened once more.
    fn reopen(&self, id: FileId) -> Option<(Arc<Mapping>, bool)> {
        self.table.lock().reopen(id)
    }

    /// Enters a new mapping, or gives the one that another caller has entered meanwhile.
    fn enter(&self, new: Arc<Mapping>) -> Arc<Mapping> {
        let mut table = self.table.lock();
        if let Some((mapping, _)) = table.reopen(new.id) {
            return mapping;
        }
        new.opens.fetch_add(1, Ordering::Relaxed);
        {
            let mut state = new.state.lock();
            table.untold.pass_on(new.id, &mut state.errors);
            table.unsynced.pass_on(new.id, &mut state.durability);
        }
        table.mappings.insert(new.id, Entry { mapping: new.clone(), idle_since: None });
        new
    }

    /// The store's attributes with what the cache knows.
    fn overlaid(&self, mut attr: Attr) -> Attr {
        if attr.kind == FileKind::Regular {
            match self.live(attr.id) {
                Some(mapping) => mapping.overlay(&mut attr, None, None),
                None => {
                    let lead = self.lead.load(Ordering::Relaxed);
                    attr.change = attr.change.saturating_add(lead);
                }
            }
        }
        attr
    }
}

impl Mount for FsShared {
    fn close(&self, mapping: &Arc<Mapping>) {
        let mut table = self.table.lock();
        if mapping.opens.fetch_sub(1, Ordering::Relaxed) > 1 {
            if mapping.writers.load(Ordering::SeqCst) == 0 {
                table.note_written(mapping);
            }
            return;
        }
        if mapping.unlinked.load(Ordering::Relaxed) {
            let gone = table.mappings.remove(&mapping.id);
            drop(table);
            mapping.discard();
            drop(gone);
            return;
        }
        let tick = self.cache.memory().metadata.tick();
        table.enter_idle(mapping.id, tick, Idle::new(self.cache.memory().now()));
        // What is let go of is closed, and frees its pages, without the table's lock.
        let mut closed = Vec::new();
        // One that is busy gets another turn; so a close looks at two.
        for _ in 0..2 {
            if table.idle_open.len() <= IDLE_FILES {
                break;
            }
            let Some((_, (id, idle))) = table.idle_open.pop_first() else { break };
            let Some(oldest) = table.mappings.get(&id).map(|e| e.mapping.clone()) else { continue };
            // What it holds may not be proven yet, of which the flusher takes care.
            let unproven = !oldest.may_close() && oldest.counts_others();
            let full = table.idle_open.len() >= 2 * IDLE_FILES;
            if unproven && full {
                oldest.forget_clean();
            }
            match if unproven && !full { None } else { oldest.take_file() } {
                Some(file) => closed.push((file, oldest)),
                None => {
                    table.leave_idle(id);
                    table.enter_idle(id, self.cache.memory().metadata.tick(), idle);
                }
            }
        }
        drop(table);
        mapping.prune_left();
        drop(closed);
    }
}

impl Drop for FsShared {
    fn drop(&mut self) {
        // The flusher writes what is left, and ends. Its thread may have failed to start before.
        self.dirty.lane.kick();
    }
}

impl Table {
    fn reopen(&mut self, id: FileId) -> Option<(Arc<Mapping>, bool)> {
        let was_idle = self.leave_idle(id);
        let entry = self.mappings.get(&id)?;
        entry.mapping.opens.fetch_add(1, Ordering::Relaxed);
        Some((entry.mapping.clone(), was_idle))
    }

    pub(crate) fn enter_idle(&mut self, id: FileId, tick: u64, idle: Idle) {
        if let Some(entry) = self.mappings.get_mut(&id) {
            entry.idle_since = Some(tick);
            self.idle.insert(tick, id);
            if !entry.mapping.file().access().is_empty() {
                self.idle_open.insert(tick, (id, idle));
                // The flusher closes nothing of other stores.
                if entry.mapping.store.names_change_here() {
                    entry.mapping.lane().start();
                }
            }
        }
    }

    /// Whether it was idle.
    pub(crate) fn leave_idle(&mut self, id: FileId) -> bool {
        let tick = self.mappings.get_mut(&id).and_then(|e| e.idle_since.take());
        if let Some(tick) = tick {
            self.idle.remove(&tick);
            self.idle_open.remove(&tick);
        }
        tick.is_some()
    }
}
