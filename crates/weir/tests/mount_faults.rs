//! A mounted server under load, while the server is killed, the link is cut, and the mount is killed.

mod common;

use common::mount::{Mount, source};
use common::receivers::fail_receivers;
use common::{Server, weir, within};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread::{Builder, sleep};
use std::time::{Duration, Instant};

const WRITERS: usize = 3;
/// Time for everything to go on after a fault: the grace period, and the client's retries.
const LIMIT: Duration = Duration::from_secs(180);

/// A link between the mount and the server, which can be cut.
struct Link {
    port: u16,
    state: Arc<LinkState>,
}

#[derive(Default)]
struct LinkState {
    cut: AtomicBool,
    sockets: Mutex<Vec<TcpStream>>,
}

impl Link {
    fn to(server: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let state = Arc::<LinkState>::default();
        let shared = Arc::clone(&state);
        let server = SocketAddr::from(([127, 0, 0, 1], server));
        // It ends with the test's process.
        let accept = move || {
            for client in listener.incoming().flatten() {
                // If the server is not there, the client finds its connection closed.
                let _ = shared.connect(client, server);
            }
        };
        Builder::new().name("link".into()).spawn(accept).unwrap();
        Self { port, state }
    }

    /// Loses what is under way, and all that comes until the link is mended.
    fn cut(&self) {
        self.state.cut.store(true, SeqCst);
    }

    /// Works again. Connections from before are reset.
    fn mend(&self) {
        for socket in self.state.sockets.lock().unwrap().drain(..) {
            let _ = socket.shutdown(Shutdown::Both);
        }
        self.state.cut.store(false, SeqCst);
    }
}

impl LinkState {
    fn connect(self: &Arc<Self>, client: TcpStream, server: SocketAddr) -> io::Result<()> {
        let server = TcpStream::connect(server)?;
        self.sockets.lock().unwrap().extend([client.try_clone()?, server.try_clone()?]);
        self.pass(client.try_clone()?, server.try_clone()?)?;
        self.pass(server, client)
    }

    fn pass(self: &Arc<Self>, mut from: TcpStream, mut to: TcpStream) -> io::Result<()> {
        let state = Arc::clone(self);
        let pass = move || {
            let mut bytes = vec![0; 64 << 10];
            while let Ok(len @ 1..) = from.read(&mut bytes) {
                // A part of a message may pass, and the rest be lost: the connection is of no more use.
                if !state.cut.load(SeqCst) && to.write_all(&bytes[..len]).is_err() {
                    break;
                }
            }
            let _ = to.shutdown(Shutdown::Both);
        };
        Builder::new().name("link".into()).spawn(pass).map(drop)
    }
}

/// Programs that create files, make them durable, and rename them. They are processes of their own:
/// one that has files open on the mount must not start the server, because its child closes them.
struct Load {
    /// Files that are acknowledged.
    done: Arc<[AtomicUsize; WRITERS]>,
    writers: Vec<Child>,
}

fn content(writer: usize, number: usize) -> Vec<u8> {
    let mut bytes = format!("{writer} {number}\n").into_bytes().repeat(6000);
    bytes.truncate(20_000 + number);
    bytes
}

fn name(writer: usize, number: usize) -> String {
    format!("{writer}-{number}")
}

impl Load {
    fn start(dir: &Path) -> Self {
        let done = Arc::<[AtomicUsize; WRITERS]>::default();
        let script = r#"i=0
            while :; do
                yes "$0 $i" | head -c $((20000 + i)) |
                    dd of="$0.part" bs=64k iflag=fullblock conv=fsync status=none || exit 1
                mv "$0.part" "$0-$i" && sync . && echo "$i" || exit 1
                i=$((i + 1))
            done"#;
        let write = |writer: usize| {
            let mut command = Command::new("sh");
            command.args(["-c", script, &writer.to_string()]).current_dir(dir);
            let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
            let said = BufReader::new(child.stdout.take().unwrap());
            let done = Arc::clone(&done);
            let count = move || {
                for line in said.lines().map_while(Result::ok) {
                    done[writer].store(line.parse::<usize>().unwrap() + 1, SeqCst);
                }
            };
            Builder::new().spawn(count).unwrap();
            child
        };
        let writers = (0..WRITERS).map(write).collect();
        Self { done, writers }
    }

