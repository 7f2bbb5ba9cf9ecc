//! Shared by the tests: a memory store that delays, reorders and fails on demand, and a small
//! random number generator.
#![allow(dead_code, reason = "each test uses a part of it")]
#![allow(missing_docs, unreachable_pub, reason = "tests")]

use async_trait::async_trait;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};
use weir_pagecache::{Cache, CachedFs, Config, File};
use weir_stores::memory::MemoryFs;
use weir_vfs::{
    Access, Attr, Caller, Capabilities, CreateMode, EntryName, Error, FileId, FileSystem,
    FileSystemDecorator, Layout, OpenFile, OpenFileDecorator, ReadOp, Result, SetAttr, WriteOp,
};

/// splitmix64.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n.max(1)
    }

    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

/// How a [`Shaky`] store misbehaves.
#[derive(Default)]
pub struct Switches {
    /// Percent of reads that fail.
    pub fail_reads: AtomicU32,
    /// Percent of writes that fail.
    pub fail_writes: AtomicU32,
    /// The error of such writes; `NoSpace` by default.
    pub write_error: Mutex<Option<Error>>,
    /// The number of next syncs that fail.
    pub fail_syncs: AtomicU32,
    /// The number of next reads that return end of file at their start.
    pub end_early: AtomicU32,
    /// Writes to files with numbers below this one wait until it is lowered.
    pub hold_writes_below: AtomicU64,
    /// Operations complete on other threads, late and out of order.
    pub late: AtomicBool,
    /// The additional time of each of them, in milliseconds.
    pub slow: AtomicU64,
    /// Reads and writes wait until this is off.
    pub hold_reads: AtomicBool,
    pub hold_writes: AtomicBool,
    /// Changes of size happen, but complete only when this is off.
    pub hold_sizes: AtomicBool,
    pub sizes: AtomicU64,
    /// Reads happen, but complete only when this is off.
    pub hold_answers: AtomicBool,
    pub answers_held: AtomicU64,
    /// Calls of these kinds block the calling thread, as on a dead hard mount; and how many do.
    pub block_writes: AtomicBool,
    pub block_looks: AtomicBool,
    pub block_closes: AtomicBool,
    pub blocked: AtomicU64,
    /// New names are created, but the calls complete only when this is off.
    pub hold_links: AtomicBool,
    pub links: AtomicU64,
    /// Other machines change the store, too.
    pub is_shared: AtomicBool,
    pub reads: AtomicU64,
    pub writes: AtomicU64,
    pub bytes_read: AtomicU64,
    /// Pages of each read, in request order.
    pub read_log: Mutex<Vec<Range<u64>>>,
    seed: AtomicU64,
}

impl Switches {
    fn block(&self, which: &AtomicBool) {
        if which.load(Ordering::SeqCst) {
            self.blocked.fetch_add(1, Ordering::SeqCst);
            while which.load(Ordering::SeqCst) {
                thread::sleep(Duration::from_micros(200));
            }
            self.blocked.fetch_sub(1, Ordering::SeqCst);
        }
    }

    pub fn block_all(&self, on: bool) {
        for which in [&self.block_writes, &self.block_looks, &self.block_closes] {
            which.store(on, Ordering::SeqCst);
        }
    }
}

/// Decrements a counter, unless it is 0.
fn take(left: &AtomicU32) -> bool {
    left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1)).is_ok()
}

type Job = Box<dyn FnOnce() + Send>;

/// A memory store that is slow and unreliable on demand.
pub struct Shaky {
    inner: Arc<MemoryFs>,
    pub switches: Arc<Switches>,
    jobs: Mutex<Sender<Job>>,
    capabilities: Capabilities,
    opened: Arc<AtomicU64>,
}

impl Shaky {
    pub fn open_files(&self) -> u64 {
        self.opened.load(Ordering::SeqCst)
    }

    pub fn new() -> Arc<Self> {
        Self::with(Capabilities::all())
    }

