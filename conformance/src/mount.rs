//! A `weir mount` for tests.

use crate::{skip, weir};
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// How long an unmounted process has to end.
const PATIENCE: Duration = Duration::from_secs(300);

/// A mounted source. Dropping it unmounts.
pub struct Mount {
    child: Child,
    dir: PathBuf,
}

impl Mount {
    /// Mounts `source` on `dir`, which is created; `None`, and the test is skipped, if this machine does
    /// not let it.
    ///
    /// # Panics
    /// The mount fails for another reason.
    #[track_caller]
    pub fn start(source: &str, dir: &Path, options: &[&str]) -> Option<Self> {
        std::fs::create_dir_all(dir).expect("a directory to mount on");
        let mut command = Command::new(weir());
        command.args(["mount", "--announce"]).args(options).arg(source).arg(dir);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("weir starts");
        let mut said = String::new();
        if let Some(stdout) = child.stdout.take() {
            BufReader::new(stdout).read_line(&mut said).expect("weir mount says that it is ready");
        }
        if said == "mounted\n" {
            return Some(Self { child, dir: dir.to_owned() });
        }
        let mut why = String::new();
        if let Some(mut stderr) = child.stderr.take() {
            stderr.read_to_string(&mut why).expect("weir mount says why it failed");
        }
        child.wait().expect("it has ended");
        let lacking =
            ["no /dev/fuse", "the kernel refuses", "is not installed", "fusermount3 refuses"];
        assert!(lacking.iter().any(|lack| why.contains(lack)), "{why}");
        skip(why);
        None
    }

    /// The directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Kills the process, and waits until its guard has unmounted the directory.
    ///
    /// # Panics
    /// The directory stays mounted.
    pub fn kill(mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it ends");
        let since = Instant::now();
        while self.is_mounted() {
            assert!(since.elapsed() < PATIENCE, "{} stays mounted", self.dir.display());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Ends it, and returns how the process ended.
    ///
    /// # Panics
    /// It does not end.
    pub fn end(mut self) -> ExitStatus {
        self.terminate()
    }

    fn is_mounted(&self) -> bool {
        let table = std::fs::read_to_string("/proc/self/mountinfo").expect("a table of mounts");
        table.lines().any(|line| line.split(' ').nth(4) == self.dir.to_str())
    }

    fn terminate(&mut self) -> ExitStatus {
        let pid = self.child.id().to_string();
        let sent = Command::new("kill").args(["-TERM", &pid]).status().expect("kill runs");
        assert!(sent.success());
        let since = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("it is a child") {
                return status;
            }
            if since.elapsed() > PATIENCE {
                let _ = self.child.kill();
                panic!("the mount of {} does not end", self.dir.display());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            if std::thread::panicking() {
                let _ = self.child.kill();
                let _ = self.child.wait();
            } else {
                self.terminate();
            }
        }
    }
}
