//! Open files apart from uncached I/O: flags, holes, errors, attributes, removal.

#![allow(clippy::single_range_in_vec_init, reason = "resident pages are a list of ranges")]

mod common;

use common::{Rig, block_on, pattern, read_full, until, write_all};
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant, SystemTime};
use weir_pagecache::{Background, Cache, Config, Segment};
use weir_stores::fault::{Call, Fault, Rule, What, When};
use weir_stores::memory::MemoryFs;
use weir_vfs::{
    Access, Advice, Caller, Capabilities, CreateMode, Error, FileSystem, IoFlags, ReaddirRequest,
    SegmentKind, SetAttr, SetTime,
};

const PAGE: u64 = 4096;
const NONE: IoFlags = IoFlags::empty();

#[test]
fn i5_reads_are_clipped_at_the_end_of_file() {
    let rig = Rig::new(64);
    let file = rig.create("f");
    write_all(&file, b"hello", 0);
    let mut buf = [9; 10];
    assert_eq!(file.read_at(&mut buf, 0, NONE), Ok(5));
    assert_eq!(&buf, b"hello\x09\x09\x09\x09\x09");
    assert_eq!(file.read_at(&mut buf, 5, NONE), Ok(0));
    assert_eq!(file.read_at(&mut buf, u64::MAX - 3, NONE), Ok(0));
    assert_eq!(file.read_resident(&mut buf, 5), None);
    assert!(file.read_segments(5, 10, NONE).unwrap().eof);
    // No truncated byte comes back.
    file.truncate(2).unwrap();
    file.truncate(10).unwrap();
    assert_eq!(read_full(&file, 0, 20, NONE), b"he\0\0\0\0\0\0\0\0");
    write_all(&file, b"X", 6000);
    assert_eq!(&read_full(&file, 0, 12, NONE), b"he\0\0\0\0\0\0\0\0\0\0");
}

#[test]
fn i5_a_fill_overtaken_by_a_truncate_publishes_nothing() {
    let rig = Rig::new(64);
    let file = rig.cold("f", &pattern(8 * 4096, 1));
    Rig::random(&file);
    rig.store.switches.hold_reads.store(true, Ordering::SeqCst);
    let reads = rig.store.switches.reads.load(Ordering::SeqCst);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| read_full(&file, 0, 100, NONE));
        until("the fill", || rig.store.switches.reads.load(Ordering::SeqCst) > reads);
        file.truncate(0).unwrap();
        file.truncate(8 * PAGE).unwrap();
        rig.store.switches.hold_reads.store(false, Ordering::SeqCst);
        let got = reader.join().unwrap();
        assert!(got.is_empty() || got == [0; 100], "bytes of before the truncate");
    });
    assert_eq!(read_full(&file, 0, 8 * 4096, NONE), [0; 8 * 4096]);
}

/// A truncation changes the store first, and then the cache: a read in between is not published, as
/// the cache still shows the old length.
#[test]
fn i5_a_fill_during_a_truncate_publishes_nothing() {
    let rig = Rig::new(64);
    let bytes = pattern(8 * 4096, 1);
    let file = rig.cold("f", &bytes);
    Rig::random(&file);
    let switches = &rig.store.switches;
    switches.hold_reads.store(true, Ordering::SeqCst);
    switches.hold_sizes.store(true, Ordering::SeqCst);
    let reads = switches.reads.load(Ordering::SeqCst);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| read_full(&file, 0, 100, NONE));
        until("the fill", || switches.reads.load(Ordering::SeqCst) > reads);
        let cut = scope.spawn(|| file.truncate(0).unwrap());
        until("the store's file to be cut off", || switches.sizes.load(Ordering::SeqCst) > 0);
        switches.hold_reads.store(false, Ordering::SeqCst);
        // The fill has read nothing; the reader waits until the file's size agrees, and so does a
        // caller that asks for the next data.
        until("the end of the fill", || rig.cache.used_bytes() <= PAGE);
        let extent = scope.spawn(|| block_on(file.extent_at_async(0)));
        assert_eq!(file.size(), 8 * PAGE);
        std::thread::sleep(std::time::Duration::from_millis(20));
        switches.hold_sizes.store(false, Ordering::SeqCst);
        assert_eq!(reader.join().unwrap(), b"", "of a file as long as before");
        assert_eq!(extent.join().unwrap(), Err(weir_vfs::Error::NoSuchRange));
        cut.join().unwrap();
    });
}

