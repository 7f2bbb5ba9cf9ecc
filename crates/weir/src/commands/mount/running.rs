//! A mount from its start to its end.
//!
//! 1. The store is opened before the directory is mounted on: the two may be the same, and a failure then
//!    leaves no mount behind.
//! 2. A signal ends it at any time but while it mounts on the directory (fusermount3), also while a server or disk does
//!    not answer. Until it mounts, so does the end of the command that waits in the foreground.
//! 3. At the end, all written data is in the store, or the command fails and says so.

use super::source::{self, Source};
use super::{Args, background, control};
use crate::commands::guard::Guard;
use crate::commands::service_manager::notify;
use crate::commands::stop_signals::StopSignals;
use crate::commands::{LAST_CALLS, runtime};
use crate::ended::Ended;
use crate::output::complain;
use sd_notify::NotifyState;
use std::io;
use std::path::PathBuf;
use tracing::{debug, info, warn};
use weir_fuse::{HiddenNames, MountError, MountOptions, Mountpoint, Session, Settings};
use weir_pagecache::{Cache, CachedFs, Config};
use weir_tools::failure::{Asked, Failure, Result};
use weir_tools::location::Location;
use weir_tools::memory::{READAHEAD_BYTES, budget_bytes, check_budget};
use weir_tools::text::size_text;
use weir_vfs::FileKind;

/// Largest default budget.
const BUDGET_CAP_BYTES: u64 = 16 << 30;

/// What is asked for.
pub(super) struct Wanted {
    pub(super) source: Location,
    pub(super) dir: PathBuf,
    pub(super) args: Args,
}

/// Mounts, serves until the mount ends, and writes out what is left.
pub(super) fn run(wanted: Wanted) -> Result<Ended> {
    if wanted.args.announce {
        background::leave_terminal();
    }
    let runtime = runtime()?;
    let ended = runtime.block_on(serve(wanted));
    // A store that hangs keeps its calls for ever.
    runtime.shutdown_timeout(crate::commands::LAST_CALLS);
    ended
}

async fn serve(Wanted { source, dir, args }: Wanted) -> Result<Ended> {
    let shown = format!("mount {source} on {}", dir.display());
    let mut signals = StopSignals::listen()?;
    // Before this process opens descriptors of its own.
    let passed = weir_fuse::passed_connection(&dir);
    let passed = passed.transpose().map_err(|error| refused(&shown, &error))?;
    for (asked, option, flag) in
        [(args.read_only, "--read-only", "MS_RDONLY"), (args.no_exec, "--no-exec", "MS_NOEXEC")]
    {
        if passed.is_some() && asked {
            let failed = format!("{option} is up to the process that has mounted it");
            return Err(Failure::new(shown, failed).advice(format!("mount with {flag} there")));
        }
    }
    let opening = async {
        let opened = open(&source, passed.is_none().then_some(&dir), &args).await?;
        let root = opened.fs.getattr(opened.fs.root()).await.asked(|| shown.clone())?;
        Ok::<_, Failure>((opened, root))
    };
    let (Opened { fs, local }, root) = tokio::select! {
        opened = opening => opened?,
        _ = signals.any() => return Ok(Ended::Interrupted),
        () = background::abandoned(args.announce) => return Ok(Ended::Failed),
    };
    if root.kind != FileKind::Directory {
        return Err(Failure::new(shown, "the source is not a directory"));
    }
    let (device, mountpoint) = match passed {
        Some(device) => (device, None),
        None => {
            let options = MountOptions {
                source: source.to_string(),
                read_only: args.read_only,
                allow_other: args.allow_other,
                no_exec: args.no_exec,
                trusted: false,
            };
            let attached = Mountpoint::attach(&dir, &options);
            let (device, mountpoint) = attached.map_err(|error| refused(&shown, &error))?;
            (device, Some(mountpoint))
        }
    };
    let mountpoint = mountpoint.as_ref();
    let guard = Guard::start();
    guard.add(&device, mountpoint);
    let settings = Settings {
        keeper: args.cache.into(),
        uncached: args.uncached,
        kernel_checks: args.allow_other,
        show_mount_points: false,
        root_fsid: Some(root.fsid),
        valid: args.attr_timeout,
    };
    let threads = std::thread::available_parallelism().map_or(4, |n| n.get().clamp(4, 8));
    let handle = tokio::runtime::Handle::current();
    let started = Session::start(device, fs.clone(), settings, threads, handle);
    let session = match started {
        Ok(session) => session,
        Err(error) => {
            if let Some(mountpoint) = mountpoint {
                let _ = mountpoint.detach();
            }
            guard.dismiss();
            return Err(Failure::new(shown, error.to_string()));
        }
    };
    if let Some(Err(error)) = mountpoint.map(Mountpoint::widen_read_ahead) {
        debug!("the kernel reads ahead by its own measure: {error}");
    }
    let place = mountpoint.map_or(&*dir, Mountpoint::path);
    control::listen(&session, &fs, &shown, (place, local));
    info!("mounted {source} on {}", place.display());
    let hidden = session.hidden_names();
    background::announce(args.announce)?;
    if !args.announce {
        // In the background, this is not the process that the service manager has started.
        notify(&[NotifyState::Ready, NotifyState::Status(&shown)]);
    }
    let mut unmounted = tokio::task::spawn_blocking(move || session.wait());
    let (interrupted, lost) = tokio::select! {
        ended = &mut unmounted => (false, ended.map_err(io::Error::other).flatten().err()),
        _ = signals.any() => (true, None),
    };
    if let Some(error) = lost {
        if let Some(mountpoint) = mountpoint {
            mountpoint.abort();
            detach(mountpoint);
        }
        // Not dismissed: it answers what programs still ask for.
        drop(guard);
        let failure =
            Failure::new(format!("serve {source} on {}", place.display()), error.to_string());
        if let Err(error) = end(&fs, &hidden, None, signals).await {
            complain(&Failure::of(format!("write out the data of {}", place.display()), error));
        }
        return Err(failure);
    }
    let ended = end(&fs, &hidden, mountpoint.filter(|_| interrupted), signals).await;
    // While programs still use a mount that was detached, the guard answers them when this process is gone.
    if !interrupted || tokio::time::timeout(LAST_CALLS, unmounted).await.is_ok() {
        guard.dismiss();
    }
    ended.asked(|| format!("write out the data of {}", place.display()))?;
    Ok(Ended::Done)
}

