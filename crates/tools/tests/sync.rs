//! Mirrors in stores created by a test.

use async_trait::async_trait;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, UNIX_EPOCH};
use weir_pagecache::{Cache, CachedFs, Config};
use weir_stores::memory::MemoryFs;
use weir_tools::copy::{Copier, Filter, Mirror, Options, Reflink, Summary};
use weir_tools::mounts::Place;
use weir_tools::origin::Origin;
use weir_tools::sync::sync;
use weir_vfs::{
    Access, Acl, AclKind, AclName, AclWho, Attr, Caller, CreateMode, DirPage, EntryName, Error,
    FileId, FileSystem, FileSystemDecorator, IoFlags, OpenFile, OpenFileDecorator, ReadOp,
    ReaddirRequest, RenameFlags, Result, SetAttr, SetTime, SpecialFile, Unnamed, WriteOp,
};

const SIZE: u64 = 8 << 20;

/// A store with a failure to come.
struct Failing {
    store: Arc<MemoryFs>,
    faults: Arc<Faults>,
}

struct Faults {
    /// Writes that succeed before all others fail.
    writes: AtomicI64,
    /// Reads so far; the files seem to change with each one if that is asked for.
    reads: AtomicU64,
    changes: bool,
    folds_case: bool,
    fsid: u64,
    /// Pages of listings that succeed before all others fail; a page has two entries then.
    pages: Option<AtomicI64>,
    /// Extended attributes and access control lists may not be read.
    hides_attributes: bool,
    /// The files were synced.
    synced: AtomicBool,
    /// Reads before that.
    reads_unsynced: AtomicU64,
    /// A file that cannot be opened to be written.
    refused: Option<(FileId, Error)>,
    /// A file that cannot be synced.
    unsynced: Option<(FileId, Error)>,
}

impl Default for Faults {
    fn default() -> Self {
        let (writes, reads) = (AtomicI64::new(i64::MAX), AtomicU64::new(0));
        Self {
            writes,
            reads,
            changes: false,
            folds_case: false,
            fsid: 77,
            pages: None,
            hides_attributes: false,
            synced: AtomicBool::new(false),
            reads_unsynced: AtomicU64::new(0),
            refused: None,
            unsynced: None,
        }
    }
}

impl Faults {
    fn seen(&self, attr: Attr) -> Attr {
        let reads = if self.changes { self.reads.load(Ordering::SeqCst) } else { 0 };
        // Another file system than that of the other store.
        Attr { ctime: attr.ctime + Duration::from_secs(reads), fsid: self.fsid, ..attr }
    }
}

struct FailingFile {
    file: Arc<dyn OpenFile>,
    id: FileId,
    faults: Arc<Faults>,
}

#[async_trait]
impl FileSystemDecorator for Failing {
    fn below(&self) -> &dyn FileSystem {
        &*self.store
    }

    async fn getattr(&self, id: FileId) -> Result<Attr> {
        self.store.getattr(id).await.map(|attr| self.faults.seen(attr))
    }

    async fn open(&self, caller: &Caller, id: FileId, access: Access) -> Result<Arc<dyn OpenFile>> {
        match self.faults.refused {
            Some((refused, error)) if refused == id && access.contains(Access::WRITE) => {
                return Err(error);
            }
            _ => {}
        }
        let file = self.store.open(caller, id, access).await?;
        Ok(Arc::new(FailingFile { file, id, faults: Arc::clone(&self.faults) }))
    }

    async fn readdir(&self, caller: &Caller, mut request: ReaddirRequest) -> Result<DirPage> {
        if let Some(pages) = &self.faults.pages {
            request.max_entries = 2;
            if pages.fetch_sub(1, Ordering::SeqCst) <= 0 {
                return Err(Error::Io);
            }
        }
        self.store.readdir(caller, request).await
    }

    async fn list_xattrs(&self, caller: &Caller, id: FileId) -> Result<Vec<Vec<u8>>> {
        match self.faults.hides_attributes {
            true => Err(Error::AccessDenied),
            false => self.store.list_xattrs(caller, id).await,
        }
    }

