//! The users of a mount share an open of a file at the server.

mod common;

use common::Served;
use weir_stores::testing::{read_all, write};
use weir_vfs::{Access, Caller, CreateMode, Cred, FileSystem, SetAttr};

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
