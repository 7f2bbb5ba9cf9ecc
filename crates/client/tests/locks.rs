//! Locks that are given up, reclaimed, and used to exclude other writers.

mod common;

use common::between::{Between, Losing, falsified, silent_on_shared};
use common::{Served, opened};
use futures_util::FutureExt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};
use weir_client::{MountOptions, NfsFs, raw};
use weir_nfs::v4::OpCode;
use weir_nfs::{nlm, v3, v4};
use weir_pagecache::{Cache, Config};
use weir_stores::testing::{new_file, read, write};
use weir_vfs::{
    Access, Caller, CreateMode, FileId, FileSystem, IoFlags, Lock, LockOwner, LockRange, OpenFile,
    RenameFlags, SetAttr,
};

const ME: LockOwner = LockOwner(1);
const VERSIONS: [&str; 4] = ["3", "4.0", "4.1", "4.2"];

fn range(start: u64, end: u64) -> LockRange {
    LockRange { start, end }
}

fn lock(start: u64, end: u64, exclusive: bool) -> Lock {
    Lock { range: range(start, end), exclusive }
}

async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(120), what).await.expect("it hangs")
}

/// A mount through the proxy.
async fn through(between: &Between, version: &str) -> Arc<NfsFs> {
    through_addr(between.addr, version).await
}

async fn through_addr(addr: SocketAddr, version: &str) -> Arc<NfsFs> {
    let url = format!("nfs://{addr}/?vers={version}&mountport={}", addr.port());
    NfsFs::mount(&url.parse().unwrap(), &MountOptions::default()).await.unwrap()
}

/// The calls that request locks, as the proxy distinguishes them.
fn lock_calls(version: &str) -> (u32, u32) {
    match version {
        "3" => (nlm::PROGRAM, nlm::Procedure::Lock as u32),
        _ => (v4::PROGRAM, OpCode::Lock as u32),
    }
}

/// Requests a lock, and gives the request up when it is on its way.
async fn give_up(between: &Between, version: &str, file: &Arc<dyn OpenFile>, lock: Lock) {
    let (program, what) = lock_calls(version);
    let on_its_way = between.cut_at_call(program, what);
    let file = Arc::clone(file);
    let request = tokio::spawn(async move { file.lock(ME, lock, false).await });
    soon(on_its_way).await;
    request.abort();
    assert!(request.await.unwrap_err().is_cancelled());
}

/// Whether another client finds a shared lock in its way, an exclusive one, or none.
async fn in_the_way(other: &Arc<dyn OpenFile>, at: LockRange) -> Option<bool> {
    let found = other.test_lock(LockOwner(2), Lock { range: at, exclusive: true }).await.unwrap();
    found.map(|lock| lock.exclusive)
}

