//! How many compounds operations take.

mod common;

use common::Served;
use common::between::Between;
use std::sync::Arc;
use weir_client::{MountOptions, NfsFs, commit};
use weir_nfs::v4::OpCode;
use weir_pagecache::{Cache, CachedFs, Config, File};
use weir_stores::testing::{new_file, write};
use weir_vfs::{
    Access, Acl, AclKind, AclWho, Caller, CreateMode, Error, FileKind, FileSystem, IoFlags,
    ReaddirRequest, RenameFlags, SetAttr, Unnamed, WholeRequest,
};

const ME: &Caller = &Caller::Own;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removal_is_one_compound() {
    let served = Served::start();
    let between = Between::to(served.addr).await;
    for version in ["4.0", "4.1", "4.2"] {
        let url = format!("nfs://{}/?vers={version}", between.addr).parse().unwrap();
        let nfs = NfsFs::mount(&url, &MountOptions::default()).await.unwrap();
        let cache = Cache::new(Config { budget_bytes: 16 << 20, ..Config::default() }).unwrap();
        let (fs, set) = (cache.mount(nfs), SetAttr::default());
        let root = fs.root();
        fs.mkdir(ME, root.entry(b"dir").with(&set)).await.unwrap();
        fs.create(ME, root.entry(b"file").with(&set), CreateMode::MustBeNew).await.unwrap();
        fs.symlink(ME, root.entry(b"link").with(&set), b"dir").await.unwrap();

        between.take_compounds();
        assert_eq!(fs.unlink(ME, root.entry(b"dir")).await, Err(Error::IsDirectory));
        assert_eq!(fs.rmdir(ME, root.entry(b"file")).await, Err(Error::NotDirectory));
        assert_eq!(fs.rmdir(ME, root.entry(b"link")).await, Err(Error::NotDirectory));
        assert_eq!(fs.unlink(ME, root.entry(b"absent")).await, Err(Error::NotFound));
        assert_eq!(between.take_compounds(), 4, "NFSv{version}: refused");
        fs.unlink(ME, root.entry(b"link")).await.unwrap();
        fs.unlink(ME, root.entry(b"file")).await.unwrap();
        fs.rmdir(ME, root.entry(b"dir")).await.unwrap();
        assert_eq!(between.take_compounds(), 3, "NFSv{version}");
        assert!(
            fs.readdir(
                ME,
                ReaddirRequest { dir: root, cookie: 0, max_entries: 8, with_attr: false }
            )
            .await
            .unwrap()
            .entries
            .is_empty()
        );
        fs.unmount().await.unwrap();
    }
}

/// Many servers take the largest number for "no change" (chown(2)).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_that_means_none_is_refused_without_a_call() {
    let served = Served::start();
    let between = Between::to(served.addr).await;
    let url = format!("nfs://{}/?vers=4.2", between.addr).parse().unwrap();
    let nfs = NfsFs::mount(&url, &MountOptions::default()).await.unwrap();
    let id = nfs.root();
    between.take_compounds();
    for set in [
        SetAttr { uid: Some(u32::MAX), ..SetAttr::default() },
        SetAttr { gid: Some(u32::MAX), ..SetAttr::default() },
    ] {
        assert_eq!(nfs.setattr(ME, id, &set).await.err(), Some(Error::Invalid));
        let made = nfs.mkdir(ME, id.entry(b"dir").with(&set)).await;
        assert_eq!(made.err(), Some(Error::Invalid));
        let made = nfs.create(ME, id.entry(b"file").with(&set), CreateMode::MayExist).await;
        assert_eq!(made.err(), Some(Error::Invalid));
    }
    assert_eq!(between.take_compounds(), 0);
}

