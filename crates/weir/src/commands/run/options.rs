//! The arguments of `weir run`.

use crate::arguments::{JsonArgs, one_of};
use std::ffi::OsString;
use std::path::PathBuf;
use weir_tools::memory::budget_bytes;
use weir_tools::size::Size;

/// The exit code if the command was not run.
pub(crate) const NOT_RUN: u8 = 125;
/// The exit codes of a command that could not be executed or found, also those of shells.
pub(super) const NOT_EXECUTED: u8 = 126;
pub(super) const NOT_FOUND: u8 = 127;
/// Default budget of an uncached run: enough for read-ahead and for writes on their way to disk.
const BUFFER_BYTES: u64 = 128 << 20;
/// Largest default budget of a cached one.
const BUDGET_CAP_BYTES: u64 = 16 << 30;

/// What keeps the command's file I/O out of the kernel's cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Engine {
    Auto,
    Mount,
    Watch,
}

impl Engine {
    const ALL: &'static [(&'static str, &'static str, Self)] = &[
        ("auto", "mount, and watch where that is refused", Self::Auto),
        ("mount", "files lie behind a mount in a namespace of its own", Self::Mount),
        (
            "watch",
            "opens are watched, and the kernel drops pages that were not cached before",
            Self::Watch,
        ),
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Mount => "mount",
            Self::Watch => "watch",
        }
    }
}

/// Run a command that leaves the page cache as it was
#[derive(clap::Args)]
#[command(after_long_help = "\
Examples:
  weir run tar -cf /backup/srv.tar /srv            without evicting what other programs use
  weir run --path /srv -- restic backup /srv       only files in /srv
  weir run --report sha256sum disk.img             and show what was moved and left in memory
  weir run --compare sha256sum disk.img            and what it costs without Weir
  weir run --cached --budget 2G make -j8           in a cache of its own, of 2 GiB

The command's files lie behind a mount in a namespace of its own, so it can be any program, also one that \
is linked statically. Its user, directory, terminal, signals and exit code are as without `weir run`. \
Without --path, all files on disks and servers are behind the mount; /proc, /sys, /dev, /run, /tmp and \
/var/tmp are not.

Reads and writes are uncached: they pass through a small buffer (--budget), are written \
to disk soon, and leave neither this process's cache nor the kernel's fuller than before. \
The command ends like any other; `weir run` then writes out what is left, and waits for \
processes that the command has left behind.

A mount needs /dev/fuse, and a kernel that lets users make namespaces, or root. Without root, set-user-id \
programs run without their rights, and files of other users cannot be written in it even if their mode \
allows it.

Where a container refuses that, the engine `watch` runs the command: it sees which files the command opens \
(a seccomp filter; Linux 5.9, no privileges), and has the kernel drop those of their pages that were not \
cached before, when they exceed --budget, and at the end. It sees up to some hundred files at a time.

The exit code is 125 if the command could not be run this way, 126 if it cannot be \
executed, 127 if it is not found. It is not 0 if the command's files could not be served or watched to the end, or \
what it wrote could not be written out.")]
pub(crate) struct Args {
    /// A directory whose files the command reaches through Weir; may be repeated [default: all]
    #[arg(long, value_name = "DIR")]
    pub(super) path: Vec<PathBuf>,
    /// Keep what the command reads and writes in a cache of its own, until it ends
    #[arg(long, conflicts_with = "uncached")]
    pub(super) cached: bool,
    /// Keep nothing (the default)
    #[arg(long)]
    uncached: bool,
    /// What keeps the command's files out of the kernel's cache
    #[arg(long, value_name = "ENGINE", default_value = "auto", value_parser = one_of(Engine::ALL))]
    pub(super) engine: Engine,
    /// Memory for the cache or buffer: 512M, 2GiB, or 50% of memory [default: 128M; with --cached, a
    /// quarter of memory, at most 16G]
    #[arg(long, value_name = "SIZE")]
    pub(super) budget: Option<Size>,
    /// At the end, print to standard error what was moved, and what is left in the kernel's cache
    #[arg(long)]
    pub(super) report: bool,
    /// Run the command once more afterwards, without Weir and with its output thrown away, and print what
    /// both cost
    #[arg(long)]
    pub(super) compare: bool,
    #[command(flatten)]
    pub(super) json: JsonArgs,
    /// Become the command; the number of the descriptor of the process that serves its files
    #[arg(long, hide = true, value_name = "NUMBER")]
    pub(super) inside: Option<i32>,
    /// The directory for the new root
    #[arg(long, hide = true, value_name = "DIR", requires = "inside")]
    pub(super) stage: Option<PathBuf>,
    /// The command and its arguments
    #[arg(
        value_name = "COMMAND",
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    pub(super) command: Vec<OsString>,
}

impl Args {
    /// Memory for the cache or buffer.
    pub(super) fn budget_bytes(&self) -> u64 {
        match (self.budget, self.cached) {
            (None, false) => BUFFER_BYTES,
            (budget, _) => budget_bytes(budget, BUDGET_CAP_BYTES),
        }
    }
}
