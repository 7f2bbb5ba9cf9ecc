//! Opens that are delegations alone (RFC 9754 sections 3 and 4).

use super::delegations::{WANT_READ, WANT_WRITE, delegation, open_as, stateid, write_op};
use super::*;
use weir_nfs::v4::attr::{OPEN_ARGUMENTS, OpenArguments, TIME_DELEG_MODIFY};
use weir_nfs::v4::op::open::{
    Claim, CreateHow, Delegation, DelegationType, How, ResultFlags, ShareAccess, ShareDeny, WhyNone,
};
use weir_nfs::v4::op::{close, lock, lockt, read, setattr};
use weir_nfs::v4::types::LockType;
use weir_nfs::v4::{Bitmap, Detailed};
use weir_vfs::{Caller, CreateMode, SetAttr};

const EITHER: ShareAccess = ShareAccess::WANT_OPEN_XOR_DELEGATION;

/// What OPEN returned: an open, a delegation, or both.
fn opened(res: &OpRes) -> (Option<StateId>, Option<StateId>) {
    let OpRes::Open(Ok(opened)) = res else { panic!("{res:?}") };
    let none = opened.flags.contains(ResultFlags::NO_OPEN_STATEID);
    assert_eq!(none, opened.stateid == StateId::ANONYMOUS);
    let given = match &opened.delegation {
        Delegation::None | Delegation::NoneExt(_) => None,
        given => Some(stateid(given)),
    };
    ((!none).then_some(opened.stateid), given)
}

fn reads(stateid: StateId) -> Op {
    Op::Read(read::Args { stateid, offset: 0, count: 9 })
}

fn truncates(stateid: StateId) -> Op {
    let attrs = Attrs { size: Some(1), ..Attrs::default() };
    Op::Setattr(setattr::Args { stateid, attrs: attrs.into() })
}

#[tokio::test]
async fn clients_learn_what_open_supports() {
    let f = Fixture::new().await;
    let mut a = f.client("a").await;
    let file = a.make("file").await;
    let asked = Op::Getattr(Bitmap::of(&[OPEN_ARGUMENTS]));
    let OpRes::Getattr(Ok(attrs)) = a.on(&file, asked.clone()).await else { panic!() };
    let expected = OpenArguments {
        share_access: Bitmap::of(&[1, 2, 3]),
        share_deny: Bitmap::of(&[0, 1, 2, 3]),
        share_access_want: Bitmap::of(&[3, 4, 5, 21]),
        open_claim: Bitmap::of(&[0, 1, 2, 4, 5]),
        create_mode: Bitmap::of(&[0, 1, 2, 3]),
    };
    assert_eq!(attrs.open_arguments, Some(expected));
    let times = Op::Getattr(Bitmap::of(&[TIME_DELEG_MODIFY]));
    assert!(matches!(a.on(&file, times).await, OpRes::Getattr(Err(Error::Inval))));
    // Minor version 1 has neither the attribute nor the flag.
    let mut old = f.connect("old", 1).await;
    old.begin_session(1 << 20).await;
    old.ok(vec![Op::ReclaimComplete(reclaim_complete::Args { one_fs: false })]).await;
    assert_eq!(old.on(&file, asked).await, OpRes::Getattr(Ok(Attrs::default())));
    let res = old.on(&file, open_as(WANT_READ | EITHER, Claim::Fh)).await;
    assert!(matches!(res, OpRes::Open(Err(Error::Inval))));
}

#[tokio::test]
async fn a_delegation_replaces_an_open_on_request() {
    let f = Fixture::new().await;
    let (mut a, mut b) = (f.callable("a").await, f.client("b").await);
    let file = a.make("file").await;
    let ops = vec![
        Op::Putfh(file.clone()),
        open_as(WANT_WRITE | EITHER, Claim::Fh),
        // The delegation's stateid is the current one.
        write_op(StateId::CURRENT),
        truncates(StateId::CURRENT),
    ];
    let results = a.ok(ops).await;
    let (open, Some(held)) = opened(&results[1]) else { panic!("{results:?}") };
    assert_eq!(open, None);
    assert!(matches!(a.on(&file, reads(held)).await, OpRes::Read(Ok(_))));
    for id in [held, StateId::ANONYMOUS] {
        let close = Op::Close(close::Args { seqid: 0, open_stateid: id });
        assert!(matches!(a.on(&file, close).await, OpRes::Close(Err(Error::BadStateId))));
    }
    // Another client opens the file: the delegate first opens it at the server.
    let others = open_as(ShareAccess::READ, Claim::Fh);
    let returns = async {
        a.called().await;
        let claim = Claim::DelegCurFh(held);
        let res = a.on(&file, open_as(ShareAccess::BOTH | EITHER, claim)).await;
        let (Some(open), None) = opened(&res) else { panic!("{res:?}") };
        a.on(&file, Op::Delegreturn(held)).await;
        open
    };
    let (res, open) = tokio::join!(b.on(&file, others), returns);
    let (Some(_), None) = opened(&res) else { panic!("{res:?}") };
    assert!(matches!(a.on(&file, write_op(open)).await, OpRes::Write(Ok(_))));
    assert!(matches!(a.on(&file, write_op(held)).await, OpRes::Write(Err(Error::BadStateId))));
}

