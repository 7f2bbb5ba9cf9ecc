//! fsx on the page cache: that exerciser's operations, with some uncached reads and writes, on one
//! file each in memory and in a directory, with a plain kernel file as the oracle.
//!
//! Reproducible by seed. A million operations on each store:
//! `WEIR_FSX_OPS=1000000 WEIR_FSX_SEED=1 cargo test --release -p weir-pagecache --test fsx`

use std::fs::File as PlainFile;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use weir_pagecache::{Cache, CachedFs, Config, File};
use weir_stores::local::{IoEngine, LocalFs, LocalOptions};
use weir_stores::memory::MemoryFs;
use weir_stores::random::Random;
use weir_vfs::{Access, Advice, Caller, Capabilities, CreateMode, FileSystem, IoFlags, SetAttr};

/// The file's size stays below this, as fsx's does.
const MAX_BYTES: u64 = 256 * 1024;
const MAX_IO_BYTES: u64 = 64 * 1024;
/// Operations between two comparisons of the whole file.
const CHECK_EVERY: u64 = 1000;

fn env(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}

/// Budgets in KiB: far more than the file, and far less.
const BUDGETS_KIB: [u64; 2] = [4096, 96];

#[test]
fn in_memory() {
    for budget in BUDGETS_KIB {
        Fsx::new(MemoryFs::new(), budget, env("WEIR_FSX_SEED", 1)).run(env("WEIR_FSX_OPS", 4000));
    }
}

#[test]
fn in_a_directory() {
    for (io, direct) in [(IoEngine::Auto, true), (IoEngine::Threads, false)] {
        for budget in BUDGETS_KIB {
            let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
            let options = LocalOptions { io, direct, ..LocalOptions::default() };
            let store = LocalFs::open(dir.path(), options).unwrap();
            let ops = env("WEIR_FSX_OPS", 4000) / 2;
            Fsx::new(store, budget, env("WEIR_FSX_SEED", 2)).run(ops);
        }
    }
}

struct Fsx {
    seed: u64,
    random: Random,
    fs: CachedFs,
    file: File,
    oracle: PlainFile,
    size: u64,
    can: Capabilities,
}

impl Fsx {
    fn new(store: Arc<dyn FileSystem>, budget_kib: u64, seed: u64) -> Self {
        let can = store.capabilities();
        let config = Config { budget_bytes: budget_kib << 10, ..Config::default() };
        let fs = Cache::new(config).unwrap().mount(store);
        let set = SetAttr::default();
        let create =
            fs.create(&Caller::Own, fs.root().entry(b"fsx").with(&set), CreateMode::MustBeNew);
        let id = pollster::block_on(create).unwrap().attr.id;
        let file = open(&fs, id);
        let oracle = tempfile::tempfile().unwrap();
        Self { seed, random: Random::new(seed), fs, file, oracle, size: 0, can }
    }

    fn run(mut self, ops: u64) {
        for op in 0..ops {
            self.step(op);
            let cache = self.fs.cache();
            assert!(cache.used_bytes() <= cache.budget_bytes());
            if op % CHECK_EVERY == CHECK_EVERY - 1 {
                self.check(0, MAX_BYTES, IoFlags::empty(), op);
            }
        }
        self.check(0, MAX_BYTES, IoFlags::UNCACHED, ops);
        self.file.sync(false).unwrap();
        // The store has the same bytes.
        let cache = Cache::new(Config::default()).unwrap();
        let fs = cache.mount(self.fs.store().clone());
        self.file = open(&fs, self.file.id());
        self.check(0, MAX_BYTES, IoFlags::empty(), ops);
    }

