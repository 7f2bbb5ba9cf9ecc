//! Read-ahead as the store sees it: the reads that it gets for streams through one open file, and
//! the effect of each kind of advice.

#![allow(clippy::single_range_in_vec_init, reason = "resident pages are a list of ranges")]

mod common;

use common::{Random, Rig, block_on, pattern, read_full, until, write_all};
use std::ops::Range;
use std::sync::atomic::Ordering;
use weir_pagecache::{Config, File};
use weir_vfs::{Advice, Caller, Capabilities, IoFlags, UNCACHED_MARK, UNCACHED_XATTR, XattrMode};

const PAGE: u64 = 4096;
const CACHED: IoFlags = IoFlags::empty();
/// Largest window of the rigs here, in pages.
const WINDOW: u64 = 128;

fn rig_of(pages: u64) -> Rig {
    let (budget_bytes, readahead_bytes) = (pages * PAGE, WINDOW * PAGE);
    Rig::configured(Config { budget_bytes, readahead_bytes, ..Config::default() })
}

/// A cache of 64 MiB, and a file of `pages` pages in its store.
fn rig(pages: u64) -> (Rig, File, Vec<u8>) {
    let rig = rig_of(16384);
    let bytes = pattern(pages as usize * 4096, pages);
    let file = rig.cold("f", &bytes);
    rig.store.take_reads();
    (rig, file, bytes)
}

fn read(file: &File, bytes: &[u8], page: u64, pages: u64, flags: IoFlags) {
    let (at, len) = ((page * PAGE) as usize, (pages * PAGE) as usize);
    assert_eq!(read_full(file, at as u64, len, flags), &bytes[at..at + len], "page {page}");
}

fn pages(reads: &[Range<u64>]) -> u64 {
    reads.iter().map(|r| r.end - r.start).sum()
}

#[test]
fn two_interleaved_streams_of_one_open_file_each_get_full_windows() {
    for flags in [CACHED, IoFlags::UNCACHED] {
        let (rig, file, bytes) = rig(4096);
        for page in (0..1024).step_by(4) {
            read(&file, &bytes, page, 4, flags);
            read(&file, &bytes, 2048 + page, 4, flags);
        }
        let reads = rig.store.take_reads();
        for half in [0..2048, 2048..4096] {
            let of_half: Vec<_> = reads.iter().filter(|r| half.contains(&r.start)).collect();
            let full = of_half.iter().filter(|r| r.end - r.start == WINDOW).count() as u64;
            assert!(full >= 6, "{full} of {of_half:?}");
            assert!(of_half.len() <= 16, "{of_half:?}");
        }
        assert!(pages(&reads) <= 2 * (1024 + 2 * WINDOW), "each page once, and what is ahead");
    }
}

#[test]
fn a_strided_stream_gets_its_next_reads_and_nothing_between() {
    // 64 KiB of each 1 MiB.
    for flags in [CACHED, IoFlags::UNCACHED] {
        let (rig, file, bytes) = rig(256 * 33);
        for stride in 1..33 {
            read(&file, &bytes, stride * 256, 16, flags);
        }
        let reads = rig.store.take_reads();
        assert!(reads.iter().all(|r| r.start % 256 == 0 && r.end == r.start + 16), "{reads:?}");
        assert_eq!(reads.len(), 32, "each once");
        let stats = rig.cache.stats();
        assert!(stats.readahead_pages >= 26 * 16, "{} pages ahead", stats.readahead_pages);
    }
}

#[test]
fn random_reads_get_no_read_ahead() {
    let (rig, file, bytes) = rig(8192);
    let mut random = Random(8);
    // Each page at most once, and no two of them adjacent.
    let mut offsets: Vec<u64> = (1..512).map(|i| i * 16 + random.below(8)).collect();
    for i in (1..offsets.len()).rev() {
        offsets.swap(i, random.below(i as u64 + 1) as usize);
    }
    for &page in &offsets {
        read(&file, &bytes, page, 1, CACHED);
    }
    let stats = rig.cache.stats();
    assert_eq!((stats.readahead_pages, stats.fills, stats.fill_pages), (0, 511, 511));
}

