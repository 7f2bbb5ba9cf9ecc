//! The client when Weir's own server goes away at a bad moment, or violates the protocol.

mod common;

use async_trait::async_trait;
use common::between::{Between, falsified};
use common::{Served, opened};
use std::sync::Arc;
use std::time::Duration;
use weir_client::{MountOptions, NfsFs, NfsUrl};
use weir_nfs::v4::OpCode;
use weir_stores::memory::MemoryFs;
use weir_stores::testing::{new_file, read_all, write};
use weir_vfs::{
    Caller, CreateMode, Error, FileSystem, FileSystemDecorator, FileSystemMethod, Lock, LockOwner,
    LockRange, ReaddirRequest, SetAttr,
};

async fn mount(between: &Between, options: &str) -> Arc<NfsFs> {
    let url: NfsUrl = format!("nfs://{}/?{options}", between.addr).parse().unwrap();
    NfsFs::mount(&url, &MountOptions::default()).await.unwrap()
}

async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(20), what).await.expect("it hangs")
}

/// The server has lost it, and need not be told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_close_after_a_restart_causes_one_recovery() {
    let mut served = Served::start();
    let between = Between::to(served.addr).await;
    let nfs = mount(&between, "vers=4.0").await;
    let fs: Arc<dyn FileSystem> = nfs.clone();
    let stays = new_file(&fs, fs.root(), "stays").await;
    write(&*stays, 0, b"here").await.unwrap();
    let goes = new_file(&fs, fs.root(), "goes").await;
    served.restart();
    for op in [OpCode::Setclientid, OpCode::Open] {
        between.take_count(op);
    }
    drop(goes);
    nfs.unmount().await;
    assert_eq!(between.take_count(OpCode::Setclientid), 1);
    assert_eq!(between.take_count(OpCode::Open), 1, "of the file that stays open");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_between_open_and_open_confirm_is_transparent() {
    let mut served = Served::start();
    served.lease = Duration::from_secs(1);
    served.restart();
    let between = Between::to(served.addr).await;
    let nfs = mount(&between, "vers=4.0").await;
    let fs: Arc<dyn FileSystem> = nfs.clone();
    let stays = new_file(&fs, fs.root(), "stays").await;
    // The server forgets the owner of this one after a lease or two, and new ones have to confirm.
    drop(new_file(&fs, fs.root(), "file").await);
    while between.take_count(OpCode::OpenConfirm) == 0 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        drop(opened(&nfs, b"file").await);
    }
    let cut = between.cut_at(OpCode::OpenConfirm);
    let opening = {
        let nfs = Arc::clone(&nfs);
        tokio::spawn(async move { opened(&nfs, b"file").await })
    };
    soon(cut).await;
    between.take_count(OpCode::Setclientid);
    served.restart();
    between.go_on();
    let file = soon(opening).await.unwrap();
    write(&*file, 0, b"here").await.unwrap();
    write(&*stays, 0, b"here").await.unwrap();
    assert_eq!(read_all(&*file, 100).await, b"here");
    assert_eq!(between.take_count(OpCode::Setclientid), 1);
    nfs.unmount().await;
}

/// A server that has just restarted may refuse to release locks of version 3 (Linux's does), and
/// would keep them forever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unlock_refused_in_grace_is_retried_until_it_succeeds() {
    let served = Served::start();
    const IN_GRACE: u32 = 4;
    let unlock = (weir_nfs::nlm::PROGRAM, 4);
    let addr = falsified(served.addr, unlock, IN_GRACE, 3).await;
    let port = addr.port();
    let url: NfsUrl = format!("nfs://{addr}/?vers=3&mountport={port}").parse().unwrap();
    let nfs = NfsFs::mount(&url, &MountOptions::default()).await.unwrap();
    let fs: Arc<dyn FileSystem> = nfs.clone();
    let file = new_file(&fs, fs.root(), "file").await;
    let lock = Lock { range: LockRange::ALL, exclusive: true };
    file.lock(LockOwner(1), lock, false).await.unwrap();
    assert_eq!(soon(file.unlock(LockOwner(1), LockRange::ALL)).await, Ok(()));
    nfs.unmount().await;
}

/// Nor is the rest requested again and again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_endless_listing_is_an_error() {
    let served = Served::start();
    for (version, readdir) in [("3", 17), ("4.0", 26), ("4.2", 26)] {
        let addr = falsified(served.addr, (weir_nfs::v4::PROGRAM, readdir), 0, usize::MAX).await;
        let port = addr.port();
        let url = format!("nfs://{addr}/?vers={version}&mountport={port}").parse().unwrap();
        let nfs = NfsFs::mount(&url, &MountOptions::default()).await.unwrap();
        let listing = soon(nfs.readdir(
            &Caller::Own,
            ReaddirRequest { dir: nfs.root(), cookie: 0, max_entries: 100, with_attr: true },
        ))
        .await;
        assert_eq!(listing.err(), Some(weir_vfs::Error::Io), "NFSv{version}");
        nfs.unmount().await;
    }
}

