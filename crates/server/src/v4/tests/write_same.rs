//! WRITE_SAME compared with a plain vector, and its errors.

use super::exports::{cache, export, serve, walk};
use super::*;
use proptest::prelude::*;
use weir_nfs::v4::op::write_same::Args;
use weir_nfs::v4::op::{read, write};
use weir_nfs::v4::types::{StableHow, WriteResponse};
use weir_stores::fault::{Call, Fault, Rule, What, When};
use weir_vfs::{Caller, CreateMode};
use weir_xdr::Opaque;

const NOWHERE: u64 = u64::MAX;
const MIB: u64 = 1 << 20;

fn args(stateid: StateId, offset: u64, block_size: u64, block_count: u64) -> Args {
    Args {
        stateid,
        stable: StableHow::Unstable,
        offset,
        block_size,
        block_count,
        relative_number_offset: NOWHERE,
        block_number: 0,
        relative_pattern_offset: 0,
        pattern: Opaque::copy_from(b"pattern"),
    }
}

impl Client {
    async fn write_same(&mut self, file: &FileHandle, args: Args) -> Result<WriteResponse, Error> {
        match self.on(file, Op::WriteSame(args)).await {
            OpRes::WriteSame(res) => res,
            other => panic!("{other:?}"),
        }
    }

    async fn read_all(&mut self, file: &FileHandle) -> Vec<u8> {
        let mut bytes = Vec::new();
        loop {
            let (offset, count) = (bytes.len() as u64, 512 << 10);
            let args = read::Args { stateid: StateId::ANONYMOUS, offset, count };
            let OpRes::Read(Ok(read)) = self.on(file, Op::Read(args)).await else { panic!() };
            bytes.extend_from_slice(&read.data.to_bytes());
            if read.eof {
                return bytes;
            }
        }
    }
}

#[test]
fn a_pattern_replaces_data_and_holes() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let f = runtime.block_on(Fixture::new());
    let mut c = runtime.block_on(f.client("a"));
    let (file, stateid) = runtime.block_on(c.open("file"));
    let c = std::cell::RefCell::new(c);
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(48));
    let cases = (
        0usize..200_000,
        0u64..150_000,
        prop_oneof![1u64..5000, 100_000u64..400_000],
        0u64..8,
        (0.0..1.0, any::<bool>(), any::<u32>()),
        (0.0..1.0, prop::collection::vec(0u8..2, 0..600)),
    );
    let run = |(before, offset, block, count, number, pattern)| {
        let (number_at, has_number, first): (f64, bool, u32) = number;
        let (pattern_at, pattern): (f64, Vec<u8>) = pattern;
        let place = |part: f64| (block as f64 * part) as u64;
        let args = Args {
            relative_number_offset: if has_number { place(number_at) } else { NOWHERE },
            block_number: first,
            relative_pattern_offset: place(pattern_at),
            pattern: Opaque::copy_from(&pattern),
            ..args(stateid, offset, block, count)
        };
        let mut expected = vec![9u8; before];
        let end = (offset + block * count) as usize;
        if count > 0 {
            expected.resize(before.max(end), 0);
            expected[offset as usize..end].fill(0);
        }
        for i in 0..count {
            let at = (offset + i * block) as usize;
            if has_number {
                let at = at + place(number_at) as usize;
                let number = first.wrapping_add(i as u32).to_be_bytes();
                if at + 4 <= expected.len() {
                    expected[at..at + 4].copy_from_slice(&number);
                }
            }
            let at = at + place(pattern_at) as usize;
            if at + pattern.len() <= expected.len() {
                expected[at..at + pattern.len()].copy_from_slice(&pattern);
            }
        }
        let mut c = c.borrow_mut();
        runtime.block_on(async {
            let id = f.fs.lookup(&Caller::Own, f.fs.root().entry(b"file")).await.unwrap().id;
            let store = f.fs.open(&Caller::Own, id, weir_vfs::Access::WRITE).await.unwrap();
            store.truncate_async(0).await.unwrap();
            store.write_at_async(&vec![9; before], 0, weir_vfs::IoFlags::empty()).await.unwrap();
            match c.write_same(&file, args).await {
                Ok(written) => {
                    assert_eq!(written.count, block * count);
                    assert!(c.read_all(&file).await == expected);
                }
                // Patterns that overlap or exceed a block are refused, and nothing is written.
                Err(error) => {
                    assert_eq!(error, Error::Inval);
                    assert_eq!(c.read_all(&file).await, vec![9; before]);
                }
            }
        });
        Ok(())
    };
    runner.run(&cases, run).unwrap();
}

