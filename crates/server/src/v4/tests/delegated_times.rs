//! Times that the holder of a delegation keeps (RFC 9754 section 5).

use super::delegations::{WANT_READ, WANT_WRITE, delegation, open_as, stateid, write_op};
use super::*;
use std::time::{SystemTime, UNIX_EPOCH};
use weir_nfs::v4::attr::{
    CHANGE, OF_DELEGATES, OPEN_ARGUMENTS, SIZE, SUPPORTED_ATTRS, TIME_ACCESS, TIME_METADATA,
    TIME_MODIFY,
};
use weir_nfs::v4::op::open::{Claim, Delegation, DelegationType, ShareAccess};
use weir_nfs::v4::op::setattr;
use weir_nfs::v4::types::{NfsTime, SetTime};
use weir_nfs::v4::{Bitmap, CbOp};

const TIMES: ShareAccess = ShareAccess::WANT_DELEG_TIMESTAMPS;
const ASKED: Bitmap = Bitmap::of(&[CHANGE, SIZE, TIME_ACCESS, TIME_METADATA, TIME_MODIFY]);

async fn fixture() -> Fixture {
    Fixture::with(|config| config.delegated_times = true).await
}

/// Seconds from now.
fn from_now(seconds: i64) -> NfsTime {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    NfsTime { seconds: now.as_secs() as i64 + seconds, nseconds: 5 }
}

async fn getattr(c: &mut Client, file: &FileHandle, asked: Bitmap) -> Attrs {
    let OpRes::Getattr(Ok(attrs)) = c.on(file, Op::Getattr(asked)).await else { panic!() };
    attrs
}

fn set(stateid: StateId, attrs: Attrs) -> Op {
    Op::Setattr(setattr::Args { stateid, attrs: attrs.into() })
}

fn modified(time: NfsTime) -> Attrs {
    Attrs { time_deleg_modify: Some(time), ..Attrs::default() }
}

/// A file that was changed a thousand seconds ago.
async fn aged(c: &mut Client, name: &'static str) -> FileHandle {
    let file = c.make(name).await;
    let time = SetTime::ToClientTime(from_now(-1000));
    let attrs =
        Attrs { time_access_set: Some(time), time_modify_set: Some(time), ..Attrs::default() };
    let OpRes::Setattr(res) = c.on(&file, set(StateId::ANONYMOUS, attrs)).await else { panic!() };
    assert_eq!(res.status, Ok(()));
    file
}

#[tokio::test]
async fn times_are_delegated_on_request_if_enabled() {
    for on in [false, true] {
        let f = if on { fixture().await } else { Fixture::new().await };
        let mut a = f.callable("a").await;
        let file = a.make("file").await;
        let attrs = getattr(&mut a, &file, Bitmap::of(&[SUPPORTED_ATTRS, OPEN_ARGUMENTS])).await;
        let known = attrs.supported_attrs.unwrap().intersection(OF_DELEGATES);
        assert_eq!(known, if on { OF_DELEGATES } else { Bitmap::EMPTY });
        assert_eq!(attrs.open_arguments.unwrap().share_access_want.contains(20), on);
        let res = a.on(&file, open_as(WANT_READ | TIMES, Claim::Fh)).await;
        let Delegation::Read(read) = delegation(&res) else { panic!("{res:?}") };
        a.on(&file, Op::Delegreturn(read.stateid)).await;
        let res = a.on(&file, open_as(WANT_WRITE, Claim::Fh)).await;
        let Delegation::Write(write) = delegation(&res) else { panic!("{res:?}") };
        a.on(&file, Op::Delegreturn(write.stateid)).await;
        let res = a.on(&file, open_as(WANT_WRITE | TIMES, Claim::Fh)).await;
        assert_eq!(matches!(delegation(&res), Delegation::WriteAttrs(_)), on, "{res:?}");
        let held = stateid(delegation(&res));
        let OpRes::Setattr(res) = a.on(&file, set(held, modified(from_now(0)))).await else {
            panic!()
        };
        assert_eq!(res.status, if on { Ok(()) } else { Err(Error::AttrNotSupp) });
    }
}

