//! `weir run --engine watch`: commands whose opens are watched, without a mount.

mod common;

use common::{as_ordinary_user, give_to_ordinary_user, scratch, text, weir};
use serde_json::Value;
use std::fs::{self, File};
use std::io::Read;
use std::path::Path;
use std::process::Output;
use std::time::{Duration, Instant};
use weir_tools::kernel_cache::{evict, resident_bytes};

const MIB: u64 = 1 << 20;

fn watch(dir: &Path, args: &[&str]) -> Output {
    weir([&["run", "--engine", "watch"], args].concat()).current_dir(dir).output().unwrap()
}

/// Whether this machine lets commands run this way; if not, the test is skipped.
#[track_caller]
fn is_possible() -> bool {
    let output = watch(Path::new("/"), &["true"]);
    if output.status.code() == Some(125) {
        weir_skip::skip(text(&output));
        return false;
    }
    assert!(output.status.success(), "{}", text(&output));
    true
}

/// A file of this size of which the first `cached` bytes are in the kernel's cache.
fn file(path: &Path, size: u64, cached: u64) {
    fs::write(path, vec![5; size as usize]).unwrap();
    let file = File::open(path).unwrap();
    evict(&file).unwrap();
    // Without read-ahead past the part.
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random).unwrap();
    file.take(cached).read_to_end(&mut Vec::new()).unwrap();
}

fn resident(path: &Path) -> u64 {
    let file = File::open(path).unwrap();
    resident_bytes(&file, file.metadata().unwrap().len()).unwrap_or(0)
}

#[test]
fn it_runs_as_without_being_watched() {
    if !is_possible() {
        return;
    }
    let dir = scratch();
    let dir = dir.path().canonicalize().unwrap();
    let script = "pwd; id -u; echo x > made; ln -s made link; cat link; echo said >&2; exit 3";
    let output = watch(&dir, &["sh", "-c", script]);
    let uid = rustix::process::geteuid().as_raw();
    let expected = format!("{}\n{uid}\nx\n", dir.display());
    assert_eq!(String::from_utf8_lossy(&output.stdout), expected, "{}", text(&output));
    assert_eq!((output.status.code(), &output.stderr[..]), (Some(3), &b"said\n"[..]));
    assert_eq!(watch(&dir, &["no-such-command"]).status.code(), Some(127));
    fs::write(dir.join("plain"), "").unwrap();
    assert_eq!(watch(&dir, &["./plain"]).status.code(), Some(126));
    assert_eq!(watch(&dir, &["sh", "-c", "kill -9 $$"]).status.code(), Some(137));
    // Errors of an open are the kernel's.
    let missing = watch(&dir, &["cat", "missing/file"]);
    assert!(text(&missing).contains("No such file"), "{}", text(&missing));
}

#[test]
fn a_watched_command_leaves_the_cache_as_it_was() {
    if !is_possible() {
        return;
    }
    let dir = scratch();
    let dir = dir.path().canonicalize().unwrap();
    let near = |path: &Path, expected: u64, what: &str| {
        let found = resident(path);
        assert!(found.abs_diff(expected) <= 64 * MIB / 100, "{what}: {found}, not {expected}");
    };
    fs::create_dir(dir.join("below")).unwrap();
    let data = dir.join("data");
    // The last one finds the file by a relative path of a child's child.
    for script in ["sha256sum data", "cat data | wc -c", "cd below && sh -c 'cat ../data | wc -c'"]
    {
        for cached in [0, 32 * MIB, 64 * MIB] {
            file(&data, 64 * MIB, cached);
            let before = resident(&data);
            // Over the budget, it is dropped while the command runs.
            for budget in ["128M", "16M"] {
                let output = watch(&dir, &["--budget", budget, "sh", "-c", script]);
                assert!(output.status.success(), "{}", text(&output));
                near(&data, before, script);
            }
        }
    }
    file(&data, 64 * MIB, 0);
    let output = watch(&dir, &["--report", "--json", "cp", "data", "copy"]);
    assert!(output.status.success(), "{}", text(&output));
    near(&data, 0, "what was read");
    near(&dir.join("copy"), 0, "what was written");
    let report: Value = serde_json::from_slice(&output.stderr).unwrap();
    assert_eq!(
        (&report["engine"], &report["unseen_opens"]),
        (&"watch".into(), &0.into()),
        "{report}"
    );
    assert!(report["evicted_bytes"].as_u64().unwrap() >= 127 * MIB, "{report}");
    assert!(common::same(&data, &dir.join("copy")));
    // Of other directories, nothing is dropped.
    file(&data, 64 * MIB, 0);
    let output = watch(&dir, &["--path", "below", "cat", "data"]);
    assert_eq!(output.stdout.len() as u64, 64 * MIB);
    near(&data, 64 * MIB, "not watched");
}

