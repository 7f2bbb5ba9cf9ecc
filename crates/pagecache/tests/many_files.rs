//! Many files in the cache: the cost of each, and the bound on it. The large run is
//! `WEIR_FILES=1000000 cargo test --release -p weir-pagecache --test many_files a_million --
//! --nocapture`.

mod common;

use common::{Rig, block_on, read_full, until, write_all};
use std::sync::atomic::Ordering;
use weir_pagecache::{Cache, Config};
use weir_stores::memory::MemoryFs;
use weir_vfs::{Access, Caller, CreateMode, FileId, FileSystem, IoFlags, SetAttr, XattrMode};

const PAGE: u64 = 4096;
const NONE: IoFlags = IoFlags::empty();
const UNCACHED: IoFlags = IoFlags::UNCACHED;

#[test]
fn pages_of_closed_files_stay_without_the_stores_files() {
    let rig = Rig::new(8192);
    let ids: Vec<_> = (0..3000u64)
        .map(|n| {
            let file = rig.create(&format!("f{n}"));
            write_all(&file, &n.to_le_bytes(), 0);
            file.sync(true).unwrap();
            file.id()
        })
        .collect();
    // A task that sets the times of a file may still have it open.
    until("closes of the store's files", || rig.store.open_files() <= 1100);
    let fills = rig.cache.stats().fills;
    for (n, &id) in ids.iter().enumerate() {
        assert_eq!(read_full(&rig.open(id), 0, 100, NONE), (n as u64).to_le_bytes());
    }
    assert_eq!(rig.cache.stats().fills, fills, "read from the cache");
    until("closes of the store's files", || rig.store.open_files() <= 1100);
}

/// A file that was written, synced and closed.
fn closed_file() -> (Rig, FileId) {
    let rig = Rig::new(8192);
    let file = rig.create("f");
    write_all(&file, b"ours", 0);
    file.sync(false).unwrap();
    let id = file.id();
    (rig, id)
}

/// Writes to a file of the store beside the rig's cache.
fn write_as_another(rig: &Rig, id: FileId, data: &[u8]) {
    let other = Cache::new(Config::default()).unwrap().mount(rig.store.clone());
    let outside = block_on(other.open(&Caller::Own, id, Access::WRITE)).unwrap();
    write_all(&outside, data, 0);
    outside.sync(false).unwrap();
}

#[test]
fn a_change_while_the_file_was_closed_is_noticed_at_open() {
    let (rig, id) = closed_file();
    for many in [0, 2000] {
        // Once with the store's file kept open, and once without.
        for n in 0..many {
            drop(rig.create(&format!("{n}")));
        }
        let theirs = format!("theirs{many}");
        write_as_another(&rig, id, theirs.as_bytes());
        assert_eq!(read_full(&rig.open(id), 0, 100, NONE), theirs.as_bytes());
    }
    assert_eq!(rig.cache.stats().outside_changes, 2);
}

#[test]
fn a_change_of_attributes_hides_no_change_by_others() {
    let (rig, id) = closed_file();
    for many in [0, 2000] {
        // Once with the store's file kept open, and once without.
        for n in 0..many {
            drop(rig.create(&format!("{n}")));
        }
        for change in [0, 1] {
            let theirs = format!("t{change:03}");
            write_as_another(&rig, id, theirs.as_bytes());
            let set = SetAttr { mode: Some(0o600 + change), ..SetAttr::default() };
            match change {
                0 => _ = block_on(rig.fs.setattr(&Caller::Own, id, &set)).unwrap(),
                _ => {
                    let (name, mode) = (id.xattr(b"user.x"), XattrMode::Either);
                    block_on(rig.fs.set_xattr(&Caller::Own, name, b"1", mode)).unwrap();
                }
            }
            assert_eq!(read_full(&rig.open(id), 0, 100, NONE), theirs.as_bytes());
        }
    }
}

#[test]
fn unwritten_data_has_space() {
    let rig = Rig::new(8192);
    let file = rig.create("f");
    write_all(&file, b"x", 10 * PAGE);
    assert!(block_on(file.getattr()).unwrap().allocated >= PAGE);
}

#[test]
fn metadata_of_closed_files_and_holes_is_bounded() {
    // With so small a budget the share is 1 MiB.
    let rig = Rig::new(64);
    for n in 0..5000u64 {
        drop(rig.create(&format!("f{n}")));
        assert!(rig.cache.index_bytes() <= (1 << 20) + 8192, "file {n}");
    }
    // Alternating pages and holes: markers, and no frame stays.
    let file = rig.create("sparse");
    file.truncate(1 << 40).unwrap();
    for n in 0..10_000u64 {
        let at = n * 64 * PAGE;
        write_all(&file, b"x", at);
        if n % 16 == 0 {
            file.sync(true).unwrap();
        }
        assert!(rig.cache.index_bytes() <= 2 << 20, "page {n}: {}", rig.cache.index_bytes());
    }
    assert_eq!(read_full(&file, 64 * PAGE, 3, NONE), b"x\0\0");
}

/// The share with 4,096 pages, plus more than one operation adds.
const SHARE: u64 = 4 << 20;
const SLACK: u64 = 64 << 10;
/// Pages so far apart that each needs a leaf and an inner node: more memory than its own.
const APART: u64 = 128 << 20;

