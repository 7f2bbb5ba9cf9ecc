//! Non-idempotent requests whose reply is lost, at a server that does not recognise a resent one.

mod common;

use common::Served;
use common::between::{Executing, Losing};
use std::sync::Arc;
use std::time::Duration;
use weir_client::{MountOptions, NfsFs, NfsUrl};
use weir_nfs::v3::Procedure;
use weir_nfs::v4::{OpCode, PROGRAM};
use weir_stores::testing::{new_file, read_all, write};
use weir_vfs::{Caller, CreateMode, Error, FileSystem, RenameFlags, SetAttr, XattrMode};

const ME: &Caller = &Caller::Own;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operation_whose_reply_is_lost_succeeds_once() {
    let served = Served::start();
    let losing = Losing::to(served.addr).await;
    let v3 = [
        Procedure::Create,
        Procedure::Symlink,
        Procedure::Link,
        Procedure::Rename,
        Procedure::Remove,
        Procedure::Rmdir,
    ];
    let v4 = [
        OpCode::Open,
        OpCode::Create,
        OpCode::Link,
        OpCode::Rename,
        OpCode::Remove,
        OpCode::Remove,
    ];
    let (v3, v4) = (v3.map(|p| p as u32), v4.map(|op| op as u32));
    for (version, ops) in [("3", v3), ("4.0", v4), ("4.1", v4), ("4.2", v4)] {
        let port = losing.addr.port();
        let url = format!("nfs://{}/?vers={version}&mountport={port}", losing.addr);
        let url: NfsUrl = url.parse().unwrap();
        let nfs = NfsFs::mount(&url, &MountOptions::default()).await.unwrap();
        let set = SetAttr { mode: Some(0o750), ..SetAttr::default() };
        let dir = nfs.mkdir(ME, nfs.root().entry(version.as_bytes()).with(&set)).await.unwrap().id;
        let [create, symlink, link, rename, remove, rmdir] = ops;

        losing.lose(PROGRAM, create);
        let set = SetAttr { mode: Some(0o640), ..SetAttr::default() };
        let made = soon(nfs.create(ME, dir.entry(b"file").with(&set), CreateMode::MustBeNew))
            .await
            .unwrap();
        assert!(losing.has_lost() && made.created, "{version}");
        assert_eq!(made.attr.mode, 0o640, "{version}");
        let again = nfs.create(ME, dir.entry(b"file").with(&set), CreateMode::MustBeNew).await;
        assert_eq!(again.err(), Some(Error::Exists), "{version}: another's is in the way");
        let id = made.attr.id;

        losing.lose(PROGRAM, symlink);
        let set = SetAttr::default();
        let made = soon(nfs.symlink(ME, dir.entry(b"symlink").with(&set), b"file")).await;
        assert!(losing.has_lost() && made.is_ok(), "{version}: {made:?}");
        let again = nfs.symlink(ME, dir.entry(b"symlink").with(&set), b"file").await;
        assert_eq!(again.err(), Some(Error::Exists), "{version}");

        losing.lose(PROGRAM, link);
        let linked = soon(nfs.link(ME, id, dir.entry(b"second"))).await.unwrap();
        assert!(losing.has_lost());
        assert_eq!((linked.id, linked.nlink), (id, 2), "{version}");
        assert_eq!(nfs.link(ME, id, dir.entry(b"second")).await.err(), Some(Error::Exists));

        losing.lose(PROGRAM, rename);
        let replace = RenameFlags::Replace;
        let renamed =
            soon(nfs.rename(ME, dir.entry(b"second"), dir.entry(b"third"), replace)).await;
        assert!(losing.has_lost() && renamed.is_ok(), "{version}: {renamed:?}");
        assert_eq!(nfs.lookup(ME, dir.entry(b"third")).await.unwrap().id, id, "{version}");
        let missing = nfs.rename(ME, dir.entry(b"second"), dir.entry(b"third"), replace).await;
        assert_eq!(missing, Err(Error::NotFound), "{version}");

        for name in [&b"third"[..], b"file", b"symlink"] {
            losing.lose(PROGRAM, remove);
            let removed = soon(nfs.unlink(ME, dir.entry(name))).await;
            assert!(losing.has_lost() && removed.is_ok(), "{version}: {removed:?}");
            assert_eq!(nfs.unlink(ME, dir.entry(name)).await, Err(Error::NotFound), "{version}");
        }
        losing.lose(PROGRAM, rmdir);
        let removed = soon(nfs.rmdir(ME, nfs.root().entry(version.as_bytes()))).await;
        assert!(losing.has_lost() && removed.is_ok(), "{version}: {removed:?}");
        nfs.unmount().await;
    }
}

