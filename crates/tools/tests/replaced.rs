//! What copies and mirrors replace, and when they know enough to do so.

mod common;

use async_trait::async_trait;
use common::write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use weir_pagecache::{Cache, CachedFs, Config};
use weir_stores::memory::MemoryFs;
use weir_tools::copy::{Copier, Filter, Mirror, Options, Overwrite, Progress, Summary};
use weir_tools::mounts::Place;
use weir_tools::origin::Origin;
use weir_tools::sync::sync;
use weir_vfs::{
    Access, Attr, Caller, CreateMode, Created, DirPage, EntryName, Error, FileId, FileKind,
    FileSystem, FileSystemDecorator, NewFile, OpenFile, ReaddirRequest, RenameFlags, Result,
    SetAttr, SetTime,
};

const OWN: &Caller = &Caller::Own;

/// A source in another file system than its copy, of which one file or directory may not be read.
struct Source {
    store: Arc<MemoryFs>,
    refused: Option<FileId>,
}

impl Source {
    fn check(&self, id: FileId) -> Result<()> {
        if self.refused == Some(id) { Err(Error::AccessDenied) } else { Ok(()) }
    }
}

#[async_trait]
impl FileSystemDecorator for Source {
    fn below(&self) -> &dyn FileSystem {
        &*self.store
    }

    async fn getattr(&self, id: FileId) -> Result<Attr> {
        let attr = self.store.getattr(id).await?;
        Ok(Attr { fsid: 77, ..attr })
    }

    async fn open(&self, caller: &Caller, id: FileId, access: Access) -> Result<Arc<dyn OpenFile>> {
        self.check(id)?;
        self.store.open(caller, id, access).await
    }

    async fn readdir(&self, caller: &Caller, request: ReaddirRequest) -> Result<DirPage> {
        self.check(request.dir)?;
        self.store.readdir(caller, request).await
    }
}

/// When another program saves a file `file` at the destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    /// After the directory was listed.
    Listed,
    /// When the copy of the file has begun.
    Begun,
    /// When it is about to become another name of a file that was copied.
    Linked,
}

/// A destination where another program saves a new file as `file`, once.
struct Shared {
    store: Arc<MemoryFs>,
    when: When,
    is_saved: AtomicBool,
}

impl Shared {
    async fn save(&self, when: When) -> Result<()> {
        if self.when != when || self.is_saved.swap(true, Ordering::SeqCst) {
            return Ok(());
        }
        let (set, root) = (SetAttr::default(), self.store.root());
        let new = root.entry(b"theirs").with(&set);
        self.store.create(OWN, new, CreateMode::MustBeNew).await?;
        let (from, to) = (root.entry(b"theirs"), root.entry(b"file"));
        self.store.rename_counted(OWN, from, to, RenameFlags::Replace).await.map(drop)
    }
}

#[async_trait]
impl FileSystemDecorator for Shared {
    fn below(&self) -> &dyn FileSystem {
        &*self.store
    }

    async fn readdir(&self, caller: &Caller, request: ReaddirRequest) -> Result<DirPage> {
        let page = self.store.readdir(caller, request).await?;
        self.save(When::Listed).await?;
        Ok(page)
    }

    async fn create(&self, caller: &Caller, new: NewFile<'_>, mode: CreateMode) -> Result<Created> {
        let made = self.store.create(caller, new, mode).await?;
        self.save(When::Begun).await?;
        Ok(made)
    }

    async fn link(&self, caller: &Caller, id: FileId, entry: EntryName<'_>) -> Result<Attr> {
        self.save(When::Linked).await?;
        self.store.link(caller, id, entry).await
    }
}

/// Answers each question with no, and counts them.
struct No(Arc<AtomicUsize>);

impl Progress for No {
    fn may_replace(&self, _: &str) -> bool {
        self.0.fetch_add(1, Ordering::SeqCst);
        false
    }
}

