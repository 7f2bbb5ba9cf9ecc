//! Compounds: the order of operations, checks before them, and exactly-once execution.

use super::*;
use weir_nfs::v4::op::create;

fn mkdir(name: &'static str) -> Op {
    let (kind, attrs) = (create::Kind::Directory, Attrs::default().into());
    Op::Create(create::Args { kind, name: name.into(), attrs })
}

#[tokio::test]
async fn a_retransmitted_request_gets_the_kept_reply_and_is_not_executed_again() {
    let f = Fixture::new().await;
    let mut c = f.client("a").await;
    c.cache_this = true;
    let first = c.run(vec![Op::Putrootfh(()), mkdir("d")]).await;
    assert_eq!(first.status, Ok(()));
    let again = c.raw(vec![c.sequence(), Op::Putrootfh(()), mkdir("d")]).await;
    // Everything but the xid is the same.
    assert_eq!(again.bytes[4..], first.bytes[4..]);
    assert_eq!(c.fails(vec![Op::Putrootfh(()), mkdir("d")]).await, Error::Exist);

    c.cache_this = false;
    c.ok(vec![Op::Putrootfh(())]).await;
    let again = c.raw(vec![c.sequence(), Op::Putrootfh(())]).await;
    assert_eq!(again.status, Err(Error::RetryUncachedRep));
    c.sequence += 2;
    assert_eq!(c.raw(vec![c.sequence()]).await.status, Err(Error::SeqMisordered));
}

#[tokio::test]
async fn operations_run_only_where_their_table_row_allows() {
    let f = Fixture::new().await;
    let mut c = f.client("a").await;
    assert_eq!(c.raw(vec![Op::Putrootfh(())]).await.status, Err(Error::OpNotInSession));
    let twice = vec![c.sequence(), Op::Putrootfh(())];
    assert_eq!(c.fails(twice).await, Error::SequencePos);
    let destroy = Op::DestroySession(c.session);
    let both = vec![destroy.clone(), Op::Putrootfh(())];
    assert_eq!(c.raw(both).await.status, Err(Error::NotOnlyOp));
    assert_eq!(c.fails(vec![Op::Getfh(())]).await, Error::NoFilehandle);
    assert_eq!(c.fails(vec![Op::Restorefh(())]).await, Error::RestoreFh);
    assert_eq!(c.fails(vec![Op::Putfh(b"made up".as_slice().into())]).await, Error::BadHandle);
    assert_eq!(c.fails(vec![Op::Renew(1)]).await, Error::NotSupp);
    assert_eq!(c.raw(vec![destroy]).await.status, Ok(()));
    assert_eq!(c.raw(vec![Op::DestroySession(c.session)]).await.status, Err(Error::BadSession));
    c.minor = 3;
    assert_eq!(c.raw(vec![Op::Putrootfh(())]).await.status, Err(Error::MinorVersMismatch));
}

#[tokio::test]
async fn a_truncated_compound_fails_at_the_missing_operation() {
    let f = Fixture::new().await;
    let mut c = f.client("a").await;
    c.sequence += 1;
    let ops = [c.sequence(), Op::Putrootfh(())];
    c.send("tag", 5, &ops).await;
    let mut d = Decoder::new(c.record().await);
    let _: ReplyHeader = d.get().unwrap();
    let header: CompoundResHeader = d.get().unwrap();
    assert_eq!((header.status.is_err(), header.results), (true, 3));
    c.ok(vec![Op::Putrootfh(())]).await;
}

#[tokio::test]
async fn a_reply_that_does_not_fit_fails_before_the_operation_runs() {
    let f = Fixture::new().await;
    let mut c = f.connect("a", 2).await;
    c.begin_session(512).await;
    let mut ops = vec![Op::Getfh(()); 9];
    ops.insert(0, Op::Putrootfh(()));
    let reply = c.run(ops).await;
    assert_eq!(reply.status, Err(Error::RepTooBig));
    assert!(reply.bytes.len() <= 512, "{} bytes", reply.bytes.len());
}

