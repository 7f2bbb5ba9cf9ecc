//! The engine `mount`: this process serves the command's files.
//!
//! It serves until the last process that uses them has ended, and then writes out what is left. If it cannot receive
//! the requests of one of the mounts any more, the guard answers those of all of them with errors, so that the command
//! ends.

use super::child::{Signals, start};
use super::options::{Args, Engine};
use super::report::Ran;
use super::report::{Watch, Work};
use crate::commands::guard::Guard;
use crate::commands::{LAST_CALLS, descriptors, in_place, runtime};
use crate::output::complain;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::task::{JoinError, JoinSet};
use weir_fuse::namespace::can_open_device;
use weir_fuse::{Keeper, Observer, Session, Settings};
use weir_pagecache::{Cache, CachedFs, Config};
use weir_stores::local::{LocalFs, LocalOptions};
use weir_tools::failure::{Asked, Failure, Result};
use weir_tools::memory::READAHEAD_BYTES;
use weir_tools::text::size_text;

/// How long a directory may take to open: a network file system may wait for its server for ever.
const OPEN_LIMIT: Duration = Duration::from_secs(5);

/// The part of the budget that the kernel's pages of a directory may have, in an uncached run.
const WINDOW_PARTS: u64 = 4;

/// Runs the command, or says why the engine cannot.
pub(super) fn run(args: &Args, paths: &[PathBuf], watch: Option<Arc<Watch>>) -> Result<Ran> {
    if let Err(error) = can_open_device() {
        let failure = Failure::new("run a command behind a mount", format!("/dev/fuse: {error}"));
        let advice = "load the module fuse, or let this user open /dev/fuse";
        return Ok(Err(failure.advice(advice)));
    }
    let runtime = runtime()?;
    let stage = if paths.is_empty() { Some(Stage::new()?) } else { None };
    let ran = runtime.block_on(serve(args, paths, stage.as_ref(), watch));
    runtime.shutdown_timeout(LAST_CALLS);
    ran
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
    /// Runs as soon as there is a session.
    guard: Option<Guard>,
}

async fn serve(
    args: &Args,
    paths: &[PathBuf],
    stage: Option<&Stage>,
    watch: Option<Arc<Watch>>,
) -> Result<Ran> {
    let bytes = args.budget_bytes();
    let config =
        Config { budget_bytes: bytes, readahead_bytes: READAHEAD_BYTES, ..Config::default() };
    let cache =
        Cache::new(config).asked(|| format!("set up a page cache of {}", size_text(bytes)))?;
    let settings = Settings {
        keeper: if args.cached { Keeper::Weir } else { Keeper::Window(bytes / WINDOW_PARTS) },
        uncached: !args.cached,
        kernel_checks: rustix::process::geteuid().is_root(),
        show_mount_points: true,
        valid: Duration::from_secs(1),
    };
    let mut signals = Signals::new()?;
    let stage = stage.map(|Stage(dir)| dir.as_path());
    let (mut child, peer) = start(args, Engine::Mount, paths, stage)?;
    // The command, which has started, keeps its own. Each file that it has open is also open here.
    let _raised = descriptors::raise();
    let mut served = Served { cache, settings, watch, sessions: Vec::new(), guard: None };
    // It ends when the command runs, or when the process inside has failed.
    let prepared = tokio::task::spawn_blocking(move || {
        loop {
            match peer.next() {
                Ok(Some((path, connection))) => {
                    let outcome = served.add(path, connection);
                    if peer.served(outcome).is_err() {
                        return (served, None);
                    }
                }
                Ok(None) => return (served, None),
                Err(why) => return (served, Some(why)),
            }
        }
    });
    let serving = tokio::spawn(async move {
        let (served, refused) = prepared.await?;
        Ok::<_, JoinError>((served.end().await, refused))
    });
    let status = signals.wait(&mut child).await.asked(|| "wait for the command".into())?;
    let Ok(Ok((end, refused))) = serving.await else {
        return Err(Failure::new("serve the command's files", "a thread panicked"));
    };
    if let Some(why) = refused {
        let failure = Failure::new("run a command behind a mount", why.to_string());
        return Ok(Err(failure.advice(
            "the kernel or a container may refuse namespaces or FUSE to this user; run as root, or \
             allow them (kernel.unprivileged_userns_clone, user.max_user_namespaces, AppArmor)",
        )));
    }
    for failure in end.failures() {
        if status.success() {
            return Err(failure);
        }
        complain(&failure);
    }
    let work = Work::Served { read_bytes: end.read_bytes, written_bytes: end.written_bytes };
    Ok(Ok((status, work)))
}

/// How the service ended.
struct End {
    /// Some of the files could not be served to the end, which was reported.
    is_lost: bool,
    written: weir_vfs::Result<()>,
    read_bytes: u64,
    written_bytes: u64,
}

impl End {
    fn failures(&self) -> impl Iterator<Item = Failure> {
        let lost =
            || Failure::new("run the command to its end", "its files could not be served any more");
        let written = self.written.err();
        let asked = "write out what the command wrote";
        self.is_lost.then(lost).into_iter().chain(written.map(|error| Failure::of(asked, error)))
    }
}

impl Served {
    /// Serves a directory.
    fn add(&mut self, path: PathBuf, connection: std::os::fd::OwnedFd) -> Result<(), String> {
        let store = opened(path)?;
        let observer =
            self.watch.clone().map(|watch| -> Arc<dyn Observer> { watch.of(store.clone()) });
        let fs = self.cache.mount(store);
        let threads = std::thread::available_parallelism().map_or(4, |n| n.get().clamp(4, 8));
        // The mount is in the namespace of the command, and goes with it.
        self.guard.get_or_insert_with(Guard::start).add(&connection, None);
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

    /// Serves until no process uses the files, or they cannot be served any more. Writes out what is left.
    async fn end(self) -> End {
        let Self { sessions, mut guard, .. } = self;
        let mut end = End { is_lost: false, written: Ok(()), read_bytes: 0, written_bytes: 0 };
        let mut waiting = JoinSet::new();
        for (fs, session) in sessions {
            let counters = session.counters();
            waiting.spawn_blocking(move || (session.wait(), counters, fs));
        }
        while let Some(ended) = waiting.join_next().await {
            let Ok((ended, counters, fs)) = ended else {
                end.is_lost = true;
                continue;
            };
            if let Err(error) = ended {
                complain(&Failure::new("serve the command's files", error.to_string()));
                end.is_lost = true;
                // Not dismissed: it answers requests from now on, as if this process had been killed.
                guard = None;
            }
            let moved = counters.data();
            end.read_bytes += moved.read_bytes;
            end.written_bytes += moved.written_bytes;
            end.written = end.written.and(fs.unmount().await);
        }
        if let Some(guard) = guard {
            guard.dismiss();
        }
        end
    }
}

/// Opens a directory, unless it takes too long.
fn opened(path: PathBuf) -> Result<Arc<LocalFs>, String> {
    let (send, receive) = std::sync::mpsc::channel();
    // If its server never answers, this thread waits until the process ends.
    let options = LocalOptions { in_place, ..LocalOptions::default() };
    std::thread::spawn(move || send.send(LocalFs::open(&path, options)));
    match receive.recv_timeout(OPEN_LIMIT) {
        Ok(opened) => opened.map_err(|error| error.to_string()),
        Err(_) => Err("its server does not answer".into()),
    }
}
