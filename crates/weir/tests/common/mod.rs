//! Shared by the tests of the binary: running it, sparse files, a server.
#![allow(dead_code, reason = "each test binary uses a part of it")]

pub(crate) mod mount;
pub(crate) mod nfs3;
pub(crate) mod receivers;

use serde_json::Value;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use tokio::signal::unix::SignalKind;

pub(crate) const PAGE: u64 = 4096;

/// More blocks that a file may have than another one with the same data: written in pieces, with pauses between them,
/// it has more extents, which take a few blocks to record.
pub(crate) const EXTENTS: u64 = 64;

/// Has the programs that this process starts hear the signals to stop, although it ignores some: shells have it so for
/// what runs in the background of a script. What a process handles, those that it starts do not ignore.
pub(crate) fn hear_signals() {
    static DONE: std::sync::Once = std::sync::Once::new();
    DONE.call_once(|| {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
        let ignored = u64::from_str_radix(ignored.trim(), 16).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
        let _within = runtime.enter();
        for kind in [SignalKind::interrupt(), SignalKind::quit(), SignalKind::hangup()] {
            if (ignored >> (kind.as_raw_value() - 1)) & 1 == 1 {
                drop(tokio::signal::unix::signal(kind).unwrap());
            }
        }
    });
}

/// The binary with these arguments.
pub(crate) fn weir<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Command {
    hear_signals();
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.args(args).env_remove("RUST_LOG");
    command
}

/// Runs it, and returns its standard output; it must succeed.
pub(crate) fn run<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> String {
    let output = weir(args).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    String::from_utf8(output.stdout).unwrap()
}

/// Runs it, and returns its standard error; it must fail with `code`.
pub(crate) fn fail<S: AsRef<OsStr>>(code: i32, args: impl IntoIterator<Item = S>) -> String {
    let output = weir(args).output().unwrap();
    assert_eq!(output.status.code(), Some(code), "{}", text(&output));
    String::from_utf8(output.stderr).unwrap()
}

/// Runs it, and parses its standard output; it must succeed.
pub(crate) fn json<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Value {
    serde_json::from_str(&run(args)).unwrap()
}

/// All output of a program.
pub(crate) fn text(output: &Output) -> String {
    let (out, err) = (&output.stdout, &output.stderr);
    format!("{}{}", String::from_utf8_lossy(out), String::from_utf8_lossy(err))
}

/// A scratch directory on a real file system, which supports holes.
pub(crate) fn scratch() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// The ordinary user of tests that root runs, and the group of that user.
const NOBODY: u32 = 65534;

/// Runs a command as an ordinary user, also if the test runs as root.
pub(crate) fn as_ordinary_user(mut command: Command) -> Command {
    if rustix::process::geteuid().is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    command
}

