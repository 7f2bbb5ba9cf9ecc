//! A directory that other programs change as well, seen through the cache.
//!
//! The other program is this one, run again (see [`the_other_program`]): a process does not count
//! its own changes of a file as changes by others.
#![cfg(not(any(loom, shuttle)))]

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};
use weir_pagecache::{Cache, CachedFs, Config, File};
use weir_stores::fault::{Call, Fault, Rule, What, When};
use weir_stores::local::{LocalFs, LocalOptions};
use weir_stores::memory::MemoryFs;
use weir_vfs::{Access, Caller, CreateMode, IoFlags, RenameFlags, SetAttr};

const OWN: Caller = Caller::Own;
const NONE: IoFlags = IoFlags::empty();
const PAGE: usize = 4096;
const RW: Access = Access::READ.union(Access::WRITE);
/// For the other program: makes it write as instructed on its standard input.
const WRITER: &str = "WEIR_TEST_OTHER_PROGRAM";
/// For a test that was restarted where a file system is mounted for it: the directory.
const MOUNTED: &str = "WEIR_TEST_MOUNTED";

fn block_on<T>(future: impl Future<Output = T>) -> T {
    pollster::block_on(future)
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(60), "in vain: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn temp_dir() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn cached(dir: &Path) -> CachedFs {
    let store = LocalFs::open(dir, LocalOptions::default()).unwrap();
    Cache::new(Config::default()).unwrap().mount(store)
}

fn open(fs: &CachedFs, name: &str, access: Access) -> File {
    let id = block_on(fs.lookup(&OWN, fs.root().entry(name.as_bytes()))).unwrap().id;
    block_on(fs.open(&OWN, id, access)).unwrap()
}

fn create(fs: &CachedFs, name: &str, mode: u32) -> File {
    let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
    let made = block_on(fs.create(
        &OWN,
        fs.root().entry(name.as_bytes()).with(&set),
        CreateMode::MustBeNew,
    ))
    .unwrap();
    block_on(fs.open(&OWN, made.attr.id, RW)).unwrap()
}

fn page_at(file: &File, page: usize) -> Vec<u8> {
    let mut bytes = vec![0; PAGE];
    let mut done = 0;
    while done < PAGE {
        let n = file.read_at(&mut bytes[done..], (page * PAGE + done) as u64, NONE).unwrap();
        assert!(n > 0);
        done += n;
    }
    bytes
}

/// Whether the kernel reports changes by others to open files (fanotify(7)); some containers deny
/// it.
#[track_caller]
fn kernel_tells() -> bool {
    let flags = libc::FAN_CLASS_NOTIF | libc::FAN_REPORT_FID | libc::FAN_CLOEXEC;
    // SAFETY: takes numbers only; no other thread has the descriptor.
    let told = unsafe {
        let queue = libc::fanotify_init(flags, libc::O_RDONLY as u32);
        queue >= 0 && libc::close(queue) == 0
    };
    if !told {
        weir_skip::skip("the kernel does not tell what others do to files (fanotify)");
    }
    told
}

/// Not a test by itself: writes pages of one byte each to offsets of a file as instructed, and
/// acknowledges each.
#[test]
fn the_other_program() {
    let Some(path) = std::env::var_os(WRITER) else { return };
    let file = fs::OpenOptions::new().write(true).open(path).unwrap();
    println!("ready");
    for line in std::io::stdin().lock().lines() {
        let line = line.unwrap();
        let (page, byte) = line.split_once(' ').unwrap();
        let bytes = vec![byte.parse::<u8>().unwrap(); PAGE];
        file.write_all_at(&bytes, page.parse::<u64>().unwrap() * PAGE as u64).unwrap();
        println!("done");
    }
}

struct Other {
    child: Child,
    said: BufReader<std::process::ChildStdout>,
}