/// Ends when the proxy has lost a reply.
async fn lost(losing: &Losing) {
    while !losing.has_lost() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Ends when another client finds this in its way.
async fn becomes(other: &Arc<dyn OpenFile>, at: LockRange, what: Option<bool>) {
    while in_the_way(other, at).await != what {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_request_that_is_given_up_leaves_what_the_owner_held() {
    let served = Served::start();
    let between = Between::to(served.addr).await;
    for version in VERSIONS {
        let (nfs, direct) = (through(&between, version).await, served.mount("vers=4.2").await);
        let (set, name) = (SetAttr::default(), format!("held {version}"));
        let new = nfs.root().entry(name.as_bytes()).with(&set);
        nfs.create(&Caller::Own, new, CreateMode::MustBeNew).await.unwrap();
        let file = opened(&nfs, name.as_bytes()).await;
        let other = opened(&direct, name.as_bytes()).await;

        soon(file.lock(ME, lock(10, 20, false), false)).await.unwrap();
        give_up(&between, version, &file, lock(0, 30, true)).await;
        between.go_on();
        // It has its turn after the request that was given up.
        soon(file.lock(ME, lock(100, 101, true), false)).await.unwrap();
        for (at, what) in
            [(range(0, 10), None), (range(10, 20), Some(false)), (range(20, 30), None)]
        {
            match version {
                // After the cut, the client asks for its locks again, and then settles what has changed meanwhile.
                "3" => soon(becomes(&other, at, what)).await,
                _ => assert_eq!(in_the_way(&other, at).await, what, "{version}: {at:?}"),
            }
        }
        drop(file);
        nfs.unmount().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_request_that_is_given_up_undoes_no_later_one() {
    let served = Served::start();
    let between = Between::to(served.addr).await;
    for version in VERSIONS {
        let (nfs, direct) = (through(&between, version).await, served.mount("vers=4.2").await);
        let (set, name) = (SetAttr::default(), format!("later {version}"));
        let new = nfs.root().entry(name.as_bytes()).with(&set);
        nfs.create(&Caller::Own, new, CreateMode::MustBeNew).await.unwrap();
        let file = opened(&nfs, name.as_bytes()).await;
        let other = opened(&direct, name.as_bytes()).await;

        give_up(&between, version, &file, lock(0, 30, true)).await;
        let later = Arc::clone(&file);
        let later = tokio::spawn(async move { later.lock(ME, lock(0, 30, true), false).await });
        between.go_on();
        soon(later).await.unwrap().unwrap();
        soon(file.lock(ME, lock(100, 101, true), false)).await.unwrap();
        assert_eq!(in_the_way(&other, range(0, 30)).await, Some(true), "{version}");
        drop(file);
        nfs.unmount().await;
    }
}

/// The program awaits another request of the same owner before it polls the first one again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_granted_lock_that_is_not_polled_blocks_no_request() {
    let served = Served::start();
    let between = Between::to(served.addr).await;
    for version in VERSIONS {
        let (nfs, direct) = (through(&between, version).await, served.mount("vers=4.2").await);
        let (set, name) = (SetAttr::default(), format!("not polled {version}"));
        let new = nfs.root().entry(name.as_bytes()).with(&set);
        nfs.create(&Caller::Own, new, CreateMode::MustBeNew).await.unwrap();
        let file = opened(&nfs, name.as_bytes()).await;
        let other = opened(&direct, name.as_bytes()).await;

        let (program, what) = lock_calls(version);
        let on_its_way = between.cut_at_call(program, what);
        let mut first = file.lock(ME, lock(0, 40, true), false);
        assert!(first.as_mut().now_or_never().is_none());
        soon(on_its_way).await;
        between.go_on();
        soon(becomes(&other, range(0, 40), Some(true))).await;
        soon(file.lock(ME, lock(10, 20, false), false)).await.unwrap();
        soon(file.unlock(ME, range(20, 30))).await.unwrap();
        drop(first);
        soon(becomes(&other, range(30, 40), None)).await;
        assert_eq!(in_the_way(&other, range(0, 10)).await, None, "{version}");
        assert_eq!(in_the_way(&other, range(10, 20)).await, Some(false), "{version}");
        assert_eq!(in_the_way(&other, range(20, 30)).await, None, "{version}");
        drop(file);
        nfs.unmount().await;
    }
}

/// A soft mount behind a proxy, and a new file that it and another client have open.
async fn behind_losing(
    served: &Served,
    version: &str,
) -> (Losing, Arc<NfsFs>, Arc<dyn OpenFile>, Arc<dyn OpenFile>) {
    let losing = Losing::to(served.addr).await;
    let port = losing.addr.port();
    let options = format!("vers={version}&mountport={port}&soft&timeo=100&retrans=1");
    let url = format!("nfs://{}/?{options}", losing.addr).parse().unwrap();
    let nfs = NfsFs::mount(&url, &MountOptions::default()).await.unwrap();
    let direct = served.mount("vers=4.2").await;
    let (set, name) = (SetAttr::default(), version.as_bytes());
    let new = nfs.root().entry(name).with(&set);
    nfs.create(&Caller::Own, new, CreateMode::MustBeNew).await.unwrap();
    let (file, other) = (opened(&nfs, name).await, opened(&direct, name).await);
    (losing, nfs, file, other)
}

/// The first lock of its owner: the client has not learned the owner's stateid.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_request_that_timed_out_leaves_no_lock() {
    let served = &Served::start();
    let times_out = |version| async move {
        let (losing, nfs, file, other) = behind_losing(served, version).await;
        // Version 3 connects to the lock manager.
        soon(file.lock(LockOwner(2), lock(100, 101, true), false)).await.unwrap();
        let (program, what) = lock_calls(version);
        losing.lose(program, what);
        let closed = losing.closed().await;
        let outcome = soon(file.lock(ME, lock(0, 10, true), false)).await;
        assert_eq!(outcome, Err(weir_vfs::Error::TimedOut), "{version}");
        assert!(losing.has_lost(), "{version}");
        assert_eq!(in_the_way(&other, range(0, 10)).await, Some(true), "{version}: granted");
        drop(closed);
        soon(becomes(&other, range(0, 10), None)).await;
        drop(file);
        nfs.unmount().await;
    };
    futures_util::future::join_all(VERSIONS.map(times_out)).await;
}

/// Version 4.0 numbers the requests of all lock owners together until each has a lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_request_that_timed_out_does_not_grant_another_one() {
    let served = Served::start();
    let (losing, nfs, file, other) = behind_losing(&served, "4.0").await;
    let (program, what) = lock_calls("4.0");
    losing.lose(program, what);
    let closed = losing.closed().await;
    let outcome = soon(file.lock(ME, lock(0, 10, true), false)).await;
    assert_eq!(outcome, Err(weir_vfs::Error::TimedOut));
    // In its turn after the attempt to undo that, which times out as well.
    soon(file.unlock(ME, range(200, 201))).await.unwrap();
    drop(closed);
    soon(file.lock(LockOwner(2), lock(100, 110, true), false)).await.unwrap();
    assert_eq!(in_the_way(&other, range(100, 110)).await, Some(true));
    // What the first request was granted is not held, and can be released.
    soon(file.unlock(ME, LockRange::ALL)).await.unwrap();
    assert_eq!(in_the_way(&other, range(0, 10)).await, None);
    assert_eq!(in_the_way(&other, range(100, 110)).await, Some(true));
    drop(file);
    nfs.unmount().await;
}

/// The server is down for longer than the mount waits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_close_that_timed_out_leaves_no_lock_and_no_open() {
    let times_out = |version| async move {
        let served = Served::start();
        let (losing, nfs, file, other) = behind_losing(&served, version).await;
        let set = SetAttr::default();
        let new = nfs.root().entry(b"probe").with(&set);
        nfs.create(&Caller::Own, new, CreateMode::MustBeNew).await.unwrap();
        let probe = opened(&nfs, b"probe").await;
        file.lock(ME, lock(0, 10, true), false).await.unwrap();
        let opens = served.used("opens");
        let (program, what) = match version {
            "3" => (nlm::PROGRAM, nlm::Procedure::Test as u32),
            _ => (v4::PROGRAM, OpCode::Lockt as u32),
        };
        losing.lose(program, what);
        let closed = losing.closed().await;
        let asking = Arc::clone(&probe);
        tokio::spawn(async move { asking.test_lock(ME, lock(0, 1, true)).await });
        soon(lost(&losing)).await;
        drop(file);
        // Each of these times out after a request of the close.
        for _ in 0..2 {
            let asked = soon(probe.test_lock(ME, lock(0, 1, true))).await;
            assert_eq!(asked, Err(weir_vfs::Error::TimedOut), "{version}");
        }
        assert_eq!(in_the_way(&other, range(0, 10)).await, Some(true), "{version}");
        drop(closed);
        soon(becomes(&other, range(0, 10), None)).await;
        // The file can be opened while it may still have to be closed.
        let again = soon(opened(&nfs, version.as_bytes())).await;
        soon(write(&*again, 0, b"again")).await.unwrap();
        drop(again);
        if version != "3" {
            soon(async {
                while served.used("opens") != opens - 1 {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            })
            .await;
        }
        drop(probe);
        nfs.unmount().await;
    };
    futures_util::future::join_all(VERSIONS.map(times_out)).await;
}

/// The program takes its lock for exclusive, and another client has a shared one by then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_exclusive_lock_that_is_not_restored_after_a_downgrade_timed_out_is_lost() {
    let served = &Served::start();
    let is_lost = |version| async move {
        let (losing, nfs, file, other) = behind_losing(served, version).await;
        file.lock(ME, lock(0, 10, true), false).await.unwrap();
        let (program, what) = lock_calls(version);
        losing.lose(program, what);
        let closed = losing.closed().await;
        let outcome = soon(file.lock(ME, lock(0, 10, false), false)).await;
        assert_eq!(outcome, Err(weir_vfs::Error::TimedOut), "{version}");
        other.lock(LockOwner(3), lock(0, 10, false), false).await.unwrap();
        drop(closed);
        let is_lost = async {
            while write(&*file, 0, b"not excluded").await.is_ok() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        soon(is_lost).await;
        assert_eq!(write(&*file, 0, b"x").await.map(drop), Err(weir_vfs::Error::Io), "{version}");
        file.unlock(ME, LockRange::ALL).await.unwrap();
        write(&*file, 0, b"free").await.unwrap();
        drop(file);
        nfs.unmount().await;
    };
    futures_util::future::join_all(VERSIONS.map(is_lost)).await;
}

/// A lock is released between the moment in which the client begins to reclaim, and its turn.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_released_lock_is_not_reclaimed() {
    for version in VERSIONS {
        let mut served = Served::start();
        served.clock = Some(Arc::default());
        served.restart();
        let between = Between::to(served.addr).await;
        let nfs = through(&between, version).await;
        let new = SetAttr::default();
        let new = nfs.root().entry(b"file").with(&new);
        nfs.create(&Caller::Own, new, CreateMode::MustBeNew).await.unwrap();
        let file = opened(&nfs, b"file").await;
        file.lock(ME, lock(0, 10, true), false).await.unwrap();
        file.lock(ME, lock(20, 40, true), false).await.unwrap();

        let (program, what) = lock_calls(version);
        let reclaims = between.cut_at_call(program, what);
        served.restart();
        if version != "3" {
            // It learns of the restart by a call that names the client.
            let asking = Arc::clone(&file);
            tokio::spawn(async move { in_the_way(&asking, range(50, 60)).await });
        }
        soon(reclaims).await;
        let releasing = Arc::clone(&file);
        let mut release = Box::pin(async move { releasing.unlock(ME, range(20, 30)).await });
        // It is sent behind the first lock's reclaim.
        assert!(release.as_mut().now_or_never().is_none(), "{version}");
        between.go_on();
        soon(release).await.unwrap();
        soon(served.reclaimed(2)).await;

        let direct = served.mount("vers=4.2").await;
        let other = opened(&direct, b"file").await;
        soon(becomes(&other, range(0, 10), Some(true))).await;
        soon(becomes(&other, range(30, 40), Some(true))).await;
        soon(becomes(&other, range(20, 30), None)).await;
        // One more request of the same file, behind what is left of the reclaim.
        file.lock(ME, lock(100, 101, true), false).await.unwrap();
        soon(becomes(&other, range(20, 30), None)).await;
        assert_eq!(in_the_way(&other, range(0, 10)).await, Some(true), "{version}");
        assert_eq!(in_the_way(&other, range(30, 40)).await, Some(true), "{version}");
    }
}

/// A mount of version 3 through a proxy, with a locked file.
async fn locked(proxy: SocketAddr, exclusive: bool) -> (Arc<NfsFs>, Arc<dyn OpenFile>) {
    let nfs = through_addr(proxy, "3").await;
    let set = SetAttr::default();
    let new = nfs.root().entry(b"file").with(&set);
    nfs.create(&Caller::Own, new, CreateMode::MayExist).await.unwrap();
    let file = opened(&nfs, b"file").await;
    file.lock(ME, lock(0, 10, exclusive), false).await.unwrap();
    (nfs, file)
}

/// The client comes back when the grace period of the restarted server has passed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_of_version_3_that_the_server_lost_is_not_silently_retaken() {
    for exclusive in [true, false] {
        let mut served = Served::start();
        served.clock = Some(Arc::default());
        served.restart();
        let losing = Losing::to(served.addr).await;
        let (nfs, file) = locked(losing.addr, exclusive).await;
        // The client does not get through from its next look at the server on.
        let closed = losing.closed().await;
        losing.lose(nlm::PROGRAM, nlm::Procedure::Null as u32);
        soon(lost(&losing)).await;
        served.restart();
        served.clock.as_ref().unwrap().advance(served.grace);
        let direct = served.mount("vers=4.2").await;
        let other = opened(&direct, b"file").await;
        other.lock(LockOwner(2), lock(0, 10, true), false).await.unwrap();
        write(&*other, 0, b"not excluded").await.unwrap();
        other.unlock(LockOwner(2), LockRange::ALL).await.unwrap();
        drop(closed);
        let is_lost = async {
            while write(&*file, 0, b"mine").await.is_ok() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        soon(is_lost).await;
        assert_eq!(write(&*file, 0, b"x").await.map(drop), Err(weir_vfs::Error::Io));
        file.unlock(ME, LockRange::ALL).await.unwrap();
        write(&*file, 0, b"free").await.unwrap();
        assert_eq!(in_the_way(&other, range(0, 10)).await, None);
        drop(file);
        nfs.unmount().await;
    }
}

/// The server did not restart, so it still has the lock; Linux's does not tell of a shared one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_connection_loses_no_lock_of_version_3() {
    let served = Served::start();
    for (exclusive, is_silent) in [(true, false), (false, false), (false, true)] {
        let server = if is_silent { silent_on_shared(served.addr).await } else { served.addr };
        let between = Between::to(server).await;
        let (nfs, file) = locked(between.addr, exclusive).await;
        soon(between.cut_at_call(nlm::PROGRAM, nlm::Procedure::Null as u32)).await;
        let tests = between.cut_at_call(nlm::PROGRAM, nlm::Procedure::Test as u32);
        between.go_on();
        soon(tests).await;
        let looks = between.cut_at_call(nlm::PROGRAM, nlm::Procedure::Null as u32);
        between.go_on();
        // The next look, after the lock was taken again.
        soon(looks).await;
        let written = write(&*file, 0, b"still mine").await.map(drop);
        assert_eq!(written, Ok(()), "{exclusive} {is_silent}");
        between.go_on();
        drop(file);
        nfs.unmount().await;
    }
}

