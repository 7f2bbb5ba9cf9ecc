//! Files by path, in every version, over Weir's own server.

mod common;

use common::Served;
use common::between::Between;
use futures_util::TryStreamExt;
use futures_util::future::maybe_done;
use std::io::{ErrorKind, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncSeekExt, AsyncWriteExt};
use weir_client::{
    Error, Export, LockRange, MountOptions, OpenOptions, PathError, RenameFlags, SegmentKind,
};
use weir_nfs::v4::OpCode;
use weir_stores::fault::{Call, Fault, Rule, What, When};
use weir_stores::memory::MemoryFs;
use weir_vfs::{Caller, CreateMode, FileSystem, SetAttr};

const VERSIONS: [&str; 3] = ["3", "4.0", "4.2"];

async fn connect(addr: impl std::fmt::Display, options: &str) -> Export {
    Export::connect(&format!("nfs://{addr}/?{options}")).await.unwrap()
}

/// An export in each version, with the version.
async fn each(served: &Served) -> Vec<(&'static str, Export)> {
    let mut exports = Vec::new();
    for version in VERSIONS {
        exports.push((version, connect(served.addr, &format!("vers={version}")).await));
    }
    exports
}

fn kind<T: std::fmt::Debug>(outcome: std::io::Result<T>) -> ErrorKind {
    outcome.unwrap_err().kind()
}

/// The errno of an operation that fails.
fn errno<T: std::fmt::Debug>(outcome: std::io::Result<T>) -> i32 {
    let error = outcome.unwrap_err();
    PathError::of(&error).unwrap_or_else(|| panic!("{error:?}")).errno()
}

const ENOENT: i32 = 2;
const EEXIST: i32 = 17;
const EXDEV: i32 = 18;
const ENOTDIR: i32 = 20;
const EISDIR: i32 = 21;
const EINVAL: i32 = 22;
const ENOTEMPTY: i32 = 39;
const ELOOP: i32 = 40;

#[tokio::test]
async fn names_are_made_renamed_and_removed_in_every_version() {
    let served = Served::start();
    for (version, export) in each(&served).await {
        let dir = PathBuf::from(format!("v{version}"));
        export.create_dir_all(dir.join("a/b/c/")).await.unwrap();
        export.create_dir_all(dir.join("a/b/c")).await.unwrap();
        let at = |name: &str| dir.join("a/b").join(name);

        export.write(at("file"), "first").await.unwrap();
        export.write(at("file"), "2nd").await.unwrap();
        assert_eq!(export.read(at("file")).await.unwrap(), "2nd");
        assert_eq!(export.metadata(at("file")).await.unwrap().len(), 3);
        export.set_permissions(at("file"), 0o640).await.unwrap();
        assert_eq!(export.metadata(at("file")).await.unwrap().mode(), 0o640);

        export.hard_link(at("file"), at("second")).await.unwrap();
        assert_eq!(export.metadata(at("second")).await.unwrap().attr().nlink, 2);
        assert_eq!(errno(export.hard_link(at("file"), at("second")).await), EEXIST);
        export.symlink("../b/file", at("link")).await.unwrap();
        assert_eq!(export.read_link(at("link")).await.unwrap(), Path::new("../b/file"));
        assert_eq!(export.read(at("link")).await.unwrap(), "2nd");
        assert!(export.symlink_metadata(at("link")).await.unwrap().is_symlink());
        assert_eq!(
            export.canonicalize(at("c/../link")).await.unwrap(),
            Path::new("/").join(at("file"))
        );

        export.rename(at("file"), at("c/moved")).await.unwrap();
        assert!(!export.try_exists(at("link")).await.unwrap(), "a broken link");
        let onto = export.rename_with(at("second"), at("c/moved"), RenameFlags::NoReplace).await;
        assert_eq!(errno(onto), EEXIST);
        export.remove_file(at("link")).await.unwrap();
        assert_eq!(errno(export.remove_dir(at("c")).await), ENOTEMPTY);
        assert_eq!(errno(export.remove_file(at("c")).await), EISDIR);
        export.remove_file(at("c/moved")).await.unwrap();
        export.remove_dir(at("c")).await.unwrap();
        assert_eq!(errno(export.remove_dir(at("c")).await), ENOENT);

        export.symlink("../..", at("up")).await.unwrap();
        export.remove_dir_all(dir.join("a")).await.unwrap();
        assert!(export.try_exists(&dir).await.unwrap(), "what a link leads to stays");
        assert!(!export.try_exists(dir.join("a")).await.unwrap());
    }
}

