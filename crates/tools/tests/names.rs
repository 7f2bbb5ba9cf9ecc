//! Copies to a store that takes several names for one.

use async_trait::async_trait;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use weir_pagecache::{Cache, CachedFs, Config};
use weir_stores::memory::MemoryFs;
use weir_tools::copy::{Copier, Filter, Mirror, Options, Summary};
use weir_tools::mounts::Place;
use weir_tools::origin::Origin;
use weir_tools::rename::rename;
use weir_tools::sync::sync;
use weir_vfs::{
    Access, Attr, Caller, CreateMode, Created, DirPage, EntryName, Error, FileId, FileSystem,
    FileSystemDecorator, IoFlags, NewFile, ReaddirRequest, RenameFlags, Result, SetAttr, Unnamed,
};

const OWN: &Caller = &Caller::Own;

/// A store that may fold case, and shows names as they were written first.
struct Folding {
    store: Arc<MemoryFs>,
    folds: bool,
    fsid: u64,
}

/// A store with its own number.
fn store(cache: &Cache, folds: bool) -> CachedFs {
    static NEXT: AtomicU64 = AtomicU64::new(77);
    let fsid = NEXT.fetch_add(1, Ordering::Relaxed);
    cache.mount(Arc::new(Folding { store: MemoryFs::new(), folds, fsid }))
}

impl Folding {
    /// The name that is there for `entry`, or its own.
    async fn name(&self, entry: EntryName<'_>) -> Vec<u8> {
        if !self.folds {
            return entry.name.to_vec();
        }
        let folded = String::from_utf8_lossy(entry.name).to_lowercase();
        let names = names_in(&*self.store, entry.dir).await;
        let found = names.into_iter().find(|name| name.to_lowercase() == folded);
        found.map_or_else(|| entry.name.to_vec(), String::into_bytes)
    }
}

#[async_trait]
impl FileSystemDecorator for Folding {
    fn below(&self) -> &dyn FileSystem {
        &*self.store
    }

    async fn getattr(&self, id: FileId) -> Result<Attr> {
        let attr = self.store.getattr(id).await?;
        Ok(Attr { fsid: self.fsid, ..attr })
    }

    async fn lookup(&self, caller: &Caller, entry: EntryName<'_>) -> Result<Attr> {
        let attr = self.store.lookup(caller, entry.dir.entry(&self.name(entry).await)).await?;
        Ok(Attr { fsid: self.fsid, ..attr })
    }

    async fn readdir(&self, caller: &Caller, request: ReaddirRequest) -> Result<DirPage> {
        let mut page = self.store.readdir(caller, request).await?;
        let attrs = page.entries.iter_mut().filter_map(|entry| entry.attr.as_mut());
        attrs.for_each(|attr| attr.fsid = self.fsid);
        Ok(page)
    }

    async fn create(&self, caller: &Caller, new: NewFile<'_>, mode: CreateMode) -> Result<Created> {
        let name = self.name(new.at).await;
        self.store.create(caller, new.at.dir.entry(&name).with(new.set), mode).await
    }

    async fn mkdir(&self, caller: &Caller, new: NewFile<'_>) -> Result<Attr> {
        self.store.mkdir(caller, new.at.dir.entry(&self.name(new.at).await).with(new.set)).await
    }

    async fn symlink(&self, caller: &Caller, new: NewFile<'_>, target: &[u8]) -> Result<Attr> {
        let name = self.name(new.at).await;
        self.store.symlink(caller, new.at.dir.entry(&name).with(new.set), target).await
    }

    async fn link(&self, caller: &Caller, id: FileId, entry: EntryName<'_>) -> Result<Attr> {
        self.store.link(caller, id, entry.dir.entry(&self.name(entry).await)).await
    }

    async fn unlink_counted(
        &self,
        caller: &Caller,
        entry: EntryName<'_>,
    ) -> Result<Option<Unnamed>> {
        self.store.unlink_counted(caller, entry.dir.entry(&self.name(entry).await)).await
    }

    async fn rename_counted(
        &self,
        caller: &Caller,
        from: EntryName<'_>,
        to: EntryName<'_>,
        flags: RenameFlags,
    ) -> Result<Option<Unnamed>> {
        self.store.rename_counted(caller, from, to.dir.entry(&self.name(to).await), flags).await
    }
}

async fn names_in(store: &dyn FileSystem, dir: FileId) -> Vec<String> {
    let request = ReaddirRequest { dir, cookie: 0, max_entries: 10_000, with_attr: false };
    let page = store.readdir(OWN, request).await.unwrap();
    page.entries.into_iter().map(|entry| String::from_utf8(entry.name).unwrap()).collect()
}