fn cache() -> Cache {
    Cache::new(Config { budget_bytes: 32 << 20, ..Config::default() }).unwrap()
}

/// A store whose next files have other numbers than those of another store.
async fn memory() -> Arc<MemoryFs> {
    let (store, set) = (MemoryFs::new(), SetAttr::default());
    for _ in 0..20 {
        let entry = store.root().entry(b"passing");
        store.create(OWN, entry.with(&set), CreateMode::MustBeNew).await.unwrap();
        store.unlink(OWN, entry).await.unwrap();
    }
    store
}

async fn root(fs: &CachedFs) -> Place {
    let (dir, attr) = (fs.root(), Some(fs.getattr(fs.root()).await.unwrap()));
    Place { fs: fs.clone(), dir, name: None, attr, shown: "root".into(), origin: Origin::default() }
}

async fn find(fs: &CachedFs, path: &[&str]) -> Option<Attr> {
    let mut at = fs.getattr(fs.root()).await.unwrap();
    for name in path {
        at = fs.lookup(OWN, at.id.entry(name.as_bytes())).await.ok()?;
    }
    Some(at)
}

async fn set_time(fs: &CachedFs, id: FileId, mtime: SystemTime) {
    let set = SetAttr { mtime: Some(SetTime::To(mtime)), ..SetAttr::default() };
    fs.setattr(OWN, id, &set).await.unwrap();
}

async fn names(fs: &CachedFs) -> Vec<Vec<u8>> {
    let children = root(fs).await.children(fs.root()).await.unwrap();
    children.into_iter().map(|(place, _)| place.name.unwrap()).collect()
}

