//! `weir run`: commands behind a mount in a namespace of their own.

mod common;

use common::receivers::fail_receivers;
use common::{give_to_ordinary_user, scratch, text, within};
use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::Duration;
use tempfile::TempDir;

const MIB: usize = 1 << 20;

/// The binary with these arguments. It finds no other processes: those of other tests may end while they are asked.
fn weir<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Command {
    let mut command = common::weir(args);
    command.env("XDG_RUNTIME_DIR", concat!(env!("CARGO_TARGET_TMPDIR"), "/none"));
    command
}

/// Whether this machine lets commands run this way; if not, the test is skipped.
#[track_caller]
fn is_possible() -> bool {
    let output = weir(["run", "--engine", "mount", "true"]).output().unwrap();
    if output.status.code() == Some(125) {
        weir_skip::skip(text(&output));
        return false;
    }
    assert!(output.status.success(), "{}", text(&output));
    true
}

/// A directory for a test, and what removes it; `None` where the test cannot run.
fn directory() -> Option<(TempDir, PathBuf)> {
    is_possible().then(|| {
        let dir = scratch();
        let path = dir.path().canonicalize().unwrap();
        (dir, path)
    })
}

/// Writes 96 MiB, of which the kernel's cache holds nothing then.
fn write_evicted(path: &Path) {
    fs::write(path, vec![5; 96 * MIB]).unwrap();
    fs::File::open(path).unwrap().sync_all().unwrap();
    let evicted = weir(["evict", "--kernel"]).arg(path).output().unwrap();
    assert!(evicted.status.success(), "{}", text(&evicted));
}

fn run(dir: &Path, args: &[&str]) -> Output {
    weir([&["run", "--engine", "mount"], args].concat()).current_dir(dir).output().unwrap()
}

#[test]
fn a_command_runs_as_without_it() {
    let Some((_scratch, dir)) = directory() else { return };
    for path in [&[][..], &["--path", "."]] {
        let script = "pwd; id -u; cat; echo x > made; ln -s made link; echo said >&2; exit 3";
        let mut command = weir(["run"]);
        command.args(path).args(["sh", "-c", script]).current_dir(&dir);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(b"input\n").unwrap();
        let output = child.wait_with_output().unwrap();
        let uid = rustix::process::geteuid().as_raw();
        let expected = format!("{}\n{uid}\ninput\n", dir.display());
        assert_eq!(String::from_utf8_lossy(&output.stdout), expected, "{}", text(&output));
        assert_eq!((output.status.code(), &output.stderr[..]), (Some(3), &b"said\n"[..]));
        assert_eq!(fs::read_to_string(dir.join("link")).unwrap(), "x\n");
        fs::remove_file(dir.join("made")).unwrap();
        fs::remove_file(dir.join("link")).unwrap();
    }
    let missing = run(&dir, &["no-such-command"]);
    assert_eq!(missing.status.code(), Some(127), "{}", text(&missing));
    fs::write(dir.join("plain"), "").unwrap();
    assert_eq!(run(&dir, &["./plain"]).status.code(), Some(126));
    assert_eq!(run(&dir, &["sh", "-c", "kill -9 $$"]).status.code(), Some(137));
    // A program is mapped, a directory is found again by its path, devices and pipes work.
    let all = "cp /bin/cat ./own && ./own /dev/null && ls /proc/self > /dev/null && cd / && cd - > /dev/null && ls own";
    let output = run(&dir, &["sh", "-c", all]);
    assert_eq!(output.stdout, b"own\n", "{}", text(&output));
}

