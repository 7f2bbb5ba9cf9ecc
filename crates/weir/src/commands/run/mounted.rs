//! The engine `mount`: this process serves the command's files.
//!
//! It serves until the last process that uses them has ended, and then writes out what is left. If it cannot receive
//! the requests of one of the mounts any more, the guard answers those of all of them with errors, so that the command
//! ends.

use super::child::{Signals, start};
use super::options::{Args, Engine};
use super::report::{Ran, Run, Watch, Work};
use crate::commands::guard::Guard;
use crate::commands::{LAST_CALLS, descriptors, file_size_limit, in_place, runtime};
use crate::output::complain;
use parking_lot::Mutex;
use std::fs::DirBuilder;
use std::hash::{BuildHasher, RandomState};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};
use tokio::runtime::{Handle, Runtime};
use tokio::task::{JoinError, JoinSet};
use weir_fuse::namespace::{Peer, can_open_device};
use weir_fuse::{HiddenNames, Keeper, Moved, Observer, Session, Settings};
use weir_pagecache::{Cache, CachedFs, Config};
use weir_stores::local::{LocalFs, LocalOptions};
use weir_tools::failure::{Asked, Failure, Result};
use weir_tools::memory::READAHEAD_BYTES;
use weir_tools::text::size_text;

/// How long a directory may take to open: a network file system may wait for its server for ever.
const OPEN_LIMIT: Duration = Duration::from_secs(60);

/// The same if the command runs without it: a directory that takes longer stays as it is.
const SPARE_OPEN_LIMIT: Duration = Duration::from_secs(5);

/// The part of the budget that the kernel's pages of a directory may have, in an uncached run.
const WINDOW_PARTS: u64 = 4;

/// Runs the command, or says why the engine cannot.
///
/// # Errors
/// The command has begun.
pub(super) fn run(args: &Args, paths: &[PathBuf], watch: Option<Arc<Watch>>) -> Result<Ran> {
    let (runtime, stage) = match prepared(paths) {
        Ok(prepared) => prepared,
        Err(failure) => return Ok(Err(failure)),
    };
    let stage = stage.as_ref().map(|Stage(dir)| dir.as_path());
    let mut raised = None;
    let ran = runtime.block_on(async {
        match Begun::new(args, paths, stage) {
            Ok(begun) => {
                // The command, which has started, keeps its own limits. Each file that it has open is also open here,
                // and what it writes is written here.
                raised = Some((descriptors::raise(), file_size_limit::raise()));
                serve(begun, watch).await
            }
            Err(failure) => Ok(Err(failure)),
        }
    });
    // After a signal, the files may still be served until here.
    runtime.shutdown_timeout(LAST_CALLS);
    drop(raised);
    ran
}

fn prepared(paths: &[PathBuf]) -> Result<(Runtime, Option<Stage>)> {
    if let Err(error) = can_open_device() {
        let failure = Failure::new("run a command behind a mount", format!("/dev/fuse: {error}"));
        return Err(failure.advice("load the module fuse, or let this user open /dev/fuse"));
    }
    let stage = paths.is_empty().then(Stage::new).transpose()?;
    Ok((runtime()?, stage))
}

/// The directory on which the new root is mounted, in the command's namespace alone.
struct Stage(PathBuf);

impl Stage {
    fn new() -> Result<Self> {
        // Other users may have made directories of any name that they can guess.
        let number = RandomState::new().hash_one(std::process::id());
        let dir = std::env::temp_dir().join(format!("weir-run-{number:016x}"));
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
    /// The directories without which the command cannot run.
    needed: Vec<PathBuf>,
    /// The command has ended, or the process that prepares it: no directory is waited for.
    has_ended: Arc<AtomicBool>,
    /// Those of all sessions.
    hidden: Arc<Mutex<Vec<HiddenNames>>>,
    sessions: Vec<(PathBuf, CachedFs, Session)>,
    /// Runs as soon as there is a session.
    guard: Option<Guard>,
}

/// The process that becomes the command has started.
struct Begun {
    cache: Cache,
    settings: Settings,
    /// The directories without which the command cannot run.
    needed: Vec<PathBuf>,
    signals: Signals,
    child: Child,
    peer: Peer,
}

impl Begun {
    fn new(args: &Args, paths: &[PathBuf], stage: Option<&Path>) -> Result<Self> {
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
            root_fsid: None,
            valid: Duration::from_secs(1),
        };
        let needed = if stage.is_none() { paths.to_vec() } else { vec![PathBuf::from("/")] };
        let signals = Signals::new()?;
        let (child, peer) = start(args, Engine::Mount, paths, stage)?;
        Ok(Self { cache, settings, needed, signals, child, peer })
    }
}

