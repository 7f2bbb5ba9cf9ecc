//! The process that serves the command's files.
//!
//! 1. It serves until the last process that uses them has ended, and then writes out what is left.
//! 2. The command gets the terminal's signals itself; others are passed on to it.

use super::report::{Report, Watch};
use super::{Args, NOT_RUN};
use crate::commands::{LAST_CALLS, runtime};
use crate::ended::Ended;
use crate::output::complain;
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::signal::unix::{SignalKind, signal};
use weir_fuse::namespace::{Peer, can_open_device};
use weir_fuse::{Keeper, Observer, Session, Settings};
use weir_pagecache::{Cache, CachedFs, Config};
use weir_stores::local::{LocalFs, LocalOptions};
use weir_tools::failure::{Asked, Failure, Result};
use weir_tools::memory::{READAHEAD_BYTES, budget_bytes, check_budget};
use weir_tools::text::size_text;

/// Default budget of an uncached run: enough for read-ahead and for writes on their way to disk.
const BUFFER_BYTES: u64 = 128 << 20;
/// Largest default budget of a cached one.
const BUDGET_CAP_BYTES: u64 = 16 << 30;

pub(super) fn run(args: &Args) -> Result<Ended> {
    if let Err(error) = can_open_device() {
        let failure = Failure::new("run a command behind a mount", format!("/dev/fuse: {error}"));
        complain(&failure.advice("load the module fuse, or let this user open /dev/fuse"));
        return Ok(Ended::With(NOT_RUN));
    }
    check_budget(args.budget)?;
    let mut paths = Vec::new();
    for path in &args.path {
        paths.push(path.canonicalize().asked(|| format!("find {}", path.display()))?);
    }
    let runtime = runtime()?;
    let stage = if paths.is_empty() { Some(Stage::new()?) } else { None };
    let ended = runtime.block_on(serve(args, &paths, stage.as_ref()));
    runtime.shutdown_timeout(LAST_CALLS);
    ended
}

/// The directory on which the new root is mounted, in the command's namespace alone.
struct Stage(PathBuf);

