//! Uncached operations: invariants I1 to I4 and I11, and one regression test for each bug of this
//! kind that a kernel has shipped.

#![allow(clippy::single_range_in_vec_init, reason = "resident pages are a list of ranges")]

mod common;

use common::{Random, Rig, block_on, pattern, read_full, until, write_all};
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};
use weir_pagecache::File;
use weir_vfs::{Access, Advice, Caller, Capabilities, Error, IoFlags};

const PAGE: u64 = 4096;
const CACHED: IoFlags = IoFlags::empty();
const UNCACHED: IoFlags = IoFlags::UNCACHED;

#[test]
fn i1_an_uncached_read_keeps_resident_pages_and_drops_its_own() {
    let rig = Rig::new(1024);
    let bytes = pattern(64 * 4096, 1);
    let file = rig.cold("f", &bytes);
    Rig::random(&file);
    assert_eq!(read_full(&file, 10 * PAGE, 5 * 4096, CACHED), &bytes[10 * 4096..15 * 4096]);
    let before = file.resident();
    assert_eq!(before, [10 * PAGE..15 * PAGE]);
    assert_eq!(read_full(&file, 0, bytes.len(), UNCACHED), bytes);
    assert_eq!(file.resident(), before);
    let stats = file.stats();
    assert_eq!((stats.uncached_pages, stats.pruned_pages, stats.lost_pages), (59, 59, 0));
}

#[test]
fn i2_uncached_read_ahead_is_dropped_when_consumed_or_closed() {
    let rig = Rig::new(1024);
    let bytes = pattern(300 * 4096, 2);
    let file = rig.cold("f", &bytes);
    for at in (0..100 * 4096).step_by(16384) {
        assert_eq!(read_full(&file, at as u64, 16384, UNCACHED), &bytes[at..at + 16384]);
        assert!(file.resident().iter().all(|r| r.start >= at as u64 + 16384), "consumed, not gone");
    }
    assert!(rig.cache.stats().readahead_pages > 0);
    let id = file.id();
    drop(file);
    assert_eq!(rig.open(id).resident(), []);
}

#[test]
fn i1_uncached_writes_reuse_their_own_frames() {
    let rig = Rig::new(1024);
    let file = rig.cold("f", &[]);
    let mut most = 0;
    for round in 0..60 {
        file.write_at(&pattern(16 * 4096, round), round * 16 * PAGE, UNCACHED).unwrap();
        file.sync(true).unwrap();
        most = most.max(rig.cache.used_bytes());
    }
    // If only a lack of memory freed them, it would be all 960.
    assert!(most < 480 * PAGE, "{} frames in use", most / PAGE);
    assert_eq!(file.stats().pruned_pages, 960);
}

#[test]
fn overwrites_reuse_their_own_frames() {
    let rig = Rig::new(4096);
    for flags in [CACHED, UNCACHED] {
        let file = rig.cold(&format!("{flags:?}"), &pattern(64 * 4096, 27));
        read_full(&file, 0, 64 * 4096, CACHED);
        let (before, mut most) = (rig.cache.used_bytes(), 0);
        for round in 0..1000 {
            file.write_at(&pattern(2 * 4096, round), round % 32 * 2 * PAGE, flags).unwrap();
            // Frames of before that were still to be reused may be free by now.
            most = most.max(rig.cache.used_bytes().saturating_sub(before));
        }
        // If only a lack of memory freed them, it would be all 2000.
        assert!(most < 400 * PAGE, "{} frames more", most / PAGE);
        assert_eq!(file.resident(), [0..64 * PAGE]);
    }
}

#[test]
fn i2_a_cached_access_claims_a_page() {
    let rig = Rig::new(1024);
    let bytes = pattern(16 * 4096, 3);
    let file = rig.cold("f", &bytes);
    // A write that the store holds back keeps its page, with the mark.
    rig.store.switches.hold_writes.store(true, Ordering::SeqCst);
    assert_eq!(file.write_at(&bytes[..8192], 0, UNCACHED), Ok(8192));
    assert_eq!(file.resident(), [0..2 * PAGE]);
    assert_eq!(read_full(&file, PAGE, 10, CACHED), &bytes[4096..4106]);
    rig.store.switches.hold_writes.store(false, Ordering::SeqCst);
    file.sync(true).unwrap();
    assert_eq!(file.resident(), [PAGE..2 * PAGE]);
    let stats = file.stats();
    assert_eq!((stats.uncached_pages, stats.claimed_pages, stats.pruned_pages), (2, 1, 1));
}

