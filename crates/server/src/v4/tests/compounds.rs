//! The frame: order, gates, exactly once.

use super::*;
use weir_nfs::v4::op::create;

fn mkdir(name: &'static str) -> Op {
    let (kind, attrs) = (create::Kind::Directory, Attrs::default().into());
    Op::Create(create::Args { kind, name: name.into(), attrs })
}

#[tokio::test]
async fn a_request_sent_again_is_answered_again_and_not_done_again() {
    let f = Fixture::new().await;
    let mut c = f.client("a").await;
    c.cache_this = true;
    let first = c.run(vec![Op::Putrootfh(()), mkdir("d")]).await;
    assert_eq!(first.status, Ok(()));
    let again = c.raw(vec![c.sequence(), Op::Putrootfh(()), mkdir("d")]).await;
    // All but the transaction is the same.
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
async fn operations_run_only_where_their_row_lets_them() {
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
async fn a_cut_off_compound_fails_at_the_operation_that_is_missing() {
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
async fn a_reply_that_does_not_fit_fails_before_anything_is_done() {
    let f = Fixture::new().await;
    let mut c = f.connect("a", 2).await;
    c.begin_session(512).await;
    let mut ops = vec![Op::Getfh(()); 9];
    ops.insert(0, Op::Putrootfh(()));
    let reply = c.run(ops).await;
    assert_eq!(reply.status, Err(Error::RepTooBig));
    assert!(reply.bytes.len() <= 512, "{} bytes", reply.bytes.len());
}

#[tokio::test]
async fn another_request_under_a_number_that_was_used_is_refused() {
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
async fn what_is_not_offered_is_refused_properly() {
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
