//! Recovery after a restart of the server.

use super::locks::lock_op;
use super::*;
use std::sync::LazyLock;
use std::time::Duration;
use weir_base::ManualClock;
use weir_nfs::v4::attr::Fattr;
use weir_nfs::v4::op::{close, read, rename, setattr, write};
use weir_nfs::v4::types::LockType;

/// Reclaims an open from before the restart.
fn previous() -> Op {
    Op::Open(open::Args {
        seqid: 0,
        share_access: open::ShareAccess::BOTH,
        share_deny: open::ShareDeny::empty(),
        owner: StateOwner { client_id: 0, owner: "process".into() },
        how: open::How::NoCreate,
        claim: open::Claim::Previous(open::DelegationType::None),
    })
}

#[tokio::test]
async fn opens_and_locks_are_reclaimed_in_grace_and_conflicting_ones_refused() {
    let mut f = Fixture::new().await;
    let mut a = f.client("a").await;
    let (file, open_a) = a.open("file").await;
    let locked = a.on(&file, lock_op(open_a, LockType::Write, false)).await;
    let OpRes::Lock(Ok(held)) = locked else { panic!("{locked:?}") };
    f.restart().await;

    let mut a = f.connect("a", 2).await;
    assert_eq!(a.raw(vec![a.sequence()]).await.status, Err(Error::BadSession));
    a.begin_session(1 << 20).await;
    let mut b = f.client("b").await;
    assert_eq!(b.fails(vec![Op::Putrootfh(()), b.open_op("file", 0)]).await, Error::Grace);

    // With sessions, a stateid of an earlier run is one that the server does not know.
    let old = read::Args { stateid: open_a, offset: 0, count: 1 };
    assert!(matches!(a.on(&file, Op::Read(old)).await, OpRes::Read(Err(Error::BadStateId))));
    assert_eq!(a.tested(&[open_a, held]).await, [Err(Error::BadStateId); 2]);
    assert!(matches!(b.on(&file, previous()).await, OpRes::Open(Err(Error::NoGrace))));
    let OpRes::Open(Ok(opened)) = a.on(&file, previous()).await else { panic!() };
    let relock = lock_op(opened.stateid, LockType::Write, true);
    assert!(matches!(a.on(&file, relock).await, OpRes::Lock(Ok(_))));
    a.ok(vec![Op::ReclaimComplete(reclaim_complete::Args { one_fs: false })]).await;

    // All clients are back, so grace is over; the lock is held.
    let (_, open_b) = b.open("file").await;
    let denied = b.on(&file, lock_op(open_b, LockType::Write, false)).await;
    assert!(matches!(denied, OpRes::Lock(Err(_))));
    assert!(matches!(a.on(&file, previous()).await, OpRes::Open(Err(Error::NoGrace))));
}

#[tokio::test]
async fn io_and_changes_get_grace_while_state_may_be_reclaimed() {
    let mut f = Fixture::new().await;
    let mut a = f.client("a").await;
    let (file, _) = a.open("file").await;
    f.restart().await;

    let mut a = f.connect("a", 2).await;
    a.begin_session(1 << 20).await;
    let mut b = f.client("b").await;
    let root = Op::Putrootfh(());
    let moves = rename::Args { from: "file".into(), to: "other".into() };
    let attrs = Attrs { size: Some(0), ..Attrs::default() }.into();
    let stateid = StateId::ANONYMOUS;
    let (offset, count) = (0, 1);
    let unstable = write::Args {
        stateid,
        offset,
        stable: weir_nfs::v4::types::StableHow::Unstable,
        data: Bytes::from_static(b"x").into(),
    };
    let on_file = |op| vec![Op::Putfh(file.clone()), op];
    let touches = || {
        [
            vec![root.clone(), Op::Remove("file".into())],
            vec![root.clone(), Op::Savefh(()), Op::Rename(moves.clone())],
            on_file(Op::Setattr(setattr::Args { stateid, attrs: Fattr::clone(&attrs) })),
            on_file(Op::Read(read::Args { stateid, offset, count })),
            on_file(Op::Write(unstable.clone())),
        ]
    };
    for ops in touches() {
        assert_eq!(b.fails(ops.clone()).await, Error::Grace, "{ops:?}");
    }
    // Operations that conflict with no client's state succeed in grace.
    let mode = Attrs { mode: Some(0o600), ..Attrs::default() }.into();
    b.ok(on_file(Op::Setattr(setattr::Args { stateid, attrs: mode }))).await;
    assert!(matches!(a.on(&file, previous()).await, OpRes::Open(Ok(_))));
    a.ok(vec![Op::ReclaimComplete(reclaim_complete::Args { one_fs: false })]).await;
    // After grace all of them succeed, in an order in which the file exists.
    for ops in touches().into_iter().skip(1).rev().chain(touches().into_iter().take(1)) {
        let status = b.run(ops.clone()).await.status;
        assert_ne!(status, Err(Error::Grace), "{ops:?}");
    }
}

