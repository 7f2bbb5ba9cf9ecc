//! A store whose calls block the calling threads, next to one that works (`writeback/lane.rs`): the
//! latter's dirty pages are written, its files closed, and its threads end nevertheless.

mod common;

use common::{Rig, Shaky, block_on, pattern, until, write_all};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use weir_pagecache::{CachedFs, File};
use weir_vfs::{Access, Caller, CreateMode, FileSystem, IoFlags, SetAttr};

/// A cache over a store that will hang, and one that works.
struct Two {
    rig: Rig,
    healthy: Arc<Shaky>,
    fs: CachedFs,
}

impl Two {
    fn new() -> Self {
        let rig = Rig::new(1024);
        let healthy = Shaky::new();
        let fs = rig.cache.mount(healthy.clone());
        Self { rig, healthy, fs }
    }

    fn healthy_file(&self, name: &str) -> File {
        make(&self.fs, name)
    }

    /// Waits until a thread of the cache is stuck in the store.
    fn until_hung(&self) {
        until("the hang", || self.rig.store.switches.blocked.load(Ordering::SeqCst) > 0);
    }
}

impl Drop for Two {
    fn drop(&mut self) {
        self.rig.store.switches.block_all(false);
    }
}

fn make(fs: &CachedFs, name: &str) -> File {
    let set = SetAttr::default();
    let made = block_on(fs.create(
        &Caller::Own,
        fs.root().entry(name.as_bytes()).with(&set),
        CreateMode::MustBeNew,
    ));
    let access = Access::READ | Access::WRITE;
    block_on(fs.open(&Caller::Own, made.unwrap().attr.id, access)).unwrap()
}

fn stored_size(store: &Shaky, name: &str) -> u64 {
    block_on(store.lookup(&Caller::Own, store.root().entry(name.as_bytes()))).unwrap().size
}

#[test]
fn a_store_whose_writes_block_does_not_stop_writeback_of_others() {
    let two = Two::new();
    let (hung, other) = (two.rig.create("f"), two.healthy_file("f"));
    two.rig.store.switches.block_all(true);
    hung.write_at(&pattern(4096, 1), 0, IoFlags::UNCACHED).unwrap();
    two.until_hung();
    other.write_at(&pattern(8192, 2), 0, IoFlags::UNCACHED).unwrap();
    until("writeback of the other store", || stored_size(&two.healthy, "f") == 8192);
    // Dirty pages without a request, and pages that a call waits for.
    write_all(&other, &pattern(4096, 3), 8192);
    until("writeback of what has aged", || stored_size(&two.healthy, "f") == 3 * 4096);
    other.sync(true).unwrap();
    block_on(two.fs.unmount()).unwrap();
}

#[test]
fn a_store_whose_getattr_blocks_does_not_stop_tasks_of_others() {
    let two = Two::new();
    let (hung, other) = (two.rig.create("f"), two.healthy_file("f"));
    write_all(&hung, b"x", 0);
    hung.sync(true).unwrap();
    drop(hung);
    two.rig.store.switches.block_looks.store(true, Ordering::SeqCst);
    two.until_hung();
    // It is closed once a task has looked at it.
    write_all(&other, b"x", 0);
    drop(other);
    until("the close of the other store's file", || two.healthy.open_files() == 0);
}

#[test]
fn a_store_whose_closes_block_does_not_stop_closes_and_ends_of_others() {
    let mut two = Two::new();
    let (hung, other) = (two.rig.create("f"), two.healthy_file("f"));
    two.rig.store.switches.block_closes.store(true, Ordering::SeqCst);
    write_all(&hung, b"x", 0);
    drop(hung);
    two.until_hung();
    write_all(&other, b"x", 0);
    drop(other);
    until("the close of the other store's file", || two.healthy.open_files() == 0);
    // Unmounted with a dirty page: it is written, and the thread releases the store.
    write_all(&two.healthy_file("g"), b"last", 0);
    two.fs = two.rig.fs.clone();
    until("the end of the other store's threads", || Arc::strong_count(&two.healthy) == 1);
    assert_eq!(stored_size(&two.healthy, "g"), 4);
}

#[test]
fn reclaim_does_not_wait_for_a_store_whose_closes_block() {
    let two = Two::new();
    two.rig.store.switches.block_closes.store(true, Ordering::SeqCst);
    for n in 0..600 {
        drop(two.rig.create(&format!("f{n}")));
    }
    let fs = two.fs.clone();
    let opens =
        std::thread::spawn(move || (0..3000).for_each(|n| drop(make(&fs, &format!("f{n}")))));
    until("opens of the other store", || opens.is_finished());
    opens.join().unwrap();
}
