//! `weir bench serve` and `weir bench readplus`, and what they leave behind.

mod common;

use common::{Server, fail, json, run, scratch};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;
use std::time::Duration;

const WORK: [&str; 13] = [
    "4 KiB reads, one at a time",
    "4 KiB reads by a waiting thread",
    "4 KiB reads, 32 at a time",
    "1 MiB reads, one at a time",
    "1 MiB reads, 4 at a time",
    "1 MiB writes, 4 at a time",
    "create",
    "stat",
    "rename and back",
    "remove",
    "create, 32 at a time",
    "rename and back, 32 at a time",
    "remove, 32 at a time",
];

const SMALL: [&str; 7] = ["--quick", "--size", "16M", "--files", "20", "--seconds", "0.05"];

#[test]
fn serve_measures_every_work_with_every_version() {
    let scratch = scratch();
    let dir = scratch.path().to_str().unwrap();
    let report = json(["bench", "serve", "--json", "--dir", dir].iter().chain(&SMALL));
    let figures = report["figures"].as_array().unwrap();
    assert_eq!(figures.len(), 4 * WORK.len());
    for (index, found) in figures.iter().enumerate() {
        assert_eq!(found["version"], ["3", "4.0", "4.1", "4.2"][index / WORK.len()]);
        assert_eq!(found["work"], WORK[index % WORK.len()]);
        assert!(found["operations_per_s"].as_f64().unwrap() > 0.0, "{found}");
        assert!(found["p50_us"].as_f64() <= found["p99_9_us"].as_f64(), "{found}");
        assert_eq!(found["to_first"], 1.0);
        let work = found["work"].as_str().unwrap();
        let block = if work.contains("KiB") { 4096.0 } else { 1048576.0 };
        let per_operation = if work.contains("iB") { block } else { 0.0 };
        let (rate, mb) = (found["operations_per_s"].as_f64().unwrap(), found["mb_per_s"].as_f64());
        assert!((mb.unwrap() - rate * per_operation / 1e6).abs() < 0.01, "{found}");
        assert_eq!(found["server_cpu_s_per_gb"].is_f64(), per_operation > 0.0, "{found}");
    }
    assert_eq!(fs::read_dir(dir).unwrap().count(), 0, "something stays behind");
}

#[test]
fn serve_does_only_the_requested_work() {
    let scratch = scratch();
    let dir = scratch.path().to_str().unwrap();
    let args = ["bench", "serve", "--json", "--dir", dir, "--vers", "4.2"];
    // Files to look up have to be created first, though that is not measured.
    let only = ["--only", "stat", "--only", "single-reads"];
    let report = json(args.iter().chain(&only).chain(&SMALL));
    let figures = report["figures"].as_array().unwrap();
    let work: Vec<_> = figures.iter().map(|f| f["work"].as_str().unwrap()).collect();
    assert_eq!(work, ["1 MiB reads, one at a time", "stat"]);
    assert!(figures.iter().all(|f| f["operations_per_s"].as_f64().unwrap() > 0.0), "{report}");
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
    assert_eq!(text.matches("1 MiB reads, 4 at a time").count(), 2, "{text}");
    assert_eq!(text.matches("NFS version").count(), 1, "{text}");
    assert!(!text.contains(" - s/GB") && text.contains(" s/GB"), "{text}");
    assert_eq!(fs::read_dir(&export).unwrap().count(), 0, "something stays on the server");
}

#[test]
fn serve_refuses_contradictory_options() {
    let scratch = scratch();
    let dir = scratch.path().to_str().unwrap();
    let said = fail(2, ["bench", "serve", "samba"]);
    assert!(said.contains("weir, weir-relaxed, ganesha, knfsd, or nfs://"), "{said}");
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
    common::within(Duration::from_secs(120), made);
    std::thread::sleep(Duration::from_millis(500));
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let ended = common::within(Duration::from_secs(120), || child.try_wait().unwrap());
    assert_eq!(ended.signal(), Some(Signal::INT.as_raw()));
    assert_eq!(fs::read_dir(dir).unwrap().count(), 0, "something stays behind");
}