#[tokio::test]
async fn grace_does_not_wait_for_a_client_without_state() {
    let mut f = Fixture::new().await;
    let mut idle = f.client("idle").await;
    let mut left = f.client("left").await;
    let (file, open_stateid) = left.open("file").await;
    left.on(&file, Op::Close(close::Args { seqid: 0, open_stateid })).await;
    let session = left.session;
    assert_eq!(left.raw(vec![Op::DestroySession(session)]).await.status, Ok(()));
    idle.ok(vec![]).await;
    f.restart().await;
    f.client("new").await.open("file").await;

    // Grace waits for a client that had state, even if only for a moment.
    let mut busy = f.client("busy").await;
    busy.open("file").await;
    f.restart().await;
    let mut new = f.client("new").await;
    assert_eq!(new.fails(vec![Op::Putrootfh(()), new.open_op("file", 0)]).await, Error::Grace);
}

#[tokio::test]
async fn state_revoked_from_a_silent_client_is_not_reclaimed_after_a_restart() {
    const LEASE: Duration = Duration::from_secs(2);
    let mut f = Fixture::with(|config| config.state.lease = LEASE).await;
    let mut a = f.client("a").await;
    let (file, open_a) = a.open("file").await;
    let (other, _) = a.open("other").await;
    a.on(&file, lock_op(open_a, LockType::Write, false)).await;
    tokio::time::sleep(LEASE + Duration::from_millis(200)).await;
    let mut b = f.client("b").await;
    let (_, open_b) = b.open("file").await;
    assert!(matches!(
        b.on(&file, lock_op(open_b, LockType::Write, false)).await,
        OpRes::Lock(Ok(_))
    ));
    // The client returns and opens a file: grace waits for it after a restart.
    let (third, _) = a.open("third").await;
    f.restart().await;

    let mut a = f.connect("a", 2).await;
    a.begin_session(1 << 20).await;
    assert!(matches!(a.on(&file, previous()).await, OpRes::Open(Err(Error::ReclaimBad))));
    assert!(matches!(a.on(&other, previous()).await, OpRes::Open(Ok(_))));
    assert!(matches!(a.on(&third, previous()).await, OpRes::Open(Ok(_))));
    // This still holds if the server stops again before RECLAIM_COMPLETE, and ends with it.
    f.restart().await;
    let mut a = f.connect("a", 2).await;
    a.begin_session(1 << 20).await;
    assert!(matches!(a.on(&file, previous()).await, OpRes::Open(Err(Error::ReclaimBad))));
    a.ok(vec![Op::ReclaimComplete(reclaim_complete::Args { one_fs: false })]).await;
    let mut b = f.connect("b", 2).await;
    b.begin_session(1 << 20).await;
    b.ok(vec![Op::ReclaimComplete(reclaim_complete::Args { one_fs: false })]).await;
    a.open("file").await;
    f.restart().await;
    let mut a = f.connect("a", 2).await;
    a.begin_session(1 << 20).await;
    assert!(matches!(a.on(&file, previous()).await, OpRes::Open(Ok(_))));
}

/// A client renews by the lease that it knows, and notices a restart only then.
#[tokio::test]
async fn grace_lasts_as_long_as_the_longest_lease_that_its_clients_may_know() {
    const SHORT: Duration = Duration::from_secs(5);
    static CLOCK: LazyLock<Arc<ManualClock>> = LazyLock::new(Arc::default);
    let mut f = Fixture::with(|config| config.clock = CLOCK.clone()).await;
    let (file, _) = f.client("a").await.open("file").await;
    f.adjust = |config| {
        config.clock = CLOCK.clone();
        (config.state.lease, config.grace) = (SHORT, SHORT);
    };
    let open = |b: &Client| vec![Op::Putrootfh(()), b.open_op("file", 0)];
    // The run after a restart in grace knows of it, too.
    for _ in 0..2 {
        f.restart().await;
        CLOCK.advance(2 * SHORT);
        f.server.sweep().await;
        let mut b = f.client("b").await;
        assert_eq!(b.fails(open(&b)).await, Error::Grace);
    }
    let mut a = f.connect("a", 2).await;
    a.begin_session(1 << 20).await;
    assert!(matches!(a.on(&file, previous()).await, OpRes::Open(Ok(_))));
    a.ok(vec![Op::ReclaimComplete(reclaim_complete::Args { one_fs: false })]).await;
    f.server.sweep().await;

    // Now all know the short one.
    f.restart().await;
    let mut c = f.client("c").await;
    assert_eq!(c.fails(open(&c)).await, Error::Grace);
    CLOCK.advance(SHORT);
    f.server.sweep().await;
    c.open("file").await;
}

#[tokio::test]
async fn grace_lasts_as_long_as_a_lease_that_a_reload_has_extended() {
    const LONG: Duration = Duration::from_secs(400);
    static CLOCK: LazyLock<Arc<ManualClock>> = LazyLock::new(Arc::default);
    let mut f = Fixture::with(|config| config.clock = CLOCK.clone()).await;
    f.client("a").await.open("file").await;
    f.server.set_lease(LONG).unwrap();
    f.server.sweep().await;
    f.restart().await;
    CLOCK.advance(LONG - Duration::from_secs(1));
    f.server.sweep().await;
    let mut b = f.client("b").await;
    assert_eq!(b.fails(vec![Op::Putrootfh(()), b.open_op("file", 0)]).await, Error::Grace);
    CLOCK.advance(Duration::from_secs(1));
    f.server.sweep().await;
    f.client("c").await.open("file").await;
}