    async fn get_acl(&self, acl: AclName) -> Result<Option<Acl>> {
        match self.faults.hides_attributes {
            true => Err(Error::AccessDenied),
            false => self.store.get_acl(acl).await,
        }
    }

    async fn rename_counted(
        &self,
        caller: &Caller,
        from: EntryName<'_>,
        to: EntryName<'_>,
        flags: RenameFlags,
    ) -> Result<Option<Unnamed>> {
        let folded = to.name.to_ascii_lowercase();
        let name = if self.faults.folds_case { &folded[..] } else { to.name };
        self.store.rename_counted(caller, from, to.dir.entry(name), flags).await
    }

    async fn lookup(&self, caller: &Caller, entry: EntryName<'_>) -> Result<Attr> {
        match self.store.lookup(caller, entry).await {
            Err(Error::NotFound) if self.faults.folds_case => {
                let other = entry.name.to_ascii_lowercase();
                self.store.lookup(caller, entry.dir.entry(&other)).await
            }
            found => found,
        }
    }
}

#[async_trait]
impl OpenFileDecorator for FailingFile {
    fn below(&self) -> &dyn OpenFile {
        &*self.file
    }

    async fn getattr(&self) -> Result<Attr> {
        self.file.getattr().await.map(|attr| self.faults.seen(attr))
    }

    fn submit_read(&self, op: ReadOp) {
        self.faults.reads.fetch_add(1, Ordering::SeqCst);
        if !self.faults.synced.load(Ordering::SeqCst) {
            self.faults.reads_unsynced.fetch_add(1, Ordering::SeqCst);
        }
        self.file.submit_read(op);
    }

    async fn sync(&self, data_only: bool) -> Result<()> {
        match self.faults.unsynced {
            Some((unsynced, error)) if unsynced == self.id => return Err(error),
            _ => self.faults.synced.store(true, Ordering::SeqCst),
        }
        self.file.sync(data_only).await
    }

    fn submit_write(&self, op: WriteOp) {
        match self.faults.writes.fetch_sub(1, Ordering::SeqCst) > 0 {
            true => self.file.submit_write(op),
            false => op.complete(Err(Error::NoSpace)),
        }
    }
}

/// A store in which another program moves `d` from the directory `a` to `b` after `b` was listed, and before `a` is.
struct Moving {
    store: Arc<dyn FileSystem>,
    a: FileId,
    b: FileId,
    is_b_listed: AtomicBool,
    /// Listings of `a` before that.
    before: AtomicI64,
}

#[async_trait]
impl FileSystemDecorator for Moving {
    fn below(&self) -> &dyn FileSystem {
        &*self.store
    }

    async fn readdir(&self, caller: &Caller, request: ReaddirRequest) -> Result<DirPage> {
        if request.dir == self.a && self.before.fetch_sub(1, Ordering::SeqCst) == 0 {
            while !self.is_b_listed.load(Ordering::SeqCst) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            let (old, new) = (self.a.entry(b"d"), self.b.entry(b"d"));
            self.store.rename_counted(caller, old, new, RenameFlags::Replace).await?;
        }
        let page = self.store.readdir(caller, request).await;
        if request.dir == self.b {
            self.is_b_listed.store(true, Ordering::SeqCst);
        }
        page
    }
}

/// A source with the directory `a/d` and the directory `b`, and the same source as [`Moving`].
async fn moving(cache: &Cache, before: i64) -> (CachedFs, CachedFs) {
    let (memory, set) = (MemoryFs::new(), SetAttr { mode: Some(0o755), ..SetAttr::default() });
    let store: Arc<dyn FileSystem> =
        Arc::new(Failing { store: memory.clone(), faults: Arc::default() });
    let make = async |dir: FileId, name: &[u8]| {
        memory.mkdir(&Caller::Own, dir.entry(name).with(&set)).await.unwrap().id
    };
    let (a, b) = (make(memory.root(), b"a").await, make(memory.root(), b"b").await);
    make(a, b"d").await;
    let (is_b_listed, before) = (AtomicBool::new(false), AtomicI64::new(before));
    let moving = Moving { store: Arc::clone(&store), a, b, is_b_listed, before };
    (cache.mount(store), cache.mount(Arc::new(moving)))
}