#[test]
fn a_stream_beside_random_reads_keeps_its_window() {
    let (rig, file, bytes) = rig(8192);
    let mut random = Random(9);
    for page in (0..2048).step_by(4) {
        read(&file, &bytes, page, 4, CACHED);
        read(&file, &bytes, 4096 + random.below(4095), 1, CACHED);
    }
    let reads = rig.store.take_reads();
    let full = reads.iter().filter(|r| r.end <= 4096 && r.end - r.start == WINDOW).count();
    assert!(full >= 14, "{full} full windows");
}

#[test]
fn a_window_shrinks_when_memory_is_short() {
    // 64 interleaved streams with a budget of 1024 pages: their read-ahead does not all fit.
    let rig = rig_of(1024);
    let bytes = pattern(8192 * 4096, 1);
    let file = rig.cold("f", &bytes);
    let opens: Vec<File> = (0..64).map(|_| rig.open(file.id())).collect();
    rig.store.take_reads();
    for page in 0..128 {
        for (i, open) in opens.iter().enumerate() {
            read(open, &bytes, i as u64 * 128 + page, 1, CACHED);
        }
    }
    let reads = rig.store.take_reads();
    assert!(pages(&reads) <= 8192 * 5 / 2, "{} pages read for 8192", pages(&reads));
}

#[test]
fn sequential_advice_reads_a_full_window_from_the_first_read_on() {
    let (rig, file, bytes) = rig(4096);
    file.advise(0, 0, Advice::Sequential).unwrap();
    read(&file, &bytes, 1000, 1, CACHED);
    assert_eq!(rig.store.take_reads(), [1000..1001 + WINDOW]);
    file.advise(0, 0, Advice::Normal).unwrap();
    read(&file, &bytes, 3000, 1, CACHED);
    assert_eq!(rig.store.take_reads(), [3000..3001], "taken back");
}

#[test]
fn random_advice_reads_nothing_ahead() {
    let (rig, file, bytes) = rig(256);
    file.advise(0, 0, Advice::Random).unwrap();
    for page in 0..256 {
        read(&file, &bytes, page, 1, CACHED);
    }
    assert!(rig.store.take_reads().iter().all(|r| r.end - r.start == 1));
    assert_eq!(rig.cache.stats().readahead_pages, 0);
}

#[test]
fn willneed_starts_reading_the_range_without_waiting() {
    let (rig, file, bytes) = rig(4096);
    rig.store.switches.hold_reads.store(true, Ordering::SeqCst);
    file.advise(100 * PAGE + 5, 1000 * PAGE, Advice::WillNeed).unwrap();
    assert!(file.resident().is_empty());
    rig.store.switches.hold_reads.store(false, Ordering::SeqCst);
    until("the fill", || file.resident() == [100 * PAGE..1101 * PAGE]);
    rig.store.take_reads();
    read(&file, &bytes, 100, 1001, CACHED);
    assert_eq!(rig.store.take_reads(), []);
    // Resident pages are not read again.
    file.advise(90 * PAGE, 20 * PAGE, Advice::WillNeed).unwrap();
    assert_eq!(rig.store.take_reads(), [90..100]);
}

#[test]
fn willneed_takes_half_of_the_budget_at_most() {
    let rig = Rig::new(1024);
    let file = rig.cold("f", &pattern(4096 * 4096, 3));
    let other = rig.cold("g", &pattern(900 * 4096, 4));
    read_full(&other, 0, 900 * 4096, CACHED);
    rig.store.take_reads();
    // Frames that others have just released may not be free yet: advice does not wait for them.
    until("the first pages", || {
        file.advise(0, 0, Advice::WillNeed).unwrap();
        let read = pages(&rig.store.take_reads());
        assert!(read <= 512, "{read} pages");
        read > 0
    });
    assert!(rig.cache.used_bytes() <= rig.cache.budget_bytes());
}

