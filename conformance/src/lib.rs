//! Runs the `weir` binary against real peers. A suite whose peer the machine lacks says so, and skips.
//!
//! - The Linux kernel's NFS client and server, in a guest that the program `run` in the directory
//!   named by `WEIR_LINUX` boots: `run [--disk IMAGE] [--server COMMAND] SCRIPT ARG...`. Guest
//!   scripts are in `conformance/guest/`. The server runs natively at 192.0.2.1, the guest is
//!   192.0.2.2; both see the same files.
//! - libnfs's command line tools, over loopback.

#![forbid(unsafe_code)]

mod guest_clock;
pub mod mount;
pub mod power_cut;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;

pub use weir_skip::{is_root, skip};

/// The workspace's root directory.
pub fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."))
}

/// The `weir` binary: the file that `WEIR_BINARY` names (from the workspace's root), or else one that cargo builds if
/// it is out of date.
///
/// # Panics
/// `WEIR_BINARY` names no file, or the build fails.
pub fn weir() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| {
        if let Some(binary) = std::env::var_os("WEIR_BINARY") {
            let binary = workspace().join(binary);
            assert!(binary.is_file(), "WEIR_BINARY: there is no {}", binary.display());
            return binary;
        }
        // Tests lie in TARGET/PROFILE/deps; the binary belongs two directories up.
        let test = std::env::current_exe().expect("a test has a path");
        let profile = test.ancestors().nth(2).expect("tests lie in TARGET/PROFILE/deps");
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "--quiet", "--package", "weir", "--bin", "weir"]);
        build.arg("--target-dir").arg(profile.parent().expect("a profile lies in a target dir"));
        if profile.ends_with("release") {
            build.arg("--release");
        }
        let status = build.current_dir(workspace()).status().expect("cargo runs");
        assert!(status.success(), "weir does not build");
        profile.join("weir")
    })
}

/// The path of a program on the path, in a system directory, or among this workspace's tools.
pub fn program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/sbin".into(), workspace().join("target/tools/bin")])
        .map(|dir| dir.join(name))
        .find(|p| p.is_file())
}

/// A Linux kernel to boot. A guest takes a processor for itself.
pub struct Guest {
    run: PathBuf,
}

impl Guest {
    /// The guest runner; `None`, and the test is skipped, if there is none or it cannot work.
    #[track_caller]
    pub fn find() -> Option<Self> {
        let run = match std::env::var_os("WEIR_LINUX") {
            Some(dir) => PathBuf::from(dir).join("run"),
            None => workspace().join("../shared/linux/run"),
        };
        if !run.is_file() {
            skip("no Linux guest: set WEIR_LINUX to the directory of a guest runner");
            return None;
        }
        if !weir_skip::is_root("the Linux guest's network needs root") {
            return None;
        }
        if let Some(missing) =
            ["mount.nfs", "ip", "unshare", "xz", "perl"].iter().find(|p| program(p).is_none())
        {
            skip(format!("the Linux guest needs {missing}"));
            return None;
        }
        Some(Self { run })
    }

    /// The directory of the guest runner, which also contains the script that starts knfsd.
    pub fn harness(&self) -> &Path {
        self.run.parent().unwrap_or(Path::new("."))
    }

    /// Boots the guest, runs `conformance/guest/SCRIPT ARG...` in it beside `server` (a shell
    /// command, run natively), and returns what both printed.
    ///
    /// # Panics
    /// The script failed; the message holds its output.
    pub fn run(&self, server: &str, options: &[&str], script: &str, args: &[&str]) -> String {
        let options = [options, &["--server", server]].concat();
        let (ok, text) = self.try_alone(&options, script, args);
        assert!(ok, "{script} {args:?} failed\n{text}");
        text
    }