/// As with several machines behind one address. (The verifier ends a WRITE's reply.)
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_with_changing_verifiers_gets_stable_writes() {
    let served = Served::start();
    for (version, op) in [("3", 7), ("4.0", 38), ("4.2", 38)] {
        let addr = falsified(served.addr, (weir_nfs::v4::PROGRAM, op), 7, usize::MAX).await;
        let port = addr.port();
        let url = format!("nfs://{addr}/?vers={version}&mountport={port}&wsize=4096");
        let nfs = NfsFs::mount(&url.parse().unwrap(), &MountOptions::default()).await.unwrap();
        let fs: Arc<dyn FileSystem> = nfs.clone();
        let file = new_file(&fs, fs.root(), version).await;
        let bytes = version.repeat(5000).into_bytes();
        soon(write(&*file, 0, &bytes)).await.unwrap();
        assert_eq!(read_all(&*file, 1 << 20).await, bytes);
        nfs.unmount().await;
    }
}

/// It uses two opens, both of which have to be reclaimed first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clone_in_flight_survives_a_restart_and_so_do_the_locks() {
    let mut served = Served::start();
    let between = Between::to(served.addr).await;
    let nfs = mount(&between, "vers=4.2").await;
    let fs: Arc<dyn FileSystem> = nfs.clone();
    let from = new_file(&fs, fs.root(), "from").await;
    write(&*from, 0, &[7; 4096]).await.unwrap();
    let to = new_file(&fs, fs.root(), "to").await;
    let lock = Lock { range: LockRange::ALL, exclusive: true };
    to.lock(LockOwner(1), lock, false).await.unwrap();
    let cut = between.cut_at(OpCode::Clone);
    let cloning = {
        let (from, to) = (Arc::clone(&from), Arc::clone(&to));
        tokio::spawn(async move { to.clone_range(&*from, 0, 4096, 0).await })
    };
    soon(cut).await;
    served.restart();
    between.go_on();
    assert_eq!(soon(cloning).await.unwrap(), Ok(()));
    assert_eq!(read_all(&*to, 8192).await, [7; 4096]);
    assert_eq!(soon(to.unlock(LockOwner(1), LockRange::ALL)).await, Ok(()));
    nfs.unmount().await;
}

/// A store in which names can neither be created nor found.
struct Undecided(Arc<dyn FileSystem>);

#[async_trait]
impl FileSystemDecorator for Undecided {
    fn below(&self) -> &dyn FileSystem {
        &*self.0
    }

    async fn before(&self, method: FileSystemMethod) -> weir_vfs::Result<()> {
        match method {
            FileSystemMethod::Create | FileSystemMethod::CreateOpen => Err(Error::Exists),
            FileSystemMethod::Lookup => Err(Error::NotFound),
            _ => Ok(()),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn contradictory_create_and_lookup_results_end_in_an_error() {
    let mut served = Served::start();
    served.store = Arc::new(Undecided(MemoryFs::new()));
    served.restart();
    for version in ["3", "4.0", "4.2"] {
        let options = format!("vers={version}&mountport={}", served.addr.port());
        let nfs = served.mount(&options).await;
        let set = SetAttr::default();
        let made = soon(nfs.create(
            &Caller::Own,
            nfs.root().entry(b"file").with(&set),
            CreateMode::MayExist,
        ))
        .await;
        assert_eq!(made.err(), Some(Error::Exists), "NFSv{version}");
        nfs.unmount().await;
    }
}

/// Its pages are dropped, too, so neither a sync nor an unmount waits for the server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_to_a_soft_mount_fails_when_the_server_is_gone() {
    for version in ["3", "4.0", "4.2"] {
        let mut served = Served::start();
        let port = served.addr.port();
        let options = format!("vers={version}&mountport={port}&soft&timeo=5&retrans=1");
        let nfs = served.mount(&options).await;
        let fs: Arc<dyn FileSystem> = nfs.clone();
        let file = new_file(&fs, fs.root(), "file").await;
        soon(write(&*file, 0, b"there")).await.unwrap();
        served.end();
        let late = soon(write(&*file, 0, b"not there")).await;
        assert!(late.is_err(), "NFSv{version}");
        drop(file);
        soon(nfs.unmount()).await;
    }
}