#[tokio::test]
async fn open_options_create_truncate_and_exclude_as_std_does() {
    let served = Served::start();
    for (version, export) in each(&served).await {
        let name = format!("file-{version}");
        let new = OpenOptions::new().write(true).create_new(true).mode(0o600);
        export.open_with(&name, &new).await.unwrap().write_at(0, "text").await.unwrap();
        assert_eq!(errno(export.open_with(&name, &new).await.map(drop)), EEXIST);
        assert_eq!(export.metadata(&name).await.unwrap().mode(), 0o600);
        let kept = OpenOptions::new().write(true).create(true);
        export.open_with(&name, &kept).await.unwrap().write_at(4, "!").await.unwrap();
        assert_eq!(export.read(&name).await.unwrap(), "text!");
        drop(export.create(&name).await.unwrap());
        assert_eq!(export.metadata(&name).await.unwrap().len(), 0);

        // Through a link whose target does not exist yet; `create_new` does not follow it.
        let (link, target) = (format!("link-{version}"), format!("target-{version}"));
        export.symlink(&target, &link).await.unwrap();
        assert_eq!(errno(export.open_with(&link, &new).await.map(drop)), EEXIST);
        export.write(&link, "through").await.unwrap();
        assert_eq!(export.read(&target).await.unwrap(), "through");

        assert_eq!(errno(export.open("none").await.map(drop)), ENOENT);
        assert_eq!(errno(export.open("/").await.map(drop)), EISDIR);
        assert_eq!(errno(export.create(format!("{name}/")).await.map(drop)), EISDIR);
        assert_eq!(errno(export.open(format!("{name}/")).await.map(drop)), ENOTDIR);
        let senseless = OpenOptions::new().read(true).truncate(true);
        assert_eq!(errno(export.open_with(&name, &senseless).await.map(drop)), EINVAL);
    }
}

#[tokio::test]
async fn paths_resolve_as_on_a_mount() {
    let served = Served::start();
    for (version, export) in each(&served).await {
        let top = format!("top-{version}");
        let at = |name: &str| format!("{top}/{name}");
        export.create_dir_all(at("dir/below")).await.unwrap();
        export.write(at("dir/file"), "f").await.unwrap();
        for (target, link) in [
            ("dir", "to-dir"),
            ("dir/", "to-dir-slash"),
            ("dir/file", "to-file"),
            ("dir/file/", "to-file-slash"),
            ("loop-b", "loop-a"),
            ("loop-a", "loop-b"),
            ("../../outside", "out"),
            ("/etc/passwd", "absolute"),
        ] {
            export.symlink(target, at(link)).await.unwrap();
        }
        for same in [
            "to-dir/file",
            "./dir/./below/../file",
            "to-dir/below/../file",
            "to-dir-slash/file",
            "to-file",
            "//dir//file",
        ] {
            assert_eq!(export.read(at(same)).await.unwrap(), "f", "{same}");
        }
        for (path, expected) in [
            ("loop-a", ELOOP),
            ("loop-a/x", ELOOP),
            ("to-file-slash", ENOTDIR),
            ("to-file/", ENOTDIR),
            ("dir/file/.", ENOTDIR),
            ("dir/file/..", ENOTDIR),
            ("dir/file/x", ENOTDIR),
            ("dir/none/x", ENOENT),
            ("out", EXDEV),
            ("absolute", EXDEV),
            ("../..", EXDEV),
        ] {
            assert_eq!(errno(export.metadata(at(path)).await), expected, "{path}");
        }
        assert_eq!(errno(export.metadata("").await), ENOENT);
        assert!(export.metadata("/").await.unwrap().is_dir());
        assert!(export.metadata(".").await.unwrap().is_dir());
        // A slash after a link follows it, except where its name is to be changed.
        assert!(export.symlink_metadata(at("to-dir")).await.unwrap().is_symlink());
        assert!(export.symlink_metadata(at("to-dir/")).await.unwrap().is_dir());
        assert_eq!(errno(export.remove_file(at("to-file/")).await), ENOTDIR);
        assert_eq!(errno(export.remove_dir(at("to-dir/")).await), ENOTDIR);
        assert_eq!(errno(export.remove_dir_all(at("to-dir/")).await), ENOTDIR);
        assert_eq!(errno(export.rename(at("to-file/"), at("x")).await), ENOTDIR);
        assert_eq!(errno(export.symlink("x", at("new/")).await), ENOENT);
        assert_eq!(errno(export.create_dir(at("to-dir/")).await), EEXIST);
        export.create_dir(at("new/")).await.unwrap();
        export.rename(at("new/"), at("renamed/")).await.unwrap();
        assert_eq!(kind(export.metadata(at("a\0b")).await), ErrorKind::InvalidInput);
    }
}