/// The server has released a lock, another client has it, and the server restarts before the reply comes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_whose_release_was_not_answered_is_not_reclaimed() {
    for version in ["4.0", "4.1", "4.2"] {
        let mut served = Served::start();
        served.clock = Some(Arc::default());
        served.restart();
        let losing = Losing::to(served.addr).await;
        let url = format!("nfs://{}/?vers={version}", losing.addr);
        let nfs = NfsFs::mount(&url.parse().unwrap(), &MountOptions::default()).await.unwrap();
        let direct = served.mount("vers=4.2").await;
        let set = SetAttr::default();
        let new = nfs.root().entry(b"file").with(&set);
        nfs.create(&Caller::Own, new, CreateMode::MustBeNew).await.unwrap();
        let (file, other) = (opened(&nfs, b"file").await, opened(&direct, b"file").await);
        file.lock(ME, lock(0, 10, true), false).await.unwrap();

        losing.lose(v4::PROGRAM, OpCode::Locku as u32);
        let closed = losing.closed().await;
        let releasing = Arc::clone(&file);
        let release = tokio::spawn(async move { releasing.unlock(ME, range(0, 10)).await });
        soon(lost(&losing)).await;
        other.lock(LockOwner(2), lock(0, 10, true), false).await.unwrap();
        losing.lose(v4::PROGRAM, OpCode::Lock as u32);
        // Both clients recover in its grace period, one after the other.
        served.restart();
        drop(closed);
        soon(release).await.unwrap().unwrap();
        assert!(!losing.has_lost(), "{version}: a reclaim was sent");
        // The other client reclaims it.
        other.getattr().await.unwrap();
        soon(served.reclaimed(1)).await;
        soon(becomes(&file, range(0, 10), Some(true))).await;
    }
}