/// A cache above drops what waits to be written of a file that has no name left, so it is told of open
/// files.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_open_file_learns_of_its_last_unlink() {
    let served = Served::start();
    let replace = RenameFlags::Replace;
    for version in ["3", "4.2"] {
        let port = served.addr.port();
        let nfs = served.mount(&format!("vers={version}&mountport={port}")).await;
        let (root, set) = (nfs.root(), SetAttr::default());
        for name in [&b"a"[..], b"b", b"c", b"d"] {
            nfs.create(ME, root.entry(name).with(&set), CreateMode::MayExist).await.unwrap();
        }
        assert_eq!(nfs.unlink_counted(ME, root.entry(b"a")).await, Ok(None), "NFSv{version}");
        let id = nfs.lookup(ME, root.entry(b"b")).await.unwrap().id;
        let file = nfs.open(ME, id, Access::READ).await.unwrap();
        let replaced = nfs.rename_counted(ME, root.entry(b"c"), root.entry(b"d"), replace).await;
        assert_eq!(replaced, Ok(None), "NFSv{version}: which is not open");
        let gone = Ok(Some(Unnamed { id, nlink: 0 }));
        if version == "3" {
            assert_eq!(nfs.unlink_counted(ME, root.entry(b"b")).await, gone);
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
async fn a_mount_follows_its_path_in_one_compound() {
    let served = Served::start();
    let between = Between::to(served.addr).await;
    let set = SetAttr::default();
    let store = &served.store;
    let mut at = store.root();
    for name in [&b"a"[..], b"b", b"c", b"d", b"e"] {
        at = store.mkdir(ME, at.entry(name).with(&set)).await.unwrap().id;
    }
    store.create(ME, at.entry(b"file").with(&set), CreateMode::MustBeNew).await.unwrap();
    store.symlink(ME, at.entry(b"link").with(&set), b"file").await.unwrap();
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
async fn a_long_mount_path_is_split_into_compounds_that_servers_accept() {
    let served = Served::start();
    let (store, set) = (&served.store, SetAttr::default());
    let mut at = store.root();
    let mut path = String::new();
    for depth in 0..40 {
        let name = format!("directory-{depth}");
        at = store.mkdir(ME, at.entry(name.as_bytes()).with(&set)).await.unwrap().id;
        path = format!("{path}/{name}");
    }
    for version in ["4.0", "4.1", "4.2"] {
        let url = format!("nfs://{}{path}?vers={version}", served.addr).parse().unwrap();
        let nearest = NfsFs::mount_nearest(&url, &MountOptions::default()).await.unwrap();
        assert_eq!(nearest.depth, 40, "NFSv{version}");
        nearest.fs.unmount().await;
    }
}

/// A program that was killed may have left data at the server that is not durable.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_others_have_written_is_committed_on_request() {
    let served = Served::start();
    let between = Between::to(served.addr).await;
    for version in ["4.0", "4.1", "4.2"] {
        let url = format!("nfs://{}/?vers={version}", between.addr).parse().unwrap();
        let nfs = NfsFs::mount(&url, &MountOptions::default()).await.unwrap();
        let set = SetAttr { mode: Some(0o644), ..SetAttr::default() };
        let new = nfs.root().entry(version.as_bytes()).with(&set);
        let id = nfs.create(ME, new, CreateMode::MustBeNew).await.unwrap().attr.id;
        let file = nfs.open(ME, id, Access::READ | Access::WRITE).await.unwrap();
        file.sync(true).await.unwrap();
        assert_eq!(between.take_count(OpCode::Commit), 0, "NFSv{version}");
        commit(&*file).await.unwrap();
        assert_eq!(between.take_count(OpCode::Commit), 1, "NFSv{version}");
        let read = nfs.open(ME, id, Access::READ).await.unwrap();
        assert_eq!(commit(&*read).await, Err(Error::BadFile), "NFSv{version}");
        drop((file, read));
        nfs.unmount().await;
    }
}

/// Close-to-open, with any `actimeo`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_open_of_a_cached_file_asks_the_server_once() {
    let served = Served::start();
    let theirs: Arc<dyn FileSystem> = served.mount("vers=4.2").await;
    let between = Between::to(served.addr).await;
    for version in ["3", "4.0", "4.1", "4.2"] {
        // It stays open for writing, so it is not delegated.
        let far = new_file(&theirs, theirs.root(), version).await;
        write(&*far, 0, b"1").await.unwrap();
        let fs = cached(&between, version).await;
        let id = fs.lookup(ME, fs.root().entry(version.as_bytes())).await.unwrap().id;
        let read = async |file: &File| {
            let mut bytes = [0; 8];
            let len = file.read_at_async(&mut bytes, 0, IoFlags::empty()).await.unwrap();
            bytes[..len].to_vec()
        };
        let first = fs.open(ME, id, Access::READ).await.unwrap();
        assert_eq!(read(&first).await, b"1", "NFSv{version}");
        write(&*far, 0, b"22").await.unwrap();
        // Its attributes are those at the open, as a mount asks for them.
        let second = fs.open(ME, id, Access::READ).await.unwrap();
        assert_eq!(second.getattr().await.unwrap().size, 2, "NFSv{version}: open already");
        assert_eq!(read(&second).await, b"22", "NFSv{version}");
        drop((first, second));
        write(&*far, 0, b"333").await.unwrap();
        between.take_compounds();
        let third = fs.open(ME, id, Access::READ).await.unwrap();
        assert_eq!(third.getattr().await.unwrap().size, 3, "NFSv{version}: closed before");
        let asked = usize::from(version != "3");
        assert_eq!(between.take_compounds(), asked, "NFSv{version}");
        assert_eq!(read(&third).await, b"333", "NFSv{version}");
        write(&*far, 0, b"4444").await.unwrap();
        assert_eq!(third.getattr().await.unwrap().size, 3, "NFSv{version}: as known");
        drop(third);
        fs.unmount().await.unwrap();
    }
}

/// The size that a mount has kept is none to set.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn zeros_past_the_known_end_of_a_file_cut_off_nothing() {
    let served = Served::start();
    let theirs: Arc<dyn FileSystem> = served.mount("vers=4.2").await;
    let between = Between::to(served.addr).await;
    let far = new_file(&theirs, theirs.root(), "file").await;
    write(&*far, 0, &[1; 10]).await.unwrap();
    let fs = cached(&between, "4.2").await;
    let id = fs.lookup(ME, fs.root().entry(b"file")).await.unwrap().id;
    let file = fs.open(ME, id, Access::READ | Access::WRITE).await.unwrap();
    assert_eq!(file.getattr().await.unwrap().size, 10);
    write(&*far, 10, &[2; 90]).await.unwrap();
    file.zero_range_async(10, 10, false).await.unwrap();
    assert_eq!(far.getattr().await.unwrap().size, 100);
    drop(file);
    fs.unmount().await.unwrap();
}