#[test]
fn metadata_of_scattered_dirty_pages_is_bounded() {
    let rig = Rig::new(4096);
    let file = rig.create("dirty");
    let mut most_dirty = 0;
    for n in 0..3000u64 {
        write_all(&file, &n.to_le_bytes(), n * APART);
        let index = rig.cache.index_bytes();
        assert!(index <= SHARE + SLACK, "page {n}: {index} bytes");
        most_dirty = most_dirty.max(rig.cache.dirty_bytes() / PAGE);
    }
    // The share limited it.
    assert!(most_dirty < 4096 * 4 / 10, "{most_dirty} dirty pages");
    file.sync(true).unwrap();
    for n in 0..3000u64 {
        assert_eq!(read_full(&file, n * APART, 8, NONE), n.to_le_bytes());
        let index = rig.cache.index_bytes();
        assert!(index <= SHARE + SLACK, "page {n} read: {index} bytes");
    }
    // A page that is read again and again is still found.
    let fills = rig.cache.stats().fills;
    for _ in 0..10 {
        assert_eq!(read_full(&file, 2999 * APART, 8, NONE), 2999u64.to_le_bytes());
    }
    assert_eq!(rig.cache.stats().fills, fills);
}

#[test]
fn open_files_do_not_evict_metadata_of_closed_ones() {
    // Open files alone exceed the share.
    let rig = Rig::new(4096);
    let open: Vec<_> = (0..6000u64).map(|n| rig.create(&format!("f{n}"))).collect();
    assert!(rig.cache.index_bytes() > SHARE);
    let file = rig.create("sparse");
    file.truncate(1 << 30).unwrap();
    write_all(&file, b"x", 1 << 29);
    file.sync(true).unwrap();
    assert_eq!(read_full(&file, 1 << 28, 1, NONE), b"\0");
    let fills = rig.cache.stats().fills;
    for _ in 0..10 {
        write_all(&open[7], b"other", 0);
        assert_eq!(read_full(&file, 1 << 28, 1, NONE), b"\0");
        assert_eq!(read_full(&file, 1 << 29, 1, NONE), b"x");
    }
    assert_eq!(rig.cache.stats().fills, fills, "the page and the hole are still known");
}

#[test]
fn the_flusher_visits_only_files_that_are_due() {
    const FILES: u64 = 3000;
    let rig = Rig::new(65_536);
    for n in 0..FILES {
        write_all(&rig.create(&format!("f{n}")), b"dirty", 0);
    }
    // Far too few to trigger a write of all; each of these gives the flusher work.
    let stream = rig.create("stream");
    let looks = rig.cache.stats().flush_looks;
    for n in 0..300 {
        stream.write_at(&[1; 4096], n * PAGE, UNCACHED).unwrap();
        stream.sync(true).unwrap();
    }
    let looks = rig.cache.stats().flush_looks - looks;
    // If this takes long enough for them to expire, each is looked at for that, and once it is
    // clean.
    let most = 3 * FILES + 2000;
    assert!(looks < most, "{looks} looks at {FILES} dirty files for 300 writes to another");
    // And none is forgotten.
    block_on(rig.cache.flush()).unwrap();
    until("the end of writeback", || rig.cache.dirty_bytes() == 0);
    // The flusher may still take the last ones off.
    until("clean files to be off the list", || {
        let before = rig.cache.stats().flush_looks;
        stream.write_at(&[2; 4096], 0, UNCACHED).unwrap();
        until("the last look", || stream.resident().is_empty());
        rig.cache.stats().flush_looks - before < 20
    });
}

/// A server bounds the open files of a client.
#[test]
fn few_closed_files_of_a_shared_store_stay_open() {
    let rig = Rig::new(8192);
    rig.store.switches.is_shared.store(true, Ordering::SeqCst);
    let ids: Vec<_> = (0..500_u64)
        .map(|n| {
            let file = rig.create(&format!("f{n}"));
            write_all(&file, &n.to_le_bytes(), 0);
            file.id()
        })
        .collect();
    until("the flusher to close files", || rig.store.open_files() <= 64);
    // Their pages stay, and are compared with the store when a file is opened again.
    let fills = rig.cache.stats().fills;
    for (n, id) in (0_u64..).zip(ids) {
        assert_eq!(read_full(&rig.open(id), 0, 8, NONE), n.to_le_bytes());
    }
    assert_eq!(rig.cache.stats().fills, fills);
    until("the flusher to close files again", || rig.store.open_files() <= 64);
}

/// Resident memory of this process, in bytes.
fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * PAGE
}

#[test]
fn a_million_files() {
    let files: u64 =
        std::env::var("WEIR_FILES").ok().and_then(|n| n.parse().ok()).unwrap_or(20_000);
    let store = MemoryFs::new();
    let create = |n: u64| {
        let name = n.to_string();
        let set = SetAttr::default();
        let made = store.create(
            &Caller::Own,
            store.root().entry(name.as_bytes()).with(&set),
            CreateMode::MustBeNew,
        );
        let id = block_on(made).unwrap().attr.id;
        let file = block_on(store.open(&Caller::Own, id, Access::WRITE)).unwrap();
        block_on(file.set_size(100)).unwrap();
        id
    };
    let ids: Vec<_> = (0..files).map(create).collect();
    let budget_bytes = (files * PAGE * 2).max(64 << 20);
    let cache = Cache::new(Config { budget_bytes, ..Config::default() }).unwrap();
    let fs = cache.mount(store);
    let before = resident_bytes();
    for &id in &ids {
        let file = block_on(fs.open(&Caller::Own, id, Access::READ | Access::WRITE)).unwrap();
        write_all(&file, b"small", 0);
    }
    block_on(cache.flush()).unwrap();
    let (used, index) = (cache.used_bytes(), cache.index_bytes());
    let grown = resident_bytes().saturating_sub(before);
    println!(
        "{files} files: {} bytes each besides the page by account, {} by resident memory",
        index / files,
        grown.saturating_sub(used) / files,
    );
    assert_eq!(used, files * PAGE, "each keeps its page");
    assert!(index / files < 2048, "{} bytes a file", index / files);
}
