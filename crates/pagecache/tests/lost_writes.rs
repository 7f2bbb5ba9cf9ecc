//! Writes that the store rejects (I9): who gets the error, which data is kept, and who waits.

mod common;

use common::{Rig, Shaky, block_on, pattern, read_full, until, write_all};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use weir_pagecache::{Cache, Config, File};
use weir_vfs::{Access, Caller, CreateMode, Error, FileSystem, IoFlags, SetAttr};

const PAGE: u64 = 4096;
const NONE: IoFlags = IoFlags::empty();

/// A cache that retries failed writes for this long.
fn patient(patience: Duration) -> Rig {
    Rig::configured(Config { budget_bytes: 1 << 20, write_patience: patience, ..Config::default() })
}

fn fail(store: &Shaky, error: Error, percent: u32) {
    *store.switches.write_error.lock().unwrap() = Some(error);
    store.switches.fail_writes.store(percent, Ordering::SeqCst);
}

#[test]
fn i9_data_with_a_permanent_error_is_dropped_and_reported_once_per_open_file() {
    use Error::{NoSpace, Quota, ReadOnly, Stale, TooBig};
    for error in [NoSpace, Quota, TooBig, ReadOnly, Stale] {
        let rig = Rig::new(64);
        let old = pattern(5000, 1);
        let one = rig.cold("f", &old);
        let (two, three) = (rig.open(one.id()), rig.open(one.id()));
        let change = block_on(one.getattr()).unwrap().change;
        fail(&rig.store, error, 100);
        // Until all is written: the flusher writes what is old.
        rig.store.switches.hold_writes.store(true, Ordering::SeqCst);
        write_all(&one, b"newer", 0);
        write_all(&one, &pattern(3 * 4096, 2), 4096);
        write_all(&one, b"far away", 50 * PAGE);
        assert_eq!(one.size(), 50 * PAGE + 8);
        assert_eq!((one.write_errors(), rig.fs.write_errors()), (0, 0));
        rig.store.switches.hold_writes.store(false, Ordering::SeqCst);
        assert_eq!(one.sync(true), Err(error));
        until("the loss of all", || rig.cache.dirty_bytes() == 0);
        assert!(one.write_errors() > 0 && rig.fs.write_errors() == one.write_errors());
        assert_eq!(rig.cache.stats().writeback_lost_pages, 5);
        // Reads return the store's data, to its end.
        assert_eq!(one.size(), 5000);
        assert!(read_full(&one, 0, 1 << 20, NONE) == old);
        assert!(block_on(one.getattr()).unwrap().change > change, "others have to look again");
        fail(&rig.store, error, 0);
        // The last data may have been lost after the sync that reported the first error.
        let _ = one.sync(true);
        assert_eq!(two.write_at(b"x", 100, NONE), Err(error));
        assert_eq!(two.write_at(b"x", 100, NONE), Ok(1), "told already");
        assert_eq!(three.sync(true), Err(error), "not told yet, though the others are");
        for file in [&one, &two, &three] {
            assert_eq!(file.sync(true), Ok(()));
        }
        assert_eq!(read_full(&rig.open(one.id()), 100, 1, NONE), b"x");
    }
}

#[test]
fn i9_data_with_a_transient_error_is_kept_and_a_sync_waits_for_its_retries() {
    let rig = patient(Duration::from_secs(60));
    let file = rig.create("f");
    fail(&rig.store, Error::Io, 100);
    write_all(&file, b"precious", 0);
    std::thread::scope(|scope| {
        let sync = scope.spawn(|| file.sync(true));
        until("two failures", || rig.cache.stats().writeback_errors > 1);
        assert!(!sync.is_finished());
        assert_eq!(read_full(&file, 0, 100, NONE), b"precious");
        // No open file gets an error for data that is not lost.
        write_all(&file, b"P", 0);
        fail(&rig.store, Error::Io, 0);
        assert_eq!(sync.join().unwrap(), Ok(()));
    });
    file.sync(true).unwrap();
    assert_eq!((rig.cache.dirty_bytes(), file.write_errors()), (0, 0));
    let fresh = Cache::new(Config::default()).unwrap().mount(rig.store.clone());
    let stored = block_on(fresh.open(&Caller::Own, file.id(), Access::READ)).unwrap();
    assert_eq!(read_full(&stored, 0, 100, NONE), b"Precious");
}