#[tokio::test]
async fn nothing_is_open_after_the_return_of_a_delegation_alone() {
    let f = Fixture::new().await;
    let (mut a, mut b) = (f.callable("a").await, f.client("b").await);
    let file = a.make("file").await;
    let res = a.on(&file, open_as(WANT_WRITE | EITHER, Claim::Fh)).await;
    let (None, Some(held)) = opened(&res) else { panic!("{res:?}") };
    let Op::Open(args) = open_as(ShareAccess::BOTH, Claim::Fh) else { panic!() };
    let denies = Op::Open(open::Args { share_deny: ShareDeny::BOTH, ..args });
    let (res, ()) = tokio::join!(b.on(&file, denies), a.give_back(&file, held));
    assert!(matches!(res, OpRes::Open(Ok(_))), "{res:?}");
}

#[tokio::test]
async fn an_open_that_no_delegation_can_replace_stays_an_open() {
    let f = Fixture::new().await;
    let (mut a, mut b) = (f.callable("a").await, f.client("b").await);
    let file = a.make("file").await;
    // The open denies access to others.
    let Op::Open(args) = open_as(WANT_READ | EITHER, Claim::Fh) else { panic!() };
    let denies = Op::Open(open::Args { share_deny: ShareDeny::WRITE, ..args });
    let res = a.on(&file, denies).await;
    let (Some(open), None) = opened(&res) else { panic!("{res:?}") };
    assert_eq!(delegation(&res), &Delegation::NoneExt(WhyNone::Resource(false)));
    let writes = open_as(ShareAccess::WRITE, Claim::Fh);
    assert!(matches!(b.on(&file, writes).await, OpRes::Open(Err(Error::ShareDenied))));
    a.on(&file, Op::Close(close::Args { seqid: 0, open_stateid: open })).await;
    // A client without a backchannel gets an open.
    let res = b.on(&file, open_as(WANT_WRITE | EITHER, Claim::Fh)).await;
    let (Some(open), None) = opened(&res) else { panic!("{res:?}") };
    b.on(&file, Op::Close(close::Args { seqid: 0, open_stateid: open })).await;
    // A client that already has a delegation gets an open, too.
    let res = a.on(&file, open_as(WANT_READ | EITHER, Claim::Fh)).await;
    let (None, Some(_)) = opened(&res) else { panic!("{res:?}") };
    let res = a.on(&file, open_as(WANT_READ | EITHER, Claim::Fh)).await;
    let (Some(_), None) = opened(&res) else { panic!("{res:?}") };
}

#[tokio::test]
async fn a_delegation_without_open_leaves_the_owners_earlier_open() {
    let f = Fixture::new().await;
    let mut a = f.callable("a").await;
    let file = a.make("file").await;
    let res = a.on(&file, open_as(ShareAccess::READ, Claim::Fh)).await;
    let (Some(open), None) = opened(&res) else { panic!("{res:?}") };
    let res = a.on(&file, open_as(WANT_WRITE | EITHER, Claim::Fh)).await;
    let (None, Some(held)) = opened(&res) else { panic!("{res:?}") };
    assert!(matches!(a.on(&file, reads(open)).await, OpRes::Read(Ok(_))));
    assert!(matches!(a.on(&file, write_op(open)).await, OpRes::Write(Err(Error::OpenMode))));
    assert!(matches!(a.on(&file, write_op(held)).await, OpRes::Write(Ok(_))));
    let close = Op::Close(close::Args { seqid: 0, open_stateid: open });
    assert!(matches!(a.on(&file, close).await, OpRes::Close(Ok(_))));
    assert!(matches!(a.on(&file, write_op(held)).await, OpRes::Write(Ok(_))));
}

