//! A store seen through a cache.
//!
//! 1. A file has one mapping, however often it is open. The mapping outlives the last close with
//!    all its pages, until memory is short; the next open asks the store for the attributes, and so
//!    notices a change made behind the cache's back. The store's file is closed some seconds after
//!    the last close (`fs/deferred_close.rs`), and stays open for the last [`IDLE_FILES`] files only, or
//!    fewer if the process may not have many descriptors.
//! 2. The cache never drops a mapping with dirty pages, so a file never has two mappings.
//! 3. A file without names and opens loses its pages, dirty ones too: no program can read them.
//! 4. The change attribute shown for a file never decreases, whether it has a mapping or not.

pub(crate) mod deferred_close;
mod gone;
mod lock;
mod open;
pub(crate) mod residency;
mod unmount;
mod whole;

use crate::cache::Cache;
use crate::file::Mount;
use crate::fs::deferred_close::Idle;
use crate::mapping::Mapping;
use crate::memory::metadata::Shrinkable;
use crate::writeback::durability::Unsynced;
use crate::writeback::errseq::Untold;
use crate::writeback::flusher::flush_files;
use crate::writeback::lane::Lane;
use crate::writeback::throttle::StoreWriteback;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Weak};
use std::time::Instant;
use weir_base::sync::Mutex;
use weir_base::sync::atomic::{AtomicU64, Ordering};
use weir_vfs::{
    Access, Acl, AclName, Attr, Caller, CreateMode, Created, DirPage, EntryName, FileId, FileKind,
    FileSystem, FsStat, NewFile, Permissions, ReaddirRequest, RenameFlags, Result, SetAttr,
    SpecialFile, XattrMode, XattrName,
};

/// Most files of a store that stay open after their last close, and the part of the process's descriptors that they
/// may be. Twice as many, while their attributes prove nothing yet.
const IDLE_FILES: usize = 1024;
const IDLE_PART: u64 = 32;

/// A store seen through the cache: the same names, attributes that include dirty data, and files
/// with cached data. Cheap to clone. The namespace operations mirror [`FileSystem`] as inherent
/// async methods.
#[derive(Clone)]
pub struct CachedFs {
    pub(crate) shared: Arc<FsShared>,
}

pub(crate) struct FsShared {
    pub(crate) cache: Cache,
    pub(crate) store: Arc<dyn FileSystem>,
    pub(crate) dirty: Arc<StoreWriteback>,
    pub(crate) table: Mutex<Table>,
    /// Most files that stay open after their last close.
    idle_files: usize,
    /// The largest lead of a dropped mapping's change attribute over the store's.
    lead: AtomicU64,
}

#[derive(Default)]
pub(crate) struct Table {
    pub(crate) mappings: HashMap<FileId, Entry>,
    /// Files that no program has open, by the cache's clock, oldest first.
    idle: BTreeMap<u64, FileId>,
    /// Those of `idle` whose store file is open.
    pub(crate) idle_open: BTreeMap<u64, (FileId, Idle)>,
    /// Files that are open, but no longer for writing, and since when.
    pub(crate) written: HashMap<FileId, Instant>,
    /// Unreported errors of files without a mapping, and which of these files are not synced.
    pub(crate) untold: Untold,
    pub(crate) unsynced: Unsynced,
}

pub(crate) struct Entry {
    pub(crate) mapping: Arc<Mapping>,
    /// Its key in `idle`, while no program has the file open.
    idle_since: Option<u64>,
}

