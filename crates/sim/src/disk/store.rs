//! The disk as a server's page cache sees it.

use super::image::{Change, Inode, Meta};
use super::{Disk, Inner};
use async_trait::async_trait;
use std::any::Any;
use std::collections::BTreeSet;
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;
use std::time::SystemTime;
use tokio::time::sleep;
use weir_vfs::{
    Access, Attr, Caller, Capabilities, CreateMode, Created, DirEntry, DirPage, EntryName, Error,
    FileId, FileKind, FileSystem, FsStat, Layout, NewFile, OpenFile, Permissions, ReadOp,
    ReaddirRequest, RenameFlags, Result, SetAttr, SetTime, SpecialFile, WriteOp,
};

/// The disk, for one run of a server.
pub(crate) struct Store {
    disk: Arc<Disk>,
    generation: u64,
}

struct StoreFile {
    store: Arc<Store>,
    ino: u64,
    access: Access,
}

fn id(ino: u64) -> FileId {
    FileId { ino, generation: 1 }
}

impl Store {
    pub(super) fn new(disk: Arc<Disk>, generation: u64) -> Self {
        Self { disk, generation }
    }

    /// Does something on the disk after some time, unless it fails; the reply takes time, too.
    async fn call<T>(&self, call: impl FnOnce(&mut Inner) -> Result<T> + Send) -> Result<T>
    where
        T: Send,
    {
        let latency = self.disk.inner.lock().latency();
        sleep(latency).await;
        let (result, latency) = {
            let mut inner = self.disk.inner.lock();
            inner.check(self.generation)?;
            inner.fault()?;
            (call(&mut inner)?, inner.latency())
        };
        sleep(latency).await;
        Ok(result)
    }

    async fn sync(&self, ino: u64, lies: bool) -> Result<()> {
        let (until, latency) = {
            let mut inner = self.disk.inner.lock();
            inner.check(self.generation)?;
            (inner.next_change, inner.latency() * 2)
        };
        sleep(latency).await;
        let (synced, latency) = {
            let mut inner = self.disk.inner.lock();
            inner.check(self.generation)?;
            (inner.sync_or_lose(ino, until, lies), inner.latency())
        };
        // The caller learns of it later: after other syncs that ended after this one.
        sleep(latency).await;
        synced
    }
}

fn attr(inner: &Inner, ino: u64) -> Result<Attr> {
    let Inode { is_dir, meta, data } = inner.inode(ino)?;
    Ok(Attr {
        id: id(ino),
        kind: if *is_dir { FileKind::Directory } else { FileKind::Regular },
        mode: meta.mode,
        nlink: if *is_dir { 2 } else { inner.now.links(ino) },
        uid: meta.uid,
        gid: meta.gid,
        size: if *is_dir { 4096 } else { data.len() as u64 },
        allocated: data.len() as u64,
        rdev: (0, 0),
        fsid: 1,
        atime: meta.atime,
        mtime: meta.mtime,
        ctime: meta.ctime,
        btime: None,
        change: meta.change,
    })
}

fn named(inner: &Inner, ino: u64) -> Result<Attr> {
    let attr = attr(inner, ino)?;
    if attr.nlink == 0 { Err(Error::Stale) } else { Ok(attr) }
}

fn child(inner: &Inner, dir: u64, name: &[u8]) -> Result<(u64, u64)> {
    if !inner.inode(dir)?.is_dir {
        return Err(Error::NotDirectory);
    }
    inner.now.names.get(&(dir, name.to_vec())).copied().ok_or(Error::NotFound)
}

fn is_empty(inner: &Inner, dir: u64) -> bool {
    inner.now.names.range((dir, Vec::new())..(dir + 1, Vec::new())).next().is_none()
}