/// A mount that keeps attributes for an hour, through a cache.
async fn cached(between: &Between, version: &str) -> CachedFs {
    let options = format!("vers={version}&mountport={}&actimeo=3600", between.addr.port());
    let url = format!("nfs://{}/?{options}", between.addr).parse().unwrap();
    let nfs = NfsFs::mount(&url, &MountOptions::default()).await.unwrap();
    Cache::new(Config { budget_bytes: 16 << 20, ..Config::default() }).unwrap().mount(nfs)
}

/// A mode says all of the first file's list, and not all of the others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whether_a_file_has_an_access_list_is_one_request() {
    use AclWho::{Group, Mask, Other, Owner, User};
    let served = Served::start();
    let between = Between::to(served.addr).await;
    let set = SetAttr { mode: Some(0o660), ..SetAttr::default() };
    let named = Acl::new([(Owner, 6), (User(12345), 6), (Group, 0), (Mask, 6), (Other, 0)]);
    let masked = Acl::new([(Owner, 6), (Group, 0), (Mask, 6), (Other, 0)]);
    let lists =
        [("plain", None), ("named", Some(named.unwrap())), ("masked", Some(masked.unwrap()))];
    for (name, list) in &lists {
        let new = served.store.root().entry(name.as_bytes()).with(&set);
        let id = served.store.create(ME, new, CreateMode::MustBeNew).await.unwrap().attr.id;
        if let Some(list) = list {
            served.store.set_acl(ME, id.acl(AclKind::Access), Some(list)).await.unwrap();
        }
    }
    for version in ["3", "4.0", "4.1", "4.2"] {
        let options = format!("vers={version}&mountport={}", between.addr.port());
        let url = format!("nfs://{}/?{options}", between.addr).parse().unwrap();
        let nfs = NfsFs::mount(&url, &MountOptions::default()).await.unwrap();
        for (name, list) in &lists {
            let found = nfs.lookup(ME, nfs.root().entry(name.as_bytes())).await.unwrap();
            assert_eq!(found.mode, 0o660, "NFSv{version}: {name}");
            between.take_compounds();
            let read = nfs.get_acl(found.id.acl(AclKind::Access)).await;
            assert_eq!(between.take_compounds(), usize::from(version != "3"), "NFSv{version}");
            match (version, list) {
                ("3", list) => assert_eq!(read, Ok(list.clone()), "{name}"),
                (_, None) => assert_eq!(read, Ok(None), "NFSv{version}"),
                (_, Some(_)) => assert_eq!(read, Err(Error::AccessDenied), "NFSv{version}: {name}"),
            }
            // As with the data of a small file.
            let request = WholeRequest { id: found.id, max_bytes: 1024, with_xattrs: true };
            let whole = nfs.get_whole(ME, request).await.unwrap();
            let whole = whole.map(|whole| whole.access_list);
            match version {
                "3" => assert_eq!(whole, Some(None)),
                _ => assert_eq!(
                    (whole, between.take_compounds()),
                    (Some(Some(read)), 1),
                    "{version}"
                ),
            }
            let default = nfs.get_acl(nfs.root().acl(AclKind::Default)).await;
            assert_eq!(default, Err(Error::NotSupported));
            assert_eq!(between.take_compounds(), 0);
        }
        nfs.unmount().await;
    }
}