fn detach(mountpoint: &Mountpoint) {
    if let Err(error) = mountpoint.detach() {
        warn!("cannot unmount {}: {error}", mountpoint.path().display());
    }
}

/// Detaches the mount, if it is still there, and writes out all data but that of files without a name.
async fn end(
    fs: &CachedFs,
    hidden: &HiddenNames,
    mounted: Option<&Mountpoint>,
    mut signals: StopSignals,
) -> weir_vfs::Result<()> {
    let write_out = async {
        if let Some(mountpoint) = mounted {
            // Most of it while programs can still use the mount; the rest afterwards.
            let _ = fs.cache().flush().await;
            detach(mountpoint);
        }
        hidden.remove().await;
        fs.unmount().await
    };
    tokio::select! {
        ended = write_out => ended,
        _ = signals.again() => {
            warn!("second signal to stop: ending without writing out the rest");
            if let Some(mountpoint) = mounted {
                // Unmounting would wait for a notification that waits for a server.
                mountpoint.abort();
                let _ = mountpoint.detach();
            }
            Err(weir_vfs::Error::Interrupted)
        }
    }
}

struct Opened {
    fs: CachedFs,
    /// The directory, if it is one of this machine.
    local: Option<PathBuf>,
}

async fn open(source: &Location, dir: Option<&PathBuf>, args: &Args) -> Result<Opened> {
    check_budget(args.mount.budget())?;
    let bytes = budget_bytes(args.mount.budget(), BUDGET_CAP_BYTES);
    let config =
        Config { budget_bytes: bytes, readahead_bytes: READAHEAD_BYTES, ..Config::default() };
    let cache =
        Cache::new(config).asked(|| format!("set up a page cache of {}", size_text(bytes)))?;
    let mut options = args.mount.options()?;
    options.uncached |= args.uncached;
    options.ro |= args.read_only;
    let Source { store, local } = source::open(source, dir, &options).await?;
    Ok(Opened { fs: cache.mount(store), local })
}

fn refused(shown: &str, error: &MountError) -> Failure {
    let failure = Failure::new(shown, error.to_string());
    match error {
        MountError::NoDevice => failure
            .advice("load the module fuse; for a container, pass the device: --device /dev/fuse"),
        MountError::NoHelper => failure.advice("install the package fuse3, or mount as root"),
        MountError::Helper(said) if said.contains("allow_other") => {
            failure.advice("add the line user_allow_other to /etc/fuse.conf, or mount as root")
        }
        MountError::Refused(_) => failure.advice(
            "a container may lack the right to mount (CAP_SYS_ADMIN in its user namespace)",
        ),
        MountError::Directory(error) if error.kind() == std::io::ErrorKind::NotConnected => {
            failure.advice("the process of an earlier mount there was killed: unmount it first (umount, or fusermount3 -u)")
        }
        MountError::Passed(_) => failure.advice(
            "open /dev/fuse, mount it, and leave the descriptor open for this process under that number",
        ),
        MountError::Helper(_) | MountError::Directory(_) => failure,
    }
}
