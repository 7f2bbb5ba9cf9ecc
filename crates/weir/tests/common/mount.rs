//! A mounted source.

use super::{scratch, weir, within};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::time::Duration;

pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// A mounted source; unmounted when dropped.
pub(crate) struct Mount {
    pub(crate) child: Child,
    pub(crate) dir: PathBuf,
}

impl Mount {
    /// Mounts `source` on a new directory next to `near`; `None`, and the test is skipped, if this machine
    /// does not let it.
    #[track_caller]
    pub(crate) fn start(near: &Path, name: &str, options: &[&str], source: &str) -> Option<Self> {
        let dir = near.canonicalize().unwrap().join(name);
        fs::create_dir_all(&dir).unwrap();
        let mut command = weir(["mount", "--announce", "--budget", "32M"]);
        command.args(options).arg(source).arg(&dir).env("XDG_RUNTIME_DIR", near);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut said = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut said).unwrap();
        if said == "mounted\n" {
            return Some(Self { child, dir });
        }
        let mut why = String::new();
        child.stderr.take().unwrap().read_to_string(&mut why).unwrap();
        child.wait().unwrap();
        let lacking =
            ["no /dev/fuse", "the kernel refuses", "is not installed", "fusermount3 refuses"];
        assert!(lacking.iter().any(|lack| why.contains(lack)), "{why}");
        weir_skip::skip(why);
        None
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    pub(crate) fn ended(&mut self) -> ExitStatus {
        within(PATIENCE, || self.child.try_wait().unwrap())
    }

    pub(crate) fn is_mounted(&self) -> bool {
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
        table.lines().any(|line| line.split(' ').nth(4) == self.dir.to_str())
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if self.child.try_wait().unwrap().is_none() {
            self.signal(Signal::TERM);
            if std::thread::panicking() {
                std::thread::sleep(Duration::from_secs(1));
                let _ = self.child.kill();
            }
            self.child.wait().unwrap();
        }
    }
}

/// A directory to mount, in a scratch directory.
pub(crate) fn source() -> (tempfile::TempDir, PathBuf) {
    let dir = scratch();
    let source = dir.path().join("source");
    fs::create_dir(&source).unwrap();
    (dir, source)
}