async fn serve(begun: Begun, watch: Option<Arc<Watch>>) -> Result<Ran> {
    let Begun { cache, settings, needed, mut signals, mut child, peer } = begun;
    let has_ended = Arc::new(AtomicBool::new(false));
    let hidden = Arc::new(Mutex::new(Vec::new()));
    let mut served = Served {
        cache,
        settings,
        watch,
        needed,
        has_ended: has_ended.clone(),
        hidden: hidden.clone(),
        sessions: Vec::new(),
        guard: None,
    };
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
    has_ended.store(true, Ordering::Relaxed);
    let served = tokio::select! {
        served = serving => served,
        () = signals.stop() => {
            let names = std::mem::take(&mut *hidden.lock());
            remove_all(names).await;
            let asked = "wait until the processes that the command left behind have ended, and their data is written";
            return Err(Failure::new(asked, "a signal asked to stop"));
        }
    };
    let Ok(Ok((end, refused))) = served else {
        return Err(Failure::new("serve the command's files", "a thread panicked"));
    };
    if let Some(why) = refused {
        let failure = Failure::new("run a command behind a mount", why.to_string());
        return Ok(Err(failure.advice(
            "the kernel or a container may refuse namespaces or FUSE to this user; run as root, or \
             allow them (kernel.unprivileged_userns_clone, user.max_user_namespaces, AppArmor)",
        )));
    }
    let work = Work::Served { read_bytes: end.read_bytes, written_bytes: end.written_bytes };
    Ok(Ok(Run { status, work, failures: end.failures() }))
}

/// Removes the names of files without a name that are still open. A store may never answer.
async fn remove_all(hidden: Vec<HiddenNames>) {
    let remove = |names: HiddenNames| async move { names.remove().await };
    let removing: JoinSet<()> = hidden.into_iter().map(remove).collect();
    let _ = tokio::time::timeout(LAST_CALLS, removing.join_all()).await;
}

/// How the service ended.
#[derive(Default)]
struct End {
    /// Some of the files could not be served to the end, which was reported.
    is_lost: bool,
    /// The directories to which not all could be written.
    unwritten: Vec<(PathBuf, weir_vfs::Error)>,
    read_bytes: u64,
    written_bytes: u64,
}

impl End {
    fn failures(&self) -> Vec<Failure> {
        let lost =
            || Failure::new("run the command to its end", "its files could not be served any more");
        let unwritten = self.unwritten.iter().map(|(dir, error)| {
            Failure::of(format!("write out what the command wrote to {}", dir.display()), *error)
        });
        self.is_lost.then(lost).into_iter().chain(unwritten).collect()
    }
}

/// A directory that is not served any more, and what is left to do for it.
struct Waited<U> {
    dir: PathBuf,
    ended: std::io::Result<()>,
    moved: Moved,
    /// Writes out what is left.
    unmount: U,
}

/// Waits for all directories. Those whose service ended are written out while others are served; `lost` is called when
/// one could not be served to the end.
async fn ended<U>(mut waiting: JoinSet<Waited<U>>, mut lost: impl FnMut()) -> End
where
    U: Future<Output = weir_vfs::Result<()>> + Send + 'static,
{
    let mut end = End::default();
    let mut writing = JoinSet::new();
    while let Some(waited) = waiting.join_next().await {
        let Ok(Waited { dir, ended, moved, unmount }) = waited else {
            end.is_lost = true;
            continue;
        };
        if let Err(error) = ended {
            let asked = format!("serve the command's files in {}", dir.display());
            complain(&Failure::new(asked, error.to_string()));
            end.is_lost = true;
            lost();
        }
        end.read_bytes += moved.read_bytes;
        end.written_bytes += moved.written_bytes;
        writing.spawn(async move { (dir, unmount.await) });
    }
    while let Some(written) = writing.join_next().await {
        match written {
            Ok((dir, written)) => end.unwritten.extend(written.err().map(|error| (dir, error))),
            Err(_) => end.is_lost = true,
        }
    }
    end
}