#[tokio::test]
async fn only_a_delegate_sets_delegated_times_within_the_allowed_range() {
    let f = fixture().await;
    let (mut a, mut b) = (f.callable("a").await, f.client("b").await);
    let file = aged(&mut a, "file").await;
    let original = getattr(&mut a, &file, ASKED).await;
    let res = a.on(&file, open_as(WANT_WRITE | TIMES, Claim::Fh)).await;
    let held = stateid(delegation(&res));
    let OpRes::Open(Ok(opened)) = res else { panic!() };
    let before = getattr(&mut a, &file, ASKED).await;
    assert_eq!(before.time_modify, original.time_modify);
    for (time, expected, is_set) in [
        // Earlier than the original time, and equal to it.
        (from_now(-2000), original.time_modify.unwrap(), false),
        (original.time_modify.unwrap(), original.time_modify.unwrap(), false),
        (from_now(-500), from_now(-500), true),
        // Earlier than the last one, which the same client set.
        (from_now(-600), from_now(-600), true),
    ] {
        let OpRes::Setattr(res) = a.on(&file, set(held, modified(time))).await else { panic!() };
        assert_eq!(res.status, Ok(()));
        assert_eq!(res.set == modified(time).present(), is_set, "{:?}", res.set);
        let after = getattr(&mut a, &file, ASKED).await;
        let seconds = after.time_modify.unwrap().seconds;
        assert!((seconds - expected.seconds).abs() <= 2, "{after:?}, not {expected:?}");
    }
    // A time in the future becomes now.
    a.on(&file, set(held, modified(from_now(10_000)))).await;
    let after = getattr(&mut a, &file, ASKED).await;
    assert!(after.time_modify.unwrap() <= from_now(1) && after.time_modify > before.time_modify);
    // The access time alone, which must not change time_metadata.
    let access = Attrs { time_deleg_access: Some(from_now(-10)), ..Attrs::default() };
    let OpRes::Setattr(res) = a.on(&file, set(held, access.clone())).await else { panic!() };
    assert_eq!((res.status, res.set), (Ok(()), Bitmap::EMPTY));
    assert_eq!(getattr(&mut a, &file, ASKED).await, after);
    // The access time with a modification time.
    let both = Attrs { time_deleg_modify: Some(from_now(-20)), ..access };
    let OpRes::Setattr(res) = a.on(&file, set(held, both.clone())).await else { panic!() };
    assert_eq!((res.status, res.set), (Ok(()), OF_DELEGATES));
    let now = getattr(&mut a, &file, ASKED).await;
    assert_eq!(
        (now.time_access, now.time_modify),
        (both.time_deleg_access, both.time_deleg_modify)
    );

    for id in [opened.stateid, StateId::ANONYMOUS, StateId::READ_BYPASS] {
        let OpRes::Setattr(res) = a.on(&file, set(id, both.clone())).await else { panic!() };
        assert_eq!(res.status, Err(Error::BadStateId));
    }
    let twice = Attrs { time_modify_set: Some(SetTime::ToServerTime), ..modified(from_now(0)) };
    let OpRes::Setattr(res) = a.on(&file, set(held, twice)).await else { panic!() };
    assert_eq!(res.status, Err(Error::Inval));
    let theirs = set(held, both.clone());
    let (res, ()) = tokio::join!(b.on(&file, theirs), a.give_back(&file, held));
    let OpRes::Setattr(res) = res else { panic!() };
    assert_eq!(res.status, Err(Error::BadStateId));
    let OpRes::Setattr(res) = a.on(&file, set(held, both)).await else { panic!() };
    assert_eq!(res.status, Err(Error::BadStateId));
}