#[test]
fn i8_a_hole_of_any_length_uses_no_frame() {
    let rig = Rig::new(64);
    let file = rig.create("f");
    file.truncate(2 << 40).unwrap();
    let mut buf = vec![1; 1 << 20];
    assert_eq!(file.read_at(&mut buf, 1 << 40, NONE), Ok(1 << 20));
    assert!(buf.iter().all(|&b| b == 0));
    let lent = file.read_segments(12345, 100, NONE).unwrap();
    assert!(lent.eof);
    assert!(matches!(lent.segments[..], [Segment::Hole { start: 12345, end }] if end == 2 << 40));
    assert_eq!(rig.cache.used_bytes(), 0);
    // The same when the store reports the hole.
    let file = rig.open(file.id());
    file.advise(0, 0, Advice::DontNeed).unwrap();
    write_all(&file, b"end", (2 << 40) - 3);
    file.sync(true).unwrap();
    let other = Cache::new(Config { budget_bytes: 1 << 20, ..Config::default() }).unwrap();
    let fs = other.mount(rig.store.clone());
    let again = block_on(fs.open(&Caller::Own, file.id(), Access::READ)).unwrap();
    let lent = again.read_segments(5, 10, NONE).unwrap();
    match lent.segments[..] {
        [Segment::Hole { start: 5, end }] => assert!(end > 1 << 40, "hole to {end}"),
        _ => panic!("not a hole"),
    }
    assert_eq!(other.used_bytes(), 0);
    let reads = rig.store.switches.reads.load(Ordering::SeqCst);
    assert_eq!(again.read_at(&mut buf, 1 << 39, NONE), Ok(1 << 20));
    assert_eq!(rig.store.switches.reads.load(Ordering::SeqCst), reads, "known already");
}

#[test]
fn i9_a_failed_fill_publishes_nothing_and_the_next_one_succeeds() {
    let rig = Rig::new(64);
    let bytes = pattern(3 * 4096, 2);
    let file = rig.cold("f", &bytes);
    rig.store.switches.fail_reads.store(100, Ordering::SeqCst);
    let mut buf = [3; 100];
    assert_eq!(file.read_at(&mut buf, 0, NONE), Err(Error::Io));
    assert!(file.read_segments(0, 100, NONE).is_err());
    assert_eq!(file.write_at(b"x", 1, NONE), Err(Error::Io), "part of a page that cannot be read");
    assert_eq!(file.resident(), []);
    rig.store.switches.fail_reads.store(0, Ordering::SeqCst);
    assert_eq!(read_full(&file, 0, bytes.len(), NONE), bytes);
}

/// Like system calls, stores reject reads past the largest offset; the last page up to it lacks one
/// byte.
#[test]
fn the_last_page_of_the_largest_file_is_read() {
    const LAST: u64 = i64::MAX as u64;
    let rig = Rig::new(64);
    let file = rig.create("f");
    write_all(&file, b"the end", LAST - 7);
    assert_eq!(file.write_at(b"x", LAST, NONE), Err(Error::TooBig));
    file.sync(true).unwrap();
    for flags in [NONE, IoFlags::UNCACHED] {
        until("a clean page", || {
            file.advise(0, 0, Advice::DontNeed).unwrap();
            file.resident().is_empty()
        });
        assert_eq!(read_full(&file, LAST - 9, 100, flags), b"\0\0the end");
        assert_eq!(read_full(&file, LAST - 10_000, 20_000, flags).len(), 10_000);
        let lent = file.read_segments(LAST - 7, 4096, flags).unwrap();
        assert!(lent.eof && lent.end(LAST - 7) == LAST);
    }
}