#[tokio::test]
async fn forty_links_are_followed_and_no_more() {
    let served = Served::start();
    let export = connect(served.addr, "vers=4.2").await;
    export.write("0", "end").await.unwrap();
    for n in 1..=41 {
        export.symlink((n - 1).to_string(), n.to_string()).await.unwrap();
    }
    assert_eq!(export.read("40").await.unwrap(), "end");
    assert_eq!(errno(export.read("41").await), ELOOP);
}

#[tokio::test]
async fn a_deep_path_takes_one_request() {
    let served = Served::start();
    let between = Between::to(served.addr).await;
    let export = connect(between.addr, "vers=4.2").await;
    let other = connect(served.addr, "vers=4.2").await;
    other.create_dir_all("1/2/3/4/5/6/7").await.unwrap();
    other.write("1/2/3/4/5/6/7/file", "x").await.unwrap();
    other.close().await;
    between.take_compounds();
    assert_eq!(export.metadata("1/2/3/4/5/6/7/file").await.unwrap().len(), 1);
    assert_eq!(between.take_compounds(), 1);
    // The look-up, and one that reads.
    assert_eq!(export.read("1/2/3/4/5/6/7/file").await.unwrap(), "x");
    assert_eq!(between.take_compounds(), 2);
}

#[tokio::test]
async fn errors_name_path_server_operation_and_status() {
    let store = Fault::over(MemoryFs::new(), 1);
    let mut served = Served::start();
    served.store = store.clone();
    served.restart();
    for (version, status) in [("3", "NFS3ERR_NOENT"), ("4.2", "NFS4ERR_NOENT")] {
        let export = connect(served.addr, &format!("vers={version}")).await;
        let error = export.open("no/file").await.map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        let failure = PathError::of(&error).unwrap();
        assert_eq!((failure.operation(), failure.path()), ("open", Path::new("no/file")));
        let Error::Status { server, status: found, .. } = failure.cause() else {
            panic!("{failure:?}")
        };
        assert_eq!((&**server, &**found), (&*served.addr.to_string(), status));
        let text = error.to_string();
        assert!(text.starts_with("cannot open \"no/file\" in nfs://127.0.0.1:"), "{text}");
        assert!(text.ends_with(status), "{text}");

        // Errors of data, which complete elsewhere.
        let file = export.create(format!("file-{version}")).await.unwrap();
        let fail = What::Fail(weir_vfs::Error::NoSpace);
        store.add(Rule { call: Call::Write, when: When::Always, what: fail });
        let error = file.write_at(0, vec![1; 4096]).await.unwrap_err();
        store.clear();
        assert_eq!(error.kind(), ErrorKind::StorageFull);
        let cause = PathError::of(&error).unwrap().cause().to_string();
        assert!(cause.contains("NOSPC"), "{cause}");
        let error = export.rename("none", "other").await.unwrap_err();
        let failure = PathError::of(&error).unwrap();
        assert_eq!(failure.to(), Some(Path::new("other")));
    }
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|n| (n % 251) as u8).collect()
}