/// A downgrade is not granted, because it covers another client's lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_downgrade_that_is_denied_leaves_the_exclusive_lock_or_loses_it() {
    for version in ["4.0", "4.1", "4.2"] {
        let mut served = Served::start();
        served.clock = Some(Arc::default());
        served.restart();
        let nfs = served.mount(&format!("vers={version}")).await;
        let direct = served.mount("vers=4.2").await;
        let set = SetAttr::default();
        let new = nfs.root().entry(b"file").with(&set);
        nfs.create(&Caller::Own, new, CreateMode::MustBeNew).await.unwrap();
        let (file, other) = (opened(&nfs, b"file").await, opened(&direct, b"file").await);
        file.lock(ME, lock(0, 10, true), false).await.unwrap();
        other.lock(LockOwner(2), lock(10, 20, true), false).await.unwrap();

        let denied = file.lock(ME, lock(0, 20, false), false).await;
        assert_eq!(denied, Err(weir_vfs::Error::WouldBlock), "{version}");
        assert_eq!(in_the_way(&other, range(0, 10)).await, Some(true), "{version}");
        write(&*file, 0, b"held").await.unwrap();

        // After a restart the downgrade is the first request that needs the lock.
        served.restart();
        other.getattr().await.unwrap();
        let downgrading = Arc::clone(&file);
        let downgrade =
            tokio::spawn(async move { downgrading.lock(ME, lock(0, 20, false), false).await });
        // With sessions, the grace period ends when both clients have reclaimed.
        if version == "4.0" {
            soon(served.reclaimed(2)).await;
        }
        let denied = soon(downgrade).await.unwrap();
        assert_eq!(denied, Err(weir_vfs::Error::WouldBlock), "{version}");
        let is_exclusive = in_the_way(&other, range(0, 10)).await == Some(true);
        let written = write(&*file, 0, b"held").await;
        assert_eq!(written.is_ok(), is_exclusive, "{version}: {written:?}");
        // What is lost is so until it is released.
        file.unlock(ME, LockRange::ALL).await.unwrap();
        write(&*file, 0, b"free").await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_granted_lock_shows_what_others_wrote_before() {
    let served = Served::start();
    for version in VERSIONS {
        let nfs = served.mount(&format!("vers={version},actimeo=3600")).await;
        let direct = served.mount("vers=4.2").await;
        let (set, name) = (SetAttr::default(), format!("seen {version}"));
        let new = nfs.root().entry(name.as_bytes()).with(&set);
        let id = nfs.create(&Caller::Own, new, CreateMode::MustBeNew).await.unwrap().attr.id;
        let file = nfs.open(&Caller::Own, id, Access::READ | Access::WRITE).await.unwrap();
        assert_eq!(file.getattr().await.unwrap().size, 0);

        let other = opened(&direct, name.as_bytes()).await;
        other.set_size(7).await.unwrap();
        assert_eq!(file.getattr().await.unwrap().size, 0, "{version}: as cached");
        file.lock(ME, lock(0, 10, true), false).await.unwrap();
        assert_eq!(file.getattr().await.unwrap().size, 7, "{version}");
    }
}

/// As where the server's file system stamps in steps of a second, and counts no changes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_granted_lock_shows_what_others_wrote_in_the_same_tick_of_the_servers_clock() {
    let served = Served::start();
    let direct = served.mount("vers=4.2").await;
    // Attributes end with the nanoseconds of the change time.
    let getattr = (v4::PROGRAM, v3::Procedure::Getattr as u32);
    let addr = falsified(served.addr, getattr, 0, usize::MAX).await;
    let url = format!("nfs://{addr}/?vers=3&mountport={}", addr.port());
    let nfs = NfsFs::mount(&url.parse().unwrap(), &MountOptions::default()).await.unwrap();
    let cache = Cache::new(Config { budget_bytes: 16 << 20, ..Config::default() }).unwrap();
    let fs = cache.mount(nfs.clone());
    let theirs: Arc<dyn FileSystem> = direct.clone();
    let other = new_file(&theirs, direct.root(), "file").await;
    let id = nfs.lookup(&Caller::Own, nfs.root().entry(b"file")).await.unwrap().id;
    let access = Access::READ | Access::WRITE;
    let file = fs.open(&Caller::Own, id, access).await.unwrap();
    let locks = nfs.open(&Caller::Own, id, access).await.unwrap();
    let second = async || {
        let ctime = other.getattr().await.unwrap().ctime;
        ctime.duration_since(UNIX_EPOCH).unwrap().as_secs()
    };
    loop {
        let mut seconds = Vec::new();
        for bytes in [b"old", b"new"] {
            write(&*other, 0, bytes).await.unwrap();
            seconds.push(second().await);
            locks.lock(ME, lock(0, 10, true), false).await.unwrap();
            fs.revalidate(id).await;
            let mut seen = [0; 3];
            assert_eq!(file.read_at_async(&mut seen, 0, IoFlags::empty()).await, Ok(3));
            assert_eq!(&seen, bytes);
            locks.unlock(ME, LockRange::ALL).await.unwrap();
        }
        if seconds[0] == seconds[1] {
            break;
        }
    }
}

