//! The client with Weir's own server, over loopback, in every version: the suite that every store
//! passes, sparse files, and a server that goes away and comes back.

mod common;

use common::between::Between;
use common::{Served, opened};
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use weir_client::{MountOptions, NfsFs, NfsUrl, Version};
use weir_nfs::mount;
use weir_nfs::v3::op::readdir::Chain;
use weir_nfs::v4::OpCode;
use weir_pagecache::{Cache, Config};
use weir_rpc::{CallHeader, OpaqueAuth, ReplyHeader, finish_record, start_record};
use weir_server::Versions;
use weir_stores::fault::{Call, Fault, Rule, What, When};
use weir_stores::testing::{bytes_of, new_file, read, read_all, suite, write};
use weir_vfs::{
    Access, Caller, Capabilities, CreateMode, FileSystem, IoFlags, Lock, LockOwner, LockRange,
    ReaddirRequest, SegmentKind, SetAttr,
};
use weir_xdr::Decoder;

const VERSIONS: [&str; 4] = ["3", "4.0", "4.1", "4.2"];

async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(120), what).await.expect("it hangs")
}

/// Before version 4.2, a file is its bytes and its attributes; POSIX lists are no part of version 4.
async fn suite_over(options: &str) {
    let served = Served::start();
    let nfs = served.mount(options).await;
    let fs: Arc<dyn FileSystem> = nfs.clone();
    let mut lacking = Capabilities::POSIX_ACL;
    if nfs.version() != Version::V4_2 {
        lacking |= Capabilities::HOLES | Capabilities::ALLOCATE;
        lacking |= Capabilities::CLONE | Capabilities::COPY | Capabilities::XATTR;
    }
    assert_eq!(nfs.capabilities(), Capabilities::all() - lacking, "{options}");
    suite(&fs, lacking).await;
    nfs.unmount().await;
}

#[tokio::test]
async fn the_suite_over_v3() {
    suite_over("vers=3").await;
}

#[tokio::test]
async fn the_suite_over_v4_0() {
    suite_over("vers=4.0").await;
}

#[tokio::test]
async fn the_suite_over_v4_1() {
    suite_over("vers=4.1").await;
}

#[tokio::test]
async fn the_suite_over_v4_2() {
    suite_over("vers=4.2").await;
}

#[tokio::test]
async fn the_suite_over_many_connections_and_small_transfers() {
    suite_over("nconnect=4,rsize=8192,wsize=8192").await;
}

#[tokio::test]
async fn all_operations_work_with_the_smallest_transfers() {
    let served = Served::start();
    for version in VERSIONS {
        let nfs = served.mount(&format!("vers={version},rsize=1024,wsize=1024")).await;
        let fs: Arc<dyn FileSystem> = nfs.clone();
        let name = format!("{version}{}", "x".repeat(240));
        let file = new_file(&fs, fs.root(), &name).await;
        let bytes: Vec<u8> = (0..5000).map(|n| (n % 251) as u8).collect();
        write(&*file, 0, &bytes).await.unwrap();
        assert_eq!(read_all(&*file, 5000).await, bytes);
        let page = nfs
            .readdir(
                &Caller::Own,
                ReaddirRequest { dir: nfs.root(), cookie: 0, max_entries: 1, with_attr: true },
            )
            .await
            .unwrap();
        assert_eq!(page.entries.len(), 1);
        nfs.unmount().await;
    }
}

/// The server's clock sets the times of writes: a time from this machine's clock could undo another
/// client's newer one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_time_is_set_by_writing() {
    let served = Served::start();
    let between = Between::to(served.addr).await;
    for version in ["4.0", "4.1", "4.2"] {
        let url = format!("nfs://{}/?vers={version}", between.addr).parse().unwrap();
        let nfs = NfsFs::mount(&url, &MountOptions::default()).await.unwrap();
        let cache = Cache::new(Config { budget_bytes: 16 << 20, ..Config::default() }).unwrap();
        let fs = cache.mount(nfs.clone());
        let (me, set) = (&Caller::Own, SetAttr::default());
        let made = fs
            .create(me, fs.root().entry(version.as_bytes()).with(&set), CreateMode::MayExist)
            .await
            .unwrap();
        let file = fs.open(me, made.attr.id, Access::READ | Access::WRITE).await.unwrap();
        between.take_count(OpCode::Setattr);
        for round in 0..3 {
            file.write_at_async(&[7; 10_000], round * 5000, IoFlags::empty()).await.unwrap();
            file.sync_async(false).await.unwrap();
        }
        let there = served.mount("").await;
        let id = there.lookup(me, there.root().entry(version.as_bytes())).await.unwrap().id;
        let theirs = there.getattr(id).await.unwrap().mtime;
        assert_eq!(fs.getattr(made.attr.id).await.unwrap().mtime, theirs, "{version}");
        file.close().await.unwrap();
        fs.unmount().await.unwrap();
        assert_eq!(between.take_count(OpCode::Setattr), 0, "{version}");
        there.unmount().await;
    }
}

