//! A local directory in which other threads and programs work: which changes count as theirs, and
//! the change attributes of directories.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use weir_stores::local::{IoEngine, LocalFs, LocalOptions};
use weir_stores::testing::{new_file, read_all, write};
use weir_vfs::{Caller, CreateMode, Error, FileSystem, ReaddirRequest, RenameFlags, SetAttr};

const OWN: Caller = Caller::Own;
/// For a test that was restarted: the directory where a file system is mounted for it, or the file
/// to write to.
const STARTED_FOR: &str = "WEIR_TEST_STARTED_FOR";

fn temp_dir() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn open(dir: &Path, io: IoEngine) -> Arc<dyn FileSystem> {
    LocalFs::open(dir, LocalOptions { io, for_command: true, ..LocalOptions::default() }).unwrap()
}

/// Reruns a test where an empty ramfs, whose time stamps are coarse in every kernel, is mounted. In
/// the rerun, returns its directory.
fn on_ramfs(test: &str) -> Option<PathBuf> {
    on_mount(test, "ramfs", r#"mount -t ramfs none "$0""#)
}

/// Reruns a test where a command of the shell has mounted a file system on the directory `$0`. In the rerun, returns
/// that directory.
fn on_mount(test: &str, kind: &str, mount: &str) -> Option<PathBuf> {
    if let Some(dir) = std::env::var_os(STARTED_FOR) {
        return Some(dir.into());
    }
    if !weir_skip::is_root(&format!("only root may mount a file system ({kind})")) {
        return None;
    }
    let dir = temp_dir();
    let mount = mount.to_owned() + r#" || exit 77; exec "$1" --exact "$2" --nocapture"#;
    let status = Command::new("unshare")
        .args(["-m", "sh", "-c", &mount])
        .arg(dir.path())
        .arg(std::env::current_exe().unwrap())
        .arg(test)
        .env(STARTED_FOR, dir.path())
        .status();
    match status.map(|status| status.code()) {
        Ok(Some(0)) => {}
        Ok(Some(77)) | Err(_) => weir_skip::skip(format!("{kind} cannot be mounted here")),
        failed => panic!("{test} on {kind}: {failed:?}"),
    }
    None
}

/// Fills the file system of a directory to the last byte, until the file is dropped.
fn fill(dir: &Path) -> File {
    let mut filler = tempfile::tempfile_in(dir).unwrap();
    for len in [65536, 1] {
        while filler.write_all(&vec![1; len]).is_ok() {}
    }
    filler
}

#[tokio::test]
async fn files_are_found_although_the_state_directory_was_full_at_the_start() {
    let test = "files_are_found_although_the_state_directory_was_full_at_the_start";
    let Some(full) = on_mount(test, "tmpfs", r#"mount -t tmpfs -o size=256k none "$0""#) else {
        return;
    };
    let served = temp_dir();
    let open = || {
        let options =
            LocalOptions { state_dir: Some(full.join("state")), ..LocalOptions::default() };
        LocalFs::open(served.path(), options).unwrap()
    };
    let set = SetAttr::default();
    let fs = open();
    let root = fs.root();
    let old = fs.create(&OWN, root.entry(b"old").with(&set), CreateMode::MustBeNew).await;
    let old = old.unwrap().attr.id;
    drop(fs);
    let filler = fill(&full);
    let fs = open();
    assert_eq!(fs.getattr(old).await.unwrap().id, old);
    // More names than fit into the block of the log.
    let mut ids = vec![old];
    for n in 0..200 {
        let name = format!("new{n}").into_bytes();
        let made = fs.create(&OWN, root.entry(&name).with(&set), CreateMode::MustBeNew).await;
        ids.push(made.unwrap().attr.id);
    }
    drop(filler);
    drop(fs);
    let fs = open();
    // Those whose names are not in the log are searched for.
    let limit = Instant::now() + Duration::from_secs(60);
    for id in ids {
        let mut found = fs.getattr(id).await;
        while found == Err(Error::WouldBlock) && Instant::now() < limit {
            tokio::time::sleep(Duration::from_millis(5)).await;
            found = fs.getattr(id).await;
        }
        assert_eq!(found.unwrap().id, id);
    }
}

/// Every change of a directory, and nothing else, advances its change attribute.
async fn directories_move(dir: &Path) {
    let fs = open(dir, IoEngine::Threads);
    let (set, root) = (SetAttr::default(), fs.root());
    let at = fs.mkdir(&OWN, root.entry(b"d").with(&set)).await.unwrap().id;
    let mut shown = Vec::new();
    for round in 0..100u32 {
        let (a, b) = (format!("a{round}").into_bytes(), format!("b{round}").into_bytes());
        let made =
            fs.create(&OWN, at.entry(&a).with(&set), CreateMode::MustBeNew).await.unwrap().attr.id;
        shown.push(fs.getattr(at).await.unwrap().change);
        fs.link(&OWN, made, at.entry(&b)).await.unwrap();
        shown.push(fs.lookup(&OWN, root.entry(b"d")).await.unwrap().change);
        fs.unlink(&OWN, at.entry(&b)).await.unwrap();
        shown.push(fs.getattr(at).await.unwrap().change);
        fs.rename(&OWN, at.entry(&a), at.entry(&b), RenameFlags::Replace).await.unwrap();
        shown.push(fs.getattr(at).await.unwrap().change);
        fs.mkdir(&OWN, at.entry(&a).with(&set)).await.unwrap();
        shown.push(fs.getattr(at).await.unwrap().change);
        fs.symlink(&OWN, at.entry(format!("l{round}").as_bytes()).with(&set), b"x").await.unwrap();
        shown.push(fs.getattr(at).await.unwrap().change);
        fs.rmdir(&OWN, at.entry(&a)).await.unwrap();
        shown.push(fs.getattr(at).await.unwrap().change);
        let mode = SetAttr { mode: Some(0o700 + round % 8), ..SetAttr::default() };
        let begun = Instant::now();
        fs.setattr(&OWN, at, &mode).await.unwrap();
        let change = fs.getattr(at).await.unwrap().change;
        shown.push(change);
        let again = fs.getattr(at).await.unwrap().change;
        // Once a coarse stamp is so old that no later change gets it, another value is shown for it.
        if again != change {
            assert!(begun.elapsed() > Duration::from_secs(2), "{again} after {change}");
            shown.push(again);
        }
    }
    assert!(shown.is_sorted_by(|a, b| a < b), "{shown:?}");
    // Restarted at once: no value from before the restart is shown for changed content.
    drop(fs);
    let fs = open(dir, IoEngine::Threads);
    let at = fs.lookup(&OWN, fs.root().entry(b"d")).await.unwrap().id;
    fs.unlink(&OWN, at.entry(b"b0")).await.unwrap();
    assert!(!shown.contains(&fs.getattr(at).await.unwrap().change));
}

#[tokio::test]
async fn every_change_of_a_directory_moves_its_change_attribute() {
    directories_move(temp_dir().path()).await;
}

#[tokio::test]
async fn every_change_of_a_directory_moves_its_change_attribute_on_ramfs() {
    let test = "every_change_of_a_directory_moves_its_change_attribute_on_ramfs";
    if let Some(dir) = on_ramfs(test) {
        directories_move(&dir).await;
    }
}

/// Whether the kernel reports changes by others to open files (fanotify(7)); some containers deny
/// it.
#[track_caller]
fn kernel_tells() -> bool {
    let flags = libc::FAN_CLASS_NOTIF | libc::FAN_REPORT_FID | libc::FAN_CLOEXEC;
    // SAFETY: takes numbers only; the descriptor has no other owner.
    let told = unsafe {
        let queue = libc::fanotify_init(flags, libc::O_RDONLY as u32);
        queue >= 0 && libc::close(queue) == 0
    };
    if !told {
        weir_skip::skip("the kernel does not tell what others do to files (fanotify)");
    }
    told
}

/// Not a test by itself: the other program.
#[test]
fn the_other_program() {
    if let Some(path) = std::env::var_os(STARTED_FOR) {
        let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
        file.write_all_at(b"theirs", 100_000).unwrap();
    }
}

#[tokio::test]
async fn changes_by_others_are_counted_and_ours_are_not() {
    if !kernel_tells() {
        return;
    }
    for io in [IoEngine::Auto, IoEngine::Threads] {
        let dir = temp_dir();
        let fs = open(dir.path(), io);
        let file = new_file(&fs, fs.root(), "f").await;
        let other_open = new_file(&fs, fs.root(), "g").await;
        for n in 0..20u64 {
            let bytes = vec![n as u8; 1 + 40_000 * (n as usize % 4)];
            write(&*file, n * 1000, &bytes).await.unwrap();
            write(&*other_open, 0, &bytes).await.unwrap();
            if n % 5 == 0 {
                file.set_size(300_000).await.unwrap();
                file.punch_hole(4096, 8192).await.unwrap();
                let mode = SetAttr { mode: Some(0o640), ..SetAttr::default() };
                fs.setattr(&OWN, file.getattr().await.unwrap().id, &mode).await.unwrap();
            }
            file.getattr().await.unwrap();
            assert_eq!(file.changes_by_others(), Some(0), "write {n}");
        }
        let status = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "the_other_program"])
            .env(STARTED_FOR, dir.path().join("f"))
            .status()
            .unwrap();
        assert!(status.success());
        // Our change follows, and hides its stamp.
        write(&*file, 0, b"ours").await.unwrap();
        file.getattr().await.unwrap();
        assert!(file.changes_by_others() > Some(0));
        other_open.getattr().await.unwrap();
        assert_eq!(other_open.changes_by_others(), Some(0), "the other file is another file");
    }
}