    /// Waits until every writer has done more.
    fn goes_on(&mut self, after: &str) {
        let before: Vec<_> = self.done.iter().map(|done| done.load(SeqCst)).collect();
        let begun = Instant::now();
        let moved = |done: &[AtomicUsize]| {
            done.iter().zip(&before).all(|(now, &then)| now.load(SeqCst) > then + 1)
        };
        while !moved(&*self.done) {
            assert!(begun.elapsed() < LIMIT, "{after}: the load stands still at {:?}", self.done);
            for writer in &mut self.writers {
                assert!(writer.try_wait().unwrap().is_none(), "{after}: a program got an error");
            }
            sleep(Duration::from_millis(5));
        }
    }

    /// Waits until every program got an error. Returns how many files of each are acknowledged.
    fn failed(&mut self) -> Vec<usize> {
        for writer in &mut self.writers {
            let ended = within(LIMIT, || writer.try_wait().unwrap());
            assert_eq!(ended.code(), Some(1));
        }
        self.done.iter().map(|done| done.load(SeqCst)).collect()
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        for writer in &mut self.writers {
            let _ = writer.kill();
            let _ = writer.wait();
        }
    }
}

/// Asserts that the acknowledged files are whole.
fn check(dir: &Path, done: &[usize], when: &str) {
    for (writer, &count) in done.iter().enumerate() {
        for number in 0..count {
            let path = dir.join(name(writer, number));
            let found = fs::read(&path).unwrap_or_else(|error| {
                panic!("{when}: {} is acknowledged, and lost: {error}", path.display())
            });
            assert!(found == content(writer, number), "{when}: {} is damaged", path.display());
        }
    }
}

fn serve(export: &Path, port: u16) -> Server {
    let bind = format!("127.0.0.1:{port}");
    Server::start(export, &["--squash", "none", "--lease", "5", "--bind", &bind])
}

#[test]
fn acknowledged_files_survive_cut_links_and_kills() {
    for vers in ["3", "4.0", "4.2"] {
        let (near, export): (_, PathBuf) = source();
        let mut server = serve(&export, 0);
        let link = Link::to(server.port);
        let port = link.port;
        let url = format!("nfs://127.0.0.1:{port}/?mountport={port}&vers={vers}&timeo=20");
        let Some(mut mount) = Mount::start(near.path(), "mnt", &[], &url) else { return };
        let mut load = Load::start(&mount.dir);
        load.goes_on("at first");
        link.cut();
        sleep(Duration::from_secs(3));
        link.mend();
        load.goes_on("after the link was cut");
        for _ in 0..2 {
            let port = server.port;
            server.signal(Signal::KILL);
            assert_eq!(server.ended(), None);
            server = serve(&export, port);
        }
        load.goes_on("after the server was killed");
        mount.signal(Signal::KILL);
        mount.ended();
        let done = load.failed();
        check(&export, &done, vers);
        // The place is usable again.
        within(LIMIT, || (!mount.is_mounted()).then_some(()));
        let again = Mount::start(near.path(), "mnt", &[], &url).expect("it was mounted before");
        check(&again.dir, &done, vers);
        fs::write(again.path("new"), vers).unwrap();
        drop(again);
        assert_eq!(fs::read(export.join("new")).unwrap(), vers.as_bytes());
    }
}