#[test]
fn nowait_does_not_wait() {
    let rig = Rig::new(64);
    let bytes = pattern(2 * 4096, 4);
    let file = rig.cold("f", &bytes);
    Rig::random(&file);
    let mut buf = vec![0; 8192];
    assert_eq!(file.read_at(&mut buf, 0, IoFlags::NOWAIT), Err(Error::WouldBlock));
    assert_eq!(file.write_at(b"x", 1, IoFlags::NOWAIT), Err(Error::WouldBlock));
    read_full(&file, 0, 10, NONE);
    assert_eq!(file.read_at(&mut buf, 0, IoFlags::NOWAIT), Ok(4096), "the resident prefix");
    assert_eq!(file.write_at(b"x", 1, IoFlags::NOWAIT), Ok(1));
    assert_eq!(file.write_at(&[1; 4096], PAGE, IoFlags::NOWAIT), Ok(4096), "a whole page");
}

#[test]
fn appends_of_many_threads_do_not_overlap() {
    let rig = Rig::new(256);
    rig.store.set_late(true);
    let file = rig.create("f");
    std::thread::scope(|scope| {
        for thread in 0..4u8 {
            let file = &file;
            scope.spawn(move || {
                for n in 0..200u16 {
                    let mut record = vec![thread; 300];
                    record[1..3].copy_from_slice(&n.to_le_bytes());
                    assert_eq!(file.write_at(&record, 0, IoFlags::APPEND), Ok(300));
                }
            });
        }
    });
    assert_eq!(file.size(), 4 * 200 * 300);
    let bytes = read_full(&file, 0, 1 << 20, NONE);
    let mut next = [0u16; 4];
    for record in bytes.chunks(300) {
        let n = u16::from_le_bytes([record[1], record[2]]);
        let thread = record[0] as usize;
        assert_eq!(n, next[thread]);
        next[thread] += 1;
    }
    assert!(rig.cache.stats().appends_in_place > 500);
}

#[test]
fn dsync_and_sync_writes_are_in_the_store_when_they_return() {
    let rig = Rig::new(64);
    let file = rig.create("f");
    for flags in [IoFlags::DSYNC, IoFlags::SYNC] {
        file.write_at(b"durable", 0, flags).unwrap();
        assert_eq!(rig.cache.dirty_bytes(), 0);
    }
    assert!(rig.cache.stats().writeback_ops >= 2);
}

#[test]
fn lent_pages_do_not_change_and_count_against_the_budget() {
    let rig = Rig::new(64);
    let file = rig.create("f");
    write_all(&file, &[1; 8192], 0);
    let lent = file.read_segments(100, 5000, NONE).unwrap();
    write_all(&file, &[2; 8192], 0);
    file.truncate(0).unwrap();
    let Segment::Data { start: 100, pages } = &lent.segments[0] else { panic!("no data") };
    let mut slices = Vec::new();
    pages.slices(10, &mut slices);
    let bytes: Vec<u8> = slices.iter().flat_map(|s| s.iter().copied()).collect();
    assert_eq!(bytes, [1; 4990]);
    assert!(!lent.eof);
    assert!(rig.cache.used_bytes() >= 8192);
    drop(slices);
    drop(lent);
    until("all memory", || rig.cache.used_bytes() == 0);
}

#[test]
fn a_store_and_a_switch_can_disable_the_fast_path() {
    let rig = Rig::with(64, Capabilities::all() - Capabilities::FAST_READ);
    let file = rig.create("f");
    write_all(&file, b"hello", 0);
    let mut buf = [0; 5];
    assert_eq!(file.read_resident(&mut buf, 0), None);
    assert_eq!(file.read_at(&mut buf, 0, NONE), Ok(5));
    assert_eq!(&buf, b"hello");
    let rig = Rig::new(64);
    let file = rig.create("f");
    write_all(&file, b"hello", 0);
    assert_eq!(file.read_resident(&mut buf, 0), Some(5));
    rig.cache.set_fast_read(false);
    assert_eq!(file.read_resident(&mut buf, 0), None);
    assert_eq!(file.read_at(&mut buf, 0, NONE), Ok(5));
    let stats = rig.cache.stats();
    assert_eq!((stats.fast_reads, stats.fallback_off), (1, 2));
}

