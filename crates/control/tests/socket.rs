//! A process with files in memory, asked through its socket.

use pollster::block_on;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use weir_control::{
    Action, Asked, FileStatus, Listener, Process, Reply, Request, Status, ask, processes,
};
use weir_pagecache::{Cache, CachedFs, Config};
use weir_stores::memory::MemoryFs;
use weir_stores::testing::Endless;
use weir_vfs::{Access, Caller, CreateMode, FileId, FileSystem, IoFlags, SetAttr};

const PAGE: u64 = 4096;
const SERVED: &str = "/served";

struct Files(CachedFs);

impl Process for Files {
    fn status(&self) -> Status {
        Status { pid: std::process::id(), what: "files".into(), ..Status::default() }
    }

    fn file_systems(&self) -> Vec<(PathBuf, CachedFs)> {
        vec![(SERVED.into(), self.0.clone())]
    }
}

struct Rig {
    fs: CachedFs,
    dir: tempfile::TempDir,
    runtime: Runtime,
}

impl Rig {
    fn new() -> Self {
        Self::over(MemoryFs::new())
    }

    fn over(store: Arc<dyn FileSystem>) -> Self {
        let cache = Cache::new(Config { budget_bytes: 32 << 20, ..Config::default() }).unwrap();
        let fs = cache.mount(store);
        let dir = tempfile::tempdir().unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = { runtime }.enable_all().worker_threads(2).build().unwrap();
        let listener = {
            let _within = runtime.enter();
            Listener::bind(&dir.path().join("weir")).unwrap()
        };
        runtime.spawn(listener.serve(Arc::new(Files(fs.clone()))));
        Self { fs, dir, runtime }
    }

    fn write(&self, dir: FileId, name: &str, bytes: u64) {
        let set = SetAttr::default();
        block_on(async {
            let new = dir.entry(name.as_bytes()).with(&set);
            let made = self.fs.create(&Caller::Own, new, CreateMode::MustBeNew).await.unwrap();
            let access = Access::READ | Access::WRITE;
            let file = self.fs.open(&Caller::Own, made.attr.id, access).await.unwrap();
            file.write_at_async(&vec![7; bytes as usize], 0, IoFlags::empty()).await.unwrap();
        });
    }

    fn process(&self) -> Asked {
        let mut found = processes(&self.dir.path().join("weir")).unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].pid, std::process::id());
        found.remove(0)
    }

    fn ask(&self, request: &Request) -> Vec<Reply> {
        ask(&self.process(), request).unwrap().collect::<Result<_, _>>().unwrap()
    }

    fn tree(&self, action: Action, path: &str) -> Vec<Reply> {
        self.ask(&Request::Tree { action, path: path.into() })
    }
}

fn file(path: &str, size: u64, resident: u64, dirty: u64) -> Reply {
    warmed(path, size, resident, dirty, 0)
}

fn warmed(path: &str, size: u64, resident: u64, dirty: u64, read: u64) -> Reply {
    Reply::File(FileStatus {
        path: Path::new(SERVED).join(path).into(),
        size_bytes: size,
        resident_bytes: resident,
        dirty_bytes: dirty,
        read_bytes: read,
    })
}

#[test]
fn a_process_tells_its_status() {
    let rig = Rig::new();
    let [Reply::Status(status)] = &rig.ask(&Request::Status)[..] else { panic!() };
    assert_eq!(status.what, "files");
}

#[test]
fn files_are_shown_evicted_and_warmed() {
    // What was written a few seconds ago is not dirty any more.
    let quick = (0..100).find_map(|_| {
        let (rig, begun) = (Rig::new(), Instant::now());
        let is_quick = || begun.elapsed() < Duration::from_secs(1);
        shown_and_evicted(&rig, is_quick).then_some(rig)
    });
    let rig = quick.expect("four requests take a second, each time");
    let d = "d/f";
    let warm = rig.tree(Action::Warm, "/served/d/f");
    assert_eq!(warm, [warmed(d, 3 * PAGE, 3 * PAGE, 0, 3 * PAGE)]);
    let Reply::File(most) = &rig.ask(&Request::Files { most: 1 })[0] else { panic!() };
    assert_eq!(most.resident_bytes, 3 * PAGE);
}

