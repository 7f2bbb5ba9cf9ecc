//! Writes, truncation, holes and syncs with an error at their first call of the store, their second, and so on until
//! they make no more. Each operation reports the error or is done; afterwards the same operations succeed, with the
//! right bytes, and nothing stays in memory.
#![cfg(not(any(loom, shuttle)))]

use pollster::block_on;
use std::sync::Arc;
use std::time::Duration;
use weir_pagecache::{Cache, CachedFs, Config, File};
use weir_stores::fault::{Call, Fault, Rule, What, When};
use weir_stores::memory::MemoryFs;
use weir_vfs::{Access, Advice, Caller, CreateMode, Error, FileId, IoFlags, Result, SetAttr};

const RW: Access = Access::READ.union(Access::WRITE);
const PAGE: usize = 4096;
/// Bytes of the file that every script begins with.
const OLD: usize = 10 * PAGE + 100;

/// Operations on a file, by name; and what its bytes are when all are done.
type Script = (&'static str, fn(&File) -> Result<()>, fn(&mut Vec<u8>));

const SCRIPTS: [Script; 6] = [
    ("edges", |file| write(file, 100, 2 * PAGE, IoFlags::empty()), |b| fill(b, 100, 2 * PAGE)),
    ("uncached", |file| write(file, 5000, 9000, IoFlags::UNCACHED), |b| fill(b, 5000, 9000)),
    (
        "past the end",
        |file| write(file, OLD + 50, 9000, IoFlags::empty()),
        |b| {
            fill(b, OLD + 50, 9000);
        },
    ),
    (
        "shorter and longer",
        |file| file.truncate(5000).and_then(|()| file.truncate(9000)),
        |b| {
            b.truncate(5000);
            b.resize(9000, 0);
        },
    ),
    (
        "hole",
        |file| block_on(file.punch_hole_async(6000, 15_000)),
        |b| {
            b[6000..21_000].fill(0);
        },
    ),
    (
        "mixed",
        |file| {
            write(file, 300, 5 * PAGE, IoFlags::empty())?;
            file.truncate(3 * PAGE as u64 + 7)?;
            write(file, 2 * PAGE, 9000, IoFlags::UNCACHED)?;
            block_on(file.punch_hole_async(1000, 5000))
        },
        |b| {
            fill(b, 300, 5 * PAGE);
            b.truncate(3 * PAGE + 7);
            fill(b, 2 * PAGE, 9000);
            b[1000..6000].fill(0);
        },
    ),
];

fn new_byte(at: usize) -> u8 {
    (at % 251) as u8 | 1
}

fn write(file: &File, at: usize, len: usize, flags: IoFlags) -> Result<()> {
    let bytes: Vec<u8> = (at..at + len).map(new_byte).collect();
    // A short write is followed by another, as in every program.
    let mut done = 0;
    while done < len {
        done += file.write_at(&bytes[done..], (at + done) as u64, flags)?;
    }
    Ok(())
}

fn fill(bytes: &mut Vec<u8>, at: usize, len: usize) {
    bytes.resize(bytes.len().max(at + len), 0);
    (at..at + len).for_each(|at| bytes[at] = new_byte(at));
}

fn cache() -> Cache {
    let config = Config { budget_bytes: 4 << 20, readahead_bytes: 0, ..Config::default() };
    Cache::new(config).unwrap()
}

fn open(fs: &CachedFs, id: FileId) -> File {
    block_on(fs.open(&Caller::Own, id, RW)).unwrap()
}

fn bytes_of(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; 1 << 17];
    let mut done = 0;
    loop {
        match file.read_at(&mut bytes[done..], done as u64, IoFlags::empty()).unwrap() {
            0 => break,
            n => done += n,
        }
    }
    bytes.truncate(done);
    bytes
}

/// A file with the old bytes, in the store alone.
fn old_file(store: &Arc<Fault>) -> (CachedFs, File) {
    let fs = cache().mount(store.clone());
    let set = SetAttr::default();
    let made =
        block_on(fs.create(&Caller::Own, fs.root().entry(b"f").with(&set), CreateMode::MustBeNew))
            .unwrap();
    let file = open(&fs, made.attr.id);
    assert_eq!(file.write_at(&[0xAA; OLD], 0, IoFlags::empty()), Ok(OLD));
    file.sync(false).unwrap();
    file.advise(0, 0, Advice::DontNeed).unwrap();
    (fs, file)
}

/// Runs a script with an error at a call of the store; returns whether that call was made.
fn run((name, script, change): Script, error: Error, nth: u64) -> bool {
    let what = format!("{name}, {error:?} at call {nth}");
    let store = Fault::over(MemoryFs::new(), 1);
    let (fs, file) = old_file(&store);
    store.add(Rule { call: Call::Any, when: When::Nth(nth), what: What::Fail(error) });
    let done = script(&file).and_then(|()| file.sync(false));
    let failed = store.injected() > 0;
    store.clear();
    let mut expected = vec![0xAA; OLD];
    if done.is_err() {
        assert!(failed, "{what}: {done:?} without an error of the store");
        // From the start, as after any error that leaves the contents open.
        assert_eq!(write_old(&file).and_then(|()| script(&file)), Ok(()), "{what}: again");
        assert_eq!(file.sync(false), Ok(()), "{what}: again");
    }
    change(&mut expected);
    assert!(bytes_of(&file) == expected, "{what}: other bytes in the cache");
    assert_eq!(fs.cache().dirty_bytes(), 0, "{what}");
    // Nothing stays in memory: no frame is pinned or lost.
    file.advise(0, 0, Advice::DontNeed).unwrap();
    let id = file.id();
    drop(file);
    let begun = std::time::Instant::now();
    while fs.cache().used_bytes() > 0 {
        let used = fs.cache().used_bytes();
        assert!(begun.elapsed() < Duration::from_secs(120), "{what}: {used} bytes stay in use");
        let file = open(&fs, id);
        file.advise(0, 0, Advice::DontNeed).unwrap();
        std::thread::sleep(Duration::from_millis(1));
    }
    // The store has them, too.
    let other = cache().mount(store);
    assert!(bytes_of(&open(&other, id)) == expected, "{what}: other bytes in the store");
    failed
}

fn write_old(file: &File) -> Result<()> {
    file.truncate(0)?;
    file.write_at(&[0xAA; OLD], 0, IoFlags::empty()).map(drop)
}

#[test]
fn i9_an_error_at_any_call_of_the_store_is_reported_or_repaired() {
    for error in [Error::Io, Error::NoSpace] {
        for script in SCRIPTS {
            let calls = (0..).take_while(|&nth| run(script, error, nth)).count();
            assert!(calls > 1, "{}: {calls} calls of the store", script.0);
            assert!(calls < 100, "{}: {calls} calls of the store", script.0);
        }
    }
}