#[test]
fn a_dropped_read_blocks_no_other_operation() {
    let rig = Rig::new(64);
    let bytes = pattern(4 * 4096, 5);
    let file = rig.cold("f", &bytes);
    Rig::random(&file);
    for flags in [NONE, IoFlags::UNCACHED] {
        rig.store.switches.hold_reads.store(true, Ordering::SeqCst);
        let mut buf = vec![0; 8192];
        {
            let mut read = Box::pin(file.read_at_async(&mut buf, 0, flags));
            let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
            assert!(read.as_mut().poll(&mut cx).is_pending());
        }
        rig.store.switches.hold_reads.store(false, Ordering::SeqCst);
        assert_eq!(read_full(&file, 0, 8192, NONE), &bytes[..8192]);
        file.advise(0, 0, Advice::DontNeed).unwrap();
        until("all memory", || rig.cache.used_bytes() == 0);
    }
}

#[test]
fn extents_include_dirty_data() {
    let rig = Rig::new(64);
    let file = rig.create("f");
    file.truncate(20 * PAGE).unwrap();
    write_all(&file, &[1; 4096], 5 * PAGE);
    let kinds = |at: u64| {
        let e = block_on(file.extent_at_async(at)).unwrap();
        (e.kind, e.start, e.end)
    };
    for _ in 0..2 {
        assert_eq!(kinds(0), (SegmentKind::Hole, 0, 5 * PAGE));
        assert_eq!(kinds(5 * PAGE + 7), (SegmentKind::Data, 5 * PAGE + 7, 6 * PAGE));
        assert_eq!(kinds(6 * PAGE), (SegmentKind::Hole, 6 * PAGE, 20 * PAGE));
        file.sync(true).unwrap();
    }
    assert_eq!(block_on(file.extent_at_async(20 * PAGE)), Err(Error::NoSuchRange));
}

#[test]
fn a_clone_has_earlier_writes_and_no_later_ones() {
    let rig = Rig::new(256);
    let from = rig.create("a");
    let to = rig.create("b");
    let bytes = pattern(8 * 4096, 6);
    write_all(&from, &bytes, 0);
    write_all(&to, &[9; 100], 0);
    match block_on(to.clone_range_async(&from, 0, 0, 0)) {
        Ok(()) => {}
        Err(Error::NotSupported) => return,
        Err(error) => panic!("{error}"),
    }
    write_all(&from, &[1; 4096], 0);
    assert_eq!(read_full(&to, 0, 1 << 20, NONE), bytes);
    let error = block_on(to.clone_range_async(&from, 4 * PAGE, 100 * PAGE, 0));
    assert_eq!(error, Err(Error::Invalid));
}

#[test]
fn writes_change_times_and_change_attribute_and_writeback_does_not() {
    let rig = Rig::new(64);
    let file = rig.create("f");
    let id = file.id();
    let mut last = block_on(rig.fs.getattr(id)).unwrap();
    for n in 0..3 {
        write_all(&file, b"x", n);
        let now = block_on(rig.fs.getattr(id)).unwrap();
        assert!(now.change > last.change && now.mtime >= last.mtime && now.size == n + 1);
        last = now;
    }
    file.sync(false).unwrap();
    let after = block_on(file.getattr()).unwrap();
    assert_eq!((after.change, after.mtime, after.ctime), (last.change, last.mtime, last.ctime));
    let name = block_on(rig.fs.lookup(&Caller::Own, rig.fs.root().entry(b"f"))).unwrap();
    assert_eq!((name.change, name.size), (last.change, 3));
    let stored = block_on(rig.store.getattr(id)).unwrap();
    assert_eq!(stored.mtime, last.mtime, "the store has the time of the write");
    let page = block_on(rig.fs.readdir(
        &Caller::Own,
        ReaddirRequest { dir: rig.fs.root(), cookie: 0, max_entries: 10, with_attr: true },
    ))
    .unwrap();
    assert_eq!(page.entries[0].attr.as_ref().unwrap().change, last.change);
}