impl Other {
    fn start(file: &Path) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "the_other_program", "--nocapture", "--test-threads=1"])
            .env(WRITER, file)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let said = BufReader::new(child.stdout.take().unwrap());
        let mut other = Self { child, said };
        other.wait_for("ready");
        other
    }

    fn wait_for(&mut self, what: &str) {
        let mut line = String::new();
        while !line.trim_end().ends_with(what) {
            line.clear();
            assert!(self.said.read_line(&mut line).unwrap() > 0, "the other program has ended");
        }
    }

    fn write(&mut self, page: usize, byte: u8) {
        let stdin = self.child.stdin.as_mut().unwrap();
        writeln!(stdin, "{page} {byte}").unwrap();
        stdin.flush().unwrap();
        self.wait_for("done");
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// Reruns a test in a mount namespace of its own with an empty file system of this kind. In the
/// rerun, returns the directory for the test.
fn on_mounted(kind: &str, test: &str) -> Option<PathBuf> {
    if let Some(dir) = std::env::var_os(MOUNTED) {
        return Some(dir.into());
    }
    if !weir_skip::is_root(&format!("only root may mount {kind}")) {
        return None;
    }
    let dir = temp_dir();
    let mount = r#"mount -t "$0" none "$1" || exit 77; exec "$2" --exact "$3" --nocapture"#;
    let status = Command::new("unshare")
        .args(["-m", "sh", "-c", mount, kind])
        .arg(dir.path())
        .arg(std::env::current_exe().unwrap())
        .arg(test)
        .env(MOUNTED, dir.path())
        .status();
    match status.map(|status| status.code()) {
        Ok(Some(0)) => {}
        Ok(Some(77)) | Err(_) => weir_skip::skip(format!("{kind} cannot be mounted here")),
        failed => panic!("{test} on {kind}: {failed:?}"),
    }
    None
}

/// Another program writes into a hole and over data while the cache has both and writes elsewhere
/// in the file: each such write is noticed, whenever it happens.
fn others_are_seen_amid_our_writes(dir: &Path) {
    if !kernel_tells() {
        return;
    }
    let fs = cached(dir);
    let file = create(&fs, "f", 0o644);
    file.truncate(256 * PAGE as u64).unwrap();
    file.write_at(&[1; PAGE], 10 * PAGE as u64, NONE).unwrap();
    file.sync(false).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let writer = {
        let (file, stop) = (file.clone(), stop.clone());
        std::thread::spawn(move || {
            for n in 0u64.. {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                file.write_at(&[3; 100], (128 + n % 64) * PAGE as u64 + 17, NONE).unwrap();
                if n % 3 == 0 {
                    file.sync(true).unwrap();
                }
            }
        })
    };
    let mut other = Other::start(&dir.join("f"));
    for round in 0..50u8 {
        let (hole, data) = (20 + usize::from(round), 10);
        assert_eq!(page_at(&file, hole), [0; PAGE]);
        page_at(&file, data);
        other.write(hole, 100 + round);
        other.write(data, 100 + round);
        until("what another program wrote", || {
            block_on(file.getattr()).unwrap();
            page_at(&file, hole)[..] == [100 + round; PAGE]
                && page_at(&file, data)[..] == [100 + round; PAGE]
        });
    }
    stop.store(true, Ordering::Relaxed);
    writer.join().unwrap();
    file.sync(false).unwrap();
    assert_eq!(page_at(&file, 128)[17..117], [3; 100], "and ours are there");
}

#[test]
fn changes_by_others_between_our_writes_are_seen_on_the_disk() {
    others_are_seen_amid_our_writes(temp_dir().path());
}

#[test]
fn changes_by_others_between_our_writes_are_seen_on_ramfs() {
    if let Some(dir) = on_mounted("ramfs", "changes_by_others_between_our_writes_are_seen_on_ramfs")
    {
        others_are_seen_amid_our_writes(&dir);
    }
}

#[test]
fn changes_by_others_between_our_writes_are_seen_on_tmpfs() {
    if let Some(dir) = on_mounted("tmpfs", "changes_by_others_between_our_writes_are_seen_on_tmpfs")
    {
        others_are_seen_amid_our_writes(&dir);
    }
}

#[test]
fn our_own_changes_evict_no_page() {
    if !kernel_tells() {
        return;
    }
    let dir = temp_dir();
    let fs = cached(dir.path());
    let file = create(&fs, "f", 0o644);
    for n in 0..50u64 {
        // Small and large ones, at the edges of pages and within: through every path to the store.
        file.write_at(&vec![7; 1 + (n as usize % 5) * 70_000], n * 5000, NONE).unwrap();
        file.sync(n % 2 == 0).unwrap();
        block_on(file.getattr()).unwrap();
        if n % 10 == 0 {
            file.truncate(400_000 + n).unwrap();
            block_on(file.punch_hole_async(8192, 4096)).unwrap();
            let set = SetAttr { mode: Some(0o640), ..SetAttr::default() };
            block_on(fs.setattr(&OWN, file.id(), &set)).unwrap();
        }
    }
    // Data read under a young time stamp is checked again once the stamp is old.
    for _ in 0..8 {
        block_on(file.getattr()).unwrap();
        std::thread::sleep(Duration::from_millis(500));
    }
    assert_eq!(fs.cache().stats().outside_changes, 0);
    assert!(!file.resident().is_empty());
}

#[test]
fn a_modification_time_set_by_another_program_is_kept() {
    if !kernel_tells() {
        return;
    }
    let dir = temp_dir();
    let path = dir.path().join("f");
    let fs = cached(dir.path());
    let file = create(&fs, "f", 0o644);
    file.write_at(&[1; PAGE], 0, NONE).unwrap();
    file.sync(false).unwrap();
    let mut other = Other::start(&path);
    // When the other program writes, our data and modification time are still to be written.
    file.write_at(&[2; PAGE], 0, NONE).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    other.write(5, 9);
    let theirs = fs::metadata(&path).unwrap().modified().unwrap();
    file.sync(false).unwrap();
    until("the other's page", || {
        block_on(file.getattr()).unwrap();
        page_at(&file, 5)[..] == [9; PAGE]
    });
    assert!(fs::metadata(&path).unwrap().modified().unwrap() >= theirs);
    assert!(block_on(file.getattr()).unwrap().mtime >= theirs);
    // Without another program, the time is that of the write call, not of its writeback.
    let before = SystemTime::now();
    file.write_at(&[3; PAGE], 0, NONE).unwrap();
    let after = SystemTime::now();
    std::thread::sleep(Duration::from_millis(100));
    file.sync(false).unwrap();
    let ours = fs::metadata(&path).unwrap().modified().unwrap();
    assert!(before <= ours && ours <= after, "{before:?} {ours:?} {after:?}");
}

/// Descriptors of this process whose file is, or was, at a path.
fn descriptors(path: &Path) -> usize {
    let path = path.to_str().unwrap();
    let open = fs::read_dir("/proc/self/fd").unwrap();
    open.filter_map(|fd| fs::read_link(fd.ok()?.path()).ok())
        .filter(|target| target.to_str().is_some_and(|target| target.starts_with(path)))
        .count()
}

#[test]
fn a_written_file_can_be_executed_seconds_after_its_close() {
    let dir = temp_dir();
    let fs = cached(dir.path());
    let path = dir.path().join("program");
    let file = create(&fs, "program", 0o755);
    file.write_at(b"#!/bin/sh\nexit 7\n", 0, NONE).unwrap();
    // Another thread reads it all the time.
    let reader = open(&fs, "program", Access::READ);
    drop(file);
    until("its execution", || match Command::new(&path).status() {
        Ok(status) => status.code() == Some(7),
        Err(error) => {
            assert_eq!(error.raw_os_error(), Some(libc::ETXTBSY), "{error}");
            false
        }
    });
    assert_eq!(&page_or_less(&reader), b"#!/bin/sh\nexit 7\n");
    // And the reader can write again.
    let writer = open(&fs, "program", RW);
    writer.write_at(b"#!/bin/sh\nexit 8\n", 0, NONE).unwrap();
    writer.sync(false).unwrap();
    drop(writer);
    until("its execution", || Command::new(&path).status().is_ok_and(|s| s.code() == Some(8)));
    drop(reader);
    until("its being closed", || descriptors(&path) == 0);
    let fills = fs.cache().stats().fills;
    assert_eq!(&page_or_less(&open(&fs, "program", RW)), b"#!/bin/sh\nexit 8\n");
    assert_eq!(fs.cache().stats().fills, fills, "its pages have stayed");
}

fn page_or_less(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; PAGE];
    let n = file.read_at(&mut bytes, 0, NONE).unwrap();
    bytes.truncate(n);
    bytes
}