#[test]
fn i2_a_cached_reader_claims_a_page_during_its_uncached_fill() {
    let rig = Rig::new(1024);
    let bytes = pattern(4096, 4);
    let file = rig.cold("f", &bytes);
    rig.store.switches.hold_reads.store(true, Ordering::SeqCst);
    let reads = rig.store.switches.reads.load(Ordering::SeqCst);
    std::thread::scope(|scope| {
        let first = scope.spawn(|| read_full(&file, 0, 4096, UNCACHED));
        until("the fill", || rig.store.switches.reads.load(Ordering::SeqCst) > reads);
        let second = scope.spawn(|| read_full(&file, 0, 4096, CACHED));
        until("the join", || rig.cache.stats().fill_joins > 0);
        rig.store.switches.hold_reads.store(false, Ordering::SeqCst);
        assert_eq!(first.join().unwrap(), bytes);
        assert_eq!(second.join().unwrap(), bytes);
    });
    assert_eq!(file.resident(), [0..PAGE]);
    assert_eq!(rig.store.switches.reads.load(Ordering::SeqCst), reads + 1);
}

#[test]
fn i3_kernel_bug_a_dirty_page_is_not_pruned() {
    // Linux 6.15 had to switch the feature off for pruning dirty pages and pages under writeback.
    let rig = Rig::new(1024);
    let bytes = pattern(4096, 5);
    let file = rig.create("f");
    rig.store.switches.hold_writes.store(true, Ordering::SeqCst);
    file.write_at(&bytes, 0, UNCACHED).unwrap();
    // Dirty or under writeback: an uncached read must not drop it.
    assert_eq!(read_full(&file, 0, 4096, UNCACHED), bytes);
    assert_eq!(file.resident(), [0..PAGE]);
    until("writeback", || rig.store.switches.writes.load(Ordering::SeqCst) > 0);
    assert_eq!(read_full(&file, 0, 4096, UNCACHED), bytes);
    assert_eq!(file.resident(), [0..PAGE]);
    rig.store.switches.hold_writes.store(false, Ordering::SeqCst);
    // The mark stays, and takes effect once the page is clean.
    until("the prune", || file.resident().is_empty());
    assert_eq!(read_full(&file, 0, 4096, CACHED), bytes);
}

#[test]
fn i4_kernel_bug_an_uncached_overwrite_keeps_mark_and_residency() {
    // Linux lost the mark on overwrite.
    let rig = Rig::new(1024);
    let bytes = pattern(2 * 4096, 6);
    let file = rig.cold("f", &bytes);
    Rig::random(&file);
    read_full(&file, 0, 4096, CACHED);
    // Uncached over cached: the page stays.
    rig.store.switches.hold_writes.store(true, Ordering::SeqCst);
    file.write_at(&[7; 100], 50, UNCACHED).unwrap();
    // Uncached over uncached: still marked, also after a partial overwrite.
    file.write_at(&[8; 4096], PAGE, UNCACHED).unwrap();
    file.write_at(&[9; 100], PAGE + 50, UNCACHED).unwrap();
    rig.store.switches.hold_writes.store(false, Ordering::SeqCst);
    file.sync(true).unwrap();
    assert_eq!(file.resident(), [0..PAGE]);
    let mut want = bytes;
    want[50..150].fill(7);
    want[4096..].fill(8);
    want[4096 + 50..4096 + 150].fill(9);
    assert_eq!(read_full(&file, 0, 8192, CACHED), want);
}

