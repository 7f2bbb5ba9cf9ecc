//! Servers under measurement: started here and ended on drop, or given by a URL.
//!
//! 1. Each started server has its own process group, so that an interrupt at the terminal reaches
//!    this program only, which then ends the server.
//! 2. A started Weir ends when its standard input is closed, so it never outlives this program.

use crate::host;
use crate::interrupt;
use crate::measure::processor_seconds_of;
use crate::process;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, Signal};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::str::FromStr;
use std::time::{Duration, Instant};
use weir_client::{NfsUrl, Version};
use weir_tools::failure::{Asked, Failure, Result};

/// Time limit for a server's start.
const START: Duration = Duration::from_secs(20);
/// Interval of checks while waiting for one.
const LOOK_EVERY: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
const NFS_PORT: u16 = 2049;
const SYNC: &str = "changes of names and attributes survive a power failure once they are answered";
const RELAXED: &str =
    "a power failure may undo changes of names and attributes answered in the seconds before it";

/// A server under measurement, as requested.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// This program, started here.
    Weir,
    /// The same, with relaxed durability.
    WeirRelaxed,
    /// nfs-ganesha, started here.
    Ganesha,
    /// The Linux kernel's server, in a guest.
    Knfsd,
    /// One that runs.
    Url(NfsUrl),
}

impl FromStr for Wanted {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "weir" => Ok(Self::Weir),
            "weir-relaxed" => Ok(Self::WeirRelaxed),
            "ganesha" => Ok(Self::Ganesha),
            "knfsd" => Ok(Self::Knfsd),
            url if url.starts_with("nfs://") => url.parse().map(Self::Url).map_err(|e| {
                let e: weir_client::Error = e;
                e.to_string()
            }),
            _ => {
                Err("a server is weir, weir-relaxed, ganesha, knfsd, or nfs://HOST[:PORT]/PATH"
                    .into())
            }
        }
    }
}

/// The place to start servers: the network, and their address in it.
#[derive(Clone, Debug)]
pub(crate) struct Host {
    /// A named network namespace, if it is not this process's.
    pub(crate) namespace: Option<String>,
    pub(crate) address: IpAddr,
}

impl Host {
    /// Loopback.
    pub(crate) const LOCAL: Self =
        Self { namespace: None, address: IpAddr::V4(Ipv4Addr::LOCALHOST) };

    /// A command to run in that network.
    pub(crate) fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = match &self.namespace {
            Some(namespace) => {
                let mut command = Command::new("ip");
                command.args(["netns", "exec", namespace]).arg(program);
                command
            }
            None => Command::new(program),
        };
        command.process_group(0);
        command
    }

    /// A port that seems to be free.
    fn free_port(&self) -> Result<u16> {
        if self.namespace.is_some() {
            return Ok(NFS_PORT);
        }
        let listener = TcpListener::bind((self.address, 0)).and_then(|l| l.local_addr());
        Ok(listener.asked(|| "find a free port".into())?.port())
    }
}

/// A server that runs.
pub(crate) struct Peer {
    /// What people call it.
    pub(crate) name: String,
    /// What it exports.
    pub(crate) url: NfsUrl,
    /// Its processes, if known, whose processor time is reported.
    pub(crate) processes: Vec<u32>,
    /// The durability of changes of names when it replies.
    pub(crate) promise: &'static str,
    /// Versions that it is known not to support.
    pub(crate) lacks: Vec<Version>,
    child: Option<Running>,
}

impl Peer {
    /// A server that others run; `process` is its process, if known.
    pub(crate) fn remote(url: &NfsUrl, process: Option<u32>) -> Self {
        let mut name = url.clone();
        name.query.clear();
        Self {
            name: name.to_string(),
            url: url.clone(),
            processes: process.into_iter().collect(),
            promise: "what its export's options say (knfsd: sync, unless it is exported async)",
            lacks: Vec::new(),
            child: None,
        }
    }

    /// This program with relaxed durability, otherwise like [`weir`](Self::weir).
    pub(crate) fn weir_relaxed(host: &Host, dir: &Path, state: &Path) -> Result<Self> {
        let mut peer = Self::weir_with(host, dir, state, None, true)?;
        (peer.name, peer.promise) = ("weir-relaxed".into(), RELAXED);
        Ok(peer)
    }

    /// This program, serving `dir`, with its state in `state`.
    pub(crate) fn weir(host: &Host, dir: &Path, state: &Path, budget: Option<u64>) -> Result<Self> {
        Self::weir_with(host, dir, state, budget, false)
    }

