//! Concurrent threads, with every byte checked. The long run is `WEIR_STRESS_SECONDS=600 cargo test
//! --release -p weir-pagecache --test stress eight -- --nocapture`; `WEIR_SEED` varies it.
//!
//! Each write call fills its range with records of 16 bytes that name the call, so a reader can
//! tell whether it sees data of one call, and whether it goes back in time.

mod common;

use common::{PATIENCE, Random, Rig, block_on, write_all};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use weir_pagecache::Segment;
use weir_vfs::IoFlags;

fn seconds() -> Duration {
    let text = std::env::var("WEIR_STRESS_SECONDS").unwrap_or_default();
    Duration::from_secs_f64(text.parse().unwrap_or(1.5))
}

/// Stops the threads of a test when it ends, even by a failure: they would be waited for.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Lets the threads of a test run for [`seconds`], and on until each count has reached `least`.
fn run_until(stop: &AtomicBool, counts: &[(&str, &AtomicU64, u64)], mut look: impl FnMut()) {
    let (_stop, start) = (Stop(stop), Instant::now());
    let met = |&(_, count, least): &(&str, &AtomicU64, u64)| count.load(Ordering::Relaxed) >= least;
    while start.elapsed() < seconds() || !counts.iter().all(met) {
        assert!(start.elapsed() < seconds() + PATIENCE, "too few of {counts:?}");
        look();
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A block of the file is always written in one call, with one stamp throughout.
const BLOCK: usize = 5000;
const BLOCKS: u64 = 150;

fn stamp(block: u64, version: u64) -> Vec<u8> {
    let mut bytes: Vec<u8> =
        [block, version].iter().flat_map(|n| n.to_le_bytes()).cycle().take(BLOCK).collect();
    bytes.truncate(BLOCK);
    bytes
}

fn version(block: u64, bytes: &[u8]) -> u64 {
    if bytes.iter().all(|&b| b == 0) {
        return 0;
    }
    let version = u64::from_le_bytes(bytes[8..16].try_into().unwrap());
    assert!(bytes == stamp(block, version), "block {block}: half of version {version}");
    version
}

/// I5, I7: reads of a block see one version of it, and never an older one than the reader has
/// already seen; memory stays within the budget.
#[test]
fn i5_reads_are_atomic_and_monotonic() {
    for late in [false, true] {
        let rig = Rig::new(100);
        rig.store.set_late(late);
        let file = rig.create("f");
        block_on(file.truncate_async(BLOCKS * BLOCK as u64)).unwrap();
        let stop = AtomicBool::new(false);
        let clock = AtomicU64::new(1);
        // Reads that met written data, and those that met a newer version than the reader's last.
        let (reads, newer) = (AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for writer in 0..2 {
                let (file, stop, clock) = (file.clone(), &stop, &clock);
                scope.spawn(move || {
                    let mut random = Random(writer);
                    while !stop.load(Ordering::Relaxed) {
                        // Each writer has its own blocks, so that the versions of a block only
                        // increase.
                        let block = random.below(BLOCKS / 2) * 2 + writer;
                        let flags =
                            if random.chance(30) { IoFlags::UNCACHED } else { IoFlags::empty() };
                        let bytes = stamp(block, clock.fetch_add(1, Ordering::SeqCst));
                        let done = file.write_at(&bytes, block * BLOCK as u64, flags);
                        assert_eq!(done, Ok(BLOCK));
                    }
                });
            }
            for reader in 0..4 {
                let (file, stop, reads, newer) = (file.clone(), &stop, &reads, &newer);
                scope.spawn(move || {
                    let mut random = Random(100 + reader);
                    let mut seen = vec![0; BLOCKS as usize];
                    let mut buf = vec![0; BLOCK];
                    while !stop.load(Ordering::Relaxed) {
                        let block = random.below(BLOCKS);
                        let flags =
                            if random.chance(30) { IoFlags::UNCACHED } else { IoFlags::empty() };
                        let done = file.read_at(&mut buf, block * BLOCK as u64, flags).unwrap();
                        if done < BLOCK {
                            continue;
                        }
                        let version = version(block, &buf);
                        let last = &mut seen[block as usize];
                        assert!(version >= *last, "block {block}: {version} after {last}");
                        newer.fetch_add(u64::from(*last > 0 && version > *last), Ordering::Relaxed);
                        *last = version;
                        reads.fetch_add(u64::from(version > 0), Ordering::Relaxed);
                    }
                });
            }
            let counts = [("reads", &reads, 500), ("newer versions", &newer, 100)];
            run_until(&stop, &counts, || {
                assert!(rig.cache.used_bytes() <= rig.cache.budget_bytes());
            });
        });
        let stats = rig.cache.stats();
        // The file is larger than the budget: all ways were taken.
        assert!(stats.fast_reads > 0 && stats.fill_pages > 0, "{stats:?}");
        file.sync(false).unwrap();
    }
}

/// I5: while the file grows by appends and shrinks by truncation, no reader sees bytes past the
/// reported end, or bytes from before a truncation.
#[test]
fn i5_reads_return_no_bytes_past_the_end_or_from_before_a_truncate() {
    let rig = Rig::new(100);
    rig.store.set_late(true);
    let file = rig.create("f");
    let stop = AtomicBool::new(false);
    // Reads of data, those of another generation than the reader's last, and those at the end.
    let [data, changes, ends] = [const { AtomicU64::new(0) }; 3];
    // Every byte of generation g is g; between generations the file is empty.
    std::thread::scope(|scope| {
        {
            let (file, stop) = (file.clone(), &stop);
            scope.spawn(move || {
                let mut generation = 0u8;
                let mut random = Random(5);
                while !stop.load(Ordering::Relaxed) {
                    generation = generation % 250 + 1;
                    file.truncate(0).unwrap();
                    for _ in 0..20 {
                        let bytes = vec![generation; random.below(9000) as usize + 1];
                        let done = file.write_at(&bytes, 0, IoFlags::APPEND).unwrap();
                        assert_eq!(done, bytes.len());
                    }
                }
            });
        }
        for reader in 0..3 {
            let (file, stop) = (file.clone(), &stop);
            let (data, changes, ends) = (&data, &changes, &ends);
            scope.spawn(move || {
                let mut random = Random(50 + reader);
                let mut buf = vec![0; 30_000];
                let mut last = 0;
                while !stop.load(Ordering::Relaxed) {
                    let at = random.below(50_000);
                    let len = random.below(buf.len() as u64) as usize + 1;
                    let done = file.read_at(&mut buf[..len], at, IoFlags::empty()).unwrap();
                    if done > 0 {
                        let first = buf[0];
                        assert!(first != 0, "zeros at {at}: never written");
                        let odd = buf[..done].iter().position(|&b| b != first);
                        assert_eq!(odd, None, "two generations in one read of {len} at {at}");
                        data.fetch_add(1, Ordering::Relaxed);
                        changes.fetch_add(u64::from(first != last), Ordering::Relaxed);
                        last = first;
                    }
                    ends.fetch_add(u64::from(done < len), Ordering::Relaxed);
                }
            });
        }
        let counts = [("reads", &data, 200), ("generations", &changes, 50), ("ends", &ends, 50)];
        run_until(&stop, &counts, || ());
    });
}

/// I7: many threads that need more than the budget, with pages lent for a while.
#[test]
fn i7_memory_stays_within_the_budget_and_operations_complete() {
    let rig = Rig::new(64);
    rig.store.set_late(true);
    let file = rig.create("f");
    let len = 200 * 4096u64;
    let content = |at: u64, n: usize| (at..at + n as u64).map(shared_byte).collect::<Vec<u8>>();
    write_all(&file, &content(0, len as usize), 0);
    let stop = AtomicBool::new(false);
    let [writes, lends, reads] = [const { AtomicU64::new(0) }; 3];
    std::thread::scope(|scope| {
        for thread in 0..8u64 {
            let (rig, stop, id, content) = (&rig, &stop, file.id(), &content);
            let (writes, lends, reads) = (&writes, &lends, &reads);
            scope.spawn(move || {
                let file = rig.open(id);
                let mut random = Random(thread);
                while !stop.load(Ordering::Relaxed) {
                    let at = random.below(len);
                    let n = random.below(20 * 4096) as usize + 1;
                    let flags =
                        if random.chance(50) { IoFlags::UNCACHED } else { IoFlags::empty() };
                    match random.below(3) {
                        0 => {
                            let n = n.min((len - at) as usize);
                            assert_eq!(file.write_at(&content(at, n), at, flags), Ok(n));
                            writes.fetch_add(1, Ordering::Relaxed);
                        }
                        1 => {
                            let lent = file.read_segments(at, n.min(3 * 4096), flags).unwrap();
                            std::thread::sleep(Duration::from_micros(random.below(200)));
                            let mut next = at;
                            for segment in &lent.segments {
                                let Segment::Data { start, pages } = segment else {
                                    panic!("a hole in data")
                                };
                                assert_eq!(*start, next);
                                let bytes = bytes_of(pages);
                                assert!(bytes == content(next, bytes.len()), "lent at {next}");
                                next += bytes.len() as u64;
                            }
                            assert!(next > at, "nothing lent of {n} bytes at {at}");
                            lends.fetch_add(1, Ordering::Relaxed);
                        }
                        _ => {
                            let mut buf = vec![0; n];
                            let done = file.read_at(&mut buf, at, flags).unwrap();
                            assert!(done > 0 && buf[..done] == content(at, done), "read at {at}");
                            reads.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                    assert!(rig.cache.used_bytes() <= rig.cache.budget_bytes());
                }
            });
        }
        run_until(
            &stop,
            &[("writes", &writes, 50), ("lends", &lends, 50), ("reads", &reads, 50)],
            || (),
        );
    });
    file.sync(true).unwrap();
    assert!(reclaimed(&rig) > 0, "more than the budget was needed");
}

fn reclaimed(rig: &Rig) -> u64 {
    let stats = rig.cache.stats();
    stats.reclaimed_small + stats.reclaimed_main + stats.reclaimed_uncached
}

fn bytes_of(pages: &weir_pagecache::Pages) -> Vec<u8> {
    let mut slices = Vec::new();
    pages.slices(0, &mut slices);
    let bytes: Vec<u8> = slices.iter().flat_map(|slice| slice.iter().copied()).collect();
    assert_eq!(bytes.len(), pages.len());
    bytes
}

/// Length of the files of [`eight_threads_mix_everything`]: together several times the budget.
const SHARED_BYTES: u64 = 8 << 20;
const OWN_BYTES: usize = 1 << 20;

fn shared_byte(at: u64) -> u8 {
    (at ^ at >> 8 ^ at >> 16) as u8 | 1
}

/// One of the eight: it writes, truncates and punches its own file, and reads a shared one.
struct Worker<'a> {
    rig: &'a Rig,
    random: Random,
    own: weir_pagecache::File,
    oracle: Vec<u8>,
    shared: weir_pagecache::File,
    /// Position of its sequential reads of the shared file.
    at: u64,
    /// Bytes of its last step.
    bytes: u64,
}

impl Worker<'_> {
    fn step(&mut self) {
        let flags = if self.random.chance(40) { IoFlags::UNCACHED } else { IoFlags::empty() };
        let len = match self.random.below(3) {
            0 => self.random.below(600) as usize + 1,
            1 => 4096 * (self.random.below(16) as usize + 1),
            _ => self.random.below(200_000) as usize + 1,
        };
        let at = self.random.below(OWN_BYTES as u64) as usize;
        match self.random.below(100) {
            0..30 => self.read_shared(self.at, len, flags),
            30..50 => {
                let at = self.random.below(SHARED_BYTES);
                self.read_shared(at, len.min(40_000), flags);
            }
            50..75 => {
                let len = len.min(OWN_BYTES - at);
                let byte = self.random.next() as u8;
                let bytes: Vec<u8> = (0..len).map(|i| byte.wrapping_add((i / 9) as u8)).collect();
                assert_eq!(self.own.write_at(&bytes, at as u64, flags), Ok(len));
                self.oracle.resize(self.oracle.len().max(at + len), 0);
                self.oracle[at..at + len].copy_from_slice(&bytes);
                self.bytes += len as u64;
            }
            75..92 => {
                let got = common::read_full(&self.own, at as u64, len, flags);
                let end = (at + len).min(self.oracle.len());
                assert!(got == self.oracle[at.min(end)..end], "own file, {len} bytes at {at}");
                self.bytes += got.len() as u64;
            }
            92..95 => {
                self.own.truncate(at as u64).unwrap();
                self.oracle.resize(at, 0);
            }
            95..98 => {
                block_on(self.own.punch_hole_async(at as u64, len as u64)).unwrap();
                let end = (at + len).min(self.oracle.len());
                if at < end {
                    self.oracle[at..end].fill(0);
                }
            }
            98 => self.own.sync(true).unwrap(),
            _ => {
                self.own = self.rig.open(self.own.id());
                self.shared = self.rig.open(self.shared.id());
            }
        }
    }

    fn read_shared(&mut self, at: u64, len: usize, flags: IoFlags) {
        let got = common::read_full(&self.shared, at, len, flags);
        let wrong = got.iter().enumerate().find(|&(i, &b)| b != shared_byte(at + i as u64));
        assert_eq!(wrong, None, "shared file at {at}");
        assert_eq!(got.len() as u64, (len as u64).min(SHARED_BYTES - at));
        self.at = (at + got.len() as u64) % SHARED_BYTES;
        self.bytes += got.len() as u64;
    }
}

/// I5, I7: random, sequential, cached and uncached reads and writes, truncations and holes.
#[test]
fn eight_threads_mix_everything() {
    let rig = Rig::new(1024);
    rig.store.set_late(true);
    let seed = std::env::var("WEIR_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(1);
    let shared = rig.create("shared");
    let bytes: Vec<u8> = (0..SHARED_BYTES).map(shared_byte).collect();
    common::write_all(&shared, &bytes, 0);
    let (start, stop) = (Instant::now(), AtomicBool::new(false));
    let [most, done, fast, filled, freed] = [const { AtomicU64::new(0) }; 5];
    std::thread::scope(|scope| {
        for n in 0..8 {
            let (rig, most, done, stop) = (&rig, &most, &done, &stop);
            let mut worker = Worker {
                rig,
                random: Random(seed * 1000 + n),
                own: rig.create(&format!("own{n}")),
                oracle: Vec::new(),
                shared: rig.open(shared.id()),
                at: 0,
                bytes: 0,
            };
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    worker.step();
                    done.fetch_add(std::mem::take(&mut worker.bytes), Ordering::Relaxed);
                    let used = rig.cache.used_bytes();
                    most.fetch_max(used, Ordering::Relaxed);
                    assert!(used <= rig.cache.budget_bytes());
                }
            });
        }
        // All threads together need several times the budget.
        let counts = [
            ("bytes", &done, rig.cache.budget_bytes() + 1),
            ("fast reads", &fast, 1),
            ("filled pages", &filled, 1),
            ("reclaimed pages", &freed, 1),
        ];
        run_until(&stop, &counts, || {
            let stats = rig.cache.stats();
            fast.store(stats.fast_reads, Ordering::Relaxed);
            filled.store(stats.fill_pages, Ordering::Relaxed);
            freed.store(reclaimed(&rig), Ordering::Relaxed);
        });
    });
    println!(
        "seed {seed}: {} MiB checked in {:?}; at most {} of {} bytes used; {:?}",
        done.into_inner() >> 20,
        start.elapsed(),
        most.into_inner(),
        rig.cache.budget_bytes(),
        rig.cache.stats(),
    );
}

