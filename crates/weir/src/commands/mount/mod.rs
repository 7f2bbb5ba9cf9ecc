//! `weir mount`: resolves the arguments, and runs the mount here or in the background.
//!
//! - `source`: the store. `running`: the mount from its start to its end. `control`: its answers to
//!   `weir status`. `background`: the process that stays behind.

mod background;
mod control;
mod running;
mod source;

use crate::arguments::{MountArgs, location};
use crate::commands::guard::{self, GuardArgs};
use crate::ended::Ended;
use std::path::{Path, PathBuf};
use std::time::Duration;
use weir_client::MountOptions;
use weir_fuse::Keeper;
use weir_tools::failure::{Failure, Result};
use weir_tools::location::Location;
use weir_tools::mounts::mount_failure;

/// Mount a directory or an NFS server's files
#[derive(clap::Args)]
#[command(after_long_help = "\
Examples:
  weir mount nfs://filer/models /mnt/models          any user, without the kernel's NFS client
  weir mount --uncached /srv/backups /mnt/backups    a local directory, read without filling the cache
  weir mount --cache kernel nfs://filer/src ~/src    the kernel keeps what was read
  weir mount --foreground --log info SOURCE DIR      for a service manager
  fusermount3 -u /mnt/models                         unmount (root: umount)

Data is kept in this process's page cache, of --budget bytes; the kernel keeps none \
(--cache weir), so memory holds one copy, and a read or write of a file that was opened with O_DIRECT, or \
that has the attribute user.weir.uncached=1, leaves the cache as it found it, without rules of \
alignment. With --cache kernel the kernel keeps what was read, and a later read of it does not \
reach this process. With --cache auto it does so for files that programs open for reading alone.

The command returns when DIR is usable; a process in the background serves it. SIGTERM, SIGINT \
or SIGHUP, or unmounting DIR, writes out all data and ends that process. If it is killed, DIR is unmounted, and programs \
that use it get errors; what fsync(2) acknowledged is safe. What another client changed is seen when a \
file is opened, as on NFS, and names and attributes after --attr-timeout. docs/MOUNT.md says \
more.

For /etc/fstab, link this program as /sbin/mount.fuse.weir; then options go into the fourth field:

  nfs://filer/models  /mnt/models  fuse.weir  allow_other,budget=2G,_netdev  0  0")]
pub(crate) struct Args {
    /// A directory, or the URL of a directory of an NFS server
    #[arg(value_name = "SOURCE", value_parser = location(), required_unless_present = "guard")]
    source: Option<Location>,
    /// The directory to mount it on; or /dev/fd/N, a descriptor of /dev/fuse that another process has
    /// mounted and passed on, as into a container
    #[arg(value_name = "DIR", required_unless_present = "guard")]
    dir: Option<PathBuf>,
    /// Which page cache keeps data: this process's, the kernel's, or each that of some files
    #[arg(long, value_name = "WHOSE", default_value = "weir")]
    cache: CacheArg,
    /// Leave the cache as it was, with every read and write
    #[arg(long)]
    uncached: bool,
    /// Refuse all changes
    #[arg(long)]
    read_only: bool,
    /// Refuse to execute programs
    #[arg(long)]
    no_exec: bool,
    /// Let other users use the mount; the kernel checks their permissions. Users other than root
    /// need user_allow_other in /etc/fuse.conf
    #[arg(long)]
    allow_other: bool,
    /// Seconds for which the kernel uses names and attributes without asking
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    attr_timeout: Duration,
    /// Do not go to the background
    #[arg(short, long)]
    foreground: bool,
    /// Log level: error, warn, info, debug or trace; by module, as in weir_fuse=debug,info
    #[arg(long, value_name = "FILTER", default_value = "warn")]
    log: String,
    #[command(flatten)]
    mount: MountArgs,
    /// Run as the process in the background
    #[arg(long, hide = true)]
    announce: bool,
    /// Guard the mounts of PROCESS; the number of the descriptor to that process
    #[arg(long, hide = true, value_name = "NUMBER:PROCESS", conflicts_with_all = ["source", "dir"])]
    guard: Option<GuardArgs>,
}

/// Which cache keeps data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum CacheArg {
    /// This process's: one copy in memory, uncached operations exact
    Weir,
    /// The kernel's: what it has is read without this process
    Kernel,
    /// The kernel's for files that are opened for reading alone, this process's for all others
    Auto,
}

impl From<CacheArg> for Keeper {
    fn from(arg: CacheArg) -> Self {
        match arg {
            CacheArg::Weir => Self::Weir,
            CacheArg::Kernel => Self::Kernel,
            CacheArg::Auto => Self::Auto,
        }
    }
}

impl Args {
    /// The log filter.
    pub(crate) fn log(&self) -> &str {
        &self.log
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.0..=86_400.0).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "take 0 to 86400 seconds".to_owned())
}

pub(crate) fn run(mut args: Args) -> Result<Ended> {
    if let Some(guarded) = args.guard {
        return guard::run(guarded);
    }
    let (Some(source), Some(dir)) = (args.source.clone(), args.dir.clone()) else {
        return Err(Failure::new("mount", "SOURCE and DIR are needed"));
    };
    take_options(&mut args, &source, &dir)?;
    if args.foreground || args.announce {
        running::run(running::Wanted { source, dir, args })
    } else {
        background::start()
    }
}

/// Takes what `-o` and the URL ask of the mount itself. Options of servers would have no effect on a local directory.
fn take_options(args: &mut Args, source: &Location, dir: &Path) -> Result<()> {
    let given = args.mount.options()?;
    match source {
        Location::Nfs(url) => {
            let options = url.options(&given).map_err(|error| mount_failure(url, &error))?;
            // Where another process has mounted, the client refuses the changes.
            args.read_only |= options.ro && !dir.starts_with("/dev/fd");
            args.uncached |= options.uncached;
        }
        Location::Local(_) => {
            let (ro, uncached) = (given.ro, given.uncached);
            if given != (MountOptions { ro, uncached, ..MountOptions::default() }) {
                let failed = "-o has options of servers, and this is a local directory";
                let failure = Failure::new(format!("mount {source}"), failed);
                return Err(failure.advice("ro, uncached, exec and noexec have a meaning for it"));
            }
            args.read_only |= ro;
            args.uncached |= uncached;
        }
    }
    args.no_exec |= args.mount.refuses_programs();
    Ok(())
}
