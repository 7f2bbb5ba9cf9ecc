//! Resident reads of 512 bytes to 1 MiB, with the fast path on and off, beside memcpy from one
//! block of memory and the kernel's pread of a hot file of the same size.
//!
//! `cargo bench -p weir-pagecache`; the sets are 1 MiB (in the processor's cache) and 256 MiB (not).
#![allow(missing_docs, reason = "criterion's macros")]

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use std::fs::File as KernelFile;
use std::hint::black_box;
use std::os::unix::fs::FileExt;
use weir_pagecache::{Cache, Config, File};
use weir_stores::memory::MemoryFs;
use weir_vfs::{Access, Caller, CreateMode, IoFlags, SetAttr};

const SIZES: [usize; 4] = [512, 4 << 10, 64 << 10, 1 << 20];

/// A resident file of `set` bytes in a cache.
fn resident(set: usize) -> (Cache, File) {
    let config = Config { budget_bytes: 2 * set as u64 + (64 << 20), ..Config::default() };
    let cache = Cache::new(config).unwrap();
    let fs = cache.mount(MemoryFs::new());
    let set_attr = SetAttr::default();
    let made = pollster::block_on(fs.create(
        &Caller::Own,
        fs.root().entry(b"f").with(&set_attr),
        CreateMode::MustBeNew,
    ))
    .unwrap();
    let access = Access::READ | Access::WRITE;
    let file = pollster::block_on(fs.open(&Caller::Own, made.attr.id, access)).unwrap();
    let bytes = vec![7; 1 << 20];
    for at in (0..set).step_by(bytes.len()) {
        file.write_at(&bytes, at as u64, IoFlags::empty()).unwrap();
    }
    file.sync(true).unwrap();
    (cache, file)
}

/// A file of `set` bytes in the kernel's cache.
fn kernel_file(set: usize) -> KernelFile {
    let path = std::env::temp_dir().join(format!("weir-bench-{}-{set}", std::process::id()));
    let file = KernelFile::options().read(true).write(true).create_new(true).open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    file.write_all_at(&vec![7; set], 0).unwrap();
    file
}

/// Offsets of blocks in random order, none twice in a row.
struct Offsets {
    state: u64,
    blocks: u64,
    size: u64,
}

impl Offsets {
    fn new(set: usize, size: usize) -> Self {
        Self { state: 1, blocks: (set / size) as u64, size: size as u64 }
    }

    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        ((self.state >> 33) % self.blocks) * self.size
    }
}

fn reads(criterion: &mut Criterion) {
    for (label, set) in [("1 MiB", 1 << 20), ("256 MiB", 256 << 20)] {
        let (cache, file) = resident(set);
        let kernel = kernel_file(set);
        let memory = vec![7u8; set];
        let mut group = criterion.benchmark_group(format!("resident read, {label} set"));
        for size in SIZES {
            group.throughput(Throughput::Bytes(size as u64));
            let mut buf = vec![0; size];
            let mut at = Offsets::new(set, size);
            group.bench_function(BenchmarkId::new("memcpy", size), |b| {
                b.iter(|| {
                    let at = at.next() as usize;
                    buf.copy_from_slice(&memory[at..at + size]);
                    black_box(&mut buf);
                });
            });
            for (name, on) in [("fast", true), ("switched off", false)] {
                cache.set_fast_read(on);
                group.bench_function(BenchmarkId::new(name, size), |b| {
                    b.iter(|| {
                        let done = file.read_at(&mut buf, at.next(), IoFlags::empty());
                        assert_eq!(done, Ok(size));
                        black_box(&mut buf);
                    });
                });
            }
            cache.set_fast_read(true);
            group.bench_function(BenchmarkId::new("segments", size), |b| {
                b.iter(|| black_box(file.read_segments_resident(at.next(), size)).is_some());
            });
            group.bench_function(BenchmarkId::new("pread", size), |b| {
                b.iter(|| {
                    kernel.read_exact_at(&mut buf, at.next()).unwrap();
                    black_box(&mut buf);
                });
            });
        }
        group.finish();
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(20)
        .warm_up_time(std::time::Duration::from_millis(200))
        .measurement_time(std::time::Duration::from_secs(1));
    targets = reads
}
criterion_main!(benches);