/// Frames of one run are lent to many at once while its pages are replaced, and lent again.
#[test]
fn lent_runs_keep_their_bytes_while_their_pages_are_replaced() {
    const PAGES: usize = 64;
    let rig = Rig::new(1024);
    let file = rig.create("f");
    // Every page contains its number; each version of it repeats one byte.
    let page = |n: usize, version: u8| {
        let mut bytes = vec![version; 4096];
        bytes[..8].copy_from_slice(&(n as u64).to_le_bytes());
        bytes
    };
    let all: Vec<u8> = (0..PAGES).flat_map(|n| page(n, 0)).collect();
    write_all(&file, &all, 0);
    // Another file takes freed frames at once.
    let other = rig.create("g");
    let stop = AtomicBool::new(false);
    let [lent, replaced] = [const { AtomicU64::new(0) }; 2];
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (file, stop, lent) = (&file, &stop, &lent);
            scope.spawn(move || {
                let mut random = Random(thread);
                while !stop.load(Ordering::Relaxed) {
                    let first = random.below(PAGES as u64 - 16) as usize & !15;
                    let len = (1 + random.below(3) as usize) * 16 * 4096;
                    let Some(found) = file.read_segments_resident(first as u64 * 4096, len) else {
                        continue;
                    };
                    let Some(Segment::Data { pages, .. }) = found.segments.first() else {
                        continue;
                    };
                    if random.chance(30) {
                        std::thread::yield_now();
                    }
                    let bytes = bytes_of(pages);
                    for (n, bytes) in bytes.chunks(4096).enumerate() {
                        let number = u64::from_le_bytes(bytes[..8].try_into().unwrap());
                        assert_eq!(number, (first + n) as u64, "another page's bytes are lent");
                        assert!(bytes[8..].iter().all(|&b| b == bytes[8]), "a lent page changed");
                    }
                    lent.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        scope.spawn(|| {
            let mut random = Random(99);
            let mut version = 0u8;
            while !stop.load(Ordering::Relaxed) {
                version = version.wrapping_add(1);
                let n = random.below(PAGES as u64) as usize;
                write_all(&file, &page(n, version), n as u64 * 4096);
                write_all(&other, &[0xEE; 4096 * 3], random.below(8) * 4096);
                replaced.fetch_add(1, Ordering::Relaxed);
            }
        });
        run_until(&stop, &[("runs lent", &lent, 100), ("pages replaced", &replaced, 100)], || ());
    });
}