#[test]
fn times_set_on_a_dirty_file_survive_writeback() {
    let rig = Rig::new(64);
    let file = rig.create("f");
    write_all(&file, b"x", 0);
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
    let set = SetAttr { mtime: Some(SetTime::To(time)), ..SetAttr::default() };
    let attr = block_on(rig.fs.setattr(&Caller::Own, file.id(), &set)).unwrap();
    assert_eq!((attr.mtime, attr.size), (time, 1));
    file.sync(false).unwrap();
    assert_eq!(block_on(file.getattr()).unwrap().mtime, time);
    assert_eq!(block_on(rig.store.getattr(file.id())).unwrap().mtime, time);
    let before = block_on(file.getattr()).unwrap();
    let set = SetAttr { mode: Some(0o600), size: Some(5), ..SetAttr::default() };
    let attr = block_on(rig.fs.setattr(&Caller::Own, file.id(), &set)).unwrap();
    assert_eq!((attr.mode, attr.size), (0o600, 5));
    assert!(attr.change > before.change);
}

#[test]
fn a_change_by_another_program_is_noticed() {
    let rig = Rig::new(64);
    let file = rig.create("f");
    write_all(&file, b"ours", 0);
    file.sync(false).unwrap();
    let before = block_on(file.getattr()).unwrap();
    let other = Cache::new(Config::default()).unwrap().mount(rig.store.clone());
    let outside = block_on(other.open(&Caller::Own, file.id(), Access::WRITE)).unwrap();
    write_all(&outside, b"theirs", 0);
    outside.sync(false).unwrap();
    let after = block_on(file.getattr()).unwrap();
    assert!(after.change > before.change);
    assert_eq!(after.size, 6);
    assert_eq!(read_full(&file, 0, 10, NONE), b"theirs");
    assert_eq!(rig.cache.stats().outside_changes, 1);
}

#[test]
fn a_removed_file_lives_until_its_last_close_and_is_not_written_back() {
    let rig = Rig::new(64);
    let file = rig.create("f");
    let root = rig.fs.root();
    write_all(&file, b"still here", 0);
    block_on(rig.fs.unlink(&Caller::Own, root.entry(b"f"))).unwrap();
    assert_eq!(read_full(&file, 0, 20, NONE), b"still here");
    drop(file);
    until("all memory", || rig.cache.used_bytes() == 0 && rig.cache.dirty_bytes() == 0);
    let file = rig.create("g");
    write_all(&file, b"replaced", 0);
    drop(file);
    drop(rig.create("h"));
    let replace = weir_vfs::RenameFlags::Replace;
    block_on(rig.fs.rename(&Caller::Own, root.entry(b"h"), root.entry(b"g"), replace)).unwrap();
    until("all memory", || rig.cache.used_bytes() == 0 && rig.cache.dirty_bytes() == 0);
}

#[test]
fn the_store_decides_rights_and_opens_with_the_requested_access() {
    let rig = Rig::new(64);
    let file = rig.create("f");
    let set = SetAttr { mode: Some(0o640), ..SetAttr::default() };
    block_on(rig.fs.setattr(&Caller::Own, file.id(), &set)).unwrap();
    let stranger = Caller::As(weir_vfs::Cred { uid: 65534, gid: 65534, groups: vec![] });
    let refused = block_on(rig.fs.open(&stranger, file.id(), Access::READ));
    assert!(matches!(refused, Err(Error::AccessDenied)));
    let dir = block_on(rig.fs.open(&Caller::Own, rig.fs.root(), Access::READ));
    assert!(matches!(dir, Err(Error::IsDirectory)));
    let reader = block_on(rig.fs.open(&Caller::Own, file.id(), Access::READ)).unwrap();
    assert_eq!(reader.write_at(b"x", 0, NONE), Err(Error::BadFile));
    assert_eq!(reader.truncate(0), Err(Error::BadFile));
    let writer = block_on(rig.fs.open(&Caller::Own, file.id(), Access::WRITE)).unwrap();
    assert_eq!(writer.read_at(&mut [0], 0, NONE), Err(Error::BadFile));
}