#[test]
fn i9_data_is_dropped_after_the_retry_time() {
    let rig = patient(Duration::from_millis(300));
    let (one, two) = (rig.create("f"), rig.create("g"));
    fail(&rig.store, Error::Io, 100);
    write_all(&one, b"precious", 0);
    assert_eq!(one.sync(true), Err(Error::Io));
    assert!(rig.cache.stats().writeback_errors > 1, "tried again");
    assert_eq!((rig.cache.dirty_bytes(), one.size()), (0, 0));
    assert_eq!(one.sync(true), Ok(()));
    // Also without a request by a caller.
    two.write_at(&[1; 4096], 0, IoFlags::UNCACHED).unwrap();
    until("the loss", || rig.cache.dirty_bytes() == 0);
    assert_eq!(two.sync(true), Err(Error::Io));
}

#[test]
fn i9_each_page_has_its_own_retry_time() {
    // The flusher retries after 100, 200, 400, 800 and 1,000 ms: the first page is lost with the last of these.
    const PATIENCE: Duration = Duration::from_millis(2300);
    // Void if the second page came too late, or may have been tried for too long, too.
    let try_once = || {
        let rig = patient(PATIENCE);
        let file = rig.create("f");
        fail(&rig.store, Error::Io, 100);
        file.write_at(&[1; 4096], 0, IoFlags::UNCACHED).unwrap();
        until("four failures", || rig.cache.stats().writeback_errors >= 4);
        let begun = Instant::now();
        // Shares a write with the other page; the write fails.
        let written = file.write_at(&[2; 4096], PAGE, NONE);
        if written != Ok(4096) || file.write_errors() > 0 {
            return false;
        }
        until("the loss of the first", || file.write_errors() > 0);
        fail(&rig.store, Error::Io, 0);
        if begun.elapsed() > PATIENCE {
            return false;
        }
        until("writeback of the second", || rig.cache.dirty_bytes() == 0);
        assert_eq!(rig.cache.stats().writeback_lost_pages, 1);
        assert_eq!(read_full(&file, PAGE, 4096, NONE), [2; 4096]);
        true
    };
    assert!((0..20).any(|_| try_once()), "the machine is too slow");
}

#[test]
fn i9_the_retry_time_is_that_of_all_pages_if_no_write_succeeds() {
    type Asked = fn(&Rig, &File);
    let calls: [Asked; 2] = [
        |rig, file| {
            let set = SetAttr { mtime: Some(weir_vfs::SetTime::Now), ..SetAttr::default() };
            assert!(block_on(rig.fs.setattr(&Caller::Own, file.id(), &set)).is_ok());
        },
        |rig, _| {
            let flush: Box<dyn Future<Output = _> + Send> = Box::new(rig.cache.flush());
            assert_eq!(block_on(Box::into_pin(flush)), Err(Error::Io));
        },
    ];
    for call in calls {
        let write_patience = Duration::from_millis(300);
        let config = Config { budget_bytes: 64 << 20, write_patience, ..Config::default() };
        let rig = Rig::configured(config);
        let file = rig.create("f");
        fail(&rig.store, Error::Io, 100);
        // Writes that end at once are never too many.
        rig.store.switches.late.store(true, Ordering::SeqCst);
        // Many more writes than may be in flight.
        for page in 0..512 {
            file.write_at(&[1; 4096], page * 2 * PAGE, NONE).unwrap();
        }
        let begun = Instant::now();
        call(&rig, &file);
        let elapsed = begun.elapsed();
        assert!(elapsed >= write_patience && elapsed < Duration::from_secs(10), "{elapsed:?}");
        assert_eq!((rig.cache.dirty_bytes(), rig.cache.stats().writeback_lost_pages), (0, 512));
        assert!(rig.store.switches.writes.load(Ordering::SeqCst) >= 512, "each was tried");
        // What is written later has a time of its own.
        assert_eq!(file.sync(true), Err(Error::Io));
        let errors = rig.cache.stats().writeback_errors;
        file.write_at(b"later", 0, NONE).unwrap();
        assert_eq!(file.sync(true), Err(Error::Io));
        assert!(rig.cache.stats().writeback_errors > errors + 1, "tried again");
    }
}

