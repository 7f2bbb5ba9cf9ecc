//! The budget changes at run time and under load, and memory use follows it.

mod common;

use common::{Random, Rig, block_on, pattern, read_full, until, write_all};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use weir_pagecache::{Cache, Config};
use weir_vfs::IoFlags;

const MIB: u64 = 1 << 20;

/// One test at a time, as they measure the process's memory.
fn alone() -> std::sync::MutexGuard<'static, ()> {
    static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Resident memory of this process, in bytes.
fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

fn config(budget: u64, max: u64) -> Config {
    Config { budget_bytes: budget, max_budget_bytes: max, ..Config::default() }
}

#[test]
fn a_lower_budget_returns_memory_and_keeps_lent_and_dirty_pages() {
    let _alone = alone();
    let rig = Rig::configured(config(128 * MIB, 0));
    let bytes = pattern(96 << 20, 1);
    let file = rig.cold("f", &bytes);
    let dirty = rig.create("dirty");
    rig.store.switches.hold_writes.store(true, Ordering::SeqCst);
    write_all(&dirty, &bytes[..8 << 20], 0);
    for at in (0..bytes.len()).step_by(1 << 20) {
        read_full(&file, at as u64, 1 << 20, IoFlags::empty());
    }
    let lent = file.read_segments(95 * MIB, 64 << 10, IoFlags::empty()).unwrap();
    let before = resident_bytes();
    rig.cache.set_budget(16 * MIB).unwrap();
    assert_eq!(rig.cache.budget_bytes(), 16 * MIB);
    // Dirty and lent pages stay, and are waited for, however long.
    until("the clean pages to go", || rig.cache.used_bytes() <= 16 * MIB);
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(rig.cache.dirty_bytes(), 8 * MIB);
    let weir_pagecache::Segment::Data { pages, .. } = &lent.segments[0] else { panic!("a hole") };
    let mut slices = Vec::new();
    pages.slices(0, &mut slices);
    let whole: Vec<u8> = slices.iter().flat_map(|s| s.iter().copied()).collect();
    assert!(whole == bytes[95 << 20..][..64 << 10], "lent pages changed");
    drop(slices);
    rig.store.switches.hold_writes.store(false, Ordering::SeqCst);
    drop(lent);
    // The store of these tests is in memory: the write-back's copy is not to be counted below.
    dirty.sync(true).unwrap();
    block_on(rig.cache.budget_reached());
    let (after, used) = (resident_bytes(), rig.cache.used_bytes());
    assert!(used <= 16 * MIB);
    assert!(before - after > 70 * MIB, "{} MiB given back", (before - after) / MIB);
    for at in (0..bytes.len()).step_by(1 << 20) {
        assert!(
            read_full(&file, at as u64, 1 << 20, IoFlags::empty()) == bytes[at..at + (1 << 20)]
        );
    }
    assert!(read_full(&dirty, 0, 8 << 20, IoFlags::empty()) == bytes[..8 << 20]);
    // Beside the pages, the process holds what it held before, and the buffers of the last reads.
    let others = after - used;
    let now = resident_bytes();
    assert!(now < others + (16 + 12) * MIB, "{} MiB above the others", (now - others) / MIB);
}

#[test]
fn a_lower_budget_moves_pages_instead_of_dropping_them() {
    let _alone = alone();
    let rig = Rig::configured(config(64 * MIB, 0));
    let bytes = pattern(40 << 20, 2);
    let file = rig.cold("f", &bytes);
    Rig::random(&file);
    // The second half is in high frames; only its last pages stay within the budget.
    for at in (0..bytes.len()).step_by(1 << 20) {
        read_full(&file, at as u64, 1 << 20, IoFlags::empty());
    }
    file.advise(0, 20 * MIB, weir_vfs::Advice::DontNeed).unwrap();
    rig.cache.set_budget(32 * MIB).unwrap();
    block_on(rig.cache.budget_reached());
    let resident: u64 = file.resident().iter().map(|r| r.end - r.start).sum();
    assert_eq!(resident, 20 * MIB, "they fit in the new budget");
    let fills = rig.cache.stats().fills;
    assert!(read_full(&file, 20 * MIB, 20 << 20, IoFlags::empty()) == bytes[20 << 20..]);
    assert_eq!(rig.cache.stats().fills, fills, "read from the cache");
}