impl Served {
    /// Serves a directory.
    fn add(&mut self, path: PathBuf, connection: std::os::fd::OwnedFd) -> Result<(), String> {
        let is_needed = self.needed.contains(&path);
        let limit = if is_needed { OPEN_LIMIT } else { SPARE_OPEN_LIMIT };
        let store = opened(path.clone(), limit, &self.has_ended)?;
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
        let session = session.map_err(|error| error.to_string())?;
        self.hidden.lock().push(session.hidden_names());
        self.sessions.push((path, fs, session));
        Ok(())
    }

    /// Serves until no process uses the files, or they cannot be served any more. Writes out what is left.
    async fn end(self) -> End {
        let Self { sessions, mut guard, .. } = self;
        let mut waiting = JoinSet::new();
        for (dir, fs, session) in sessions {
            let counters = session.counters();
            waiting.spawn_blocking(move || {
                let ended = session.wait().map(drop);
                let data = counters.data();
                let (read_bytes, written_bytes) = (data.read_bytes, data.written_bytes);
                let unmount = async move { fs.unmount().await };
                Waited { dir, ended, moved: Moved { read_bytes, written_bytes }, unmount }
            });
        }
        // The guard is not dismissed: it answers requests from now on, as if this process had been killed.
        let end = ended(waiting, || guard = None).await;
        if let Some(guard) = guard {
            guard.dismiss();
        }
        end
    }
}

/// Opens a directory, unless it takes too long.
fn opened(path: PathBuf, limit: Duration, has_ended: &AtomicBool) -> Result<Arc<LocalFs>, String> {
    let (send, receive) = mpsc::channel();
    // If its server never answers, this thread waits until the process ends.
    let options = LocalOptions { in_place, ..LocalOptions::default() };
    std::thread::spawn(move || send.send(LocalFs::open(&path, options)));
    let begun = Instant::now();
    loop {
        let is_over = begun.elapsed() >= limit || has_ended.load(Ordering::Relaxed);
        match receive.recv_timeout(Duration::from_millis(50)) {
            Ok(opened) => return opened.map_err(|error| error.to_string()),
            Err(RecvTimeoutError::Timeout) if is_over => {
                return Err("its server does not answer".into());
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Err("a thread panicked".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::oneshot;
    use weir_vfs::Error;

    #[test]
    fn each_failure_is_reported_and_none_waits_for_a_write_out() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (tell, told) = oneshot::channel();
        let end = runtime.block_on(async {
            let moved = Moved { read_bytes: 1, written_bytes: 2 };
            let mut waiting = JoinSet::new();
            let mut told = Some(told);
            for (dir, lost, error) in [
                ("/a", false, Some(Error::NoSpace)),
                ("/b", true, Some(Error::Io)),
                ("/c", false, None),
            ] {
                let told = told.take();
                let ended = if lost { Err(std::io::Error::other("broken")) } else { Ok(()) };
                // The first directory is written out when the loss of the second one is known.
                let unmount = async move {
                    if let Some(told) = told {
                        told.await.unwrap();
                    }
                    error.map_or(Ok(()), Err)
                };
                waiting.spawn(async move { Waited { dir: dir.into(), ended, moved, unmount } });
            }
            let mut tell = Some(tell);
            let lost = || tell.take().unwrap().send(()).unwrap();
            let waits = ended(waiting, lost);
            tokio::time::timeout(Duration::from_secs(60), waits).await.expect("stuck")
        });
        assert_eq!((end.read_bytes, end.written_bytes), (3, 6));
        let mut said: Vec<_> = end.failures().iter().map(ToString::to_string).collect();
        said.sort();
        assert_eq!(said.len(), 3, "{said:?}");
        assert!(said[0].starts_with("cannot run the command to its end"), "{said:?}");
        assert!(said[1].starts_with("cannot write out what the command wrote to /a"), "{said:?}");
        assert!(said[2].starts_with("cannot write out what the command wrote to /b"), "{said:?}");
    }
}
