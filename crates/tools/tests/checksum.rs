//! Checksums of files in stores created by a test.

use async_trait::async_trait;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use weir_pagecache::{Cache, Config};
use weir_stores::memory::MemoryFs;
use weir_tools::checksum::{Algorithm, Checksum, Summer};
use weir_tools::mounts::Place;
use weir_tools::origin::Origin;
use weir_vfs::{
    Access, Attr, Caller, CreateMode, FileId, FileSystem, FileSystemDecorator, IoFlags, OpenFile,
    OpenFileDecorator, ReadOp, Result, SetAttr,
};

/// A store that counts the bytes read from it, and whose files change whenever they are read.
struct Watched {
    store: Arc<MemoryFs>,
    watch: Arc<Watch>,
}

#[derive(Default)]
struct Watch {
    read_bytes: AtomicU64,
    changes: AtomicBool,
}

impl Watch {
    fn seen(&self, attr: Attr) -> Attr {
        let changes = match self.changes.load(Ordering::SeqCst) {
            true => self.read_bytes.load(Ordering::SeqCst),
            false => 0,
        };
        Attr { ctime: attr.ctime + Duration::from_secs(changes), ..attr }
    }
}

struct WatchedFile {
    file: Arc<dyn OpenFile>,
    watch: Arc<Watch>,
}

#[async_trait]
impl FileSystemDecorator for Watched {
    fn below(&self) -> &dyn FileSystem {
        &*self.store
    }

    async fn getattr(&self, id: FileId) -> Result<Attr> {
        self.store.getattr(id).await.map(|attr| self.watch.seen(attr))
    }

    async fn open(&self, caller: &Caller, id: FileId, access: Access) -> Result<Arc<dyn OpenFile>> {
        let file = self.store.open(caller, id, access).await?;
        Ok(Arc::new(WatchedFile { file, watch: Arc::clone(&self.watch) }))
    }
}

#[async_trait]
impl OpenFileDecorator for WatchedFile {
    fn below(&self) -> &dyn OpenFile {
        &*self.file
    }

    async fn getattr(&self) -> Result<Attr> {
        self.file.getattr().await.map(|attr| self.watch.seen(attr))
    }

    fn submit_read(&self, op: ReadOp) {
        self.watch.read_bytes.fetch_add(op.len() as u64, Ordering::SeqCst);
        self.file.submit_read(op);
    }
}

const SIZE: usize = 64 << 20;

/// A file of [`SIZE`] with a page of data, in a store that is watched.
async fn file(cache: &Cache) -> (Place, Arc<Watch>) {
    let store = MemoryFs::new();
    let watch = Arc::new(Watch::default());
    let fs = cache.mount(store.clone());
    let set = SetAttr::default();
    let name = fs.root().entry(b"file").with(&set);
    let id = fs.create(&Caller::Own, name, CreateMode::MustBeNew).await.unwrap().attr.id;
    let file = fs.open(&Caller::Own, id, Access::READ | Access::WRITE).await.unwrap();
    file.write_at_async(&[7; 4096], 8 << 20, IoFlags::empty()).await.unwrap();
    file.truncate_async(SIZE as u64).await.unwrap();
    file.sync_async(false).await.unwrap();
    // Under another mount, nothing of it is cached.
    let fs = cache.mount(Arc::new(Watched { store, watch: Arc::clone(&watch) }));
    let attr = Some(fs.getattr(id).await.unwrap());
    let (dir, name) = (fs.root(), Some(b"file".to_vec()));
    let origin = Origin::default();
    (Place { fs, dir, name, attr, shown: "file".into(), origin }, watch)
}

async fn sum(cache: &Cache, place: &Place) -> weir_tools::failure::Result<(u64, Checksum)> {
    let mut sums = Vec::new();
    let summer = Summer::new(Algorithm::Blake3, 4, cache.budget_bytes());
    let attr = place.attr.clone().unwrap();
    let take = |summed: weir_tools::checksum::Summed| {
        sums.push(summed.sum);
        Ok(true)
    };
    assert!(summer.tree(place.clone(), attr, false, None, take).await.unwrap());
    assert_eq!(sums.len(), 1);
    sums.pop().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn holes_count_as_zeros_and_are_not_read() {
    let cache = Cache::new(Config { budget_bytes: 16 << 20, ..Config::default() }).unwrap();
    let (place, watch) = file(&cache).await;
    let mut content = vec![0; SIZE];
    content[8 << 20..][..4096].fill(7);
    let expected = *blake3::hash(&content).as_bytes();
    assert_eq!(sum(&cache, &place).await.unwrap(), (SIZE as u64, Checksum(expected)));
    let read = watch.read_bytes.load(Ordering::SeqCst);
    assert!((4096..8 << 20).contains(&read), "{read} bytes read");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_changes_while_it_is_read_has_no_checksum() {
    let cache = Cache::new(Config { budget_bytes: 16 << 20, ..Config::default() }).unwrap();
    let (place, watch) = file(&cache).await;
    watch.changes.store(true, Ordering::SeqCst);
    let failure = sum(&cache, &place).await.unwrap_err().to_string();
    assert!(failure.contains("it changed while it was read"), "{failure}");
}