#[test]
fn dontneed_drops_clean_whole_pages_and_starts_to_write_dirty_ones() {
    let (rig, file, bytes) = rig(64);
    read(&file, &bytes, 0, 64, CACHED);
    rig.store.switches.hold_writes.store(true, Ordering::SeqCst);
    write_all(&file, &[7; 4096], 20 * PAGE);
    file.advise(10 * PAGE + 1, 30 * PAGE, Advice::DontNeed).unwrap();
    let left = [0..11 * PAGE, 20 * PAGE..21 * PAGE, 40 * PAGE..64 * PAGE];
    assert_eq!(file.resident(), left, "page 10 and page 40 are not whole in the range");
    until("writeback", || rig.store.switches.writes.load(Ordering::SeqCst) > 0);
    rig.store.switches.hold_writes.store(false, Ordering::SeqCst);
    file.sync(true).unwrap();
    file.advise(0, 0, Advice::DontNeed).unwrap();
    assert_eq!(file.resident(), []);
    assert_eq!(read_full(&file, 20 * PAGE, 4096, CACHED), [7; 4096]);
}

#[test]
fn noreuse_makes_operations_uncached_until_normal_and_goes_with_sequential() {
    let (rig, file, bytes) = rig(1024);
    file.advise(0, 0, Advice::NoReuse).unwrap();
    file.advise(0, 0, Advice::Sequential).unwrap();
    // Used pages stay only where a prune found the file busy.
    let used = |pages: Range<u64>| -> u64 {
        let resident = file.resident();
        let within = |r: &Range<u64>| r.start.max(pages.start * PAGE)..r.end.min(pages.end * PAGE);
        resident.iter().map(within).map(|r| r.end.saturating_sub(r.start) / PAGE).sum()
    };
    for page in 0..512 {
        read(&file, &bytes, page, 1, CACHED);
        assert!(used(0..page + 1) <= rig.cache.stats().prune_skips, "page {page} stays");
    }
    assert!(rig.store.take_reads().len() < 16, "read ahead");
    // Advice brings pages in, and their use drops them.
    file.advise(900 * PAGE, 8 * PAGE, Advice::WillNeed).unwrap();
    until("the fill", || {
        file.resident().iter().any(|r| r.start <= 900 * PAGE && r.end > 900 * PAGE)
    });
    read(&file, &bytes, 900, 8, CACHED);
    assert!(used(900..908) <= 8 * rig.cache.stats().prune_skips);
    file.advise(0, 0, Advice::Normal).unwrap();
    read(&file, &bytes, 1000, 1, CACHED);
    assert!(file.resident().iter().any(|r| r.start == 1000 * PAGE));
}

#[test]
fn what_advice_brings_in_of_a_file_marked_uncached_goes_with_its_use_or_the_last_close() {
    let (rig, file, bytes) = rig(1024);
    let (id, name) = (file.id(), UNCACHED_XATTR);
    let marked = rig.fs.set_xattr(&Caller::Own, id.xattr(name), UNCACHED_MARK, XattrMode::Either);
    block_on(marked).unwrap();
    let resident = || rig.fs.residency(id).map_or(0, |found| found.resident_bytes / PAGE);
    file.advise(0, 8 * PAGE, Advice::WillNeed).unwrap();
    until("the fill", || resident() == 8);
    read(&file, &bytes, 0, 8, CACHED);
    // They stay only where a prune found the file busy.
    assert!(resident() <= 8 * rig.cache.stats().prune_skips);
    file.advise(100 * PAGE, 8 * PAGE, Advice::WillNeed).unwrap();
    until("the second fill", || resident() >= 8);
    drop(file);
    assert_eq!(resident(), 0);
}

#[test]
fn noreuse_has_no_effect_on_a_store_without_uncached_operations() {
    let rig = Rig::with(64, Capabilities::all() - Capabilities::UNCACHED);
    let file = rig.cold("f", &pattern(4096, 5));
    file.advise(0, 0, Advice::NoReuse).unwrap();
    read_full(&file, 0, 4096, CACHED);
    assert_eq!(file.resident(), [0..PAGE]);
}