#[test]
fn what_it_reads_and_writes_stays_out_of_the_kernels_cache() {
    let Some((_scratch, dir)) = directory() else { return };
    write_evicted(&dir.join("data"));
    let in_memory = |name: &str| {
        let output = weir(["status", "--json"]).arg(dir.join(name)).output().unwrap();
        let said: Value = serde_json::from_slice(&output.stdout).unwrap();
        let held = said.as_array().unwrap().iter().find(|held| held["cache"] == "kernel");
        held.unwrap()["resident_bytes"].as_u64().unwrap()
    };
    let before = in_memory("data");
    let args = ["--path", ".", "--budget", "32M", "--report", "--json", "cp", "data", "copy"];
    let output = run(&dir, &args);
    assert!(output.status.success(), "{}", text(&output));
    let report: Value = serde_json::from_slice(&output.stderr).unwrap();
    let bytes = 96 * MIB as u64;
    assert_eq!(
        (&report["read_bytes"], &report["written_bytes"]),
        (&bytes.into(), &bytes.into()),
        "{report}"
    );
    assert!(common::same(&dir.join("data"), &dir.join("copy")));
    // The comparison has read both; before it, at most 1 % of what was moved had come in.
    let after = report["kernel_cache_bytes_after"].as_u64().unwrap();
    assert!(after <= before + bytes / 100, "{before} before: {report}");
}

#[test]
fn the_root_directory_as_a_path_is_all_files() {
    let Some((_scratch, dir)) = directory() else { return };
    fs::write(dir.join("data"), vec![5; MIB]).unwrap();
    for paths in [&["--path", "/"][..], &["--path", ".", "--path", "/"]] {
        let output = run(&dir, &[paths, &["--report", "--json", "cat", "data"]].concat());
        assert!(output.status.success(), "{}", text(&output));
        assert_eq!(output.stdout.len(), MIB);
        let report: Value = serde_json::from_slice(&output.stderr).unwrap();
        assert!(report["read_bytes"].as_u64().unwrap() >= MIB as u64, "{report}");
    }
}

#[test]
fn a_comparison_shows_what_a_plain_run_leaves_in_the_kernels_cache() {
    let Some((_scratch, dir)) = directory() else { return };
    write_evicted(&dir.join("data"));
    let script = "echo run >>runs; cat data >/dev/null; echo output; exit $(wc -l <runs)";
    let args = ["--path", ".", "--budget", "32M", "--compare", "--json", "sh", "-c", script];
    let output = run(&dir, &args);
    // The exit code and the output are those of the run through Weir, which is the first.
    assert_eq!((output.status.code(), &*output.stdout), (Some(1), &b"output\n"[..]));
    let report: Value = serde_json::from_slice(&output.stderr).unwrap();
    let after = |run: &Value| run["kernel_cache_bytes_after"].as_u64().unwrap();
    let plain = &report["plain"];
    assert_eq!(plain["exit_code"], 2, "{report}");
    assert!(after(plain) >= 96 * MIB as u64 && after(&report) <= MIB as u64, "{report}");
    assert!(plain["elapsed_ms"].is_u64() && plain["cpu_ms"].is_u64(), "{report}");
    // A command that was ended does not begin again, nor does one that cannot be executed.
    let term = Signal::TERM.as_raw();
    for (command, code, by) in
        [("echo run >>runs; kill -TERM $$", None, Some(term)), ("exec ./runs", Some(126), None)]
    {
        let output = run(&dir, &["--path", ".", "--compare", "sh", "-c", command]);
        let said = text(&output);
        assert_eq!((output.status.code(), output.status.signal()), (code, by), "{said}");
        assert!(said.contains("not compared") && said.contains("engine mount"), "{said}");
    }
    assert_eq!(fs::read_to_string(dir.join("runs")).unwrap().lines().count(), 3);
}

#[test]
fn exit_codes_of_all_sizes_are_compared() {
    let Some((_scratch, dir)) = directory() else { return };
    for code in [125, 128, 143, 255] {
        let script = format!("exit {code}");
        let args = ["--path", ".", "--compare", "--json", "sh", "-c", &script];
        let output = run(&dir, &args);
        assert_eq!(output.status.code(), Some(code), "{}", text(&output));
        let report: Value = serde_json::from_slice(&output.stderr).unwrap();
        assert_eq!(report["plain"]["exit_code"], code, "{report}");
    }
}

