//! `weir top` beside a running server: its figures, and the terminal that it leaves.

mod common;

use common::{Server, scratch, sparse, text, weir, within};
use rustix::fs::{Mode, OFlags};
use rustix::ioctl::{Getter, Setter, ioctl, opcode};
use rustix::process::{Pid, Signal, kill_process};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};
use serde_json::Value;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(120);

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

    fn weir(&self, args: &[&str]) -> Command {
        let mut command = weir(args);
        command.env("XDG_RUNTIME_DIR", self.dir.path());
        command
    }

    fn serve(&self) -> Server {
        let mut command = self.weir(&["serve", "--json", "--log", "warn", "--bind", "127.0.0.1:0"]);
        command.arg("--budget").arg("32M");
        command.arg("--state-dir").arg(self.export.with_extension("state")).arg(&self.export);
        let server = Server::spawn(command);
        let listens = || self.weir(&["status"]).output().unwrap().status.success().then_some(());
        within(PATIENCE, listens);
        server
    }

    fn top(&self, args: &[&str]) -> Output {
        self.weir(&["top", "--interval", "0.1"]).args(args).output().unwrap()
    }
}

/// Ended when dropped.
struct Ending(Child);

impl Drop for Ending {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn number(value: &Value, name: &str) -> u64 {
    value[name].as_u64().unwrap_or_else(|| panic!("no {name}: {value}"))
}

#[test]
fn the_figures_are_those_of_what_was_read() {
    let rig = Rig::new();
    let server = rig.serve();
    sparse(&rig.export.join("file"), 3 * MIB, [(0, MIB), (2 * MIB, MIB)]);
    let mut stream = rig.weir(&["top", "--json", "--interval", "0.2"]);
    let mut stream = Ending(stream.stdout(Stdio::piped()).spawn().unwrap());
    let mut lines = BufReader::new(stream.0.stdout.take().unwrap()).lines();
    let begun = Instant::now();
    let mut next = || {
        loop {
            assert!(begun.elapsed() < 2 * PATIENCE, "the server does not answer");
            let line: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
            match &line["processes"].as_array().unwrap()[..] {
                [process] => {
                    assert_eq!(process["pid"], server.child.id());
                    return process.clone();
                }
                // The server did not answer in time. The next figures are those since its start.
                [] if line["failures"].as_array().is_some_and(|all| !all.is_empty()) => {}
                _ => panic!("{line}"),
            }
        }
    };
    // An interval without reads; everything after it is in the next ones.
    let idle = within(PATIENCE, || Some(next()).filter(|one| one["since_start"] == false));
    assert_eq!(number(&idle, "read_bytes"), 0);
    let read = rig.weir(&["cat", &server.url("file", "vers=4.2")]).output().unwrap();
    assert_eq!(read.stdout.len() as u64, 3 * MIB, "{}", text(&read));
    // A client that asks for nothing.
    let client = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
    let client = (client.local_addr().unwrap().to_string(), client);
    let (mut bytes, mut holes, mut reads, mut is_connected) = (0, 0, 0, false);
    let begun = Instant::now();
    while bytes < 2 * MIB || holes < MIB || reads == 0 || !is_connected {
        assert!(begun.elapsed() < PATIENCE, "{bytes} bytes, {holes} of holes, {reads} READ_PLUSes");
        let process = next();
        if process["since_start"] == true {
            (bytes, holes, reads) = (0, 0, 0);
        }
        bytes += number(&process, "read_bytes");
        holes += number(&process, "hole_bytes");
        let per_second = process["read_bytes_per_s"].as_f64().unwrap();
        let seconds = process["seconds"].as_f64().unwrap();
        let counted = number(&process, "read_bytes") as f64;
        assert!((per_second * seconds - counted).abs() <= counted / 1000.0, "{process}");
        for one in process["connections"].as_array().unwrap() {
            if one["address"] == *client.0 {
                assert_eq!((number(one, "calls"), number(one, "sent_bytes")), (0, 0), "{one}");
                is_connected = true;
            }
        }
        for one in process["operations"].as_array().unwrap() {
            let bound = |name| one[name].as_u64().unwrap_or(u64::MAX);
            assert!(bound("p50_us") <= bound("p99_us"), "{one}");
            if one["name"].as_str().unwrap().eq_ignore_ascii_case("read_plus") {
                reads += number(one, "count");
            }
        }
        // Each byte is counted in one interval only.
        let total = &process["total"];
        assert_eq!((bytes, holes), (number(total, "read_bytes"), number(total, "hole_bytes")));
    }

    let output = rig.top(&["--once", "--json", &server.child.id().to_string()]);
    assert!(output.status.success(), "{}", text(&output));
    let said: Value = serde_json::from_slice(&output.stdout).unwrap();
    let process = &said["processes"][0];
    assert!(number(&process["total"], "read_bytes") >= 2 * MIB, "{said}");
    assert_eq!(number(process, "read_bytes"), 0, "nothing was read in this interval");
    assert!(process["seconds"].as_f64().unwrap() >= 0.1, "{said}");
    let file = &process["files"][0];
    assert_eq!(file["path"], rig.export.join("file").to_str().unwrap());
    assert!(number(file, "resident_bytes") >= 2 * MIB, "{said}");
    assert!(number(&process["cache"], "used_bytes") >= 2 * MIB, "{said}");
    assert_eq!(number(&process["cache"], "budget_bytes"), 32 * MIB);
}

#[test]
fn an_interval_is_text_without_a_terminal() {
    let rig = Rig::new();
    let none = rig.top(&[]);
    assert_eq!(none.status.code(), Some(1), "{}", text(&none));
    assert!(text(&none).contains("no weir process"), "{}", text(&none));
    let server = rig.serve();
    let pid = server.child.id().to_string();
    let socket = rig.dir.path().join(format!("weir/{pid}.sock"));
    for target in [pid.as_str(), socket.to_str().unwrap(), rig.export.to_str().unwrap(), "serve"] {
        let output = rig.top(&[target]);
        let said = text(&output);
        assert!(output.status.success(), "{said}");
        assert!(said.starts_with(&format!("serve {pid}, up ")), "{said}");
        assert!(said.contains("of 32.00 MiB"), "{said}");
    }
    for target in ["1", "/nowhere", "/nowhere/1.sock"] {
        let output = rig.top(&["--json", "--once", target]);
        assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    }
}

/// A terminal without a screen.
struct Terminal {
    /// The side of the person.
    near: File,
    /// The side of programs.
    far: OwnedFd,
    /// What programs wrote.
    said: Arc<Mutex<Vec<u8>>>,
}

impl Terminal {
    fn new() -> Self {
        let open = |path: &Path| {
            let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
            rustix::fs::open(path, flags, Mode::empty()).unwrap()
        };
        let near = open(Path::new("/dev/ptmx"));
        // SAFETY: TIOCSPTLCK reads an int, and TIOCGPTN writes an unsigned int.
        let number = unsafe {
            ioctl(&near, Setter::<{ opcode::write::<i32>(b'T', 0x31) }, i32>::new(0)).unwrap();
            ioctl(&near, Getter::<{ opcode::read::<u32>(b'T', 0x30) }, u32>::new()).unwrap()
        };
        let far = open(Path::new(&format!("/dev/pts/{number}")));
        let size = Winsize { ws_row: 40, ws_col: 120, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&far, size).unwrap();
        let (near, said) = (File::from(near), Arc::<Mutex<Vec<u8>>>::default());
        let (mut from, into) = (near.try_clone().unwrap(), said.clone());
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(n @ 1..) = from.read(&mut bytes) {
                into.lock().unwrap().extend_from_slice(&bytes[..n]);
            }
        });
        Self { near, far, said }
    }

    fn run(&self, mut command: Command) -> Ending {
        let end = || Stdio::from(self.far.try_clone().unwrap());
        Ending(command.stdin(end()).stdout(end()).stderr(end()).spawn().unwrap())
    }

    /// Waits until programs wrote `wanted`.
    fn shows(&self, wanted: &str) {
        let begun = Instant::now();
        loop {
            let said = self.said.lock().unwrap().clone();
            if contains(&said, wanted.as_bytes()) {
                return;
            }
            let text = String::from_utf8_lossy(&said);
            assert!(begun.elapsed() < PATIENCE, "no {wanted}: {text:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits until the whole screen contains `wanted`. A program draws only what has changed, except
    /// after a change of the terminal's size.
    fn draws(&self, wanted: &str) {
        let mut rows = [40, 41].into_iter().cycle();
        within(PATIENCE, || {
            let from = self.said.lock().unwrap().len();
            let ws_row = rows.next().unwrap();
            let size = Winsize { ws_row, ws_col: 120, ws_xpixel: 0, ws_ypixel: 0 };
            tcsetwinsize(&self.far, size).unwrap();
            std::thread::sleep(Duration::from_millis(300));
            contains(&self.said.lock().unwrap()[from..], wanted.as_bytes()).then_some(())
        });
    }

    fn is_canonical(&self) -> bool {
        let modes = tcgetattr(self.far.as_fd()).unwrap().local_modes;
        modes.contains(LocalModes::ICANON | LocalModes::ECHO)
    }
}

fn contains(all: &[u8], part: &[u8]) -> bool {
    all.windows(part.len()).any(|window| window == part)
}

#[test]
fn every_way_out_restores_the_terminal() {
    const LEAVE: &str = "\x1b[?1049l";
    let rig = Rig::new();
    let server = rig.serve();
    type WayOut = fn(&Terminal, &Ending);
    let signal = |child: &Ending, signal| kill_process(Pid::from_child(&child.0), signal).unwrap();
    let term = Some(Signal::TERM.as_raw());
    let ways: [(&str, Option<i32>, WayOut); 3] = [
        ("q", None, |terminal, _| (&terminal.near).write_all(b"q").unwrap()),
        ("ctrl-c", None, |terminal, _| (&terminal.near).write_all(b"\x03").unwrap()),
        ("SIGTERM", term, |_, child| {
            kill_process(Pid::from_child(&child.0), Signal::TERM).unwrap()
        }),
    ];
    for (name, by, leave) in ways {
        let terminal = Terminal::new();
        assert!(terminal.is_canonical());
        let mut child = terminal.run(rig.weir(&["top", "--interval", "0.1"]));
        terminal.shows(&server.child.id().to_string());
        assert!(!terminal.is_canonical(), "{name}: it reads keys");
        leave(&terminal, &child);
        let ended = within(PATIENCE, || child.0.try_wait().unwrap());
        let code = if by.is_none() { Some(0) } else { None };
        assert_eq!((ended.code(), ended.signal()), (code, by), "{name}");
        terminal.shows(LEAVE);
        assert!(terminal.is_canonical(), "{name}");
    }
    // A signal ends it also while processes do not answer, which it would ask one after the other, for 5 s each.
    server.pause();
    let silent = |number| rig.dir.path().join(format!("weir/{}.sock", 5_000_000 + number));
    let _silent: Vec<_> =
        (0..60).map(|number| UnixListener::bind(silent(number)).unwrap()).collect();
    let terminal = Terminal::new();
    let mut child = terminal.run(rig.weir(&["top", "--interval", "0.1"]));
    terminal.shows("waiting for the first figures");
    signal(&child, Signal::HUP);
    let ended = within(PATIENCE, || child.0.try_wait().unwrap());
    assert_eq!(ended.signal(), Some(Signal::HUP.as_raw()));
    assert!(terminal.is_canonical());
    server.signal(Signal::CONT);
}

#[test]
fn a_lost_server_is_found_again() {
    let rig = Rig::new();
    let mut server = rig.serve();
    let terminal = Terminal::new();
    let mut child = terminal.run(rig.weir(&["top", "--interval", "0.1"]));
    terminal.shows(&server.child.id().to_string());
    server.signal(Signal::TERM);
    server.ended();
    terminal.shows("trying again");
    let server = rig.serve();
    terminal.draws(&format!("serve {}", server.child.id()));
    (&terminal.near).write_all(b"q").unwrap();
    assert!(within(PATIENCE, || child.0.try_wait().unwrap()).success());
}