/// Copies `file` beside another program that saves a newer one. Returns the summary, whether that one is there, and
/// how often was asked.
async fn copy_beside(options: Options, there: bool, when: When) -> (Summary, bool, usize) {
    let cache = cache();
    let from = cache.mount(Arc::new(Source { store: memory().await, refused: None }));
    let id = write(&from, "file", &[7; 100_000]).await;
    set_time(&from, id, UNIX_EPOCH + Duration::from_secs(2000)).await;
    let store = MemoryFs::new();
    let plain = cache.mount(store.clone());
    let mut old = None;
    if there {
        old = Some(write(&plain, "file", b"old").await);
        set_time(&plain, old.unwrap(), UNIX_EPOCH + Duration::from_secs(1000)).await;
    }
    let is_saved = AtomicBool::new(false);
    let to = cache.mount(Arc::new(Shared { store, when, is_saved }));
    let asked = Arc::new(AtomicUsize::new(0));
    let copier = Arc::new(Copier::new(options, 32 << 20, No(asked.clone())));
    copier.copy(vec![(root(&from).await, root(&to).await)]).await;
    assert_eq!(names(&plain).await, [b"file"], "nothing else is left");
    let now = find(&plain, &["file"]).await.unwrap();
    // Theirs is empty.
    let is_theirs = now.size == 0 && Some(now.id) != old;
    (copier.summary(Duration::ZERO, 0), is_theirs, asked.load(Ordering::SeqCst))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_others_save_meanwhile_is_not_replaced_by_an_older_one() {
    for preserve in [false, true] {
        for there in [false, true] {
            for when in [When::Listed, When::Begun] {
                let overwrite = Overwrite::Update;
                let options =
                    Options { recursive: true, preserve, overwrite, ..Options::default() };
                let (said, is_theirs, _) = copy_beside(options, there, when).await;
                assert!(is_theirs, "{there} {when:?}: {said:?}");
                assert_eq!((said.failures, said.kept, said.files), (Vec::new(), 1, 0));
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_appears_meanwhile_is_not_replaced_without_a_question() {
    let options = Options { recursive: true, asks: true, ..Options::default() };
    let (said, is_theirs, asked) = copy_beside(options.clone(), false, When::Listed).await;
    assert!(is_theirs, "{said:?}");
    assert_eq!((said.failures, said.kept, asked), (Vec::new(), 1, 1));
    // It is too late for a question.
    let (said, is_theirs, asked) = copy_beside(options, false, When::Begun).await;
    assert!(is_theirs && said.failures[0].contains("file exists"), "{said:?}");
    assert_eq!((said.failures.len(), said.files, asked), (1, 0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_appears_is_not_replaced_by_another_name_of_a_copy() {
    for (overwrite, asks) in [(Overwrite::Update, false), (Overwrite::Replace, true)] {
        let cache = cache();
        let from = cache.mount(Arc::new(Source { store: memory().await, refused: None }));
        let id = write(&from, "a", &[7; 100_000]).await;
        from.link(OWN, id, from.root().entry(b"file")).await.unwrap();
        let store = MemoryFs::new();
        let plain = cache.mount(store.clone());
        let is_saved = AtomicBool::new(false);
        let to = cache.mount(Arc::new(Shared { store, when: When::Linked, is_saved }));
        let preserve = true;
        let options = Options { recursive: true, preserve, overwrite, asks, ..Options::default() };
        let copier = Arc::new(Copier::new(options, 32 << 20, No(Arc::default())));
        copier.copy(vec![(root(&from).await, root(&to).await)]).await;
        let said = copier.summary(Duration::ZERO, 0);
        assert_eq!(find(&plain, &["file"]).await.unwrap().size, 0, "theirs: {said:?}");
        assert!(said.failures[0].contains("file exists"), "{said:?}");
        assert_eq!((said.failures.len(), said.files), (1, 1));
    }
}

/// Makes a mirror of a source in which `x`, a file or a directory, may not be read.
async fn mirror_unreadable(kind: FileKind, to: &CachedFs, cache: &Cache) -> Summary {
    let store = memory().await;
    let plain = cache.mount(store.clone());
    let set = SetAttr { mode: Some(0o755), ..SetAttr::default() };
    let x = match kind {
        FileKind::Directory => {
            plain.mkdir(OWN, plain.root().entry(b"x").with(&set)).await.unwrap().id
        }
        _ => write(&plain, "x", b"content").await,
    };
    let from = cache.mount(Arc::new(Source { store, refused: Some(x) }));
    let mirror = Some(Arc::new(Mirror::new(Filter::new([], []).unwrap(), true)));
    let options = Options { recursive: true, preserve: true, mirror, ..Options::default() };
    let copier = Arc::new(Copier::new(options, 32 << 20, ()));
    sync(&copier, &root(&from).await, &root(to).await, false).await;
    copier.summary(Duration::ZERO, 0)
}

#[tokio::test(flavor = "multi_thread")]
async fn no_directory_is_removed_for_a_file_that_cannot_be_read() {
    let (cache, set) = (cache(), SetAttr { mode: Some(0o755), ..SetAttr::default() });
    let to = cache.mount(MemoryFs::new());
    write(&to, "extra", b"").await;
    let x = to.mkdir(OWN, to.root().entry(b"x").with(&set)).await.unwrap().id;
    to.create(OWN, x.entry(b"keep").with(&set), CreateMode::MustBeNew).await.unwrap();
    let said = mirror_unreadable(FileKind::Regular, &to, &cache).await;
    assert!(said.failures.iter().any(|said| said.contains("read root/x")), "{said:?}");
    assert!(said.failures.iter().any(|said| said.contains("nothing was removed")), "{said:?}");
    assert!(find(&to, &["x", "keep"]).await.is_some() && find(&to, &["extra"]).await.is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn no_file_is_removed_for_a_directory_that_cannot_be_listed() {
    let cache = cache();
    let to = cache.mount(MemoryFs::new());
    let x = write(&to, "x", b"content").await;
    let said = mirror_unreadable(FileKind::Directory, &to, &cache).await;
    assert!(said.failures.iter().any(|said| said.contains("list root/x")), "{said:?}");
    assert_eq!(find(&to, &["x"]).await.map(|there| there.id), Some(x));
}