/// Most files of a store that stay open after their last close, by the limit on descriptors (RLIMIT_NOFILE).
fn idle_files() -> usize {
    // Miri has no limits.
    if cfg!(miri) {
        return IDLE_FILES;
    }
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    limit.map_or(IDLE_FILES, |limit| (limit / IDLE_PART) as usize).clamp(1, IDLE_FILES)
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
            let (table, idle_files, lead) = (Mutex::default(), idle_files(), AtomicU64::new(0));
            FsShared { cache, store, dirty, table, idle_files, lead }
        });
        let store: Arc<dyn Shrinkable> = shared.clone();
        shared.cache.memory().metadata.stores.lock().push(Arc::downgrade(&store));
        Self { shared }
    }

    /// A weak reference.
    pub fn downgrade(&self) -> WeakFs {
        WeakFs { shared: Arc::downgrade(&self.shared) }
    }

    /// The cache.
    pub fn cache(&self) -> &Cache {
        &self.shared.cache
    }

    /// Writes back every dirty page of this store's files, and waits until the store has them, as
    /// [`Cache::flush`](crate::Cache::flush) does for all stores.
    ///
    /// # Errors
    /// The error of a write that failed permanently during this call; its data is lost.
    pub async fn flush(&self) -> Result<()> {
        let files = self.shared.dirty.lane.files.lock().all();
        flush_files(files).await
    }

    /// The store itself.
    pub fn store(&self) -> &Arc<dyn FileSystem> {
        &self.shared.store
    }

    /// How often since the mount written data of its files was or may have been lost: a write to
    /// the store failed permanently, or the store's sync failed. The count grows before any caller
    /// gets the error, and before the cache drops the data. A server that compares the count of a
    /// write with that of the write's sync knows whether the client has to write again.
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

    /// Sets attributes. A size change goes through the cache; times are set after dirty data is
    /// written back.
    ///
    /// # Errors
    /// Those of the store; [`AccessDenied`](weir_vfs::Error::AccessDenied) if a size is given and
    /// `caller` may not write.
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
            // Otherwise writeback would change the times later. Open files get the error of what is
            // lost.
            let _ = mapping.write_or_lose(0..u64::MAX).await;
        }
        let caller = caller.clone();
        let tasks = mapping.lane().tasks.clone();
        let work = async move {
            let mut begun = mapping.begin_attributes().await;
            let result = mapping.store.setattr(&caller, id, &rest).await;
            let mut state = begun.end();
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

    /// Refuses a caller that does not have all permissions in `mask` together.
    ///
    /// # Errors
    /// [`AccessDenied`](weir_vfs::Error::AccessDenied); those of the store.
    pub async fn check_access(&self, caller: &Caller, id: FileId, mask: Permissions) -> Result<()> {
        self.store().check_access(caller, id, mask).await
    }

    /// Finds a name in a directory.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn lookup(&self, caller: &Caller, entry: EntryName<'_>) -> Result<Attr> {
        Ok(self.shared.overlaid(self.store().lookup(caller, entry).await?))
    }

    /// The directory that holds directory `dir`; the root's is the root.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn parent(&self, dir: FileId) -> Result<Attr> {
        self.store().parent(dir).await
    }

    /// Reads entries of a directory.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn readdir(&self, caller: &Caller, request: ReaddirRequest) -> Result<DirPage> {
        let mut page = self.store().readdir(caller, request).await?;
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

    /// Creates a regular file, or finds it; `new.set` applies to a new file only.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn create(
        &self,
        caller: &Caller,
        new: NewFile<'_>,
        mode: CreateMode,
    ) -> Result<Created> {
        let Created { attr, created } = self.store().create(caller, new, mode).await?;
        Ok(Created { attr: self.shared.overlaid(attr), created })
    }

    /// Creates a directory.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn mkdir(&self, caller: &Caller, new: NewFile<'_>) -> Result<Attr> {
        self.store().mkdir(caller, new).await
    }

    /// Creates a symbolic link.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn symlink(&self, caller: &Caller, new: NewFile<'_>, target: &[u8]) -> Result<Attr> {
        self.store().symlink(caller, new, target).await
    }

    /// Creates a device, pipe or socket.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn mknod(
        &self,
        caller: &Caller,
        new: NewFile<'_>,
        node: SpecialFile,
    ) -> Result<Attr> {
        self.store().mknod(caller, new, node).await
    }

    /// Adds a name for a file.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn link(&self, caller: &Caller, id: FileId, entry: EntryName<'_>) -> Result<Attr> {
        Ok(self.shared.overlaid(self.store().link(caller, id, entry).await?))
    }

    /// Removes a name of anything but a directory; open files stay usable.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn unlink(&self, caller: &Caller, entry: EntryName<'_>) -> Result<()> {
        let (store, caller) = (self.store().clone(), caller.clone());
        let (dir, name) = (entry.dir, entry.name.to_vec());
        self.removing(async move { store.unlink_counted(&caller, dir.entry(&name)).await }).await
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn rmdir(&self, caller: &Caller, entry: EntryName<'_>) -> Result<()> {
        self.store().rmdir(caller, entry).await
    }

    /// Renames an entry.
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
        let (store, caller) = (self.store().clone(), caller.clone());
        let (from_dir, from) = (from.dir, from.name.to_vec());
        let (to_dir, to) = (to.dir, to.name.to_vec());
        self.removing(async move {
            let (from, to) = (from_dir.entry(&from), to_dir.entry(&to));
            store.rename_counted(&caller, from, to, flags).await
        })
        .await
    }

    /// Makes all changes of directory or file `id` durable, including a file's dirty data. A file
    /// that is gone has nothing to be made durable.
    ///
    /// # Errors Those of the store, and of writeback. Open files still get the errors of lost data
    /// and of a failed sync that this call returned.
    pub async fn sync_node(&self, id: FileId) -> Result<()> {
        if let Some(mapping) = self.shared.live(id) {
            let since = mapping.state.lock().errors.count();
            mapping.write_back(0..u64::MAX).await?;
            mapping.settle().await;
            return mapping.make_durable(since, false).await;
        }
        self.sync_stored(id).await
    }

    /// Makes what the store has of directory or file `id` durable: changes of names and attributes,
    /// and data that was written back. Dirty data stays dirty.
    ///
    /// # Errors Those of the store, or of another sync of the file that failed while this call
    /// waited. Open files still get them, or the file that is opened next.
    pub async fn sync_stored(&self, id: FileId) -> Result<()> {
        let sync = self.shared.clone().sync_stored(id);
        // Runs to its end even if the caller goes away: the file is either synced or noted as
        // unsynced.
        crate::tasks::finish(&self.shared.dirty.lane.tasks, sync).await
    }

    /// Reads an extended attribute.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn get_xattr(&self, caller: &Caller, xattr: XattrName<'_>) -> Result<Vec<u8>> {
        self.store().get_xattr(caller, xattr).await
    }

    /// Sets an extended attribute.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn set_xattr(
        &self,
        caller: &Caller,
        xattr: XattrName<'_>,
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        let (store, caller, id) = (self.store().clone(), caller.clone(), xattr.id);
        let (name, value) = (xattr.name.to_vec(), value.to_vec());
        let mark = marks_uncached(&name).then(|| value == weir_vfs::UNCACHED_MARK);
        let set = async move { store.set_xattr(&caller, id.xattr(&name), &value, mode).await };
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
    pub async fn remove_xattr(&self, caller: &Caller, xattr: XattrName<'_>) -> Result<()> {
        let (store, caller) = (self.store().clone(), caller.clone());
        let (id, name) = (xattr.id, xattr.name.to_vec());
        let mark = marks_uncached(&name).then_some(false);
        let remove = async move { store.remove_xattr(&caller, id.xattr(&name)).await };
        self.change_attributes(id, remove).await?;
        self.mark_uncached(id, mark).await;
        Ok(())
    }

    /// Applies a changed mark to the open mapping. If the file is no longer to be cached, its pages
    /// are written back and dropped.
    async fn mark_uncached(&self, id: FileId, mark: Option<bool>) {
        if let (Some(uncached), Some(mapping)) = (mark, self.shared.live(id)) {
            mapping.uncached.store(uncached, Ordering::Relaxed);
            if uncached {
                // Pages that cannot be written are dropped, and open files get the error.
                let _ = mapping.write_or_lose(0..u64::MAX).await;
                mapping.drop_clean(0..u64::MAX);
            }
        }
    }

    /// The access control list; `None` if the permission bits express all of it.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn get_acl(&self, acl: AclName) -> Result<Option<Acl>> {
        self.store().get_acl(acl).await
    }

    /// Sets or removes an access control list.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn set_acl(&self, caller: &Caller, acl: AclName, to: Option<&Acl>) -> Result<()> {
        let (store, caller, to) = (self.store().clone(), caller.clone(), to.cloned());
        let set = async move { store.set_acl(&caller, acl, to.as_ref()).await };
        self.change_attributes(acl.id, set).await
    }

    /// Changes a file's attributes on behalf of a caller: this advances the change attribute, and
    /// keeps cached data.
    async fn change_attributes(
        &self,
        id: FileId,
        change: impl Future<Output = Result<()>> + Send + 'static,
    ) -> Result<()> {
        let Some(mapping) = self.shared.live(id) else { return change.await };
        let tasks = mapping.lane().tasks.clone();
        let work = async move {
            let mut begun = mapping.begin_attributes().await;
            let changed = change.await;
            let attr = mapping.stored_attr().await;
            let mut state = begun.end();
            changed?;
            if let Ok((attr, _)) = &attr {
                state.overlay.attributes_set(attr, false);
            }
            Ok(())
        };
        crate::tasks::finish(&tasks, work).await
    }
}

