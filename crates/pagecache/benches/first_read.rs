//! Reads of a whole file by 512 B, 4 KiB and 64 KiB through a cache that has never been used, beside
//! pread(2). The file is in the kernel's cache, so what counts is the cache's memory.
//!
//! `cargo bench -p weir-pagecache --bench first_read`; TMPDIR names the file system.
#![allow(missing_docs, reason = "criterion's macros")]

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use std::fs::File as KernelFile;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};
use weir_pagecache::{Cache, Config, File};
use weir_stores::local::{LocalFs, LocalOptions};
use weir_vfs::{Access, Caller, IoFlags};

const SIZE: u64 = 1 << 30;

/// The time that `read` needs for the whole file.
fn timed(block: usize, mut read: impl FnMut(&mut [u8], u64) -> usize) -> Duration {
    let mut buf = vec![0; block];
    let begun = Instant::now();
    for at in (0..SIZE).step_by(block) {
        assert_eq!(read(&mut buf, at), block);
    }
    begun.elapsed()
}

/// Opens the file through a new cache.
fn open(dir: &Path) -> (Cache, File) {
    let cache =
        Cache::new(Config { budget_bytes: SIZE + (64 << 20), ..Config::default() }).unwrap();
    let fs = cache.mount(LocalFs::open(dir, LocalOptions::default()).unwrap());
    let file = pollster::block_on(async {
        let id = fs.lookup(&Caller::Own, fs.root().entry(b"f")).await.unwrap().id;
        fs.open(&Caller::Own, id, Access::READ).await.unwrap()
    });
    (cache, file)
}

fn first_reads(c: &mut Criterion) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f");
    std::fs::write(&path, vec![7; SIZE as usize]).unwrap();
    let kernel = KernelFile::open(&path).unwrap();
    let mut group = c.benchmark_group("first_read");
    group.throughput(Throughput::Bytes(SIZE)).sample_size(10);
    for block in [512, 4 << 10, 64 << 10] {
        group.bench_function(BenchmarkId::new("weir", block), |b| {
            b.iter_custom(|count| {
                let once = |_| {
                    let (_cache, file) = open(dir.path());
                    timed(block, |buf, at| file.read_at(buf, at, IoFlags::empty()).unwrap())
                };
                (0..count).map(once).sum()
            });
        });
        group.bench_function(BenchmarkId::new("pread", block), |b| {
            b.iter_custom(|count| {
                (0..count).map(|_| timed(block, |buf, at| kernel.read_at(buf, at).unwrap())).sum()
            });
        });
    }
    group.finish();
}

criterion_group!(benches, first_reads);
criterion_main!(benches);