/// This mount recognises its own writes, however many are in flight, and detects other clients'
/// writes in between. (In version 3 this server reports no attributes from before a change.)
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_of_others_are_distinguished_from_own_ones() {
    let served = Served::start();
    let nfs = served.mount("vers=3").await;
    let fs: Arc<dyn FileSystem> = nfs.clone();
    let file = new_file(&fs, fs.root(), "3").await;
    write(&*file, 0, b"ours").await.unwrap();
    assert_eq!(file.changes_by_others(), None);
    drop(file);
    nfs.unmount().await;
    for version in ["4.0", "4.1", "4.2"] {
        let nfs = served.mount(&format!("vers={version},nconnect=2,wsize=4096")).await;
        let others = served.mount("").await;
        let fs: Arc<dyn FileSystem> = nfs.clone();
        let file = new_file(&fs, fs.root(), version).await;
        let by_others = async || {
            file.getattr().await.unwrap();
            file.changes_by_others().unwrap()
        };
        let mut known = by_others().await;
        for round in 0..4 {
            write(&*file, round * 100_000, &[1; 100_000]).await.unwrap();
            file.set_size(1 << 20).await.unwrap();
            let mode = SetAttr { mode: Some(0o600 + round as u32), ..SetAttr::default() };
            let id = file.getattr().await.unwrap().id;
            fs.setattr(&Caller::Own, id, &mode).await.unwrap();
            assert_eq!(by_others().await, known, "{version}: all of it was our own");
            known = by_others().await;
            let theirs = opened(&others, version.as_bytes()).await;
            write(&*theirs, 5, b"theirs").await.unwrap();
            assert!(by_others().await > known, "{version}: another client's");
            known = by_others().await;
            // Between two of ours.
            write(&*file, 0, b"ours").await.unwrap();
            write(&*theirs, 5, b"theirs").await.unwrap();
            write(&*file, 0, b"ours").await.unwrap();
            assert!(by_others().await > known, "{version}: another client's in between");
            known = by_others().await;
        }
        nfs.unmount().await;
        others.unmount().await;
    }
}

/// Data written to files that were closed or dropped is at the server when the mount has ended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unmount_writes_all_data_to_the_server() {
    let served = Served::start();
    for version in VERSIONS {
        let nfs = served.mount(&format!("vers={version}")).await;
        let cache = Cache::new(Config { budget_bytes: 16 << 20, ..Config::default() }).unwrap();
        let fs = cache.mount(nfs.clone());
        let set = SetAttr::default();
        for (name, closed) in [("closed", true), ("dropped", false)] {
            let name = format!("{name} {version}");
            let (me, root) = (&Caller::Own, fs.root());
            let made = fs
                .create(me, root.entry(name.as_bytes()).with(&set), CreateMode::MustBeNew)
                .await
                .unwrap();
            let file = fs.open(me, made.attr.id, Access::READ | Access::WRITE).await.unwrap();
            file.write_at_async(&[7; 10_000], 0, IoFlags::empty()).await.unwrap();
            if closed {
                file.close().await.unwrap();
                assert_eq!(cache.dirty_bytes(), 0);
            }
        }
        fs.unmount().await.unwrap();
        let again = served.mount("").await;
        for name in ["closed", "dropped"] {
            let file = opened(&again, format!("{name} {version}").as_bytes()).await;
            assert_eq!(read_all(&*file, 20_000).await, [7; 10_000], "{name}");
        }
        again.unmount().await;
    }
}

