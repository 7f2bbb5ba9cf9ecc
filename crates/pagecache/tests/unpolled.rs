//! Futures that wait for memory and are not polled, as those of a task that awaits another one.

use std::pin::Pin;
use std::sync::mpsc::channel;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use weir_pagecache::{Cache, CachedFs, Config, File};
use weir_stores::memory::MemoryFs;
use weir_vfs::{Access, Caller, CreateMode, IoFlags, SetAttr};

const CHUNK: usize = 64 << 10;
/// Longer than any wait but one without an end.
const FOREVER: Duration = Duration::from_secs(60);

fn file(fs: &CachedFs, name: &str) -> File {
    let set = SetAttr::default();
    pollster::block_on(async {
        let new = fs.root().entry(name.as_bytes()).with(&set);
        let made = fs.create(&Caller::Own, new, CreateMode::MustBeNew).await.unwrap();
        fs.open(&Caller::Own, made.attr.id, Access::READ | Access::WRITE).await.unwrap()
    })
}

/// A reader that waits for memory is not polled while the same task writes.
#[test]
fn an_operation_gets_memory_behind_one_whose_future_is_not_polled() {
    let cache = Cache::new(Config { budget_bytes: 1 << 20, ..Config::default() }).unwrap();
    let fs = cache.mount(MemoryFs::new());
    let (from, to) = (file(&fs, "from"), file(&fs, "to"));
    for at in (0..8 << 20).step_by(CHUNK) {
        from.write_at(&[1; CHUNK], at, IoFlags::empty()).unwrap();
    }
    from.sync(true).unwrap();
    let mut context = Context::from_waker(Waker::noop());
    let mut lent = Vec::new();
    let mut unpolled = Vec::new();
    // Lend pages until reads have to wait for memory.
    for at in (0..8 << 20).step_by(CHUNK) {
        let waits = cache.stats().memory_waits;
        let mut read = Box::pin(from.read_segments_async(at, CHUNK, IoFlags::empty()));
        let found = loop {
            match Pin::new(&mut read).as_mut().poll(&mut context) {
                Poll::Ready(found) => break Some(found.unwrap()),
                Poll::Pending if cache.stats().memory_waits > waits => break None,
                Poll::Pending => std::thread::yield_now(),
            }
        };
        match found {
            Some(found) => lent.push(found),
            None => unpolled.push(read),
        }
        if unpolled.len() == 3 {
            break;
        }
    }
    assert_eq!(unpolled.len(), 3, "memory never ran out");
    drop(lent);
    let (done, written) = channel();
    std::thread::spawn(move || {
        for at in (0..2 << 20).step_by(CHUNK) {
            to.write_at(&[2; CHUNK], at, IoFlags::empty()).unwrap();
        }
        done.send(()).unwrap();
    });
    written.recv_timeout(FOREVER).expect("a write waits behind reads that are not polled");
    // They take their turns when they are polled again.
    for read in unpolled {
        assert!(!pollster::block_on(read).unwrap().segments.is_empty());
    }
}
