//! Names, attributes and data.

use super::*;
use std::collections::BTreeSet;
use weir_nfs::v4::Bitmap;
use weir_nfs::v4::attr;
use weir_nfs::v4::op::{close, commit, read, readdir, rename, setattr, write};
use weir_nfs::v4::types::StableHow;

#[tokio::test]
async fn written_data_is_read_back() {
    let f = Fixture::new().await;
    let mut c = f.client("a").await;
    let (file, stateid) = c.open("file").await;
    let data: Bytes = (0..300_000u32).map(|i| i as u8).collect();
    let args =
        write::Args { stateid, offset: 10, stable: StableHow::Unstable, data: data.clone().into() };
    let OpRes::Write(Ok(written)) = c.on(&file, Op::Write(args)).await else { panic!() };
    assert_eq!((written.count, written.committed), (300_000, StableHow::Unstable));
    let OpRes::Commit(Ok(verifier)) =
        c.on(&file, Op::Commit(commit::Args { offset: 0, count: 0 })).await
    else {
        panic!()
    };
    assert_eq!(verifier, written.verifier);
    let args = read::Args { stateid, offset: 5, count: 400_000 };
    let OpRes::Read(Ok(read)) = c.on(&file, Op::Read(args)).await else { panic!() };
    assert!(read.eof);
    assert_eq!(read.data.to_bytes(), [&[0; 5], &data[..]].concat());
    // Without an open, the caller's own rights apply.
    let args = read::Args { stateid: StateId::ANONYMOUS, offset: 300_000, count: 10 };
    let OpRes::Read(Ok(read)) = c.on(&file, Op::Read(args)).await else { panic!() };
    assert_eq!((read.eof, read.data.len()), (true, 10));
}

#[tokio::test]
async fn a_read_reply_is_cut_to_the_session_limit() {
    let f = Fixture::new().await;
    let mut big = f.client("a").await;
    let (file, stateid) = big.open("file").await;
    let args = write::Args {
        stateid,
        offset: 0,
        stable: StableHow::FileSync,
        data: Bytes::from(vec![1; 5000]).into(),
    };
    big.on(&file, Op::Write(args)).await;
    for limit in 600..610 {
        let mut c = f.connect("small", 2).await;
        c.begin_session(limit).await;
        let args = read::Args { stateid: StateId::ANONYMOUS, offset: 0, count: 5000 };
        let reply = c.run(vec![Op::Putfh(file.clone()), Op::Read(args)]).await;
        assert_eq!(reply.status, Ok(()));
        let (len, limit) = (reply.bytes.len(), limit as usize);
        assert!(len <= limit && len + 4 > limit, "{len} bytes of {limit}");
    }
}

#[tokio::test]
async fn a_directory_is_read_in_pages_of_any_size() {
    let f = Fixture::new().await;
    let mut c = f.client("a").await;
    let names: BTreeSet<String> = (0..60).map(|i| format!("{i}{}", "x".repeat(i % 9))).collect();
    for name in &names {
        let name: &'static str = name.clone().leak();
        c.open(name).await;
    }
    let asked = Bitmap::of(&[attr::TYPE, attr::FILEID, attr::RDATTR_ERROR, attr::FILEHANDLE]);
    for max_count in [150, 151, 500, 4096] {
        let (mut seen, mut cookie) = (Vec::new(), 0);
        loop {
            let args =
                readdir::Args { cookie, verifier: [0; 8], dir_count: 0, max_count, attrs: asked };
            let results = c.ok(vec![Op::Putrootfh(()), Op::Readdir(args)]).await;
            let Some(OpRes::Readdir(Ok(page))) = results.last() else { panic!("{results:?}") };
            let mut e = weir_xdr::Encoder::new();
            e.put(page);
            assert!(e.len() <= max_count as usize, "{} of {max_count}", e.len());
            seen.extend(page.entries.0.iter().map(|e| String::from_utf8(e.name.to_vec()).unwrap()));
            cookie = page.entries.0.last().map_or(cookie, |e| e.cookie);
            if page.eof {
                break;
            }
        }
        assert_eq!(seen.len(), names.len());
        assert_eq!(seen.into_iter().collect::<BTreeSet<_>>(), names);
    }
    let args =
        readdir::Args { cookie: 0, verifier: [0; 8], dir_count: 0, max_count: 40, attrs: asked };
    assert_eq!(c.fails(vec![Op::Putrootfh(()), Op::Readdir(args)]).await, Error::TooSmall);
}

#[tokio::test]
async fn handles_follow_renames_and_end_with_removal() {
    let f = Fixture::new().await;
    let mut c = f.client("a").await;
    let (file, _) = c.open("old").await;
    let args = rename::Args { from: "old".into(), to: "new".into() };
    c.ok(vec![Op::Putrootfh(()), Op::Savefh(()), Op::Rename(args)]).await;
    let found = c.ok(vec![Op::Putrootfh(()), Op::Lookup("new".into()), Op::Getfh(())]).await;
    assert_eq!(handle(&found), Ok(file.clone()));
    for (name, error) in
        [("", Error::Inval), ("..", Error::BadName), ("a/b", Error::BadChar), ("old", Error::NoEnt)]
    {
        assert_eq!(c.fails(vec![Op::Putrootfh(()), Op::Lookup(name.into())]).await, error);
    }
    assert_eq!(c.fails(vec![Op::Putrootfh(()), Op::Lookupp(())]).await, Error::NoEnt);
    c.ok(vec![Op::Putrootfh(()), Op::Remove("new".into())]).await;
    assert_eq!(c.fails(vec![Op::Putrootfh(()), Op::Lookup("new".into())]).await, Error::NoEnt);
}

