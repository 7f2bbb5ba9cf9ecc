//! Writes of 4 KiB with DSYNC to one file on disk, from 1, 4 and 16 threads, beside pwrite(2) with
//! RWF_DSYNC on a file of its own.
//!
//! `cargo bench -p weir-pagecache --bench stable_write`; TMPDIR names the disk.
#![allow(missing_docs, reason = "criterion's macros")]

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use rustix::io::ReadWriteFlags;
use std::fs::File as KernelFile;
use std::io::IoSlice;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use weir_pagecache::{Cache, Config};
use weir_stores::local::{LocalFs, LocalOptions};
use weir_vfs::{Access, Caller, CreateMode, IoFlags, SetAttr};

const SIZE: u64 = 16 << 20;
const BLOCK: usize = 4096;

/// The time that `threads` need for `count` writes together, each of the next block.
fn timed(threads: usize, count: u64, write: impl Fn(u64) + Sync) -> Duration {
    let next = AtomicU64::new(0);
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let n = next.fetch_add(1, Ordering::Relaxed);
                    if n >= count {
                        return;
                    }
                    write(n * BLOCK as u64 % SIZE);
                }
            });
        }
    });
    begun.elapsed()
}

fn stable_writes(c: &mut Criterion) {
    let dir = tempfile::tempdir().unwrap();
    let block = [7; BLOCK];
    std::fs::write(dir.path().join("kernel"), vec![1; SIZE as usize]).unwrap();
    let kernel = KernelFile::options().write(true).open(dir.path().join("kernel")).unwrap();
    kernel.sync_all().unwrap();

    let cache = Cache::new(Config { budget_bytes: 64 << 20, ..Config::default() }).unwrap();
    let fs = cache.mount(LocalFs::open(dir.path(), LocalOptions::default()).unwrap());
    let set = SetAttr::default();
    let made = pollster::block_on(fs.create(
        &Caller::Own,
        fs.root().entry(b"weir").with(&set),
        CreateMode::MustBeNew,
    ))
    .unwrap();
    let file = pollster::block_on(fs.open(&Caller::Own, made.attr.id, Access::WRITE)).unwrap();
    file.write_at(&vec![1; SIZE as usize], 0, IoFlags::SYNC).unwrap();

    let mut group = c.benchmark_group("stable_write");
    group.throughput(Throughput::Elements(1)).sample_size(20);
    for threads in [1, 4, 16] {
        group.bench_function(BenchmarkId::new("weir", threads), |b| {
            b.iter_custom(|count| {
                timed(threads, count, |at| {
                    assert_eq!(file.write_at(&block, at, IoFlags::DSYNC), Ok(BLOCK));
                })
            });
        });
        group.bench_function(BenchmarkId::new("pwritev2", threads), |b| {
            b.iter_custom(|count| {
                timed(threads, count, |at| {
                    let slices = [IoSlice::new(&block)];
                    let flags = ReadWriteFlags::DSYNC;
                    assert_eq!(rustix::io::pwritev2(&kernel, &slices, at, flags), Ok(BLOCK));
                })
            });
        });
    }
    group.finish();
}

criterion_group!(benches, stable_writes);
criterion_main!(benches);