fn lock_op(open_stateid: StateId, kind: LockType) -> Op {
    Op::Lock(lock::Args {
        kind,
        reclaim: false,
        offset: 0,
        length: 10,
        locker: lock::Locker::New(lock::NewLocker {
            open_seqid: 0,
            open_stateid,
            lock_seqid: 0,
            lock_owner: StateOwner { client_id: 0, owner: "locker".into() },
        }),
    })
}

fn test_op() -> Op {
    Op::Lockt(lockt::Args {
        kind: LockType::Write,
        offset: 0,
        length: 10,
        owner: StateOwner { client_id: 0, owner: "tester".into() },
    })
}

#[tokio::test]
async fn locks_under_a_delegation_alone_continue_under_an_open() {
    let f = Fixture::new().await;
    let mut a = f.callable("a").await;
    for goes_on in [false, true] {
        let file = a.make(if goes_on { "goes on" } else { "ends" }).await;
        let res = a.on(&file, open_as(WANT_WRITE | EITHER, Claim::Fh)).await;
        let (None, Some(held)) = opened(&res) else { panic!("{res:?}") };
        let res = a.on(&file, lock_op(held, LockType::Write)).await;
        let OpRes::Lock(Ok(locked)) = res else { panic!("{res:?}") };
        assert!(matches!(a.on(&file, write_op(locked)).await, OpRes::Write(Ok(_))));
        let denied =
            |res| matches!(res, OpRes::Lockt(Err(Detailed::Detail(denied))) if denied.length == 10);
        assert!(denied(a.on(&file, test_op()).await));
        let open = open_as(ShareAccess::BOTH, Claim::DelegCurFh(held));
        if goes_on {
            assert!(matches!(a.on(&file, open).await, OpRes::Open(Ok(_))));
        }
        assert!(matches!(a.on(&file, Op::Delegreturn(held)).await, OpRes::Delegreturn(Ok(()))));
        let test = a.on(&file, test_op()).await;
        if goes_on {
            assert!(denied(test));
            assert!(matches!(a.on(&file, write_op(locked)).await, OpRes::Write(Ok(_))));
        } else {
            assert!(matches!(test, OpRes::Lockt(Ok(()))));
            let late = a.on(&file, write_op(locked)).await;
            assert!(matches!(late, OpRes::Write(Err(Error::BadStateId))));
        }
    }
}

#[tokio::test]
async fn the_creator_of_a_file_writes_it_under_a_delegation_alone() {
    let f = Fixture::new().await;
    let open_to_all = SetAttr { mode: Some(0o777), ..SetAttr::default() };
    f.fs.setattr(&Caller::Own, f.fs.root(), &open_to_all).await.unwrap();
    let mut a = f.callable("a").await;
    a.cred = OpaqueAuth::from(&AuthSys { uid: 7, gid: 7, ..AuthSys::default() });
    let attrs = Attrs { mode: Some(0o444), ..Attrs::default() };
    let Op::Open(args) = open_as(WANT_WRITE | EITHER, Claim::Null("new".into())) else { panic!() };
    let how = How::Create(CreateHow::Guarded(attrs.into()));
    let ops = vec![Op::Putrootfh(()), Op::Open(open::Args { how, ..args }), Op::Getfh(())];
    let results = a.ok(ops).await;
    let (None, Some(held)) = opened(&results[1]) else { panic!("{results:?}") };
    let file = super::handle(&results).unwrap();
    assert!(matches!(a.on(&file, write_op(held)).await, OpRes::Write(Ok(_))));
    // A stateid grants no right: another user of the client is refused.
    a.cred = OpaqueAuth::from(&AuthSys { uid: 8, gid: 8, ..AuthSys::default() });
    assert!(matches!(a.on(&file, write_op(held)).await, OpRes::Write(Err(Error::Access))));
}

#[tokio::test]
async fn a_delegation_alone_is_reclaimed_after_a_restart() {
    let mut f = Fixture::new().await;
    let mut a = f.callable("a").await;
    let file = a.make("file").await;
    let res = a.on(&file, open_as(WANT_WRITE | EITHER, Claim::Fh)).await;
    let (None, Some(_)) = opened(&res) else { panic!("{res:?}") };
    f.restart().await;
    let mut a = f.connect("a", 2).await;
    a.service.is_there = true;
    a.begin_session(1 << 20).await;
    // A delegation that does not cover the open's access cannot replace it: the client gets an open.
    let claim = Claim::Previous(DelegationType::Read);
    let res = a.on(&file, open_as(ShareAccess::BOTH | EITHER, claim)).await;
    let (Some(open), None) = opened(&res) else { panic!("{res:?}") };
    a.on(&file, Op::Close(close::Args { seqid: 0, open_stateid: open })).await;
    let claim = Claim::Previous(DelegationType::Write);
    let res = a.on(&file, open_as(ShareAccess::BOTH | EITHER, claim)).await;
    let (None, Some(held)) = opened(&res) else { panic!("{res:?}") };
    a.ok(vec![Op::ReclaimComplete(reclaim_complete::Args { one_fs: false })]).await;
    assert!(matches!(a.on(&file, write_op(held)).await, OpRes::Write(Ok(_))));
    let mut b = f.client("b").await;
    let (done, ()) =
        tokio::join!(b.on(&file, write_op(StateId::ANONYMOUS)), a.give_back(&file, held));
    assert!(matches!(done, OpRes::Write(Ok(_))));
}

