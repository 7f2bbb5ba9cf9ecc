//! An exerciser like fsx: random operations on one file, some of them uncached, against a plain
//! vector; with a small budget and a store that is slow and fails at times. Reproducible by seed:
//! `WEIR_SEED=7 WEIR_OPS=1000000 cargo test -p weir-pagecache --test exerciser`.

mod common;

use common::{Random, Rig, block_on, read_full};
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;
use weir_pagecache::{Config, File, Segment};
use weir_vfs::{Advice, Error, IoFlags, SegmentKind};

const MAX: u64 = 600 << 10;

fn env(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default)
}

#[test]
fn behaves_like_a_vector() {
    let seed = env("WEIR_SEED", 1);
    let ops = env("WEIR_OPS", 3000);
    for (round, pages) in [(0, 4096), (1, 64), (2, 16)] {
        run(seed + round, ops, pages, false, false);
    }
}

#[test]
fn behaves_like_a_vector_when_the_store_is_late() {
    let seed = env("WEIR_SEED", 100);
    let ops = env("WEIR_OPS", 1500);
    for (round, pages) in [(0, 4096), (1, 64), (2, 16)] {
        run(seed + round, ops, pages, true, false);
    }
}

#[test]
fn behaves_like_a_vector_except_for_operations_that_the_store_fails() {
    let seed = env("WEIR_SEED", 200);
    let ops = env("WEIR_OPS", 500);
    let mut failed = Failed::default();
    for (round, pages, late) in [(0, 4096, false), (1, 64, true), (2, 16, true), (3, 16, false)] {
        failed.add(&run(seed + round, ops, pages, late, true));
    }
    // Which call meets an injected error depends on the flusher's time, so the rounds are added up.
    let Failed { writes, reads, syncs, fills, writebacks, .. } = failed;
    let all = [writes, reads, syncs, fills, writebacks];
    assert!(all.iter().all(|&count| count > 0), "seed {seed}: {failed:?}");
}

/// Has calls of the store fail while one operation runs; drop ends that.
struct Failing<'a>(&'a Rig);

impl<'a> Failing<'a> {
    fn begin(rig: &'a Rig) -> Self {
        rig.store.switches.fail_reads.store(40, SeqCst);
        rig.store.switches.fail_writes.store(20, SeqCst);
        rig.store.switches.fail_syncs.store(1, SeqCst);
        Self(rig)
    }
}

impl Drop for Failing<'_> {
    fn drop(&mut self) {
        self.0.store.switches.fail_reads.store(0, SeqCst);
        self.0.store.switches.fail_writes.store(0, SeqCst);
        self.0.store.switches.fail_syncs.store(0, SeqCst);
    }
}

/// Operations that failed, by kind.
#[derive(Debug, Default)]
struct Failed {
    writes: u64,
    reads: u64,
    syncs: u64,
    others: u64,
    /// The cache's own reads and writes of the store.
    fills: u64,
    writebacks: u64,
}

impl Failed {
    fn add(&mut self, other: &Self) {
        self.writes += other.writes;
        self.reads += other.reads;
        self.syncs += other.syncs;
        self.others += other.others;
        self.fills += other.fills;
        self.writebacks += other.writebacks;
    }
}

fn run(seed: u64, ops: u64, pages: u64, late: bool, fails: bool) -> Failed {
    let rig = Rig::configured(Config {
        budget_bytes: pages * 4096,
        readahead_bytes: 256 << 10,
        // Failed writes are retried; nothing is dropped.
        write_patience: Duration::from_secs(600),
        ..Config::default()
    });
    *rig.store.switches.write_error.lock().unwrap() = Some(Error::Io);
    rig.store.set_late(late);
    let mut file = rig.create("f");
    let mut oracle: Vec<u8> = Vec::new();
    let mut random = Random(seed);
    let mut failed = Failed::default();
    for op in 0..ops {
        let failing = fails && random.chance(15);
        let failed = failing.then_some(&mut failed);
        step(&rig, &mut file, &mut oracle, &mut random, &format!("seed {seed} op {op}"), failed);
        assert!(rig.cache.used_bytes() <= rig.cache.budget_bytes());
    }
    file.sync(false).unwrap();
    let stats = rig.cache.stats();
    (failed.fills, failed.writebacks) = (stats.fill_errors, stats.writeback_errors);
    assert_eq!(stats.writeback_lost_pages, 0, "seed {seed}");
    let id = file.id();
    drop(file);
    // The store has the same bytes: read it through another cache.
    let other = weir_pagecache::Cache::new(weir_pagecache::Config::default()).unwrap();
    let fs = other.mount(rig.store.clone());
    let file = block_on(fs.open(&weir_vfs::Caller::Own, id, weir_vfs::Access::READ)).unwrap();
    assert_eq!(file.size(), oracle.len() as u64);
    assert!(
        read_full(&file, 0, oracle.len() + 1, IoFlags::empty()) == oracle,
        "seed {seed} at rest"
    );
    // With 16 pages in all, even an uncached operation has to take a page of a cached one.
    assert!(pages < 4096 || rig.cache.stats().lost_pages == 0, "seed {seed}");
    failed
}