#[test]
fn i9_a_writeback_error_found_by_a_clone_is_reported_once() {
    let rig = Rig::new(64);
    let (file, to) = (rig.create("f"), rig.create("g"));
    fail(&rig.store, Error::NoSpace, 100);
    write_all(&file, b"x", 0);
    let set = SetAttr { mtime: Some(weir_vfs::SetTime::Now), ..SetAttr::default() };
    assert!(block_on(rig.fs.setattr(&Caller::Own, file.id(), &set)).is_ok());
    assert_eq!(file.sync(true), Err(Error::NoSpace));
    assert_eq!(file.sync(true), Ok(()));
    write_all(&file, b"x", 0);
    assert_eq!(block_on(to.clone_range_async(&file, 0, 0, 0)), Err(Error::NoSpace));
    assert_eq!((file.sync(true), to.sync(true)), (Ok(()), Ok(())));
}

#[test]
fn i9_failed_writeback_is_retried_in_the_background() {
    let rig = patient(Duration::from_secs(60));
    let file = rig.create("f");
    fail(&rig.store, Error::Io, 100);
    file.write_at(&pattern(4096, 3), 0, IoFlags::UNCACHED).unwrap();
    until("a failure", || rig.cache.stats().writeback_errors > 0);
    assert_eq!(file.resident().as_slice(), std::slice::from_ref(&(0..PAGE)), "though uncached");
    fail(&rig.store, Error::Io, 0);
    until("success", || rig.cache.dirty_bytes() == 0);
}

#[test]
fn i9_a_store_that_fails_for_good_does_not_keep_the_cache_alive() {
    for fails in [0, 100] {
        // A store that recovers may be late.
        let patience = if fails == 0 { 60_000 } else { 1500 };
        let rig = patient(Duration::from_millis(patience));
        let file = rig.create("f");
        fail(&rig.store, Error::Io, 100);
        write_all(&file, b"precious", 0);
        let store = rig.store.clone();
        drop(file);
        drop(rig);
        until("a write", || store.switches.writes.load(Ordering::SeqCst) > 0);
        fail(&store, Error::Io, fails);
        // The flusher's thread keeps the cache alive, and so its mappings and the store.
        until("the end of the flusher", || std::sync::Arc::strong_count(&store) == 1);
        let size = block_on(store.lookup(&Caller::Own, store.root().entry(b"f"))).unwrap().size;
        assert_eq!(size, if fails == 0 { 8 } else { 0 }, "written if the store recovers in time");
    }
}

#[test]
fn i9_a_sync_error_is_reported_to_every_open_file() {
    let rig = Rig::new(64);
    let one = rig.create("f");
    let two = rig.open(one.id());
    write_all(&one, b"x", 0);
    rig.store.switches.fail_syncs.store(1, Ordering::SeqCst);
    assert_eq!(one.sync(true), Err(Error::Io));
    assert_eq!((one.write_errors(), rig.fs.write_errors()), (1, 1));
    let late = rig.open(one.id());
    assert_eq!(two.sync(true), Err(Error::Io));
    for file in [&one, &two, &late] {
        assert_eq!(file.sync(true), Ok(()), "told, or opened after another had been");
    }
    // A sync of names and attributes, too.
    rig.store.switches.fail_syncs.store(1, Ordering::SeqCst);
    assert!(one.write_at(b"y", 0, IoFlags::SYNC).is_err());
    assert_eq!(two.sync(false), Err(Error::Io));
}

#[test]
fn i9_each_close_of_a_descriptor_reports_an_error_until_a_write_or_sync_has() {
    for durable in [false, true] {
        let (write, sync) =
            (|f: &File| f.write_at(b"y", 0, NONE).map(drop), |f: &File| f.sync(true));
        for told in [write, sync] {
            let rig = Rig::new(64);
            let (one, two) = (rig.create("f"), rig.create("g"));
            let other = rig.open(one.id());
            fail(&rig.store, Error::NoSpace, 100);
            write_all(&one, b"x", 0);
            // A program that has inherited a descriptor may close it first.
            for _ in 0..2 {
                assert_eq!(block_on(one.close_descriptor_async(durable)), Err(Error::NoSpace));
            }
            assert_eq!(block_on(two.close_descriptor_async(durable)), Ok(()));
            fail(&rig.store, Error::NoSpace, 0);
            assert_eq!(told(&one), Err(Error::NoSpace));
            assert_eq!(block_on(one.close_descriptor_async(durable)), Ok(()));
            assert_eq!(block_on(other.close_descriptor_async(durable)), Err(Error::NoSpace));
            let late = rig.open(one.id());
            assert_eq!(block_on(late.close_descriptor_async(durable)), Ok(()));
        }
    }
}