#[test]
fn kernel_bug_each_page_of_a_run_has_its_own_mark() {
    // Linux lost the mark when a large folio was split; here a run has no shared state.
    let rig = Rig::new(1024);
    let bytes = pattern(64 * 4096, 7);
    let file = rig.cold("f", &bytes);
    rig.store.switches.hold_writes.store(true, Ordering::SeqCst);
    file.write_at(&bytes, 0, UNCACHED).unwrap();
    std::thread::scope(|scope| {
        // Waits for writes in flight, which may cover all or none of the pages.
        scope.spawn(|| file.truncate(40 * PAGE + 100).unwrap_or_else(|e| panic!("{e}")));
        rig.store.switches.hold_writes.store(false, Ordering::SeqCst);
    });
    file.sync(true).unwrap();
    assert_eq!(file.resident(), []);
    assert_eq!(read_full(&file, 0, bytes.len(), CACHED), &bytes[..40 * 4096 + 100]);
}

#[test]
fn kernel_bug_a_file_closed_and_removed_while_its_pages_are_dropped() {
    // Linux: use after free when the file went away during the drop.
    let rig = Rig::new(64);
    rig.store.set_late(true);
    for round in 0..200 {
        let file = rig.create("f");
        file.write_at(&pattern(20 * 4096, round), 0, UNCACHED).unwrap();
        block_on(rig.fs.unlink(&weir_vfs::Caller::Own, rig.fs.root().entry(b"f"))).unwrap();
        drop(file);
    }
    until("the end of writeback", || rig.cache.dirty_bytes() == 0);
    until("all memory", || rig.cache.used_bytes() == 0);
}

#[test]
fn kernel_bug_a_misaligned_stream_reads_each_page_once() {
    // Linux: pruning at once made the next misaligned read-modify-write read the page again.
    let rig = Rig::new(1024);
    let bytes = pattern(64 * 4096, 8);
    let file = rig.create("f");
    let reads = rig.store.switches.reads.load(Ordering::SeqCst);
    for at in (0..bytes.len()).step_by(1000) {
        file.write_at(&bytes[at..(at + 1000).min(bytes.len())], at as u64, UNCACHED).unwrap();
    }
    let again = rig.store.switches.reads.load(Ordering::SeqCst) - reads;
    assert!(again < 10, "{again} reads for 64 pages written front to back");
    file.sync(true).unwrap();
    let reads = rig.store.switches.bytes_read.load(Ordering::SeqCst);
    for at in (0..bytes.len()).step_by(1000) {
        let want = &bytes[at..(at + 1000).min(bytes.len())];
        assert_eq!(read_full(&file, at as u64, want.len(), UNCACHED), want);
    }
    let read = rig.store.switches.bytes_read.load(Ordering::SeqCst) - reads;
    assert!(read < 2 * bytes.len() as u64, "{read} bytes read for {}", bytes.len());
    let id = file.id();
    drop(file);
    until("the prune", || rig.open(id).resident().is_empty());
}

#[test]
fn i11_kernel_bug_uncached_writeback_begins_soon_on_another_thread() {
    // Linux: the flusher did not select such pages, so they were written late; then writers
    // submitted inline and starved their neighbours.
    let rig = Rig::new(1024);
    let file = rig.create("f");
    rig.store.switches.hold_writes.store(true, Ordering::SeqCst);
    // Returns although the store completes no write.
    file.write_at(&pattern(4096 * 8, 9), 0, UNCACHED).unwrap();
    until("writeback", || rig.store.switches.writes.load(Ordering::SeqCst) > 0);
    rig.store.switches.hold_writes.store(false, Ordering::SeqCst);
    until("the prune", || file.resident().is_empty());
}

#[test]
fn i11_small_uncached_writes_go_to_the_store_together() {
    // So large that neither the number of dirty pages nor the reserve is a reason to write.
    let rig = Rig::new(16384);
    let file = rig.create("f");
    rig.store.set_late(true);
    let begun = Instant::now();
    for page in 0..256 {
        file.write_at(&[1; 4096], page * PAGE, UNCACHED).unwrap();
    }
    until("the prune", || file.resident().is_empty());
    // As soon as 64 pages wait, and 20 ms after the first of fewer.
    let most = 256 / 64 + begun.elapsed().as_millis() / 20 + 1;
    let writes = rig.store.switches.writes.load(Ordering::SeqCst);
    assert!(u128::from(writes) <= most, "{writes} writes, at most {most} expected");
    assert_eq!(read_full(&file, 0, 256 * 4096, UNCACHED), [1; 256 * 4096]);
}