#[test]
fn sequential_reads_cause_read_ahead_and_random_ones_do_not() {
    let rig = Rig::new(1024);
    let bytes = pattern(200 * 4096, 7);
    let file = rig.cold("f", &bytes);
    for at in (0..bytes.len()).step_by(4096) {
        assert_eq!(read_full(&file, at as u64, 4096, NONE), &bytes[at..at + 4096]);
    }
    let stats = rig.cache.stats();
    assert!(stats.fills < 30, "{} reads of the store for 200 pages", stats.fills);
    let file = rig.cold("g", &bytes);
    let mut random = common::Random(8);
    let before = rig.cache.stats();
    for _ in 0..50 {
        read_full(&file, random.below(180) * PAGE + PAGE, 4096, NONE);
    }
    let pages = rig.cache.stats().fill_pages - before.fill_pages;
    assert!(pages <= 100, "{pages} pages for 50 random reads");
}

#[test]
fn a_range_is_synced_and_the_rest_stays_dirty() {
    // No flusher.
    let background = Background::Rounds;
    let rig = Rig::configured(Config { budget_bytes: 64 * PAGE, background, ..Config::default() });
    let file = rig.create("f");
    write_all(&file, &pattern(4 * 4096, 1), 0);
    write_all(&file, &pattern(4 * 4096, 2), 20 * PAGE);
    assert_eq!(rig.cache.dirty_bytes(), 8 * PAGE);
    // Syncing one byte of a page syncs all of it.
    block_on(file.sync_range_async(PAGE + 5..2 * PAGE + 1, true)).unwrap();
    assert_eq!(rig.cache.dirty_bytes(), 6 * PAGE);
    block_on(file.sync_range_async(0..20 * PAGE, true)).unwrap();
    assert_eq!(rig.cache.dirty_bytes(), 4 * PAGE);
    block_on(file.sync_range_async(20 * PAGE..u64::MAX, false)).unwrap();
    assert_eq!(rig.cache.dirty_bytes(), 0);
}

#[test]
fn a_page_written_and_dropped_during_a_hole_lookup_is_no_hole() {
    let rig = Rig::new(1024);
    let file = rig.create("f");
    let page = pattern(4096, 1);
    for at in [0, 63] {
        write_all(&file, &page, at * PAGE);
    }
    file.sync(false).unwrap();
    // This cache does not know of the hole yet.
    let cache = Cache::new(Config { budget_bytes: 1 << 20, ..Config::default() }).unwrap();
    let fs = cache.mount(rig.store.clone());
    let again = block_on(fs.open(&Caller::Own, file.id(), Access::READ | Access::WRITE)).unwrap();
    again.advise(0, 0, Advice::Random).unwrap();
    write_all(&again, &page, 20 * PAGE);

    let switches = &rig.store.switches;
    switches.hold_answers.store(true, Ordering::SeqCst);
    let reader = again.clone();
    let reader = std::thread::spawn(move || read_full(&reader, 2 * PAGE, 4096, NONE));
    until("the store has looked", || switches.answers_held.load(Ordering::SeqCst) > 0);
    again.sync(true).unwrap();
    until("the page is dropped", || {
        again.advise(0, 0, Advice::DontNeed).unwrap();
        again.resident().is_empty()
    });
    switches.hold_answers.store(false, Ordering::SeqCst);
    assert_eq!(reader.join().unwrap(), [0; 4096]);
    assert!(read_full(&again, 20 * PAGE, 4096, NONE) == page);
}