#[test]
fn space_of_a_file_removed_by_another_program_is_freed() {
    let dir = temp_dir();
    let fs = cached(dir.path());
    for name in ["written", "read"] {
        let path = dir.path().join(name);
        let file = create(&fs, name, 0o644);
        file.write_at(&[1; 10 * PAGE], 0, NONE).unwrap();
        file.sync(false).unwrap();
        drop(file);
        if name == "read" {
            until("its being closed", || descriptors(&path) == 0);
            page_at(&open(&fs, name, Access::READ), 3);
        }
        fs::remove_file(&path).unwrap();
        until("its being closed", || descriptors(&path) == 0);
    }
}

#[test]
fn a_change_by_others_to_a_closed_file_is_seen_at_open() {
    let dir = temp_dir();
    let fs = cached(dir.path());
    let path = dir.path().join("f");
    let file = create(&fs, "f", 0o644);
    file.write_at(&[1; 10 * PAGE], 0, NONE).unwrap();
    file.sync(false).unwrap();
    drop(file);
    let mut other = Other::start(&path);
    for round in 0..4u8 {
        if round % 2 == 1 {
            until("its being closed", || descriptors(&path) == 0);
        }
        other.write(2, 50 + round);
        assert_eq!(page_at(&open(&fs, "f", RW), 2), [50 + round; PAGE], "round {round}");
    }
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
}