#[test]
fn what_it_reads_passes_through_a_window_of_the_kernels_pages() {
    let Some((_scratch, dir)) = directory() else { return };
    fs::write(dir.join("data"), vec![5; 96 * MIB]).unwrap();
    // While the file is open, the kernel keeps its pages; it drops them a moment after they were read.
    let script =
        "exec 3<data; head -c 1000000 <&3 >first; \"$0\" status --json data; cat <&3 >/dev/null
        while read go; do \"$0\" status --json data; done";
    let mut command = weir(["run", "--engine", "mount", "--path", ".", "--budget", "32M"]);
    command.args(["sh", "-c", script, env!("CARGO_BIN_EXE_weir")]).current_dir(&dir);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = Killed(command.spawn().unwrap());
    let mut input = child.0.stdin.take().unwrap();
    let said = BufReader::new(child.0.stdout.take().unwrap());
    let mut said = serde_json::Deserializer::from_reader(said).into_iter::<Value>();
    let mut held = || {
        let said = said.next().unwrap().unwrap();
        let held = said.as_array().unwrap().iter().find(|held| held["cache"] == "kernel");
        held.unwrap()["resident_bytes"].as_u64().unwrap()
    };
    let first = held();
    assert!(first >= 1_000_000, "read ahead by the kernel: {first}");
    // A quarter of the budget.
    within(Duration::from_secs(120), || {
        input.write_all(b"\n").unwrap();
        (held() <= 8 * MIB as u64).then_some(())
    });
    drop(input);
    assert!(child.0.wait().unwrap().success());
}

#[test]
fn it_sees_what_programs_beside_it_write() {
    let Some((_scratch, dir)) = directory() else { return };
    fs::write(dir.join("data"), "first").unwrap();
    // The same descriptors all the time: at once after a lock, and within a second otherwise.
    let script =
        "exec 3<data 4<data 5<data 6<data 7<data 8<data 9<data; head -c 5 <&3; echo; read go
        flock -s 4; head -c 5 <&4; echo; read go
        for fd in 5 6 7 8 9; do
            sleep 0.5; now=$(head -c 5 <&$fd); [ \"$now\" != other ] && break
        done; echo \"$now\"";
    let mut command = weir(["run", "--engine", "mount", "--path", ".", "sh", "-c", script]);
    command.current_dir(&dir).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut next = || lines.next().unwrap().unwrap();
    let file = fs::File::options().write(true).open(dir.join("data")).unwrap();
    assert_eq!(next(), "first");
    file.write_all_at(b"other", 0).unwrap();
    input.write_all(b"\n").unwrap();
    assert_eq!(next(), "other");
    file.write_all_at(b"third", 0).unwrap();
    input.write_all(b"\n").unwrap();
    assert_eq!(next(), "third");
    assert!(child.wait().unwrap().success());
}

#[test]
fn an_ordinary_user_needs_no_privileges() {
    if !is_possible() {
        return;
    }
    let dir = scratch();
    let work = dir.path().join("work");
    fs::create_dir(&work).unwrap();
    give_to_ordinary_user(dir.path(), &work);
    let script = "id -u; echo x > made; cat made; ls /proc/self/exe > /dev/null";
    let mut output = Vec::new();
    for all in [&["--path", "."][..], &[]] {
        let weir = env!("CARGO_BIN_EXE_weir");
        let mut command = match rustix::process::geteuid().is_root() {
            false => Command::new(weir),
            // Only root may open the device on some machines.
            true => {
                let node = "mknod fuse c 10 229; chmod 666 fuse; mount --bind fuse /dev/fuse; rm fuse; cd work;
                    exec setpriv --reuid 65534 --regid 65534 --clear-groups \"$@\"";
                let mut command = Command::new("unshare");
                command.args(["-m", "sh", "-ec", node, "sh", weir]);
                command
            }
        };
        command.arg("run").args(all).args(["sh", "-c", script]);
        let is_root = rustix::process::geteuid().is_root();
        command.current_dir(if is_root { dir.path() } else { &work });
        let done = command.output().unwrap();
        assert!(done.status.success(), "{}", text(&done));
        output.push(String::from_utf8(done.stdout).unwrap());
    }
    assert!(
        output.iter().all(|said| said.ends_with("\nx\n") && !said.starts_with("0\n")),
        "{output:?}"
    );
}

#[test]
fn what_the_file_system_below_refuses_is_refused() {
    if !weir_skip::is_root("only root mounts a file system to run a command in") || !is_possible() {
        return;
    }
    let dir = scratch();
    let script = "mount -t tmpfs -o nosuid,nodev,noexec none . || exit 77
        cd \"$PWD\"; cp /bin/true program; cd /; exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", script, "sh", env!("CARGO_BIN_EXE_weir"), "run"]);
    command.args(["--engine", "mount", "--path"]).arg(dir.path());
    let look = "grep fuse /proc/self/mounts; cd \"$0\"; ls; ./program && echo ran; true";
    command.args(["sh", "-c", look]).arg(dir.path());
    let output = command.current_dir(dir.path()).output().unwrap();
    if output.status.code() == Some(77) {
        return weir_skip::skip(text(&output));
    }
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{}", text(&output));
    assert!(said.ends_with("\nprogram\n"), "{}", text(&output));
    let path = dir.path().canonicalize().unwrap();
    let place = format!(" {} ", path.display());
    let mount = said.lines().find(|line| line.contains(&place)).unwrap();
    assert!(["nosuid", "nodev", "noexec"].iter().all(|flag| mount.contains(flag)), "{mount}");
}