#[tokio::test]
async fn a_file_is_a_stream_with_a_position() {
    let served = Served::start();
    for (version, export) in each(&served).await {
        let bytes = pattern((5 << 20) + 123);
        let mut file = export.create(format!("stream-{version}")).await.unwrap();
        for part in bytes.chunks(300_000) {
            file.write_all(part).await.unwrap();
        }
        // What was written is read, flushed or not.
        file.seek(SeekFrom::Start(1 << 20)).await.unwrap();
        let mut part = vec![0; 100];
        file.read_exact(&mut part).await.unwrap();
        assert_eq!(part, bytes[1 << 20..][..100]);
        file.write_all(b"here").await.unwrap();
        file.read_exact(&mut part).await.unwrap();
        assert_eq!(part, bytes[(1 << 20) + 104..][..100]);
        let mut bytes = bytes;
        bytes[(1 << 20) + 100..][..4].copy_from_slice(b"here");
        assert_eq!(file.seek(SeekFrom::End(-3)).await.unwrap(), bytes.len() as u64 - 3);
        assert_eq!(file.seek(SeekFrom::Current(-7)).await.unwrap(), bytes.len() as u64 - 10);
        assert!(file.seek(SeekFrom::Current(-(1 << 40))).await.is_err());
        file.sync_all().await.unwrap();
        file.rewind().await.unwrap();
        let mut all = Vec::new();
        file.read_to_end(&mut all).await.unwrap();
        assert!(all == bytes, "{version}");
        // A change at an offset is seen by a stream that has read ahead.
        file.rewind().await.unwrap();
        file.read_exact(&mut part).await.unwrap();
        file.write_at(200, "changed").await.unwrap();
        file.read_exact(&mut part).await.unwrap();
        file.read_exact(&mut part).await.unwrap();
        assert_eq!(&part[..7], b"changed");
        assert_eq!(file.read_at(200, 7).await.unwrap(), "changed");
        assert_eq!(file.read_at(all.len() as u64 - 1, usize::MAX).await.unwrap().len(), 1);
        assert_eq!(file.read_at(1 << 40, 10).await.unwrap().len(), 0);
        // Long reads and writes are split.
        file.write_at(7, bytes.clone()).await.unwrap();
        assert!(file.read_at(7, usize::MAX).await.unwrap() == bytes);
    }
}

#[tokio::test]
async fn failures_of_collected_writes_are_reported_and_a_drop_sends_the_rest() {
    let store = Fault::over(MemoryFs::new(), 1);
    let mut served = Served::start();
    served.store = store.clone();
    served.restart();
    let export = connect(served.addr, "vers=4.2").await;
    let mut file = export.create("full").await.unwrap();
    let fail = What::Fail(weir_vfs::Error::NoSpace);
    store.add(Rule { call: Call::Write, when: When::Always, what: fail });
    file.write_all(b"lost").await.unwrap();
    assert_eq!(kind(file.flush().await), ErrorKind::StorageFull);
    store.clear();
    file.flush().await.unwrap();
    file.write_all(b"sent").await.unwrap();
    drop(file);
    export.clone().close().await;
    let again = connect(served.addr, "vers=4.2").await;
    assert_eq!(&again.read("full").await.unwrap()[4..], b"sent");
}

#[tokio::test]
async fn directories_are_streams_of_entries() {
    let served = Served::start();
    for (version, export) in each(&served).await {
        let top = PathBuf::from(format!("top-{version}"));
        export.create_dir_all(top.join("dir/below")).await.unwrap();
        export.write(top.join("0"), "").await.unwrap();
        let links =
            (1..1500).map(|n: usize| export.hard_link(top.join("0"), top.join(n.to_string())));
        futures_util::future::try_join_all(links).await.unwrap();
        export.write(top.join("dir/below/x"), "123").await.unwrap();
        export.symlink("dir", top.join("link")).await.unwrap();
        let entries: Vec<_> = export.read_dir(&top).await.unwrap().try_collect().await.unwrap();
        assert_eq!(entries.len(), 1502);
        let mut walked: Vec<_> = export
            .walk(&top)
            .await
            .unwrap()
            .try_filter(|entry| std::future::ready(entry.metadata().attr().nlink < 3))
            .map_ok(|entry| (entry.depth(), entry.path().to_path_buf(), entry.metadata().len()))
            .try_collect()
            .await
            .unwrap();
        walked.retain(|(depth, path, _)| *depth > 0 || path.ends_with("link"));
        walked.sort();
        let shown: Vec<_> = walked.iter().map(|(depth, path, _)| (*depth, path.clone())).collect();
        let expected =
            [(0, top.join("link")), (1, top.join("dir/below")), (2, top.join("dir/below/x"))];
        assert_eq!(shown, expected);
        assert_eq!(walked[2].2, 3);
        assert_eq!(errno(export.read_dir(top.join("0")).await.map(drop)), ENOTDIR);
        // More names than one request returns.
        export.remove_dir_all(&top).await.unwrap();
        assert!(!export.try_exists(&top).await.unwrap());
    }
}

