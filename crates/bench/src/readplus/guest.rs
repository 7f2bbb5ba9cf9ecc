//! A Linux kernel in a guest as the other side: its NFS client, or its server.
//!
//! The program `run` in the directory that `WEIR_LINUX` names boots the guest (`run [--disk IMAGE]
//! --server COMMAND SCRIPT ARG...`). It creates a network namespace `guest-PID` with 192.0.2.1 in
//! it; the guest is 192.0.2.2 and sees this machine's files.

use super::network::Rate;
use crate::interrupt;
use crate::peers::{Host, Running};
use crate::scratch::call;
use serde_json::Value;
use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use weir_tools::failure::{Asked, Failure, Result};

/// The directory with the program that boots a guest.
pub(crate) const HARNESS: &str = "WEIR_LINUX";

const SCRIPT: &str = include_str!("guest.sh");
const NATIVE: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
/// Becomes the guest runner, after a killed one that had its process number.
const RUN: &str = "ip netns del guest-$$ 2>/dev/null; exec \"$0\" \"$@\"";
/// The network device of the native side.
const DEVICE: &str = "tap0";
const QUIT: Duration = Duration::from_secs(10);

/// A guest that runs.
pub(crate) struct Guest {
    running: Running,
    control: PathBuf,
    asked: u32,
}

/// The harness, if there is one.
pub(crate) fn harness() -> Result<PathBuf> {
    let dir = std::env::var_os(HARNESS).map(PathBuf::from);
    dir.filter(|dir| dir.join("run").is_file()).ok_or_else(|| {
        Failure::new("boot a Linux guest", "there is nothing to boot it with")
            .advice(format!("set {HARNESS} to the directory of a guest runner"))
    })
}

impl Guest {
    /// Boots a guest, with a file system image as its disk; `control` is a directory for commands
    /// and answers.
    pub(crate) fn boot(
        control: &Path,
        disk: Option<&Path>,
        mem_mib: u64,
        rate: Rate,
    ) -> Result<Self> {
        let harness = harness()?;
        let script = control.join("guest.sh");
        fs::write(&script, SCRIPT).asked(|| format!("write {}", script.display()))?;
        let mut command = Host::LOCAL.command("sh");
        command.args(["-c", RUN]).arg(harness.join("run"));
        command.args(["--mem", &mem_mib.to_string(), "--timeout", "86400"]);
        if let Some(disk) = disk {
            command.arg("--disk").arg(disk);
        }
        let bits = match rate {
            Rate::Limited(bits) => bits,
            Rate::Unlimited => 0,
        };
        command.args(["--server", "exec sleep infinity"]).arg(&script);
        command.arg(control).arg(&harness).arg(bits.to_string());
        let running = Running::start(&mut command)?;
        let mut this = Self { running, control: control.to_path_buf(), asked: 0 };
        // It answers once it is up, and then its network is up, too.
        this.ask("echo {}", Duration::from_secs(60))?;
        rate.limit(&this.namespace(), DEVICE)?;
        Ok(this)
    }

    fn namespace(&self) -> String {
        format!("guest-{}", self.running.id())
    }

    /// The native side of its network.
    pub(crate) fn native(&self) -> Host {
        Host { namespace: Some(self.namespace()), address: NATIVE }
    }

    /// Sends it a command, and returns its answer.
    pub(crate) fn ask(&mut self, what: &str, patience: Duration) -> Result<Value> {
        let asked = || format!("have the guest {what}");
        let file = |name: &str| self.control.join(format!("{name}-{}", self.asked));
        let (ask, answer) = (file("ask"), file("answer"));
        self.asked += 1;
        let hidden = self.control.join(".ask");
        fs::write(&hidden, format!("{what}\n")).asked(asked)?;
        fs::rename(&hidden, &ask).asked(asked)?;
        let begun = Instant::now();
        while !answer.exists() {
            interrupt::check()?;
            if self.running.has_ended() {
                return Err(Failure::new(asked(), "it has ended"));
            }
            if begun.elapsed() > patience {
                return Err(Failure::new(asked(), format!("no answer in {patience:?}")));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let said = fs::read_to_string(&answer).asked(asked)?;
        let said: Value = serde_json::from_str(&said)
            .map_err(|error| Failure::new(asked(), format!("{error}: {said}")))?;
        match said["error"].as_str() {
            Some(error) => Err(Failure::new(asked(), error.trim_end_matches("; "))),
            None => Ok(said),
        }
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        // On request, it removes itself and its network.
        let hidden = self.control.join(".ask");
        let told = fs::write(&hidden, "quit\n")
            .and_then(|()| fs::rename(&hidden, self.control.join(format!("ask-{}", self.asked))));
        if told.is_ok() && self.running.ends_within(QUIT) {
            return;
        }
        let _ = call(Command::new("ip").args(["netns", "del", &self.namespace()]));
    }
}
