//! How many compounds operations take.

mod common;

use common::Served;
use common::between::Between;
use weir_client::{MountOptions, NfsFs};
use weir_pagecache::{Cache, Config};
use weir_vfs::{Access, Caller, Error, FileKind, FileSystem, RenameFlags, SetAttr, Unnamed};

const ME: &Caller = &Caller::Own;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removal_is_one_compound_and_removes_what_is_meant_alone() {
    let served = Served::start();
    let between = Between::to(served.addr).await;
    for version in ["4.0", "4.1", "4.2"] {
        let url = format!("nfs://{}/?vers={version}", between.addr).parse().unwrap();
        let nfs = NfsFs::mount(&url, &MountOptions::default()).await.unwrap();
        let cache = Cache::new(Config { budget_bytes: 16 << 20, ..Config::default() }).unwrap();
        let (fs, set) = (cache.mount(nfs), SetAttr::default());
        let root = fs.root();
        fs.mkdir(ME, root, b"dir", &set).await.unwrap();
        fs.create(ME, root, b"file", &set, true).await.unwrap();
        fs.symlink(ME, root, b"link", b"dir", &set).await.unwrap();

        between.take_compounds();
        assert_eq!(fs.unlink(ME, root, b"dir").await, Err(Error::IsDirectory));
        assert_eq!(fs.rmdir(ME, root, b"file").await, Err(Error::NotDirectory));
        assert_eq!(fs.rmdir(ME, root, b"link").await, Err(Error::NotDirectory));
        assert_eq!(fs.unlink(ME, root, b"absent").await, Err(Error::NotFound));
        assert_eq!(between.take_compounds(), 4, "NFSv{version}: refused");
        fs.unlink(ME, root, b"link").await.unwrap();
        fs.unlink(ME, root, b"file").await.unwrap();
        fs.rmdir(ME, root, b"dir").await.unwrap();
        assert_eq!(between.take_compounds(), 3, "NFSv{version}");
        assert!(fs.readdir(ME, root, 0, 8, false).await.unwrap().entries.is_empty());
        fs.unmount().await.unwrap();
    }
}

/// A cache above drops what waits to be written of a file that has no name left, so it is told of open
/// files.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_loses_its_last_name_while_it_is_open_is_told() {
    let served = Served::start();
    let replace = RenameFlags::Replace;
    for version in ["3", "4.2"] {
        let port = served.addr.port();
        let nfs = served.mount(&format!("vers={version}&mountport={port}")).await;
        let (root, set) = (nfs.root(), SetAttr::default());
        for name in [&b"a"[..], b"b", b"c", b"d"] {
            nfs.create(ME, root, name, &set, false).await.unwrap();
        }
        assert_eq!(nfs.unlink_counted(ME, root, b"a").await, Ok(None), "NFSv{version}");
        let id = nfs.lookup(ME, root, b"b").await.unwrap().id;
        let file = nfs.open(ME, id, Access::READ).await.unwrap();
        let replaced = nfs.rename_counted(ME, root.entry(b"c"), root.entry(b"d"), replace).await;
        assert_eq!(replaced, Ok(None), "NFSv{version}: which is not open");
        let gone = Ok(Some(Unnamed { id, nlink: 0 }));
        if version == "3" {
            assert_eq!(nfs.unlink_counted(ME, root, b"b").await, gone);
        } else {
            let replaced = nfs.rename_counted(ME, root.entry(b"d"), root.entry(b"b"), replace);
            assert_eq!(replaced.await, gone);
        }
        drop(file);
        nfs.unmount().await;
    }
}

/// One compound follows the path (more where it is long or ends early), and says what tells the server's
/// limits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mount_ends_at_the_last_directory_on_the_way_in_few_compounds() {
    let served = Served::start();
    let between = Between::to(served.addr).await;
    let set = SetAttr::default();
    let store = &served.store;
    let mut at = store.root();
    for name in [&b"a"[..], b"b", b"c", b"d", b"e"] {
        at = store.mkdir(ME, at, name, &set).await.unwrap().id;
    }
    store.create(ME, at, b"file", &set, true).await.unwrap();
    store.symlink(ME, at, b"link", b"file", &set).await.unwrap();
    let options = MountOptions::default();
    for (version, begin) in [("4.0", 0), ("4.1", 2), ("4.2", 2), ("3", 0)] {
        for (path, depth, compounds) in [
            ("", 0, 1),
            ("a", 1, 1),
            ("a/b", 2, 1),
            ("a/absent", 1, 2),
            ("a/b/c/d/e", 5, 2),
            ("a/b/c/d/e/file", 5, 2),
            ("a/b/c/d/e/file/below", 5, 3),
            ("a/b/c/d/e/link", 5, 3),
            ("a/b/c/d/e/link/below", 5, 3),
        ] {
            let port = served.addr.port();
            let url = format!("nfs://{}/{path}?vers={version}&mountport={port}", between.addr);
            let url = url.parse().unwrap();
            between.take_compounds();
            let nearest = NfsFs::mount_nearest(&url, &options).await;
            let nearest = nearest.unwrap_or_else(|e| panic!("NFSv{version}: {path}: {e}"));
            let taken = between.take_compounds();
            assert_eq!(nearest.depth, depth, "NFSv{version}: {path}");
            assert_eq!(nearest.root.kind, FileKind::Directory);
            assert_eq!(nearest.root.id, nearest.fs.root());
            if version != "3" {
                assert!(taken <= begin + compounds, "NFSv{version}: {path}: {taken}");
            }
            nearest.fs.unmount().await;
            let whole = NfsFs::mount(&url, &options).await;
            assert_eq!(whole.is_ok(), !path.contains("absent") && !path.contains("below"));
            if let Ok(whole) = whole {
                whole.unmount().await;
            }
        }
    }
}

/// The kernel's server keeps replies of 2 KiB, and other servers allow few operations in a compound.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_way_to_a_mount_is_followed_in_compounds_that_servers_take() {
    let served = Served::start();
    let (store, set) = (&served.store, SetAttr::default());
    let mut at = store.root();
    let mut path = String::new();
    for depth in 0..40 {
        let name = format!("directory-{depth}");
        at = store.mkdir(ME, at, name.as_bytes(), &set).await.unwrap().id;
        path = format!("{path}/{name}");
    }
    for version in ["4.0", "4.1", "4.2"] {
        let url = format!("nfs://{}{path}?vers={version}", served.addr).parse().unwrap();
        let nearest = NfsFs::mount_nearest(&url, &MountOptions::default()).await.unwrap();
        assert_eq!(nearest.depth, 40, "NFSv{version}");
        nearest.fs.unmount().await;
    }
}