/// One operation; the store fails meanwhile if there is a place to count that.
fn step(
    rig: &Rig,
    file: &mut File,
    oracle: &mut Vec<u8>,
    random: &mut Random,
    what: &str,
    mut failed: Option<&mut Failed>,
) {
    let mut failing = failed.is_some().then(|| Failing::begin(rig));
    let flags = if random.chance(30) { IoFlags::UNCACHED } else { IoFlags::empty() };
    let size = oracle.len() as u64;
    let (offset, len) = random_range(random, size);
    match random.below(100) {
        0..35 => {
            let byte = random.next() as u8;
            let bytes: Vec<u8> = (0..len).map(|i| byte.wrapping_add((i / 7) as u8)).collect();
            let done = file.write_at(&bytes, offset, flags);
            if let Some(failed) = failed
                && done != Ok(len)
            {
                failing.take();
                failed.writes += 1;
                let done = done.unwrap_or(0);
                return partly(file, oracle, offset, &bytes, done, what);
            }
            assert_eq!(done, Ok(len), "{what}");
            if len > 0 {
                oracle.resize(oracle.len().max(offset as usize + len), 0);
                oracle[offset as usize..offset as usize + len].copy_from_slice(&bytes);
            }
        }
        35..70 => {
            if let Some(failed) = &mut failed {
                failed.reads += u64::from(!try_read(file, oracle, (offset, len), flags, what));
                failing.take();
            }
            check_read(file, oracle, (offset, len), flags, what);
        }
        70..80 => {
            if let Some(failed) = &mut failed {
                failed.reads += u64::from(file.read_segments(offset, len, flags).is_err());
                failing.take();
            }
            check_segments(file, oracle, offset, len, flags, what);
        }
        80..85 => {
            let to = random.below(MAX);
            let done = file.truncate(to);
            if let Some(failed) = failed
                && done.is_err()
            {
                failed.others += 1;
                assert!([size, to].contains(&file.size()), "{what}: {size} to {to}");
                return oracle.resize(file.size() as usize, 0);
            }
            done.unwrap();
            oracle.resize(to as usize, 0);
        }
        85..90 => {
            let done = block_on(file.punch_hole_async(offset, len as u64));
            let end = (offset as usize + len).min(oracle.len());
            if let Some(failed) = failed
                && done.is_err()
            {
                failing.take();
                failed.others += 1;
                let zeros = vec![0; end.saturating_sub(offset as usize)];
                return partly(file, oracle, offset, &zeros, 0, what);
            }
            done.unwrap();
            if (offset as usize) < end {
                oracle[offset as usize..end].fill(0);
            }
        }
        90..92 => match (file.sync(random.chance(50)), failed) {
            (Err(_), Some(failed)) => failed.syncs += 1,
            (done, _) => done.unwrap(),
        },
        92..94 => file.advise(offset, len as u64, Advice::DontNeed).unwrap(),
        94 => file.advise(offset, len as u64, Advice::WillNeed).unwrap(),
        95 => {
            *file = rig.open(file.id());
            file.advise(0, 0, [Advice::Random, Advice::Sequential][random.below(2) as usize])
                .unwrap();
        }
        96 => {
            assert_eq!(block_on(file.getattr()).unwrap().size, size, "{what}");
        }
        _ => {
            failing.take();
            check_extents(file, oracle, offset, what);
        }
    }
    assert_eq!(file.size(), oracle.len() as u64, "{what}");
}