#[tokio::test]
async fn an_operation_past_its_time_limit_leaves_no_open_and_no_slot() {
    let store = Fault::over(MemoryFs::new(), 1);
    let mut served = Served::start();
    served.store = store.clone();
    served.restart();
    let between = Between::to(served.addr).await;
    let export = connect(between.addr, "vers=4.2").await;
    export.write("file", pattern(8192)).await.unwrap();
    let limited = export.with_time_limit(Duration::from_millis(50));
    // More creations than a session has slots, held at the server, are given up.
    store.add(Rule { call: Call::Create, when: When::Always, what: What::Hold });
    let given_up = (0..400).map(|n| {
        let limited = limited.clone();
        async move { limited.create(format!("late-{n}")).await.map(drop).unwrap_err() }
    });
    for error in futures_util::future::join_all(given_up).await {
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        let cause = PathError::of(&error).unwrap().cause().clone();
        assert!(matches!(cause, Error::TimedOut { operation: "open", .. }), "{cause}");
    }
    store.clear();
    store.release();

    // An open that the caller has given up is closed again when it arrives. The server has no open of
    // this file yet that it could use.
    let set = SetAttr::default();
    let new = store.root().entry(b"unopened").with(&set);
    store.create(&Caller::Own, new, CreateMode::MustBeNew).await.unwrap();
    store.add(Rule { call: Call::Open, when: When::Always, what: What::Hold });
    let opening = limited.open("unopened").await.map(drop);
    assert_eq!(kind(opening), ErrorKind::TimedOut);
    store.clear();
    store.release();

    // Every slot is free again: as many calls as there are slots make progress at the same time.
    let reads = (0..300).map(|_| export.metadata("file"));
    futures_util::future::try_join_all(reads).await.unwrap();
    // The closes of what was given up are sent in the background.
    let mut counts = (0, 0);
    let closed = async {
        while counts.0 == 0 || counts.0 != counts.1 {
            tokio::time::sleep(Duration::from_millis(10)).await;
            counts.0 += between.take_count(OpCode::Open);
            counts.1 += between.take_count(OpCode::Close);
        }
    };
    let closed = tokio::time::timeout(Duration::from_secs(120), closed).await;
    assert!(closed.is_ok(), "{counts:?}");
    export.close().await;
    counts.0 += between.take_count(OpCode::Open);
    counts.1 += between.take_count(OpCode::Close);
    assert_eq!(counts.0, counts.1);
}

#[tokio::test]
async fn requests_run_on_the_programs_own_runtime() {
    let served = Served::start();
    let url = format!("nfs://{}/", served.addr).parse().unwrap();
    // This test's runtime has one thread: a request on it runs only while the test waits.
    let handle = tokio::runtime::Handle::current();
    let export = Export::connect_on(handle, &url, &MountOptions::default()).await.unwrap();
    let tasks = tokio::runtime::Handle::current().metrics().num_alive_tasks();
    assert!(tasks > 0, "the connection's receiver");
    let mut file = export.create("file").await.unwrap();
    file.write_all(&pattern(3 << 20)).await.unwrap();
    file.sync_all().await.unwrap();
    drop(file);
    assert!(export.read("file").await.unwrap() == pattern(3 << 20));
    export.close().await;
}

#[tokio::test]
async fn a_copy_is_made_by_the_server() {
    let served = Served::start();
    let between = Between::to(served.addr).await;
    let export = connect(between.addr, "vers=4.2").await;
    let file = export.create("from").await.unwrap();
    file.write_at(0, pattern(100_000)).await.unwrap();
    file.write_at(8 << 20, "far").await.unwrap();
    file.set_len(16 << 20).await.unwrap();
    file.set_permissions(0o604).await.unwrap();
    for op in [OpCode::Read, OpCode::ReadPlus, OpCode::Write] {
        between.take_count(op);
    }
    assert_eq!(export.copy("from", "to").await.unwrap(), 16 << 20);
    for op in [OpCode::Read, OpCode::ReadPlus, OpCode::Write] {
        assert_eq!(between.take_count(op), 0, "{op:?}");
    }
    assert_eq!(errno(export.copy("from", "./from").await), EINVAL);
    assert_eq!(export.metadata("from").await.unwrap().len(), 16 << 20);

    // By reading and writing, where the version has no copies.
    let old = connect(served.addr, "vers=3").await;
    assert_eq!(old.copy("from", "old").await.unwrap(), 16 << 20);
    for copy in ["to", "old"] {
        assert_eq!(export.metadata(copy).await.unwrap().mode(), 0o604);
        let (from, to) = (export.read("from").await.unwrap(), export.read(copy).await.unwrap());
        assert!(from == to, "{copy}");
    }
    let to = export.open("to").await.unwrap();
    assert_eq!(to.extent_at(4 << 20).await.unwrap().unwrap().kind, SegmentKind::Hole);
    assert_eq!(to.next_data(4 << 20).await.unwrap().unwrap().start, 8 << 20);
    assert_eq!(to.next_data(15 << 20).await.unwrap(), None);
    assert_eq!(to.extent_at(16 << 20).await.unwrap(), None);
}

