//! `weir status`, `warm` and `evict` beside a running server.

mod common;

use common::{Server, scratch, text, weir, within};
use serde_json::Value;
use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::Duration;

const MIB: u64 = 1 << 20;

/// A served directory, and a directory of sockets that no other test uses.
struct Rig {
    dir: tempfile::TempDir,
    export: PathBuf,
}

impl Rig {
    fn new() -> Self {
        let dir = scratch();
        let export = dir.path().canonicalize().unwrap().join("export");
        fs::create_dir(&export).unwrap();
        Self { dir, export }
    }

    fn runtime(&self) -> &Path {
        self.dir.path()
    }

    fn serve(&self) -> Server {
        let mut command = weir(["serve", "--json", "--log", "warn", "--bind", "127.0.0.1:0"]);
        command.arg("--budget").arg("32M");
        command.arg("--state-dir").arg(self.export.with_extension("state")).arg(&self.export);
        command.env("XDG_RUNTIME_DIR", self.runtime());
        let server = Server::spawn(command);
        // It announces its address just before it listens at the control socket.
        let listens = || self.run::<&str>(&["status"]).status.success().then_some(());
        within(Duration::from_secs(120), listens);
        server
    }

    fn run<S: AsRef<OsStr>>(&self, args: &[S]) -> Output {
        weir(args).env("XDG_RUNTIME_DIR", self.runtime()).output().unwrap()
    }

    fn json<S: AsRef<OsStr>>(&self, args: &[S]) -> Value {
        let output = self.run(args);
        assert!(output.status.success(), "{}", text(&output));
        serde_json::from_slice(&output.stdout).unwrap()
    }
}

#[test]
fn running_servers_are_listed_with_their_caches() {
    let rig = Rig::new();
    let none = rig.run(&["status"]);
    assert_eq!(none.status.code(), Some(1), "{}", text(&none));
    assert!(text(&none).contains("no weir process"));
    let server = rig.serve();
    fs::write(rig.export.join("file"), vec![1; MIB as usize]).unwrap();
    let read = rig.run(&["cat", &server.url("file", "vers=4.2")]);
    assert_eq!(read.stdout.len(), MIB as usize);
    let status = rig.json(&["status", "--json"]);
    let [status] = &status.as_array().unwrap()[..] else { panic!("{status}") };
    assert_eq!(status["pid"], server.child.id());
    assert_eq!(
        (&status["command"], &status["cache"]["budget_bytes"]),
        (&"serve".into(), &(32 * MIB).into())
    );
    assert_eq!(status["exports"][0]["path"], rig.export.to_str().unwrap());
    assert_eq!(status["exports"][0]["read_bytes"], MIB);
    let operations = status["operations"].as_array().unwrap();
    let opened = operations.iter().find(|one| {
        one["name"].as_str().unwrap().eq_ignore_ascii_case("open") && one["protocol"] == "nfs4"
    });
    let by_duration = opened.unwrap()["by_duration"].as_array().unwrap();
    assert_eq!(by_duration.len(), status["bounds_us"].as_array().unwrap().len() + 1);
    let table = text(&rig.run(&["status"]));
    assert!(
        table.contains(&server.child.id().to_string()) && table.contains("serving /"),
        "{table}"
    );
}

#[test]
fn files_are_warmed_into_the_cache_of_their_server_and_evicted() {
    let rig = Rig::new();
    let _server = rig.serve();
    let (file, sub) = (rig.export.join("sub/file"), rig.export.join("sub"));
    fs::create_dir(&sub).unwrap();
    fs::write(&file, vec![1; 3 * MIB as usize]).unwrap();
    fs::File::create(sub.join("hole")).unwrap().set_len(1 << 40).unwrap();
    let held = |output: &Value| -> (String, u64, u64) {
        let number = |name: &str| output[name].as_u64().unwrap();
        (output["cache"].as_str().unwrap().into(), number("files"), number("resident_bytes"))
    };
    let args = |command| [OsStr::new(command), "--json".as_ref(), sub.as_os_str()];
    let warmed = rig.json(&args("warm"));
    assert_eq!(held(&warmed[0]), ("weir".into(), 2, 3 * MIB));
    let shown = rig.json(&args("status"));
    assert_eq!(held(&shown[0]), ("weir".into(), 2, 3 * MIB));
    assert_eq!(shown[1]["cache"], "kernel");
    let largest = rig.json(&["status", "--files", "9", "--json"]);
    assert_eq!(largest.as_array().unwrap().len(), 1);
    assert_eq!(held(&largest[0]), ("weir".into(), 1, 3 * MIB));
    assert_eq!(largest[0]["path"], file.to_str().unwrap());
    let evicted = rig.json(&args("evict"));
    assert_eq!(held(&evicted[0]), ("weir".into(), 2, 0));
    assert_eq!(evicted.as_array().unwrap().len(), 1, "the kernel's cache is left alone");
}