/// At any point of the load, even during cleanup.
#[test]
fn an_interrupt_ends_a_run_whose_server_is_gone() {
    let scratch = scratch();
    for vers in ["3", "4.0", "4.2"] {
        let export = scratch.path().join(vers);
        fs::create_dir(&export).unwrap();
        let mut server = Server::start(&export, &["--squash", "none"]);
        let url = server.url("", "");
        let dir = scratch.path().to_str().unwrap();
        let args = ["bench", "serve", &url, "--vers", vers, "--size", "16M", "--dir", dir];
        let mut command = common::weir(args);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let made = || fs::read_dir(&export).unwrap().next().map(drop);
        common::within(Duration::from_secs(120), made);
        std::thread::sleep(Duration::from_millis(500));
        server.signal(Signal::KILL);
        server.ended();
        std::thread::sleep(Duration::from_millis(500));
        kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
        let ended = common::within(Duration::from_secs(120), || child.try_wait().unwrap());
        let said = common::text(&child.wait_with_output().unwrap());
        assert_eq!(ended.signal(), Some(Signal::TERM.as_raw()), "NFSv{vers}: {said}");
    }
}

/// Files on an existing file system, over loopback: needs no root.
const OWN: [&str; 6] = ["--fs", "own", "--link", "unlimited", "--size", "1M"];

#[test]
fn readplus_makes_the_whole_table() {
    let scratch = scratch();
    let (dir, html) = (scratch.path().join("files"), scratch.path().join("table.html"));
    fs::create_dir(&dir).unwrap();
    let args = ["bench", "readplus", "--json", "--dir", dir.to_str().unwrap(), "--html"];
    let report = json(args.iter().chain(&[html.to_str().unwrap()]).chain(&OWN));
    let files = report["file_systems"][0]["files"].as_array().unwrap();
    assert_eq!(files.len(), 10);
    for file in files {
        let data_bytes = file["data_bytes"].as_u64().unwrap();
        let cells = file["cells"].as_array().unwrap();
        let versions: Vec<_> = cells.iter().map(|c| c["version"].as_str().unwrap()).collect();
        assert_eq!(versions, ["3", "4.0", "4.1", "4.2"]);
        for cell in cells {
            let least = if cell["version"] == "4.2" { data_bytes } else { 1 << 20 };
            for state in ["uncached", "cached"] {
                let received = cell[state]["received_bytes"].as_u64().unwrap();
                // Segments of 4 KiB cost 36 bytes per pair, plus a header for each call.
                let most = least + least / 100 + (16 << 10);
                assert!((least..most).contains(&received), "{file} {state}");
                assert!(cell[state]["seconds"].as_f64().unwrap() > 0.0, "{file}");
            }
        }
    }
    let page = fs::read_to_string(html).unwrap();
    assert_eq!(page.matches("<svg viewBox=\"0 0 215").count(), 10);
    assert_eq!(fs::read_dir(dir).unwrap().count(), 0, "something stays behind");
}

#[test]
fn readplus_prints_the_texts_layout_for_any_server() {
    let scratch = scratch();
    let export = scratch.path().join("export");
    fs::create_dir(&export).unwrap();
    let server = Server::start(&export, &["--squash", "none"]);
    let (url, dir) = (server.url("", ""), export.to_str().unwrap());
    let mut args = vec!["bench", "readplus", "--server", &url, "--dir", dir];
    args.extend(["--file", "hole,mixed-8h", "--vers", "4.1,4.2"]);
    let text = run(args.iter().chain(&OWN));
    assert_eq!(text.lines().filter(|l| l.starts_with("mixed-8h  |")).count(), 2, "{text}");
    assert!(text.contains("|      v4.1       |      v4.2       |"), "{text}");
    assert!(text.contains("every file: v4.2 to v4.1"), "{text}");
    assert_eq!(fs::read_dir(&export).unwrap().count(), 0, "something stays behind");
}