/// Operations on a file that succeed, fail, and fail with a detail.
fn operations(c: &Client, file: &FileHandle, stateid: StateId) -> Vec<(&'static str, Vec<Op>)> {
    use weir_nfs::v4::Bitmap;
    use weir_nfs::v4::op::{close, lock, lockt, locku, read, read_plus, readdir};
    use weir_nfs::v4::op::{seek, setattr, write};
    let root = |op| vec![Op::Putrootfh(()), op];
    let on = |op| vec![Op::Putfh(file.clone()), op];
    let thread = |owner: &'static str| StateOwner { client_id: 0, owner: owner.into() };
    let locker = lock::Locker::New(lock::NewLocker {
        open_seqid: 0,
        open_stateid: stateid,
        lock_seqid: 0,
        lock_owner: thread("thread"),
    });
    let kind = weir_nfs::v4::types::LockType::Write;
    let locks = lock::Args { kind, reclaim: false, offset: 0, length: 10, locker };
    let unlock = locku::Args { kind, seqid: 0, lock_stateid: stateid, offset: 0, length: 1 };
    let attrs = Bitmap::of(&[1, 3, 4, 20, 33, 36, 37]);
    let set = |stateid| setattr::Args {
        stateid,
        attrs: Attrs { mode: Some(0o600), ..Attrs::default() }.into(),
    };
    let bytes = write::Args {
        stateid,
        offset: 0,
        stable: weir_nfs::v4::types::StableHow::Unstable,
        data: Bytes::from_static(b"data").into(),
    };
    let list =
        readdir::Args { cookie: 0, verifier: [0; 8], dir_count: 4096, max_count: 4096, attrs };
    let closed = close::Args { seqid: 0, open_stateid: StateId { seqid: 9, ..stateid } };
    vec![
        ("sequence only", vec![]),
        ("illegal", root(Op::Refused(weir_nfs::v4::OpCode::GetDirDelegation))),
        ("no file handle", vec![Op::Setattr(set(StateId::ANONYMOUS))]),
        ("getfh", vec![Op::Putfh(file.clone()), Op::Getfh(())]),
        ("setattr first", vec![Op::Setattr(set(stateid)), Op::Getfh(())]),
        ("setattr", on(Op::Setattr(set(StateId::ANONYMOUS)))),
        ("setattr of a bad state", on(Op::Setattr(set(StateId { seqid: 9, ..stateid })))),
        ("getattr", on(Op::Getattr(attrs))),
        ("open", root(c.open_op("file", 0))),
        ("create", root(mkdir("dir"))),
        ("lock denied", on(Op::Lock(locks))),
        (
            "lockt denied",
            on(Op::Lockt(lockt::Args { kind, offset: 0, length: 10, owner: thread("thread") })),
        ),
        ("locku", on(Op::Locku(unlock))),
        ("read", on(Op::Read(read::Args { stateid: StateId::ANONYMOUS, offset: 0, count: 4096 }))),
        (
            "read_plus",
            on(Op::ReadPlus(read_plus::Args {
                stateid: StateId::ANONYMOUS,
                offset: 0,
                count: 4096,
            })),
        ),
        (
            "seek",
            on(Op::Seek(seek::Args {
                stateid: StateId::ANONYMOUS,
                offset: 0,
                what: weir_nfs::v4::types::Content::Data,
            })),
        ),
        ("readdir", root(Op::Readdir(list))),
        ("write", on(Op::Write(bytes))),
        ("close", on(Op::Close(closed))),
        ("secinfo", root(Op::Secinfo("file".into()))),
        ("test_stateid", vec![Op::TestStateid(vec![stateid; 20].into())]),
    ]
}