#[test]
fn many_small_files_are_dropped_although_few_are_open() {
    if !is_possible() {
        return;
    }
    let dir = scratch();
    let script =
        "ulimit -n 256; exec \"$0\" run --engine watch sh -c 'i=0; while [ $i -lt 600 ]; do
        echo x > file-$i; i=$((i+1)); done'";
    let weir = env!("CARGO_BIN_EXE_weir");
    let output = std::process::Command::new("sh")
        .args(["-c", script, weir])
        .current_dir(dir.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output));
    let left: u64 =
        fs::read_dir(dir.path()).unwrap().map(|entry| resident(&entry.unwrap().path())).sum();
    assert!(left <= 6 * common::PAGE, "{left} of 600 pages");
}

#[test]
fn a_watched_command_of_an_ordinary_user_needs_no_privileges() {
    if !is_possible() {
        return;
    }
    let dir = scratch();
    let work = dir.path().join("work");
    fs::create_dir(&work).unwrap();
    file(&work.join("data"), 8 * MIB, 0);
    give_to_ordinary_user(dir.path(), &work);
    let mut command = weir(["run", "--engine", "watch", "sh", "-c", "id -u; cat data | wc -c"]);
    command.current_dir(&work);
    let output = as_ordinary_user(command).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    assert!(!output.stdout.starts_with(b"0\n"), "{}", text(&output));
    assert!(resident(&work.join("data")) <= 8 * MIB / 100);
}

#[test]
fn it_watches_what_the_command_left_behind() {
    if !is_possible() {
        return;
    }
    let dir = scratch();
    let script = "(sleep 1; echo late > late) > /dev/null 2>&1 &";
    let output = watch(dir.path(), &["sh", "-c", script]);
    assert!(output.status.success(), "{}", text(&output));
    assert_eq!(fs::read_to_string(dir.path().join("late")).unwrap(), "late\n");
}

#[test]
fn an_open_that_waits_holds_up_no_other() {
    if !is_possible() {
        return;
    }
    let dir = scratch();
    // Each end of a pipe waits in its open for the other one.
    let script = "mkfifo pipe; for i in 1 2 3 4 5 6; do cat pipe > /dev/null & done; sleep 0.2; echo x > pipe; wait";
    let since = Instant::now();
    let output = watch(dir.path(), &["timeout", "20", "sh", "-c", script]);
    assert!(output.status.success(), "{}", text(&output));
    assert!(since.elapsed() < Duration::from_secs(15));
}

#[test]
fn without_fuse_a_command_is_watched() {
    if !is_possible() || !weir_skip::is_root("a mount over /dev/fuse needs root") {
        return;
    }
    if !Path::new("/dev/fuse").exists() {
        weir_skip::skip("there is no /dev/fuse to hide");
        return;
    }
    let dir = scratch();
    file(&dir.path().join("data"), 8 * MIB, 0);
    // In place of the device, one that cannot be mounted.
    let script = "mount --bind /dev/null /dev/fuse && exec \"$0\" run --report --json cat data";
    let output = std::process::Command::new("unshare")
        .args(["-m", "sh", "-c", script, env!("CARGO_BIN_EXE_weir")])
        .current_dir(dir.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stderr).unwrap();
    assert_eq!(report["engine"], "watch", "{report}");
    assert!(resident(&dir.path().join("data")) <= 8 * MIB / 100);
}
