//! Small files that are written and read whole.

mod common;

use common::Served;
use common::between::{Between, Losing};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use weir_client::{MountOptions, NfsFs};
use weir_nfs::v3::Procedure;
use weir_nfs::v4::{OpCode, PROGRAM};
use weir_stores::testing::read_all;
use weir_vfs::{
    Access, Caller, CreateMode, Cred, FileId, FileSystem, ReaddirRequest, SetAttr, WholeFile,
    WholeRequest, XattrMode,
};

const ME: &Caller = &Caller::Own;

fn at(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
}

/// A file with a hole at its end, and every attribute.
fn file(name: &str, bytes: &[u8]) -> WholeFile {
    WholeFile {
        temporary: format!(".weir-{name}.part").into_bytes(),
        name: name.as_bytes().to_vec(),
        replaced: None,
        data: vec![(0, bytes.to_vec())],
        size: bytes.len() as u64 + 5000,
        mode: 0o640,
        owner: None,
        times: Some((at(1_000_000), at(2_000_000))),
    }
}

async fn mounted(port_of: std::net::SocketAddr, version: &str) -> Arc<NfsFs> {
    let port = port_of.port();
    let url = format!("nfs://{port_of}/?vers={version}&mountport={port}").parse().unwrap();
    NfsFs::mount(&url, &MountOptions::default()).await.unwrap()
}

/// The names in the root.
async fn names(store: &dyn FileSystem) -> Vec<String> {
    let page = store
        .readdir(
            ME,
            ReaddirRequest { dir: store.root(), cookie: 0, max_entries: 100, with_attr: false },
        )
        .await
        .unwrap();
    let mut names: Vec<_> =
        page.entries.into_iter().map(|e| String::from_utf8(e.name).unwrap()).collect();
    names.sort();
    names
}

async fn content(store: &dyn FileSystem, id: FileId) -> Vec<u8> {
    let file = store.open(ME, id, Access::READ).await.unwrap();
    read_all(&*file, 4096).await
}

/// Checks that the file is there whole, and nothing else.
async fn check(store: &dyn FileSystem, file: &WholeFile, what: &str) {
    let name = String::from_utf8(file.name.clone()).unwrap();
    assert_eq!(names(store).await, [name], "{what}");
    let attr = store.lookup(ME, store.root().entry(&file.name)).await.unwrap();
    assert_eq!((attr.mode, attr.size), (file.mode, file.size), "{what}");
    if let Some(times) = file.times {
        assert_eq!((attr.atime, attr.mtime), times, "{what}");
    }
    let mut want = file.data.first().map(|(_, run)| run.clone()).unwrap_or_default();
    want.resize(file.size as usize, 0);
    assert_eq!(content(store, attr.id).await, want, "{what}");
}

