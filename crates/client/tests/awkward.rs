//! The client when Weir's own server goes away at a bad moment, or violates the protocol.

mod common;

use async_trait::async_trait;
use common::between::{Between, falsified, silent};
use common::{Served, opened};
use futures_util::TryStreamExt;
use futures_util::future::join_all;
use std::sync::Arc;
use std::time::Duration;
use weir_client::{Export, MountOptions, NfsFs, NfsUrl, raw};
use weir_nfs::v4::OpCode;
use weir_stores::memory::MemoryFs;
use weir_stores::testing::Endless;
use weir_stores::testing::{new_file, read_all, write};
use weir_vfs::{
    Access, Attr, Caller, CreateMode, DirPage, Error, Extent, FileId, FileSystem,
    FileSystemDecorator, FileSystemMethod, Lock, LockOwner, LockRange, ReaddirRequest, SegmentKind,
    SetAttr,
};

async fn mount(between: &Between, options: &str) -> Arc<NfsFs> {
    let url: NfsUrl = format!("nfs://{}/?{options}", between.addr).parse().unwrap();
    NfsFs::mount(&url, &MountOptions::default()).await.unwrap()
}

async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(120), what).await.expect("it hangs")
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
    served.grace = Duration::from_secs(600);
    served.restart();
    for op in [OpCode::Setclientid, OpCode::Open] {
        between.take_count(op);
    }
    drop(goes);
    let (mut clients, mut opens) = (0, 0);
    let mut count = || {
        clients += between.take_count(OpCode::Setclientid);
        opens += between.take_count(OpCode::Open);
        (clients, opens)
    };
    let recovered = async {
        while count().1 == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    // The unmount has a time limit.
    tokio::time::timeout(Duration::from_secs(120), recovered).await.expect("no recovery");
    nfs.unmount().await;
    assert_eq!(count(), (1, 1), "a client, and the file that stays open");
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

/// The grace period behind a restart may be longer than the restart.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_soft_mount_waits_for_the_end_of_a_delay_as_long_as_for_a_reply() {
    const VERSIONS: [&str; 4] = ["3", "4.0", "4.1", "4.2"];
    let mut served = Served::start();
    served.clock = Some(Arc::default());
    served.restart();
    let direct = served.mount("vers=4.2").await;
    let fs: Arc<dyn FileSystem> = direct.clone();
    let all = Lock { range: LockRange::ALL, exclusive: true };
    let mut held = Vec::new();
    for name in VERSIONS {
        let file = new_file(&fs, fs.root(), name).await;
        file.lock(LockOwner(1), Lock { range: LockRange { start: 9, end: 10 }, ..all }, false)
            .await
            .unwrap();
        held.push(file);
    }
    // It does not come back, so the grace period lasts.
    raw::fall_silent(&direct, true).unwrap();
    served.restart();
    let mut mounts = Vec::new();
    for name in VERSIONS {
        mounts.push((name, served.mount(&format!("vers={name}&soft")).await));
    }
    let writes = mounts.iter().map(async |(name, nfs)| {
        let file = opened(nfs, name.as_bytes()).await;
        write(&*file, 0, b"x").await.map(drop)
    });
    // Longer than the least time for which one waits.
    let end = async {
        tokio::time::sleep(Duration::from_secs(23)).await;
        served.clock.as_ref().unwrap().advance(served.grace);
    };
    let (written, ()) = tokio::join!(join_all(writes), end);
    assert_eq!(written, [Ok(()); 4]);
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

/// The hole is looked for before the data.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_another_client_writes_into_a_hole_while_its_end_is_looked_for_is_data() {
    let served = Served::start();
    // A SEEK's reply ends with the offset.
    let seek = (weir_nfs::v4::PROGRAM, OpCode::Seek as u32);
    let addr = falsified(served.addr, seek, 0, usize::MAX).await;
    let url = format!("nfs://{addr}/?vers=4.2").parse().unwrap();
    let nfs = NfsFs::mount(&url, &MountOptions::default()).await.unwrap();
    let fs: Arc<dyn FileSystem> = nfs.clone();
    let file = new_file(&fs, fs.root(), "file").await;
    write(&*file, 8192, b"data").await.unwrap();
    let found = soon(file.extent_at(0)).await;
    assert_eq!(found, Ok(Extent { kind: SegmentKind::Data, start: 0, end: 4096 }));
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

/// A store whose only file has another name in listings, and more extended attributes than any file.
struct Misnaming {
    store: Arc<MemoryFs>,
    name: &'static [u8],
}

#[async_trait]
impl FileSystemDecorator for Misnaming {
    fn below(&self) -> &dyn FileSystem {
        &*self.store
    }

    async fn readdir(&self, caller: &Caller, request: ReaddirRequest) -> weir_vfs::Result<DirPage> {
        let mut page = self.store.readdir(caller, request).await?;
        page.entries.iter_mut().for_each(|entry| entry.name = self.name.to_vec());
        Ok(page)
    }

    async fn list_xattrs(&self, _: &Caller, _: FileId) -> weir_vfs::Result<Vec<Vec<u8>>> {
        Ok((0..10_000).map(|n| format!("user.{n:0>200}").into_bytes()).collect())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_endless_list_of_extended_attributes_is_an_error() {
    let mut served = Served::start();
    served.store = Arc::new(Misnaming { store: MemoryFs::new(), name: b"" });
    served.restart();
    let nfs = served.mount("vers=4.2").await;
    let listed = soon(nfs.list_xattrs(&Caller::Own, nfs.root())).await;
    assert_eq!(listed.map(|names| names.len()), Err(Error::Io));
    nfs.unmount().await;
}

/// Such names would lead a program out of the directory to which it copies. Those of the directory itself and
/// its parent are left out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_listing_with_names_that_lead_elsewhere_is_an_error() {
    for name in [&b"good"[..], b".", b"..", b"a/b", b"../../a", b"/", b"a\0b", b""] {
        let mut served = Served::start();
        let store = MemoryFs::new();
        let set = SetAttr::default();
        let new = store.root().entry(b"file").with(&set);
        store.create(&Caller::Own, new, CreateMode::MustBeNew).await.unwrap();
        served.store = Arc::new(Misnaming { store, name });
        served.restart();
        for (version, with_attr) in [("3", true), ("3", false), ("4.0", true), ("4.2", false)] {
            let options = format!("vers={version}&mountport={}", served.addr.port());
            let nfs = served.mount(&options).await;
            let request = ReaddirRequest { dir: nfs.root(), cookie: 0, max_entries: 9, with_attr };
            let listed = nfs.readdir(&Caller::Own, request).await;
            let names = |page: DirPage| page.entries.into_iter().map(|entry| entry.name).collect();
            let expected = match name {
                b"good" => Ok(vec![name.to_vec()]),
                b"." | b".." => Ok(Vec::new()),
                _ => Err(Error::Io),
            };
            assert_eq!(listed.map(names), expected, "NFSv{version} {}", name.escape_ascii());
            nfs.unmount().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_whose_cookies_go_round_is_an_error() {
    let mut served = Served::start();
    let store = MemoryFs::new();
    let set = SetAttr::default();
    for name in ["a", "b", "c", "d", "e", "f", "g"] {
        let new = store.root().entry(name.as_bytes()).with(&set);
        store.mkdir(&Caller::Own, new).await.unwrap();
    }
    served.store = Arc::new(Endless(store));
    served.restart();
    for version in ["3", "4.0", "4.2"] {
        let url = format!("nfs://{}/?vers={version}", served.addr);
        let export = Export::connect(&url).await.unwrap();
        let entries = async { export.read_dir("/").await?.try_collect::<Vec<_>>().await };
        let failed = soon(entries).await.map(drop).unwrap_err();
        assert!(failed.to_string().starts_with("cannot list"), "NFSv{version}: {failed}");
        let walked = async { export.walk("/").await?.try_collect::<Vec<_>>().await };
        assert!(soon(walked).await.is_err(), "NFSv{version}");
        export.close().await;
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
    // The only client ends it when it has reclaimed.
    served.grace = Duration::from_secs(600);
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
    let fails = |version| async move {
        let mut served = Served::start();
        let port = served.addr.port();
        let options = format!("vers={version}&mountport={port}&soft&timeo=150&retrans=1");
        let nfs = served.mount(&options).await;
        let fs: Arc<dyn FileSystem> = nfs.clone();
        let file = new_file(&fs, fs.root(), "file").await;
        soon(write(&*file, 0, b"there")).await.unwrap();
        served.end();
        let late = soon(write(&*file, 0, b"not there")).await;
        assert!(late.is_err(), "NFSv{version}");
        drop(file);
        soon(nfs.unmount()).await;
    };
    join_all(["3", "4.0", "4.2"].map(fails)).await;
}

/// Those that wait while one of them reconnects share its time-out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_to_a_silent_server_do_not_time_out_one_after_another() {
    const CALLS: usize = 8;
    for (version, introduces) in [("4.0", OpCode::Setclientid), ("4.2", OpCode::ExchangeId)] {
        let mut served = Served::start();
        let nfs = served.mount(&format!("vers={version},soft,timeo=10,retrans=0")).await;
        let mut files = Vec::new();
        for file in 0..=CALLS {
            let name = format!("file{file}");
            drop(new_file(&served.store, served.store.root(), &name).await);
            files.push(nfs.lookup(&Caller::Own, nfs.root().entry(name.as_bytes())).await.unwrap());
        }
        served.end();
        let attempts = silent(served.addr, introduces).await;
        let open = |file: &Attr| {
            let (nfs, id) = (Arc::clone(&nfs), file.id);
            async move { soon(nfs.open(&Caller::Own, id, Access::READ)).await.err() }
        };
        // Afterwards the session is of no use any more.
        assert_eq!(open(&files[0]).await, Some(Error::TimedOut), "NFSv{version}");
        for failed in join_all(files[1..].iter().map(open)).await {
            assert_eq!(failed, Some(Error::TimedOut), "NFSv{version}");
        }
        // A few more than two if this test was suspended before all calls had begun.
        let attempts = attempts.lock().unwrap().len();
        assert!((1..=CALLS / 2).contains(&attempts), "NFSv{version}: {attempts} attempts");
        soon(nfs.unmount()).await;
    }
}

/// It finds the lock manager only then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_lock_over_version_3_waits_for_a_server_that_is_down() {
    let lock = Lock { range: LockRange::ALL, exclusive: true };
    for unmounts in [false, true] {
        let mut served = Served::start();
        let nfs = served.mount("vers=3").await;
        let fs: Arc<dyn FileSystem> = nfs.clone();
        let file = new_file(&fs, fs.root(), "file").await;
        served.end();
        let locking = {
            let file = Arc::clone(&file);
            tokio::spawn(async move { file.lock(LockOwner(1), lock, false).await })
        };
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert!(!locking.is_finished(), "the server may come back");
        if unmounts {
            soon(nfs.unmount()).await;
            assert_eq!(soon(locking).await.unwrap(), Err(Error::Io));
        } else {
            served.restart();
            assert_eq!(soon(locking).await.unwrap(), Ok(()));
            assert_eq!(soon(file.unlock(LockOwner(1), LockRange::ALL)).await, Ok(()));
            nfs.unmount().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_over_version_3_fails_if_the_server_has_no_lock_manager() {
    const PROGRAM_UNAVAILABLE: u32 = 1;
    let served = Served::start();
    let null = (weir_nfs::nlm::PROGRAM, 0);
    let addr = falsified(served.addr, null, PROGRAM_UNAVAILABLE, usize::MAX).await;
    let url = format!("nfs://{addr}/?vers=3&mountport={}", addr.port()).parse().unwrap();
    let nfs = NfsFs::mount(&url, &MountOptions::default()).await.unwrap();
    let fs: Arc<dyn FileSystem> = nfs.clone();
    let file = new_file(&fs, fs.root(), "file").await;
    let lock = Lock { range: LockRange::ALL, exclusive: true };
    assert!(soon(file.lock(LockOwner(1), lock, false)).await.is_err());
    nfs.unmount().await;
}