#[tokio::test]
async fn the_newest_version_is_negotiated() {
    let served = Served::start();
    assert_eq!(served.mount("").await.version().to_string(), "4.2");
    for version in VERSIONS {
        let nfs = served.mount(&format!("vers={version}")).await;
        assert_eq!(nfs.version().to_string(), version);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn versions_are_negotiated_downwards() {
    let mut served = Served::start();
    let offers = [
        (Versions::V4_1.union(Versions::V4_0).union(Versions::V3), "4.1"),
        (Versions::V4_0.union(Versions::V3), "4.0"),
        (Versions::V3, "3"),
    ];
    for (offered, newest) in offers {
        served.versions = offered;
        served.restart();
        let nfs = served.mount("").await;
        assert_eq!(nfs.version().to_string(), newest);
        nfs.unmount().await;
        // Version 4, as in mount.nfs.
        let url: NfsUrl = format!("nfs://{}/?vers=4", served.addr).parse().unwrap();
        match NfsFs::mount(&url, &MountOptions::default()).await {
            Ok(nfs) => {
                assert_eq!(nfs.version().to_string(), newest);
                nfs.unmount().await;
            }
            Err(error) => {
                assert_eq!(newest, "3", "{error}");
                assert!(error.to_string().contains("4.2, 4.1, 4.0"), "{error}");
            }
        }
        let refused = format!("nfs://{}/?vers=4.2", served.addr).parse().unwrap();
        let error = NfsFs::mount(&refused, &MountOptions::default()).await.err().unwrap();
        assert!(error.to_string().contains("4.2"), "{error}");
    }
}

#[tokio::test]
async fn a_hole_costs_nothing_on_the_wire() {
    let served = Served::start();
    let nfs = served.mount("vers=4.2").await;
    let fs: Arc<dyn FileSystem> = nfs.clone();
    let file = new_file(&fs, fs.root(), "hole").await;
    file.set_size(256 << 20).await.unwrap();
    let before = nfs.wire_stats().received_bytes;
    let (buffer, layout) = read(&*file, 0, 256 << 20).await.unwrap();
    let received = nfs.wire_stats().received_bytes - before;
    assert_eq!((layout.extents.len(), layout.extents[0].kind), (1, SegmentKind::Hole));
    assert!(buffer.iter().all(|b| *b == 0xEE), "a hole does not touch the buffer");
    assert!(received < 65536, "{received} bytes for a hole");
}

#[tokio::test]
async fn alternating_files_read_the_same_with_and_without_read_plus() {
    let served = Served::start();
    let plus = served.mount("vers=4.2").await;
    let plain = served.mount("vers=4.2,noreadplus").await;
    let fs: Arc<dyn FileSystem> = plus.clone();
    for (name, block) in [("4k", 4096), ("32k", 32768)] {
        let file = new_file(&fs, fs.root(), name).await;
        let size = 8 << 20;
        let mut want = vec![0; size];
        file.set_size(size as u64).await.unwrap();
        for at in (0..size).step_by(2 * block) {
            want[at..at + block].fill((at / block) as u8 | 1);
            write(&*file, at as u64, &want[at..at + block]).await.unwrap();
        }
        let id = file.getattr().await.unwrap().id;
        let mut received = Vec::new();
        for nfs in [&plus, &plain] {
            nfs.lookup(&Caller::Own, nfs.root().entry(name.as_bytes())).await.unwrap();
            let file = nfs.open(&Caller::Own, id, Access::READ).await.unwrap();
            let before = nfs.wire_stats().received_bytes;
            let (buffer, layout) = read(&*file, 0, size).await.unwrap();
            received.push(nfs.wire_stats().received_bytes - before);
            assert!(bytes_of(0, &buffer, &layout) == want, "{name}: {layout:?}");
        }
        assert!(received[0] * 100 < received[1] * 52, "{name}: {received:?} bytes");
    }
}

/// A proxy between a client and a server of 4.2 that answers READ_PLUS as an unknown operation, and
/// counts how often.
async fn without_read_plus(server: SocketAddr) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let (mut from_client, mut to_client) = client.into_split();
            let server = TcpStream::connect(server).await.unwrap();
            let (mut from_server, mut to_server) = server.into_split();
            tokio::spawn(async move { tokio::io::copy(&mut from_server, &mut to_client).await });
            let counted = Arc::clone(&counted);
            tokio::spawn(async move {
                while let Ok(header) = from_client.read_u32().await {
                    let mut call = vec![0; (header & 0x7FFF_FFFF) as usize];
                    from_client.read_exact(&mut call).await.unwrap();
                    // The last operation: its number, a stateid, offset and count.
                    if let Some(at) = call.len().checked_sub(32)
                        && call[at..at + 4] == [0, 0, 0, 68]
                    {
                        call[at + 3] = 99;
                        counted.fetch_add(1, Relaxed);
                    }
                    to_server.write_u32(header).await.unwrap();
                    to_server.write_all(&call).await.unwrap();
                }
            });
        }
    });
    (addr, count)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_read_plus_is_read_with_read_from_then_on() {
    let served = Served::start();
    let (addr, refused) = without_read_plus(served.addr).await;
    let url: NfsUrl = format!("nfs://{addr}/?vers=4.2").parse().unwrap();
    let nfs = NfsFs::mount(&url, &MountOptions::default()).await.unwrap();
    let fs: Arc<dyn FileSystem> = nfs.clone();
    let file = new_file(&fs, fs.root(), "file").await;
    write(&*file, 100_000, &[7; 1000]).await.unwrap();
    let mut want = vec![0; 100_000];
    want.resize(101_000, 7);
    for _ in 0..3 {
        assert_eq!(read_all(&*file, 1 << 20).await, want);
        assert_eq!(refused.load(Relaxed), 1);
    }
    nfs.unmount().await;
}