#[test]
fn i9_an_unreported_error_is_reported_to_the_next_open_file() {
    let rig = Rig::new(64);
    let file = rig.create("f");
    let id = file.id();
    fail(&rig.store, Error::Quota, 100);
    file.write_at(&[1; 4096], 0, IoFlags::UNCACHED).unwrap();
    until("the loss", || rig.cache.dirty_bytes() == 0);
    drop(file);
    fail(&rig.store, Error::Quota, 0);
    let (one, two) = (rig.open(id), rig.open(id));
    assert_eq!(one.sync(true), Err(Error::Quota));
    assert_eq!(two.sync(true), Err(Error::Quota), "opened before any open file was told");
    let three = rig.open(id);
    for file in [one, two, three] {
        assert_eq!(file.sync(true), Ok(()));
    }
}

#[test]
fn a_page_rewritten_during_its_failing_write_is_retried_alone() {
    let rig = Rig::new(64);
    let file = rig.cold("f", &pattern(4096, 5));
    let switches = &rig.store.switches;
    fail(&rig.store, Error::NoSpace, 100);
    switches.hold_writes.store(true, Ordering::SeqCst);
    let writes = switches.writes.load(Ordering::SeqCst);
    write_all(&file, &[1; 4096], 0);
    std::thread::scope(|scope| {
        let sync = scope.spawn(|| file.sync(true));
        until("the write", || switches.writes.load(Ordering::SeqCst) > writes);
        write_all(&file, &[2; 4096], 0);
        switches.fail_writes.store(0, Ordering::SeqCst);
        switches.hold_writes.store(false, Ordering::SeqCst);
        assert_eq!(sync.join().unwrap(), Err(Error::NoSpace));
    });
    assert_eq!(read_full(&file, 0, 4096, NONE), [2; 4096]);
    assert_eq!(file.sync(true), Ok(()));
    assert_eq!(rig.cache.stats().writeback_lost_pages, 0);
}

/// Writes four times the budget, to a file of a rig of 1,024 pages, whether or not data is lost.
fn write_much(file: &weir_pagecache::File) {
    for n in 0..64 {
        let _ = file.write_at(&[n as u8; 64 * 4096], n * 64 * PAGE, NONE);
    }
}

/// Lets the store continue when it is dropped, so that a failing test ends.
struct Freed<'a>(&'a Shaky);

impl Drop for Freed<'_> {
    fn drop(&mut self) {
        self.0.switches.hold_writes.store(false, Ordering::SeqCst);
        self.0.switches.hold_writes_below.store(0, Ordering::SeqCst);
    }
}

#[test]
fn a_full_store_blocks_no_writer_for_ever() {
    let rig = Rig::new(1024);
    let file = rig.create("f");
    fail(&rig.store, Error::TooBig, 100);
    write_much(&file);
    until("the loss", || rig.cache.dirty_bytes() == 0);
}

#[test]
fn a_store_that_hangs_does_not_stop_writers_of_others() {
    let rig = Rig::new(1024);
    let others = Shaky::new();
    let fs = rig.cache.mount(others.clone());
    let made = block_on(fs.create(
        &Caller::Own,
        fs.root().entry(b"f").with(&SetAttr::default()),
        CreateMode::MustBeNew,
    ));
    let id = made.unwrap().attr.id;
    let other = block_on(fs.open(&Caller::Own, id, Access::READ | Access::WRITE)).unwrap();
    rig.store.switches.hold_writes.store(true, Ordering::SeqCst);
    let hung: Vec<_> = (0..7).map(|n| rig.create(&format!("hung{n}"))).collect();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _freed = Freed(&rig.store);
        // One after the other: calls that begin at once may all pass the limit.
        for file in &hung {
            write_all(file, &[1; 60 * 4096], 0);
        }
        for file in &hung {
            scope.spawn(|| {
                write_much(file);
                done.store(true, Ordering::SeqCst);
            });
        }
        until("the limit", || rig.cache.dirty_bytes() >= 400 * PAGE);
        for _ in 0..4 {
            write_much(&other);
            assert!(rig.cache.dirty_bytes() <= 1024 * 7 / 10 * PAGE);
        }
        other.sync(true).unwrap();
        assert!(!done.load(Ordering::SeqCst), "its own writers wait");
    });
    let flush: Box<dyn Future<Output = _> + Send> = Box::new(rig.cache.flush());
    block_on(Box::into_pin(flush)).unwrap();
}