#[test]
fn i11_kernel_bug_a_buffered_neighbour_is_not_stalled_by_uncached_writers() {
    let rig = Rig::new(4096);
    let hot = rig.create("hot");
    write_all(&hot, &pattern(64 * 4096, 10), 0);
    hot.sync(true).unwrap();
    let stream = rig.create("stream");
    rig.store.switches.hold_writes.store(true, Ordering::SeqCst);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Far more than its window: this call waits.
            for at in 0..64 {
                stream.write_at(&[3; 256 * 1024], at * 256 * 1024, UNCACHED).unwrap();
            }
        });
        until("the window", || rig.cache.stats().throttle_waits > 0);
        for n in 0..1000 {
            let mut buf = [0; 512];
            assert_eq!(hot.read_resident(&mut buf, n % 64 * PAGE), Some(512));
        }
        write_all(&hot, &[1; 100], 5);
        rig.store.switches.hold_writes.store(false, Ordering::SeqCst);
    });
    stream.sync(true).unwrap();
    assert_eq!(stream.resident(), []);
    assert_eq!(hot.resident(), [0..64 * PAGE]);
}

#[test]
fn i10_unsupported_and_unknown_flags_do_nothing() {
    let rig = Rig::with(64, Capabilities::all() - Capabilities::UNCACHED);
    let file = rig.create("f");
    let unknown = IoFlags::from_bits_retain(0x4000_0000);
    assert_eq!(file.write_at(b"x", 0, UNCACHED), Err(Error::NotSupported));
    assert_eq!(file.write_at(b"x", 0, IoFlags::ATOMIC), Err(Error::NotSupported));
    assert_eq!(file.write_at(b"x", 0, unknown), Err(Error::Invalid));
    let both = IoFlags::APPEND | IoFlags::NOAPPEND;
    assert_eq!(file.write_at(b"x", 0, both), Err(Error::Invalid));
    assert_eq!(file.size(), 0);
    write_all(&file, b"hello", 0);
    let mut buf = [7; 5];
    assert_eq!(file.read_at(&mut buf, 0, UNCACHED), Err(Error::NotSupported));
    assert_eq!(file.read_at(&mut buf, 0, unknown), Err(Error::Invalid));
    assert_eq!(buf, [7; 5]);
    let stats = rig.cache.stats();
    assert_eq!((stats.uncached_pages, stats.fills), (0, 0));
}

#[test]
fn a_hot_set_survives_an_uncached_stream() {
    let rig = Rig::new(1024);
    let hot_bytes = pattern(400 * 4096, 11);
    let hot = rig.cold("hot", &hot_bytes);
    Rig::random(&hot);
    let bytes = pattern(8 << 20, 12);
    let stream = rig.cold("stream", &bytes);
    let mut random = Random(13);
    let mut warm = || {
        for _ in 0..4000 {
            let at = random.below(400) as usize;
            assert_eq!(
                read_full(&hot, at as u64 * PAGE, 4096, CACHED),
                &hot_bytes[at * 4096..][..4096]
            );
        }
    };
    warm();
    until("the background to have dropped what that took", || {
        let looks = rig.cache.stats().reclaim_looks;
        std::thread::sleep(std::time::Duration::from_millis(50));
        rig.cache.stats().reclaim_looks == looks
    });
    let before = hot.resident();
    let passes = |s: weir_pagecache::Stats| s.reclaim_direct + s.reclaim_background;
    let passes_before = passes(rig.cache.stats());
    for at in (0..bytes.len()).step_by(65536) {
        assert_eq!(read_full(&stream, at as u64, 65536, UNCACHED), &bytes[at..at + 65536]);
    }
    assert_eq!(hot.resident(), before);
    let stats = rig.cache.stats();
    assert_eq!(stats.lost_pages, 0);
    assert_eq!(passes(stats), passes_before, "an uncached stream reclaims nothing");
    // A cached stream passes through the small queue; most of the hot set stays.
    for at in (0..bytes.len()).step_by(65536) {
        read_full(&stream, at as u64, 65536, CACHED);
        if at % (1 << 20) == 0 {
            warm();
        }
    }
    let left: u64 = hot.resident().iter().map(|r| r.end - r.start).sum();
    assert!(left >= 340 * PAGE, "{} of 400 hot pages left", left / PAGE);
}