/// Version 4.0 opens by name, which may be that of another file by now.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_open_that_finds_another_file_leaves_the_first_one_and_its_locks() {
    let served = Served::start();
    let (nfs, other) = (served.mount("vers=4.0").await, served.mount("vers=4.2").await);
    let (fs, root, mine): (Arc<dyn FileSystem>, _, _) = (nfs.clone(), nfs.root(), &Caller::Own);
    write(&*new_file(&fs, root, "file").await, 0, b"here").await.unwrap();
    let id = nfs.lookup(mine, root.entry(b"file")).await.unwrap().id;
    let file = nfs.open(mine, id, Access::READ).await.unwrap();
    file.lock(ME, lock(0, 10, false), false).await.unwrap();
    let set = SetAttr::default();
    other.create(mine, root.entry(b"new").with(&set), CreateMode::MustBeNew).await.unwrap();
    let (new, old) = (root.entry(b"new"), root.entry(b"file"));
    other.rename(mine, new, old, RenameFlags::Replace).await.unwrap();
    // The server still has the first file, so it may be used without an open.
    drop(nfs.open(mine, id, Access::READ | Access::WRITE).await);
    assert_eq!(soon(read(&*file, 0, 4)).await.map(|(bytes, _)| bytes), Ok(b"here".to_vec()));
    assert_eq!(soon(file.unlock(ME, range(0, 10))).await, Ok(()));
    nfs.unmount().await;
    other.unmount().await;
}