#[tokio::test]
async fn locks_of_two_exports_conflict() {
    let served = Served::start();
    let (one, two) = (connect(served.addr, "").await, connect(served.addr, "").await);
    let mine = one.create("file").await.unwrap();
    let options = OpenOptions::new().read(true).write(true);
    let other = Arc::new(two.open_with("file", &options).await.unwrap());
    assert!(mine.try_lock(LockRange::ALL, true).await.unwrap());
    assert!(!other.try_lock(LockRange::ALL, false).await.unwrap());
    let waits = Arc::clone(&other);
    let waiting = tokio::spawn(async move { waits.lock(LockRange::ALL, true).await });
    mine.unlock(LockRange::ALL).await.unwrap();
    waiting.await.unwrap().unwrap();
    assert!(!mine.try_lock(LockRange::ALL, true).await.unwrap());
}

#[tokio::test]
async fn a_lock_orders_the_streams_of_two_exports() {
    let served = Served::start();
    for version in VERSIONS {
        let options = format!("vers={version}");
        let (one, two) =
            (connect(served.addr, &options).await, connect(served.addr, &options).await);
        let mut mine = one.create(version).await.unwrap();
        mine.write_all(b"old").await.unwrap();
        mine.flush().await.unwrap();
        let both = OpenOptions::new().read(true).write(true);
        let mut other = two.open_with(version, &both).await.unwrap();
        let mut byte = [0];
        other.read_exact(&mut byte).await.unwrap();

        mine.lock(LockRange::ALL, true).await.unwrap();
        mine.rewind().await.unwrap();
        mine.write_all(b"new").await.unwrap();
        // Without a flush of its own.
        mine.unlock(LockRange::ALL).await.unwrap();
        other.lock(LockRange::ALL, false).await.unwrap();
        let mut rest = [0; 2];
        other.read_exact(&mut rest).await.unwrap();
        assert_eq!((&byte, &rest), (b"o", b"ew"), "{version}");
    }
}

#[tokio::test]
async fn a_copy_of_a_source_that_shrinks_and_grows_has_no_invented_zeros() {
    let served = Served::start();
    let between = Between::to(served.addr).await;
    let (export, direct) =
        (connect(between.addr, "vers=4.1").await, connect(served.addr, "vers=4.1").await);
    direct.write("from", pattern(2 << 20)).await.unwrap();
    let source = direct.open_with("from", &OpenOptions::new().write(true)).await.unwrap();
    let reads = between.cut_at(OpCode::Read);
    let copier = export.clone();
    let copy = tokio::spawn(async move { copier.copy("from", "to").await });
    reads.await;
    source.set_len(500_000).await.unwrap();
    let writes = between.cut_at(OpCode::Write);
    between.go_on();
    writes.await;
    // What was read is written now; the size is asked last.
    source.write_at(500_000, pattern(1_000_000)).await.unwrap();
    between.go_on();
    let size = copy.await.unwrap().unwrap();
    let (from, to) = (direct.read("from").await.unwrap(), direct.read("to").await.unwrap());
    assert_eq!(to.len() as u64, size);
    assert!(from.starts_with(&to), "of {} bytes, {size} were copied", from.len());
}

#[tokio::test]
async fn extended_attributes_are_read_and_set_by_path() {
    let served = Served::start();
    let export = connect(served.addr, "vers=4.2").await;
    export.write("file", "").await.unwrap();
    export.set_xattr("file", "user.origin", Some(b"here")).await.unwrap();
    assert_eq!(export.xattr("file", "user.origin").await.unwrap(), "here");
    assert_eq!(export.xattrs("file").await.unwrap(), ["user.origin"]);
    export.set_xattr("file", "user.origin", None).await.unwrap();
    assert!(export.xattr("file", "user.origin").await.is_err());
    const E2BIG: i32 = 7;
    let long = vec![b'x'; 70_000];
    assert_eq!(errno(export.set_xattr("file", "user.long", Some(&long)).await), E2BIG);
}