#[test]
fn data_between_short_holes_takes_few_reads() {
    let rig = Rig::new(1024);
    let file = rig.create("f");
    let page = pattern(4096, 1);
    for at in (1..256).step_by(2) {
        write_all(&file, &page, at * PAGE);
    }
    file.sync(false).unwrap();
    let read_again = || {
        file.advise(0, 0, Advice::DontNeed).unwrap();
        until("all is dropped", || {
            file.advise(0, 0, Advice::DontNeed).unwrap();
            file.resident().is_empty()
        });
        let before = rig.store.switches.reads.load(Ordering::SeqCst);
        for at in (0..256).step_by(16) {
            let got = read_full(&file, at * PAGE, 16 * 4096, NONE);
            let pages: Vec<&[u8]> = got.chunks(4096).collect();
            assert!(pages.iter().step_by(2).all(|p| *p == [0; 4096]), "holes at {at}");
            assert!(pages.iter().skip(1).step_by(2).all(|p| *p == page), "data at {at}");
        }
        rig.store.switches.reads.load(Ordering::SeqCst) - before
    };
    // On the first read, the cache learns of the holes; that must not split later reads.
    read_again();
    let reads = read_again();
    assert!(reads <= 16, "{reads} reads for 128 pieces of data");
    assert_eq!(file.stats().fill_errors, 0);
}

#[test]
fn dirty_pages_are_written_back_at_their_age_limit() {
    let rig = Rig::new(1024);
    let file = rig.create("f");
    let start = Instant::now();
    write_all(&file, &pattern(4096, 30), 0);
    until("writeback", || rig.store.switches.writes.load(Ordering::SeqCst) > 0);
    let age = start.elapsed();
    assert!(age >= Duration::from_secs(5), "written after {age:?}");
    until("the end of writeback", || rig.cache.dirty_bytes() == 0);
    assert_eq!(file.resident(), [0..PAGE]);
}

#[test]
fn writers_are_throttled_in_steps_as_dirty_data_grows() {
    // Background writeback from 102 pages on, a pause per call from 255, all writers wait at 409.
    let rig = Rig::new(1024);
    let file = rig.create("f");
    let write =
        |pages: u64, at: u64| write_all(&file, &vec![7; (pages * PAGE) as usize], at * PAGE);
    let waits = || rig.cache.stats().throttle_waits;
    rig.store.switches.hold_writes.store(true, Ordering::SeqCst);
    (0..25).for_each(|n| write(10, n * 10));
    assert_eq!(waits(), 0, "250 pages");
    write(128, 250);
    assert_eq!(waits(), 0, "250 dirty pages when the call began");
    let (calls, done) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0..20 {
                write(1, 378 + n);
                calls.fetch_add(1, Ordering::SeqCst);
            }
            done.store(true, Ordering::SeqCst);
        });
        until("a pause", || waits() == 1);
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(calls.load(Ordering::SeqCst), 0, "no write to the store has ended");
        rig.store.switches.hold_writes.store(false, Ordering::SeqCst);
        until("the writer", || done.load(Ordering::SeqCst));
    });
    file.sync(true).unwrap();
    let before = waits();
    write(100, 0);
    assert_eq!(waits(), before, "free again");
}

#[test]
fn hipri_is_accepted_and_has_no_effect() {
    let rig = Rig::new(64);
    let bytes = pattern(3 * 4096, 31);
    let file = rig.cold("f", &bytes);
    assert_eq!(read_full(&file, 0, bytes.len(), IoFlags::HIPRI), bytes);
    assert_eq!(file.resident(), [0..3 * PAGE]);
    assert_eq!(file.write_at(b"new", 4000, IoFlags::HIPRI), Ok(3));
    assert_eq!(read_full(&file, 4000, 3, IoFlags::HIPRI | IoFlags::UNCACHED), b"new");
    assert_eq!(file.resident(), [0..3 * PAGE]);
}