/// A thread that waits in the kernel must not keep the connection of a killed process open.
#[test]
fn the_threads_that_notify_the_kernel_have_one_descriptor_alone() {
    let (near, source) = source();
    let from = source.to_str().unwrap();
    let Some(mount) = Mount::start(near.path(), "mnt", &[], from) else { return };
    let tasks = fs::read_dir(format!("/proc/{}/task", mount.child.id())).unwrap();
    let threads = tasks.map(|task| task.unwrap().path()).filter(|task| {
        // Another thread may have ended since.
        let name = fs::read_to_string(task.join("comm")).unwrap_or_default();
        name == "weir-fuse-pages\n" || name == "weir-fuse-locks\n"
    });
    let held = |thread: PathBuf| -> Vec<PathBuf> {
        let descriptors = fs::read_dir(thread.join("fd")).unwrap();
        descriptors.map(|fd| fs::read_link(fd.unwrap().path()).unwrap()).collect()
    };
    let held: Vec<_> = threads.map(held).collect();
    assert_eq!(held, [[Path::new("/dev/fuse")], [Path::new("/dev/fuse")]]);
}

/// As a service manager does that sends its signals to all processes, and at last SIGKILL to the one that serves.
#[test]
fn signals_to_stop_do_not_end_the_guard_of_a_mount() {
    let (near, source) = source();
    let Some(mut mount) = Mount::start(near.path(), "mnt", &[], source.to_str().unwrap()) else {
        return;
    };
    let of = format!(":{}\0", mount.child.id());
    let is_guard = |process: &fs::DirEntry| {
        let line = fs::read(process.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line);
        line.contains("\0--guard\0") && line.ends_with(&of)
    };
    // A moment after its start, it is not that program yet.
    let guard = within(LIMIT, || {
        let guard = fs::read_dir("/proc").unwrap().flatten().find(is_guard)?;
        guard.file_name().to_str()?.parse().ok().and_then(Pid::from_raw)
    });
    let signals = [Signal::TERM, Signal::INT, Signal::HUP];
    let status = format!("/proc/{}/status", guard.as_raw_nonzero());
    within(LIMIT, || {
        let status = fs::read_to_string(&status).unwrap();
        let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
        let ignored = u64::from_str_radix(ignored.trim(), 16).unwrap();
        let is_ignored = |signal: &Signal| (ignored >> (signal.as_raw() - 1)) & 1 == 1;
        signals.iter().all(is_ignored).then_some(())
    });
    for signal in signals {
        kill_process(guard, signal).unwrap();
    }
    mount.signal(Signal::KILL);
    mount.ended();
    within(LIMIT, || (!mount.is_mounted()).then_some(()));
}

#[test]
fn a_mount_whose_requests_are_received_no_more_is_detached_and_fails() {
    let (near, source) = source();
    let from = source.to_str().unwrap();
    let Some(mut mount) = Mount::start(near.path(), "mnt", &[], from) else { return };
    let mut file = fs::File::create(mount.path("file")).unwrap();
    file.write_all(b"written").unwrap();
    if !fail_receivers(&mount.child) {
        return;
    }
    assert!(file.sync_all().is_err(), "no request is answered any more");
    assert_eq!(mount.ended().code(), Some(1));
    assert!(!mount.is_mounted());
    assert_eq!(fs::read(source.join("file")).unwrap(), b"written");
}

/// A server that never answers.
#[test]
fn a_signal_ends_a_mount_that_waits_for_its_server() {
    let (dir, _) = source();
    for (options, signal) in [(&["--foreground"][..], Signal::TERM), (&[][..], Signal::INT)] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("nfs://127.0.0.1:{}/?vers=4.2", listener.local_addr().unwrap().port());
        let mut command = weir(["mount"]);
        command.args(options).arg(&url).arg(dir.path());
        let mut child = command.spawn().unwrap();
        let (mut connection, _) = listener.accept().unwrap();
        std::thread::sleep(Duration::from_millis(100));
        kill_process(Pid::from_child(&child), signal).unwrap();
        let ended = within(Duration::from_secs(30), || child.try_wait().unwrap());
        assert_eq!(ended.signal(), Some(signal.as_raw()), "{options:?}: {ended}");
        // The process that was to serve the mount has ended, too.
        connection.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let mut rest = Vec::new();
        connection.read_to_end(&mut rest).unwrap();
    }
}