#[tokio::test]
async fn extents_that_others_change_are_looked_up_anew() {
    let dir = temp_dir();
    let fs = open(dir.path(), IoEngine::Threads);
    let file = new_file(&fs, fs.root(), "f").await;
    file.set_size(200_000).await.unwrap();
    assert_eq!(file.extent_at(0).await.unwrap().end, 200_000);
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "the_other_program"])
        .env(STARTED_FOR, dir.path().join("f"))
        .status()
        .unwrap();
    assert!(status.success());
    assert!(file.extent_at(0).await.unwrap().end <= 100_000);
    assert_eq!(&read_all(&*file, 1 << 20).await[100_000..100_006], b"theirs");
}

#[test]
fn a_file_that_gets_a_name_while_it_loses_one_is_found() {
    let dir = temp_dir();
    let fs = open(dir.path(), IoEngine::Threads);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let root = fs.root();
    for round in 0..500u32 {
        let made = runtime.block_on(fs.create(
            &OWN,
            root.entry(b"a").with(&SetAttr::default()),
            CreateMode::MustBeNew,
        ));
        let id = made.unwrap().attr.id;
        let barrier = Barrier::new(2);
        let over = round % 2 == 0;
        if over {
            runtime
                .block_on(fs.create(
                    &OWN,
                    root.entry(b"c").with(&SetAttr::default()),
                    CreateMode::MustBeNew,
                ))
                .unwrap();
        }
        let (lost, linked) = std::thread::scope(|scope| {
            let lost = scope.spawn(|| {
                barrier.wait();
                runtime.block_on(async {
                    if over {
                        fs.rename_counted(
                            &OWN,
                            root.entry(b"c"),
                            root.entry(b"a"),
                            RenameFlags::Replace,
                        )
                        .await
                    } else {
                        fs.unlink_counted(&OWN, root.entry(b"a")).await
                    }
                })
            });
            barrier.wait();
            let linked = runtime.block_on(fs.link(&OWN, id, root.entry(b"b")));
            (lost.join().unwrap().unwrap().unwrap(), linked)
        });
        let found = runtime.block_on(fs.getattr(id));
        assert_eq!(lost.id, id, "round {round}");
        match linked {
            Ok(_) => {
                assert_eq!(found.unwrap().nlink, 1, "round {round}");
                assert!(lost.nlink > 0, "round {round}");
                runtime.block_on(fs.unlink(&OWN, root.entry(b"b"))).unwrap();
            }
            Err(_) => {
                assert_eq!(found, Err(Error::Stale), "round {round}");
                assert_eq!(lost.nlink, 0, "round {round}");
            }
        }
        if over {
            runtime.block_on(fs.unlink(&OWN, root.entry(b"a"))).unwrap();
        }
    }
}