    fn weir_with(
        host: &Host,
        dir: &Path,
        state: &Path,
        budget: Option<u64>,
        relaxed: bool,
    ) -> Result<Self> {
        let settings = host::Settings {
            dir: dir.to_path_buf().into(),
            state_dir: state.to_path_buf().into(),
            address: host.address,
            budget_bytes: budget,
            relaxed,
        };
        let mut command = host.command(process::program()?);
        let mut running = Running::start(command.args(process::arguments(host::NAME, &settings)?))?;
        let port = running.answer()?["port"].as_u64().unwrap_or(0);
        let url = format!("nfs://{}:{port}/?mountport={port}", url_host(host.address));
        Self::started("weir", SYNC, &url, running, Vec::new())
    }

    /// nfs-ganesha, serving `dir`, with its own files in `state`.
    pub(crate) fn ganesha(host: &Host, dir: &Path, state: &Path) -> Result<Self> {
        let asked = || "start nfs-ganesha".to_owned();
        fs::create_dir_all(state).asked(asked)?;
        // Version 3 has to be registered, or ganesha does not start.
        let mapper = Path::new("/run/rpcbind.sock").exists();
        let (port, mountport) = (host.free_port()?, host.free_port()?);
        let mountport = if port == mountport { port + 1 } else { mountport };
        let conf = state.join("ganesha.conf");
        let (dir, shown, address) = (dir.display(), state.display(), host.address);
        let protocols = if mapper { "3, 4" } else { "4" };
        let text = format!(
            "NFS_CORE_PARAM {{ NFS_Port = {port}; MNT_Port = {mountport}; Bind_addr = {address};\n\
             Protocols = {protocols}; Enable_NLM = false; Enable_RQUOTA = false; Enable_UDP = false;\n\
             mount_path_pseudo = true; }}\n\
             NFSv4 {{ Graceless = true; Minor_Versions = 0, 1, 2; RecoveryRoot = \"{shown}\"; }}\n\
             EXPORT {{ Export_Id = 1; Path = \"{dir}\"; Pseudo = /export; Access_Type = RW;\n\
             Squash = No_Root_Squash; SecType = sys; Protocols = {protocols}; Transports = TCP;\n\
             FSAL {{ Name = VFS; }} }}\n"
        );
        fs::write(&conf, text).asked(asked)?;
        let mut command = host.command("ganesha.nfsd");
        command.args(["-F", "-N", "NIV_WARN", "-f"]).arg(&conf);
        command.arg("-L").arg(state.join("log")).arg("-p").arg(state.join("pid"));
        let mut running = Running::start(&mut command).map_err(|failure| {
            failure.advice("install nfs-ganesha and nfs-ganesha-vfs, and be root")
        })?;
        if let Err(failure) = running.listens(port) {
            let log = fs::read_to_string(state.join("log")).unwrap_or_default();
            let said = log.lines().rev().find(|l| l.contains("FATAL") || l.contains("MAJ"));
            return Err(failure.advice(said.unwrap_or("see whether it runs by itself").to_owned()));
        }
        let url = format!("nfs://{}:{port}/export?mountport={mountport}", url_host(host.address));
        let lacks = if mapper { Vec::new() } else { vec![Version::V3] };
        Self::started("ganesha", RELAXED, &url, running, lacks)
    }

    fn started(
        name: &str,
        promise: &'static str,
        url: &str,
        running: Running,
        lacks: Vec<Version>,
    ) -> Result<Self> {
        let url = url
            .parse()
            .map_err(|e: weir_client::Error| Failure::new("name a server", e.to_string()))?;
        let processes = vec![running.child.id()];
        Ok(Self { name: name.into(), url, processes, promise, lacks, child: Some(running) })
    }

    /// Its processor seconds so far; `None` if its processes are unknown.
    pub(crate) fn processor_seconds(&self) -> Option<f64> {
        match self.processes.is_empty() {
            true => None,
            false => self.processes.iter().map(|&id| processor_seconds_of(id)).sum(),
        }
    }

    /// Sends a command about a file to a Weir that was started here, and returns its answer.
    pub(crate) fn control(&mut self, what: &str) -> Result<Value> {
        match &mut self.child {
            Some(child) => child.control(what),
            None => Err(Failure::new("control a server", "it was not started here")),
        }
    }
}

/// An address in the form of a URL.
fn url_host(address: IpAddr) -> String {
    match address {
        IpAddr::V4(ip) => ip.to_string(),
        IpAddr::V6(ip) => format!("[{ip}]"),
    }
}

/// A process that was started here; ended when dropped.
pub(crate) struct Running {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
    shown: String,
}

impl Running {
    /// Starts a program.
    pub(crate) fn start(command: &mut Command) -> Result<Self> {
        let program = match command.get_program().to_str() {
            // ip netns exec NAME PROGRAM
            Some("ip") => command.get_args().nth(3).map(PathBuf::from),
            program => program.map(PathBuf::from),
        };
        let program = program.unwrap_or_default();
        let shown = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().asked(|| format!("start {shown}"))?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let stdout = stdout.ok_or_else(|| Failure::new("start a program", "it has no output"))?;
        Ok(Self { child, stdin, stdout: BufReader::new(stdout), shown })
    }