#[tokio::test]
async fn write_same_of_zeros_allocates_space_without_data_or_memory() {
    const LEN: u64 = 48 * MIB;
    let store = Fault::over(MemoryFs::new(), 1);
    let f = Fixture::of(store.clone()).await;
    let mut c = f.client("a").await;
    let (file, stateid) = c.open("file").await;
    let data = Bytes::from(vec![7; 100 << 10]).into();
    let put = write::Args { stateid, offset: 0, stable: StableHow::FileSync, data };
    assert!(matches!(c.on(&file, Op::Write(put)).await, OpRes::Write(Ok(_))));
    store.add(Rule {
        call: Call::Write,
        when: When::Always,
        what: What::Fail(weir_vfs::Error::Io),
    });
    // Zeros only: the pattern is zeros, too.
    let blocks = args(stateid, 0, 4096, LEN / 4096);
    let zeros = Args { pattern: Opaque::copy_from(&[0; 512]), ..blocks };
    let used = f.fs.cache().used_bytes();
    let written = c.write_same(&file, Args { stable: StableHow::FileSync, ..zeros }).await.unwrap();
    assert_eq!((written.count, written.committed), (LEN, StableHow::FileSync));
    assert!(f.fs.cache().used_bytes() <= used, "no frame for a zero");
    assert_eq!(store.injected(), 0, "nothing was written to the store");
    let id = f.fs.lookup(&Caller::Own, f.fs.root().entry(b"file")).await.unwrap().id;
    assert!(f.fs.getattr(id).await.unwrap().allocated >= LEN, "the space is reserved");
    assert!(c.read_all(&file).await == vec![0; LEN as usize]);
    store.clear();

    // A header in each MiB: only their pages are data.
    let heads = Args { relative_number_offset: 8, ..args(stateid, 0, MIB, 48) };
    let before = f.fs.cache().stats();
    let written = c.write_same(&file, heads).await.unwrap();
    assert_eq!(written.count, LEN);
    let dirtied = f.fs.cache().used_bytes() - used;
    assert!(dirtied <= 2 * 48 * 4096, "{dirtied} bytes for 48 pages, {before:?}");
    let args = read::Args { stateid: StateId::ANONYMOUS, offset: 47 * MIB, count: 16 };
    let OpRes::Read(Ok(read)) = c.on(&file, Op::Read(args)).await else { panic!() };
    assert_eq!(read.data.to_bytes()[..], *b"pattern\0\0\0\0\x2f\0\0\0\0");
}

#[tokio::test]
async fn a_long_write_same_writes_whole_blocks_in_bounded_memory() {
    let f = Fixture::new().await;
    let mut c = f.client("a").await;
    let (file, stateid) = c.open("file").await;
    let block = 3 * MIB;
    let bytes = vec![0xa5; 512 << 10];
    let mut left = 40;
    let mut calls = 0;
    while left > 0 {
        let done = 40 - left;
        let args = Args {
            stateid,
            stable: StableHow::FileSync,
            offset: done * block,
            block_size: block,
            block_count: left,
            relative_number_offset: 2 * MIB,
            block_number: done as u32,
            relative_pattern_offset: 0,
            pattern: Opaque::copy_from(&bytes),
        };
        let written = c.write_same(&file, args).await.unwrap();
        assert!(written.count > 0 && written.count.is_multiple_of(block), "{written:?}");
        assert_eq!(written.committed, StableHow::FileSync);
        left -= written.count / block;
        calls += 1;
        assert!(f.fs.cache().used_bytes() <= 32 << 20);
    }
    let all = c.read_all(&file).await;
    assert_eq!(all.len() as u64, 40 * block);
    for (i, block) in all.chunks(block as usize).enumerate() {
        let number = 2 * MIB as usize;
        assert!(block[..bytes.len()] == bytes, "the pattern of block {i}");
        assert_eq!(block[number..number + 4], (i as u32).to_be_bytes());
        let zeros = block[number + 4..].iter().chain(&block[bytes.len()..number]);
        assert!(zeros.copied().all(|byte| byte == 0));
    }
    assert!(calls == 1, "20 MiB of data and 100 of zeros were done in {calls} calls");

    // Data only, more than one call's worth.
    let (file, stateid) = c.open("data").await;
    let args = Args { pattern: Opaque::copy_from(&[1; 1000]), ..args(stateid, 0, 1000, 100_000) };
    let written = c.write_same(&file, args).await.unwrap();
    assert!(written.count >= 64 * MIB - 1000 && written.count < 65 * MIB, "{written:?}");
    assert!(written.count.is_multiple_of(1000));
}