#[test]
fn what_the_file_system_below_refuses_is_refused_within_another_path() {
    if !weir_skip::is_root("only root mounts a file system to run a command in") || !is_possible() {
        return;
    }
    let dir = scratch();
    let below = dir.path().canonicalize().unwrap().join("below");
    fs::create_dir(&below).unwrap();
    let script = "mount -t tmpfs -o nosuid,nodev,noexec none below || exit 77
        cp /bin/true below/program; exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", script, "sh", env!("CARGO_BIN_EXE_weir"), "run"]);
    // In any order.
    command.args(["--engine", "mount", "--path"]).arg(&below).arg("--path").arg(dir.path());
    let look = "grep fuse /proc/self/mounts; cd \"$0\"; ls; ./program && echo ran; true";
    command.args(["sh", "-c", look]).arg(&below);
    let output = command.current_dir(dir.path()).output().unwrap();
    if output.status.code() == Some(77) {
        return weir_skip::skip(text(&output));
    }
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{}", text(&output));
    assert!(said.ends_with("\nprogram\n"), "{}", text(&output));
    let flags = ["nosuid", "nodev", "noexec"];
    for (path, refused) in [(below.as_path(), flags.as_slice()), (below.parent().unwrap(), &[])] {
        let place = format!(" {} ", path.display());
        let mount = said.lines().find(|line| line.contains(&place)).unwrap();
        assert!(flags.iter().all(|flag| mount.contains(flag) == refused.contains(flag)), "{mount}");
    }
}

#[test]
fn signals_reach_the_command() {
    if !is_possible() {
        return;
    }
    let dir = scratch();
    // None of them comes from a terminal, so each is sent to this one process alone.
    for engine in ["auto", "watch"].into_iter().filter(|engine| runs(engine)) {
        for (name, signal) in [("TERM", Signal::TERM), ("INT", Signal::INT), ("QUIT", Signal::QUIT)]
        {
            let script =
                format!("trap 'echo got; exit 9' {name}; echo ready; while :; do sleep 0.05; done");
            let mut command = weir(["run", "--engine", engine, "--path", ".", "sh", "-c", &script]);
            command.current_dir(dir.path()).stdout(Stdio::piped());
            let mut child = Killed(command.spawn().unwrap());
            let mut lines = BufReader::new(child.0.stdout.take().unwrap()).lines();
            assert_eq!(lines.next().unwrap().unwrap(), "ready");
            kill_process(Pid::from_child(&child.0), signal).unwrap();
            assert_eq!(lines.next().unwrap().unwrap(), "got");
            let ended = within(Duration::from_secs(120), || child.0.try_wait().unwrap());
            assert_eq!(ended.code(), Some(9), "{engine} {name}");
        }
    }
}