#[tokio::test]
async fn a_repeated_exclusive_create_is_recognised() {
    let f = Fixture::new().await;
    let mut c = f.client("a").await;
    let create = |verifier: [u8; 8]| {
        let attrs = Attrs { mode: Some(0o600), ..Attrs::default() }.into();
        let how = open::CreateHow::Exclusive41(open::CreateVerifier { verifier, attrs });
        Op::Open(open::Args {
            seqid: 0,
            share_access: open::ShareAccess::READ,
            share_deny: open::ShareDeny::empty(),
            owner: StateOwner { client_id: 0, owner: "p".into() },
            how: open::How::Create(how),
            claim: open::Claim::Null("file".into()),
        })
    };
    c.ok(vec![Op::Putrootfh(()), create(*b"first...")]).await;
    c.ok(vec![Op::Putrootfh(()), create(*b"first...")]).await;
    assert_eq!(c.fails(vec![Op::Putrootfh(()), create(*b"another.")]).await, Error::Exist);
}

#[tokio::test]
async fn an_open_for_reading_does_not_truncate_what_another_open_protects() {
    let f = Fixture::new().await;
    let (mut a, mut b) = (f.client("a").await, f.client("b").await);
    let (file, stateid) = a.open("file").await;
    let data = weir_nfs::Data::Bytes("kept".into());
    let args = write::Args { stateid, offset: 0, stable: StableHow::FileSync, data };
    assert!(matches!(a.on(&file, Op::Write(args)).await, OpRes::Write(Ok(_))));
    let close = |open_stateid| Op::Close(close::Args { seqid: 0, open_stateid });
    a.on(&file, close(stateid)).await;
    let open = |deny, attrs: Attrs| {
        Op::Open(open::Args {
            seqid: 0,
            share_access: open::ShareAccess::READ,
            share_deny: deny,
            owner: StateOwner { client_id: 0, owner: "p".into() },
            how: open::How::Create(open::CreateHow::Unchecked(attrs.into())),
            claim: open::Claim::Null("file".into()),
        })
    };
    let denies = vec![Op::Putrootfh(()), open(open::ShareDeny::WRITE, Attrs::default())];
    let OpRes::Open(Ok(denies)) = a.ok(denies).await.remove(1) else { panic!() };
    let empty = Attrs { size: Some(0), ..Attrs::default() };
    let truncates = vec![Op::Putrootfh(()), open(open::ShareDeny::empty(), empty)];
    assert_eq!(b.fails(truncates.clone()).await, Error::ShareDenied);
    let size = async || f.fs.lookup(&weir_vfs::Caller::Own, f.fs.root().entry(b"file")).await;
    assert_eq!(size().await.unwrap().size, 4);
    a.on(&file, close(denies.stateid)).await;
    b.ok(truncates).await;
    assert_eq!(size().await.unwrap().size, 0);
}

#[tokio::test]
async fn setattr_of_size_works_under_an_open() {
    let f = Fixture::new().await;
    let mut c = f.client("a").await;
    let (file, stateid) = c.open("file").await;
    let attrs = Attrs { size: Some(1 << 40), ..Attrs::default() }.into();
    let OpRes::Setattr(set) = c.on(&file, Op::Setattr(setattr::Args { stateid, attrs })).await
    else {
        panic!()
    };
    assert_eq!((set.status, set.set), (Ok(()), Bitmap::of(&[attr::SIZE])));
    let OpRes::Getattr(Ok(attrs)) = c.on(&file, Op::Getattr(Bitmap::of(&[attr::SIZE]))).await
    else {
        panic!()
    };
    assert_eq!(attrs.size, Some(1 << 40));
}

