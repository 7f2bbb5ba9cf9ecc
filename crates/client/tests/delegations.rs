//! Files that Weir's server delegates to the client, over loopback: kept, returned, revoked.

mod common;

use common::{Served, opened};
use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use weir_client::{MountOptions, NfsFs, NfsUrl};
use weir_pagecache::{Cache, Config};
use weir_stores::local::{LocalFs, LocalOptions};
use weir_stores::testing::{new_file, write};
use weir_vfs::{Access, Caller, FileSystem, IoFlags};

/// The number of bytes that a mount sends during `work`.
async fn sent<T>(nfs: &NfsFs, work: impl Future<Output = T>) -> (u64, T) {
    let before = nfs.wire_stats().sent_bytes;
    let done = work.await;
    (nfs.wire_stats().sent_bytes - before, done)
}

/// Waits until a mount has sent nothing for a second: what it closes in the background is closed.
async fn quiet(nfs: &NfsFs) {
    let (mut known, mut checks) = (nfs.wire_stats().sent_bytes, 0);
    let begun = std::time::Instant::now();
    while checks < 20 {
        assert!(begun.elapsed() < Duration::from_secs(120), "it keeps sending");
        tokio::time::sleep(Duration::from_millis(50)).await;
        let sent = nfs.wire_stats().sent_bytes;
        checks = if sent == known { checks + 1 } else { 0 };
        known = sent;
    }
}

/// Opens a file to read, looks at it, and closes it.
async fn look(nfs: &Arc<NfsFs>, id: weir_vfs::FileId) -> u64 {
    let file = nfs.open(&Caller::Own, id, Access::READ).await.unwrap();
    let size = file.getattr().await.unwrap().size;
    assert_eq!(nfs.getattr(id).await.unwrap().size, size);
    drop(file);
    // The last user closes it in the background.
    tokio::time::sleep(Duration::from_millis(100)).await;
    size
}