/// Notes a change of a node.
fn touch(inner: &mut Inner, ino: u64, data: bool) {
    let change = inner.next_change;
    if let Ok(mut meta) = inner.inode(ino).map(|inode| inode.meta) {
        meta.ctime = SystemTime::now();
        if data {
            meta.mtime = meta.ctime;
        }
        meta.change = change + 1;
        inner.change(Change::Meta { ino, meta });
    }
}

fn make(inner: &mut Inner, new: NewFile<'_>, is_dir: bool) -> Result<Attr> {
    let NewFile { at: EntryName { dir: FileId { ino: dir, .. }, name }, set } = new;
    match child(inner, dir, name) {
        Err(Error::NotFound) => {}
        Ok(_) => return Err(Error::Exists),
        Err(error) => return Err(error),
    }
    inner.space()?;
    let ino = inner.next_ino;
    inner.next_ino += 1;
    let mut meta = Meta::new(set.mode.unwrap_or(if is_dir { 0o755 } else { 0o644 }));
    meta.change = inner.next_change;
    apply(&mut meta, set);
    let made = Some((ino, Inode { is_dir, meta, data: Vec::new() }));
    // A cookie that no other entry has.
    let entries = vec![((dir, name.to_vec()), Some((ino, inner.next_change + 2)))];
    inner.change(Change::Names { entries, made });
    touch(inner, dir, true);
    attr(inner, ino)
}

fn apply(meta: &mut Meta, set: &SetAttr) {
    let now = SystemTime::now();
    let time = |to| match to {
        SetTime::Now => now,
        SetTime::To(time) => time,
    };
    meta.mode = set.mode_of(meta.mode).unwrap_or(meta.mode) & 0o7777;
    meta.uid = set.uid.unwrap_or(meta.uid);
    meta.gid = set.gid.unwrap_or(meta.gid);
    meta.atime = set.atime.map_or(meta.atime, time);
    meta.mtime = set.mtime.map_or(meta.mtime, time);
    meta.ctime = now;
}

fn remove(inner: &mut Inner, entry: EntryName<'_>, want_dir: bool) -> Result<()> {
    let EntryName { dir: FileId { ino: dir, .. }, name } = entry;
    let (ino, _) = child(inner, dir, name)?;
    match (inner.inode(ino)?.is_dir, want_dir) {
        (true, false) => return Err(Error::IsDirectory),
        (false, true) => return Err(Error::NotDirectory),
        (true, true) if !is_empty(inner, ino) => return Err(Error::NotEmpty),
        _ => {}
    }
    let entries = vec![((dir, name.to_vec()), None)];
    inner.change(Change::Names { entries, made: None });
    touch(inner, dir, true);
    touch(inner, ino, false);
    Ok(())
}

#[async_trait]
impl FileSystem for Store {
    fn capabilities(&self) -> Capabilities {
        Capabilities::FAST_READ | Capabilities::UNCACHED
    }

    fn root(&self) -> FileId {
        id(super::image::ROOT)
    }

    async fn statfs(&self) -> Result<FsStat> {
        Ok(FsStat {
            total_bytes: 1 << 30,
            free_bytes: 1 << 29,
            available_bytes: 1 << 29,
            total_files: 1 << 20,
            free_files: 1 << 19,
            max_name: 255,
            max_file_size: i64::MAX as u64,
            max_links: 1,
            clone_bytes: 0,
        })
    }

    async fn getattr(&self, id: FileId) -> Result<Attr> {
        self.call(|inner| named(inner, id.ino)).await
    }

    async fn setattr(&self, _caller: &Caller, id: FileId, set: &SetAttr) -> Result<Attr> {
        self.call(|inner| {
            named(inner, id.ino)?;
            if let Some(size) = set.size {
                inner.change(Change::Size { ino: id.ino, size: size as usize });
                touch(inner, id.ino, true);
            }
            let mut meta = inner.inode(id.ino)?.meta;
            apply(&mut meta, set);
            meta.change = inner.next_change;
            inner.change(Change::Meta { ino: id.ino, meta });
            attr(inner, id.ino)
        })
        .await
    }