/// An open under a delegation for both, of an owner, with a deny mode.
fn claims(held: StateId, owner: &str, share_deny: ShareDeny) -> Op {
    let Op::Open(args) = open_as(ShareAccess::BOTH, Claim::DelegCurFh(held)) else { panic!() };
    let owner = StateOwner { client_id: 0, owner: owner.into() };
    Op::Open(open::Args { share_deny, owner, ..args })
}

#[tokio::test]
async fn the_open_behind_a_delegation_causes_no_share_conflict_for_its_client() {
    let f = Fixture::new().await;
    let mut a = f.callable("a").await;
    let file = a.make("file").await;
    let res = a.on(&file, open_as(WANT_WRITE | EITHER, Claim::Fh)).await;
    let (None, Some(held)) = opened(&res) else { panic!("{res:?}") };
    assert!(matches!(a.on(&file, lock_op(held, LockType::Write)).await, OpRes::Lock(Ok(_))));
    let res = a.on(&file, claims(held, "process", ShareDeny::WRITE)).await;
    assert!(matches!(res, OpRes::Open(Ok(_))), "{res:?}");
    a.on(&file, Op::Delegreturn(held)).await;
    let res = a.on(&file, test_op()).await;
    assert!(matches!(res, OpRes::Lockt(Err(Detailed::Detail(_)))), "{res:?}");
}

#[tokio::test]
async fn a_lock_taken_again_moves_to_the_open_of_the_second_lock() {
    let f = Fixture::new().await;
    let mut a = f.callable("a").await;
    for first in [true, false] {
        let file = a.make(if first { "first" } else { "second" }).await;
        let res = a.on(&file, open_as(WANT_WRITE | EITHER, Claim::Fh)).await;
        let (None, Some(held)) = opened(&res) else { panic!("{res:?}") };
        a.on(&file, lock_op(held, LockType::Write)).await;
        let mut opens = Vec::new();
        for owner in ["one", "two"] {
            let res = a.on(&file, claims(held, owner, ShareDeny::empty())).await;
            opens.extend(opened(&res).0);
        }
        a.on(&file, Op::Delegreturn(held)).await;
        let (taken, other) = if first { (opens[0], opens[1]) } else { (opens[1], opens[0]) };
        assert!(matches!(a.on(&file, lock_op(taken, LockType::Write)).await, OpRes::Lock(Ok(_))));
        a.on(&file, Op::Close(close::Args { seqid: 0, open_stateid: other })).await;
        let res = a.on(&file, test_op()).await;
        assert!(matches!(res, OpRes::Lockt(Err(Detailed::Detail(_)))), "{res:?}");
    }
}

#[tokio::test]
async fn a_file_of_a_read_only_export_is_not_delegated_for_writing() {
    use super::exports::{cache, export, serve};
    let cache = cache();
    let options = crate::export::ExportOptions { read_only: true, ..Default::default() };
    let exports = vec![export(&cache, "/ro", options)];
    let set = SetAttr { mode: Some(0o666), ..SetAttr::default() };
    let (fs, own) = (&exports[0].fs, &Caller::Own);
    fs.create(own, fs.root().entry(b"file").with(&set), CreateMode::MustBeNew).await.unwrap();
    let f = serve(exports).await;
    let mut a = f.callable("a").await;
    let file = a.handle_of("/ro/file").await;
    for (access, kind) in [
        (ShareAccess::WANT_WRITE_DELEG, WhyNone::Resource(false)),
        (ShareAccess::WANT_WRITE_DELEG | EITHER, WhyNone::Resource(false)),
    ] {
        let res = a.on(&file, open_as(ShareAccess::READ | access, Claim::Fh)).await;
        let (Some(_), None) = opened(&res) else { panic!("{res:?}") };
        assert_eq!(delegation(&res), &Delegation::NoneExt(kind));
    }
}