/// A socket that stands for a process, which replies to one request, and ends if `ends`.
fn fake(rig: &Rig, pid: u32, reply: &'static [u8], ends: bool) {
    let sockets = rig.runtime().join("weir");
    fs::create_dir_all(&sockets).unwrap();
    fs::set_permissions(&sockets, fs::Permissions::from_mode(0o700)).unwrap();
    let socket = sockets.join(format!("{pid}.sock"));
    let _ = fs::remove_file(&socket);
    let listener = UnixListener::bind(socket).unwrap();
    std::thread::spawn(move || {
        loop {
            let mut stream = BufReader::new(listener.accept().unwrap().0);
            // The connection by which the process is found has no request.
            if stream.read_until(b'\n', &mut Vec::new()).is_ok_and(|read| read > 0) {
                let _ = stream.get_mut().write_all(reply);
                if ends {
                    return;
                }
            }
        }
    });
}

#[test]
fn a_process_that_ends_when_it_is_asked_was_not_there() {
    let rig = Rig::new();
    let file = rig.export.join("file");
    fs::write(&file, vec![1; MIB as usize]).unwrap();
    let begun = br#"{"file":{"path":{"Unix":[47,97]},"size_bytes":1,"resident_bytes":1,"dirty_bytes":0,"read_bytes":0}}
"#;
    let fakes = |ends| {
        for (pid, reply) in [(1, &b""[..]), (2, b"{\"fi")] {
            fake(&rig, pid, reply, ends);
        }
    };
    fakes(true);
    if text(&rig.run(&["evict".as_ref(), file.as_os_str()])).contains("cachestat(2) is missing") {
        return weir_skip::skip("the kernel does not report its cache");
    }
    for command in ["status", "warm", "evict"] {
        let mut args = vec![command.as_ref(), "--json".as_ref(), "--all".as_ref()];
        args.push(file.as_os_str());
        fakes(true);
        let held = rig.json(&args);
        let held = held.as_array().unwrap();
        assert!(!held.is_empty() && held.iter().all(|one| one["cache"] == "kernel"), "{held:?}");
    }
    fakes(true);
    let none = rig.run(&["status"]);
    assert!(text(&none).contains("no weir process"), "{}", text(&none));

    // This one has begun, so it is the one that serves the file.
    for (command, code) in [("status", 0), ("warm", 1), ("evict", 1)] {
        fake(&rig, 3, begun, true);
        let output = rig.run(&[command.as_ref(), "--json".as_ref(), file.as_os_str()]);
        assert_eq!(output.status.code(), Some(code), "{command}: {}", text(&output));
        let held: Value = serde_json::from_slice(&output.stdout).unwrap();
        let kernel = held.as_array().unwrap().iter().filter(|one| one["cache"] == "kernel");
        assert_eq!(kernel.count() > 0, code == 0, "{command}: {held}");
    }

    // These have not ended.
    fakes(false);
    let output = rig.run(&["status"]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    for pid in [1, 2] {
        assert!(
            text(&output).contains(&format!("ask the weir process {pid}")),
            "{}",
            text(&output)
        );
    }
}

#[test]
fn what_one_process_does_not_answer_the_others_and_the_kernel_do() {
    let rig = Rig::new();
    let server = rig.serve();
    let file = rig.export.join("file");
    fs::write(&file, vec![1; MIB as usize]).unwrap();
    let args = |command| [OsStr::new(command), "--json".as_ref(), file.as_os_str()];
    let _ = rig.json(&args("warm"));
    // Asked before the server.
    fake(&rig, 1, b"nonsense\n", false);
    let output = rig.run(&args("status"));
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("ask the weir process 1"), "{said}");
    let held: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (&held[0]["pid"], &held[0]["resident_bytes"]),
        (&server.child.id().into(), &MIB.into())
    );
    if !said.contains("cachestat(2) is missing") {
        assert_eq!(held[1]["cache"], "kernel");
    }
}

#[test]
fn a_file_that_does_not_fit_is_a_failure() {
    let rig = Rig::new();
    let _server = rig.serve();
    let file = rig.export.join("large");
    fs::write(&file, vec![1; 48 * MIB as usize]).unwrap();
    let output = rig.run(&["warm".as_ref(), file.as_os_str()]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    assert!(text(&output).contains("of 48.00 MiB are in memory"), "{}", text(&output));
}

#[test]
fn files_that_no_process_serves_are_those_of_the_kernel() {
    let rig = Rig::new();
    let path = rig.export.join("file");
    fs::write(&path, vec![1; MIB as usize]).unwrap();
    let output = rig.run(&["warm".as_ref(), "--json".as_ref(), path.as_os_str()]);
    if text(&output).contains("cachestat(2) is missing") {
        return weir_skip::skip("the kernel does not report its cache");
    }
    let held: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&held[0]["cache"], &held[0]["resident_bytes"]), (&"kernel".into(), &MIB.into()));
    let missing = rig.run(&["evict".as_ref(), rig.export.join("none").as_os_str()]);
    assert_eq!(missing.status.code(), Some(1), "{}", text(&missing));
}

#[test]
fn a_directory_of_sockets_that_others_can_enter_is_refused() {
    let rig = Rig::new();
    let sockets = rig.runtime().join("weir");
    fs::create_dir(&sockets).unwrap();
    fs::set_permissions(&sockets, fs::Permissions::from_mode(0o755)).unwrap();
    let output = rig.run(&["status"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output).contains("mode 0700"), "{}", text(&output));
}
