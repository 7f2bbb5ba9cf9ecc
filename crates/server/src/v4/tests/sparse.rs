//! Holes: READ_PLUS against a plain vector, SEEK, ALLOCATE, DEALLOCATE, COPY.

use super::*;
use proptest::prelude::*;
use weir_nfs::v4::op::read_plus::{ReadPlus, Segment};
use weir_nfs::v4::op::{copy, deallocate, read, seek};
use weir_nfs::v4::types::Content;
use weir_vfs::{Access, Caller, CreateMode, IoFlags, SetAttr};

const PAGE: usize = 4096;

/// Creates a file of pages that are data or holes, and a partial last page.
async fn make(fs: &CachedFs, name: &str, pages: &[bool], tail: usize, fill: u8) -> Vec<u8> {
    let (caller, set) = (Caller::Own, SetAttr::default());
    let made =
        fs.create(&caller, fs.root().entry(name.as_bytes()).with(&set), CreateMode::MayExist).await;
    let id = made.unwrap().attr.id;
    let file = fs.open(&Caller::Own, id, Access::READ | Access::WRITE).await.unwrap();
    let len = (pages.len() * PAGE).saturating_sub(tail);
    file.truncate_async(0).await.unwrap();
    file.truncate_async(len as u64).await.unwrap();
    let mut expected = vec![0; len];
    for (i, _) in pages.iter().enumerate().filter(|(_, data)| **data) {
        let range = i * PAGE..((i + 1) * PAGE).min(len);
        expected[range.clone()].fill(fill);
        let bytes = vec![fill; range.len()];
        file.write_at_async(&bytes, range.start as u64, IoFlags::empty()).await.unwrap();
    }
    expected
}

/// Checks the segments of a reply against the file, and returns how far they reach.
fn check(reply: &ReadPlus, file: &[u8], offset: usize, count: usize) -> usize {
    let mut at = offset;
    for (i, segment) in reply.segments.0.iter().enumerate() {
        let last = i + 1 == reply.segments.0.len();
        match segment {
            Segment::Data(data) => {
                assert_eq!(data.offset, at as u64, "contiguous");
                let bytes = data.data.to_bytes();
                assert!(!bytes.is_empty());
                assert_eq!(bytes[..], file[at..at + bytes.len()], "data at {at}");
                at += bytes.len();
                assert!(at <= offset + count, "data only where it was asked for");
            }
            Segment::Hole(hole) => {
                assert_eq!(hole.offset, at as u64, "contiguous");
                let end = at + hole.length as usize;
                assert!(hole.length > 0 && (end <= offset + count || last));
                assert!(file[at..end].iter().all(|&b| b == 0), "a false hole at {at}");
                at = end;
            }
        }
    }
    if reply.eof {
        assert!(
            offset + count >= file.len()
                && at >= file.len().min(offset + count).max(offset.min(at))
        );
    }
    at
}

/// Reads a whole file by READ_PLUS from some offset on.
async fn read_all(
    c: &mut Client,
    handle: &FileHandle,
    file: &[u8],
    start: usize,
    count: usize,
    limit: usize,
) {
    let mut at = start;
    loop {
        let args =
            read::Args { stateid: StateId::ANONYMOUS, offset: at as u64, count: count as u32 };
        let mut reply = c.run(vec![Op::Putfh(handle.clone()), Op::ReadPlus(args)]).await;
        assert!(reply.bytes.len() <= limit, "{} of {limit} bytes", reply.bytes.len());
        let Some(OpRes::ReadPlus(Ok(plus))) = reply.results.pop() else { panic!() };
        let end = check(&plus, file, at, count);
        assert!(end > at || plus.eof, "no progress at {at}");
        at = end;
        if plus.eof {
            break;
        }
    }
    assert!(at >= file.len().max(start.min(at)), "ended at {at} of {}", file.len());
}

fn layouts() -> impl Strategy<Value = (Vec<bool>, usize, usize, usize, u32)> {
    let pages = prop::collection::vec(any::<bool>(), 0..12);
    (pages, 0..PAGE, 0usize..14 * PAGE, 1usize..16 * PAGE, 600u32..20_000)
}

#[test]
fn read_plus_returns_the_content_of_files_of_any_layout() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let f = runtime.block_on(Fixture::new());
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(96));
    runner
        .run(&layouts(), |(pages, tail, start, count, limit)| {
            runtime.block_on(async {
                let file = make(&f.fs, "file", &pages, tail, 7).await;
                let mut c = f.connect("reader", 2).await;
                c.begin_session(limit).await;
                let found =
                    c.ok(vec![Op::Putrootfh(()), Op::Lookup("file".into()), Op::Getfh(())]).await;
                let handle = handle(&found).unwrap();
                read_all(&mut c, &handle, &file, start, count, limit as usize).await;
            });
            Ok(())
        })
        .unwrap();
}