#[test]
fn hanging_stores_with_small_files_leave_memory_for_others() {
    let rig = Rig::new(1024);
    let stores: Vec<_> = (0..3).map(|_| Shaky::new()).collect();
    let freed: Vec<_> = stores.iter().map(|store| Freed(store)).collect();
    let mut files = Vec::new();
    for store in &stores {
        store.switches.hold_writes.store(true, Ordering::SeqCst);
        let fs = rig.cache.mount(store.clone());
        for n in 0..300 {
            let name = format!("f{n}");
            let set = SetAttr::default();
            let made = block_on(fs.create(
                &Caller::Own,
                fs.root().entry(name.as_bytes()).with(&set),
                CreateMode::MustBeNew,
            ));
            let id = made.unwrap().attr.id;
            let file = block_on(fs.open(&Caller::Own, id, Access::WRITE)).unwrap();
            let _ = file.write_at(&[1; 3 * 4096], 0, IoFlags::NOWAIT);
            files.push(file);
        }
    }
    let dirty = rig.cache.dirty_bytes() / PAGE;
    assert!((410..=1024 * 3 / 4).contains(&dirty), "{dirty} of 1024 pages");
    drop(freed);
    block_on(rig.cache.flush()).unwrap();
}

#[test]
fn a_file_that_hangs_does_not_stop_writers_of_others_in_its_store() {
    let rig = Rig::new(1024);
    let hung: Vec<_> = (0..7).map(|n| rig.create(&format!("hung{n}"))).collect();
    let other = rig.create("other");
    rig.store.switches.hold_writes_below.store(other.id().ino, Ordering::SeqCst);
    let freed = Freed(&rig.store);
    for file in &hung {
        write_all(file, &[1; 60 * 4096], 0);
    }
    assert!(rig.cache.dirty_bytes() >= 410 * PAGE, "more than the limit");
    write_much(&other);
    other.sync(true).unwrap();
    drop(freed);
    block_on(rig.cache.flush()).unwrap();
}

#[test]
fn setting_times_does_not_wait_for_later_writes() {
    let rig = Rig::new(64);
    let file = rig.create("f");
    let switches = &rig.store.switches;
    let _freed = Freed(&rig.store);
    fail(&rig.store, Error::NoSpace, 100);
    switches.hold_writes.store(true, Ordering::SeqCst);
    write_all(&file, b"x", 0);
    let set = SetAttr { mtime: Some(weir_vfs::SetTime::Now), ..SetAttr::default() };
    let mut setattr = pin!(rig.fs.setattr(&Caller::Own, file.id(), &set));
    let mut poll = || setattr.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(poll().is_pending());
    // Another client keeps writing: each of its writes is lost, too.
    write_all(&file, b"y", 0);
    switches.hold_writes.store(false, Ordering::SeqCst);
    until("the loss", || file.write_errors() > 0);
    switches.hold_writes.store(true, Ordering::SeqCst);
    assert!(matches!(poll(), Poll::Ready(Ok(_))));
    assert!(rig.cache.dirty_bytes() > 0);
}

#[test]
fn i9_a_mapped_write_leaves_an_earlier_error_to_the_next_call() {
    let rig = Rig::new(64);
    let file = rig.create("f");
    fail(&rig.store, Error::NoSpace, 100);
    write_all(&file, b"x", 0);
    assert_eq!(block_on(file.close_descriptor_async(false)), Err(Error::NoSpace));
    fail(&rig.store, Error::NoSpace, 0);
    // Many times the budget: it waits for writeback.
    let data = pattern(4 << 20, 3);
    assert_eq!(block_on(file.write_mapped_async(&data, 0, NONE)), Ok(data.len()));
    assert_eq!(file.sync(true), Err(Error::NoSpace));
    assert_eq!(file.sync(true), Ok(()));
    assert!(read_full(&file, 0, 8 << 20, NONE) == data);
}

#[test]
fn i9_a_write_that_ends_early_leaves_the_error_to_the_next_call() {
    for round in 0..20 {
        let rig = Rig::new(64);
        let file = rig.create("f");
        fail(&rig.store, Error::NoSpace, 100);
        match file.write_at(&pattern(4 << 20, 3), 0, NONE) {
            Ok(done) if done > 0 => {}
            other => panic!("{other:?}"),
        }
        until("the loss of all", || rig.cache.dirty_bytes() == 0);
        fail(&rig.store, Error::NoSpace, 0);
        assert_eq!(file.write_at(b"x", 0, NONE), Err(Error::NoSpace), "round {round}");
        assert_eq!(file.write_at(b"x", 0, NONE), Ok(1));
    }
}