    fn step(&mut self, op: u64) {
        let flags = if self.random.one_in(3) { IoFlags::UNCACHED } else { IoFlags::empty() };
        let mut offset = self.random.below(MAX_BYTES);
        let mut len = self.random.below(MAX_IO_BYTES);
        match self.random.below(4) {
            0 => (offset, len) = (offset & !4095, len.next_multiple_of(4096)),
            1 => len = len.min(600),
            _ => {}
        }
        len = len.min(MAX_BYTES - offset);
        let end = offset + len;
        match self.random.below(32) {
            0..10 => self.check(offset, len, flags, op),
            10..20 => {
                let bytes = self.random.bytes(len as usize);
                assert_eq!(self.file.write_at(&bytes, offset, flags), Ok(len as usize));
                self.oracle.write_all_at(&bytes, offset).unwrap();
                if len > 0 {
                    self.size = self.size.max(end);
                }
            }
            20 | 21 => {
                let bytes = self.random.bytes(len.min(MAX_BYTES - self.size) as usize);
                let written = self.file.write_at(&bytes, 0, flags | IoFlags::APPEND);
                assert_eq!(written, Ok(bytes.len()));
                self.oracle.write_all_at(&bytes, self.size).unwrap();
                self.size += bytes.len() as u64;
            }
            22 | 23 => self.truncate(offset),
            24 => {
                pollster::block_on(self.file.punch_hole_async(offset, len)).unwrap();
                let end = end.min(self.size);
                if offset < end {
                    let zeros = vec![0; (end - offset) as usize];
                    self.oracle.write_all_at(&zeros, offset).unwrap();
                }
            }
            25 if self.can.contains(Capabilities::ALLOCATE) && len > 0 => {
                pollster::block_on(self.file.allocate_async(offset, len)).unwrap();
                self.size = self.size.max(end);
                self.oracle.set_len(self.size).unwrap();
            }
            26 if self.can.contains(Capabilities::CLONE) => self.clone_some(offset, len),
            27 => self.file.sync(self.random.one_in(2)).unwrap(),
            28 => {
                let advice =
                    [Advice::DontNeed, Advice::WillNeed, Advice::Sequential, Advice::Random];
                let advice = advice[self.random.below(4) as usize];
                self.file.advise(offset, len, advice).unwrap();
            }
            29 => self.file = open(&self.fs, self.file.id()),
            30 => self.segments(offset, len, flags, op),
            _ => assert_eq!(self.file.size(), self.size, "seed {} op {op}", self.seed),
        }
    }

    fn truncate(&mut self, size: u64) {
        self.file.truncate(size).unwrap();
        self.oracle.set_len(size).unwrap();
        self.size = size;
    }

    /// Shares whole pages within the file.
    fn clone_some(&mut self, offset: u64, len: u64) {
        let (from, len) = (offset & !4095, len & !4095);
        let to = self.random.below(MAX_BYTES) & !4095;
        let apart = from + len <= to || to + len <= from;
        if len == 0 || from + len > self.size || to + len > MAX_BYTES || !apart {
            return;
        }
        let file = self.file.clone();
        pollster::block_on(self.file.clone_range_async(&file, from, len, to)).unwrap();
        let mut bytes = vec![0; len as usize];
        self.oracle.read_exact_at(&mut bytes, from).unwrap();
        self.oracle.write_all_at(&bytes, to).unwrap();
        self.size = self.size.max(to + len);
    }

    /// Compares a read with the oracle's.
    fn check(&self, offset: u64, len: u64, flags: IoFlags, op: u64) {
        let mut got = vec![0xEE; len as usize];
        let mut done = 0;
        while done < got.len() {
            match self.file.read_at(&mut got[done..], offset + done as u64, flags).unwrap() {
                0 => break,
                read => done += read,
            }
        }
        self.compare(offset, &got[..done], len, op);
    }

    /// The same for lent pages.
    fn segments(&self, offset: u64, len: u64, flags: IoFlags, op: u64) {
        use weir_pagecache::Segment;
        let found = self.file.read_segments(offset, len as usize, flags).unwrap();
        let mut got = Vec::new();
        for segment in &found.segments {
            match segment {
                Segment::Data { pages, .. } => {
                    let mut slices = Vec::new();
                    pages.slices(0, &mut slices);
                    got.extend(slices.iter().flat_map(|slice| slice.iter().copied()));
                }
                Segment::Hole { start, end } => {
                    let end = (*end).min(offset + len);
                    got.resize(got.len() + (end - start) as usize, 0);
                }
            }
        }
        // A lent read may be short.
        self.compare(offset, &got, got.len() as u64, op);
    }

    fn compare(&self, offset: u64, got: &[u8], len: u64, op: u64) {
        let want_len = len.min(self.size.saturating_sub(offset)) as usize;
        let mut want = vec![0; want_len];
        self.oracle.read_exact_at(&mut want, offset.min(self.size)).unwrap();
        let differs = (0..got.len().max(want_len)).find(|&i| got.get(i) != want.get(i));
        if let Some(at) = differs {
            panic!(
                "seed {} op {op}: {len} bytes at {offset} of {}: {} bytes, wanted {want_len}; \
                 they differ at {at}: {:?}, wanted {:?}",
                self.seed,
                self.size,
                got.len(),
                got.get(at),
                want.get(at),
            );
        }
    }
}

fn open(fs: &CachedFs, id: weir_vfs::FileId) -> File {
    pollster::block_on(fs.open(&Caller::Own, id, Access::READ | Access::WRITE)).unwrap()
}