/// Gives a tree to the user of [`as_ordinary_user`], and opens `above`, the scratch directory, to that user.
pub(crate) fn give_to_ordinary_user(above: &Path, tree: &Path) {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    fs::set_permissions(above, fs::Permissions::from_mode(0o755)).unwrap();
    std::os::unix::fs::chown(above, Some(NOBODY), Some(NOBODY)).unwrap();
    let mut ahead = vec![tree.to_path_buf()];
    while let Some(path) = ahead.pop() {
        std::os::unix::fs::lchown(&path, Some(NOBODY), Some(NOBODY)).unwrap();
        if path.is_dir() {
            ahead.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
    }
}

/// Creates a file of `size` bytes with non-zero data in these ranges.
pub(crate) fn sparse(path: &Path, size: u64, data: impl IntoIterator<Item = (u64, u64)>) {
    let file = File::create(path).unwrap();
    for (start, len) in data {
        let bytes: Vec<u8> = (start..start + len).map(|at| (at % 251 + 1) as u8).collect();
        file.write_all_at(&bytes, start).unwrap();
    }
    file.set_len(size).unwrap();
    file.sync_all().unwrap();
}

/// The blocks allocated to a file after writeback.
pub(crate) fn blocks(path: &Path) -> u64 {
    File::open(path).unwrap().sync_all().unwrap();
    fs::metadata(path).unwrap().blocks()
}

/// Whether two files hold the same bytes; reads them a piece at a time.
pub(crate) fn same(a: &Path, b: &Path) -> bool {
    let (mut a, mut b) = (File::open(a).unwrap(), File::open(b).unwrap());
    if a.metadata().unwrap().len() != b.metadata().unwrap().len() {
        return false;
    }
    let (mut left, mut right) = (vec![0; 1 << 20], vec![0; 1 << 20]);
    loop {
        let n = a.read(&mut left).unwrap();
        if n == 0 {
            return true;
        }
        b.read_exact(&mut right[..n]).unwrap();
        if left[..n] != right[..n] {
            return false;
        }
    }
}

/// A running `weir serve`; killed when dropped.
pub(crate) struct Server {
    pub(crate) child: Child,
    pub(crate) port: u16,
    /// The announcement, as JSON.
    pub(crate) said: Value,
}

impl Server {
    /// Serves `dir` on a free loopback port, with its state next to the directory.
    pub(crate) fn start(dir: &Path, options: &[&str]) -> Self {
        let mut command = weir(["serve", "--json", "--log", "warn", "--state-dir"]);
        command.arg(dir.with_extension("state")).args(options).arg(dir);
        if !options.contains(&"--bind") {
            command.args(["--bind", "127.0.0.1:0"]);
        }
        Self::spawn(command)
    }

    /// Serves the exports of a configuration file, with its log in `log`.
    pub(crate) fn configured(config: &Path, log: &Path) -> Self {
        let mut command = weir(["serve", "--json", "--config"]);
        command.arg(config).stderr(File::create(log).unwrap());
        Self::spawn(command)
    }

    /// Runs a command that serves and announces that as JSON.
    pub(crate) fn spawn(mut command: Command) -> Self {
        // The new binary is busy while a process just forked by a concurrent test still has it
        // open.
        let mut child = loop {
            match command.stdout(Stdio::piped()).spawn() {
                Err(error) if error.kind() == std::io::ErrorKind::ExecutableFileBusy => {
                    std::thread::sleep(std::time::Duration::from_millis(20));
                }
                spawned => break spawned.unwrap(),
            }
        };
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        let said: Value = loop {
            assert_ne!(out.read_line(&mut line).unwrap(), 0, "the server ended: {line}");
            if let Ok(said) = serde_json::from_str(&line) {
                break said;
            }
        };
        let port = said["port"].as_u64().unwrap().try_into().unwrap();
        Self { child, port, said }
    }

    /// The URL of a path below the export, with mount options.
    pub(crate) fn url(&self, path: &str, options: &str) -> String {
        format!("nfs://127.0.0.1:{port}/{path}?mountport={port}&{options}", port = self.port)
    }

    /// Stops the server (SIGSTOP); none of its threads runs when this returns.
    pub(crate) fn pause(&self) {
        stop(&self.child);
    }

    /// Sends a signal.
    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// Waits for the end, and returns the exit code; `None` if a signal ended it.
    pub(crate) fn ended(&mut self) -> Option<i32> {
        within(Duration::from_secs(120), || self.child.try_wait().unwrap()).code()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Stops a process (SIGSTOP); none of its threads runs when this returns. It may have ended, too.
pub(crate) fn stop(process: &Child) {
    let pid = rustix::process::Pid::from_child(process);
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    let tasks = format!("/proc/{}/task", process.id());
    within(Duration::from_secs(120), || {
        let stopped = |task: std::fs::DirEntry| {
            let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
            // pid (name) state ...
            stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with(['T', 'Z']))
        };
        std::fs::read_dir(&tasks).unwrap().flatten().all(stopped).then_some(())
    });
}

/// The first result of `poll` within a time limit.
pub(crate) fn within<T>(limit: Duration, mut poll: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = poll() {
            return found;
        }
        assert!(begun.elapsed() < limit, "it did not happen within {limit:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