/// Until that file is closed again, I/O of the first one has its own stateid.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_open_that_finds_another_file_never_has_the_first_one_use_its_stateid() {
    let served = Served::start();
    let other = served.mount("vers=4.2").await;
    let between = Between::to(served.addr).await;
    let nfs = through(&between, "4.0").await;
    let id = replaceable(&other, &nfs).await;
    let file = nfs.open(&Caller::Own, id, Access::READ).await.unwrap();
    let own = raw::stateid(&*file).unwrap();
    replace(&other).await;
    let closes = between.cut_at(OpCode::Close);
    let opening = {
        let nfs = Arc::clone(&nfs);
        tokio::spawn(async move { nfs.open(&Caller::Own, id, Access::WRITE).await })
    };
    soon(closes).await;
    assert_eq!(raw::stateid(&*file).unwrap(), own);
    between.go_on();
    // The server still has the first file, so it may be used without an open.
    drop(soon(opening).await.unwrap());
    assert_eq!(soon(read(&*file, 0, 4)).await.map(|(bytes, _)| bytes), Ok(b"here".to_vec()));
    nfs.unmount().await;
    other.unmount().await;
}

/// Makes a file that `replace` replaces; `nfs` knows its name.
async fn replaceable(other: &Arc<NfsFs>, nfs: &Arc<NfsFs>) -> FileId {
    let fs: Arc<dyn FileSystem> = other.clone();
    let file = new_file(&fs, fs.root(), "file").await;
    write(&*file, 0, b"here").await.unwrap();
    file.sync(false).await.unwrap();
    nfs.lookup(&Caller::Own, nfs.root().entry(b"file")).await.unwrap().id
}

