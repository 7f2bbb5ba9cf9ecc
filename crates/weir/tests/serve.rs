//! `weir serve`: start, announcement, stop. `nfs.rs` tests what clients see.

mod common;

use common::{Server, as_ordinary_user, fail, give_to_ordinary_user, scratch, text, weir};
use rustix::process::Signal;
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

fn arguments<'a>(state: &'a Path, options: &'a [&'a str], dir: &'a Path) -> Vec<&'a Path> {
    let fixed = ["serve", "--state-dir"].map(Path::new);
    let options = options.iter().map(Path::new);
    fixed.into_iter().chain([state]).chain(options).chain([dir]).collect()
}

#[test]
fn signals_shut_the_server_down() {
    let dir = scratch();
    let export = dir.path().join("export");
    fs::create_dir(&export).unwrap();
    for signal in [Signal::TERM, Signal::INT] {
        let mut server = Server::start(&export, &[]);
        TcpStream::connect(("127.0.0.1", server.port)).unwrap();
        server.signal(signal);
        assert_eq!(server.ended(), Some(0), "{signal:?}");
    }
}

/// A stop before it serves ends it cleanly, too.
#[test]
fn a_signal_during_startup_shuts_the_server_down() {
    let dir = scratch();
    let export = dir.path().join("export");
    fs::create_dir(&export).unwrap();
    let state = dir.path().join("state");
    let bound = "127.0.0.1:0";
    for _ in 0..5 {
        let options = ["--bind", bound, "--budget", "64M"];
        let mut command = common::weir(arguments(&state, &options, &export));
        let mut starting =
            command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("weir starts");
        let status = format!("/proc/{}/status", starting.id());
        let hears = || {
            let text = fs::read_to_string(&status).unwrap();
            let caught = text.lines().find_map(|line| line.strip_prefix("SigCgt:\t")).unwrap();
            let caught = u64::from_str_radix(caught, 16).unwrap();
            [Signal::TERM, Signal::INT].iter().all(|s| caught & (1 << (s.as_raw() - 1)) != 0)
        };
        while !hears() {
            std::thread::yield_now();
        }
        let pid = rustix::process::Pid::from_child(&starting);
        rustix::process::kill_process(pid, Signal::TERM).unwrap();
        assert_eq!(starting.wait().unwrap().code(), Some(0));
    }
}

#[test]
fn counters_are_read_over_http() {
    let dir = scratch();
    let export = dir.path().join("export");
    fs::create_dir(&export).unwrap();
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut server = Server::start(&export, &["--metrics", &free.port().to_string()]);
    let mut stream = TcpStream::connect(free).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    assert!(reply.contains("\nweir_cache_budget_bytes{cache=\"/\"} "), "{reply}");
    // On request it logs its counts, and continues.
    server.signal(Signal::USR1);
    TcpStream::connect(("127.0.0.1", server.port)).unwrap();
    server.signal(Signal::TERM);
    assert_eq!(server.ended(), Some(0));
}

#[test]
fn serve_prints_the_mount_command() {
    let dir = scratch();
    let export = dir.path().join("export");
    fs::create_dir(&export).unwrap();
    let server = Server::start(&export, &["--read-only"]);
    let port = server.port;
    let mounts = server.said["mount"].as_array().unwrap();
    assert_eq!(
        mounts[0],
        format!("mount -t nfs -o vers=4.2,proto=tcp,port={port} 127.0.0.1:/ /mnt")
    );
    assert!(
        mounts[1]
            .as_str()
            .unwrap()
            .contains(&format!("vers=3,proto=tcp,port={port},mountport={port}"))
    );
    assert_eq!(server.said["exports"][0]["read_only"], true);
}

#[test]
fn a_port_in_use_is_reported() {
    let dir = scratch();
    let export = dir.path().join("export");
    fs::create_dir(&export).unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let bind = taken.local_addr().unwrap().to_string();
    let says = fail(1, arguments(&dir.path().join("state"), &["--bind", &bind], &export));
    assert!(says.contains(&format!("cannot listen on {bind}")), "{says}");
    assert!(says.contains("choose another with --bind"), "{says}");
}