#[tokio::test]
async fn write_same_fails_with_the_errors_of_write() {
    let cache = cache();
    let options = ExportOptions { read_only: true, ..ExportOptions::default() };
    let exports =
        vec![export(&cache, "/rw", ExportOptions::default()), export(&cache, "/ro", options)];
    let set = weir_vfs::SetAttr { mode: Some(0o666), ..Default::default() };
    for export in &exports {
        let (fs, own) = (&export.fs, &Caller::Own);
        fs.create(own, fs.root().entry(b"file").with(&set), CreateMode::MustBeNew).await.unwrap();
    }
    let f = serve(exports).await;
    let mut c = f.client("a").await;
    let (file, fixed) = (c.handle_of("/rw/file").await, c.handle_of("/ro/file").await);
    let anonymous = args(StateId::ANONYMOUS, 0, 512, 3);
    assert_eq!(c.write_same(&fixed, anonymous.clone()).await, Err(Error::RoFs));
    assert_eq!(c.write_same(&file, anonymous.clone()).await.map(|w| w.count), Ok(3 * 512));
    let dir = c.handle_of("/rw").await;
    assert_eq!(c.write_same(&dir, anonymous.clone()).await, Err(Error::IsDir));

    let mut ops = walk("/rw");
    let Op::Open(mut reads) = c.open_op("file", 0) else { panic!() };
    reads.share_access = weir_nfs::v4::op::open::ShareAccess::READ;
    ops.push(Op::Open(reads));
    let results = c.ok(ops).await;
    let Some(OpRes::Open(Ok(opened))) = results.last() else { panic!("{results:?}") };
    let for_reading = Args { stateid: opened.stateid, ..anonymous.clone() };
    assert_eq!(c.write_same(&file, for_reading).await, Err(Error::OpenMode));
    let mut other = opened.stateid;
    other.other[11] ^= 1;
    let unknown = Args { stateid: other, ..anonymous.clone() };
    assert_eq!(c.write_same(&file, unknown).await, Err(Error::BadStateId));

    let huge = Args { block_size: 1 << 40, block_count: 1 << 30, ..anonymous.clone() };
    assert_eq!(c.write_same(&file, huge).await, Err(Error::FBig));
    let outside = Args { block_size: 6, ..anonymous.clone() };
    assert_eq!(c.write_same(&file, outside).await, Err(Error::Inval));
    let nothing = Args { block_count: 0, ..anonymous };
    assert_eq!(c.write_same(&file, nothing).await.map(|w| w.count), Ok(0));
    assert_eq!(c.read_all(&file).await.len(), 3 * 512, "nothing of what was refused is there");
}

#[tokio::test]
async fn write_same_without_space_reports_the_written_blocks() {
    let store = Fault::over(MemoryFs::new(), 1);
    let f = Fixture::of(store.clone()).await;
    let mut c = f.client("a").await;
    let (file, stateid) = c.open("file").await;
    // There is no space for the third block's zeros.
    let no_space = What::Fail(weir_vfs::Error::NoSpace);
    store.add(Rule { call: Call::Allocate, when: When::Nth(2), what: no_space });
    let written = c.write_same(&file, args(stateid, 0, MIB, 5)).await.unwrap();
    assert_eq!(written.count, 2 * MIB);
    store.clear();
    store.add(Rule { call: Call::Allocate, when: When::Always, what: no_space });
    assert_eq!(c.write_same(&file, args(stateid, 2 * MIB, MIB, 3)).await, Err(Error::NoSpc));
    let left = c.read_all(&file).await;
    assert_eq!(left.len() as u64, 2 * MIB, "what finds no space does not make the file longer");
    let over = args(stateid, MIB / 2, 2 * MIB, 1);
    assert_eq!(c.write_same(&file, over).await, Err(Error::NoSpc));
    let plain = Args { pattern: Opaque::copy_from(b""), ..args(stateid, 0, 4 * MIB, 1) };
    assert_eq!(c.write_same(&file, plain).await, Err(Error::NoSpc));
    assert!(c.read_all(&file).await == left, "nor takes anything from it");

    // A stable write is durable, or the call fails and the verifier changes.
    store.clear();
    store.add(Rule { call: Call::Write, when: When::Always, what: no_space });
    let durable = Args { stable: StableHow::DataSync, ..args(stateid, 0, 4096, 10) };
    assert_eq!(c.write_same(&file, durable.clone()).await, Err(Error::NoSpc));
    store.clear();
    let again = c.write_same(&file, durable).await.unwrap();
    assert_ne!(again.verifier, written.verifier);
}