/// A file of 10 bytes that `maker` has written, and whose delegation `reader` holds.
async fn delegated(maker: &Arc<NfsFs>, reader: &Arc<NfsFs>, name: &str) -> weir_vfs::FileId {
    let fs: Arc<dyn FileSystem> = maker.clone();
    let file = new_file(&fs, fs.root(), name).await;
    write(&*file, 0, &[1; 10]).await.unwrap();
    drop(file);
    quiet(maker).await;
    let id = reader.lookup(&Caller::Own, reader.root().entry(name.as_bytes())).await.unwrap().id;
    // On a later open.
    for _ in 0..3 {
        assert_eq!(look(reader, id).await, 10);
    }
    quiet(reader).await;
    id
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_delegated_file_is_opened_locally_until_it_is_recalled() {
    for version in ["4.1", "4.2"] {
        let served = Served::start();
        let ours = served.mount(&format!("vers={version}&actimeo=0")).await;
        let theirs = served.mount("vers=4.2&actimeo=0").await;
        let id = delegated(&theirs, &ours, "file").await;
        let (bytes, size) = sent(&ours, look(&ours, id)).await;
        assert_eq!((bytes, size), (0, 10), "NFSv{version}: nothing is asked");

        let far = opened(&theirs, b"file").await;
        write(&*far, 10, &[2; 10]).await.unwrap();
        let (bytes, size) = sent(&ours, look(&ours, id)).await;
        assert!(bytes > 0, "NFSv{version}");
        assert_eq!(size, 20, "NFSv{version}: what another client wrote is seen at once");
        far.set_size(5).await.unwrap();
        assert_eq!(
            look(&ours, id).await,
            5,
            "NFSv{version}: and what is not delegated is asked for"
        );
        for nfs in [ours, theirs] {
            nfs.unmount().await;
        }
    }
}

/// The server could not tell this mount's changes from those of a local program.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_of_a_local_program_at_the_server_are_seen() {
    let dir = tempfile::tempdir().unwrap();
    let mut served = Served::start();
    served.store = LocalFs::open(dir.path(), LocalOptions::default()).unwrap();
    served.restart();
    for version in ["4.1", "4.2"] {
        let ours = served.mount(&format!("vers={version}&actimeo=0")).await;
        let id = delegated(&ours, &ours, version).await;
        assert_eq!(sent(&ours, look(&ours, id)).await, (0, 10), "NFSv{version}");
        let writer = ours.open(&Caller::Own, id, Access::READ | Access::WRITE).await.unwrap();
        assert_eq!(writer.getattr().await.unwrap().size, 10);
        for size in [20, 30] {
            let local = std::fs::File::options().append(true).open(dir.path().join(version));
            local.unwrap().write_all(&[3; 10]).unwrap();
            let seen = async {
                while ours.getattr(id).await.unwrap().size != size {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            };
            let seen = tokio::time::timeout(Duration::from_secs(120), seen).await;
            assert!(seen.is_ok(), "NFSv{version}: {size}");
        }
        drop(writer);
        ours.unmount().await;
    }
}

/// Nothing tells the server of it, which could recall the delegation.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_delegated_file_ends_where_a_local_program_truncated_it() {
    let served = Served::start();
    let store = Arc::clone(&served.store);
    for version in ["4.1", "4.2"] {
        let local = new_file(&store, store.root(), version).await;
        write(&*local, 0, &[1; 12_288]).await.unwrap();
        let ours = served.mount(&format!("vers={version}&actimeo=0")).await;
        let entry = ours.root().entry(version.as_bytes());
        let id = ours.lookup(&Caller::Own, entry).await.unwrap().id;
        for _ in 0..3 {
            assert_eq!(look(&ours, id).await, 12_288);
        }
        quiet(&ours).await;
        assert_eq!(sent(&ours, look(&ours, id)).await, (0, 12_288), "NFSv{version}");
        let cache = Cache::new(Config { budget_bytes: 16 << 20, ..Config::default() }).unwrap();
        let fs = cache.mount(ours);
        let file = fs.open(&Caller::Own, id, Access::READ).await.unwrap();
        local.set_size(10).await.unwrap();
        let mut bytes = [0; 4096];
        let read = file.read_at_async(&mut bytes, 0, IoFlags::empty()).await;
        assert_eq!((read, &bytes[..11]), (Ok(10), &[[1; 10].as_slice(), &[0]].concat()[..]));
        assert_eq!(file.size(), 10, "NFSv{version}");
        drop(file);
        fs.unmount().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mount_without_delegations_sends_every_open() {
    let served = Served::start();
    let url: NfsUrl = format!("nfs://{}/?vers=4.2", served.addr).parse().unwrap();
    let options = MountOptions { delegations: false, ..MountOptions::default() };
    let ours = NfsFs::mount(&url, &options).await.unwrap();
    let id = delegated(&ours, &ours, "file").await;
    let file = ours.open(&Caller::Own, id, Access::READ).await.unwrap();
    for _ in 0..3 {
        let (bytes, attr) = sent(&ours, file.getattr()).await;
        assert!(bytes > 0 && attr.is_ok());
    }
    drop(file);
    ours.unmount().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_of_the_server_ends_delegated_opens() {
    let mut served = Served::start();
    let ours = served.mount("vers=4.2&actimeo=0&timeo=20").await;
    let id = delegated(&ours, &ours, "file").await;
    assert_eq!(sent(&ours, look(&ours, id)).await, (0, 10));
    served.restart();
    let theirs = served.mount("vers=4.2&actimeo=0").await;
    let far = opened(&theirs, b"file").await;
    write(&*far, 10, &[2; 10]).await.unwrap();
    assert_eq!(look(&ours, id).await, 20, "the other one has written since");
    // Its own removal of a file that it holds.
    drop(far);
    look(&ours, id).await;
    look(&ours, id).await;
    ours.unlink(&Caller::Own, ours.root().entry(b"file")).await.unwrap();
    assert_eq!(ours.getattr(id).await, Err(weir_vfs::Error::Stale));
}

/// A proxy that can delay or cut the traffic to a server.
struct Way {
    addr: SocketAddr,
    state: watch::Sender<Passing>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Passing {
    /// Both directions pass.
    Open,
    /// The server's replies are held back.
    HeldUp,
    /// The existing connections are closed.
    Cut,
}

impl Way {
    async fn to(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let (state, passing) = watch::channel(Passing::Open);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let Ok(server) = TcpStream::connect(server).await else { continue };
                let (mut from_client, to_client) = client.into_split();
                let (from_server, mut to_server) = server.into_split();
                let mut cut = passing.clone();
                tokio::spawn(async move {
                    tokio::select! {
                        _ = tokio::io::copy(&mut from_client, &mut to_server) => {}
                        _ = cut.wait_for(|now| *now == Passing::Cut) => {}
                    }
                });
                tokio::spawn(back(from_server, to_client, passing.clone()));
            }
        });
        Self { addr, state }
    }

    fn set(&self, passing: Passing) {
        self.state.send_replace(passing);
    }

    async fn mount(&self, options: &str) -> Arc<NfsFs> {
        let url: NfsUrl = format!("nfs://{}/?{options}", self.addr).parse().unwrap();
        NfsFs::mount(&url, &MountOptions::default()).await.unwrap()
    }
}

async fn back(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    mut passing: watch::Receiver<Passing>,
) {
    let mut buffer = vec![0; 64 << 10];
    let mut cut = passing.clone();
    let pass = async {
        while let Ok(n) = from.read(&mut buffer).await
            && n > 0
        {
            let _ = passing.wait_for(|now| *now != Passing::HeldUp).await;
            if to.write_all(&buffer[..n]).await.is_err() {
                break;
            }
        }
    };
    tokio::select! {
        () = pass => {}
        _ = cut.wait_for(|now| *now == Passing::Cut) => {}
    }
}

/// A client that is disconnected from the server for longer than a lease has lost its delegation,
/// and does not rely on it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_revoked_delegation_is_not_used() {
    let mut served = Served::start();
    served.lease = Duration::from_secs(2);
    served.restart();
    let way = Way::to(served.addr).await;
    let ours = way.mount("vers=4.2&actimeo=0").await;
    let theirs = served.mount("vers=4.2&actimeo=0").await;
    let id = delegated(&theirs, &ours, "file").await;
    way.set(Passing::HeldUp);
    let far = opened(&theirs, b"file").await;
    // The recall does not arrive, so this waits for the delegation to be revoked.
    write(&*far, 10, &[2; 10]).await.unwrap();
    way.set(Passing::Open);
    // The delayed replies arrive first.
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(look(&ours, id).await, 20, "what was written meanwhile is seen");
    far.set_size(5).await.unwrap();
    assert_eq!(look(&ours, id).await, 5, "and what is written now");
    for nfs in [ours, theirs] {
        nfs.unmount().await;
    }
}