/// Makes a file with its path as its content, and the directories above it.
async fn write(fs: &CachedFs, path: &str) {
    let set = SetAttr { mode: Some(0o755), ..SetAttr::default() };
    let mut dir = fs.root();
    let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
    for name in above.split('/').filter(|name| !name.is_empty()) {
        let made = fs.mkdir(OWN, dir.entry(name.as_bytes()).with(&set)).await;
        dir = match made {
            Err(Error::Exists) => fs.lookup(OWN, dir.entry(name.as_bytes())).await,
            made => made,
        }
        .unwrap()
        .id;
    }
    let new = dir.entry(name.as_bytes()).with(&set);
    let id = fs.create(OWN, new, CreateMode::MayExist).await.unwrap().attr.id;
    let file = fs.open(OWN, id, Access::READ | Access::WRITE).await.unwrap();
    file.write_at_async(path.as_bytes(), 0, IoFlags::empty()).await.unwrap();
    file.sync_async(false).await.unwrap();
}

/// The regular files of a tree and their content, sorted.
async fn files(fs: &CachedFs) -> Vec<String> {
    let mut found = Vec::new();
    let mut ahead = vec![(root(fs).await, String::new())];
    while let Some((place, path)) = ahead.pop() {
        let id = place.attr.as_ref().unwrap().id;
        for (child, attr) in place.children(id).await.unwrap() {
            let name = String::from_utf8(child.name.clone().unwrap()).unwrap();
            let path = format!("{path}/{name}");
            if attr.kind == weir_vfs::FileKind::Directory {
                ahead.push((child, path));
                continue;
            }
            let file = fs.open(OWN, attr.id, Access::READ).await.unwrap();
            let mut bytes = vec![0; attr.size as usize];
            file.read_at_async(&mut bytes, 0, IoFlags::empty()).await.unwrap();
            found.push(format!("{path} {}", String::from_utf8(bytes).unwrap()));
        }
    }
    found.sort();
    found
}

async fn root(fs: &CachedFs) -> Place {
    let (dir, attr) = (fs.root(), Some(fs.getattr(fs.root()).await.unwrap()));
    Place { fs: fs.clone(), dir, name: None, attr, shown: "root".into(), origin: Origin::default() }
}

fn options() -> Options {
    Options { recursive: true, preserve: true, ..Options::default() }
}

/// Copies the contents of the roots of `from` to the root of `to`.
async fn copy(from: &[&CachedFs], to: &CachedFs, options: Options) -> Summary {
    let copier = Arc::new(Copier::new(options, 32 << 20, ()));
    let mut pairs = Vec::new();
    for (n, from) in from.iter().enumerate() {
        let shown = ["root", "second"][n].into();
        pairs.push((Place { shown, ..root(from).await }, root(to).await));
    }
    copier.copy(pairs).await;
    copier.summary(Duration::from_secs(1), 0)
}

/// A failure about a name that is taken for that of `other`.
fn is_about(summary: &Summary, name: &str, other: &str) -> bool {
    summary.failures.iter().any(|said| said.contains(name) && said.contains(other))
}

