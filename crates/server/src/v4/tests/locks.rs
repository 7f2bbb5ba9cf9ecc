//! Opens and byte-range locks of several clients.

use super::*;
use weir_nfs::v4::Detailed;
use weir_nfs::v4::op::{close, lock, lockt, locku};
use weir_nfs::v4::types::LockType;

pub(super) fn lock_op(open_stateid: StateId, kind: LockType, reclaim: bool) -> Op {
    let lock_owner = StateOwner { client_id: 0, owner: "thread".into() };
    let new = lock::NewLocker { open_seqid: 0, open_stateid, lock_seqid: 0, lock_owner };
    Op::Lock(lock::Args { kind, reclaim, offset: 0, length: 100, locker: lock::Locker::New(new) })
}

#[tokio::test]
async fn a_lock_keeps_others_out_until_it_is_given_up() {
    let f = Fixture::new().await;
    let (mut a, mut b) = (f.client("a").await, f.client("b").await);
    let (file, open_a) = a.open("file").await;
    let (_, open_b) = b.open("file").await;
    let OpRes::Lock(Ok(held)) = a.on(&file, lock_op(open_a, LockType::Write, false)).await else {
        panic!()
    };
    let OpRes::Lock(Err(Detailed::Detail(denied))) =
        b.on(&file, lock_op(open_b, LockType::Read, false)).await
    else {
        panic!()
    };
    assert_eq!((denied.offset, denied.length, denied.kind), (0, 100, LockType::Write));
    let test = |offset| {
        let owner = StateOwner { client_id: 0, owner: "thread".into() };
        Op::Lockt(lockt::Args { kind: LockType::Write, offset, length: 1, owner })
    };
    assert!(matches!(b.on(&file, test(99)).await, OpRes::Lockt(Err(Detailed::Detail(_)))));
    assert!(matches!(b.on(&file, test(100)).await, OpRes::Lockt(Ok(()))));

    let unlock = locku::Args {
        kind: LockType::Write,
        seqid: 0,
        lock_stateid: held,
        offset: 0,
        length: u64::MAX,
    };
    assert!(matches!(a.on(&file, Op::Locku(unlock)).await, OpRes::Locku(Ok(_))));
    assert!(matches!(
        b.on(&file, lock_op(open_b, LockType::Read, false)).await,
        OpRes::Lock(Ok(_))
    ));
}

#[tokio::test]
async fn a_share_reservation_keeps_others_out_until_it_is_closed() {
    let f = Fixture::new().await;
    let (mut a, mut b) = (f.client("a").await, f.client("b").await);
    let results = a.ok(vec![Op::Putrootfh(()), a.open_op("file", 3), Op::Getfh(())]).await;
    let OpRes::Open(Ok(opened)) = &results[1] else { panic!() };
    let file = handle(&results).unwrap();
    assert_eq!(b.fails(vec![Op::Putrootfh(()), b.open_op("file", 0)]).await, Error::ShareDenied);
    let close = close::Args { seqid: 0, open_stateid: opened.stateid };
    a.on(&file, Op::Close(close)).await;
    b.open("file").await;
    assert!(matches!(a.on(&file, Op::Close(close)).await, OpRes::Close(Err(Error::BadStateId))));
}

#[tokio::test]
async fn the_current_stateid_stands_for_the_one_just_made() {
    let f = Fixture::new().await;
    let mut c = f.client("a").await;
    let close = close::Args { seqid: 0, open_stateid: StateId::CURRENT };
    c.ok(vec![Op::Putrootfh(()), c.open_op("file", 0), Op::Close(close)]).await;
    assert_eq!(c.fails(vec![Op::Putrootfh(()), Op::Close(close)]).await, Error::BadStateId);
}