/// Some clients (libnfs) take a short read for the end of the file or for an error.
#[tokio::test]
async fn a_read_is_short_only_at_the_end_of_the_file() {
    const BUDGET: u64 = 1 << 20;
    const ONE: usize = 600_000;
    let uncached = |config: &mut ServerConfig| {
        config.exports[0].options.cache = CachePolicy::Uncached;
    };
    let f = Fixture::of_budget(MemoryFs::new(), BUDGET, uncached).await;
    let mut c = f.client("a").await;
    let (file, stateid) = c.open("file").await;
    // Data, a hole, and data again, with an odd length.
    let mut content: Vec<u8> = (0..2 * ONE + 1234).map(|i| (i / 3) as u8).collect();
    content[400_000..900_000].fill(0);
    for (i, piece) in content.chunks(100_000).enumerate().filter(|(i, _)| !(4..9).contains(i)) {
        let (offset, data) = (i as u64 * 100_000, Bytes::copy_from_slice(piece).into());
        let args = write::Args { stateid, offset, stable: StableHow::FileSync, data };
        assert!(matches!(c.on(&file, Op::Write(args)).await, OpRes::Write(Ok(_))));
    }
    for (offset, end) in [(0, ONE), (7, ONE + 7), (ONE, 2 * ONE), (2 * ONE - 9, content.len())] {
        let args = read::Args { stateid, offset: offset as u64, count: ONE as u32 };
        let OpRes::Read(Ok(read)) = c.on(&file, Op::Read(args)).await else { panic!() };
        assert_eq!((read.data.len(), read.eof), (end - offset, end == content.len()), "{offset}");
        assert!(*read.data.to_bytes() == content[offset..end], "{offset}");
    }
    let args = read::Args { stateid, offset: content.len() as u64 - 5, count: 5 };
    let OpRes::Read(Ok(read)) = c.on(&file, Op::Read(args)).await else { panic!() };
    assert_eq!((read.data.len(), read.eof), (5, true));
}

#[tokio::test]
async fn writes_beyond_the_largest_file_of_the_store_are_refused() {
    use weir_nfs::v4::op::{allocate, clone, copy, write_same};
    use weir_xdr::Opaque;
    const LARGEST: u64 = 1 << 20;
    let store = weir_stores::fault::Fault::over(MemoryFs::new(), 1);
    store.set_max_file_size(LARGEST);
    let f = Fixture::of(store).await;
    let mut c = f.client("a").await;
    let (file, stateid) = c.open("file").await;
    let asked = Bitmap::of(&[attr::MAXFILESIZE]);
    let OpRes::Getattr(Ok(attrs)) = c.on(&file, Op::Getattr(asked)).await else { panic!() };
    let expected = Attrs { maxfilesize: Some(LARGEST), ..Attrs::default() };
    assert_eq!(attrs, expected);
    let write = |offset| {
        let data = Bytes::from_static(b"0123456789").into();
        Op::Write(write::Args { stateid, offset, stable: StableHow::Unstable, data })
    };
    let size = |size| {
        let attrs = Attrs { size: Some(size), ..Attrs::default() };
        Op::Setattr(setattr::Args { stateid, attrs: attrs.into() })
    };
    let allocate = |length| Op::Allocate(allocate::Args { stateid, offset: 0, length });
    for refused in [write(LARGEST - 9), write(LARGEST), size(LARGEST + 1), allocate(LARGEST + 1)] {
        let ops = vec![Op::Putfh(file.clone()), refused.clone()];
        assert_eq!(c.fails(ops).await, Error::FBig, "{refused:?}");
    }
    let (destination, stateid_of_copy) = c.open("copy").await;
    c.ok(vec![Op::Putfh(file.clone()), size(11)]).await;
    let from_file = |op| {
        let put = [&file, &destination].map(|file| Op::Putfh(file.clone()));
        let [source, destination] = put;
        vec![source, Op::Savefh(()), destination, op]
    };
    let copy = |destination_offset| {
        Op::Copy(copy::Args {
            source: stateid,
            destination: stateid_of_copy,
            source_offset: 0,
            destination_offset,
            count: 0,
            consecutive: true,
            synchronous: true,
            source_servers: List::default(),
        })
    };
    let clone = |destination_offset| {
        Op::Clone(clone::Args {
            source: stateid,
            destination: stateid_of_copy,
            source_offset: 0,
            destination_offset,
            count: 0,
        })
    };
    let write_same = |block_count| {
        Op::WriteSame(write_same::Args {
            stateid: stateid_of_copy,
            stable: StableHow::Unstable,
            offset: 0,
            block_size: LARGEST / 16,
            block_count,
            relative_number_offset: u64::MAX,
            block_number: 0,
            relative_pattern_offset: 0,
            pattern: Opaque::copy_from(b"pattern"),
        })
    };
    for at in [LARGEST - 10, LARGEST, u64::MAX - 10] {
        assert_eq!(c.fails(from_file(copy(at))).await, Error::FBig, "{at}");
        assert_eq!(c.fails(from_file(clone(at))).await, Error::FBig, "{at}");
    }
    let too_many = vec![Op::Putfh(destination.clone()), write_same(17)];
    assert_eq!(c.fails(too_many).await, Error::FBig);
    let asked = Op::Getattr(Bitmap::of(&[attr::SIZE]));
    let empty = Attrs { size: Some(0), ..Attrs::default() };
    assert_eq!(c.on(&destination, asked).await, OpRes::Getattr(Ok(empty)));
    assert_eq!(f.fs.cache().dirty_bytes(), 0);
    c.ok(from_file(copy(LARGEST - 11))).await;
    c.ok(vec![Op::Putfh(destination.clone()), write_same(16)]).await;
    for taken in [write(LARGEST - 10), size(LARGEST), allocate(LARGEST)] {
        c.ok(vec![Op::Putfh(file.clone()), taken]).await;
    }
    c.ok(vec![Op::Putfh(file), Op::Commit(commit::Args { offset: 0, count: 0 })]).await;
}