async fn replace(other: &Arc<NfsFs>) {
    let (set, root) = (SetAttr::default(), other.root());
    let new = root.entry(b"new").with(&set);
    other.create(&Caller::Own, new, CreateMode::MustBeNew).await.unwrap();
    let (new, old) = (root.entry(b"new"), root.entry(b"file"));
    other.rename(&Caller::Own, new, old, RenameFlags::Replace).await.unwrap();
}

/// A client whose locks the server has forgotten, so that others may have had them, gets an error.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn revoked_locks_are_reported_and_not_silently_retaken() {
    for version in ["4.0", "4.1", "4.2"] {
        let mut served = Served::start();
        let nfs = served.mount(&format!("vers={version},timeo=20")).await;
        let fs: Arc<dyn FileSystem> = nfs.clone();
        let file = new_file(&fs, fs.root(), "file").await;
        file.lock(ME, lock(0, 10, true), false).await.unwrap();
        // A server without known clients has no grace period.
        served.forget();
        // Twice, because runs are counted from 1 again.
        served.restart();
        served.restart();
        let written = write(&*file, 0, b"not mine any more").await;
        assert_eq!(written, Err(weir_vfs::Error::Io), "NFSv{version}");
        file.unlock(ME, LockRange::ALL).await.unwrap();
        write(&*file, 0, b"without a lock").await.unwrap();
        file.lock(ME, lock(0, 10, true), false).await.unwrap();
    }
}