    async fn access(
        &self,
        _caller: &Caller,
        _id: FileId,
        mask: Permissions,
    ) -> Result<Permissions> {
        Ok(mask)
    }

    async fn lookup(&self, _caller: &Caller, entry: EntryName<'_>) -> Result<Attr> {
        self.call(|inner| attr(inner, child(inner, entry.dir.ino, entry.name)?.0)).await
    }

    async fn parent(&self, dir: FileId) -> Result<Attr> {
        self.call(|inner| {
            let above = inner.now.names.iter().find(|(_, (ino, _))| *ino == dir.ino);
            attr(inner, above.map_or(dir.ino, |((above, _), _)| *above))
        })
        .await
    }

    async fn readdir(&self, _caller: &Caller, request: ReaddirRequest) -> Result<DirPage> {
        let ReaddirRequest { dir, cookie, max_entries, .. } = request;
        self.call(|inner| {
            let names = &inner.now.names;
            let entries: BTreeSet<_> = names
                .range((dir.ino, Vec::new())..(dir.ino + 1, Vec::new()))
                .filter(|(_, (_, at))| *at > cookie)
                .map(|((_, name), (ino, at))| (*at, name.clone(), *ino))
                .collect();
            let eof = entries.len() <= max_entries;
            let entries = entries.into_iter().take(max_entries);
            let entries = entries.map(|(cookie, name, ino)| {
                let attr = attr(inner, ino).ok();
                DirEntry { name, cookie, attr, ino }
            });
            Ok(DirPage { entries: entries.collect(), eof })
        })
        .await
    }

    async fn readlink(&self, _caller: &Caller, _id: FileId) -> Result<Vec<u8>> {
        Err(Error::Invalid)
    }

    async fn create(
        &self,
        _caller: &Caller,
        new: NewFile<'_>,
        mode: CreateMode,
    ) -> Result<Created> {
        self.call(|inner| match child(inner, new.at.dir.ino, new.at.name) {
            Ok(_) if mode == CreateMode::MustBeNew => Err(Error::Exists),
            Ok((ino, _)) => Ok(Created { attr: attr(inner, ino)?, created: false }),
            Err(_) => Ok(Created { attr: make(inner, new, false)?, created: true }),
        })
        .await
    }

    async fn mkdir(&self, _caller: &Caller, new: NewFile<'_>) -> Result<Attr> {
        self.call(|inner| make(inner, new, true)).await
    }

    async fn symlink(&self, _caller: &Caller, _new: NewFile<'_>, _target: &[u8]) -> Result<Attr> {
        Err(Error::NotSupported)
    }

    async fn mknod(&self, _caller: &Caller, _new: NewFile<'_>, _node: SpecialFile) -> Result<Attr> {
        Err(Error::NotSupported)
    }

    async fn link(&self, _caller: &Caller, _id: FileId, _entry: EntryName<'_>) -> Result<Attr> {
        Err(Error::NotSupported)
    }

    async fn unlink(&self, _caller: &Caller, entry: EntryName<'_>) -> Result<()> {
        self.call(|inner| remove(inner, entry, false)).await
    }

    async fn rmdir(&self, _caller: &Caller, entry: EntryName<'_>) -> Result<()> {
        self.call(|inner| remove(inner, entry, true)).await
    }