#[tokio::test]
async fn other_clients_see_the_delegates_times() {
    let f = fixture().await;
    let (mut a, mut b) = (f.callable("a").await, f.client("b").await);
    let file = aged(&mut a, "file").await;
    let res = a.on(&file, open_as(WANT_WRITE | TIMES, Claim::Fh)).await;
    let held = stateid(delegation(&res));
    let before = getattr(&mut a, &file, ASKED).await;
    let (read, changed) = (from_now(-300), from_now(-400));
    a.service.attrs = Attrs {
        change: before.change,
        size: before.size,
        time_deleg_access: Some(read),
        time_deleg_modify: Some(changed),
        ..Attrs::default()
    };
    let (told, asked) = tokio::join!(getattr(&mut b, &file, ASKED), a.called());
    let CbOp::Getattr(asked) = asked else { panic!() };
    assert_eq!(asked.attrs, Bitmap::of(&[CHANGE, SIZE]).union(OF_DELEGATES));
    assert_eq!((told.time_access, told.time_modify), (Some(read), Some(changed)));
    assert!(told.change > before.change && told.time_metadata >= before.time_metadata);
    let (again, _) = tokio::join!(getattr(&mut b, &file, ASKED), a.called());
    assert_eq!(again, told, "nothing has changed");
    // The data arrives after the times, which stay.
    assert!(matches!(a.on(&file, write_op(held)).await, OpRes::Write(Ok(_))));
    a.service.attrs.size = Some(3);
    let (written, _) = tokio::join!(getattr(&mut b, &file, ASKED), a.called());
    assert_eq!((written.time_modify, written.size), (Some(changed), Some(3)));
    let ops = vec![
        Op::Putfh(file.clone()),
        set(held, Attrs { time_deleg_access: Some(read), ..modified(changed) }),
        Op::Delegreturn(held),
    ];
    a.ok(ops).await;
    let after = getattr(&mut b, &file, ASKED).await;
    assert_eq!((after.time_access, after.time_modify), (Some(read), Some(changed)));
}

#[tokio::test]
async fn an_explicit_time_of_the_delegate_is_kept() {
    let f = fixture().await;
    let mut a = f.callable("a").await;
    let file = aged(&mut a, "file").await;
    let res = a.on(&file, open_as(WANT_WRITE | TIMES, Claim::Fh)).await;
    let held = stateid(delegation(&res));
    a.on(&file, write_op(held)).await;
    let told = from_now(-1);
    let old = from_now(-5000);
    let attrs = Attrs { time_modify_set: Some(SetTime::ToClientTime(old)), ..Attrs::default() };
    let OpRes::Setattr(res) = a.on(&file, set(held, attrs)).await else { panic!() };
    assert_eq!(res.status, Ok(()));
    // The times from before the restart.
    a.ok(vec![Op::Putfh(file.clone()), set(held, modified(told)), Op::Delegreturn(held)]).await;
    assert_eq!(getattr(&mut a, &file, ASKED).await.time_modify, Some(old));
}

#[tokio::test]
async fn delegated_times_are_reclaimed_after_a_restart() {
    let mut f = fixture().await;
    let mut a = f.callable("a").await;
    let file = aged(&mut a, "file").await;
    let res = a.on(&file, open_as(WANT_WRITE | TIMES, Claim::Fh)).await;
    assert!(matches!(delegation(&res), Delegation::WriteAttrs(_)));
    f.restart().await;
    let mut a = f.connect("a", 2).await;
    a.service.is_there = true;
    a.begin_session(1 << 20).await;
    let claim = Claim::Previous(DelegationType::WriteAttrs);
    let res = a.on(&file, open_as(ShareAccess::BOTH | TIMES, claim)).await;
    let Delegation::WriteAttrs(again) = delegation(&res) else { panic!("{res:?}") };
    let held = again.stateid;
    a.ok(vec![Op::ReclaimComplete(reclaim_complete::Args { one_fs: false })]).await;
    let changed = from_now(-400);
    a.ok(vec![Op::Putfh(file.clone()), set(held, modified(changed)), Op::Delegreturn(held)]).await;
    assert_eq!(getattr(&mut a, &file, ASKED).await.time_modify, Some(changed));
}