const VERSIONS: [&str; 4] = ["3", "4.0", "4.1", "4.2"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_small_file_is_written_in_one_compound() {
    let served = Served::start();
    let between = Between::to(served.addr).await;
    for (version, most) in [("3", 0), ("4.0", 3), ("4.1", 1), ("4.2", 1)] {
        let nfs = mounted(between.addr, version).await;
        // Minor version 0 introduces the client with the first open.
        nfs.put_whole(ME, nfs.root(), &file("file", b"before")).await.unwrap();
        // The second replaces the first.
        for bytes in [&b"first"[..], &[7; 60_000], b""] {
            let mut file = file("file", bytes);
            file.data.retain(|(_, run)| !run.is_empty());
            between.take_compounds();
            let put = nfs.put_whole(ME, nfs.root(), &file).await.unwrap();
            let taken = between.take_compounds();
            let there = served.store.lookup(ME, served.store.root().entry(b"file")).await.unwrap();
            assert_eq!(put.map(|put| (put.id.ino, put.size)), Some((there.id.ino, file.size)));
            assert!(taken <= most, "NFSv{version}: {taken}");
            check(&*served.store, &file, version).await;
        }
        served.store.unlink(ME, served.store.root().entry(b"file")).await.unwrap();
        nfs.unmount().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_small_file_is_read_in_one_compound() {
    let served = Served::start();
    let between = Between::to(served.addr).await;
    for (version, most) in [("3", 0), ("4.0", 1), ("4.1", 1), ("4.2", 1)] {
        let nfs = mounted(between.addr, version).await;
        let file = file("file", &[5; 50_000]);
        nfs.put_whole(ME, nfs.root(), &file).await.unwrap().unwrap();
        let id = nfs.lookup(ME, nfs.root().entry(b"file")).await.unwrap().id;
        between.take_compounds();
        let read = nfs
            .get_whole(ME, WholeRequest { id, max_bytes: 64 << 10, with_xattrs: true })
            .await
            .unwrap()
            .unwrap();
        let taken = between.take_compounds();
        assert!(taken <= most, "NFSv{version}: {taken}");
        assert_eq!((read.before.id, &read.before), (id, &read.after), "NFSv{version}");
        assert_eq!((read.data.len() as u64, read.data[49_999]), (55_000, 5), "NFSv{version}");
        assert_eq!(
            nfs.get_whole(ME, WholeRequest { id, max_bytes: 100, with_xattrs: false }).await,
            Ok(None),
            "it is longer"
        );
        if version == "4.2" {
            assert_eq!(read.xattrs, Some(Vec::new()));
            nfs.set_xattr(ME, id.xattr(b"user.a"), b"1", XattrMode::Either).await.unwrap();
            let read = nfs
                .get_whole(ME, WholeRequest { id, max_bytes: 64 << 10, with_xattrs: true })
                .await
                .unwrap()
                .unwrap();
            assert_eq!(read.xattrs, Some(vec![b"user.a".to_vec()]));
        }
        // Its owner could read it all the same, but not open it.
        let set = SetAttr { mode: Some(0), uid: Some(1000), ..SetAttr::default() };
        let there = served.store.lookup(ME, served.store.root().entry(b"file")).await.unwrap();
        served.store.setattr(ME, there.id, &set).await.unwrap();
        let owner = Caller::As(Cred { uid: 1000, gid: 1000, groups: Vec::new() });
        assert_eq!(
            nfs.get_whole(&owner, WholeRequest { id, max_bytes: 64 << 10, with_xattrs: false })
                .await,
            Ok(None),
            "NFSv{version}"
        );
        served.store.unlink(ME, served.store.root().entry(b"file")).await.unwrap();
        nfs.unmount().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_a_current_stateid_takes_two_compounds() {
    let served = Served::start();
    let between = Between::to(served.addr).await;
    between.refuse_current_stateid();
    for version in ["4.1", "4.2"] {
        let nfs = mounted(between.addr, version).await;
        for _ in 0..2 {
            let file = file("file", b"content");
            between.take_compounds();
            assert!(nfs.put_whole(ME, nfs.root(), &file).await.unwrap().is_some());
            assert_eq!(between.take_compounds(), 2, "NFSv{version}");
            check(&*served.store, &file, version).await;
        }
        served.store.unlink(ME, served.store.root().entry(b"file")).await.unwrap();
        let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
        nfs.create(ME, nfs.root().entry(b"created").with(&set), CreateMode::MustBeNew)
            .await
            .unwrap();
        served.store.unlink(ME, served.store.root().entry(b"created")).await.unwrap();
        nfs.unmount().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failure_in_the_middle_leaves_nothing() {
    let served = Served::start();
    let between = Between::to(served.addr).await;
    let (store, set) = (&served.store, SetAttr::default());
    for version in VERSIONS {
        let nfs = mounted(between.addr, version).await;
        let (file, name) = (file("dir", b"content"), b"dir");
        let dir = store.mkdir(ME, store.root().entry(name).with(&set)).await.unwrap().id;
        assert_eq!(nfs.put_whole(ME, nfs.root(), &file).await, Ok(None), "NFSv{version}");
        assert_eq!(names(&**store).await, ["dir"], "NFSv{version}");
        assert_eq!(store.lookup(ME, store.root().entry(name)).await.unwrap().id, dir);
        store.rmdir(ME, store.root().entry(name)).await.unwrap();

        // The caller may not give files away: this fails once, and is not tried again.
        let all = SetAttr { mode: Some(0o777), ..SetAttr::default() };
        store.mkdir(ME, store.root().entry(b"open").with(&all)).await.unwrap();
        let open = nfs.lookup(ME, nfs.root().entry(b"open")).await.unwrap().id;
        let caller = Caller::As(Cred { uid: 1000, gid: 1000, groups: Vec::new() });
        let given = WholeFile { owner: Some((0, 0)), ..file.clone() };
        between.take_count(OpCode::Close);
        assert_eq!(nfs.put_whole(&caller, open, &given).await, Ok(None), "NFSv{version}");
        let page = nfs
            .readdir(ME, ReaddirRequest { dir: open, cookie: 0, max_entries: 10, with_attr: false })
            .await
            .unwrap();
        assert!(page.entries.is_empty(), "NFSv{version}");
        if version.starts_with('4') {
            assert!(between.take_count(OpCode::Close) >= 2, "NFSv{version}: it is closed");
            let put = nfs.put_whole(&caller, open, &given).await.unwrap().unwrap();
            assert_eq!((put.uid, put.mode), (1000, 0o640), "NFSv{version}");
            nfs.unlink(ME, open.entry(name)).await.unwrap();
            let privileged = WholeFile { mode: 0o4755, ..given };
            assert_eq!(nfs.put_whole(&caller, open, &privileged).await, Ok(None));
        }
        store.rmdir(ME, store.root().entry(b"open")).await.unwrap();
        nfs.unmount().await;
    }
}

/// The reply is lost, and in the second round the session, too: the file is whole, or it is not
/// there, and the caller is told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_reply_leaves_a_whole_file_or_none() {
    let mut served = Served::start();
    let losing = Losing::to(served.addr).await;
    let (v3, v4) = (Procedure::Rename as u32, OpCode::Rename as u32);
    for (version, op) in [("3", v3), ("4.0", v4), ("4.1", v4), ("4.2", v4)] {
        let nfs = mounted(losing.addr, version).await;
        for restarts in [false, true] {
            let file = file("file", b"content");
            losing.lose(PROGRAM, op);
            let closed = losing.closed().await;
            let (client, new) = (Arc::clone(&nfs), file.clone());
            let putting =
                tokio::spawn(async move { client.put_whole(ME, client.root(), &new).await });
            let lost = async {
                while !losing.has_lost() {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            };
            tokio::time::timeout(Duration::from_secs(30), lost).await.unwrap();
            if restarts {
                served.restart();
            }
            drop(closed);
            let put = tokio::time::timeout(Duration::from_secs(60), putting).await.unwrap();
            let put = put.unwrap().unwrap();
            // It was executed: the name is there, also if the caller is told that it is not.
            check(&*served.store, &file, version).await;
            if version != "4.0" {
                assert!(put.is_some(), "NFSv{version}, {restarts}");
            }
            served.store.unlink(ME, served.store.root().entry(b"file")).await.unwrap();
        }
        nfs.unmount().await;
    }
}