    /// The process.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits for its end, up to a limit.
    pub(crate) fn ends_within(&mut self, time: Duration) -> bool {
        let begun = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) {
            if begun.elapsed() > time {
                return false;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        true
    }

    /// Whether it has ended.
    pub(crate) fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// The next line of JSON that it prints.
    pub(crate) fn answer(&mut self) -> Result<Value> {
        let mut line = String::new();
        let asked = || format!("hear from {}", self.shown);
        while self.stdout.buffer().is_empty() {
            interrupt::check()?;
            let mut heard = [PollFd::new(self.stdout.get_ref(), PollFlags::IN)];
            let waited = rustix::event::poll(&mut heard, Some(&LOOK_EVERY));
            if waited.map_err(std::io::Error::from).asked(asked)? > 0 {
                break;
            }
        }
        if self.stdout.read_line(&mut line).asked(asked)? == 0 {
            return Err(Failure::new(asked(), "it has ended; its messages are above"));
        }
        serde_json::from_str(&line).map_err(|e| Failure::new(asked(), format!("{e}: {line}")))
    }

    /// Sends it a line, and returns its answer.
    pub(crate) fn control(&mut self, what: &str) -> Result<Value> {
        let shown = self.shown.clone();
        let asked = || format!("have {shown} {what}");
        if let Some(stdin) = &mut self.stdin {
            writeln!(stdin, "{what}").and_then(|()| stdin.flush()).asked(asked)?;
        }
        let answer = self.answer()?;
        match answer["error"].as_str() {
            Some(error) => Err(Failure::new(asked(), error)),
            None => Ok(answer),
        }
    }

    /// Waits until it listens on a TCP port.
    fn listens(&mut self, port: u16) -> Result<()> {
        let begun = Instant::now();
        loop {
            interrupt::check()?;
            // The process's own view: it may be in another network namespace.
            let sockets = ["tcp", "tcp6"].map(|name| {
                let path = format!("/proc/{}/net/{name}", self.child.id());
                fs::read_to_string(path).unwrap_or_default()
            });
            if sockets.iter().any(|s| listens_to(s, port)) {
                return Ok(());
            }
            let asked = || format!("start {}", self.shown);
            if let Some(status) = self.child.try_wait().asked(asked)? {
                return Err(Failure::new(asked(), format!("it has ended ({status})")));
            }
            if begun.elapsed() > START {
                return Err(Failure::new(asked(), "it does not listen"));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Whether a table of sockets, as in `/proc/net/tcp`, has one that listens on `port`.
fn listens_to(table: &str, port: u16) -> bool {
    const LISTEN: &str = "0A";
    let end = format!(":{port:04X}");
    table.lines().any(|line| {
        let mut fields = line.split_ascii_whitespace().skip(1);
        fields.next().is_some_and(|local| local.ends_with(&end)) && fields.nth(1) == Some(LISTEN)
    })
}

impl Drop for Running {
    fn drop(&mut self) {
        // A Weir ends with its input; others get a signal, with all processes that they started.
        self.stdin = None;
        let group = Pid::from_child(&self.child);
        let _ = rustix::process::kill_process_group(group, Signal::TERM);
        for _ in 0..200 {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = rustix::process::kill_process_group(group, Signal::KILL);
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_by_name_or_url() {
        assert_eq!("weir".parse(), Ok(Wanted::Weir));
        assert_eq!("weir-relaxed".parse(), Ok(Wanted::WeirRelaxed));
        assert_eq!("ganesha".parse(), Ok(Wanted::Ganesha));
        assert!(
            matches!("nfs://h:1/x?vers=3".parse(), Ok(Wanted::Url(url)) if url.port == Some(1))
        );
        assert!("knfsd2".parse::<Wanted>().is_err() && "nfs:///".parse::<Wanted>().is_err());
    }

    #[test]
    fn a_listening_socket_is_recognised() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue\n\
             0: 0100007F:0801 00000000:0000 0A 00000000:00000000 00:00000000\n\
             1: 0100007F:0802 0100007F:1234 01 00000000:00000000 00:00000000\n";
        assert!(listens_to(table, 0x0801));
        assert!(!listens_to(table, 0x0802) && !listens_to(table, 0x1801));
    }

    #[test]
    fn started_servers_are_ended() {
        let mut running = Running::start(Host::LOCAL.command("sleep").arg("60")).unwrap();
        let id = running.id();
        assert!(!running.has_ended());
        drop(running);
        assert!(!Path::new(&format!("/proc/{id}")).exists());
    }
}