#[tokio::test(flavor = "multi_thread")]
async fn names_that_the_destination_takes_for_one_are_not_replaced() {
    for jobs in [1, 16] {
        let cache = Cache::new(Config { budget_bytes: 32 << 20, ..Config::default() }).unwrap();
        let from = store(&cache, false);
        for path in ["NOTES", "notes", "CAF\u{c9}", "caf\u{e9}", "sub/One", "sub/oNE", "sub/two"] {
            write(&from, path).await;
        }
        let to = store(&cache, true);
        let said = copy(&[&from], &to, Options { jobs, ..options() }).await;
        assert_eq!(said.failures.len(), 3, "{said:?}");
        assert!(is_about(&said, "root/notes", "root/NOTES"), "{said:?}");
        assert!(is_about(&said, "root/sub/oNE", "root/sub/One"), "{said:?}");
        let all = ["/CAF\u{c9} CAF\u{c9}", "/NOTES NOTES", "/sub/One sub/One", "/sub/two sub/two"];
        assert_eq!(files(&to).await, all, "{jobs}");
        // Another store keeps all of them, also when they are there already.
        let plain = store(&cache, false);
        for _ in 0..2 {
            let said = copy(&[&from], &plain, Options { jobs, ..options() }).await;
            assert_eq!(said.failures, [""; 0]);
            assert_eq!(files(&plain).await, files(&from).await);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn directories_that_the_destination_takes_for_one_are_not_merged() {
    let cache = Cache::new(Config { budget_bytes: 32 << 20, ..Config::default() }).unwrap();
    let from = store(&cache, false);
    for path in ["Src/x", "src/x", "src/y", "other/z"] {
        write(&from, path).await;
    }
    for exists in [false, true] {
        let to = store(&cache, true);
        if exists {
            write(&to, "SRC/old").await;
        }
        let said = copy(&[&from], &to, options()).await;
        assert_eq!(said.failures.len(), 1, "{said:?}");
        assert!(is_about(&said, "root/src", "root/Src"), "{said:?}");
        let files = files(&to).await;
        let xs: Vec<_> = files.iter().filter(|file| file.contains("/x ")).collect();
        let ys = files.iter().filter(|file| file.contains("/y ")).count();
        assert_eq!(xs.len(), 1, "{files:?}");
        assert_eq!(xs[0].contains("src/x"), ys == 1, "{files:?}");
        assert!(files.contains(&"/other/z other/z".to_owned()), "{files:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn names_of_several_sources_are_not_taken_for_one() {
    let cache = Cache::new(Config { budget_bytes: 32 << 20, ..Config::default() }).unwrap();
    let [first, second] = [["name", "dir/One"], ["NAME", "dir/oNE"]];
    let (one, two) = (store(&cache, false), store(&cache, false));
    for path in first {
        write(&one, path).await;
    }
    for path in second {
        write(&two, path).await;
    }
    let to = store(&cache, true);
    let said = copy(&[&one, &two], &to, options()).await;
    assert_eq!(said.failures.len(), 2, "{said:?}");
    assert!(is_about(&said, "second/NAME", "one in root"), "{said:?}");
    assert!(is_about(&said, "second/dir/oNE", "one in root"), "{said:?}");
    assert_eq!(files(&to).await, ["/dir/One dir/One", "/name name"]);
}

/// Of files that were there before, the copy replaces those that it is asked to.
#[tokio::test(flavor = "multi_thread")]
async fn a_file_of_another_case_is_replaced_once() {
    let cache = Cache::new(Config { budget_bytes: 32 << 20, ..Config::default() }).unwrap();
    let (from, both) = (store(&cache, false), store(&cache, false));
    write(&from, "FILE").await;
    write(&both, "FILE").await;
    write(&both, "file").await;
    let to = store(&cache, true);
    write(&to, "file").await;
    let said = copy(&[&from], &to, options()).await;
    assert_eq!(said.failures, [""; 0]);
    assert_eq!(files(&to).await, ["/file FILE"]);
    let said = copy(&[&both], &to, options()).await;
    assert!(is_about(&said, "root/file", "root/FILE"), "{said:?}");
    assert_eq!(files(&to).await, ["/file FILE"]);
    // What was left out of a mirror is no source.
    let filter = Filter::new(["/FILE"], []).unwrap();
    let mirror = Some(Arc::new(Mirror::new(filter, false)));
    let copier = Arc::new(Copier::new(Options { mirror, ..options() }, 32 << 20, ()));
    sync(&copier, &root(&both).await, &root(&to).await, false).await;
    assert!(!copier.failed());
    assert_eq!(files(&to).await, ["/file file"]);
}

/// Further names of a file are made at the end.
#[tokio::test(flavor = "multi_thread")]
async fn hard_links_count_as_copies() {
    let cache = Cache::new(Config { budget_bytes: 32 << 20, ..Config::default() }).unwrap();
    let from = store(&cache, false);
    write(&from, "0").await;
    let id = from.lookup(OWN, from.root().entry(b"0")).await.unwrap().id;
    from.link(OWN, id, from.root().entry(b"Name")).await.unwrap();
    write(&from, "name").await;
    let to = store(&cache, true);
    let said = copy(&[&from], &to, options()).await;
    assert_eq!((said.failures.len(), said.hard_links), (1, 1), "{said:?}");
    assert!(is_about(&said, "root/name", "root/Name"), "{said:?}");
    assert_eq!(files(&to).await, ["/0 0", "/Name 0"]);
}

/// They are the only entry of the file in its directory.
#[tokio::test]
async fn a_name_that_the_store_takes_for_the_new_one_is_not_removed() {
    let cache = Cache::new(Config::default()).unwrap();
    for folds in [true, false] {
        let fs = store(&cache, folds);
        write(&fs, "name").await;
        let id = fs.lookup(OWN, fs.root().entry(b"name")).await.unwrap().id;
        fs.link(OWN, id, fs.root().entry(b"other")).await.unwrap();
        if !folds {
            fs.link(OWN, id, fs.root().entry(b"NAME")).await.unwrap();
        }
        let place = async |name: &str| {
            let attr = fs.lookup(OWN, fs.root().entry(name.as_bytes())).await.ok();
            let (name, origin) = (Some(name.as_bytes().to_vec()), Origin::default());
            Place { fs: fs.clone(), dir: fs.root(), name, attr, shown: "file".into(), origin }
        };
        let names = async || {
            let mut names = names_in(&**fs.store(), fs.root()).await;
            names.sort();
            names
        };
        let (from, to) = (place("name").await, place("NAME").await);
        assert_eq!(rename(&from, &to, RenameFlags::Replace).await, Ok(()));
        let left = names().await;
        assert_eq!(left, if folds { ["name", "other"] } else { ["NAME", "other"] });
        // Another name of the file is an entry of its own, however the first one is written.
        let (from, to) = (place("NAME").await, place("other").await);
        assert_eq!(rename(&from, &to, RenameFlags::Replace).await, Ok(()));
        assert_eq!(names().await, ["other"]);
    }
}