    /// Boots the guest without a server beside it, and runs a script as [`run`](Self::run) does: whether it
    /// succeeded, and what it printed.
    ///
    /// # Panics
    /// The guest runner does not start.
    pub fn try_alone(&self, options: &[&str], script: &str, args: &[&str]) -> (bool, String) {
        let mut command = Command::new("unshare");
        // The runner names its network after its process, whose number a later one may get. Here the names
        // end with the runner, also if it is killed.
        command.args(["--mount", "--propagation", "slave", "sh", "-c", PRIVATE_NETWORKS]);
        command.arg(&self.run).args(options);
        command.arg(workspace().join("conformance/guest").join(script)).args(args);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let runner = command.spawn().expect("the guest runner starts");
        let output = guest_clock::wait_with_output(runner).expect("the runner's output is read");
        (output.status.success(), text_of(&output))
    }
}

/// Runs a command with names of network namespaces of its own (ip-netns(8)).
const PRIVATE_NETWORKS: &str =
    "mkdir -p /run/netns && mount -t tmpfs tmpfs /run/netns && exec \"$0\" \"$@\"";

/// A program's output and errors, without the carriage returns of a guest's console.
pub fn text_of(output: &Output) -> String {
    let (out, err) = (&output.stdout, &output.stderr);
    let text = [String::from_utf8_lossy(out), String::from_utf8_lossy(err)].concat();
    text.replace("\r\n", "\n")
}

/// The shell command that serves `dir` to the guest.
pub fn serve_command(dir: &Path, options: &str) -> String {
    format!(
        "exec {} serve --bind 192.0.2.1:2049 --squash none --state-dir {} {options} {}",
        weir().display(),
        state_dir(dir).display(),
        dir.display()
    )
}

fn state_dir(dir: &Path) -> PathBuf {
    dir.with_extension("state")
}

/// A `weir serve` on a free loopback port; dropping it ends the server.
pub struct Server {
    child: Child,
    /// The port that it listens on.
    pub port: u16,
}

impl Server {
    /// Serves `dir`.
    ///
    /// # Panics
    /// It does not start.
    pub fn start(dir: &Path) -> Self {
        Self::with(dir, &[])
    }

    /// Serves `dir` with options.
    ///
    /// # Panics
    /// It does not start.
    pub fn with(dir: &Path, options: &[&str]) -> Self {
        let mut child = Command::new(weir())
            .args(["serve", "--bind", "127.0.0.1:0", "--squash", "none", "--state-dir"])
            .arg(state_dir(dir))
            .args(options)
            .arg(dir)
            .stdout(Stdio::piped())
            .spawn()
            .expect("weir starts");
        let mut lines = BufReader::new(child.stdout.take().expect("stdout is piped")).lines();
        let port = lines
            .by_ref()
            .map_while(Result::ok)
            .find_map(|line| {
                line.split_once("127.0.0.1:")?
                    .1
                    .split(|c: char| !c.is_ascii_digit())
                    .next()?
                    .parse()
                    .ok()
            })
            .expect("weir says where it listens");
        std::thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
        Self { child, port }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A directory for the files of one test, removed when dropped.
///
/// # Panics
/// There is no space for one.
pub fn scratch() -> tempfile::TempDir {
    tempfile::tempdir_in(std::env::var_os("CARGO_TARGET_TMPDIR").unwrap_or("/var/tmp".into()))
        .expect("a scratch directory can be made")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_guest_runner_leaves_no_name_of_its_network() {
        if !is_root("names of networks need root") {
            return;
        }
        if program("ip").is_none() || program("unshare").is_none() {
            return skip("names of networks need ip and unshare");
        }
        // A container's superuser may lack the capability.
        let unshared = Command::new("unshare").args(["--mount", "true"]).output();
        if !unshared.is_ok_and(|output| output.status.success()) {
            return skip("names of networks need a mount namespace");
        }
        let dir = scratch();
        let run = dir.path().join("run");
        // As a runner that is killed: it removes nothing.
        std::fs::write(&run, "#!/bin/sh\nip netns add guest-of-a-test && ip netns list\n").unwrap();
        std::fs::set_permissions(&run, std::fs::Permissions::from_mode(0o755)).unwrap();
        let guest = Guest { run };
        for _ in 0..2 {
            let (ok, text) = guest.try_alone(&[], "none", &[]);
            assert!(ok && text == "guest-of-a-test\n", "{text}");
        }
    }
}