#[tokio::test]
async fn unpolled_reads_do_not_stop_other_requests() {
    let served = Served::start();
    let export = connect(served.addr, "vers=4.2").await;
    export.write("file", "data").await.unwrap();
    let file = export.open("file").await.unwrap();
    // More than twice as many as a mount sends at a time: the second half waits for the first.
    let mut reads: Vec<_> = (0..1000).map(|_| Box::pin(maybe_done(file.read_at(0, 4)))).collect();
    poll_each_once(&mut reads).await;
    let other = export.create("other").await.unwrap();
    let write = tokio::time::timeout(Duration::from_secs(120), other.write_at(0, "data"));
    write.await.expect("the write waits for reads that are not polled").unwrap();
    for mut read in reads {
        read.as_mut().await;
        assert_eq!(read.as_mut().take_output().unwrap().unwrap(), "data");
    }
}

#[tokio::test]
async fn a_dropped_file_sends_writes_that_wait_for_their_turn() {
    let served = Served::start();
    let between = Between::to(served.addr).await;
    let export = connect(between.addr, "vers=4.1").await;
    export.write("busy", "data").await.unwrap();
    let busy = export.open("busy").await.unwrap();
    let mut file = export.create("file").await.unwrap();
    let arrived = between.cut_at(OpCode::Read);
    // Every turn of the mount is taken by a read that the server does not get yet.
    let mut reads: Vec<_> = (0..300).map(|_| Box::pin(maybe_done(busy.read_at(0, 4)))).collect();
    poll_each_once(&mut reads).await;
    arrived.await;
    let written = pattern((1 << 20) + 1);
    file.write_all(&written).await.unwrap();
    drop(file);
    between.go_on();
    for read in reads {
        read.await;
    }
    let direct = connect(served.addr, "vers=4.1").await;
    let sent = async {
        while direct.read("file").await.unwrap() != written {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(120), sent).await.expect("a write is lost");
}

#[tokio::test]
async fn unpolled_calls_do_not_stop_other_calls() {
    let served = Served::start();
    let export = connect(served.addr, "vers=3,actimeo=0").await;
    export.write("file", "data").await.unwrap();
    // Twice as many as a mount has in progress at a time.
    let call = |_| Box::pin(maybe_done(export.metadata("file")));
    let mut calls: Vec<_> = (0..8192).map(call).collect();
    poll_each_once(&mut calls).await;
    let other = tokio::time::timeout(Duration::from_secs(60), export.try_exists("file"));
    assert!(other.await.expect("the call waits for calls that are not polled").unwrap());
    for mut call in calls {
        call.as_mut().await;
        assert_eq!(call.as_mut().take_output().unwrap().unwrap().len(), 4);
    }
}

/// Polls each future once, as a program does that then awaits something else.
async fn poll_each_once<F: Future<Output = ()>>(futures: &mut [std::pin::Pin<Box<F>>]) {
    std::future::poll_fn(|cx| {
        for future in &mut *futures {
            // A quick one may be done.
            let _ = future.as_mut().poll(cx);
        }
        std::task::Poll::Ready(())
    })
    .await;
}

#[test]
fn programs_without_an_executor_block() {
    use std::io::{Read, Seek, Write};
    use weir_client::blocking;
    let served = Served::start();
    let url = format!("nfs://{}/", served.addr);
    let export = blocking::Export::connect(&url).unwrap();
    export.create_dir("dir").unwrap();
    let mut file = export.create("dir/file").unwrap();
    file.write_all(&pattern(2 << 20)).unwrap();
    file.rewind().unwrap();
    let mut all = Vec::new();
    file.read_to_end(&mut all).unwrap();
    assert!(all == pattern(2 << 20));
    drop(file);
    let names: Vec<_> = export.walk("/").unwrap().map(|entry| entry.unwrap().depth()).collect();
    assert_eq!(names, [0, 1]);
    let exported = blocking::exports(&url.parse().unwrap(), &MountOptions::default()).unwrap();
    assert_eq!(exported[0].path, b"/");
    let limited = export.with_time_limit(Duration::from_secs(60));
    assert_eq!(errno(limited.read("dir")), EISDIR);
    export.remove_dir_all("dir").unwrap();
    export.close();
}