/// A new connection is no backchannel until it is bound: earlier delegations are not relied on
/// meanwhile, and then the server can call back again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_connection_becomes_the_backchannel() {
    let mut served = Served::start();
    // An idle client learns that its backchannel is down when it renews its lease.
    served.lease = Duration::from_secs(90);
    served.restart();
    let way = Way::to(served.addr).await;
    let ours = way.mount("vers=4.1&actimeo=0").await;
    let theirs = served.mount("vers=4.2&actimeo=0").await;
    let id = delegated(&theirs, &ours, "file").await;
    assert_eq!(sent(&ours, look(&ours, id)).await, (0, 10));
    way.set(Passing::Cut);
    tokio::time::sleep(Duration::from_millis(300)).await;
    way.set(Passing::Open);
    let far = opened(&theirs, b"file").await;
    write(&*far, 10, &[2; 10]).await.unwrap();
    drop(far);
    assert_eq!(look(&ours, id).await, 20);
    // The server delegates again, which it does only to clients that it can call; and calls.
    let id = delegated(&theirs, &ours, "another").await;
    assert_eq!(sent(&ours, look(&ours, id)).await, (0, 10));
    let far = opened(&theirs, b"another").await;
    far.set_size(5).await.unwrap();
    assert_eq!(look(&ours, id).await, 5);
    for nfs in [ours, theirs] {
        nfs.unmount().await;
    }
}

/// More files than delegations are kept: the most recently used keep theirs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_most_recently_used_delegations_are_kept() {
    const FILES: usize = 300;
    let served = Served::start();
    let ours = served.mount("vers=4.2&actimeo=0").await;
    let fs: Arc<dyn FileSystem> = ours.clone();
    let mut ids = Vec::new();
    for i in 0..FILES {
        let file = new_file(&fs, fs.root(), &format!("file {i}")).await;
        ids.push(file.getattr().await.unwrap().id);
    }
    // The writers are closed in the background.
    quiet(&ours).await;
    let glance = async |id| {
        let file = ours.open(&Caller::Own, id, Access::READ).await.unwrap();
        file.getattr().await.unwrap();
    };
    for &id in &ids {
        for _ in 0..3 {
            glance(id).await;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    quiet(&ours).await;
    let mut kept = 0;
    for &id in ids.iter().rev() {
        let (bytes, ()) = sent(&ours, glance(id)).await;
        if bytes > 0 {
            break;
        }
        kept += 1;
    }
    assert!((200..=256).contains(&kept), "{kept} files are delegated");
    ours.unmount().await;
}
