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