/// The positions in a merged directory of overlayfs are indexes.
#[tokio::test]
async fn a_name_that_is_removed_during_a_listing_hides_no_other_one() {
    let test = "a_name_that_is_removed_during_a_listing_hides_no_other_one";
    let mount = r#"mkdir "$0/lower" "$0/upper" "$0/work" && mount -t overlay none \
        -o "lowerdir=$0/lower,upperdir=$0/upper,workdir=$0/work" "$0""#;
    let Some(dir) = on_mount(test, "overlayfs", mount) else { return };
    let names: BTreeSet<String> = (0..3000).map(|n| format!("file {n:04}")).collect();
    for name in &names {
        std::fs::write(dir.join(name), "").unwrap();
    }
    let fs = open(&dir, IoEngine::Threads);
    let (mut found, mut cookie) = (BTreeSet::new(), 0);
    loop {
        let request = ReaddirRequest { dir: fs.root(), cookie, max_entries: 700, with_attr: false };
        let page = fs.readdir(&OWN, request).await.unwrap();
        let shown = |name: &[u8]| String::from_utf8(name.to_vec()).unwrap();
        found.extend(page.entries.iter().map(|entry| shown(&entry.name)));
        if page.eof {
            break;
        }
        let last = page.entries.last().unwrap();
        cookie = last.cookie;
        std::fs::remove_file(dir.join(shown(&last.name))).unwrap();
    }
    assert_eq!(names.difference(&found).count(), 0);
}
