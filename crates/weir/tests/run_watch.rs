//! `weir run --engine watch`: commands whose opens are watched, without a mount.

mod common;

use common::{as_ordinary_user, give_to_ordinary_user, scratch, text, weir, within};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::cell::Cell;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Output, Stdio};
use std::time::Duration;
use weir_tools::kernel_cache::{evict, resident_bytes};

const MIB: u64 = 1 << 20;
const LIMIT: Duration = Duration::from_secs(300);

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

/// What a run that was asked for its report says in it, once each of its opens was looked at: an open that waits too
/// long for that goes on, and is only counted. Then it is prepared and run again.
fn seen(prepare: impl Fn(), run: impl Fn() -> Output) -> Value {
    within(LIMIT, || {
        prepare();
        let output = run();
        assert!(output.status.success(), "{}", text(&output));
        let report: Value = serde_json::from_slice(&output.stderr).unwrap();
        (report["unseen_opens"] == 0).then_some(report)
    })
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
            // Over the budget, it is dropped while the command runs.
            for budget in ["128M", "16M"] {
                let before = Cell::new(0);
                let prepare = || {
                    file(&data, 64 * MIB, cached);
                    before.set(resident(&data));
                };
                let args = ["--report", "--json", "--budget", budget, "sh", "-c", script];
                seen(prepare, || watch(&dir, &args));
                near(&data, before.get(), script);
            }
        }
    }
    let prepare = || {
        file(&data, 64 * MIB, 0);
        let _ = fs::remove_file(dir.join("copy"));
    };
    let report = seen(prepare, || watch(&dir, &["--report", "--json", "cp", "data", "copy"]));
    near(&data, 0, "what was read");
    near(&dir.join("copy"), 0, "what was written");
    assert_eq!(report["engine"], "watch", "{report}");
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
        "ulimit -n 256; exec \"$0\" run --engine watch --report --json sh -c 'i=0; while [ $i -lt 600 ]; do
        echo x > file-$i; i=$((i+1)); done'";
    let run = || {
        let mut command = std::process::Command::new("sh");
        command.args(["-c", script, env!("CARGO_BIN_EXE_weir")]);
        command.current_dir(dir.path()).output().unwrap()
    };
    let prepare = || {
        for entry in fs::read_dir(dir.path()).unwrap() {
            fs::remove_file(entry.unwrap().path()).unwrap();
        }
    };
    within(LIMIT, || {
        prepare();
        let output = run();
        assert!(output.status.success(), "{}", text(&output));
        let report: Value = serde_json::from_slice(&output.stderr).unwrap();
        let files = fs::read_dir(dir.path()).unwrap();
        let left: u64 = files.map(|entry| resident(&entry.unwrap().path())).sum();
        let is_dropped = left <= 6 * common::PAGE;
        assert!(is_dropped || report["unseen_opens"] != 0, "{left} of 600 pages: {report}");
        is_dropped.then_some(())
    });
}

#[test]
fn a_watched_command_of_an_ordinary_user_needs_no_privileges() {
    if !is_possible() {
        return;
    }
    let dir = scratch();
    let work = dir.path().join("work");
    fs::create_dir(&work).unwrap();
    let prepare = || {
        file(&work.join("data"), 8 * MIB, 0);
        give_to_ordinary_user(dir.path(), &work);
    };
    let run = || {
        let mut command = weir(["run", "--engine", "watch", "--report", "--json"]);
        command.args(["sh", "-c", "id -u; cat data | wc -c"]).current_dir(&work);
        let output = as_ordinary_user(command).output().unwrap();
        assert!(!output.stdout.starts_with(b"0\n"), "{}", text(&output));
        output
    };
    seen(prepare, run);
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

/// Before Linux 6.11, the end of a process that is not reaped is not seen, and `weir run` becomes the parent of each.
#[test]
fn what_the_command_left_behind_is_reaped() {
    if !is_possible() {
        return;
    }
    let script =
        "for n in 1 2 3; do (sleep 1000 > /dev/null 2>&1 & echo $!); done; echo $$; read go";
    let mut command = weir(["run", "--engine", "watch", "sh", "-c", script]);
    let mut outside = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(outside.stdout.take().unwrap()).lines();
    let pids: Vec<i32> = lines.take(4).map(|line| line.unwrap().parse().unwrap()).collect();
    let [first, second, third, command] = pids[..] else { panic!("{pids:?}") };
    let weir = outside.id();
    // pid (name) state parent ...
    let parent = |pid: i32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse::<u32>().ok()
    };
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(['.', '-']).map(|number| number.parse().unwrap_or(0));
    let version: (u32, u32) = (numbers.next().unwrap(), numbers.next().unwrap());
    let adopts = version < (6, 11);
    let end = |pid: i32| {
        within(LIMIT, || (!adopts || parent(pid) == Some(weir)).then_some(()));
        kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
        within(LIMIT, || (!adopts || parent(pid).is_none()).then_some(()));
    };
    end(first);
    outside.stdin.take().unwrap().write_all(b"\n").unwrap();
    within(LIMIT, || parent(command).is_none().then_some(()));
    end(second);
    assert!(outside.try_wait().unwrap().is_none(), "it waits for the last one");
    kill_process(Pid::from_raw(third).unwrap(), Signal::KILL).unwrap();
    assert!(within(LIMIT, || outside.try_wait().unwrap()).success());
}

#[test]
fn an_open_that_waits_holds_up_no_other() {
    if !is_possible() {
        return;
    }
    let dir = scratch();
    // Each end of a pipe waits in its open for the other one.
    let script = "for i in 1 2 3 4 5 6; do mkfifo pipe$i; cat pipe$i > /dev/null & done; sleep 0.2
        for i in 1 2 3 4 5 6; do echo x > pipe$i; rm pipe$i; done; wait";
    let args = ["--report", "--json", "timeout", "120", "sh", "-c", script];
    seen(|| (), || watch(dir.path(), &args));
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
    // In place of the device, one that cannot be mounted.
    let script = "mount --bind /dev/null /dev/fuse && exec \"$0\" run --report --json cat data";
    let run = || {
        let mut command = std::process::Command::new("unshare");
        command.args(["-m", "sh", "-c", script, env!("CARGO_BIN_EXE_weir")]);
        command.current_dir(dir.path()).output().unwrap()
    };
    let report = seen(|| file(&dir.path().join("data"), 8 * MIB, 0), run);
    assert_eq!(report["engine"], "watch", "{report}");
    assert!(resident(&dir.path().join("data")) <= 8 * MIB / 100);
}
