//! A limit on the size of files (RLIMIT_FSIZE).

mod common;

use common::{Server, fail, run, scratch, text, weir};
use rustix::process::{Pid, Resource, Rlimit};
use std::fs;
use std::path::Path;
use std::process::Command;

const MEGABYTE: u64 = 1 << 20;

fn file_of(path: &Path, bytes: u64) -> &Path {
    fs::write(path, vec![7; bytes as usize]).unwrap();
    path
}

#[test]
fn a_server_outlives_writes_beyond_the_limit() {
    let dir = scratch();
    let export = dir.path().join("export");
    fs::create_dir(&export).unwrap();
    let mut server = Server::start(&export, &["--squash", "none"]);
    let limit = Rlimit { current: Some(4 * MEGABYTE), maximum: None };
    let pid = Pid::from_child(&server.child);
    rustix::process::prlimit(Some(pid), Resource::Fsize, limit).unwrap();
    let (small, big) = (dir.path().join("small"), dir.path().join("big"));
    let (small, big) = (file_of(&small, MEGABYTE), file_of(&big, 8 * MEGABYTE));
    for version in ["vers=3", "vers=4.2"] {
        let to = |file| server.url(file, version);
        let said = fail(1, ["cp", big.to_str().unwrap(), &to("big")]);
        assert!(said.contains("too large"), "{said}");
        run(["cp", small.to_str().unwrap(), &to(&format!("small{version}"))]);
    }
    assert_eq!(server.child.try_wait().unwrap(), None, "it still runs");
}

/// The server looks for the file system's largest file when it starts.
#[test]
fn a_server_starts_under_a_limit() {
    let dir = scratch();
    let export = dir.path().join("export");
    fs::create_dir(&export).unwrap();
    let (state, small) = (dir.path().join("state"), dir.path().join("small"));
    let options = ["serve", "--json", "--squash", "none", "--bind", "127.0.0.1:0", "--state-dir"];
    let serve = weir(options.map(Path::new).into_iter().chain([&*state, &*export]));
    let server = Server::spawn(limited(8192, &serve));
    let small = file_of(&small, MEGABYTE);
    run(["cp", small.to_str().unwrap(), &server.url("small", "vers=4.2")]);
}

/// The command under a limit in blocks, of 512 or 1024 bytes.
fn limited(blocks: u64, command: &Command) -> Command {
    let mut limited = Command::new("sh");
    let script = format!("ulimit -f {blocks}; exec \"$0\" \"$@\"");
    limited.args(["-c", &script]).arg(command.get_program()).args(command.get_args());
    limited
}

#[test]
fn a_copy_beyond_the_limit_fails_and_says_why() {
    let dir = scratch();
    let from = dir.path().join("from");
    file_of(&from, MEGABYTE);
    let cp = weir(["cp", from.to_str().unwrap(), dir.path().join("to").to_str().unwrap()]);
    let output = limited(16, &cp).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{:?} {}", output.status, text(&output));
    assert!(text(&output).contains("too large"), "{}", text(&output));
}

/// `weir run` writes for the command, to which the kernel applies the limit of the command.
#[test]
fn a_run_outlives_what_its_command_may_write() {
    let dir = scratch();
    let run = |script: &str| {
        let options = ["--engine", "mount", "--path", ".", "--compare", "--json"];
        let mut command = Command::new("sh");
        command.args(["-c", "ulimit -Sf 64; exec \"$0\" run \"$@\"", env!("CARGO_BIN_EXE_weir")]);
        command.args(options).args(["sh", "-c", script]).current_dir(dir.path());
        command.output().unwrap()
    };
    let script = "{ ulimit -Sf; grep SigIgn /proc/self/status; } >> limits; ulimit -Sf unlimited
        head -c 1000000 /dev/zero > file";
    let output = run(script);
    if output.status.code() == Some(125) {
        return weir_skip::skip(text(&output));
    }
    assert_eq!(output.status.code(), Some(0), "{:?} {}", output.status, text(&output));
    assert_eq!(fs::metadata(dir.path().join("file")).unwrap().len(), 1_000_000);
    // The second run, without Weir, starts as the first one did.
    let report: serde_json::Value = serde_json::from_slice(&output.stderr).unwrap();
    assert_eq!(report["plain"]["exit_code"], 0, "{report}");
    let limits = fs::read_to_string(dir.path().join("limits")).unwrap();
    let lines: Vec<_> = limits.lines().collect();
    assert_eq!((lines.len(), lines[0]), (4, "64"), "{limits}");
    assert_eq!(lines[..2], lines[2..], "{limits}");
    // Its own limit holds.
    let output = run("head -c 1000000 /dev/zero > small; exit $?");
    assert_eq!(output.status.code(), Some(128 + libc::SIGXFSZ), "{}", text(&output));
    assert!(fs::metadata(dir.path().join("small")).unwrap().len() <= 64 * 1024);
}