#[test]
fn zeroing_the_tail_of_a_file_keeps_concurrent_writes() {
    let store = Fault::over(MemoryFs::new(), 1);
    let (_cache, file) = over(store.clone());
    write_all(&file, &pattern(4 * PAGE as usize, 1), 0);
    // Another change of the whole file goes first; a write and the zeroing wait for it.
    store.add(Rule { call: Call::SetSize, when: When::Nth(0), what: What::Hold });
    let write = async {
        let mut bytes = &b"acknowledged"[..];
        while !bytes.is_empty() {
            let at = 64 * PAGE + 12 - bytes.len() as u64;
            let n = file.write_at_async(bytes, at, NONE).await?;
            bytes = &bytes[n..];
        }
        Ok(())
    };
    let let_go = async {
        // Polled last: all others are waiting by now.
        assert!(store.release_one());
        Ok(())
    };
    type Work<'a> = Pin<Box<dyn Future<Output = Result<(), Error>> + 'a>>;
    let mut work: Vec<Work<'_>> = vec![
        Box::pin(file.truncate_async(3 * PAGE)),
        Box::pin(write),
        Box::pin(file.zero_range_async(2 * PAGE, 8 * PAGE, false)),
        Box::pin(let_go),
    ];
    block_on(poll_fn(|cx| {
        work.retain_mut(|work| match work.as_mut().poll(cx) {
            Poll::Ready(done) => done.map(|()| false).unwrap(),
            Poll::Pending => true,
        });
        if work.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    }));
    drop(work);
    assert_eq!(file.size(), 64 * PAGE + 12);
    assert_eq!(read_full(&file, 64 * PAGE, 12, NONE), b"acknowledged");
    let mut expected = pattern(2 * PAGE as usize, 1);
    expected.resize(64 * PAGE as usize, 0);
    assert!(read_full(&file, 0, 64 * PAGE as usize, NONE) == expected);
}

#[test]
fn zeroing_without_space_changes_nothing() {
    let store = Fault::over(MemoryFs::new(), 1);
    let (_cache, file) = over(store.clone());
    let before = pattern(4 * PAGE as usize, 1);
    write_all(&file, &before, 0);
    for (call, reserve) in
        [(Call::Allocate, true), (Call::PunchHole, true), (Call::PunchHole, false)]
    {
        store.add(Rule { call, when: When::Nth(0), what: What::Fail(Error::NoSpace) });
        let done = block_on(file.zero_range_async(PAGE, 10 * PAGE, reserve));
        assert_eq!(done, Err(Error::NoSpace), "{call:?}");
        assert_eq!(file.size(), 4 * PAGE);
        assert!(read_full(&file, 0, 20 * PAGE as usize, NONE) == before, "{call:?}");
        file.sync(false).unwrap();
        assert_eq!(block_on(file.getattr()).unwrap().size, 4 * PAGE, "{call:?}");
        store.clear();
    }
    // Failing to reserve space again is no failure: the zeros are in place.
    store.add(Rule { call: Call::Allocate, when: When::Nth(1), what: What::Fail(Error::NoSpace) });
    block_on(file.zero_range_async(PAGE, 10 * PAGE, true)).unwrap();
    let mut zeros = before[..PAGE as usize].to_vec();
    zeros.resize(11 * PAGE as usize, 0);
    assert!(read_full(&file, 0, 20 * PAGE as usize, NONE) == zeros);
}

/// A file of a store, in a cache.
fn over(store: std::sync::Arc<Fault>) -> (Cache, weir_pagecache::File) {
    let config = Config { budget_bytes: 256 * PAGE, readahead_bytes: 0, ..Config::default() };
    let cache = Cache::new(config).unwrap();
    let fs = cache.mount(store);
    let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    let access = Access::READ | Access::WRITE;
    let file = block_on(async {
        let made = fs
            .create(&Caller::Own, fs.root().entry(b"file").with(&set), CreateMode::MustBeNew)
            .await
            .unwrap();
        fs.open(&Caller::Own, made.attr.id, access).await.unwrap()
    });
    (cache, file)
}

#[test]
fn a_link_during_the_last_unlink_leaves_the_file_unlinked() {
    let rig = Rig::new(64);
    let file = rig.create("f");
    let switches = &rig.store.switches;
    switches.hold_links.store(true, Ordering::SeqCst);
    let root = rig.fs.root();
    std::thread::scope(|scope| {
        let link = scope.spawn(|| block_on(rig.fs.link(&Caller::Own, file.id(), root.entry(b"g"))));
        until("the name", || switches.links.load(Ordering::SeqCst) > 0);
        for name in [b"f", b"g"] {
            block_on(rig.fs.unlink(&Caller::Own, root.entry(name))).unwrap();
        }
        switches.hold_links.store(false, Ordering::SeqCst);
        link.join().unwrap().unwrap();
    });
    assert!(file.is_unlinked());
}
