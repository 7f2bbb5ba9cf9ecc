//! The users of a mount share an open of a file at the server.

mod common;

use common::between::Losing;
use common::{Served, opened};
use std::time::Duration;
use weir_client::{MountOptions, NfsFs};
use weir_nfs::v4::{self, OpCode};
use weir_stores::testing::{read_all, write};
use weir_vfs::{
    Access, Caller, CreateMode, Cred, Error, FileSystem, Lock, LockOwner, LockRange, SetAttr,
};

#[tokio::test]
async fn a_file_that_a_reader_and_its_writer_have_open_survives_a_restart_of_the_server() {
    for version in ["4.0", "4.1", "4.2"] {
        let mut served = Served::start();
        let nfs = served.mount(&format!("vers={version}")).await;
        let set = SetAttr { mode: Some(0o644), uid: Some(2000), ..SetAttr::default() };
        let new = nfs.root().entry(b"file").with(&set);
        let id = nfs.create(&Caller::Own, new, CreateMode::MustBeNew).await.unwrap().attr.id;
        let user = |uid| Caller::As(Cred { uid, gid: 1000, groups: Vec::new() });
        let reader = nfs.open(&user(1000), id, Access::READ).await.unwrap();
        // Without the right to read, which the reader has.
        let writer = nfs.open(&user(2000), id, Access::WRITE).await.unwrap();
        write(&*writer, 0, b"before!").await.unwrap();
        served.restart();
        let written = write(&*writer, 0, b"written").await;
        assert_eq!(written.map(drop), Ok(()), "NFSv{version}");
        assert_eq!(read_all(&*reader, 7).await, b"written", "NFSv{version}");
        nfs.unmount().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_another_user_writes_can_be_opened_to_read() {
    let served = Served::start();
    for version in ["4.0", "4.1", "4.2"] {
        let nfs = served.mount(&format!("vers={version}")).await;
        let set = SetAttr { mode: Some(0o644), ..SetAttr::default() };
        let new = nfs.root().entry(version.as_bytes()).with(&set);
        let id = nfs.create(&Caller::Own, new, CreateMode::MustBeNew).await.unwrap().attr.id;
        let user = Caller::As(Cred { uid: 1000, gid: 1000, groups: Vec::new() });
        let denied = Err(weir_vfs::Error::AccessDenied);
        let reader = nfs.open(&user, id, Access::READ).await.unwrap();
        let writer = nfs.open(&Caller::Own, id, Access::READ | Access::WRITE).await.unwrap();
        write(&*writer, 0, b"written").await.unwrap();
        for _ in 0..2 {
            let second = nfs.open(&user, id, Access::READ).await;
            let second = second.unwrap_or_else(|error| panic!("NFSv{version}: {error}"));
            assert_eq!(read_all(&*second, 7).await, b"written", "NFSv{version}");
            let opened = nfs.open(&user, id, Access::WRITE).await;
            assert_eq!(opened.map(drop), denied, "NFSv{version}");
            drop(second);
        }
        write(&*writer, 0, b"WRITTEN").await.unwrap();
        drop(writer);
        assert_eq!(read_all(&*reader, 7).await, b"WRITTEN", "NFSv{version}");
        let opened = nfs.open(&user, id, Access::WRITE).await;
        assert_eq!(opened.map(drop), denied, "NFSv{version}");
        nfs.unmount().await;
    }
}

/// The server has lost the open of the writer, who has not noticed, when the reader opens.
#[tokio::test]
async fn a_reader_does_not_narrow_an_open_that_the_server_has_lost() {
    for version in ["4.0", "4.1", "4.2"] {
        let mut served = Served::start();
        let nfs = served.mount(&format!("vers={version},timeo=20")).await;
        let set = SetAttr { mode: Some(0o644), ..SetAttr::default() };
        let new = nfs.root().entry(b"file").with(&set);
        let id = nfs.create(&Caller::Own, new, CreateMode::MustBeNew).await.unwrap().attr.id;
        let writer = nfs.open(&Caller::Own, id, Access::READ | Access::WRITE).await.unwrap();
        write(&*writer, 0, b"before!").await.unwrap();
        served.forget();
        // Twice, because runs are counted from 1 again.
        served.restart();
        served.restart();
        let user = Caller::As(Cred { uid: 1000, gid: 1000, groups: Vec::new() });
        let reader = nfs.open(&user, id, Access::READ).await.unwrap();
        let written = write(&*writer, 0, b"written").await;
        assert_eq!(written.map(drop), Ok(()), "NFSv{version}");
        assert_eq!(read_all(&*reader, 7).await, b"written", "NFSv{version}");
        nfs.unmount().await;
    }
}

/// The next request of the file is another user's, and is refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_that_was_given_up_is_released_as_the_user_who_took_it() {
    let served = Served::start();
    let losing = Losing::to(served.addr).await;
    let url = format!("nfs://{}/?vers=4.0&soft&timeo=20&retrans=1", losing.addr).parse().unwrap();
    let nfs = NfsFs::mount(&url, &MountOptions::default()).await.unwrap();
    let direct = served.mount("vers=4.2").await;
    let set = SetAttr { mode: Some(0o600), uid: Some(2000), ..SetAttr::default() };
    let new = nfs.root().entry(b"file").with(&set);
    let id = nfs.create(&Caller::Own, new, CreateMode::MustBeNew).await.unwrap().attr.id;
    let user = |uid| Caller::As(Cred { uid, gid: 1000, groups: Vec::new() });
    let file = nfs.open(&user(2000), id, Access::READ | Access::WRITE).await.unwrap();
    let other = opened(&direct, b"file").await;
    let lock = |start, end| Lock { range: LockRange { start, end }, exclusive: true };
    let is_locked = async || {
        let found = other.test_lock(LockOwner(2), lock(0, 1000)).await.unwrap();
        found.map(|lock| lock.range.start)
    };

    losing.lose(v4::PROGRAM, OpCode::Lock as u32);
    let closed = losing.closed().await;
    let outcome = file.lock(LockOwner(1), lock(0, 10), false).await;
    assert_eq!(outcome, Err(Error::TimedOut));
    // In its turn after the attempt to undo that, which times out as well.
    file.unlock(LockOwner(1), LockRange { start: 200, end: 201 }).await.unwrap();
    assert_eq!(is_locked().await, Some(0), "granted");
    drop(closed);
    let refused = nfs.open(&user(1000), id, Access::READ).await;
    assert_eq!(refused.map(drop), Err(Error::AccessDenied));
    let released = async {
        while is_locked().await.is_some() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), released).await.unwrap();
    file.lock(LockOwner(1), lock(20, 30), false).await.unwrap();
    assert_eq!(is_locked().await, Some(20));
    file.unlock(LockOwner(1), LockRange::ALL).await.unwrap();
    assert_eq!(is_locked().await, None);
    drop(file);
    nfs.unmount().await;
}