#[test]
fn readplus_refuses_contradictory_options() {
    let said = fail(2, ["bench", "readplus", "--file", "mixed-5d"]);
    assert!(said.contains("the files are data, hole, and mixed-4d"), "{said}");
    let said = fail(2, ["bench", "readplus", "--link", "fast"]);
    assert!(said.contains("1gbit, 100mbit"), "{said}");
    let said = fail(1, ["bench", "readplus", "--size", "100K"]);
    assert!(said.contains("multiple of 64K"), "{said}");
    let said = fail(1, ["bench", "readplus", "--server", "nfs://h/", "--fs", "xfs"]);
    assert!(said.contains("use --fs own"), "{said}");
    let scratch = scratch();
    let dir = scratch.path().to_str().unwrap();
    for client in ["linux", "linux-direct"] {
        let args = ["bench", "readplus", "--client", client, "--dir", dir];
        let mut command = common::weir(args.iter().chain(&OWN));
        let output = command.env_remove("WEIR_LINUX").output().unwrap();
        assert!(common::text(&output).contains("set WEIR_LINUX"), "{}", common::text(&output));
    }
    assert_eq!(fs::read_dir(dir).unwrap().count(), 0, "something stays behind");
}

#[test]
fn tree_counts_the_round_trips_of_every_work() {
    let scratch = scratch();
    let dir = scratch.path().to_str().unwrap();
    let args = ["bench", "tree", "--json", "--quick", "--files", "200", "--dir", dir];
    let report = json(args.iter().chain(&["--vers", "3", "--vers", "4.2", "--delay", "1"]));
    let figures = report["figures"].as_array().unwrap();
    let weir = figures.iter().filter(|figure| figure["client"] == "weir");
    let found: Vec<_> =
        weir.map(|f| (f["version"].as_str().unwrap(), f["work"].as_str().unwrap())).collect();
    let work = ["up", "down", "continue", "remove"];
    let want: Vec<_> = ["3", "4.2"].iter().flat_map(|v| work.map(|w| (*v, w))).collect();
    assert_eq!(found, want);
    for figure in figures.iter().filter(|figure| figure["version"] == "4.2") {
        // A directory of 16 files takes some calls, a file above 64 KiB more, and the mount ten.
        let most = if figure["work"] == "continue" { 0.4 } else { 2.5 };
        let calls = figure["round_trips_per_file"].as_f64().unwrap();
        assert!(calls > 0.0 && calls < most, "{figure}");
        assert!(figure["files_per_s"].as_f64().unwrap() > 0.0, "{figure}");
    }
    assert_eq!(fs::read_dir(dir).unwrap().count(), 0, "something stays behind");
}

#[test]
fn tree_measures_every_client_at_a_server_that_runs() {
    let scratch = scratch();
    let (dir, export) = (scratch.path().join("dir"), scratch.path().join("export"));
    fs::create_dir(&dir).unwrap();
    fs::create_dir_all(export.join("below")).unwrap();
    let server = Server::start(&export, &["--squash", "none"]);
    let url = format!("nfs://127.0.0.1:{p}/below?mountport={p}", p = server.port);
    let small = ["--files", "20", "--rounds", "1", "--delay", "0", "--vers", "3", "--vers", "4.2"];
    // What was measured, and what was said about it.
    let bench = |url: &str| {
        let mut command = common::weir(["bench", "tree", "--json", url].iter().chain(&small));
        let output = command.arg("--dir").arg(&dir).output().unwrap();
        assert!(output.status.success(), "{}", common::text(&output));
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        (report["figures"].clone(), String::from_utf8(output.stderr).unwrap())
    };
    let rows = |figures: &Value, client: &str, version: &str| -> Vec<String> {
        let figures = figures.as_array().unwrap().iter();
        let own = figures.filter(|row| row["client"] == client && row["version"] == version);
        own.map(|row| row["work"].as_str().unwrap().to_owned()).collect()
    };
    let (figures, said) = bench(&url);
    let is_left_out = said.contains("Linux's client is left out");
    for version in ["3", "4.2"] {
        assert_eq!(rows(&figures, "weir", version), ["up", "down", "continue", "remove"]);
        let linux: &[&str] = if is_left_out { &[] } else { &["up", "down", "remove"] };
        assert_eq!(rows(&figures, "linux, cp", version), linux, "{said}");
    }
    // MOUNT's port is not known.
    let (figures, said) = bench(url.split_once('?').unwrap().0);
    assert!(said.contains("version 3 is left out"), "{said}");
    assert_eq!(rows(&figures, "weir", "3"), [""; 0]);
    assert_eq!(rows(&figures, "weir", "4.2"), ["up", "down", "continue", "remove"]);
    assert_eq!(fs::read_dir(export.join("below")).unwrap().count(), 0, "something stays behind");
}