/// A [`CachedFs`] that exists as long as it has another owner, or one of its files is open.
#[derive(Clone)]
pub struct WeakFs {
    shared: Weak<FsShared>,
}

impl WeakFs {
    /// The file system, if it still exists.
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

    /// The file's mapping, if it has one, with one more open counted.
    fn reopen(&self, id: FileId) -> Option<(Arc<Mapping>, bool)> {
        self.table.lock().reopen(id)
    }

    /// Enters a new mapping, or returns the one that another caller has entered meanwhile; and whether
    /// it is the new one.
    fn enter(&self, new: Arc<Mapping>) -> (Arc<Mapping>, bool) {
        let mut table = self.table.lock();
        if let Some((mapping, _)) = table.reopen(new.id) {
            return (mapping, false);
        }
        new.opens.fetch_add(1, Ordering::Relaxed);
        {
            let mut state = new.state.lock();
            table.untold.pass_on(new.id, &mut state.errors);
            table.unsynced.pass_on(new.id, &mut state.durability);
        }
        table.mappings.insert(new.id, Entry { mapping: new.clone(), idle_since: None });
        (new, true)
    }

    /// The store's attributes with the cache's changes applied.
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
        // Dropped files are closed, and their pages freed, without the table's lock.
        let mut closed = Vec::new();
        // A busy file becomes the last to go; so each close looks at two.
        for _ in 0..2 {
            if table.idle_open.len() <= self.idle_files {
                break;
            }
            let Some((_, (id, idle))) = table.idle_open.pop_first() else { break };
            let Some(oldest) = table.mappings.get(&id).map(|e| e.mapping.clone()) else { continue };
            // The flusher takes care of a file whose attributes prove nothing yet.
            let unproven = !oldest.may_close() && oldest.counts_others();
            let full = table.idle_open.len() >= 2 * self.idle_files;
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
        // A disk that does not answer may hold the closes up. If they are slower than opens, the caller waits.
        if !closed.is_empty() && self.dirty.lane.room_for_tasks() > 0 {
            self.dirty.lane.tasks.spawn(async move { drop(closed) });
        }
    }
}

impl Drop for FsShared {
    fn drop(&mut self) {
        // The flusher writes the dirty pages, and ends. Starting its thread may have failed before.
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
        let Some(entry) = self.mappings.get_mut(&id) else { return };
        entry.idle_since = Some(tick);
        self.idle.insert(tick, id);
        let mapping = entry.mapping.clone();
        if !mapping.file().access().is_empty() {
            self.idle_open.insert(tick, (id, idle));
            if self.exceeds_open(&mapping) {
                mapping.lane().start();
            }
        }
    }

    /// Removes a file from the idle ones; returns whether it was idle.
    pub(crate) fn leave_idle(&mut self, id: FileId) -> bool {
        let tick = self.mappings.get_mut(&id).and_then(|e| e.idle_since.take());
        if let Some(tick) = tick {
            self.idle.remove(&tick);
            self.idle_open.remove(&tick);
        }
        tick.is_some()
    }
}