/// Frames that the cache reserves for uncached operations: at least one step of a write.
fn reserve(pages: u64) -> u64 {
    (pages / 32).max((pages / 8).min(257))
}

/// A rig whose uncached calls wait for frames of others of their kind even if the machine does not run,
/// for a while, the threads that would return them.
fn patient(pages: u64) -> Rig {
    let rig = Rig::new(pages);
    rig.cache.scale_patience(400);
    rig
}

/// A cache full of other users' pages except for its reserve.
fn full_of_others(rig: &Rig) -> weir_pagecache::File {
    let hot = rig.create("hot");
    let pages = rig.cache.budget_bytes() / PAGE;
    let len = pages - reserve(pages) - 2;
    write_all(&hot, &pattern(len as usize * 4096, 20), 0);
    hot.sync(true).unwrap();
    assert_eq!(hot.resident(), [0..len * PAGE]);
    hot
}

#[test]
fn i1_a_call_of_the_budgets_size_evicts_no_other_pages() {
    let rig = patient(2048);
    let hot = full_of_others(&rig);
    let before = hot.resident();
    let bytes = pattern(2048 * 4096 + 1234, 21);
    let file = rig.create("f");
    for round in 0..3 {
        rig.store.set_late(round == 2);
        assert_eq!(file.write_at(&bytes, 77, UNCACHED), Ok(bytes.len()));
        file.sync(true).unwrap();
        let mut got = vec![0; bytes.len()];
        assert_eq!(file.read_at(&mut got, 77, UNCACHED), Ok(bytes.len()));
        assert!(got == bytes);
        let mut at = 77;
        while at < bytes.len() as u64 {
            let lent = file.read_segments(at, bytes.len(), UNCACHED).unwrap();
            assert!(lent.end(at) > at);
            at = lent.end(at);
        }
    }
    assert_eq!(rig.cache.stats().lost_pages, 0);
    assert_eq!(hot.resident(), before);
}

#[test]
fn i1_concurrent_uncached_streams_evict_no_other_pages() {
    let rig = patient(2048);
    let hot = full_of_others(&rig);
    let before = hot.resident();
    rig.store.set_late(true);
    let bytes = pattern(4 << 20, 22);
    std::thread::scope(|scope| {
        for n in 0..8 {
            let (rig, bytes) = (&rig, &bytes);
            scope.spawn(move || {
                let file = rig.create(&format!("f{n}"));
                for at in (0..bytes.len()).step_by(65536) {
                    file.write_at(&bytes[at..at + 65536], at as u64, UNCACHED).unwrap();
                }
                for at in (0..bytes.len()).step_by(65536) {
                    assert!(read_full(&file, at as u64, 65536, UNCACHED) == bytes[at..at + 65536]);
                }
            });
        }
    });
    assert_eq!(rig.cache.stats().lost_pages, 0);
    assert_eq!(hot.resident(), before);
}

/// A store that takes 100 ms for each operation holds the reserve, so its frames return late.
#[test]
fn i1_uncached_streams_of_a_slow_store_evict_no_other_pages() {
    let rig = patient(2048);
    let names = ["a", "b", "c", "d", "e", "f", "g", "h"];
    let written = pattern(1 << 20, 25);
    let cold = names.map(|name| rig.cold(name, &written));
    let hot = full_of_others(&rig);
    let before = hot.resident();
    rig.store.switches.slow.store(100, Ordering::SeqCst);
    rig.store.set_late(true);
    std::thread::scope(|scope| {
        for file in &cold {
            let written = &written;
            scope.spawn(move || {
                for at in (0..written.len()).step_by(1 << 19) {
                    let found = read_full(file, at as u64, 1 << 19, UNCACHED);
                    assert!(found == written[at..at + (1 << 19)]);
                }
            });
        }
    });
    assert_eq!(rig.cache.stats().lost_pages, 0, "reads");
    std::thread::scope(|scope| {
        for file in &cold {
            let written = &written;
            scope.spawn(move || {
                for at in (0..written.len()).step_by(1 << 19) {
                    let bytes = &written[at..at + (1 << 19)];
                    file.write_at(bytes, at as u64, UNCACHED).unwrap();
                }
            });
        }
    });
    assert_eq!(rig.cache.stats().lost_pages, 0, "writes");
    assert_eq!(hot.resident(), before);
}