/// Until a client acknowledges what was revoked from it, the server refuses its reclaims of the file.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_taken_after_revoked_ones_survive_a_restart_of_the_server() {
    for version in ["4.1", "4.2"] {
        let mut served = Served::start();
        (served.grace, served.lease) = (Duration::from_secs(2), Duration::from_secs(2));
        served.restart();
        let options = format!("vers={version},timeo=20");
        let (ours, theirs) = (served.mount(&options).await, served.mount("vers=4.2").await);
        let fs: Arc<dyn FileSystem> = ours.clone();
        let file = new_file(&fs, fs.root(), "file").await;
        file.lock(ME, lock(0, 10, true), false).await.unwrap();
        let far = opened(&theirs, b"file").await;
        raw::fall_silent(&ours, true).unwrap();
        soon(far.lock(ME, lock(0, 10, true), true)).await.unwrap();
        raw::fall_silent(&ours, false).unwrap();
        let written = write(&*file, 0, b"not mine any more").await;
        assert_eq!(written, Err(weir_vfs::Error::Io), "NFSv{version}");
        file.unlock(ME, LockRange::ALL).await.unwrap();
        far.unlock(ME, LockRange::ALL).await.unwrap();
        drop(far);
        file.lock(ME, lock(0, 10, true), false).await.unwrap();
        served.restart();
        let written = soon(write(&*file, 0, b"mine again")).await;
        assert_eq!(written.map(drop), Ok(()), "NFSv{version}");
        ours.unmount().await;
        theirs.unmount().await;
    }
}