/// Whether commands run with this engine here; if not, that is noted.
#[track_caller]
fn runs(engine: &str) -> bool {
    let output = weir(["run", "--engine", engine, "true"]).output().unwrap();
    if output.status.code() == Some(125) {
        weir_skip::skip(text(&output));
        return false;
    }
    true
}

#[test]
fn a_signal_that_the_command_sends_to_its_group_comes_once() {
    let dir = scratch();
    let script = "trap 'n=${n}1' INT; kill -INT 0; sleep 1; echo $n";
    for engine in ["mount", "watch"].into_iter().filter(|engine| runs(engine)) {
        let mut command = weir(["run", "--engine", engine, "--path", ".", "sh", "-c", script]);
        let output = command.current_dir(dir.path()).process_group(0).output().unwrap();
        assert_eq!(output.stdout, b"1\n", "{engine}: {}", text(&output));
    }
}

/// As under nohup(1), and in the background of a script.
#[test]
fn signals_that_are_ignored_stay_so() {
    if !is_possible() {
        return;
    }
    let dir = scratch();
    for compare in [&[][..], &["--compare"]] {
        let script = "trap '' HUP INT; exec \"$@\" grep SigIgn /proc/self/status";
        let mut command = Command::new("sh");
        command.args(["-c", script, "sh", env!("CARGO_BIN_EXE_weir"), "run", "--path", "."]);
        let output = command.args(compare).current_dir(dir.path()).output().unwrap();
        assert!(output.status.success(), "{}", text(&output));
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let ignored = said.strip_prefix("SigIgn:").unwrap().trim();
        let ignored = u64::from_str_radix(ignored, 16).unwrap();
        assert_eq!(ignored & 0b11, 0b11, "{said}");
    }
}

#[test]
fn a_signal_ends_the_wait_for_what_the_command_left_behind() {
    if !is_possible() {
        return;
    }
    let dir = scratch();
    for engine in ["mount", "watch"] {
        let (mut outside, left) = waiting_for_a_process(engine, dir.path());
        let ended = stopped(&mut outside);
        kill_process(left, Signal::KILL).unwrap();
        let mut said = String::new();
        outside.0.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert!(!ended.success() && said.contains("a signal asked to stop"), "{engine}: {said}");
    }
}

/// A run that waits for a process that the command left behind, and that process.
fn waiting_for_a_process(engine: &str, dir: &Path) -> (Killed, Pid) {
    let script = "sleep 1000 > /dev/null 2>&1 & echo $!";
    let mut command = weir(["run", "--engine", engine, "--path", ".", "sh", "-c", script]);
    command.current_dir(dir).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut outside = Killed(command.spawn().unwrap());
    let mut left = String::new();
    BufReader::new(outside.0.stdout.take().unwrap()).read_line(&mut left).unwrap();
    let left = Pid::from_raw(left.trim().parse().unwrap()).unwrap();
    // Those that come with the command's end are the command's.
    std::thread::sleep(Duration::from_secs(2));
    assert!(outside.0.try_wait().unwrap().is_none(), "{engine}: it waits");
    (outside, left)
}

/// Asks a run to stop until it has ended.
fn stopped(outside: &mut Killed) -> ExitStatus {
    within(Duration::from_secs(120), || {
        kill_process(Pid::from_child(&outside.0), Signal::TERM).unwrap();
        std::thread::sleep(Duration::from_millis(100));
        outside.0.try_wait().unwrap()
    })
}

#[test]
fn a_file_without_a_name_leaves_none_when_a_signal_ends_the_wait() {
    if !weir_skip::is_root("only root looks into another's namespace") || !is_possible() {
        return;
    }
    let dir = scratch();
    let (mut outside, left) = waiting_for_a_process("mount", dir.path());
    let inside = format!("/proc/{}/cwd", left.as_raw_nonzero());
    let flags = OFlags::TMPFILE | OFlags::RDWR;
    let file = rustix::fs::open(inside, flags, Mode::from_raw_mode(0o600)).unwrap();
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    assert!(!stopped(&mut outside).success());
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    kill_process(left, Signal::KILL).unwrap();
    drop(file);
}

