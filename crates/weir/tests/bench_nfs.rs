//! `weir bench serve`, and what it leaves behind.

mod common;

use common::{Server, fail, json, run, scratch};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::process::Stdio;
use std::time::Duration;

const SMALL: [&str; 7] = ["--quick", "--size", "16M", "--files", "20", "--seconds", "0.05"];

#[test]
fn serve_measures_every_work_with_every_version() {
    let scratch = scratch();
    let dir = scratch.path().to_str().unwrap();
    let report = json(["bench", "serve", "--json", "--dir", dir].iter().chain(&SMALL));
    let figures = report["figures"].as_array().unwrap();
    assert_eq!(figures.len(), 4 * 7);
    for found in figures {
        assert!(found["operations_per_s"].as_f64().unwrap() > 0.0, "{found}");
        assert!(found["p50_us"].as_f64() <= found["p99_9_us"].as_f64(), "{found}");
        assert_eq!(found["to_first"], 1.0);
        let moves = found["work"].as_str().unwrap().contains("KiB");
        assert!(!moves || found["mb_per_s"].as_f64().unwrap() > 0.0, "{found}");
    }
    assert_eq!(fs::read_dir(dir).unwrap().count(), 0, "something stays behind");
}

#[test]
fn serve_puts_servers_side_by_side() {
    let scratch = scratch();
    let export = scratch.path().join("export");
    fs::create_dir(&export).unwrap();
    let server = Server::start(&export, &["--squash", "none"]);
    let (url, dir) = (server.url("", "vers=4.2"), scratch.path().to_str().unwrap());
    let process = server.child.id().to_string();
    let mut args = vec!["bench", "serve", &url, "weir", "--server-pid", &process];
    args.extend(["--vers", "4.2", "--dir", dir]);
    let text = run(args.iter().chain(&SMALL));
    assert_eq!(text.matches("1 MiB reads").count(), 2, "{text}");
    assert_eq!(text.matches("NFS version").count(), 1, "{text}");
    assert!(!text.contains(" - s/GB") && text.contains(" s/GB"), "{text}");
    assert_eq!(fs::read_dir(&export).unwrap().count(), 0, "something stays on the server");
}

#[test]
fn serve_refuses_what_makes_no_sense() {
    let scratch = scratch();
    let dir = scratch.path().to_str().unwrap();
    let said = fail(2, ["bench", "serve", "samba"]);
    assert!(said.contains("weir, ganesha, or nfs://"), "{said}");
    let said = fail(1, ["bench", "serve", "--quick", "--dir", dir, "--server-pid", "1"]);
    assert!(said.contains("more --server-pid than URLs"), "{said}");
    let said = fail(1, ["bench", "serve", "--quick", "--dir", dir, "nfs://127.0.0.1:1/"]);
    assert!(said.contains("mount nfs://127.0.0.1:1/ with vers=3"), "{said}");
    assert_eq!(fs::read_dir(dir).unwrap().count(), 0, "something stays behind");
}

#[test]
fn an_interrupted_run_leaves_nothing_behind() {
    let scratch = scratch();
    let dir = scratch.path().to_str().unwrap();
    let mut command = common::weir(["bench", "serve", "--size", "16M", "--dir", dir]);
    let mut child = command.stdout(Stdio::null()).spawn().unwrap();
    let made = || fs::read_dir(dir).unwrap().next().map(drop);
    common::within(Duration::from_secs(30), made);
    std::thread::sleep(Duration::from_millis(500));
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let ended = common::within(Duration::from_secs(30), || child.try_wait().unwrap());
    assert_eq!(ended.code(), Some(130));
    assert_eq!(fs::read_dir(dir).unwrap().count(), 0, "something stays behind");
}
