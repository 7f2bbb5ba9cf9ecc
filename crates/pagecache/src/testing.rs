//! Shared by unit tests: a cache over a store whose calls fail, or are held back, by rules.

use crate::{Background, Cache, CachedFs, Config, File};
use async_trait::async_trait;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::task::{Context, Poll, Waker};
use std::thread::yield_now;
use weir_base::sync::Mutex;
use weir_stores::fault::{Call, Fault, Rule, What, When};
use weir_stores::memory::MemoryFs;
use weir_vfs::{
    Access, Caller, CreateMode, FileId, FileSystem, FileSystemDecorator, FileSystemMethod, Result,
    SetAttr,
};

pub(crate) struct Rig {
    pub(crate) store: Arc<Fault>,
    pub(crate) fs: CachedFs,
}

impl Rig {
    pub(crate) fn new() -> Self {
        Self::over(MemoryFs::new())
    }

    pub(crate) fn over(store: Arc<dyn FileSystem>) -> Self {
        Self::configured(store, Config::default())
    }

    /// Without the threads of a cache: nothing happens unless a test does it.
    pub(crate) fn without_threads() -> Self {
        Self::without_threads_over(MemoryFs::new())
    }

    /// The same over a store.
    pub(crate) fn without_threads_over(store: Arc<dyn FileSystem>) -> Self {
        Self::configured(store, Config { background: Background::Rounds, ..Config::default() })
    }

    pub(crate) fn configured(store: Arc<dyn FileSystem>, config: Config) -> Self {
        let store = Fault::over(store, 1);
        let fs = Cache::new(config).unwrap().mount(store.clone());
        Self { store, fs }
    }

    /// A new file, open for reading and writing.
    pub(crate) fn create(&self, name: &str) -> File {
        self.open(self.make(name))
    }

    /// A new file.
    pub(crate) fn make(&self, name: &str) -> FileId {
        let (name, set) = (name.as_bytes(), SetAttr::default());
        let made = self.fs.create(
            &Caller::Own,
            self.fs.root().entry(name).with(&set),
            CreateMode::MustBeNew,
        );
        pollster::block_on(made).unwrap().attr.id
    }

    pub(crate) fn open(&self, id: FileId) -> File {
        let access = Access::READ | Access::WRITE;
        pollster::block_on(self.fs.open(&Caller::Own, id, access)).unwrap()
    }

    /// Applies a rule to all such calls, unless an earlier rule matches.
    pub(crate) fn always(&self, call: Call, what: What) {
        self.store.add(Rule { call, when: When::Always, what });
    }

    /// Waits until nothing is dirty.
    pub(crate) fn until_clean(&self) {
        while self.fs.cache().dirty_bytes() > 0 {
            yield_now();
        }
    }

    /// Blocks the thread of the store's tasks until the result is dropped, as a hung call of a
    /// store would.
    pub(crate) fn hang_tasks(&self) -> Sender<()> {
        let (go_on, hung) = channel::<()>();
        self.fs.shared.dirty.lane.tasks.spawn(async move { _ = hung.recv() });
        go_on
    }
}

/// A store that panics in a call when it is told to.
pub(crate) struct Panicking {
    below: Arc<MemoryFs>,
    at: Mutex<Option<FileSystemMethod>>,
}

impl Panicking {
    pub(crate) fn over(below: Arc<MemoryFs>) -> Arc<Self> {
        Arc::new(Self { below, at: Mutex::default() })
    }

    /// Has the next call of `method` panic.
    pub(crate) fn panic_at(&self, method: FileSystemMethod) {
        *self.at.lock() = Some(method);
    }
}

#[async_trait]
impl FileSystemDecorator for Panicking {
    fn below(&self) -> &dyn FileSystem {
        &*self.below
    }

    async fn before(&self, method: FileSystemMethod) -> Result<()> {
        let panics = self.at.lock().take_if(|at| *at == method).is_some();
        assert!(!panics, "on purpose");
        Ok(())
    }
}

pub(crate) fn poll_once<F: Future + Unpin>(mut future: F) -> Poll<F::Output> {
    std::pin::Pin::new(&mut future).poll(&mut Context::from_waker(Waker::noop()))
}