#[test]
fn without_a_port_the_next_free_one_is_used_and_reported() {
    let dir = scratch();
    let export = dir.path().join("export");
    fs::create_dir(&export).unwrap();
    // An address of this test's own; this test takes its port if it is free, or becomes free while it waits.
    let begun = Instant::now();
    let _held = loop {
        match TcpListener::bind("127.0.0.53:2049") {
            Ok(held) => break Some(held),
            Err(_) if begun.elapsed() > Duration::from_secs(20) => break None,
            Err(_) => std::thread::sleep(Duration::from_millis(50)),
        }
    };
    let state = dir.path().join("state");
    let mut child = common::weir(arguments(&state, &["--bind", "127.0.0.53", "--json"], &export))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = std::io::BufReader::new(child.stdout.take().unwrap());
    let said: serde_json::Value =
        serde_json::Deserializer::from_reader(&mut out).into_iter().next().unwrap().unwrap();
    let port = said["port"].as_u64().unwrap();
    assert!((2050..2150).contains(&port), "{said}");
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, Signal::TERM).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    let said = common::text(&output);
    assert!(said.contains(&format!("port 2049 is not available, using {port}")), "{said}");
}

#[test]
fn unservable_directories_are_reported() {
    let dir = scratch();
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    let state = dir.path().join("state");
    let says = fail(1, arguments(&state, &[], &file));
    assert!(says.contains("it is not a directory; name the directory that contains it"), "{says}");
    let says = fail(1, arguments(&state, &[], &dir.path().join("missing")));
    assert!(says.contains("no such file or directory; check the path"), "{says}");
    let says = fail(1, arguments(&state, &["--bind", "192.0.2.77:0"], dir.path()));
    assert!(says.contains("this machine has no such address"), "{says}");
}

#[test]
fn two_servers_do_not_share_a_state_directory() {
    let dir = scratch();
    let export = dir.path().join("export");
    fs::create_dir(&export).unwrap();
    let _first = Server::start(&export, &[]);
    let state = export.with_extension("state");
    let says = fail(1, arguments(&state, &["--bind", "127.0.0.1:0"], &export));
    assert!(says.contains("is in use by another process"), "{says}");
}

#[test]
fn invalid_settings_are_refused_with_advice() {
    let dir = scratch();
    let export = dir.path().join("export");
    fs::create_dir(&export).unwrap();
    let path = export.to_str().unwrap();
    for (code, options, says) in [
        (1, ["--log", "loud"], "loud is not a level; the levels are off, error, warn, info, debug"),
        (1, ["--budget", "8191P"], "this machine, or this program's control group, has "),
        (1, ["--budget", "3"], "16.00 MiB at least; did you mean 3M or 3G?"),
        (2, ["--threads", "0"], "take 1 to 1024, or leave it out"),
    ] {
        let args = ["serve", "--check"].into_iter().chain(options).chain([path]);
        let said = fail(code, args);
        assert!(said.contains(says), "{options:?}: {said}");
    }
    give_to_ordinary_user(dir.path(), &export);
    fs::set_permissions(&export, fs::Permissions::from_mode(0o333)).unwrap();
    let output = as_ordinary_user(weir(["serve", "--check", path])).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    assert!(
        text(&output).contains("permission denied; check its permissions"),
        "{}",
        text(&output)
    );
}

#[test]
fn an_anonymous_user_without_write_access_is_reported() {
    if !weir_skip::is_root("a server that is not root's makes all calls as its user") {
        return;
    }
    let dir = scratch();
    let export = dir.path().join("export");
    fs::create_dir(&export).unwrap();
    for (mode, squash, said) in [
        (0o755, "root", true),
        (0o755, "all", true),
        (0o755, "none", false),
        (0o777, "root", false),
    ] {
        fs::set_permissions(&export, fs::Permissions::from_mode(mode)).unwrap();
        let mut command = weir(["serve", "--json", "--log", "warn", "--bind", "127.0.0.1:0"]);
        command.args(["--squash", squash, "--state-dir"]);
        command.arg(dir.path().join("state")).arg(&export);
        let log = dir.path().join("log");
        command.stderr(fs::File::create(&log).unwrap());
        let server = Server::spawn(command);
        let log = fs::read_to_string(&log).unwrap();
        let hint = "may not write to ";
        assert_eq!(log.contains(hint), said, "{mode:o} {squash}: {log}");
        drop(server);
    }
}