async fn has(fs: &CachedFs, path: [&str; 2]) -> bool {
    let dir = fs.lookup(&Caller::Own, fs.root().entry(path[0].as_bytes())).await.unwrap().id;
    fs.lookup(&Caller::Own, dir.entry(path[1].as_bytes())).await.is_ok()
}

/// A store without access control lists.
struct WithoutLists(Arc<MemoryFs>);

#[async_trait]
impl FileSystemDecorator for WithoutLists {
    fn below(&self) -> &dyn FileSystem {
        &*self.0
    }

    async fn get_acl(&self, _: AclName) -> Result<Option<Acl>> {
        Err(Error::NotSupported)
    }

    async fn set_acl(&self, _: &Caller, _: AclName, _: Option<&Acl>) -> Result<()> {
        Err(Error::NotSupported)
    }
}

fn cache() -> Cache {
    Cache::new(Config { budget_bytes: 32 << 20, ..Config::default() }).unwrap()
}

/// A store as the source of a mirror.
fn source(cache: &Cache, store: Arc<MemoryFs>) -> CachedFs {
    cache.mount(Arc::new(Failing { store, faults: Arc::default() }))
}

/// Writes a file of [`SIZE`] with data at these offsets.
async fn write(fs: &CachedFs, name: &str, at: &[u64], byte: u8) {
    let set = SetAttr { mode: Some(0o644), ..SetAttr::default() };
    let entry = fs.root().entry(name.as_bytes()).with(&set);
    let id = fs.create(&Caller::Own, entry, CreateMode::MayExist).await.unwrap().attr.id;
    let file = fs.open(&Caller::Own, id, Access::READ | Access::WRITE).await.unwrap();
    for at in at {
        file.write_at_async(&[byte; 4096], *at, IoFlags::empty()).await.unwrap();
    }
    file.truncate_async(SIZE).await.unwrap();
    file.sync_async(false).await.unwrap();
}

/// The whole content of a file.
async fn read(fs: &CachedFs, name: &str) -> Vec<u8> {
    let id = fs.lookup(&Caller::Own, fs.root().entry(name.as_bytes())).await.unwrap().id;
    let file = fs.open(&Caller::Own, id, Access::READ).await.unwrap();
    let mut bytes = vec![0; file.size() as usize];
    let mut at = 0;
    while at < bytes.len() {
        let n = file.read_at_async(&mut bytes[at..], at as u64, IoFlags::empty()).await.unwrap();
        assert!(n > 0);
        at += n;
    }
    bytes
}

async fn root(fs: &CachedFs) -> Place {
    let (dir, attr) = (fs.root(), Some(fs.getattr(fs.root()).await.unwrap()));
    Place { fs: fs.clone(), dir, name: None, attr, shown: "root".into(), origin: Origin::default() }
}

async fn mirror(from: &CachedFs, to: &CachedFs, reflink: Reflink) -> Summary {
    mirror_by(from, to, reflink, |_| {}).await
}

/// The same, with further options.
async fn mirror_by(
    from: &CachedFs,
    to: &CachedFs,
    reflink: Reflink,
    set: impl FnOnce(&mut Mirror),
) -> Summary {
    let mut mirror = Mirror::new(Filter::new([], []).unwrap(), true);
    set(&mut mirror);
    let options = Options {
        recursive: true,
        preserve: true,
        reflink,
        mirror: Some(Arc::new(mirror)),
        ..Options::default()
    };
    let copier = Arc::new(Copier::new(options, 32 << 20, ()));
    sync(&copier, &root(from).await, &root(to).await, false).await;
    copier.summary(Duration::from_secs(1), 0)
}