#[test]
fn i1_uncached_calls_evict_no_other_pages_with_any_budget() {
    for pages in [16, 17, 64, 300, 512, 2048, 8192] {
        let rig = patient(pages);
        let hot = full_of_others(&rig);
        let before = hot.resident();
        for late in [false, true] {
            rig.store.set_late(late);
            std::thread::scope(|scope| {
                for n in 0..4u64 {
                    let rig = &rig;
                    scope.spawn(move || {
                        // Each write has one step of the largest size, or several.
                        let bytes = pattern((1 << 20) + 4000, n + pages);
                        let file = rig.create(&format!("{late}{n}"));
                        for at in [0, 1 << 20, 77] {
                            assert_eq!(file.write_at(&bytes, at, UNCACHED), Ok(bytes.len()));
                            assert!(read_full(&file, at, bytes.len(), UNCACHED) == bytes);
                        }
                        file.write_at(b"half a page", 5 * PAGE + 3, UNCACHED).unwrap();
                    });
                }
            });
        }
        assert_eq!(rig.cache.stats().lost_pages, 0, "{pages} pages");
        assert_eq!(hot.resident(), before, "{pages} pages");
    }
}

/// No store works meanwhile: a thread holds the frames, and the system may not run it for a while.
#[test]
fn i1_an_uncached_call_waits_for_a_reader_of_lent_pages() {
    let rig = patient(2048);
    let lent_from = rig.cold("lent", &pattern(300 * 4096, 23));
    Rig::random(&lent_from);
    let bytes = pattern(100 * 4096, 24);
    let other = rig.cold("other", &bytes);
    let hot = full_of_others(&rig);
    let before = hot.resident();
    let mut lent = Vec::new();
    let mut at = 0;
    while rig.cache.used_bytes() < rig.cache.budget_bytes() {
        let segments = lent_from.read_segments(at, 4096, UNCACHED).unwrap();
        at = segments.end(at);
        lent.push(segments);
    }
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| read_full(&other, 0, bytes.len(), UNCACHED));
        until("the wait", || rig.cache.stats().memory_waits > 0);
        std::thread::sleep(Duration::from_millis(100));
        drop(lent);
        assert!(reader.join().unwrap() == bytes);
    });
    assert_eq!(rig.cache.stats().lost_pages, 0);
    assert_eq!(hot.resident(), before);
}

#[test]
fn an_uncached_call_does_not_wait_for_a_hanging_store() {
    let rig = Rig::new(2048);
    let other = rig.cold("other", &pattern(100 * 4096, 23));
    let _hot = full_of_others(&rig);
    rig.store.switches.hold_writes.store(true, Ordering::SeqCst);
    // All of the reserve, and all other free frames.
    for pages in [256, 2] {
        let stuck = rig.create(&format!("stuck{pages}"));
        stuck.write_at(&pattern(pages * 4096, 24), 0, UNCACHED).unwrap();
    }
    read_full(&other, 0, 100 * 4096, UNCACHED);
    assert!(rig.cache.stats().lost_pages > 0, "and so it takes pages of others");
    rig.store.switches.hold_writes.store(false, Ordering::SeqCst);
}

