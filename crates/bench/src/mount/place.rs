//! Places: ways to use the same files.

use crate::interrupt;
use crate::kernel_mount::KernelMount;
use crate::measure::processor_seconds_of;
use crate::peers::{Host, Peer, Running};
use crate::process;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use weir_client::{NfsUrl, Version};
use weir_tools::failure::{Asked, Failure, Result};

/// Time limit for a mount.
const START: Duration = Duration::from_secs(20);

/// A way to use files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// The directory itself.
    Directory,
    /// `weir mount`, with the page cache of the process or of the kernel.
    Weir {
        kernel_keeps: bool,
    },
    Bindfs,
    Rclone,
    /// The kernel's NFS client.
    Linux,
}

impl Way {
    /// For reports.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Directory => "directory",
            Self::Weir { kernel_keeps: false } => "weir mount",
            Self::Weir { kernel_keeps: true } => "weir mount --cache kernel",
            Self::Bindfs => "bindfs",
            Self::Rclone => "rclone mount",
            Self::Linux => "linux",
        }
    }

    /// Whether it is another FUSE file system.
    pub(super) fn is_peer(self) -> bool {
        matches!(self, Self::Bindfs | Self::Rclone)
    }

    /// The ways to use a directory of this machine: those of which the programs are installed.
    pub(super) fn of_directory() -> Vec<Self> {
        let mut ways = vec![Self::Directory];
        ways.extend([false, true].map(|kernel_keeps| Self::Weir { kernel_keeps }));
        ways.extend(
            [(Self::Bindfs, "bindfs"), (Self::Rclone, "rclone")]
                .into_iter()
                .filter(|(_, program)| process::is_installed(program))
                .map(|(way, _)| way),
        );
        ways
    }

    /// The ways to use an NFS server that are possible here.
    pub(super) fn of_server() -> Vec<Self> {
        let mut ways = [false, true].map(|kernel_keeps| Self::Weir { kernel_keeps }).to_vec();
        if KernelMount::is_possible() {
            ways.push(Self::Linux);
        }
        ways
    }
}

/// What is mounted.
pub(super) enum Source<'a> {
    Directory(&'a Path),
    Server(&'a mut Peer),
}

/// Files in use in one way; ended when dropped.
pub(super) struct Place {
    /// The files are here.
    pub(super) path: PathBuf,
    mount: Mount,
}

enum Mount {
    None,
    Fuse(FuseMount),
    Kernel { _mount: KernelMount },
}

/// A mount by a process that was started here.
struct FuseMount {
    point: PathBuf,
    running: Option<Running>,
}

impl Place {
    /// Makes `source` usable at `point`, an empty directory.
    pub(super) fn make(way: Way, source: &Source<'_>, point: &Path, budget: u64) -> Result<Self> {
        let mount = match (way, source) {
            (Way::Directory, Source::Directory(dir)) => {
                return Ok(Self { path: dir.to_path_buf(), mount: Mount::None });
            }
            (Way::Weir { kernel_keeps }, source) => {
                let mut command = Host::LOCAL.command(process::program()?);
                // What the kernel keeps is only on its way through this cache.
                let (keeper, budget) =
                    if kernel_keeps { ("kernel", 256 << 20) } else { ("weir", budget) };
                command.args(["mount", "--foreground", "--attr-timeout", "1", "--cache", keeper]);
                command.args(["--budget", &budget.to_string()]);
                match source {
                    Source::Directory(dir) => command.arg(dir),
                    Source::Server(peer) => command.arg(url_of(peer).to_string()),
                };
                Mount::Fuse(FuseMount::start(command.arg(point), point)?)
            }
            (Way::Bindfs, Source::Directory(dir)) => {
                let mut command = Host::LOCAL.command("bindfs");
                Mount::Fuse(FuseMount::start(command.arg("-f").arg(dir).arg(point), point)?)
            }
            (Way::Rclone, Source::Directory(dir)) => {
                let mut command = Host::LOCAL.command("rclone");
                // A file is in the directory when it is closed, as with the others.
                command.args(["mount", "--vfs-cache-mode", "writes", "--vfs-write-back", "0"]);
                command.args(["--config", ""]);
                command.arg("--cache-dir").arg(point.with_extension("cache"));
                Mount::Fuse(FuseMount::start(command.arg(dir).arg(point), point)?)
            }
            (Way::Linux, Source::Server(peer)) => {
                let port = peer.url.port.unwrap_or_default();
                let made = KernelMount::make(point.into(), "/", Version::V4_2, (port, None))?;
                Mount::Kernel { _mount: made }
            }
            (way, _) => return Err(Failure::new("mount", format!("{} cannot", way.name()))),
        };
        Ok(Self { path: point.into(), mount })
    }

    /// Processor seconds of the process that serves it; `None` if there is no such process.
    pub(super) fn processor_seconds(&self) -> Option<f64> {
        match &self.mount {
            Mount::Fuse(FuseMount { running: Some(running), .. }) => {
                processor_seconds_of(running.id())
            }
            _ => None,
        }
    }
}

fn url_of(peer: &Peer) -> NfsUrl {
    let mut url = peer.url.clone();
    let and = if url.query.is_empty() { "" } else { "&" };
    url.query = format!("{}{and}vers={}", url.query, Version::V4_2);
    url
}

impl FuseMount {
    fn start(command: &mut Command, point: &Path) -> Result<Self> {
        let shown = || format!("mount on {}", point.display());
        let before = device(point).asked(shown)?;
        let mut this = Self { point: point.into(), running: Some(Running::start(command)?) };
        let begun = Instant::now();
        while device(point).asked(shown)? == before {
            interrupt::check()?;
            if this.running.as_mut().is_some_and(Running::has_ended) {
                return Err(Failure::new(shown(), "the process has ended; its messages are above"));
            }
            if begun.elapsed() > START {
                return Err(Failure::new(shown(), "nothing is mounted there"));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(this)
    }
}

impl Drop for FuseMount {
    fn drop(&mut self) {
        // Every one of these programs unmounts when it gets SIGTERM; what was killed does not.
        self.running = None;
        for program in ["umount", "fusermount3"] {
            let is_mounted = fs::read_to_string("/proc/self/mounts")
                .is_ok_and(|mounts| mounts.contains(&format!(" {} ", self.point.display())));
            if is_mounted {
                let flags = if program == "umount" { "-l" } else { "-uz" };
                let _ = Command::new(program).arg(flags).arg(&self.point).output();
            }
        }
    }
}

/// The device number of the file system at `path`.
fn device(path: &Path) -> std::io::Result<u64> {
    Ok(fs::metadata(path)?.dev())
}