impl Stage {
    fn new() -> Result<Self> {
        let dir = std::env::temp_dir().join(format!("weir-run-{}", std::process::id()));
        // The name may be left over from a process that was killed.
        let _ = std::fs::remove_dir(&dir);
        let made = DirBuilder::new().mode(0o700).create(&dir);
        made.asked(|| format!("create directory {}", dir.display()))?;
        Ok(Self(dir))
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// The served directories.
struct Served {
    cache: Cache,
    settings: Settings,
    watch: Option<Arc<Watch>>,
    sessions: Vec<(CachedFs, Session)>,
}

async fn serve(args: &Args, paths: &[PathBuf], stage: Option<&Stage>) -> Result<Ended> {
    let bytes = match (args.budget, args.cached) {
        (None, false) => BUFFER_BYTES,
        (budget, _) => budget_bytes(budget, BUDGET_CAP_BYTES),
    };
    let config =
        Config { budget_bytes: bytes, readahead_bytes: READAHEAD_BYTES, ..Config::default() };
    let cache =
        Cache::new(config).asked(|| format!("set up a page cache of {}", size_text(bytes)))?;
    let wants_report = args.report || args.json.wanted();
    let watch = wants_report.then(|| Arc::new(Watch::default()));
    let settings = Settings {
        keeper: Keeper::Weir,
        uncached: !args.cached,
        kernel_checks: rustix::process::geteuid().is_root(),
        show_mount_points: true,
        valid: Duration::from_secs(1),
    };
    let mut signals = Signals::new()?;
    let since = Instant::now();
    let (mut child, peer) = start(args, paths, stage)?;
    let mut served = Served { cache, settings, watch: watch.clone(), sessions: Vec::new() };
    // It ends when the command runs, or when the process inside has failed.
    let served = tokio::task::spawn_blocking(move || {
        while let Ok(Some((path, connection))) = peer.next() {
            let outcome = served.add(path, connection);
            if peer.served(outcome).is_err() {
                break;
            }
        }
        served
    });
    let status = signals.wait(&mut child).await.asked(|| "wait for the command".into())?;
    let Ok(served) = served.await else {
        return Err(Failure::new("serve the command's files", "a thread panicked"));
    };
    let (written, moved) = served.end().await;
    if let Some(watch) = watch {
        Report::new(&watch, moved, since.elapsed()).await.print(args.json.wanted())?;
    }
    let ended = Ended::of(status);
    match (written, ended) {
        (Ok(()), ended) => Ok(ended),
        (Err(error), Ended::With(0)) => {
            Err(error).asked(|| "write out what the command wrote".into())
        }
        (Err(error), ended) => {
            complain(&Failure::of("write out what the command wrote", error));
            Ok(ended)
        }
    }
}

/// Starts the process that becomes the command.
fn start(args: &Args, paths: &[PathBuf], stage: Option<&Stage>) -> Result<(Child, Peer)> {
    let asked = || "start the command".to_owned();
    let (outside, inside) = Peer::pair().asked(asked)?;
    let mut command = Command::new(std::env::current_exe().asked(asked)?);
    command.arg("run").arg("--inside").arg(inside.number().to_string());
    if let Some(Stage(dir)) = stage {
        command.arg("--stage").arg(dir);
    }
    for path in paths {
        command.arg("--path").arg(path);
    }
    let child = command.arg("--").args(&args.command).spawn().asked(asked)?;
    Ok((child, outside))
}

impl Served {
    /// Serves a directory.
    fn add(&mut self, path: PathBuf, connection: std::os::fd::OwnedFd) -> Result<(), String> {
        let store =
            LocalFs::open(&path, LocalOptions::default()).map_err(|error| error.to_string())?;
        let observer =
            self.watch.clone().map(|watch| -> Arc<dyn Observer> { watch.of(store.clone()) });
        let fs = self.cache.mount(store);
        let threads = std::thread::available_parallelism().map_or(4, |n| n.get().clamp(4, 8));
        let session = Session::observed(
            connection,
            fs.clone(),
            self.settings,
            threads,
            Handle::current(),
            observer,
        );
        self.sessions.push((fs, session.map_err(|error| error.to_string())?));
        Ok(())
    }

    /// Waits until no process uses the files, and writes out what is left. Returns how many bytes were read
    /// and written.
    async fn end(self) -> (weir_vfs::Result<()>, (u64, u64)) {
        let (mut written, mut moved) = (Ok(()), (0, 0));
        for (fs, session) in self.sessions {
            let wait = tokio::task::spawn_blocking(move || session.wait());
            if let Ok(done) = wait.await {
                moved.0 += done.read_bytes;
                moved.1 += done.written_bytes;
            }
            written = written.and(fs.unmount().await);
        }
        (written, moved)
    }
}

/// Signals to this process.
struct Signals {
    all: Vec<(tokio::signal::unix::Signal, Option<rustix::process::Signal>)>,
}

impl Signals {
    fn new() -> Result<Self> {
        use rustix::process::Signal;
        let kinds = [
            // The terminal sends these to the command, too.
            (SignalKind::interrupt(), None),
            (SignalKind::quit(), None),
            (SignalKind::hangup(), Some(Signal::HUP)),
            (SignalKind::terminate(), Some(Signal::TERM)),
            (SignalKind::user_defined1(), Some(Signal::USR1)),
            (SignalKind::user_defined2(), Some(Signal::USR2)),
        ];
        let listen = |(kind, to)| Ok((signal(kind)?, to));
        let all = kinds.map(listen).into_iter().collect::<io::Result<_>>();
        Ok(Self { all: all.asked(|| "listen to signals".into())? })
    }

    /// Waits for the command, and passes signals on to it.
    async fn wait(&mut self, child: &mut Child) -> io::Result<ExitStatus> {
        let pid = rustix::process::Pid::from_child(child);
        let mut passing = tokio::task::JoinSet::new();
        for (mut signal, to) in self.all.drain(..) {
            passing.spawn(async move {
                while signal.recv().await.is_some() {
                    if let Some(to) = to {
                        // It may have ended already.
                        let _ = rustix::process::kill_process(pid, to);
                    }
                }
            });
        }
        // The child is not reaped before signals to its number have ended.
        let ended = tokio::task::spawn_blocking(move || {
            let id = rustix::process::WaitId::Pid(pid);
            let options =
                rustix::process::WaitIdOptions::EXITED | rustix::process::WaitIdOptions::NOWAIT;
            rustix::io::retry_on_intr(|| rustix::process::waitid(id.clone(), options))
        });
        let _ = ended.await;
        passing.shutdown().await;
        child.wait()
    }
}