#[tokio::test]
async fn a_reply_of_any_operation_stays_within_the_size_of_its_session() {
    let f = Fixture::new().await;
    let mut holder = f.client("holder").await;
    let (file, open) = holder.open("file").await;
    let locked = holder.on(&file, super::locks::lock_op(open, LOCK, false)).await;
    assert!(matches!(locked, OpRes::Lock(Ok(_))), "{locked:?}");
    let mut wide = f.client("small").await;
    let (_, stateid) = wide.open("file").await;
    for limit in 80..=200 {
        let mut c = f.connect("small", 2).await;
        c.begin_session(limit).await;
        for (name, ops) in operations(&c, &file, stateid) {
            // Without a tag, and with each operation both before others and as the last.
            let more = [ops.clone(), vec![Op::Putrootfh(()), Op::Getfh(())]].concat();
            for ops in [ops, more] {
                c.sequence += 1;
                let all: Vec<Op> = std::iter::once(c.sequence()).chain(ops).collect();
                c.send("", all.len() as u32, &all).await;
                let reply = c.record().await;
                assert!(reply.len() <= limit as usize, "{name}: {} of {limit}", reply.len());
                let mut d = Decoder::new(reply);
                let _: ReplyHeader = d.get().unwrap();
                let header: CompoundResHeader = d.get().unwrap();
                let first = OpRes::decode_next(&mut d).unwrap();
                if first.status().is_err() {
                    assert_eq!(header.status, Err(Error::RepTooBig), "{name} at {limit}");
                    c.sequence -= 1;
                }
            }
        }
        let destroy = Op::DestroySession(c.session);
        assert_eq!(c.raw(vec![destroy]).await.status, Ok(()));
    }
}

const LOCK: weir_nfs::v4::types::LockType = weir_nfs::v4::types::LockType::Write;

#[tokio::test]
async fn a_different_request_with_a_used_sequence_number_is_refused() {
    let f = Fixture::new().await;
    let mut c = f.client("client").await;
    c.cache_this = true;
    c.ok(vec![Op::Putrootfh(()), Op::Getfh(())]).await;
    let again = vec![c.sequence(), Op::Putrootfh(()), Op::Getfh(())];
    assert_eq!(c.raw(again).await.status, Ok(()));
    let other = vec![c.sequence(), Op::Putrootfh(()), Op::Lookup("file".into())];
    assert_eq!(c.raw(other).await.status, Err(Error::SeqFalseRetry));
    c.ok(vec![]).await;
}

#[tokio::test]
async fn unsupported_operations_and_state_protection_are_refused() {
    use weir_nfs::v4::op::exchange_id::{ProtectOps, SsvParams, StateProtect};
    use weir_nfs::v4::{Bitmap, OpCode};
    let f = Fixture::new().await;
    let mut c = f.client("client").await;
    let (file, _) = c.open("file").await;
    for code in [OpCode::GetDirDelegation, OpCode::WantDelegation, OpCode::CopyNotify] {
        let refused = c.run(vec![Op::Putfh(file.clone()), Op::Refused(code)]).await;
        assert_eq!(refused.results.last(), Some(&OpRes::Failed(code, Error::NotSupp)));
    }
    let ops = ProtectOps { must_enforce: Bitmap::EMPTY, must_allow: Bitmap::EMPTY };
    let ssv = SsvParams {
        ops,
        hash_algs: List::default(),
        encr_algs: List::default(),
        window: 1,
        num_gss_handles: 1,
    };
    for (state_protect, refusal) in [
        (StateProtect::MachCred(ops), Error::Inval),
        (StateProtect::Ssv(ssv), Error::EncrAlgUnsupp),
    ] {
        let args = exchange_id::Args {
            client: ClientOwner { verifier: *b"one run.", owner: "protected".into() },
            flags: exchange_id::Flags::empty(),
            state_protect,
            impl_id: List::default(),
        };
        assert_eq!(c.raw(vec![Op::ExchangeId(args)]).await.status, Err(refusal));
    }
}