#[tokio::test]
async fn read_plus_returns_a_whole_hole_from_the_requested_offset() {
    let f = Fixture::new().await;
    let mut c = f.client("a").await;
    make(&f.fs, "file", &[true, false, false, false, true], 0, 7).await;
    let found = c.ok(vec![Op::Putrootfh(()), Op::Lookup("file".into()), Op::Getfh(())]).await;
    let file = handle(&found).unwrap();
    let args = read::Args { stateid: StateId::ANONYMOUS, offset: 5000, count: 100 };
    let OpRes::ReadPlus(Ok(plus)) = c.on(&file, Op::ReadPlus(args)).await else { panic!() };
    assert!(!plus.eof);
    let [Segment::Hole(hole)] = &plus.segments.0[..] else { panic!("{plus:?}") };
    assert_eq!((hole.offset, hole.length), (5000, 4 * PAGE as u64 - 5000));
    let described = f.server.report().exports()[0].hole_bytes;
    assert_eq!(described, 100, "the zeros that were asked for, and not sent");
}

#[tokio::test]
async fn read_plus_past_the_end_returns_no_segments() {
    let f = Fixture::new().await;
    let mut c = f.client("a").await;
    make(&f.fs, "file", &[true], 100, 7).await;
    let found = c.ok(vec![Op::Putrootfh(()), Op::Lookup("file".into()), Op::Getfh(())]).await;
    let file = handle(&found).unwrap();
    for offset in [PAGE as u64 - 100, 1 << 40] {
        let args = read::Args { stateid: StateId::ANONYMOUS, offset, count: 100 };
        let OpRes::ReadPlus(Ok(plus)) = c.on(&file, Op::ReadPlus(args)).await else { panic!() };
        assert_eq!((plus.eof, plus.segments.0.len()), (true, 0));
    }
}

#[tokio::test]
async fn seek_finds_data_and_holes() {
    let f = Fixture::new().await;
    let mut c = f.client("a").await;
    make(&f.fs, "file", &[true, false, true, false], 0, 7).await;
    let found = c.ok(vec![Op::Putrootfh(()), Op::Lookup("file".into()), Op::Getfh(())]).await;
    let file = handle(&found).unwrap();
    let page = PAGE as u64;
    let cases = [
        (10, Content::Data, Ok((false, 10))),
        (10, Content::Hole, Ok((false, page))),
        (page, Content::Data, Ok((false, 2 * page))),
        (3 * page + 1, Content::Hole, Ok((false, 3 * page + 1))),
        (3 * page + 1, Content::Data, Ok((true, 4 * page))),
        (4 * page, Content::Hole, Err(Error::NxIo)),
    ];
    for (offset, what, expected) in cases {
        let args = seek::Args { stateid: StateId::ANONYMOUS, offset, what };
        let OpRes::Seek(found) = c.on(&file, Op::Seek(args)).await else { panic!() };
        assert_eq!(found.map(|f| (f.eof, f.offset)), expected, "{what:?} from {offset}");
    }
}

#[tokio::test]
async fn copy_keeps_holes_and_deallocate_creates_them() {
    let f = Fixture::new().await;
    let mut c = f.client("a").await;
    let expected = make(&f.fs, "from", &[true, false, true], 10, 7).await;
    let (to, destination) = c.open("to").await;
    let found = c.ok(vec![Op::Putrootfh(()), Op::Lookup("from".into()), Op::Getfh(())]).await;
    let from = handle(&found).unwrap();
    let args = copy::Args {
        source: StateId::ANONYMOUS,
        destination,
        source_offset: 0,
        destination_offset: 0,
        count: 0,
        consecutive: true,
        synchronous: true,
        source_servers: List::default(),
    };
    let ops = vec![Op::Putfh(from), Op::Savefh(()), Op::Putfh(to.clone()), Op::Copy(args)];
    let results = c.ok(ops).await;
    let Some(OpRes::Copy(Ok(copied))) = results.last() else { panic!() };
    assert_eq!(copied.response.count, expected.len() as u64);
    read_all(&mut c, &to, &expected, 0, 1 << 20, 1 << 20).await;
    let args = seek::Args { stateid: StateId::ANONYMOUS, offset: 0, what: Content::Hole };
    let OpRes::Seek(Ok(hole)) = c.on(&to, Op::Seek(args)).await else { panic!() };
    assert_eq!(hole.offset, PAGE as u64);

    let args = deallocate::Args { stateid: destination, offset: 0, length: 2 * PAGE as u64 };
    assert!(matches!(c.on(&to, Op::Deallocate(args)).await, OpRes::Deallocate(Ok(()))));
    let args = seek::Args { stateid: StateId::ANONYMOUS, offset: 0, what: Content::Data };
    let OpRes::Seek(Ok(data)) = c.on(&to, Op::Seek(args)).await else { panic!() };
    assert_eq!(data.offset, 2 * PAGE as u64);
}