/// Every version: writes completed before the server ended without warning persist, and those in
/// flight complete; open files stay usable.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_of_the_server_loses_nothing_and_no_caller_notices() {
    for version in VERSIONS {
        let mut served = Served::start();
        let nfs = served.mount(&format!("vers={version},timeo=20")).await;
        let fs: Arc<dyn FileSystem> = nfs.clone();
        let file = new_file(&fs, fs.root(), "file").await;
        const BLOCK: usize = 100_000;
        let block = |i: usize| vec![i as u8 + 1; BLOCK];
        let mut writes = Vec::new();
        for i in 0..60 {
            let file = Arc::clone(&file);
            writes.push(tokio::spawn(async move {
                write(&*file, (i * BLOCK) as u64, &vec![i as u8 + 1; BLOCK]).await
            }));
            if i % 20 == 10 {
                served.restart();
            }
        }
        for done in writes {
            done.await.unwrap().unwrap();
        }
        served.restart();
        let want: Vec<u8> = (0..60).flat_map(block).collect();
        assert!(read_all(&*file, 1 << 20).await == want, "NFSv{version}");
        assert!(nfs.wire_stats().reconnects >= 1);
        nfs.unmount().await;
        drop(served);
    }
}

/// In its grace period, a server delays clients that open a file.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operations_delayed_by_grace_are_retried_at_its_end() {
    let mut served = Served::start();
    let holder = served.mount("vers=4.0").await;
    let fs: Arc<dyn FileSystem> = holder.clone();
    drop(new_file(&fs, fs.root(), "other").await);
    // Version 4.0 has no RECLAIM_COMPLETE: the grace period takes its full time.
    let _file = new_file(&fs, fs.root(), "file").await;
    for version in ["4.0", "4.2"] {
        let nfs = served.mount(&format!("vers={version}")).await;
        nfs.lookup(&Caller::Own, nfs.root().entry(b"other")).await.unwrap();
        served.grace = Duration::from_millis(5200);
        let begun = Instant::now();
        served.restart();
        let file = opened(&nfs, b"other").await;
        let took = begun.elapsed();
        assert!(took >= served.grace, "NFSv{version}: {took:?}");
        drop(file);
        nfs.unmount().await;
    }
}

