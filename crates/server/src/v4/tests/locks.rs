//! Opens and byte-range locks of several clients.

use super::*;
use crate::delegation::recall::Named;
use weir_nfs::v4::Detailed;
use weir_nfs::v4::op::{close, lock, lockt, locku, read, rename};
use weir_nfs::v4::types::LockType;
use weir_nfs::v4::{CbOp, cb::notify_lock};

pub(super) fn lock_op(open_stateid: StateId, kind: LockType, reclaim: bool) -> Op {
    let lock_owner = StateOwner { client_id: 0, owner: "thread".into() };
    let new = lock::NewLocker { open_seqid: 0, open_stateid, lock_seqid: 0, lock_owner };
    Op::Lock(lock::Args { kind, reclaim, offset: 0, length: 100, locker: lock::Locker::New(new) })
}

#[tokio::test]
async fn a_lock_excludes_other_clients_until_it_is_released() {
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

/// Makes a change of client records due that cannot be written at first.
pub(super) fn fill_disk(f: &Fixture) {
    let services = &f.server.services;
    let owner = crate::state::Owner { sessions: true, name: "another".into() };
    services.state.lock().is_to_be_written(owner);
    crate::storage::recovery::tests::fill_disk(&services.recovery);
}

/// Sends a compound while a change of client records is due that cannot be written. The client is
/// told to try again.
async fn refused(f: &Fixture, c: &mut Client, ops: Vec<Op>) {
    fill_disk(f);
    assert_eq!(c.fails(ops).await, Error::Delay);
}

#[tokio::test]
async fn a_request_that_is_refused_for_want_of_a_record_gets_nothing() {
    let f = Fixture::new().await;
    let (mut a, mut b) = (f.client("a").await, f.client("b").await);
    let (file, open_a) = a.open("file").await;
    let (_, open_b) = b.open("file").await;
    let lock = lock_op(open_a, LockType::Write, false);
    refused(&f, &mut a, vec![Op::Putfh(file.clone()), lock]).await;
    let locked = b.on(&file, lock_op(open_b, LockType::Write, false)).await;
    assert!(matches!(locked, OpRes::Lock(Ok(_))), "{locked:?}");
    let (other, _) = a.open("other").await;
    let close = close::Args { seqid: 0, open_stateid: StateId::CURRENT };
    a.ok(vec![Op::Putrootfh(()), a.open_op("other", 0), Op::Close(close)]).await;
    let alone = vec![Op::Putrootfh(()), a.open_op("other", 3)];
    refused(&f, &mut a, alone).await;
    let opened = b.ok(vec![Op::Putrootfh(()), b.open_op("other", 0), Op::Getfh(())]).await;
    assert_eq!(handle(&opened), Ok(other), "nothing is denied");
    let remove = vec![Op::Putrootfh(()), Op::Remove("other".into())];
    refused(&f, &mut a, remove.clone()).await;
    let rename = rename::Args { from: "other".into(), to: "moved".into() };
    let rename = vec![Op::Putrootfh(()), Op::Savefh(()), Op::Rename(rename)];
    refused(&f, &mut a, rename).await;
    a.ok(remove).await;
}

#[tokio::test]
async fn a_first_open_without_a_record_creates_no_file() {
    let f = Fixture::new().await;
    let mut c = f.client("a").await;
    let new = vec![Op::Putrootfh(()), c.open_op("new", 0)];
    let look = || vec![Op::Putrootfh(()), Op::Lookup("new".into())];
    // Its own record cannot be written.
    crate::storage::recovery::tests::fill_disk(&f.server.services.recovery);
    assert_eq!(c.fails(new.clone()).await, Error::Delay);
    assert_eq!(c.fails(look()).await, Error::NoEnt);
    // That of another client cannot be.
    refused(&f, &mut c, new.clone()).await;
    assert_eq!(c.fails(look()).await, Error::NoEnt);
    c.ok(new).await;
}

/// The records may become due after the names were first looked at.
#[tokio::test]
async fn names_that_are_about_to_change_wait_for_records() {
    let f = Fixture::new().await;
    let mut c = f.client("a").await;
    let (file, _) = c.open("file").await;
    let node = f.server.services.exports.unseal(&file).unwrap();
    let root = crate::handle::Node { id: f.fs.root(), ..node };
    let caller = weir_vfs::Caller::Own;
    let name = Named { fs: &f.fs, caller: &caller, dir: root, name: b"file" };
    let recalls = &f.server.services.recalls;
    for wait in [true, false] {
        fill_disk(&f);
        let claimed = recalls.claim_names(std::slice::from_ref(&name), None, wait).await;
        assert_eq!(claimed.map(|_| ()), Err(weir_vfs::Error::WouldBlock), "waits: {wait}");
        assert!(recalls.claim_names(std::slice::from_ref(&name), None, wait).await.is_ok());
    }
}

/// No record can be written for longer, as in a directory that is full.
#[tokio::test]
async fn clients_wait_while_records_cannot_be_written() {
    let f = Fixture::new().await;
    let (mut a, mut b) = (f.client("a").await, f.client("b").await);
    let (file, open) = a.open("file").await;
    let lock = lock_op(open, LockType::Write, false);
    let (there, away) = (f.dir.path().to_owned(), f.dir.path().with_extension("away"));
    fill_disk(&f);
    std::fs::rename(&there, &away).unwrap();
    for _ in 0..3 {
        let locked = a.on(&file, lock.clone()).await;
        assert!(matches!(locked, OpRes::Lock(Err(Detailed::Plain(Error::Delay)))), "{locked:?}");
        assert_eq!(b.fails(vec![Op::Putrootfh(()), b.open_op("new", 0)]).await, Error::Delay);
    }
    std::fs::rename(&away, &there).unwrap();
    let locked = a.on(&file, lock).await;
    assert!(matches!(locked, OpRes::Lock(Ok(_))), "{locked:?}");
    b.open("new").await;
}

#[tokio::test]
async fn a_share_reservation_excludes_other_clients_until_close() {
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
async fn the_current_stateid_is_the_one_of_the_preceding_open() {
    let f = Fixture::new().await;
    let mut c = f.client("a").await;
    let close = close::Args { seqid: 0, open_stateid: StateId::CURRENT };
    c.ok(vec![Op::Putrootfh(()), c.open_op("file", 0), Op::Close(close)]).await;
    assert_eq!(c.fails(vec![Op::Putrootfh(()), Op::Close(close)]).await, Error::BadStateId);
}

/// A lock of one byte, with its own owner.
fn lock_byte(open_stateid: StateId, owner: &'static str, offset: u64, kind: LockType) -> Op {
    let lock_owner = StateOwner { client_id: 0, owner: owner.into() };
    let new = lock::NewLocker { open_seqid: 0, open_stateid, lock_seqid: 0, lock_owner };
    let locker = lock::Locker::New(new);
    Op::Lock(lock::Args { kind, reclaim: false, offset, length: 1, locker })
}

#[tokio::test]
async fn a_client_that_waits_for_a_lock_is_notified_when_it_is_free() {
    let f = Fixture::new().await;
    let (mut a, mut b) = (f.client("a").await, f.callable("b").await);
    let (file, open_a) = a.open("file").await;
    let ops = vec![Op::Putrootfh(()), b.open_op("file", 0)];
    let results = b.ok(ops).await;
    let Some(OpRes::Open(Ok(opened))) = results.last() else { panic!("{results:?}") };
    assert!(opened.flags.contains(open::ResultFlags::MAY_NOTIFY_LOCK));
    let open_b = opened.stateid;
    let OpRes::Lock(Ok(held)) = a.on(&file, lock_byte(open_a, "a", 7, LockType::Write)).await
    else {
        panic!()
    };
    // The server notifies a blocking LOCK, by its owner's name, and not a nonblocking one.
    for (owner, kind) in [("tries", LockType::Read), ("waits", LockType::ReadWaiting)] {
        let denied = b.on(&file, lock_byte(open_b, owner, 7, kind)).await;
        assert!(matches!(denied, OpRes::Lock(Err(Detailed::Detail(_)))), "{denied:?}");
    }
    let unlock = |offset| locku::Args {
        kind: LockType::Write,
        seqid: 0,
        lock_stateid: StateId { seqid: 0, ..held },
        offset,
        length: 1,
    };
    assert!(matches!(a.on(&file, Op::Locku(unlock(6))).await, OpRes::Locku(Ok(_))));
    b.serve_for(std::time::Duration::from_millis(100)).await;
    assert_eq!(b.service.called, [], "it is not free yet");
    assert!(matches!(a.on(&file, Op::Locku(unlock(7))).await, OpRes::Locku(Ok(_))));
    let CbOp::NotifyLock(notify_lock::Args { file: told, lock_owner }) = b.called().await else {
        panic!()
    };
    assert_eq!((told, &lock_owner.owner[..]), (file.clone(), &b"waits"[..]));
    let taken = b.on(&file, lock_byte(open_b, "waits", 7, LockType::ReadWaiting)).await;
    assert!(matches!(taken, OpRes::Lock(Ok(_))), "{taken:?}");
    b.serve_for(std::time::Duration::from_millis(100)).await;
    assert_eq!(b.service.called, [], "no other client is told");

    // A client without callbacks does not get the flag MAY_NOTIFY_LOCK.
    let results = a.ok(vec![Op::Putrootfh(()), a.open_op("other", 0)]).await;
    let Some(OpRes::Open(Ok(opened))) = results.last() else { panic!("{results:?}") };
    assert!(!opened.flags.contains(open::ResultFlags::MAY_NOTIFY_LOCK));
}

#[tokio::test]
async fn a_lock_that_would_never_be_granted_is_a_deadlock() {
    let f = Fixture::new().await;
    let (mut a, mut b) = (f.client("a").await, f.client("b").await);
    let (file, open_a) = a.open("file").await;
    let (_, open_b) = b.open("file").await;
    let is_held = |res: OpRes| matches!(res, OpRes::Lock(Ok(_)));
    let waits = LockType::WriteWaiting;
    assert!(is_held(a.on(&file, lock_byte(open_a, "a", 1, waits)).await));
    assert!(is_held(b.on(&file, lock_byte(open_b, "b", 2, waits)).await));
    let denied = a.on(&file, lock_byte(open_a, "a", 2, waits)).await;
    assert!(matches!(denied, OpRes::Lock(Err(Detailed::Detail(_)))), "{denied:?}");
    let tried = b.on(&file, lock_byte(open_b, "b", 1, LockType::Write)).await;
    assert!(matches!(tried, OpRes::Lock(Err(Detailed::Detail(_)))), "no owner waits: {tried:?}");
    let refused = b.on(&file, lock_byte(open_b, "b", 1, waits)).await;
    assert_eq!(refused, OpRes::Lock(Err(Detailed::Plain(Error::Deadlock))));
}

impl Client {
    /// The result of TEST_STATEID.
    pub(super) async fn tested(&mut self, ids: &[StateId]) -> Vec<Status> {
        let mut results = self.ok(vec![Op::TestStateid(ids.to_vec().into())]).await;
        match results.pop() {
            Some(OpRes::TestStateid(Ok(tested))) => tested.to_vec(),
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn a_client_is_told_of_revoked_state_where_it_uses_it_until_it_acknowledges() {
    use std::time::Duration;
    const LEASE: Duration = Duration::from_secs(1);
    let f = Fixture::with(|config| config.state.lease = LEASE).await;
    let (mut a, mut b) = (f.client("a").await, f.client("b").await);
    let (file, open_a) = a.open("file").await;
    let (other, open_other) = a.open("other").await;
    let locked = lock_op(open_a, LockType::Write, false);
    let OpRes::Lock(Ok(held)) = a.on(&file, locked.clone()).await else { panic!() };
    // The client is cut off for longer than its lease.
    tokio::time::sleep(LEASE + Duration::from_millis(500)).await;
    let (_, open_b) = b.open("file").await;
    let taken = b.on(&file, lock_op(open_b, LockType::Write, false)).await;
    assert!(matches!(taken, OpRes::Lock(Ok(_))), "{taken:?}");

    let lost = Err(Error::Expired);
    assert_eq!(a.tested(&[held, open_a, open_other]).await, [lost, lost, Ok(())]);
    let get = |stateid| Op::Read(read::Args { stateid, offset: 0, count: 1 });
    assert_eq!(a.on(&file, get(held)).await, OpRes::Read(Err(Error::Expired)));
    assert!(matches!(a.on(&other, get(open_other)).await, OpRes::Read(Ok(_))));
    assert_eq!(a.on(&file, locked).await, OpRes::Lock(Err(Detailed::Plain(Error::Expired))));
    // Who frees the open has freed the locks under it.
    a.ok(vec![Op::FreeStateid(open_a)]).await;
    assert_eq!(a.tested(&[held, open_a]).await, [Err(Error::BadStateId); 2]);

    // The client may lose all that it has.
    let results = a.ok(vec![Op::Putrootfh(()), a.open_op("alone", 3)]).await;
    let Some(OpRes::Open(Ok(alone))) = results.last() else { panic!("{results:?}") };
    let args = close::Args { seqid: 0, open_stateid: open_other };
    assert!(matches!(a.on(&other, Op::Close(args)).await, OpRes::Close(Ok(_))));
    tokio::time::sleep(LEASE + Duration::from_millis(500)).await;
    b.open("alone").await;
    assert_eq!(a.tested(&[alone.stateid]).await, [Err(Error::Expired)]);
    // After flags that tell of opens and locks, Linux's client gives up all locks that it has at this server.
    assert_eq!(a.status_flags, sequence::StatusFlags::empty());
}

#[tokio::test]
async fn locks_of_local_programs_and_clients_conflict() {
    use weir_stores::local::{LocalFs, LocalOptions};
    use weir_vfs::{Access, Caller, Lock, LockOwner, LockRange};
    let dir = tempfile::tempdir().unwrap();
    let open = || LocalFs::open(dir.path(), LocalOptions::default()).unwrap();
    let f = Fixture::of(open()).await;
    let (mut a, mut b) = (f.client("a").await, f.client("b").await);
    let ((file, open_a), (_, open_b)) = (a.open("file").await, b.open("file").await);
    let other = open();
    let id = other.lookup(&Caller::Own, other.root().entry(b"file")).await.unwrap().id;
    let both = Access::READ | Access::WRITE;
    let program = other.open(&Caller::Own, id, both).await.unwrap();
    let owner = LockOwner(1);
    let lock = |start, end, exclusive| Lock { range: LockRange { start, end }, exclusive };
    let denied = Err(weir_vfs::Error::WouldBlock);

    program.lock(owner, lock(7, 9, true), false).await.unwrap();
    let test = || {
        let owner = StateOwner { client_id: 0, owner: "thread".into() };
        Op::Lockt(lockt::Args { kind: LockType::Read, offset: 0, length: 100, owner })
    };
    let OpRes::Lockt(Err(Detailed::Detail(found))) = a.on(&file, test()).await else { panic!() };
    assert_eq!((found.offset, found.length, found.kind), (7, 2, LockType::Write));
    let taken = a.on(&file, lock_op(open_a, LockType::Read, false)).await;
    assert!(matches!(taken, OpRes::Lock(Err(Detailed::Detail(_)))), "{taken:?}");
    program.unlock(owner, LockRange::ALL).await.unwrap();

    // One of two clients' shared locks is enough to exclude a writer.
    let OpRes::Lock(Ok(held)) = a.on(&file, lock_op(open_a, LockType::Read, false)).await else {
        panic!()
    };
    let shared = b.on(&file, lock_op(open_b, LockType::Read, false)).await;
    assert!(matches!(shared, OpRes::Lock(Ok(_))), "{shared:?}");
    assert_eq!(program.lock(owner, lock(7, 9, true), false).await, denied);
    program.lock(owner, lock(7, 9, false), false).await.unwrap();
    program.unlock(owner, LockRange::ALL).await.unwrap();
    let (kind, seqid, offset, length) = (LockType::Read, 0, 0, u64::MAX);
    let unlock = locku::Args { kind, seqid, lock_stateid: held, offset, length };
    assert!(matches!(a.on(&file, Op::Locku(unlock)).await, OpRes::Locku(Ok(_))));
    assert_eq!(program.lock(owner, lock(7, 9, true), false).await, denied);
    // The remaining locks end with the open file.
    let close = close::Args { seqid: 0, open_stateid: open_b };
    let closed = b.on(&file, Op::Close(close)).await;
    assert!(matches!(closed, OpRes::Close(Ok(_))), "{closed:?}");
    program.lock(owner, lock(7, 9, true), false).await.unwrap();
}