/// The server restarts after it executed the request: its sessions and reply caches are lost, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operation_completed_before_a_restart_succeeds() {
    let mut served = Served::start();
    let losing = Losing::to(served.addr).await;
    let v3 = [Procedure::Create, Procedure::Link, Procedure::Rename, Procedure::Remove];
    let v4 = [OpCode::Open, OpCode::Link, OpCode::Rename, OpCode::Remove];
    let (v3, v4) = (v3.map(|p| p as u32), v4.map(|op| op as u32));
    for (version, ops) in [("3", v3), ("4.0", v4), ("4.1", v4), ("4.2", v4)] {
        let port = losing.addr.port();
        let url = format!("nfs://{}/?vers={version}&mountport={port}", losing.addr);
        let nfs = NfsFs::mount(&url.parse().unwrap(), &MountOptions::default()).await.unwrap();
        let root = nfs.root();
        let set = SetAttr { mode: Some(0o640), ..SetAttr::default() };
        let mut made = None;
        for (step, op) in ops.into_iter().enumerate() {
            losing.lose(PROGRAM, op);
            let closed = losing.closed().await;
            let (client, set) = (Arc::clone(&nfs), set.clone());
            let doing = tokio::spawn(async move {
                match step {
                    0 => client
                        .create(ME, root.entry(b"file").with(&set), CreateMode::MustBeNew)
                        .await
                        .map(|made| made.attr),
                    1 => client.link(ME, made.unwrap(), root.entry(b"second")).await,
                    2 => {
                        let replace = RenameFlags::Replace;
                        client
                            .rename(ME, root.entry(b"second"), root.entry(b"third"), replace)
                            .await?;
                        client.lookup(ME, root.entry(b"third")).await
                    }
                    _ => {
                        let attr = client.lookup(ME, root.entry(b"third")).await?;
                        client.unlink(ME, root.entry(b"third")).await.map(|()| attr)
                    }
                }
            });
            let lost = async {
                while !losing.has_lost() {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            };
            soon(lost).await;
            served.restart();
            drop(closed);
            let done = soon(doing).await.unwrap();
            let attr = done.unwrap_or_else(|error| panic!("{version}, step {step}: {error}"));
            assert_eq!(attr.id, *made.get_or_insert(attr.id), "{version}, step {step}");
        }
        assert_eq!(nfs.getattr(made.unwrap()).await.unwrap().mode, 0o640, "{version}");
        nfs.unlink(ME, root.entry(b"file")).await.unwrap();
        nfs.unmount().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_extended_attribute_changed_before_a_restart_is_changed() {
    let mut served = Served::start();
    let losing = Losing::to(served.addr).await;
    let url = format!("nfs://{}/?vers=4.2", losing.addr);
    let nfs = NfsFs::mount(&url.parse().unwrap(), &MountOptions::default()).await.unwrap();
    let set = SetAttr::default();
    let id = nfs.mkdir(ME, nfs.root().entry(b"dir").with(&set)).await.unwrap().id;
    for (step, op) in [OpCode::Setxattr, OpCode::Removexattr].into_iter().enumerate() {
        losing.lose(PROGRAM, op as u32);
        let closed = losing.closed().await;
        let client = Arc::clone(&nfs);
        let doing = tokio::spawn(async move {
            let name = id.xattr(b"user.a");
            match step {
                0 => client.set_xattr(ME, name, b"value", XattrMode::Create).await,
                _ => client.remove_xattr(ME, name).await,
            }
        });
        let lost = async {
            while !losing.has_lost() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        soon(lost).await;
        served.restart();
        drop(closed);
        assert_eq!(soon(doing).await.unwrap(), Ok(()), "{op:?}");
        let name = id.xattr(b"user.a");
        let again = match step {
            0 => nfs.set_xattr(ME, name, b"value", XattrMode::Create).await,
            _ => nfs.remove_xattr(ME, name).await,
        };
        let refused = [Error::Exists, Error::NoAttribute][step];
        assert_eq!(again, Err(refused), "{op:?}: another's is told");
    }
    nfs.unmount().await;
}

/// Another file replaces a new one before it has its attributes, which therefore cannot be set.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_replaces_one_being_created_stays() {
    let mut served = Served::start();
    let losing = Losing::to(served.addr).await;
    for (version, setattr) in [
        ("3", Procedure::Setattr as u32),
        ("4.0", OpCode::Setattr as u32),
        ("4.2", OpCode::Setattr as u32),
    ] {
        let port = losing.addr.port();
        let url = format!("nfs://{}/?vers={version}&mountport={port}", losing.addr);
        let nfs = NfsFs::mount(&url.parse().unwrap(), &MountOptions::default()).await.unwrap();
        losing.lose(PROGRAM, setattr);
        let closed = losing.closed().await;
        let client = Arc::clone(&nfs);
        let making = tokio::spawn(async move {
            let set = SetAttr { mode: Some(0o640), ..SetAttr::default() };
            client.create(ME, client.root().entry(b"file").with(&set), CreateMode::MustBeNew).await
        });
        let lost = async {
            while !losing.has_lost() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        soon(lost).await;
        let (store, set) = (Arc::clone(&served.store), SetAttr::default());
        let other = store
            .create(ME, store.root().entry(b"other").with(&set), CreateMode::MustBeNew)
            .await
            .unwrap()
            .attr
            .id;
        let replace = RenameFlags::Replace;
        store
            .rename(ME, store.root().entry(b"other"), store.root().entry(b"file"), replace)
            .await
            .unwrap();
        // It has forgotten that it set the attributes.
        served.restart();
        drop(closed);
        assert_eq!(soon(making).await.unwrap().err(), Some(Error::Stale), "{version}");
        let there = store.lookup(ME, store.root().entry(b"file")).await;
        assert_eq!(there.map(|attr| attr.id), Ok(other), "{version}");
        nfs.unmount().await;
        store.unlink(ME, store.root().entry(b"file")).await.unwrap();
    }
}

/// The server is still executing the request when it comes again, and puts the second one off. With
/// another number it would be executed twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_resent_request_that_is_put_off_keeps_its_number() {
    let served = Served::start();
    for version in ["4.1", "4.2"] {
        let executing = Executing::to(served.addr, OpCode::Create).await;
        let url = format!("nfs://{}/?vers={version}", executing.addr);
        let nfs = NfsFs::mount(&url.parse().unwrap(), &MountOptions::default()).await.unwrap();
        // Other calls would take the slot if it were free meanwhile.
        let others: Vec<_> = (0..4)
            .map(|_| {
                let nfs = Arc::clone(&nfs);
                tokio::spawn(async move {
                    loop {
                        let _ = nfs.lookup(ME, nfs.root().entry(b"other")).await;
                    }
                })
            })
            .collect();
        let set = SetAttr::default();
        soon(nfs.mkdir(ME, nfs.root().entry(version.as_bytes()).with(&set))).await.unwrap();
        others.iter().for_each(|other| other.abort());
        let sent = executing.sent();
        assert_eq!(sent.len(), 3, "{version}: {sent:?}");
        assert!(sent.iter().all(|number| *number == sent[0]), "{version}: {sent:?}");
        nfs.unmount().await;
    }
}

/// A request that changes nothing is sent uncached. Linux's server reports that in the operation after
/// SEQUENCE, which it does not execute.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_uncached_request_whose_reply_is_lost_is_executed_again() {
    let served = Served::start();
    let losing = Losing::to(served.addr).await;
    for (version, read) in [("4.1", OpCode::Read), ("4.2", OpCode::ReadPlus)] {
        let url = format!("nfs://{}/?vers={version}", losing.addr);
        let nfs = NfsFs::mount(&url.parse().unwrap(), &MountOptions::default()).await.unwrap();
        let fs: Arc<dyn FileSystem> = nfs.clone();
        let file = new_file(&fs, fs.root(), version).await;
        write(&*file, 0, b"content").await.unwrap();
        losing.take_uncached();

        losing.lose(PROGRAM, OpCode::Getattr as u32);
        let stat = soon(nfs.statfs()).await;
        assert!(losing.has_lost() && losing.take_uncached() == 1, "{version}");
        assert!(stat.is_ok(), "{version}: {stat:?}");

        losing.lose(PROGRAM, read as u32);
        assert_eq!(soon(read_all(&*file, 7)).await, b"content", "{version}");
        assert!(losing.has_lost() && losing.take_uncached() == 1, "{version}");
        nfs.unmount().await;
    }
}

/// The server has executed a request that changes names, and has not kept the reply. With another number it would
/// be executed twice, so the error is that the result is unknown, and not one of the second execution.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_whose_reply_is_lost_and_was_not_kept_is_not_executed_again() {
    let served = Served::start();
    for version in ["4.1", "4.2"] {
        let losing = Losing::to(served.addr).await;
        let url = format!("nfs://{}/?vers={version}", losing.addr);
        let nfs = NfsFs::mount(&url.parse().unwrap(), &MountOptions::default()).await.unwrap();
        let (root, set) = (nfs.root(), SetAttr::default());
        nfs.mkdir(ME, root.entry(b"old").with(&set)).await.unwrap();
        losing.forget_replies();

        losing.lose(PROGRAM, OpCode::Create as u32);
        let made = soon(nfs.mkdir(ME, root.entry(b"new").with(&set))).await;
        assert_eq!(made.map(drop), Err(Error::Io), "{version}");
        losing.lose(PROGRAM, OpCode::Rename as u32);
        let replace = RenameFlags::Replace;
        let renamed = soon(nfs.rename(ME, root.entry(b"old"), root.entry(b"moved"), replace)).await;
        assert_eq!(renamed, Err(Error::Io), "{version}");
        losing.lose(PROGRAM, OpCode::Remove as u32);
        let removed = soon(nfs.rmdir(ME, root.entry(b"new"))).await;
        assert_eq!(removed, Err(Error::Io), "{version}");
        assert!(losing.has_lost() && losing.take_uncached() == 3, "{version}");

        for (name, exists) in [(&b"new"[..], false), (b"old", false), (b"moved", true)] {
            let found = nfs.lookup(ME, root.entry(name)).await.map(drop);
            assert_eq!(found.is_ok(), exists, "{version} {}: {found:?}", name.escape_ascii());
        }
        if version == "4.2" {
            attributes_are_changed_once(&nfs, &losing).await;
        }
        nfs.rmdir(ME, root.entry(b"moved")).await.unwrap();
        nfs.unmount().await;
    }
}

