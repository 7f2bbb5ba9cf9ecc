//! `weir lock`, on local files and over NFS.

mod common;

use common::{Server, fail, hear_signals, run, scratch, text, weir, within};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use std::fs;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Holds a lock until the file `stop` appears.
fn hold(at: &str, dir: &Path, range: &str) -> Child {
    let (ready, stop) = (dir.join("ready"), dir.join("stop"));
    let script = format!(
        "touch {}; while [ ! -e {} ]; do sleep 0.02; done; exit 7",
        ready.display(),
        stop.display()
    );
    let child = weir(["lock", "--range", range, at, "sh", "-c", &script]).spawn().unwrap();
    let begun = Instant::now();
    while !ready.exists() {
        assert!(begun.elapsed() < Duration::from_secs(180));
        std::thread::sleep(Duration::from_millis(10));
    }
    fs::remove_file(ready).unwrap();
    child
}

/// `at` is the name of a file that does not exist yet.
fn rules(at: &str, dir: &Path) {
    let says = fail(1, ["lock", "--test", at]);
    assert!(says.contains(at), "{says}");
    let mut held = hold(at, dir, "10-19");
    assert_eq!(run(["lock", "--test", at]), "exclusive 10-19\n");
    assert_eq!(run(["lock", "--test", "--range", "20-", at]), "free\n");
    let says = fail(1, ["lock", "--nonblock", "--range", "0-10", at, "false"]);
    assert!(says.contains("another owner holds a conflicting lock"), "{says}");
    let begun = Instant::now();
    let says = fail(1, ["lock", "--wait", "1", at, "false"]);
    assert!(says.contains("another owner holds a conflicting lock"), "{says}");
    assert!(says.contains("it was not granted in that time"), "{says}");
    assert_eq!(says.contains("or the server does not answer"), at.starts_with("nfs:"), "{says}");
    assert!(begun.elapsed() >= Duration::from_secs(1));
    // As --nonblock: the answer to one request decides, whenever it comes.
    let says = fail(1, ["lock", "--wait", "0", at, "false"]);
    assert!(says.contains(": another owner holds a conflicting lock"), "{says}");
    assert_eq!(run(["lock", "--wait", "0", "--range", "20-", at, "echo", "free"]), "free\n");
    // Options after the command's name belong to the command.
    assert_eq!(run(["lock", "--range", "0-9", at, "echo", "-n", "--range"]), "--range");
    fs::write(dir.join("stop"), "").unwrap();
    assert_eq!(held.wait().unwrap().code(), Some(7), "the command's exit code");
    fs::remove_file(dir.join("stop")).unwrap();
    assert_eq!(run(["lock", "--nonblock", "--shared", at, "echo", "mine"]), "mine\n");
    let says = fail(1, ["lock", at, "/there/is/no/such/program"]);
    assert!(says.contains("cannot run /there/is/no/such/program"), "{says}");
    assert_eq!(run(["lock", "--test", at]), "free\n");
}

#[test]
fn a_local_file_is_locked_while_a_command_runs() {
    let dir = scratch();
    rules(dir.path().join("file").to_str().unwrap(), dir.path());
}

/// A server that forgot the lock may have granted it to another client since.
#[test]
fn a_lost_lock_is_reported_and_its_command_terminated() {
    for version in ["4.0", "4.2"] {
        let dir = scratch();
        let export = dir.path().join("export");
        fs::create_dir(&export).unwrap();
        let mut server = Server::start(&export, &["--squash", "none"]);
        let at = server.url("file", &format!("vers={version}"));
        let (ready, ended) = (dir.path().join("ready"), dir.path().join("ended"));
        let script = format!(
            "trap 'touch {}; exit 0' TERM; touch {}; while :; do sleep 0.02; done",
            ended.display(),
            ready.display()
        );
        let held = weir(["lock", &at, "sh", "-c", &script]).stderr(Stdio::piped()).spawn().unwrap();
        within(LIMIT, || ready.exists().then_some(()));
        server.signal(Signal::KILL);
        assert_eq!(server.ended(), None);
        fs::remove_dir_all(export.with_extension("state")).unwrap();
        let bind = format!("127.0.0.1:{}", server.port);
        let _again = Server::start(&export, &["--squash", "none", "--bind", &bind]);
        let output = held.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{version}: {}", text(&output));
        assert!(text(&output).contains("cannot keep the lock on"), "{}", text(&output));
        assert!(ended.exists(), "{version}: the command was told");
    }
}

/// What the clients have sent meanwhile lies unread in the server's sockets.
#[test]
fn a_lock_outlives_a_standstill_of_the_server() {
    let dir = scratch();
    let export = dir.path().join("export");
    fs::create_dir(&export).unwrap();
    let lease = Duration::from_secs(20);
    let options = ["--squash", "none", "--lease", &lease.as_secs().to_string()];
    let server = Server::start(&export, &options);
    let files = ["4.0", "4.1", "4.2"];
    let url = |version: &str| server.url(version, &format!("vers={version}"));
    let mut holders = files.map(|version| hold(&url(version), dir.path(), "0-"));
    let got = |version: &str| dir.path().join(format!("got {version}"));
    let wait = |version: &str| {
        let mut command = weir(["lock", &url(version), "touch"]);
        command.arg(got(version)).spawn().unwrap()
    };
    let mut waiters = files.map(|version| [(); 3].map(|()| wait(version)));
    // Some of them wait by now, and those that still mount may give up.
    std::thread::sleep(Duration::from_secs(2));
    server.pause();
    std::thread::sleep(lease + Duration::from_secs(5));
    server.signal(Signal::CONT);
    let tests = files.map(|version| run(["lock", "--test", &url(version)]));
    assert_eq!(tests, ["exclusive 0-\n"; 3]);
    assert_eq!(files.map(|version| got(version).exists()), [false; 3], "another client got a lock");
    fs::write(dir.path().join("stop"), "").unwrap();
    for holder in &mut holders {
        assert_eq!(holder.wait().unwrap().code(), Some(7), "the command's exit code");
    }
    for waiter in waiters.iter_mut().flatten() {
        waiter.wait().unwrap();
    }
}