#[tokio::test]
async fn a_soft_mount_fails_when_the_server_is_gone() {
    let mut served = Served::start();
    let nfs = served.mount("vers=4.2,soft,timeo=150,retrans=1").await;
    served.end();
    let error = nfs.getattr(nfs.root()).await.unwrap_err();
    assert_eq!(error, weir_vfs::Error::TimedOut);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unmounted_client_makes_no_more_connections() {
    for version in VERSIONS {
        let mut served = Served::start();
        let nfs = served.mount(&format!("vers={version}")).await;
        nfs.unmount().await;
        served.restart();
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert_eq!(nfs.wire_stats().reconnects, 0, "NFSv{version}");
        let asked = tokio::time::timeout(Duration::from_secs(60), nfs.getattr(nfs.root())).await;
        assert_eq!(asked, Ok(Err(weir_vfs::Error::Io)), "NFSv{version}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mount_that_ends_without_its_server_makes_no_more_connections() {
    let mut served = Served::start();
    let mut mounts = Vec::new();
    for version in VERSIONS {
        mounts.push((version, served.mount(&format!("vers={version}")).await));
    }
    served.end();
    let ends = mounts.iter().map(|(_, nfs)| nfs.unmount());
    soon(futures_util::future::join_all(ends)).await;
    let before: Vec<_> = mounts.iter().map(|(_, nfs)| nfs.wire_stats().reconnects).collect();
    served.restart();
    tokio::time::sleep(Duration::from_secs(3)).await;
    for ((version, nfs), before) in mounts.iter().zip(before) {
        assert_eq!(nfs.wire_stats().reconnects, before, "NFSv{version}");
        let asked = soon(nfs.getattr(nfs.root())).await;
        assert_eq!(asked, Err(weir_vfs::Error::Io), "NFSv{version}");
    }
}

#[test]
fn futures_need_no_executor() {
    let served = Served::start();
    let url: NfsUrl = format!("nfs://{}/", served.addr).parse().unwrap();
    let nfs = NfsFs::mount_blocking(&url, &MountOptions::default()).unwrap();
    pollster::block_on(async {
        assert_eq!(nfs.getattr(nfs.root()).await.unwrap().id, nfs.root());
        let fs: Arc<dyn FileSystem> = nfs.clone();
        let file = new_file(&fs, fs.root(), "x").await;
        write(&*file, 0, b"hello").await.unwrap();
        assert_eq!(read_all(&*file, 100).await, b"hello");
        nfs.unmount().await;
    });
}

#[tokio::test]
async fn a_failed_mount_reports_the_reason() {
    let served = Served::start();
    let mount = async |url: String| {
        let url: NfsUrl = url.parse().unwrap();
        let mounted = NfsFs::mount(&url, &MountOptions::default()).await;
        mounted.err().map(|e| e.to_string()).unwrap()
    };
    let addr = served.addr;
    let error = mount(format!("nfs://{addr}/no/such?vers=4.2")).await;
    assert_eq!(error, format!("{addr}: LOOKUP: NFS4ERR_NOENT"));
    let error = mount("nfs://127.0.0.1:1/".into()).await;
    assert!(error.starts_with("cannot reach 127.0.0.1:1: "), "{error}");
    let error = mount(format!("nfs://{addr}/?vers=5")).await;
    assert!(error.contains("vers=5"), "{error}");
}

#[tokio::test]
async fn attributes_are_cached_for_actimeo_and_own_changes_seen() {
    for vers in ["3", "4.2"] {
        let served = Served::start();
        let ours = served.mount(&format!("vers={vers}&actimeo=60")).await;
        let theirs = served.mount(&format!("vers={vers}")).await;
        let (mine, other): (Arc<dyn FileSystem>, Arc<dyn FileSystem>) =
            (ours.clone(), theirs.clone());
        let file = new_file(&mine, mine.root(), "a").await;
        let id = mine.lookup(&Caller::Own, mine.root().entry(b"a")).await.unwrap().id;
        let size = async || mine.getattr(id).await.unwrap().size;
        write(&*file, 0, &[1; 10]).await.unwrap();
        assert_eq!(size().await, 10, "vers={vers}: one's own write");

        let far = other.lookup(&Caller::Own, other.root().entry(b"a")).await.unwrap().id;
        let far = other.open(&Caller::Own, far, Access::WRITE).await.unwrap();
        write(&*far, 10, &[2; 10]).await.unwrap();
        let before = ours.wire_stats().sent_bytes;
        assert_eq!(size().await, 10, "vers={vers}: known");
        assert_eq!(ours.wire_stats().sent_bytes, before, "vers={vers}: nothing was asked");
        let opened = mine.open(&Caller::Own, id, Access::READ).await.unwrap();
        assert_eq!(opened.getattr().await.unwrap().size, 20, "vers={vers}: an open looks");
        assert_eq!(size().await, 20, "vers={vers}: and what it saw is known");

        mine.link(&Caller::Own, id, mine.root().entry(b"b")).await.unwrap();
        let links = mine.getattr(id).await.unwrap().nlink;
        assert_eq!(links, 2, "vers={vers}: one's own link");
        let mode = |mode, mode_mask| SetAttr { mode: Some(mode), mode_mask, ..SetAttr::default() };
        let far = other.lookup(&Caller::Own, other.root().entry(b"b")).await.unwrap().id;
        other.setattr(&Caller::Own, far, &mode(0o4600, None)).await.unwrap();
        let some = mine.setattr(&Caller::Own, id, &mode(0, Some(0o4000))).await.unwrap();
        assert_eq!(some.mode, 0o600, "vers={vers}: what another has set stays");
        for nfs in [ours, theirs] {
            nfs.unmount().await;
        }
    }
}

#[tokio::test]
async fn uncached_reads_leave_nothing_in_the_servers_cache() {
    for (options, uncached) in [("vers=4.2", false), ("vers=4.2&uncached", true)] {
        let served = Served::start();
        let nfs = served.mount(options).await;
        let fs: Arc<dyn FileSystem> = nfs.clone();
        let file = new_file(&fs, fs.root(), "a").await;
        write(&*file, 0, &[7; 1 << 20]).await.unwrap();
        assert_eq!(read_all(&*file, 256 << 10).await, [7; 1 << 20]);
        drop(file);
        nfs.unmount().await;
        let stats = served.cache.as_ref().unwrap().stats();
        assert_eq!(stats.uncached_pages > 0, uncached, "{options}: {stats:?}");
        assert_eq!(stats.pruned_pages, stats.uncached_pages, "{options}");
    }
}

#[tokio::test]
async fn a_mount_of_v3_is_on_the_servers_list_until_it_is_unmounted() {
    let served = Served::start();
    let nfs = served.mount("vers=3").await;
    assert_eq!(mounts(served.addr), 1);
    nfs.unmount().await;
    assert_eq!(mounts(served.addr), 0);
}

/// How many mounts the server's MOUNT service lists.
fn mounts(addr: SocketAddr) -> usize {
    let mut e = start_record();
    e.put(&CallHeader {
        xid: 1,
        program: mount::PROGRAM,
        version: mount::VERSION,
        procedure: mount::Procedure::Dump as u32,
        cred: OpaqueAuth::NONE,
        verf: OpaqueAuth::NONE,
    });
    let mut stream = std::net::TcpStream::connect(addr).unwrap();
    stream.write_all(&finish_record(e).to_bytes()).unwrap();
    let mut head = [0; 4];
    stream.read_exact(&mut head).unwrap();
    let mut record = vec![0; (u32::from_be_bytes(head) & 0x7FFF_FFFF) as usize];
    stream.read_exact(&mut record).unwrap();
    let mut d = Decoder::new(record.into());
    d.get::<ReplyHeader>().unwrap();
    d.get::<Chain<mount::Mounted>>().unwrap().0.len()
}

const ONE: LockOwner = LockOwner(1);

fn exclusive(start: u64, end: u64) -> Lock {
    Lock { range: LockRange { start, end }, exclusive: true }
}

#[tokio::test]
async fn locks_of_all_versions_conflict() {
    let served = Served::start();
    let first = served.mount("vers=4.2").await;
    let fs: Arc<dyn FileSystem> = first.clone();
    drop(new_file(&fs, fs.root(), "file").await);
    let mut files = Vec::new();
    for version in VERSIONS {
        let nfs = served.mount(&format!("vers={version}")).await;
        files.push(opened(&nfs, b"file").await);
    }
    for (i, holder) in files.iter().enumerate() {
        holder.lock(ONE, exclusive(10, 20), false).await.unwrap();
        for (j, other) in files.iter().enumerate().filter(|(j, _)| *j != i) {
            let pair = (VERSIONS[i], VERSIONS[j]);
            let denied = other.lock(ONE, exclusive(19, 21), false).await;
            assert_eq!(denied, Err(weir_vfs::Error::WouldBlock), "{pair:?}");
            let found = other.test_lock(ONE, exclusive(0, 100)).await;
            assert_eq!(found, Ok(Some(exclusive(10, 20))), "{pair:?}");
        }
        holder.unlock(ONE, LockRange::ALL).await.unwrap();
    }
}

/// Any number of owners come and go while the file stays open and locked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unused_lock_owners_are_released_at_the_server() {
    let mut served = Served::start();
    // A client alone has half of it.
    served.locks = 8;
    served.restart();
    for version in ["4.0", "4.1", "4.2"] {
        let nfs = served.mount(&format!("vers={version}")).await;
        let fs: Arc<dyn FileSystem> = nfs.clone();
        let stays = new_file(&fs, fs.root(), version).await;
        stays.lock(ONE, exclusive(0, 1), false).await.unwrap();
        for i in 1..20 {
            let file = opened(&nfs, version.as_bytes()).await;
            // A server without room makes its clients ask again.
            let lock = file.lock(ONE, exclusive(i, i + 1), false);
            let locked = soon(lock).await;
            assert_eq!(locked, Ok(()), "NFSv{version}: lock {i}");
        }
        let whole = stays.lock(ONE, exclusive(0, 40), true);
        soon(whole).await.unwrap();
        nfs.unmount().await;
    }
}

/// Deferred requests are sent before the mount ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_stays_locked_or_hidden_when_the_mount_ends() {
    let mut served = Served::start();
    let slow = Fault::over(Arc::clone(&served.store), 1);
    let what = What::Delay(Duration::from_millis(100));
    slow.add(Rule { call: Call::Unlink, when: When::Always, what });
    served.store = slow;
    served.restart();
    let other = served.mount("vers=4.2").await;
    let fs: Arc<dyn FileSystem> = other.clone();
    let locked = new_file(&fs, fs.root(), "locked").await;
    for round in 0..2 {
        for version in VERSIONS {
            let nfs = served.mount(&format!("vers={version}")).await;
            let mine: Arc<dyn FileSystem> = nfs.clone();
            let gone = new_file(&mine, mine.root(), "gone").await;
            mine.unlink(&Caller::Own, mine.root().entry(b"gone")).await.unwrap();
            let file = opened(&nfs, b"locked").await;
            file.lock(ONE, exclusive(0, 10), false).await.unwrap();
            // Dropped before, or not.
            let kept = (round % 2 == 0).then_some((file, gone));
            nfs.unmount().await;
            let found = locked.test_lock(ONE, exclusive(0, 10)).await;
            assert_eq!(found, Ok(None), "NFSv{version}, round {round}");
            let page = fs
                .readdir(
                    &Caller::Own,
                    ReaddirRequest { dir: fs.root(), cookie: 0, max_entries: 10, with_attr: false },
                )
                .await
                .unwrap();
            let names: Vec<_> = page.entries.into_iter().map(|entry| entry.name).collect();
            assert_eq!(names, [b"locked"], "NFSv{version}, round {round}");
            drop(kept);
        }
    }
}

/// Locks held when the server ended without warning are still held afterwards, and no other owner
/// gets them in between.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_survive_a_restart_of_the_server() {
    for version in VERSIONS {
        let mut served = Served::start();
        (served.grace, served.lease) = (Duration::from_secs(4), Duration::from_secs(6));
        served.clock = Some(Arc::default());
        served.restart();
        let nfs = served.mount(&format!("vers={version},timeo=20")).await;
        let fs: Arc<dyn FileSystem> = nfs.clone();
        let file = new_file(&fs, fs.root(), "file").await;
        file.lock(ONE, exclusive(0, 10), false).await.unwrap();
        file.lock(LockOwner(2), exclusive(20, 30), false).await.unwrap();
        served.restart();
        let other = served.mount("vers=4.2").await;
        // Waits for the end of the grace period.
        let opening = tokio::spawn(async move { opened(&other, b"file").await });
        soon(served.reclaimed(2)).await;
        let theirs = soon(opening).await.unwrap();
        let denied = theirs.lock(ONE, exclusive(5, 6), false).await;
        assert_eq!(denied, Err(weir_vfs::Error::WouldBlock), "NFSv{version}");
        let denied = theirs.lock(ONE, exclusive(25, 26), false).await;
        assert_eq!(denied, Err(weir_vfs::Error::WouldBlock), "NFSv{version}");
        theirs.lock(ONE, exclusive(10, 20), false).await.unwrap();
        write(&*file, 0, b"still mine").await.unwrap();
        file.unlock(ONE, LockRange::ALL).await.unwrap();
        theirs.lock(ONE, exclusive(5, 6), false).await.unwrap();
        assert_eq!(file.lock(ONE, exclusive(0, 10), false).await, Err(weir_vfs::Error::WouldBlock));
    }
}