async fn attributes_are_changed_once(nfs: &NfsFs, losing: &Losing) {
    let id = nfs.lookup(ME, nfs.root().entry(b"moved")).await.unwrap().id;
    let name = id.xattr(b"user.a");
    for mode in [XattrMode::Create, XattrMode::Replace] {
        losing.lose(PROGRAM, OpCode::Setxattr as u32);
        let set = soon(nfs.set_xattr(ME, name, b"value", mode)).await;
        assert_eq!(set, Err(Error::Io), "{mode:?}");
        assert_eq!(nfs.get_xattr(ME, name).await.unwrap(), b"value");
    }
    losing.lose(PROGRAM, OpCode::Removexattr as u32);
    assert_eq!(soon(nfs.remove_xattr(ME, name)).await, Err(Error::Io));
    assert!(losing.has_lost() && losing.take_uncached() == 3);
    assert_eq!(nfs.get_xattr(ME, name).await, Err(Error::NoAttribute));
}

/// A call without outcome kills its session. The server has room for few.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_that_were_replaced_are_destroyed() {
    let mut served = Served::start();
    served.sessions = 8;
    served.restart();
    let losing = Losing::to(served.addr).await;
    for version in ["4.1", "4.2"] {
        let options = "soft,timeo=5,retrans=0,actimeo=0";
        let url = format!("nfs://{}/?vers={version},{options}", losing.addr);
        let nfs = NfsFs::mount(&url.parse().unwrap(), &MountOptions::default()).await.unwrap();
        for round in 0..10 {
            losing.lose(PROGRAM, OpCode::Getattr as u32);
            let closed = losing.closed().await;
            let lost = soon(nfs.getattr(nfs.root())).await;
            assert_eq!(lost.map(drop), Err(Error::TimedOut), "{version}, round {round}");
            drop(closed);
            // On a busy machine, an attempt may take longer than the mount waits.
            let mut again = soon(nfs.getattr(nfs.root())).await;
            for _ in 0..20 {
                if again.as_ref().err() != Some(&Error::TimedOut) {
                    break;
                }
                again = soon(nfs.getattr(nfs.root())).await;
            }
            assert_eq!(again.map(drop), Ok(()), "{version}, round {round}");
        }
        nfs.unmount().await;
    }
}

async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(30), what).await.expect("it hangs")
}