#[test]
fn it_waits_for_what_the_command_left_behind() {
    if !is_possible() {
        return;
    }
    let dir = scratch();
    let script = "(sleep 1; echo late > late) > /dev/null 2>&1 &";
    let output = run(dir.path(), &["--path", ".", "sh", "-c", script]);
    assert!(output.status.success(), "{}", text(&output));
    assert_eq!(fs::read_to_string(dir.path().join("late")).unwrap(), "late\n");
}

#[test]
fn a_mount_that_does_not_answer_stays_as_it_is() {
    if !is_possible() {
        return;
    }
    // What is below /tmp is left alone anyway.
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    // A FUSE file system that no process serves, until this shell ends.
    let script = "exec 9<>/dev/fuse
        mount -i -t fuse -o fd=9,rootmode=40000,user_id=$(id -u),group_id=$(id -g) none . || exit 77
        cd /; timeout -s KILL 180 \"$@\" 9<&-";
    let mut command = Command::new("unshare");
    if !rustix::process::geteuid().is_root() {
        command.args(["--user", "--map-current-user", "--keep-caps"]);
    }
    command.args(["-m", "bash", "-c", script, "sh", env!("CARGO_BIN_EXE_weir"), "run"]);
    command.args(["--engine", "mount", "sh", "-c", "grep '^none ' /proc/mounts; echo done"]);
    let output = command.current_dir(dir.path()).output().unwrap();
    if output.status.code() == Some(77) {
        return weir_skip::skip(text(&output));
    }
    assert!(output.status.success(), "{:?}: {}", output.status, text(&output));
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let there = dir.path().canonicalize().unwrap();
    assert!(said.contains(&format!(" {} ", there.display())), "not there: {said}");
    assert!(said.ends_with("done\n"), "{said}");
}

#[test]
fn where_it_cannot_work_it_says_so() {
    let limit = "echo 0 > /proc/sys/user/max_user_namespaces 2>/dev/null || exit 77; exec \"$WEIR\" run --engine mount true";
    // A user namespace inside which no further one is allowed, for a user who is not root there.
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-current-user", "--keep-caps", "sh", "-c", limit]);
    let output = command.env("WEIR", env!("CARGO_BIN_EXE_weir")).output().unwrap();
    match output.status.code() {
        Some(125) => assert!(text(&output).contains("run as root"), "{}", text(&output)),
        // Namespaces are not allowed at all, or their number cannot be limited.
        Some(1 | 77) => weir_skip::skip("namespaces cannot be limited here"),
        code => assert_eq!(code, Some(0), "{}", text(&output)),
    }
}

/// Other codes have a meaning for the program: 1 is "no match" of grep(1).
#[test]
fn a_command_that_has_not_begun_ends_with_125() {
    for engine in ["auto", "mount", "watch"] {
        for wrong in [
            ["--path", "/no-such-directory"],
            ["--budget", "3"],
            ["--budget", "x"],
            ["--cached", "--uncached"],
        ] {
            let mut command = weir(["run", "--engine", engine]);
            let output = command.args(wrong).args(["grep", "-q", "x"]).output().unwrap();
            assert_eq!(output.status.code(), Some(125), "{engine} {wrong:?}: {}", text(&output));
        }
        let mut command = weir(["run", "--engine", engine, "true"]);
        let output = command.env("WEIR_LOG", "loud").output().unwrap();
        assert_eq!(output.status.code(), Some(125), "{}", text(&output));
    }
    assert_eq!(weir(["run"]).output().unwrap().status.code(), Some(125));
    assert!(weir(["run", "--help"]).output().unwrap().status.success());
}

#[test]
fn without_a_place_for_its_root_directory_a_command_is_watched() {
    let run = |engine: &str| {
        let mut command = weir(["run", "--report", "--json", "--engine", engine, "true"]);
        command.env("TMPDIR", "/no-such-directory").output().unwrap()
    };
    assert_eq!(run("mount").status.code(), Some(125));
    let watched = run("watch");
    if watched.status.code() == Some(125) {
        return weir_skip::skip(text(&watched));
    }
    let output = run("auto");
    assert!(output.status.success(), "{}", text(&output));
    let report: Value = serde_json::from_slice(&output.stderr).unwrap();
    assert_eq!(report["engine"], "watch", "{report}");
}