async fn names(fs: &CachedFs) -> Vec<String> {
    let children = root(fs).await.children(fs.root()).await.unwrap();
    let name = |(place, _): (Place, Attr)| String::from_utf8(place.name.unwrap()).unwrap();
    children.into_iter().map(name).collect()
}

/// A mode that is equal to the source's has the rights of the users whom the source's list names.
#[tokio::test(flavor = "multi_thread")]
async fn a_mirror_without_lists_gives_the_group_no_rights_that_the_source_denies() {
    use AclWho::{Group, Mask, Other, Owner, User};
    let cache = cache();
    let from = source(&cache, MemoryFs::new());
    let to = cache.mount(Arc::new(WithoutLists(MemoryFs::new())));
    let found =
        async |fs: &CachedFs| fs.lookup(&Caller::Own, fs.root().entry(b"file")).await.unwrap();
    write(&from, "file", &[0], 1).await;
    let id = found(&from).await.id;
    let set = SetAttr { mode: Some(0o660), ..SetAttr::default() };
    from.setattr(&Caller::Own, id, &set).await.unwrap();
    assert_eq!(mirror(&from, &to, Reflink::Never).await.failures, [""; 0]);
    assert_eq!(found(&to).await.mode & 0o777, 0o660);
    let list = [(Owner, 6), (User(12345), 6), (Group, 0), (Mask, 6), (Other, 0)];
    let list = Acl::new(list).unwrap();
    from.set_acl(&Caller::Own, id.acl(AclKind::Access), Some(&list)).await.unwrap();
    // At first the modes are equal, then they are not.
    for _ in 0..2 {
        let said = mirror(&from, &to, Reflink::Never).await;
        assert_eq!((said.failures, said.written_bytes), (Vec::new(), 0));
        assert!(said.not_preserved.join("; ").contains("access control lists of"));
        assert_eq!(found(&to).await.mode & 0o777, 0o600);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_update_of_a_clone_is_published_when_it_is_complete() {
    let cache = cache();
    let (from, to) = (source(&cache, MemoryFs::new()), cache.mount(MemoryFs::new()));
    write(&from, "file", &[0, 3 << 20], 1).await;
    assert_eq!(mirror(&from, &to, Reflink::Auto).await.failures, Vec::<String>::new());
    let entry = to.root().entry(b"file");
    let first = to.lookup(&Caller::Own, entry).await.unwrap().id;
    write(&from, "file", &[3 << 20, 5 << 20], 2).await;
    let summary = mirror(&from, &to, Reflink::Auto).await;
    assert_eq!((summary.written_bytes, summary.cloned_bytes), (8192, SIZE), "{summary:?}");
    assert_ne!(to.lookup(&Caller::Own, entry).await.unwrap().id, first);
    assert_eq!(names(&to).await, ["file"]);
    assert!(read(&from, "file").await == read(&to, "file").await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_update_in_place_is_not_taken_for_complete() {
    let cache = cache();
    let (from, store) = (source(&cache, MemoryFs::new()), MemoryFs::new());
    let to = cache.mount(store.clone());
    write(&from, "file", &[0, 3 << 20, 5 << 20], 1).await;
    mirror(&from, &to, Reflink::Never).await;
    write(&from, "file", &[0, 3 << 20, 5 << 20], 2).await;
    for writes in 0..2 {
        let faults =
            Arc::new(Faults { writes: AtomicI64::new(writes), fsid: 78, ..Faults::default() });
        let full = cache.mount(Arc::new(Failing { store: store.clone(), faults }));
        let summary = mirror(&from, &full, Reflink::Never).await;
        assert!(summary.failures.iter().any(|f| f.contains("is incomplete")), "{summary:?}");
        let attr = store.lookup(&Caller::Own, store.root().entry(b"file")).await.unwrap();
        assert_ne!(attr.size, SIZE);
    }
    let to = cache.mount(store.clone());
    let summary = mirror(&from, &to, Reflink::Never).await;
    assert_eq!(summary.failures, Vec::<String>::new());
    assert!(read(&from, "file").await == read(&to, "file").await);
    let again = mirror(&from, &to, Reflink::Never).await;
    assert_eq!((again.written_bytes, again.up_to_date), (0, 1), "{again:?}");
}

/// A run that was killed may have written data which its server has not made durable.
#[tokio::test(flavor = "multi_thread")]
async fn what_an_earlier_run_has_written_is_durable_before_it_is_compared() {
    let cache = cache();
    for is_whole in [false, true] {
        let (from, store) = (source(&cache, MemoryFs::new()), MemoryFs::new());
        write(&from, "file", &[0, 3 << 20], 1).await;
        mirror(&from, &cache.mount(store.clone()), Reflink::Never).await;
        write(&from, "file", &[3 << 20], 2).await;
        let faults = Arc::new(Faults { fsid: 78, ..Faults::default() });
        let to = cache.mount(Arc::new(Failing { store, faults: Arc::clone(&faults) }));
        let set = |mirror: &mut Mirror| {
            (mirror.compares_content, mirror.whole_files) = (is_whole, is_whole);
        };
        let summary = mirror_by(&from, &to, Reflink::Never, set).await;
        assert_eq!(summary.failures, [""; 0]);
        assert!(faults.reads.load(Ordering::SeqCst) > 0);
        assert_eq!(faults.reads_unsynced.load(Ordering::SeqCst), 0, "{is_whole}");
        assert!(read(&from, "file").await == read(&to, "file").await);
    }
}

/// Also if it is equal: what an earlier run has written may be lost.
#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_cannot_be_made_durable_is_written_anew() {
    let cache = cache();
    let from = source(&cache, MemoryFs::new());
    write(&from, "file", &[0, 3 << 20], 1).await;
    for (is_opened, error) in [
        (false, Error::Busy),
        (true, Error::AccessDenied),
        (true, Error::NotPermitted),
        (true, Error::Stale),
    ] {
        let store = MemoryFs::new();
        mirror(&from, &cache.mount(store.clone()), Reflink::Never).await;
        let old = store.lookup(&Caller::Own, store.root().entry(b"file")).await.unwrap().id;
        let (refused, unsynced) = match is_opened {
            false => (Some((old, error)), None),
            true => (None, Some((old, error))),
        };
        let faults = Arc::new(Faults { refused, unsynced, fsid: 78, ..Faults::default() });
        let to = cache.mount(Arc::new(Failing { store: store.clone(), faults }));
        let set = |mirror: &mut Mirror| mirror.compares_content = true;
        let summary = mirror_by(&from, &to, Reflink::Never, set).await;
        assert_eq!(summary.failures, [""; 0], "{error}");
        assert_eq!((summary.files, summary.up_to_date), (1, 0), "{error}");
        let new = store.lookup(&Caller::Own, store.root().entry(b"file")).await.unwrap().id;
        assert_ne!(old, new, "{error}");
        assert!(read(&from, "file").await == read(&to, "file").await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_runs_is_replaced() {
    let cache = cache();
    let (from, store) = (source(&cache, MemoryFs::new()), MemoryFs::new());
    write(&from, "file", &[0, 3 << 20], 1).await;
    mirror(&from, &cache.mount(store.clone()), Reflink::Never).await;
    write(&from, "file", &[3 << 20], 2).await;
    let old = store.lookup(&Caller::Own, store.root().entry(b"file")).await.unwrap().id;
    let faults =
        Arc::new(Faults { refused: Some((old, Error::TextBusy)), fsid: 78, ..Faults::default() });
    let to = cache.mount(Arc::new(Failing { store: store.clone(), faults }));
    assert_eq!(mirror(&from, &to, Reflink::Never).await.failures, [""; 0]);
    let new = store.lookup(&Caller::Own, store.root().entry(b"file")).await.unwrap().id;
    assert_ne!(old, new);
    assert!(read(&from, "file").await == read(&to, "file").await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_special_file_stays_until_the_file_in_its_place_is_complete() {
    let cache = cache();
    let (from, store) = (source(&cache, MemoryFs::new()), MemoryFs::new());
    write(&from, "file", &[0, 3 << 20], 1).await;
    let (entry, set) = (store.root().entry(b"file"), SetAttr::default());
    let pipe = store.mknod(&Caller::Own, entry.with(&set), SpecialFile::Fifo).await.unwrap();
    let faults = Arc::new(Faults { writes: AtomicI64::new(1), fsid: 78, ..Faults::default() });
    let full = cache.mount(Arc::new(Failing { store: store.clone(), faults }));
    assert_eq!(mirror(&from, &full, Reflink::Never).await.failures.len(), 2);
    assert_eq!(store.lookup(&Caller::Own, entry).await.unwrap().id, pipe.id);
    let to = cache.mount(store.clone());
    assert_eq!(mirror(&from, &to, Reflink::Never).await.failures, [""; 0]);
    assert!(read(&from, "file").await == read(&to, "file").await);
    assert_eq!(names(&to).await, ["file"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_becomes_private_is_protected_before_it_is_written() {
    let cache = cache();
    let (from, store) = (source(&cache, MemoryFs::new()), MemoryFs::new());
    let to = cache.mount(store.clone());
    write(&from, "file", &[0, 3 << 20], 1).await;
    mirror(&from, &to, Reflink::Never).await;
    let entry = store.root().entry(b"file");
    let public = store.lookup(&Caller::Own, entry).await.unwrap();
    assert_eq!(public.mode, 0o644);
    write(&from, "file", &[3 << 20], 2).await;
    let id = from.lookup(&Caller::Own, from.root().entry(b"file")).await.unwrap().id;
    let private = SetAttr { mode: Some(0o640), ..SetAttr::default() };
    from.setattr(&Caller::Own, id, &private).await.unwrap();
    let faults = Arc::new(Faults { writes: AtomicI64::new(0), fsid: 78, ..Faults::default() });
    let full = cache.mount(Arc::new(Failing { store: store.clone(), faults }));
    assert_ne!(mirror(&from, &full, Reflink::Never).await.failures, Vec::<String>::new());
    assert_eq!(store.lookup(&Caller::Own, entry).await.unwrap().mode, 0o600);
    let to = cache.mount(store.clone());
    assert_eq!(mirror(&from, &to, Reflink::Never).await.failures, Vec::<String>::new());
    let copy = store.lookup(&Caller::Own, entry).await.unwrap();
    assert_eq!((copy.id, copy.mode), (public.id, 0o640));
    assert!(read(&from, "file").await == read(&to, "file").await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_source_that_changes_is_not_taken_for_mirrored() {
    let cache = cache();
    let (store, to) = (MemoryFs::new(), cache.mount(MemoryFs::new()));
    let from = source(&cache, store.clone());
    write(&from, "file", &[0, 3 << 20], 1).await;
    mirror(&from, &to, Reflink::Never).await;
    write(&from, "file", &[3 << 20], 2).await;
    for reflink in [Reflink::Auto, Reflink::Never] {
        let faults = Arc::new(Faults { changes: true, ..Faults::default() });
        let changing = cache.mount(Arc::new(Failing { store: store.clone(), faults }));
        let summary = mirror(&changing, &to, reflink).await;
        assert!(summary.failures.iter().any(|f| f.contains("it changed while")), "{summary:?}");
        let source = from.lookup(&Caller::Own, from.root().entry(b"file")).await.unwrap();
        let copy = to.lookup(&Caller::Own, to.root().entry(b"file")).await.unwrap();
        assert_ne!((copy.size, copy.mtime), (source.size, source.mtime));
        assert_eq!(names(&to).await, ["file"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn names_that_differ_in_case_are_not_removed() {
    let cache = cache();
    let (from, store) = (source(&cache, MemoryFs::new()), MemoryFs::new());
    let plain = cache.mount(store.clone());
    write(&from, "FILE", &[0], 1).await;
    write(&plain, "file", &[0], 1).await;
    write(&plain, "other", &[0], 1).await;
    let faults = Arc::new(Faults { folds_case: true, fsid: 78, ..Faults::default() });
    let to = cache.mount(Arc::new(Failing { store: store.clone(), faults }));
    let summary = mirror(&from, &to, Reflink::Auto).await;
    assert_eq!(summary.failures, Vec::<String>::new());
    assert_eq!(summary.removed, 1, "{summary:?}");
    assert_eq!(names(&to).await, ["file"]);
}

/// The source has five files, so three pages; the copy lists it once, the removal again.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_removed_if_a_listing_of_the_source_fails_half_way() {
    let cache = cache();
    let (store, to) = (MemoryFs::new(), cache.mount(MemoryFs::new()));
    let plain = cache.mount(store.clone());
    for name in ["a", "b", "c", "d", "e"] {
        write(&plain, name, &[], 1).await;
        write(&to, name, &[], 1).await;
    }
    write(&to, "extra", &[], 1).await;
    let mut removed = Vec::new();
    for pages in 0..=6 {
        let faults = Faults { pages: Some(AtomicI64::new(pages)), ..Faults::default() };
        let from =
            cache.mount(Arc::new(Failing { store: store.clone(), faults: Arc::new(faults) }));
        let summary = mirror(&from, &to, Reflink::Auto).await;
        assert_eq!(summary.failures.is_empty(), pages == 6, "{pages}: {summary:?}");
        removed.push(summary.removed);
    }
    assert_eq!(removed, [0, 0, 0, 0, 0, 0, 1]);
    assert_eq!(names(&to).await, ["a", "b", "c", "d", "e"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn attributes_that_may_not_be_read_are_reported_and_no_failure() {
    let cache = cache();
    let (from, store) = (source(&cache, MemoryFs::new()), MemoryFs::new());
    write(&from, "file", &[0], 1).await;
    mirror(&from, &cache.mount(store.clone()), Reflink::Auto).await;
    let faults = Arc::new(Faults { hides_attributes: true, fsid: 78, ..Faults::default() });
    let to = cache.mount(Arc::new(Failing { store, faults }));
    let summary = mirror(&from, &to, Reflink::Auto).await;
    assert_eq!((summary.failures, summary.up_to_date), (Vec::<String>::new(), 1));
    let said = summary.not_preserved.join("; ");
    assert!(said.contains("extended attributes of") && said.contains("control lists of"), "{said}");
}

/// While the source is copied, or while it is compared with its mirror.
#[tokio::test(flavor = "multi_thread")]
async fn what_the_source_only_moves_is_not_lost() {
    for before in [0, 1] {
        let cache = cache();
        let ((from, moving), to) = (moving(&cache, before).await, cache.mount(MemoryFs::new()));
        assert_eq!(mirror(&from, &to, Reflink::Never).await.failures, [""; 0]);
        let summary = mirror(&moving, &to, Reflink::Never).await;
        assert_eq!((&summary.failures, summary.removed), (&Vec::new(), 1), "{summary:?}");
        assert!(has(&from, ["b", "d"]).await && !has(&from, ["a", "d"]).await);
        assert!(has(&to, ["b", "d"]).await && !has(&to, ["a", "d"]).await);
    }
}

/// A file that only the second copy meets, since its directory was moved, is compared as any other.
#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_copy_compares_the_content_of_all_files() {
    let cache = cache();
    let ((from, moving), to) = (moving(&cache, 1).await, cache.mount(MemoryFs::new()));
    let dir = async |fs: &CachedFs, above: FileId, name: &[u8]| {
        let set = SetAttr { mode: Some(0o755), ..SetAttr::default() };
        match fs.lookup(&Caller::Own, above.entry(name)).await {
            Ok(attr) => attr.id,
            Err(_) => fs.mkdir(&Caller::Own, above.entry(name).with(&set)).await.unwrap().id,
        }
    };
    for (fs, above, byte) in [(&from, b"a", 1), (&to, b"b", 2)] {
        let above = dir(fs, fs.root(), above).await;
        let d = dir(fs, above, b"d").await;
        write(fs, "f", &[0], byte).await;
        let old = fs.root().entry(b"f");
        let id = fs.lookup(&Caller::Own, old).await.unwrap().id;
        let mtime = Some(SetTime::To(UNIX_EPOCH + Duration::from_secs(1_000_000_000)));
        let set = SetAttr { mtime, ..SetAttr::default() };
        fs.setattr(&Caller::Own, id, &set).await.unwrap();
        fs.rename(&Caller::Own, old, d.entry(b"f"), RenameFlags::Replace).await.unwrap();
    }
    let compares = |mirror: &mut Mirror| mirror.compares_content = true;
    let summary = mirror_by(&moving, &to, Reflink::Never, compares).await;
    assert_eq!(summary.failures, [""; 0], "{summary:?}");
    let d = dir(&to, dir(&to, to.root(), b"b").await, b"d").await;
    let top = to.root().entry(b"f");
    to.rename(&Caller::Own, d.entry(b"f"), top, RenameFlags::Replace).await.unwrap();
    assert_eq!(read(&to, "f").await[0], 1);
}

/// A store whose root has another file after each listing.
struct Growing {
    store: Arc<MemoryFs>,
    made: AtomicU64,
}

#[async_trait]
impl FileSystemDecorator for Growing {
    fn below(&self) -> &dyn FileSystem {
        &*self.store
    }

    async fn readdir(&self, caller: &Caller, request: ReaddirRequest) -> Result<DirPage> {
        let page = self.store.readdir(caller, request).await?;
        let (name, set) =
            (self.made.fetch_add(1, Ordering::SeqCst).to_string(), SetAttr::default());
        let new = self.store.root().entry(name.as_bytes()).with(&set);
        self.store.create(caller, new, CreateMode::MustBeNew).await?;
        Ok(page)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mirror_of_a_source_that_keeps_changing_loses_nothing() {
    let (cache, store) = (cache(), MemoryFs::new());
    let to = cache.mount(MemoryFs::new());
    let from = cache.mount(Arc::new(Growing { store: store.clone(), made: AtomicU64::new(0) }));
    let summary = mirror(&from, &to, Reflink::Never).await;
    assert_eq!(summary.failures, [""; 0], "there is nothing to remove");
    write(&to, "extra", &[], 1).await;
    let summary = mirror(&from, &to, Reflink::Never).await;
    assert_eq!(summary.removed, 0, "{summary:?}");
    let said = summary.failures.join("; ");
    assert!(said.contains("it was not there when") && said.contains("it changed while"), "{said}");
    assert!(names(&to).await.contains(&"extra".to_owned()));
    let summary = mirror(&cache.mount(store), &to, Reflink::Never).await;
    assert_eq!((summary.failures, summary.removed), (Vec::new(), 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tree_that_is_moved_fails_if_a_directory_changes_while_it_is_copied() {
    let cache = cache();
    for moves in [false, true] {
        let ((_, moving), to) = (moving(&cache, 0).await, cache.mount(MemoryFs::new()));
        let options = Options { recursive: true, preserve: true, moves, ..Options::default() };
        let copier = Arc::new(Copier::new(options, 32 << 20, ()));
        copier.copy(vec![(root(&moving).await, root(&to).await)]).await;
        let failures = copier.summary(Duration::ZERO, 0).failures;
        let is_of = |name: &str| failures.iter().any(|failure| failure.contains(name));
        assert_eq!((is_of("root/a"), is_of("root/b")), (moves, moves), "{failures:?}");
        assert_eq!(failures.len(), if moves { 2 } else { 0 }, "{failures:?}");
    }
}