/// A cache over a store whose calls can be held, and a file in it with a dirty page.
fn held_rig() -> (Arc<Fault>, CachedFs, File) {
    let fault = Fault::over(MemoryFs::new(), 1);
    let fs = Cache::new(Config::default()).unwrap().mount(fault.clone());
    let file = create(&fs, "a", 0o644);
    file.write_at(b"precious", 0, NONE).unwrap();
    (fault, fs, file)
}

/// Runs `racing` while `call`, made by `held`, is in flight.
fn amid(
    (fault, call): (&Fault, Call),
    held: impl FnOnce() + Send + 'static,
    racing: impl FnOnce(),
) {
    fault.add(Rule { call, when: When::Always, what: What::Hold });
    let held = std::thread::spawn(held);
    until("the call", || fault.held() == 1);
    racing();
    fault.clear();
    fault.release();
    held.join().unwrap();
}

#[test]
fn a_link_during_an_unlink_keeps_the_file_and_its_dirty_pages() {
    let (fault, fs, file) = held_rig();
    let id = file.id();
    drop(file);
    let unlinking = fs.clone();
    amid(
        (&fault, Call::Unlink),
        move || block_on(unlinking.unlink(&OWN, unlinking.root().entry(b"a"))).unwrap(),
        || {
            block_on(fs.link(&OWN, id, fs.root().entry(b"b"))).unwrap();
        },
    );
    assert_eq!(page_or_less(&open(&fs, "b", RW)), b"precious");
    let file = open(&fs, "b", RW);
    assert!(!file.is_unlinked());
    file.sync(false).unwrap();
    drop((file, fs));
    let fs = Cache::new(Config::default()).unwrap().mount(fault);
    assert_eq!(page_or_less(&open(&fs, "b", RW)), b"precious");
}

#[test]
fn a_rename_during_a_replacement_keeps_the_file_and_its_dirty_pages() {
    let (fault, fs, file) = held_rig();
    drop(create(&fs, "other", 0o644));
    drop(file);
    let renaming = fs.clone();
    amid(
        (&fault, Call::Rename),
        move || {
            let (root, replace) = (renaming.root(), RenameFlags::Replace);
            block_on(renaming.rename(&OWN, root.entry(b"other"), root.entry(b"a"), replace))
                .unwrap();
        },
        || {
            // Not through the held call.
            fault.clear();
            block_on(fs.rename(
                &OWN,
                fs.root().entry(b"a"),
                fs.root().entry(b"b"),
                RenameFlags::Replace,
            ))
            .unwrap();
        },
    );
    assert_eq!(page_or_less(&open(&fs, "b", RW)), b"precious");
    assert_eq!(page_or_less(&open(&fs, "a", RW)), b"");
}

#[test]
fn concurrent_links_and_unlinks_lose_no_file() {
    let dir = temp_dir();
    let fs = cached(dir.path());
    for round in 0..300u32 {
        let file = create(&fs, "a", 0o644);
        let id = file.id();
        file.write_at(&round.to_le_bytes(), 0, NONE).unwrap();
        drop(file);
        let barrier = std::sync::Barrier::new(2);
        let linked = std::thread::scope(|scope| {
            scope.spawn(|| {
                barrier.wait();
                block_on(fs.unlink(&OWN, fs.root().entry(b"a"))).unwrap();
            });
            barrier.wait();
            block_on(fs.link(&OWN, id, fs.root().entry(b"b"))).is_ok()
        });
        if linked {
            let found = block_on(fs.getattr(id)).expect("a file with a name lives");
            assert_eq!(found.nlink, 1);
            assert_eq!(page_or_less(&open(&fs, "b", RW)), round.to_le_bytes(), "round {round}");
            block_on(fs.unlink(&OWN, fs.root().entry(b"b"))).unwrap();
        }
        assert!(block_on(fs.getattr(id)).is_err(), "and one without is gone");
    }
}