/// A thread of the killed process may wait in the kernel for a page that another program reads; then only the guard
/// ends that read.
#[test]
fn a_command_whose_files_are_served_no_more_gets_errors() {
    let Some((_scratch, dir)) = directory() else { return };
    fs::write(dir.join("file"), vec![7; 24 * MIB]).unwrap();
    // Each reads what others have made the kernel drop, until a read fails.
    let read =
        |at| format!("while tail -c +{at} file > /dev/null; do echo read; done 2> /dev/null & ");
    let script: String = (0..24).map(|n| read(n * MIB)).collect();
    let script = format!("{script} wait");
    for _ in 0..3 {
        let mut command = weir(["run", "--engine", "mount", "--budget", "16M", "--path", "."]);
        command.args(["sh", "-c", &script]).current_dir(&dir).stdout(Stdio::piped());
        let mut outside = command.spawn().unwrap();
        let mut said = BufReader::new(outside.stdout.take().unwrap());
        let mut line = String::new();
        said.read_line(&mut line).unwrap();
        assert_eq!(line, "read\n");
        // Standard output ends when all of them have.
        let (send, ended) = std::sync::mpsc::channel();
        std::thread::spawn(move || send.send(said.read_to_end(&mut Vec::new())));
        stop_while_a_thread_waits(&outside);
        outside.kill().unwrap();
        ended.recv_timeout(Duration::from_secs(120)).unwrap().unwrap();
        within(Duration::from_secs(120), || outside.try_wait().unwrap());
    }
}

#[test]
fn a_command_whose_requests_are_received_no_more_gets_errors_and_the_run_fails() {
    let Some((_scratch, dir)) = directory() else { return };
    fs::write(dir.join("file"), "content").unwrap();
    for (end, code) in [("exit 7", 7), ("exit 0", 1)] {
        let script = format!("echo ready; read go; cat file && exit 9; {end}");
        let mut command = weir(["run", "--engine", "mount", "--path", ".", "sh", "-c", &script]);
        command.current_dir(&dir).stdin(Stdio::piped());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut outside = Killed(command.spawn().unwrap());
        let mut said = BufReader::new(outside.0.stdout.take().unwrap());
        let mut line = String::new();
        said.read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        if !fail_receivers(&outside.0) {
            return;
        }
        outside.0.stdin.take().unwrap().write_all(b"\n").unwrap();
        let ended = within(Duration::from_secs(120), || outside.0.try_wait().unwrap());
        let mut errors = String::new();
        outside.0.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
        assert_eq!(ended.code(), Some(code), "{errors}");
        assert!(errors.contains("cannot serve the command's files"), "{errors}");
    }
}

/// A process that is killed when the test fails.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Stops a process, if possible while one of its threads waits in the kernel, as one in a few dozen times.
fn stop_while_a_thread_waits(process: &Child) {
    let pid = Pid::from_child(process);
    let states = || -> Vec<String> {
        let tasks = fs::read_dir(format!("/proc/{}/task", process.id())).unwrap();
        let stat = |task: fs::DirEntry| fs::read_to_string(task.path().join("stat")).ok();
        // pid (name) state ...
        let state = |stat: String| stat.rsplit_once(") ").map(|(_, rest)| rest[..1].to_owned());
        tasks.flatten().filter_map(stat).filter_map(state).collect()
    };
    for _ in 0..100 {
        kill_process(pid, Signal::STOP).unwrap();
        let states = within(Duration::from_secs(120), || {
            Some(states())
                .filter(|states| states.iter().all(|state| ["T", "D"].contains(&&**state)))
        });
        if states.iter().any(|state| state == "D") {
            return;
        }
        kill_process(pid, Signal::CONT).unwrap();
        std::thread::sleep(Duration::from_millis(5));
    }
}