#[test]
fn a_budget_grows_up_to_the_reservation_and_no_further() {
    let _alone = alone();
    let cache = Cache::new(config(MIB, 8 * MIB)).unwrap();
    assert_eq!(cache.max_budget_bytes(), 8 * MIB);
    let error = cache.set_budget(9 * MIB).unwrap_err().to_string();
    assert!(error.contains("max_budget_bytes"), "{error}");
    assert_eq!(cache.budget_bytes(), MIB);
    let rig = Rig::configured(config(MIB, 8 * MIB));
    let bytes = pattern(6 << 20, 3);
    let file = rig.cold("f", &bytes);
    read_full(&file, 0, bytes.len(), IoFlags::empty());
    assert!(rig.cache.used_bytes() <= MIB);
    rig.cache.set_budget(8 * MIB).unwrap();
    read_full(&file, 0, bytes.len(), IoFlags::empty());
    assert_eq!(file.resident().iter().map(|r| r.end - r.start).sum::<u64>(), 6 * MIB);
}

/// A writer that waits for more memory than the new budget ever allows at once continues in smaller
/// steps.
#[test]
fn a_waiter_for_memory_survives_a_lower_budget() {
    let _alone = alone();
    let rig = Rig::configured(config(8 * MIB, 0));
    let file = rig.create("f");
    let lent: Vec<_> = {
        write_all(&file, &pattern(7 << 20, 4), 0);
        file.sync(true).unwrap();
        (0..7).map(|n| file.read_segments(n * MIB, 1 << 20, IoFlags::empty()).unwrap()).collect()
    };
    let other = rig.create("g");
    let bytes = pattern(3 << 20, 5);
    rig.store.switches.hold_writes.store(true, Ordering::SeqCst);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| write_all(&other, &bytes, 0));
        until("the wait", || rig.cache.stats().memory_waits > 0);
        rig.cache.set_budget(MIB / 4).unwrap();
        drop(lent);
        rig.store.switches.hold_writes.store(false, Ordering::SeqCst);
        writer.join().unwrap();
    });
    assert!(read_full(&other, 0, 3 << 20, IoFlags::empty()) == bytes);
    block_on(rig.cache.budget_reached());
    assert!(rig.cache.used_bytes() <= MIB / 4);
}

/// Readers and writers, cached and not, while the budget changes: every byte is right, and whenever
/// a budget is reached, memory use is within it.
#[test]
fn i7_the_budget_moves_under_load() {
    let _alone = alone();
    let rig = Rig::configured(config(4 * MIB, 16 * MIB));
    rig.store.set_late(true);
    const FILES: u64 = 4;
    const LEN: u64 = 4 * MIB;
    let files: Vec<_> = (0..FILES)
        .map(|n| {
            let file = rig.create(&format!("f{n}"));
            write_all(&file, &vec![n as u8 + 1; LEN as usize], 0);
            file
        })
        .collect();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for n in 0..FILES {
            let (file, stop) = (files[n as usize].clone(), &stop);
            scope.spawn(move || {
                let mut random = Random(n);
                let mut buf = vec![0; 300_000];
                while !stop.load(Ordering::Relaxed) {
                    let at = random.below(LEN);
                    let len = (random.below(300_000) + 1).min(LEN - at) as usize;
                    let flags =
                        if random.chance(40) { IoFlags::UNCACHED } else { IoFlags::empty() };
                    if random.chance(30) {
                        assert_eq!(file.write_at(&vec![n as u8 + 1; len], at, flags), Ok(len));
                    } else {
                        let done = file.read_at(&mut buf[..len], at, flags).unwrap();
                        assert!(buf[..done].iter().all(|&b| b == n as u8 + 1), "file {n} at {at}");
                    }
                }
            });
        }
        let mut random = Random(99);
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(2) {
            let budget = (64 * 1024) << random.below(9);
            rig.cache.set_budget(budget.min(16 * MIB)).unwrap();
            block_on(rig.cache.budget_reached());
            assert!(rig.cache.used_bytes() <= rig.cache.budget_bytes());
            std::thread::sleep(Duration::from_millis(random.below(30)));
            assert!(rig.cache.used_bytes() <= rig.cache.budget_bytes());
        }
        stop.store(true, Ordering::Relaxed);
    });
    files.iter().for_each(|file| file.sync(true).unwrap());
}