/// An offset and a length: often at the end of the file, of whole pages, or small.
fn random_range(random: &mut Random, size: u64) -> (u64, usize) {
    let offset = match random.below(4) {
        0 => size,
        1 => random.below(MAX) & !4095,
        _ => random.below(MAX),
    };
    let len = match random.below(4) {
        0 => random.below(600),
        1 => 4096 * random.below(20),
        _ => random.below(80 << 10),
    };
    (offset, len.min(MAX - offset.min(MAX)) as usize)
}

/// Reads while the store fails. Returns whether the read succeeded; what it returned must be right.
fn try_read(
    file: &File,
    oracle: &[u8],
    (offset, len): (u64, usize),
    flags: IoFlags,
    what: &str,
) -> bool {
    let mut buf = vec![0xEE; len];
    let Ok(n) = file.read_at(&mut buf, offset, flags) else { return false };
    let end = offset as usize + n;
    assert!(n == 0 || buf[..n] == oracle[offset as usize..end], "{what}");
    true
}

/// Reads, and compares all of it.
fn check_read(file: &File, oracle: &[u8], (offset, len): (u64, usize), flags: IoFlags, what: &str) {
    let got = read_full(file, offset, len, flags);
    let want = &oracle[(offset as usize).min(oracle.len())..];
    let want = &want[..len.min(want.len())];
    if let Some(at) = (0..got.len().max(want.len())).find(|&i| got.get(i) != want.get(i)) {
        panic!(
            "{what}: read {len} at {offset} of {}: {} bytes, wanted {}, differ at {at}",
            oracle.len(),
            got.len(),
            want.len()
        );
    }
}

/// A change failed of which `done` bytes are there for certain. Each of the others is as it was or as it
/// should have become, and the vector takes over which.
fn partly(file: &File, oracle: &mut Vec<u8>, offset: u64, new: &[u8], done: usize, what: &str) {
    let (old, at) = (oracle.len(), offset as usize);
    let size = file.size() as usize;
    assert!(size >= old && size <= old.max(at + new.len()), "{what}: {old} to {size} bytes");
    oracle.resize(size, 0);
    let found = read_full(file, offset, new.len(), IoFlags::empty());
    for (i, &byte) in found.iter().enumerate() {
        let is_old = i >= done && byte == oracle[at + i];
        assert!(is_old || byte == new[i], "{what}: {byte} at {}", at + i);
        oracle[at + i] = byte;
    }
}

fn check_segments(file: &File, oracle: &[u8], offset: u64, len: usize, flags: IoFlags, what: &str) {
    let size = oracle.len() as u64;
    let got = file.read_segments(offset, len, flags).unwrap();
    let mut at = offset;
    for (n, segment) in got.segments.iter().enumerate() {
        match segment {
            Segment::Data { start, pages } => {
                assert_eq!(*start, at, "{what}");
                let mut slices = Vec::new();
                pages.slices(0, &mut slices);
                let bytes: Vec<u8> = slices.iter().flat_map(|s| s.iter().copied()).collect();
                assert_eq!(bytes.len(), pages.len());
                let end = at as usize + bytes.len();
                assert!(end <= (offset as usize + len).min(oracle.len()), "{what}");
                assert!(bytes == oracle[at as usize..end], "{what}: segment {at}..{end}");
                at = end as u64;
            }
            &Segment::Hole { start, end } => {
                assert_eq!(start, at, "{what}");
                assert!(end > start && end <= size, "{what}: hole {start}..{end} of {size}");
                assert!(end <= offset + len as u64 || n + 1 == got.segments.len(), "{what}");
                assert!(oracle[start as usize..end as usize].iter().all(|&b| b == 0), "{what}");
                at = end;
            }
        }
    }
    assert_eq!(
        got.eof,
        at.max(offset) >= size || offset + len as u64 >= size && got.segments.is_empty(),
        "{what}: eof"
    );
    if offset < size && len > 0 {
        assert!(at > offset, "{what}: nothing read");
    }
}

fn check_extents(file: &File, oracle: &[u8], offset: u64, what: &str) {
    let size = oracle.len() as u64;
    match block_on(file.extent_at_async(offset)) {
        Ok(extent) => {
            assert!(extent.start == offset && extent.end > offset && extent.end <= size, "{what}");
            if extent.kind == SegmentKind::Hole {
                let hole = &oracle[offset as usize..extent.end as usize];
                assert!(hole.iter().all(|&b| b == 0), "{what}: false hole");
            }
        }
        Err(error) => {
            assert_eq!(error, weir_vfs::Error::NoSuchRange, "{what}");
            assert!(offset >= size, "{what}");
        }
    }
}