    pub fn with(capabilities: Capabilities) -> Arc<Self> {
        let (jobs, todo) = channel::<Job>();
        let todo = Arc::new(Mutex::new(todo));
        for _ in 0..3 {
            let todo: Arc<Mutex<Receiver<Job>>> = todo.clone();
            thread::spawn(move || {
                loop {
                    let job = todo.lock().unwrap().recv();
                    match job {
                        Ok(job) => job(),
                        Err(_) => return,
                    }
                }
            });
        }
        let inner = MemoryFs::new();
        let capabilities = capabilities & inner.capabilities();
        Arc::new(Self {
            inner,
            switches: Arc::default(),
            jobs: Mutex::new(jobs),
            capabilities,
            opened: Arc::default(),
        })
    }

    pub fn set_late(&self, late: bool) {
        self.switches.late.store(late, Ordering::SeqCst);
    }

    /// Returns the reads since its last call.
    pub fn take_reads(&self) -> Vec<Range<u64>> {
        std::mem::take(&mut self.switches.read_log.lock().unwrap())
    }
}

/// Counts itself among the store's open files.
struct Opened(Arc<AtomicU64>, Arc<Switches>);

impl Drop for Opened {
    fn drop(&mut self) {
        self.1.block(&self.1.block_closes);
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

struct ShakyFile {
    ino: u64,
    _opened: Opened,
    inner: Arc<dyn OpenFile>,
    switches: Arc<Switches>,
    jobs: Sender<Job>,
}

impl ShakyFile {
    fn run(&self, hold: fn(&Switches) -> &AtomicBool, job: impl FnOnce() + Send + 'static) {
        let switches = self.switches.clone();
        if hold(&switches).load(Ordering::SeqCst) {
            thread::spawn(move || {
                while hold(&switches).load(Ordering::SeqCst) {
                    thread::sleep(Duration::from_micros(200));
                }
                job();
            });
        } else if switches.late.load(Ordering::SeqCst) {
            let seed = switches.seed.fetch_add(1, Ordering::SeqCst);
            let slow = switches.slow.load(Ordering::SeqCst);
            let job: Job = Box::new(move || {
                let pause = Random(seed).below(60) + 1000 * slow;
                if pause > 20 {
                    thread::sleep(Duration::from_micros(pause));
                }
                job();
            });
            self.jobs.send(job).unwrap();
        } else {
            job();
        }
    }

    fn read_and_hold(&self, mut op: ReadOp) {
        let (switches, buffer) = (self.switches.clone(), Box::new(vec![0; op.len()]));
        let copy = ReadOp::new(op.offset(), buffer, move |mut read, result| {
            let (mut from, mut to) = (Vec::new(), Vec::new());
            read.slices(0, op.len(), &mut from);
            let len = op.len();
            op.buffer().slices(0, len, &mut to);
            let mut bytes = from.iter().flat_map(|slice| slice.iter());
            to.iter_mut()
                .flat_map(|slice| slice.iter_mut())
                .for_each(|b| *b = *bytes.next().unwrap());
            switches.answers_held.fetch_add(1, Ordering::SeqCst);
            thread::spawn(move || {
                while switches.hold_answers.load(Ordering::SeqCst) {
                    thread::sleep(Duration::from_micros(200));
                }
                op.complete(result);
            });
        });
        self.inner.submit_read(copy);
    }

    fn fails(&self, percent: &AtomicU32) -> bool {
        let percent = percent.load(Ordering::SeqCst);
        percent > 0
            && Random(self.switches.seed.fetch_add(1, Ordering::SeqCst)).chance(percent.into())
    }
}

#[async_trait]
impl OpenFileDecorator for ShakyFile {
    fn below(&self) -> &dyn OpenFile {
        &*self.inner
    }

    async fn getattr(&self) -> Result<Attr> {
        self.switches.block(&self.switches.block_looks);
        self.inner.getattr().await
    }

    fn submit_read(&self, op: ReadOp) {
        self.switches.reads.fetch_add(1, Ordering::SeqCst);
        self.switches.bytes_read.fetch_add(op.len() as u64, Ordering::SeqCst);
        let (start, len) = (op.offset() / 4096, op.len() as u64 / 4096);
        self.switches.read_log.lock().unwrap().push(start..start + len);
        if op.offset() + op.len() as u64 > i64::MAX as u64 {
            // As in the kernel.
            return op.complete(Err(Error::Invalid));
        }
        if take(&self.switches.end_early) {
            return self.run(
                |s| &s.hold_reads,
                move || op.complete(Ok(Layout { extents: Vec::new(), eof: true })),
            );
        }
        if self.fails(&self.switches.fail_reads) {
            return self.run(|s| &s.hold_reads, move || op.complete(Err(Error::Io)));
        }
        if self.switches.hold_answers.load(Ordering::SeqCst) {
            return self.read_and_hold(op);
        }
        let inner = self.inner.clone();
        self.run(|s| &s.hold_reads, move || inner.submit_read(op));
    }

    fn submit_write(&self, op: WriteOp) {
        self.switches.block(&self.switches.block_writes);
        // Decided when it is counted, for tests that change the switch at that moment.
        let fails = self.fails(&self.switches.fail_writes);
        self.switches.writes.fetch_add(1, Ordering::SeqCst);
        if fails {
            let error = self.switches.write_error.lock().unwrap().unwrap_or(Error::NoSpace);
            return self.run(|s| &s.hold_writes, move || op.complete(Err(error)));
        }
        if self.switches.hold_writes_below.load(Ordering::SeqCst) > self.ino {
            let (inner, switches, ino) = (self.inner.clone(), self.switches.clone(), self.ino);
            thread::spawn(move || {
                while switches.hold_writes_below.load(Ordering::SeqCst) > ino {
                    thread::sleep(Duration::from_micros(200));
                }
                inner.submit_write(op);
            });
            return;
        }
        let inner = self.inner.clone();
        self.run(|s| &s.hold_writes, move || inner.submit_write(op));
    }

    async fn sync(&self, data_only: bool) -> Result<()> {
        if take(&self.switches.fail_syncs) {
            return Err(Error::Io);
        }
        self.inner.sync(data_only).await
    }

    async fn set_size(&self, size: u64) -> Result<()> {
        let result = self.inner.set_size(size).await;
        self.switches.sizes.fetch_add(1, Ordering::SeqCst);
        while self.switches.hold_sizes.load(Ordering::SeqCst) {
            thread::sleep(Duration::from_micros(200));
        }
        result
    }

    async fn clone_range(
        &self,
        from: &dyn OpenFile,
        offset: u64,
        len: u64,
        to_offset: u64,
    ) -> Result<()> {
        match from.as_any().downcast_ref::<Self>() {
            Some(from) => self.inner.clone_range(&*from.inner, offset, len, to_offset).await,
            None => Err(Error::CrossDevice),
        }
    }
}

#[async_trait]
impl FileSystemDecorator for Shaky {
    fn below(&self) -> &dyn FileSystem {
        &*self.inner
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn names_change_here(&self) -> bool {
        !self.switches.is_shared.load(Ordering::SeqCst)
    }

    async fn link(&self, caller: &Caller, id: FileId, entry: EntryName<'_>) -> Result<Attr> {
        let made = self.inner.link(caller, id, entry).await;
        self.switches.links.fetch_add(1, Ordering::SeqCst);
        while self.switches.hold_links.load(Ordering::SeqCst) {
            thread::sleep(Duration::from_micros(200));
        }
        made
    }

    async fn open(&self, caller: &Caller, id: FileId, access: Access) -> Result<Arc<dyn OpenFile>> {
        let inner = self.inner.open(caller, id, access).await?;
        let jobs = self.jobs.lock().unwrap().clone();
        self.opened.fetch_add(1, Ordering::SeqCst);
        let _opened = Opened(self.opened.clone(), self.switches.clone());
        let ino = id.ino;
        Ok(Arc::new(ShakyFile { ino, _opened, inner, switches: self.switches.clone(), jobs }))
    }
}

/// A cache of `pages` pages over a shaky store.
pub struct Rig {
    pub store: Arc<Shaky>,
    pub cache: Cache,
    pub fs: CachedFs,
}

impl Rig {
    pub fn new(pages: u64) -> Self {
        Self::with(pages, Capabilities::all())
    }

    pub fn with(pages: u64, capabilities: Capabilities) -> Self {
        let config =
            Config { budget_bytes: pages * 4096, readahead_bytes: 256 << 10, ..Config::default() };
        Self::over(Shaky::with(capabilities), config)
    }

    pub fn configured(config: Config) -> Self {
        Self::over(Shaky::new(), config)
    }

    fn over(store: Arc<Shaky>, config: Config) -> Self {
        let cache = Cache::new(config).unwrap();
        let fs = cache.mount(store.clone());
        Self { store, cache, fs }
    }

    pub fn create(&self, name: &str) -> File {
        let made = block_on(self.fs.create(
            &Caller::Own,
            self.fs.root().entry(name.as_bytes()).with(&SetAttr::default()),
            CreateMode::MustBeNew,
        ));
        self.open(made.unwrap().attr.id)
    }

    pub fn open(&self, id: FileId) -> File {
        block_on(self.fs.open(&Caller::Own, id, Access::READ | Access::WRITE)).unwrap()
    }

    /// A file whose bytes are in the store and not in the cache. They do not pass through the cache,
    /// whose flusher and tasks would look at the file a while later; a prune meanwhile leaves pages to
    /// reclaim.
    pub fn cold(&self, name: &str, bytes: &[u8]) -> File {
        let store = &self.store.inner;
        let id = block_on(async {
            let set = SetAttr::default();
            let new = store.root().entry(name.as_bytes()).with(&set);
            store.create(&Caller::Own, new, CreateMode::MustBeNew).await.unwrap().attr.id
        });
        let stored = block_on(store.open(&Caller::Own, id, Access::WRITE)).unwrap();
        let (done, written) = channel();
        stored.submit_write(WriteOp::new(0, Box::new(bytes.to_vec()), move |_, result| {
            done.send(result).unwrap();
        }));
        written.recv().unwrap().unwrap();
        let file = self.open(id);
        assert!(file.resident().is_empty() && file.size() == bytes.len() as u64);
        file
    }

    /// Turns off read-ahead for an open file, by advice.
    pub fn random(file: &File) {
        file.advise(0, 0, weir_vfs::Advice::Random).unwrap();
    }
}

pub fn write_all(file: &File, bytes: &[u8], offset: u64) {
    let n = file.write_at(bytes, offset, weir_vfs::IoFlags::empty()).unwrap();
    assert_eq!(n, bytes.len());
}

/// Reads up to the end of the range or of the file.
pub fn read_full(file: &File, offset: u64, len: usize, flags: weir_vfs::IoFlags) -> Vec<u8> {
    let mut buf = vec![0xEE; len];
    let mut done = 0;
    while done < len {
        let n = file.read_at(&mut buf[done..], offset + done as u64, flags).unwrap();
        if n == 0 {
            break;
        }
        done += n;
    }
    buf.truncate(done);
    buf
}

/// Most time that a test waits for another thread, which a busy machine may not run for a while.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Waits for a condition that another thread makes true.
pub fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "{what} does not come about");
        thread::sleep(Duration::from_millis(1));
    }
}

pub fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut random = Random(seed);
    (0..len).map(|_| random.next() as u8 | 1).collect()
}

pub use pollster::block_on;