/// Returns whether all of it was quick enough to be judged.
fn shown_and_evicted(rig: &Rig, is_quick: impl Fn() -> bool) -> bool {
    let set = SetAttr::default();
    let new = rig.fs.root().entry(b"d").with(&set);
    let dir = block_on(rig.fs.mkdir(&Caller::Own, new)).unwrap().id;
    rig.write(rig.fs.root(), "e", 100);
    rig.write(dir, "f", 3 * PAGE);
    let [d, e] = ["d/f", "e"];
    let shown = rig.tree(Action::Show, SERVED);
    let evicted = rig.tree(Action::Evict, "/served/d");
    let after = rig.tree(Action::Show, SERVED);
    if !is_quick() {
        return false;
    }
    assert_eq!(shown, [file(d, 3 * PAGE, 3 * PAGE, 3 * PAGE), file(e, 100, PAGE, PAGE)]);
    assert_eq!(evicted, [file(d, 3 * PAGE, 0, 0)]);
    assert_eq!(after, [file(d, 3 * PAGE, 0, 0), file(e, 100, PAGE, PAGE)]);
    true
}

#[test]
fn a_listing_that_does_not_end_fails() {
    let rig = Rig::over(Arc::new(Endless(MemoryFs::new())));
    (0..10).for_each(|number| rig.write(rig.fs.root(), &number.to_string(), 1));
    let replies = rig.tree(Action::Show, SERVED);
    assert!(matches!(replies[..], [Reply::Failed(_), ..]), "{replies:?}");
}

#[test]
fn paths_that_are_not_served_are_told_so() {
    let rig = Rig::new();
    assert_eq!(rig.tree(Action::Evict, "/elsewhere"), [Reply::Elsewhere]);
    assert_eq!(rig.tree(Action::Evict, "/servedonly"), [Reply::Elsewhere]);
    let failed = rig.tree(Action::Warm, "/served/none");
    assert!(
        matches!(&failed[..], [Reply::Failed(why)] if why.contains("/served/none")),
        "{failed:?}"
    );
    let failed = rig.tree(Action::Warm, "/served/../etc");
    assert!(matches!(&failed[..], [Reply::Failed(_)]), "{failed:?}");
}

#[test]
fn requests_that_make_no_sense_are_answered() {
    let rig = Rig::new();
    let socket = rig.process().socket;
    for request in [&b"{\"dance\":1}\n"[..], b"\n", &[b'x'; 100_000][..]] {
        let mut stream = UnixStream::connect(&socket).unwrap();
        // The process may close the connection before it has read everything.
        let _ = stream.write_all(request);
        let mut line = String::new();
        let read = std::io::BufRead::read_line(&mut std::io::BufReader::new(stream), &mut line);
        assert!(read.is_err() || line.contains("no such request"), "{line}");
    }
    assert_eq!(rig.ask(&Request::Status).len(), 1);
}

#[test]
fn a_socket_that_is_being_made_is_not_taken_for_a_dead_one() {
    let parent = tempfile::tempdir().unwrap();
    let runtime = Runtime::new().unwrap();
    let _within = runtime.enter();
    // A directory for each round: the sockets of one process have one path, and the one of the round before is dead.
    let dir = |round: u32| parent.path().join(format!("weir-{round}"));
    let asked = Arc::new(Mutex::new(dir(0)));
    let made = Arc::new(AtomicBool::new(false));
    let (now, done) = (Arc::clone(&asked), Arc::clone(&made));
    let asks = std::thread::spawn(move || {
        while !done.load(Ordering::Relaxed) {
            let dir = now.lock().unwrap().clone();
            processes(&dir).unwrap();
        }
    });
    for round in 0..3000 {
        asked.lock().unwrap().clone_from(&dir(round));
        let listener = Listener::bind(&dir(round)).unwrap();
        assert!(listener.path().exists(), "round {round}: it was removed");
    }
    made.store(true, Ordering::Relaxed);
    asks.join().unwrap();
}

#[test]
fn the_socket_of_a_killed_process_is_removed() {
    let rig = Rig::new();
    let dir = rig.dir.path().join("weir");
    let dead = dir.join("4194304.sock");
    drop(std::os::unix::net::UnixListener::bind(&dead).unwrap());
    assert!(dead.exists());
    rig.process();
    assert!(!dead.exists());
    let socket = rig.process().socket;
    rig.runtime.shutdown_timeout(Duration::from_secs(120));
    assert!(!socket.exists(), "a process that ends removes its socket");
    assert!(processes(&dir).unwrap().is_empty());
    assert!(processes(&dir.join("none")).unwrap().is_empty());
}