#[test]
fn i2_the_page_at_a_misaligned_streams_position_stays() {
    let rig = Rig::new(64);
    let bytes = pattern(20 * 4096, 25);
    let file = rig.cold("f", &bytes);
    Rig::random(&file);
    let (one, two) = (rig.open(file.id()), rig.open(file.id()));
    Rig::random(&one);
    Rig::random(&two);
    assert!(read_full(&one, 0, 6000, UNCACHED) == bytes[..6000]);
    assert_eq!(file.resident(), [PAGE..2 * PAGE], "one page of each open file");
    assert!(read_full(&two, 5 * PAGE, 100, UNCACHED) == bytes[5 * 4096..][..100]);
    assert_eq!(file.resident(), [PAGE..2 * PAGE, 5 * PAGE..6 * PAGE]);
    // The next call continues there, and drops it.
    let reads = rig.store.switches.reads.load(Ordering::SeqCst);
    assert!(read_full(&one, 6000, 2000, UNCACHED) == bytes[6000..8000]);
    assert_eq!(rig.store.switches.reads.load(Ordering::SeqCst), reads, "read again");
    assert!(read_full(&one, 8000, 192, UNCACHED) == bytes[8000..8192]);
    assert_eq!(file.resident(), [5 * PAGE..6 * PAGE]);
    // A cached read claims it like any other page, so it stays.
    read_full(&one, 10 * PAGE + 7, 5, UNCACHED);
    read_full(&two, 10 * PAGE, 5, CACHED);
    drop(one);
    drop(two);
    // If the store's tasks had the file at that moment, the close left the page to reclaim.
    if rig.cache.stats().prune_skips == 0 {
        assert_eq!(file.resident(), [10 * PAGE..11 * PAGE], "the close took the other one");
    }
}

#[test]
fn i2_the_page_at_a_streams_position_is_reclaimed_first() {
    let rig = Rig::new(64);
    let bytes = pattern(200 * 4096, 26);
    let file = rig.cold("f", &bytes);
    Rig::random(&file);
    read_full(&file, 100, 100, UNCACHED);
    // As many pages as leave the reserve alone.
    for page in 1..55 {
        read_full(&file, page * PAGE, 4096, CACHED);
    }
    assert_eq!(file.resident(), [0..55 * PAGE]);
    read_full(&file, 100 * PAGE, 10 * 4096, CACHED);
    assert!(file.resident()[0].start > 0, "{:?}", file.resident());
    assert_eq!(rig.cache.stats().reclaimed_uncached, 1);
}

#[test]
fn a_file_in_a_thread_local_may_be_dropped_when_the_thread_ends() {
    /// Reports whether the drop of its file has succeeded.
    struct Kept(Option<File>, Sender<bool>);

    impl Drop for Kept {
        fn drop(&mut self) {
            // A panic in a destructor of a thread-local aborts the process.
            let dropped = catch_unwind(AssertUnwindSafe(|| drop(self.0.take())));
            self.1.send(dropped.is_ok()).unwrap();
        }
    }

    thread_local! {
        static KEPT: RefCell<Option<Kept>> = const { RefCell::new(None) };
    }
    let rig = Rig::new(64);
    let file = rig.cold("f", &pattern(2 * 4096, 27));
    let id = file.id();
    let (report, reported) = channel();
    let thread = std::thread::spawn(move || {
        // Made before the thread first uses the cache, so it is dropped after what the cache keeps there.
        KEPT.set(Some(Kept(Some(file), report)));
        KEPT.with_borrow(|kept| {
            let file = kept.as_ref().unwrap().0.as_ref().unwrap();
            // The file's close drops the page.
            read_full(file, 0, 100, UNCACHED);
        });
    });
    assert!(reported.recv().unwrap());
    thread.join().unwrap();
    if rig.cache.stats().prune_skips == 0 {
        assert_eq!(rig.fs.residency(id).map(|found| found.resident_bytes), Some(0));
    }
}

#[test]
fn the_fast_path_heeds_access_and_advice() {
    let rig = Rig::new(64);
    let file = rig.cold("f", &pattern(4096, 28));
    let writer = block_on(rig.fs.open(&Caller::Own, file.id(), Access::WRITE)).unwrap();
    let mut buf = [0; 100];
    read_full(&file, 0, 4096, CACHED);
    assert_eq!(file.read_resident(&mut buf, 0), Some(100));
    assert_eq!(writer.read_resident(&mut buf, 0), None, "not open for reading");
    file.advise(0, 0, Advice::DontNeed).unwrap();
    file.advise(0, 0, Advice::NoReuse).unwrap();
    file.advise(0, 0, Advice::WillNeed).unwrap();
    until("the fill", || file.resident() == [0..PAGE]);
    assert_eq!(file.read_resident(&mut buf, 0), None, "left to the read that drops the page");
    assert_eq!(rig.cache.stats().claimed_pages, 0);
}