#[test]
fn signals_end_lock_while_the_server_hangs() {
    let dir = scratch();
    let export = dir.path().join("export");
    fs::create_dir(&export).unwrap();
    let server = Server::start(&export, &["--squash", "none"]);
    for version in ["3", "4.0", "4.2"] {
        let at = server.url(version, &format!("vers={version}"));
        let mut holder = hold(&at, dir.path(), "0-");
        let mut waiter = weir(["lock", &at, "true"]).spawn().unwrap();
        // Whether it already waits makes no difference.
        std::thread::sleep(Duration::from_millis(300));
        server.pause();
        let interrupt = |child: &Child| {
            // It may have ended.
            let _ = kill_process(Pid::from_child(child), Signal::INT);
        };
        fs::write(dir.path().join("stop"), "").unwrap();
        for child in [&mut waiter, &mut holder] {
            within(LIMIT, || {
                interrupt(child);
                std::thread::sleep(Duration::from_millis(200));
                child.try_wait().unwrap()
            });
        }
        server.signal(Signal::CONT);
        fs::remove_file(dir.path().join("stop")).unwrap();
    }
}

/// The end of a session sends SIGHUP to all of its processes, and some go on.
#[test]
fn a_lock_is_held_while_a_command_goes_on_after_signals() {
    let dir = scratch();
    let (ready, stop) = (dir.path().join("ready"), dir.path().join("stop"));
    let at = dir.path().join("file");
    let script = "trap '' HUP QUIT; trap 'touch ended' TERM; touch ready; while [ ! -e stop ]; do sleep 0.02; done";
    let mut command = weir(["lock".as_ref(), at.as_os_str()]);
    let mut held = command.args(["sh", "-c", script]).current_dir(dir.path()).spawn().unwrap();
    within(LIMIT, || ready.exists().then_some(()));
    for signal in [Signal::HUP, Signal::QUIT, Signal::INT, Signal::TERM] {
        kill_process(Pid::from_child(&held), signal).unwrap();
    }
    within(LIMIT, || dir.path().join("ended").exists().then_some(()));
    assert_eq!(run(["lock".as_ref(), "--test".as_ref(), at.as_os_str()]), "exclusive 0-\n");
    assert!(held.try_wait().unwrap().is_none(), "it ended before its command");
    fs::write(stop, "").unwrap();
    assert!(within(LIMIT, || held.try_wait().unwrap()).success());
    // A command that does not ignore SIGHUP gets it.
    fs::remove_file(ready).unwrap();
    let script = "trap 'exit 5' HUP; touch ready; while :; do sleep 0.02; done";
    let mut command = weir(["lock".as_ref(), at.as_os_str()]);
    let mut held = command.args(["sh", "-c", script]).current_dir(dir.path()).spawn().unwrap();
    within(LIMIT, || dir.path().join("ready").exists().then_some(()));
    kill_process(Pid::from_child(&held), Signal::HUP).unwrap();
    assert_eq!(within(LIMIT, || held.try_wait().unwrap()).code(), Some(5));
}

/// A shell ends a loop when SIGINT has ended the command in it, and goes on when the command exits with a code.
#[test]
fn an_interrupt_ends_a_loop_of_a_shell() {
    if Command::new("bash").args(["-c", "true"]).output().is_err() {
        weir_skip::skip("bash is not installed");
        return;
    }
    let dir = scratch();
    for command in ["\"$0\" lock file", "\"$0\" run"] {
        let script = format!(
            "for n in 1 2; do {command} sh -c 'touch ready; exec sleep 9'; done; touch went-on"
        );
        hear_signals();
        let mut bash = Command::new("bash");
        bash.args(["-c", &script, env!("CARGO_BIN_EXE_weir")]).current_dir(dir.path());
        let mut child = bash.process_group(0).spawn().unwrap();
        let ready = dir.path().join("ready");
        let begun = within(LIMIT, || match child.try_wait().unwrap() {
            // `weir run` may be impossible on this machine.
            Some(_) => Some(false),
            None => ready.exists().then_some(true),
        });
        assert!(begun || command.ends_with("run"), "{command}");
        if begun {
            std::thread::sleep(Duration::from_millis(300));
            kill_process_group(Pid::from_child(&child), Signal::INT).unwrap();
            let ended = within(LIMIT, || child.try_wait().unwrap());
            assert_eq!(ended.signal(), Some(Signal::INT.as_raw()), "{command}: {ended}");
            assert!(!dir.path().join("went-on").exists(), "{command}");
            fs::remove_file(ready).unwrap();
        }
    }
}

const LIMIT: Duration = Duration::from_secs(180);

#[test]
fn a_servers_file_is_locked_while_a_command_runs() {
    let dir = scratch();
    let export = dir.path().join("export");
    fs::create_dir(&export).unwrap();
    let server = Server::start(&export, &["--squash", "none"]);
    for version in ["3", "4.0", "4.2"] {
        let url = server.url(version, &format!("vers={version}"));
        rules(&url, dir.path());
    }
}
