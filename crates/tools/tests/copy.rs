//! Copies between stores created by a test.

use async_trait::async_trait;
use std::sync::{Arc, Mutex};
use weir_pagecache::{Cache, CachedFs, Config};
use weir_stores::memory::MemoryFs;
use weir_tools::copy::{Copier, Options, Reflink};
use weir_tools::mounts::Place;
use weir_tools::origin::Origin;
use weir_vfs::{
    Access, Attr, Caller, CreateMode, Error, FileId, FileKind, FileSystem, FileSystemDecorator,
    IoFlags, Result, SetAttr, SpecialFile, XattrMode,
};

/// A store that lists the extended attributes of files and directories, and answers `for_others` for links and
/// special files.
struct ListsForFiles {
    store: Arc<MemoryFs>,
    for_others: Error,
}

#[async_trait]
impl FileSystemDecorator for ListsForFiles {
    fn below(&self) -> &dyn FileSystem {
        &*self.store
    }

    async fn list_xattrs(&self, caller: &Caller, id: FileId) -> Result<Vec<Vec<u8>>> {
        match self.store.getattr(id).await?.kind {
            FileKind::Regular | FileKind::Directory => self.store.list_xattrs(caller, id).await,
            _ => Err(self.for_others),
        }
    }
}

/// A store that sets no attributes, and records which directories are synced.
struct SetsNothing {
    store: Arc<MemoryFs>,
    synced: Mutex<Vec<FileId>>,
}

#[async_trait]
impl FileSystemDecorator for SetsNothing {
    fn below(&self) -> &dyn FileSystem {
        &*self.store
    }

    async fn setattr(&self, _: &Caller, _: FileId, _: &SetAttr) -> Result<Attr> {
        Err(Error::Io)
    }

    async fn sync_node(&self, id: FileId) -> Result<()> {
        self.synced.lock().unwrap().push(id);
        self.store.sync_node(id).await
    }
}

/// The file `name` in the root, as far as it exists.
async fn place(fs: &CachedFs, name: &str) -> Place {
    let attr = fs.lookup(&Caller::Own, fs.root().entry(name.as_bytes())).await.ok();
    let name = name.as_bytes().to_vec();
    let origin = Origin::default();
    Place { fs: fs.clone(), dir: fs.root(), shown: "tree".into(), name: Some(name), attr, origin }
}

/// A server may answer LISTXATTRS with NFS4ERR_WRONG_TYPE or NFS4ERR_INVAL except for files and
/// directories.
#[tokio::test]
async fn links_are_copied_from_a_store_that_lists_no_attributes_of_links() {
    for (for_others, is_said, fails) in [
        (Error::Invalid, false, false),
        (Error::Loop, false, false),
        (Error::AccessDenied, true, false),
        (Error::Io, false, true),
    ] {
        let (own, set) = (Caller::Own, SetAttr::default());
        let store = MemoryFs::new();
        let tree = store.mkdir(&own, store.root().entry(b"tree").with(&set)).await.unwrap().id;
        let file = store
            .create(&own, tree.entry(b"file").with(&set), CreateMode::MustBeNew)
            .await
            .unwrap();
        let id = file.attr.id;
        store.set_xattr(&own, id.xattr(b"user.a"), b"1", XattrMode::Either).await.unwrap();
        store.symlink(&own, tree.entry(b"link").with(&set), b"file").await.unwrap();
        store.mknod(&own, tree.entry(b"pipe").with(&set), SpecialFile::Fifo).await.unwrap();

        let cache = Cache::new(Config::default()).unwrap();
        let from = cache.mount(Arc::new(ListsForFiles { store, for_others }));
        let to = cache.mount(MemoryFs::new());
        let options = Options { recursive: true, preserve: true, ..Options::default() };
        let copier = Arc::new(Copier::new(options, cache.budget_bytes(), ()));
        let pair = (place(&from, "tree").await, place(&to, "copy").await);
        copier.copy(vec![pair], &to).await;

        assert_eq!(copier.failed(), fails, "{for_others}");
        assert_eq!(copier.not_preserved().is_empty(), !is_said, "{for_others}");
        let copy = to.lookup(&own, to.root().entry(b"copy")).await.unwrap().id;
        let link = to.lookup(&own, copy.entry(b"link")).await.unwrap();
        assert_eq!(to.readlink(&own, link.id).await.unwrap(), b"file");
        assert_eq!(to.lookup(&own, copy.entry(b"pipe")).await.unwrap().kind, FileKind::Fifo);
        let file = to.lookup(&own, copy.entry(b"file")).await.unwrap();
        assert_eq!(to.get_xattr(&own, file.id.xattr(b"user.a")).await.unwrap(), b"1");
    }
}

#[tokio::test]
async fn a_directory_is_synced_also_if_a_new_entry_did_not_get_its_attributes() {
    let (own, set) = (Caller::Own, SetAttr::default());
    let from = MemoryFs::new();
    from.symlink(&own, from.root().entry(b"link").with(&set), b"file").await.unwrap();
    from.mknod(&own, from.root().entry(b"pipe").with(&set), SpecialFile::Fifo).await.unwrap();
    let cache = Cache::new(Config::default()).unwrap();
    let from = cache.mount(from);
    for name in ["link", "pipe"] {
        let store = Arc::new(SetsNothing { store: MemoryFs::new(), synced: Mutex::default() });
        let to = cache.mount(store.clone());
        let options = Options { recursive: true, preserve: true, ..Options::default() };
        let copier = Arc::new(Copier::new(options, cache.budget_bytes(), ()));
        let pair = (place(&from, name).await, place(&to, name).await);
        copier.copy(vec![pair], &to).await;
        assert!(copier.failed(), "{name}");
        assert_eq!(*store.synced.lock().unwrap(), [to.root()], "{name}");
    }
}

#[tokio::test]
async fn a_store_that_shares_data_is_not_read() {
    for (reflink, shared) in
        [(Reflink::Auto, true), (Reflink::Always, true), (Reflink::Never, false)]
    {
        let cache = Cache::new(Config::default()).unwrap();
        let fs = cache.mount(MemoryFs::new());
        let set = SetAttr::default();
        let made = fs
            .create(&Caller::Own, fs.root().entry(b"from").with(&set), CreateMode::MustBeNew)
            .await
            .unwrap();
        let file = fs.open(&Caller::Own, made.attr.id, Access::READ | Access::WRITE).await.unwrap();
        let bytes = vec![7; 300_000];
        assert_eq!(file.write_at_async(&bytes, 0, IoFlags::empty()).await.unwrap(), bytes.len());
        let options = Options { reflink, ..Options::default() };
        let copier = Arc::new(Copier::new(options, 64 << 20, ()));
        copier.copy(vec![(place(&fs, "from").await, place(&fs, "to").await)], &fs).await;
        let summary = copier.summary(std::time::Duration::from_secs(1), 0);
        assert_eq!(summary.failures, [""; 0]);
        assert_eq!(summary.cloned_bytes == bytes.len() as u64, shared, "{reflink:?}");
        assert_eq!(summary.read_bytes == 0, shared, "{reflink:?}");
        let copy = place(&fs, "to").await.attr.unwrap();
        let copy = fs.open(&Caller::Own, copy.id, Access::READ).await.unwrap();
        let mut found = vec![0; bytes.len() + 1];
        assert_eq!(copy.read_at_async(&mut found, 0, IoFlags::empty()).await.unwrap(), bytes.len());
        assert!(found.starts_with(&bytes));
    }
}
