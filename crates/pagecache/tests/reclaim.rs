//! The cost of reclaim: pages examined per page freed, counted rather than timed.

mod common;

use common::{Rig, pattern, read_full, until, write_all};
use std::sync::atomic::Ordering;
use weir_pagecache::Stats;
use weir_vfs::IoFlags;

const NONE: IoFlags = IoFlags::empty();

fn freed(stats: &Stats) -> u64 {
    stats.reclaimed_small + stats.reclaimed_main + stats.reclaimed_uncached
}

/// A third of the cache is dirty and the store is slow, while a stream four times the size of the
/// cache is read: reclaim looks at each dirty page once, not once per pass.
#[test]
fn reclaim_visits_pinned_pages_once() {
    let rig = Rig::new(1024);
    let bytes = pattern(4096 * 4096, 1);
    let stream = rig.create("stream");
    write_all(&stream, &bytes, 0);
    stream.sync(true).unwrap();
    stream.advise(0, 0, weir_vfs::Advice::DontNeed).unwrap();
    Rig::random(&stream);
    rig.store.switches.hold_writes.store(true, Ordering::SeqCst);
    let slow = rig.create("slow");
    for page in 0..250 {
        write_all(&slow, &[1; 4096], page * 4096);
    }
    let before = rig.cache.stats();
    for at in (0..bytes.len()).step_by(8192) {
        assert!(read_full(&stream, at as u64, 8192, NONE) == bytes[at..at + 8192], "at {at}");
    }
    let after = rig.cache.stats();
    assert_eq!(rig.cache.dirty_bytes(), 250 * 4096);
    let (looks, freed) =
        (after.reclaim_looks - before.reclaim_looks, freed(&after) - freed(&before));
    assert!(freed >= 3000, "{freed} pages freed: not a test of reclaim");
    assert!(looks <= freed + 300, "{looks} pages looked at to free {freed}");
    // Once clean, they are found again.
    rig.store.switches.hold_writes.store(false, Ordering::SeqCst);
    slow.sync(true).unwrap();
    for at in (0..bytes.len()).step_by(8192) {
        read_full(&stream, at as u64, 8192, NONE);
    }
    assert_eq!(slow.resident(), [], "old and clean, and still there");
}

/// Lent pages are in the way of a call that needs memory. It gives up after a bounded number of
/// looks and waits; the background reclaimer finds reclaimable pages, and returning the lent pages
/// wakes the call, too.
#[test]
fn pinned_pages_do_not_hide_reclaimable_ones() {
    let rig = Rig::new(256);
    let bytes = pattern(600 * 4096, 2);
    let file = rig.cold("f", &bytes);
    for flags in [NONE, IoFlags::UNCACHED] {
        Rig::random(&file);
        let lent: Vec<_> =
            (0..190).map(|page| file.read_segments(page * 4096, 4096, flags).unwrap()).collect();
        for page in 190..600 {
            let at = page * 4096;
            assert!(read_full(&file, at as u64, 4096, NONE) == bytes[at..at + 4096]);
        }
        drop(lent);
        file.advise(0, 0, weir_vfs::Advice::DontNeed).unwrap();
        until("all memory", || rig.cache.used_bytes() == 0);
    }
}

/// Everything is lent, so a reader waits; it continues when a single page is returned.
#[test]
fn returning_a_page_wakes_a_waiter_for_memory() {
    let rig = Rig::new(16);
    let bytes = pattern(20 * 4096, 3);
    let file = rig.cold("f", &bytes);
    Rig::random(&file);
    let mut lent: Vec<_> =
        (0..16).map(|page| file.read_segments(page * 4096, 4096, NONE).unwrap()).collect();
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| read_full(&file, 17 * 4096, 4096, NONE));
        until("the wait", || rig.cache.stats().memory_waits > 0);
        lent.pop();
        assert!(reader.join().unwrap() == bytes[17 * 4096..18 * 4096]);
    });
}

/// A store that hangs holds all memory. Waiters for memory use no processor time meanwhile, and
/// continue as soon as the store answers.
#[test]
fn waiting_for_a_hanging_store_uses_little_processor_time() {
    const READ: usize = 32 * 4096;
    let rig = Rig::new(256);
    let bytes = pattern(12 * READ, 3);
    let file = rig.cold("f", &bytes);
    Rig::random(&file);
    rig.store.switches.hold_reads.store(true, Ordering::SeqCst);
    std::thread::scope(|scope| {
        for (n, part) in bytes.chunks(READ).enumerate() {
            let flags = if n % 2 == 0 { NONE } else { IoFlags::UNCACHED };
            let file = &file;
            scope.spawn(move || {
                assert!(read_full(file, (n * READ) as u64, READ, flags) == part, "part {n}");
            });
        }
        until("some to wait for memory", || rig.cache.stats().memory_waits >= 3);
        // A window of two seconds is longer on a busy machine, which may also run all of this late.
        let mut counts = Vec::new();
        let quiet = (0..20).any(|_| {
            let before = rig.cache.stats();
            std::thread::sleep(std::time::Duration::from_secs(2));
            let after = rig.cache.stats();
            let tries = after.reclaim_direct - before.reclaim_direct;
            let passes = after.reclaim_background - before.reclaim_background;
            counts.push((tries, passes));
            // Each look of the background reclaimer on their behalf is one try for each.
            tries < 30_000 && passes < 100
        });
        rig.store.switches.hold_reads.store(false, Ordering::SeqCst);
        assert!(quiet, "tries, and passes in vain, in two seconds each: {counts:?}");
    });
}