    async fn rename(
        &self,
        _caller: &Caller,
        from: EntryName<'_>,
        to: EntryName<'_>,
        flags: RenameFlags,
    ) -> Result<()> {
        self.call(|inner| {
            let moved = child(inner, from.dir.ino, from.name)?;
            match child(inner, to.dir.ino, to.name) {
                Err(Error::NotFound) => {}
                Ok(_) if flags != RenameFlags::Replace => return Err(Error::Exists),
                Ok((ino, _)) if ino == moved.0 => return Ok(()),
                Ok((ino, _)) => match (inner.inode(ino)?.is_dir, inner.inode(moved.0)?.is_dir) {
                    (true, true) if !is_empty(inner, ino) => return Err(Error::NotEmpty),
                    (true, false) => return Err(Error::IsDirectory),
                    (false, true) => return Err(Error::NotDirectory),
                    _ => {}
                },
                Err(error) => return Err(error),
            }
            let cookie = inner.next_change + 2;
            let entries = vec![
                ((from.dir.ino, from.name.to_vec()), None),
                ((to.dir.ino, to.name.to_vec()), Some((moved.0, cookie))),
            ];
            inner.change(Change::Names { entries, made: None });
            touch(inner, from.dir.ino, true);
            touch(inner, to.dir.ino, true);
            Ok(())
        })
        .await
    }

    async fn open(
        &self,
        _caller: &Caller,
        id: FileId,
        access: Access,
    ) -> Result<Arc<dyn OpenFile>> {
        self.call(|inner| named(inner, id.ino).map(drop)).await?;
        let store = Arc::new(Self { disk: self.disk.clone(), generation: self.generation });
        Ok(Arc::new(StoreFile { store, ino: id.ino, access }))
    }

    async fn sync_node(&self, id: FileId) -> Result<()> {
        self.sync(id.ino, self.disk.lies.node_syncs).await
    }
}

#[async_trait]
impl OpenFile for StoreFile {
    fn access(&self) -> Access {
        self.access
    }

    async fn getattr(&self) -> Result<Attr> {
        self.store.call(|inner| attr(inner, self.ino)).await
    }

    fn submit_read(&self, mut op: ReadOp) {
        let (store, ino) = (self.store.clone(), self.ino);
        tokio::spawn(async move {
            let (offset, len) = (op.offset() as usize, op.len());
            let read = store
                .call(|inner| {
                    let data = &inner.inode(ino)?.data;
                    let end = data.len().min(offset + len);
                    Ok((data.get(offset..end).unwrap_or_default().to_vec(), data.len()))
                })
                .await;
            let result = read.map(|(bytes, size)| {
                let mut slices: Vec<IoSliceMut<'_>> = Vec::new();
                op.buffer().slices(0, bytes.len(), &mut slices);
                let mut rest = &bytes[..];
                for slice in &mut slices {
                    let (now, later) = rest.split_at(slice.len());
                    slice.copy_from_slice(now);
                    rest = later;
                }
                drop(slices);
                Layout::data(offset as u64, bytes.len() as u64, offset + bytes.len() >= size)
            });
            op.complete(result);
        });
    }

    fn submit_write(&self, op: WriteOp) {
        let (store, ino) = (self.store.clone(), self.ino);
        tokio::spawn(async move {
            let mut slices: Vec<IoSlice<'_>> = Vec::new();
            op.source().slices(0, op.len(), &mut slices);
            let bytes: Vec<u8> = slices.iter().flat_map(|slice| slice.iter().copied()).collect();
            drop(slices);
            let offset = op.offset() as usize;
            let lies = store.disk.lies.writes;
            let result = store
                .call(|inner| {
                    inner.inode(ino)?;
                    inner.space()?;
                    if lies && inner.random.one_in(64) {
                        return Ok(());
                    }
                    inner.change(Change::Data { ino, offset, bytes });
                    touch(inner, ino, true);
                    Ok(())
                })
                .await;
            op.complete(result);
        });
    }

    async fn sync(&self, _data_only: bool) -> Result<()> {
        self.store.sync(self.ino, self.store.disk.lies.data_syncs).await
    }

    async fn set_size(&self, size: u64) -> Result<()> {
        let ino = self.ino;
        self.store
            .call(|inner| {
                inner.inode(ino)?;
                inner.change(Change::Size { ino, size: size as usize });
                touch(inner, ino, true);
                Ok(())
            })
            .await
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
